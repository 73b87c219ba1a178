"""Field cases 24 and 25: cancellation, and the message that comes after it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from langgraph_idem import Effect, State, arepair
from langgraph_idem.testing import ScriptedChatModel
from tests.support.cases import (
    ALL_SEAMS,
    CONFIG,
    HELLO,
    PAY_ONE,
    SEAMS,
    Business,
    Hooks,
    Once,
    agent,
    answers,
    asks,
    assert_provider_valid,
    pay_tool,
    run,
)

ONCE = [("O-1", 5)]
TWICE = ONCE * 2
SCRIPT: list[Any] = [asks(PAY_ONE), "Paid."]


@pytest.fixture
async def business(sqlite_url: str) -> AsyncIterator[Business]:
    """Open a fresh business."""
    founded = Business.founded_at(sqlite_url)
    yield founded
    await founded.ledger.aclose()


async def cancelled(graph: Any, when: asyncio.Event) -> None:
    """Start a run, and cancel it at an instant."""
    task = asyncio.create_task(graph.ainvoke(HELLO, CONFIG, durability="sync"))
    await asyncio.wait_for(when.wait(), 30)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def reaching(instant: asyncio.Event) -> Any:
    """Make a hook that tells of an instant and stays in it, the first time."""

    async def stay() -> None:
        instant.set()
        await asyncio.Event().wait()

    return Once(stay)


@pytest.mark.parametrize("seam", ALL_SEAMS)
async def test_case_24_an_async_tool_cancelled_before_its_commit(
    business: Business, seam: str
) -> None:
    """Nothing happened and nothing is claimed; the resume does it, once."""
    instant = asyncio.Event()
    tools = [pay_tool(business, Hooks(unpaid=reaching(instant)), colour="async")]
    graph = agent(seam, SCRIPT, tools, business, InMemorySaver())
    await cancelled(graph, instant)
    assert business.payments == []
    assert await business.ledger.aeffects() == []
    await graph.ainvoke(None, CONFIG)
    assert business.payments == ONCE


@pytest.mark.parametrize(
    ("seam", "twin"), [("tool_node", "unguarded"), *((seam, "guarded") for seam in ALL_SEAMS)]
)
async def test_case_24_an_async_tool_cancelled_after_its_commit(
    business: Business, seam: str, twin: str
) -> None:
    """Cancelled between its commit and its return: the resume finds the effect done."""
    instant = asyncio.Event()
    hooks = Hooks(after=reaching(instant))
    tools = [pay_tool(business, hooks, guarded=twin == "guarded", colour="async")]
    graph = agent(seam, SCRIPT, tools, business, InMemorySaver())
    await cancelled(graph, instant)
    assert business.payments == ONCE
    await graph.ainvoke(None, CONFIG)
    assert business.payments == (ONCE if twin == "guarded" else TWICE)


class InThread:
    """A place in a sync tool: tells the loop when it is reached, and waits to be let go."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.reached = asyncio.Event()
        self.go, self.gone = threading.Event(), threading.Event()

    def __call__(self) -> None:
        """Be there."""
        self.loop.call_soon_threadsafe(self.reached.set)
        assert self.go.wait(30)


@pytest.mark.parametrize("resume", ["while it runs", "after it"])
@pytest.mark.parametrize(
    ("seam", "twin"), [("tool_node", "unguarded"), *((seam, "guarded") for seam in ALL_SEAMS)]
)
async def test_case_24_a_sync_tool_finishes_in_its_thread(
    business: Business, seam: str, twin: str, resume: str
) -> None:
    """Nothing stops a thread: the effect of a cancelled run takes hold all the same, once.

    A resume that comes meanwhile waits at the database for the thread, as long as the ledger's
    ``wait`` lasts; one that comes later finds the effect done.
    """
    place = InThread()
    hooks = Hooks(unpaid=Once(place), after=place.gone.set)
    if twin == "unguarded":
        hooks = Hooks(before=Once(place), after=place.gone.set)
    again = threading.Event()
    hooks = Hooks(hooks.before, hooks.unpaid, hooks.after, Counted(2, again))
    tools = [pay_tool(business, hooks, guarded=twin == "guarded")]
    graph = agent(seam, SCRIPT, tools, business, InMemorySaver())
    await cancelled(graph, place.reached)
    assert business.payments == []
    if resume == "while it runs":
        resumed = asyncio.create_task(graph.ainvoke(None, CONFIG))
        assert await asyncio.to_thread(again.wait, 30)
        place.go.set()
    else:
        place.go.set()
        assert await asyncio.to_thread(place.gone.wait, 30)
        assert business.payments == ONCE
        resumed = asyncio.create_task(graph.ainvoke(None, CONFIG))
    ended = await resumed
    assert answers(ended["messages"])[0].content == "paid O-1"
    assert await asyncio.to_thread(place.gone.wait, 30)
    if twin == "guarded" or resume == "after it":
        assert business.payments == (ONCE if twin == "guarded" else TWICE)


class Counted:
    """Tells when it has been called so many times."""

    def __init__(self, times: int, reached: threading.Event) -> None:
        self.left, self.reached = times, reached

    def __call__(self) -> None:
        """Count."""
        self.left -= 1
        if not self.left:
            self.reached.set()


def sending_tool(business: Business, instant: asyncio.Event, **options: Any) -> BaseTool:
    """Make a remote tool that is cancelled after the provider has acted, before its answer."""

    async def pay(effect: Effect, /, order_id: str, cents: int) -> str:
        assert effect.idempotency_key
        business.pay(order_id, cents)
        await reaching(instant)()
        return "paid"

    guard: Any = business.ledger.remote(key=("order_id",), lease=0, **options)
    return StructuredTool.from_function(coroutine=guard(pay), name="pay", description="Pay.")


@pytest.mark.parametrize("seam", ALL_SEAMS)
async def test_case_24_a_remote_effect_cancelled_after_its_dispatch(
    business: Business, seam: str
) -> None:
    """UNKNOWN is written down though the task is cancelled; the resume asks a person, once."""
    instant = asyncio.Event()
    tools = [sending_tool(business, instant)]
    graph = agent(seam, SCRIPT, tools, business, InMemorySaver())
    await cancelled(graph, instant)
    (effect,) = await business.ledger.aeffects()
    assert effect.state is State.UNKNOWN
    assert business.payments == ONCE
    stopped = await graph.ainvoke(None, CONFIG)
    (asked,) = stopped["__interrupt__"]
    reply = {"question_id": asked.value["question_id"], "choice": "succeeded", "result": "paid"}
    ended = await graph.ainvoke(Command(resume={asked.id: reply}), CONFIG)
    assert answers(ended["messages"])[0].content == "paid"
    assert business.payments == ONCE


@pytest.mark.parametrize("state", ["done", "never started", "unknown"])
@pytest.mark.parametrize("seam", ALL_SEAMS)
async def test_case_25_a_new_message_after_a_cancel(
    business: Business, seam: str, state: str
) -> None:
    """What became of the calls of a cancelled run is told from the ledger when it goes on.

    langgraph #6726: else the provider refuses the history, and the thread is wedged.
    """
    instant = asyncio.Event()
    tools = {
        "done": pay_tool(business, Hooks(after=reaching(instant)), colour="async"),
        "never started": pay_tool(business, Hooks(unpaid=reaching(instant)), colour="async"),
        "unknown": sending_tool(business, instant),
    }
    words = {
        "done": "paid O-1",
        "never started": "Nothing was done",
        "unknown": "UNKNOWN",
    }
    model = ScriptedChatModel([asks(PAY_ONE), "Hello."])
    graph = agent(seam, model, [tools[state]], business, InMemorySaver())
    await cancelled(graph, instant)
    if seam != "create_react_agent":
        await arepair(graph, config=CONFIG)
    ended = await graph.ainvoke({"messages": [("user", "hello?")]}, CONFIG)
    (answer,) = answers(ended["messages"])
    assert words[state] in str(answer.content)
    assert ended["messages"][-1].content == "Hello."
    assert_provider_valid(ended["messages"])
    assert_provider_valid(model.seen[-1])
    assert business.payments == ([] if state == "never started" else ONCE)


@pytest.mark.parametrize("colour", ["sync", "async"])
@pytest.mark.parametrize("seam", SEAMS)
async def test_case_25_the_control(business: Business, seam: str, colour: str) -> None:
    """Without repair the model of a plain graph is sent calls without answers; ours never is.

    langgraph #6726.
    """
    model = ScriptedChatModel([asks(PAY_ONE), "Hello.", "Bye."])
    tools = [pay_tool(business, Hooks(before=Once(_stop)), colour=colour)]
    graph = agent(seam, model, tools, business, InMemorySaver())
    with pytest.raises(Stopped):
        await run(colour, graph, HELLO)
    ended = await run(colour, graph, {"messages": [("user", "hello?")]})
    if seam != "create_react_agent":
        with pytest.raises(AssertionError, match="unanswered"):
            assert_provider_valid(model.seen[-1])
        return
    assert_provider_valid(model.seen[-1])
    assert_provider_valid(ended["messages"])
    assert business.payments == []
    ended = await run(colour, graph, {"messages": [("user", "bye")]})
    assert_provider_valid(ended["messages"])
    assert len([m for m in ended["messages"] if isinstance(m, AIMessage)]) == 3


class Stopped(BaseException):
    """The end of a run that no error handling may turn into words."""


def _stop() -> None:
    raise Stopped
