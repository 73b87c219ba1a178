"""Field cases 10 to 15: interrupts and approval."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from langgraph_idem import Effect, State
from langgraph_idem.testing import ScriptedChatModel
from tests.support.cases import (
    ALL_SEAMS,
    CONFIG,
    HELLO,
    PAY,
    PAY_ONE,
    SEAMS,
    Business,
    Hooks,
    agent,
    answers,
    asks,
    awaited,
    middle_agent,
    pay_tool,
    run,
)

ONCE = [("O-1", 5)]
TWICE = [("O-1", 5), ("O-1", 5)]
PAID = {"unguarded": TWICE, "guarded": ONCE}
SCRIPT = [asks(PAY_ONE), "Paid."]
# LangGraph cannot interrupt in async code before Python 3.11: its config gets lost there.
COLOURS = ["sync", "async"] if sys.version_info >= (3, 11) else ["sync"]


@pytest.fixture
async def business(sqlite_url: str) -> AsyncIterator[Business]:
    """Open a fresh business."""
    founded = Business.founded_at(sqlite_url)
    yield founded
    await founded.ledger.aclose()


def asking() -> None:
    """Ask a person, and do nothing with the answer."""
    interrupt("go on?")


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize(
    ("seam", "twin"), [("tool_node", "unguarded"), *((seam, "guarded") for seam in ALL_SEAMS)]
)
async def test_case_10_an_interrupt_after_the_effect(
    business: Business, colour: str, seam: str, twin: str
) -> None:
    """A tool that interrupts after its effect is entered anew on resume; the effect is not."""
    tools = [pay_tool(business, Hooks(after=asking), guarded=twin == "guarded", colour=colour)]
    graph = agent(seam, SCRIPT, tools, business, InMemorySaver())
    await run(colour, graph, HELLO)
    assert business.payments == ONCE
    ended = await run(colour, graph, Command(resume="yes"))
    assert ended["messages"][-1].content == "Paid."
    assert business.payments == PAID[twin]


def asking_sibling() -> BaseTool:
    """Make a tool that asks a person."""

    def ask() -> str:
        return str(interrupt("sure?"))

    return StructuredTool.from_function(func=ask, name="ask", description="Ask.")


@pytest.mark.parametrize(
    ("seam", "twin", "paid"),
    [
        ("tool_node", "unguarded", TWICE),
        ("create_react_agent", "unguarded", ONCE),
        *((seam, "guarded", ONCE) for seam in ALL_SEAMS),
    ],
)
def test_case_11_a_sibling_interrupts(
    business: Business, seam: str, twin: str, paid: list[Any]
) -> None:
    """A ToolNode over a message list runs the siblings of an interrupted call again.

    With one Send per call, as in our agent, not even an unguarded one.
    """
    done = threading.Event()
    tools = [pay_tool(business, Hooks(after=done.set), guarded=twin == "guarded"), asking_sibling()]
    script = [asks(PAY_ONE, ("ask", {})), "Paid."]
    graph = agent(seam, script, tools, business, InMemorySaver())
    graph.invoke(HELLO, CONFIG)
    assert done.wait(10)
    assert business.payments == ONCE
    assert graph.invoke(Command(resume="yes"), CONFIG)["messages"][-1].content == "Paid."
    assert business.payments == paid


def deciding_tool(business: Business, *, guarded: bool, colour: str) -> BaseTool:
    """Make a tool that asks a person, then pays what it was asked to, or a fee of one cent."""
    guard: Any = business.ledger.transactional(key=("order_id",))

    def decided(cents: int) -> int:
        return cents if interrupt("pay?") == "yes" else 1

    def unguarded(order_id: str, cents: int) -> str:
        business.pay(order_id, decided(cents))
        return "settled"

    async def aunguarded(order_id: str, cents: int) -> str:
        return unguarded(order_id, cents)

    def pay(session: Session, /, order_id: str, cents: int) -> str:
        session.execute(PAY, {"order_id": order_id, "cents": decided(cents)})
        return "settled"

    async def apay(session: AsyncSession, /, order_id: str, cents: int) -> str:
        await session.execute(PAY, {"order_id": order_id, "cents": decided(cents)})
        return "settled"

    sync, awaiting = (guard(pay), guard(apay)) if guarded else (unguarded, aunguarded)
    return StructuredTool.from_function(
        func=sync if colour == "sync" else None,
        coroutine=awaiting if colour == "async" else None,
        name="pay",
        description="Pay, if a person agrees.",
    )


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("seam", ALL_SEAMS)
async def test_case_12_a_pinned_checkpoint_resumed_yes_then_no(
    business: Business, seam: str, colour: str
) -> None:
    """The first outcome wins; a second answer to the same checkpoint is marked replayed.

    langgraph #6663: the second answer is not even heard, the tool gets the first one again.
    """
    if seam == "tool_node":
        await _answered_twice(business, seam, colour, guarded=False)
        assert business.payments == TWICE
        business.forget()
    ended = await _answered_twice(business, seam, colour, guarded=True)
    assert business.payments == ONCE
    (message,) = answers(ended["messages"])
    assert message.content == "settled"
    if seam != "tool_node":
        assert message.additional_kwargs["idempotency"]["replayed"] is True


async def _answered_twice(business: Business, seam: str, colour: str, *, guarded: bool) -> Any:
    tools = [deciding_tool(business, guarded=guarded, colour=colour)]
    graph = agent(seam, SCRIPT, tools, business, InMemorySaver())
    await run(colour, graph, HELLO)
    pinned = graph.get_state(CONFIG).config
    await run(colour, graph, Command(resume="yes"), pinned)
    return await run(colour, graph, Command(resume="no"), pinned)


class Together:
    """Lets nobody pass before all are there."""

    def __init__(self, parties: int, colour: str) -> None:
        self.barrier = threading.Barrier(parties, timeout=30)
        self.missing = parties
        self.all_there = asyncio.Event()
        self.colour = colour

    def __call__(self) -> Any:
        """Wait for the others."""
        return self.barrier.wait() if self.colour == "sync" else self._awaited()

    async def _awaited(self) -> None:
        self.missing -= 1
        if not self.missing:
            self.all_there.set()
        await asyncio.wait_for(self.all_there.wait(), 30)


async def twice_at_once(colour: str, graph: Any, given: Any) -> list[Any]:
    """Run one thread of a graph twice at the same time."""
    if colour == "async":
        return list(await asyncio.gather(*(graph.ainvoke(given, CONFIG) for _ in range(2))))
    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(graph.invoke, given, CONFIG) for _ in range(2)]
        return [done.result(60) for done in runs]


@pytest.mark.parametrize("colour", ["sync", "async"])
@pytest.mark.parametrize(
    ("seam", "twin"), [("tool_node", "unguarded"), *((seam, "guarded") for seam in SEAMS)]
)
async def test_case_13_approved_twice_at_once(
    business: Business, seam: str, twin: str, colour: str
) -> None:
    """Two resumes of one thread at once, both in the tool: one effect, and both get its result."""
    hooks = Hooks(entered=Together(2, colour))
    tools = [pay_tool(business, hooks, guarded=twin == "guarded", colour=colour)]
    graph = agent(seam, SCRIPT, tools, business, InMemorySaver())
    graph.interrupt_before_nodes = ["tools"]
    await run(colour, graph, HELLO)
    graph.interrupt_before_nodes = []
    both = await twice_at_once(colour, graph, None)
    assert business.payments == PAID[twin]
    assert [answers(ended["messages"])[0].content for ended in both] == ["paid O-1"] * 2


def edited_then_repeated(
    business: Business, again: tuple[str, dict[str, Any]], *, guarded: bool
) -> Any:
    """Let a person edit a call's amount to 7; then the model asks again, and is approved."""
    script: list[Any] = [asks(PAY_ONE, ids=["first"]), asks(again, ids=["second"]), "Paid."]
    graph = middle_agent(
        ScriptedChatModel(script),
        [pay_tool(business, guarded=guarded)],
        business,
        InMemorySaver(),
        middleware=[HumanInTheLoopMiddleware(interrupt_on={"pay": True})],
        is_guarded=guarded,
    )
    edited = {"name": "pay", "args": {"order_id": "O-1", "cents": 7}}
    graph.invoke(HELLO, CONFIG)
    edit = {"decisions": [{"type": "edit", "edited_action": edited}]}
    graph.invoke(Command(resume=edit), CONFIG)
    approve = {"decisions": [{"type": "approve"}]}
    return graph.invoke(Command(resume=approve), CONFIG)


def test_case_14_edited_by_a_person_then_repeated_by_the_model(business: Business) -> None:
    """The model repeats the call that a person had edited: words it can use, no second effect.

    langchain #33787.
    """
    edited_then_repeated(business, PAY_ONE, guarded=False)
    assert business.payments == [("O-1", 5), ("O-1", 7)]
    business.forget()
    ended = edited_then_repeated(business, PAY_ONE, guarded=True)
    assert business.payments == [("O-1", 7)]
    told = answers(ended["messages"])[-1]
    assert told.tool_call_id == "second"
    assert told.status == "error"
    assert "Nothing was done" in told.content
    assert "cents differ" in told.content
    assert "again" not in told.content


def test_case_14_the_edited_call_repeated(business: Business) -> None:
    """Repeated as it was edited, the call gets the recorded result, marked replayed."""
    again = ("pay", {"order_id": "O-1", "cents": 7})
    ended = edited_then_repeated(business, again, guarded=True)
    assert business.payments == [("O-1", 7)]
    told = answers(ended["messages"])[-1]
    assert (told.content, told.status) == ("paid O-1", "success")
    assert told.additional_kwargs["idempotency"]["replayed"] is True


def remote_tool(business: Business, hooks: Hooks, colour: str) -> BaseTool:
    """Make the paying tool as a remote effect, which asks before it takes the key."""
    guard: Any = business.ledger.remote(key=("order_id",), operation="pay")

    def pay(effect: Effect, /, order_id: str, cents: int) -> str:
        hooks.before()
        assert effect.idempotency_key
        business.pay(order_id, cents)
        return f"paid {order_id}"

    async def apay(effect: Effect, /, order_id: str, cents: int) -> str:
        await awaited(hooks.before())
        return pay_now(effect, order_id, cents)

    def pay_now(effect: Effect, order_id: str, cents: int) -> str:
        assert effect.idempotency_key
        business.pay(order_id, cents)
        return f"paid {order_id}"

    return StructuredTool.from_function(
        func=guard(pay) if colour == "sync" else None,
        coroutine=guard(apay) if colour == "async" else None,
        name="pay",
        description="Pay.",
    )


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("seam", ALL_SEAMS)
@pytest.mark.parametrize("kind", ["transactional", "remote"])
async def test_case_15_an_interrupt_inside_the_effect(
    business: Business, seam: str, kind: str, colour: str
) -> None:
    """An interrupt inside of the effect passes through, undoes the claim, and is no failure.

    Whatever handles errors around it: what was written is rolled back, and the resume does it all,
    once.
    """
    if kind == "transactional":
        tools = [pay_tool(business, Hooks(unpaid=asking), colour=colour)]
    else:
        tools = [remote_tool(business, Hooks(before=asking), colour)]
    handles = {} if seam == "create_agent" else {"handle_tool_errors": True}
    graph = agent(seam, SCRIPT, tools, business, InMemorySaver(), **handles)
    stopped = await run(colour, graph, HELLO)
    assert [asked.value for asked in stopped["__interrupt__"]] == ["go on?"]
    assert answers(stopped["messages"]) == []
    assert business.payments == []
    assert business.ledger.effects() == []
    ended = await run(colour, graph, Command(resume="yes"))
    assert ended["messages"][-1].content == "Paid."
    assert business.payments == ONCE
    (effect,) = business.ledger.effects()
    assert (effect.state, effect.result) == (State.SUCCEEDED, '"paid O-1"')
