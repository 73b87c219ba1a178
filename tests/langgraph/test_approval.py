"""approval=: a person is asked before the claim; the answer counts for this key and arguments."""

from __future__ import annotations

import sys
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, Interrupt
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from langgraph_idem import ConfigurationError, Effect, EffectRecord, State, Verdict
from langgraph_idem.testing import ScriptedChatModel
from langgraph_idem.tools.answers import answer
from tests.support.cases import (
    ALL_SEAMS,
    CONFIG,
    HELLO,
    PAY,
    PAY_ONE,
    Business,
    agent,
    answers,
    asks,
    middle_agent,
    run,
)

ONCE = [("O-1", 5)]
COLOURS = ["sync", "async"]
KINDS = ["transactional", "remote"]
OUR_SEAMS = [seam for seam in ALL_SEAMS if seam != "tool_node"]
SCRIPT: list[Any] = [asks(PAY_ONE), "Through."]


@pytest.fixture
async def business(sqlite_url: str) -> AsyncIterator[Business]:
    """Open a fresh business."""
    founded = Business.founded_at(sqlite_url)
    yield founded
    await founded.ledger.aclose()


def asking_tool(
    business: Business, kind: str = "transactional", colour: str = "sync", **options: Any
) -> BaseTool:
    """Make the paying tool, which a person has to approve."""
    decorator: Any = getattr(business.ledger, kind)
    guard = decorator(**{"key": ("order_id",), "operation": "pay", "approval": True, **options})

    def pay(session: Session, /, order_id: str, cents: int = 5, memo: str = "") -> str:
        session.execute(PAY, {"order_id": order_id, "cents": cents})
        return f"paid {order_id}"

    async def apay(session: AsyncSession, /, order_id: str, cents: int = 5, memo: str = "") -> str:
        await session.execute(PAY, {"order_id": order_id, "cents": cents})
        return f"paid {order_id}"

    def send(effect: Effect, /, order_id: str, cents: int = 5, memo: str = "") -> str:
        assert effect.idempotency_key
        business.pay(order_id, cents)
        return f"paid {order_id}"

    async def asend(effect: Effect, /, order_id: str, cents: int = 5, memo: str = "") -> str:
        return send(effect, order_id, cents)

    sync, awaiting = (pay, apay) if kind == "transactional" else (send, asend)
    return StructuredTool.from_function(
        func=guard(sync) if colour == "sync" else None,
        coroutine=guard(awaiting) if colour == "async" else None,
        name="pay",
        description="Pay.",
    )


def questions(graph: Any, config: Any = CONFIG) -> list[Interrupt]:
    """Read the open questions of a thread."""
    return list(graph.get_state(config).interrupts)


def record_of(business: Business) -> EffectRecord:
    """Read the one effect there is."""
    (record,) = business.ledger.effects()
    return record


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seam", ALL_SEAMS)
async def test_asked_before_the_claim_and_done_when_approved(
    business: Business, seam: str, kind: str, colour: str
) -> None:
    """Nothing is claimed before the answer; who gave it is recorded with the effect."""
    graph = agent(seam, SCRIPT, [asking_tool(business, kind, colour)], business, InMemorySaver())
    await run(colour, graph, HELLO)
    (asked,) = questions(graph)
    assert asked.value["type"] == "idempotency_approval"
    assert asked.value["name"] == "pay"
    assert asked.value["args"] == {"order_id": "O-1", "cents": 5, "memo": ""}
    assert asked.value["choices"] == ["approve", "reject"]
    assert "pay for O-1" in asked.value["description"]
    assert asked.value["tool_call_id"] == (None if seam == "tool_node" else "call_0")
    assert (business.ledger.effects(), business.payments) == ([], [])
    said = answer(asked, "approve", by="ann", note="known customer")
    ended = await run(colour, graph, Command(resume=said))
    assert ended["messages"][-1].content == "Through."
    record = record_of(business)
    assert (record.state, record.approved_by, record.approval_note, record.attempts) == (
        State.SUCCEEDED,
        "ann",
        "known customer",
        1,
    )
    assert business.payments == ONCE


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seam", OUR_SEAMS)
async def test_rejected_nothing_runs(business: Business, seam: str, kind: str, colour: str) -> None:
    """A rejection is told to the model, with its reason; nothing is done, nothing recorded."""
    graph = agent(seam, SCRIPT, [asking_tool(business, kind, colour)], business, InMemorySaver())
    await run(colour, graph, HELLO)
    said = answer(questions(graph)[0], "reject", by="ann", note="too much")
    ended = await run(colour, graph, Command(resume=said))
    (told,) = answers(ended["messages"])
    assert told.status == "error"
    assert "Nothing was done" in told.content
    assert "too much" in told.content
    assert "Do not call it again" in told.content
    assert (business.ledger.effects(), business.payments) == ([], [])


@pytest.mark.parametrize("seam", ALL_SEAMS)
def test_a_pinned_checkpoint_resumed_yes_then_no(business: Business, seam: str) -> None:
    """After the effect nobody is asked, and a later "no" to the old question changes nothing.

    langgraph #6663.
    """
    graph = agent(seam, SCRIPT, [asking_tool(business)], business, InMemorySaver())
    graph.invoke(HELLO, CONFIG)
    pinned, (asked,) = graph.get_state(CONFIG).config, questions(graph)
    graph.invoke(Command(resume=answer(asked, "approve", by="ann")), pinned)
    ended = graph.invoke(Command(resume=answer(asked, "reject", by="bob")), pinned)
    assert answers(ended["messages"])[0].content == "paid O-1"
    assert record_of(business).approved_by == "ann"
    assert business.payments == ONCE


@pytest.mark.parametrize("seam", OUR_SEAMS)
def test_a_pinned_checkpoint_resumed_no_then_yes(business: Business, seam: str) -> None:
    """A rejection leaves no trace in the ledger: a person may think again, and say so by name.

    Going back to the question and approving it is a person's word like any other: one effect,
    recorded with who approved it.
    """
    graph = agent(seam, SCRIPT, [asking_tool(business)], business, InMemorySaver())
    graph.invoke(HELLO, CONFIG)
    pinned, (asked,) = graph.get_state(CONFIG).config, questions(graph)
    graph.invoke(Command(resume=answer(asked, "reject", by="bob")), pinned)
    assert (business.ledger.effects(), business.payments) == ([], [])
    for _ in range(2):
        graph.invoke(Command(resume=answer(asked, "approve", by="ann")), pinned)
    assert business.payments == ONCE
    assert record_of(business).approved_by == "ann"


TWO: list[Any] = [
    asks(("pay", {"order_id": "O-1"}), ("pay", {"order_id": "O-2", "cents": 9})),
    "Through.",
]


def by_order(graph: Any) -> dict[str, Interrupt]:
    """Sort the open questions by what they are about."""
    return {asked.value["args"]["order_id"]: asked for asked in questions(graph)}


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("seam", ["create_react_agent", "create_agent"])
async def test_two_calls_ask_and_are_answered_by_id(
    business: Business, seam: str, colour: str
) -> None:
    """Each answer reaches its own question, in whatever order they are given.

    langgraph #8837.
    """
    graph = agent(seam, TWO, [asking_tool(business, colour=colour)], business, InMemorySaver())
    await run(colour, graph, HELLO)
    asked = by_order(graph)
    assert sorted(asked) == ["O-1", "O-2"]
    said = answer(asked["O-2"], "approve", by="ann") | answer(asked["O-1"], "reject", by="bob")
    ended = await run(colour, graph, Command(resume=said))
    assert business.payments == [("O-2", 9)]
    assert record_of(business).approved_by == "ann"
    assert [message.status for message in answers(ended["messages"])] == ["error", "success"]


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("seam", ALL_SEAMS)
async def test_a_misrouted_answer_runs_nothing(business: Business, seam: str, colour: str) -> None:
    """An answer that LangGraph hands to another question is not taken for its own.

    langgraph #8837: in one task all calls share the interrupt's id, and answers are handed out by
    position.
    """
    graph = agent(seam, TWO, [asking_tool(business, colour=colour)], business, InMemorySaver())
    await run(colour, graph, HELLO)
    misrouted = {
        asked.id: {"question_id": "somebody else's", "choice": "approve"}
        for asked in questions(graph)
    }
    await run(colour, graph, Command(resume=misrouted))
    # Awaited: the other call of one task may still be on its way to its own question.
    assert (await business.ledger.aeffects(), business.payments) == ([], [])
    for _ in range(2):
        first = questions(graph)[0]
        await run(colour, graph, Command(resume=answer(first, "approve", by="ann")))
    assert business.payments == [("O-1", 5), ("O-2", 9)]
    assert {record.approved_by for record in business.ledger.effects()} == {"ann"}


@pytest.mark.parametrize("seam", OUR_SEAMS)
def test_a_stale_answer_is_not_for_other_arguments(business: Business, seam: str) -> None:
    """An approval of 5 cents is none of 99: a fork with edited arguments asks anew."""
    graph = agent(seam, SCRIPT, [asking_tool(business)], business, InMemorySaver())
    graph.invoke(HELLO, CONFIG)
    (asked,) = questions(graph)
    asking = graph.get_state(CONFIG).values["messages"][-1]
    edited = asks(("pay", {"order_id": "O-1", "cents": 99})).model_copy(update={"id": asking.id})
    graph.update_state(CONFIG, {"messages": [edited]}, as_node="model")
    graph.invoke(None, CONFIG)
    (anew,) = questions(graph)
    assert anew.value["args"]["cents"] == 99
    stale = answer(asked.value, "approve", by="ann")
    graph.invoke(Command(resume={anew.id: stale}), CONFIG)
    assert (business.ledger.effects(), business.payments) == ([], [])
    graph.invoke(Command(resume=answer(questions(graph)[0], "approve", by="bob")), CONFIG)
    assert business.payments == [("O-1", 99)]
    assert record_of(business).approved_by == "bob"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seam", ALL_SEAMS)
def test_a_replay_does_not_ask_again(business: Business, seam: str, kind: str) -> None:
    """What was done is answered from the ledger, in another thread too, and with nobody to ask."""
    made: Any = asking_tool(business, kind)
    graph = agent(seam, SCRIPT, [made], business, InMemorySaver())
    graph.invoke(HELLO, CONFIG)
    graph.invoke(Command(resume=answer(questions(graph)[0], "approve")), CONFIG)
    other: Any = {"configurable": {"thread_id": "another"}}
    ended = graph.invoke(HELLO, other)
    assert questions(graph, other) == []
    assert answers(ended["messages"])[0].content == "paid O-1"
    assert made.func(order_id="O-1", cents=5) == "paid O-1"
    assert business.payments == ONCE
    assert record_of(business).approved_by == "(a person who gave no name)"


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seam", ALL_SEAMS)
async def test_nobody_to_ask(business: Business, seam: str, kind: str, colour: str) -> None:
    """Without a checkpointer it says what is missing, and does nothing."""
    graph = agent(seam, SCRIPT, [asking_tool(business, kind, colour)], business)
    with pytest.raises(ConfigurationError, match="with a checkpointer and a thread_id"):
        await run(colour, graph, HELLO)
    assert (business.ledger.effects(), business.payments) == ([], [])


def test_asked_only_where_the_function_says_so(business: Business) -> None:
    """approval=callable gets the arguments, defaults included, and decides by them."""
    made = asking_tool(business, approval=lambda arguments: arguments["cents"] > 5)
    graph = agent("create_react_agent", TWO, [made], business, InMemorySaver())
    graph.invoke(HELLO, CONFIG)
    assert business.payments == ONCE
    assert list(by_order(graph)) == ["O-2"]
    graph.invoke(Command(resume=answer(by_order(graph)["O-2"], "approve")), CONFIG)
    assert business.payments == [("O-1", 5), ("O-2", 9)]
    assert sorted(str(record.approved_by) for record in business.ledger.effects()) == [
        "(a person who gave no name)",
        "None",
    ]


@pytest.mark.parametrize("approval", ["always", None, 1])
def test_an_approval_of_no_use_is_refused(business: Business, approval: Any) -> None:
    """What is neither True, False nor a plain function is refused when decorating."""
    with pytest.raises(ConfigurationError, match="approval= of pay is True, False or"):
        asking_tool(business, approval=approval)


def test_an_async_approval_is_refused(business: Business) -> None:
    """A coroutine would always be true."""

    async def approval(arguments: dict[str, Any]) -> bool:
        return False

    with pytest.raises(ConfigurationError, match="plain function"):
        asking_tool(business, approval=approval)


def test_a_person_sees_what_the_ledger_does_not_keep(sqlite_url: str) -> None:
    """The question shows all arguments: ignored ones, defaults, and those that are not kept."""
    business = Business.founded_at(sqlite_url, keep_arguments=False)
    made = asking_tool(business, ignore=("memo",))
    call = ("pay", {"order_id": "O-1", "memo": "thanks"})
    script: list[Any] = [asks(call), "Through."]
    graph = agent("create_react_agent", script, [made], business, InMemorySaver())
    graph.invoke(HELLO, CONFIG)
    (asked,) = questions(graph)
    assert asked.value["args"] == {"order_id": "O-1", "cents": 5, "memo": "thanks"}
    graph.invoke(Command(resume=answer(asked, "approve")), CONFIG)
    assert record_of(business).arguments is None
    business.ledger.close()


def test_released_by_a_person_it_is_asked_again(business: Business) -> None:
    """Tried again after an unknown outcome was settled, it needs a new approval, in a new run."""

    def lost(effect: Effect, /, order_id: str, cents: int) -> str:
        assert effect.idempotency_key
        if effect.attempt == 1:
            raise TimeoutError("lost")
        business.pay(order_id, cents)
        return "paid"

    guard: Any = business.ledger.remote(
        key=("order_id",), operation="pay", approval=True, on_unknown="tell_model"
    )
    made = StructuredTool.from_function(func=guard(lost), name="pay", description="Pay.")
    graph = agent("create_react_agent", SCRIPT, [made], business, InMemorySaver())
    graph.invoke(HELLO, CONFIG)
    graph.invoke(Command(resume=answer(questions(graph)[0], "approve", by="ann")), CONFIG)
    business.ledger.resolve("pay", "O-1", "released")
    other: Any = {"configurable": {"thread_id": "another"}}
    graph.invoke(HELLO, other)
    (asked,) = questions(graph, other)
    assert business.payments == []
    graph.invoke(Command(resume=answer(asked, "approve", by="bob")), other)
    assert business.payments == ONCE
    assert record_of(business).approved_by == "bob"


@pytest.mark.parametrize("colour", COLOURS)
async def test_beside_the_human_in_the_loop_middleware(business: Business, colour: str) -> None:
    """LangChain's approval comes first; its edit is what ours is asked about, and what runs."""
    if colour == "async" and sys.version_info < (3, 11):
        pytest.skip("not applicable: HumanInTheLoopMiddleware needs Python 3.11 on an event loop")
    graph = middle_agent(
        ScriptedChatModel(SCRIPT),
        [asking_tool(business, colour=colour)],
        business,
        InMemorySaver(),
        middleware=[HumanInTheLoopMiddleware(interrupt_on={"pay": True})],
    )
    await run(colour, graph, HELLO)
    edited = {"name": "pay", "args": {"order_id": "O-1", "cents": 7}}
    edit = {"decisions": [{"type": "edit", "edited_action": edited}]}
    await run(colour, graph, Command(resume=edit))
    (asked,) = questions(graph)
    assert asked.value["type"] == "idempotency_approval"
    assert asked.value["args"]["cents"] == 7
    assert business.payments == []
    await run(colour, graph, Command(resume=answer(asked, "approve", by="ann")))
    assert business.payments == [("O-1", 7)]
    assert record_of(business).approved_by == "ann"


def test_the_approval_is_lost_with_its_transaction(business: Business) -> None:
    """Approval and effect are one commit: a tool that fails leaves neither, and it asks again."""
    fails = [ConnectionError("no luck")]

    def pay(session: Session, /, order_id: str, cents: int) -> str:
        session.execute(PAY, {"order_id": order_id, "cents": cents})
        if fails:
            raise fails.pop()
        return "paid"

    guard: Any = business.ledger.transactional(key=("order_id",), approval=True)
    made = StructuredTool.from_function(func=guard(pay), name="pay", description="Pay.")
    graph = agent("idempotent_tool_node", SCRIPT, [made], business, InMemorySaver())
    graph.invoke(HELLO, CONFIG)
    with pytest.raises(ConnectionError):
        graph.invoke(Command(resume=answer(questions(graph)[0], "approve", by="ann")), CONFIG)
    assert (business.ledger.effects(), business.payments) == ([], [])
    graph.invoke(None, CONFIG)
    graph.invoke(Command(resume=answer(questions(graph)[0], "approve", by="bob")), CONFIG)
    assert record_of(business).approved_by == "bob"
    assert business.payments == ONCE


def test_what_is_let_go_meanwhile_is_asked_about(business: Business) -> None:
    """A call that waited behind another attempt asks before it takes that one's place.

    The other attempt began by its own right (here: nobody had to be asked then) and ended without
    having done anything; that is no approval for the one that waited.
    """
    sending, release, needed = threading.Event(), threading.Event(), [False, True]

    def send(effect: Effect, /, order_id: str, cents: int) -> str:
        assert effect.idempotency_key
        if not sending.is_set():
            sending.set()
            assert release.wait(30)
            raise ConnectionError("not sent")
        business.pay(order_id, cents)
        return "paid"

    guard: Any = business.ledger.remote(
        key=("order_id",),
        operation="pay",
        approval=lambda _: needed.pop(0) if needed else True,
        classify=lambda _: Verdict.NOT_SENT,
    )
    made: Any = StructuredTool.from_function(func=guard(send), name="pay", description="Pay.")
    graph = agent("create_react_agent", SCRIPT, [made], business, InMemorySaver())
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(made.func, order_id="O-1", cents=5)
        assert sending.wait(30)
        second = pool.submit(graph.invoke, HELLO, CONFIG)
        release.set()
        with pytest.raises(ConnectionError):
            first.result(30)
        second.result(30)
    (asked,) = questions(graph)
    assert business.payments == []
    graph.invoke(Command(resume=answer(asked, "approve", by="ann")), CONFIG)
    assert business.payments == ONCE
    assert record_of(business).approved_by == "ann"
