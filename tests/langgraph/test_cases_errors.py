"""Field cases 16 to 23: retries, errors and refusals."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from langchain.agents.middleware import ToolRetryMiddleware
from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool, StructuredTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import NodeTimeoutError
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import RetryPolicy
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from langgraph_idem import (
    Effect,
    IdempotentToolNode,
    OutcomeUnknown,
    RecordedFailure,
    State,
    Verdict,
)
from langgraph_idem.testing import ScriptedChatModel
from tests.support.cases import (
    ALL_SEAMS,
    CONFIG,
    HELLO,
    PAY,
    PAY_ONE,
    SEAMS,
    TWINS,
    Business,
    Hooks,
    Once,
    agent,
    answers,
    asks,
    middle_agent,
    pay_tool,
    raises,
    run,
)

ONCE = [("O-1", 5)]
TWICE = ONCE * 2
THRICE = ONCE * 3
SCRIPT: list[Any] = [asks(PAY_ONE), "Paid."]
FAST = RetryPolicy(initial_interval=0.001, jitter=False, max_attempts=3, retry_on=Exception)
LOST = TimeoutError("the answer did not come")


@pytest.fixture
async def business(sqlite_url: str) -> AsyncIterator[Business]:
    """Open a fresh business."""
    founded = Business.founded_at(sqlite_url)
    yield founded
    await founded.ledger.aclose()


def retrying(business: Business, node: Any, **options: Any) -> Any:
    """Build the usual loop, its tool node with a retry policy."""
    model = ScriptedChatModel(SCRIPT)

    def ask(state: MessagesState) -> dict[str, Any]:
        return {"messages": [model.invoke(state["messages"])]}

    builder: StateGraph[Any, Any, Any, Any] = StateGraph(MessagesState)
    builder.add_node("model", ask)
    builder.add_node("tools", node, retry_policy=FAST, **options)
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", tools_condition)
    builder.add_edge("tools", "model")
    return builder.compile(checkpointer=InMemorySaver())


@pytest.mark.parametrize("colour", ["sync", "async"])
@pytest.mark.parametrize(("twin", "paid"), [("unguarded", THRICE), ("guarded", ONCE)])
async def test_case_16_a_retry_policy_and_a_time_out_after_the_effect(
    business: Business, twin: str, paid: Any, colour: str
) -> None:
    """However often the node is retried after its effect, there is one, and its result at last."""
    hooks = Hooks(after=Once(raises(LOST), times=2))
    tools = [pay_tool(business, hooks, guarded=twin == "guarded", colour=colour)]
    ended = await run(colour, retrying(business, ToolNode(tools)), HELLO)
    assert answers(ended["messages"])[0].content == "paid O-1"
    assert business.payments == paid


@pytest.mark.parametrize("kind", ["tool_node", "idempotent_tool_node"])
def test_case_16_a_retry_policy_and_a_lost_answer(business: Business, kind: str) -> None:
    """A provider whose answer was lost is not called again by any retry: UNKNOWN stays so."""

    @tool
    @business.ledger.remote(key=("order_id",), on_unknown="raise")
    def pay(effect: Effect, /, order_id: str, cents: int) -> str:
        """Pay."""
        assert effect.idempotency_key
        business.pay(order_id, cents)
        raise LOST

    node = (
        ToolNode([pay])
        if kind == "tool_node"
        else IdempotentToolNode([pay], ledger=business.ledger)
    )
    with pytest.raises(OutcomeUnknown):
        retrying(business, node).invoke(HELLO, CONFIG)
    assert business.payments == ONCE
    (effect,) = business.ledger.effects()
    assert (effect.state, effect.attempts) == (State.UNKNOWN, 1)


def between_retries(business: Business, tools: list[BaseTool], *, ours: bool) -> Any:
    """Build LangChain's agent with its retry middleware, and ours inside of it or not at all."""
    return middle_agent(
        ScriptedChatModel(SCRIPT),
        tools,
        business,
        InMemorySaver(),
        middleware=[ToolRetryMiddleware(initial_delay=0, jitter=False)],
        is_guarded=ours,
    )


@pytest.mark.parametrize("colour", ["sync", "async"])
@pytest.mark.parametrize(
    ("protection", "paid"), [("none", THRICE), ("decorator", ONCE), ("middleware", ONCE)]
)
async def test_case_17_tool_retry_middleware(
    business: Business, protection: str, paid: Any, colour: str
) -> None:
    """Three tries of LangChain's retry middleware are one payment; the last one gets its result.

    langchain #40688.
    """
    hooks = Hooks(after=Once(raises(LOST), times=2))
    tools = [pay_tool(business, hooks, guarded=protection != "none", colour=colour)]
    graph = between_retries(business, tools, ours=protection == "middleware")
    ended = await run(colour, graph, HELLO)
    assert business.payments == paid
    assert answers(ended["messages"])[0].content == "paid O-1"


@pytest.mark.parametrize("colour", ["sync", "async"])
@pytest.mark.parametrize("twin", TWINS)
async def test_case_17_the_words_after_three_tries(
    business: Business, twin: str, colour: str
) -> None:
    """The model is not told "Please try again." of a payment whose answer was lost.

    langchain #40688.
    """

    def unguarded(order_id: str, cents: int) -> str:
        business.pay(order_id, cents)
        raise LOST

    async def aunguarded(order_id: str, cents: int) -> str:
        return unguarded(order_id, cents)

    def pay(effect: Effect, /, order_id: str, cents: int) -> str:
        assert effect.idempotency_key
        return unguarded(order_id, cents)

    async def apay(effect: Effect, /, order_id: str, cents: int) -> str:
        return pay(effect, order_id, cents)

    guard: Any = business.ledger.remote(key=("order_id",), operation="pay", on_unknown="tell_model")
    sync, awaiting = (guard(pay), guard(apay)) if twin == "guarded" else (unguarded, aunguarded)
    made = StructuredTool.from_function(
        func=sync if colour == "sync" else None,
        coroutine=awaiting if colour == "async" else None,
        name="pay",
        description="Pay.",
    )
    graph = between_retries(business, [made], ours=twin == "guarded")
    told = str(answers((await run(colour, graph, HELLO))["messages"])[0].content)
    assert business.payments == (ONCE if twin == "guarded" else THRICE)
    assert ("Please try again" in told) is (twin == "unguarded")
    assert ("must not be repeated" in told) is (twin == "guarded")


@pytest.mark.parametrize("colour", ["sync", "async"])
@pytest.mark.parametrize(
    ("seam", "twin"), [("tool_node", "unguarded"), *((seam, "guarded") for seam in SEAMS)]
)
async def test_case_18_the_error_becomes_text_and_the_model_calls_again(
    business: Business, seam: str, twin: str, colour: str
) -> None:
    """An error after the effect, told to the model as text: its next call gets the result."""
    hooks = Hooks(after=Once(raises(LOST)))
    script = [asks(PAY_ONE, ids=["first"]), asks(PAY_ONE, ids=["second"]), "Paid."]
    tools = [pay_tool(business, hooks, guarded=twin == "guarded", colour=colour)]
    graph = agent(seam, script, tools, business, InMemorySaver(), handle_tool_errors=True)
    ended = await run(colour, graph, HELLO)
    first, second = answers(ended["messages"])
    assert (first.status, second.status, second.content) == ("error", "success", "paid O-1")
    assert business.payments == (ONCE if twin == "guarded" else TWICE)


def failing_sibling(paid: threading.Event, colour: str) -> BaseTool:
    """Make a tool that fails, once, when its sibling is where it should be."""
    fails = Once(raises(ConnectionError("the sibling's")))

    def flaky() -> str:
        assert paid.wait(30)
        fails()
        return "fine"

    async def aflaky() -> str:
        await asyncio.to_thread(paid.wait, 30)
        fails()
        return "fine"

    return StructuredTool.from_function(
        func=flaky if colour == "sync" else None,
        coroutine=aflaky if colour == "async" else None,
        name="flaky",
        description="Fail once.",
    )


BOTH = [asks(PAY_ONE, ("flaky", {})), "Paid."]


@pytest.mark.parametrize("colour", ["sync", "async"])
@pytest.mark.parametrize(
    ("seam", "twin"),
    [("tool_node", "unguarded"), ("tool_node", "guarded"), ("idempotent_tool_node", "guarded")],
)
async def test_case_19_a_sibling_raises(
    business: Business, seam: str, twin: str, colour: str
) -> None:
    """A classic ToolNode drops completed results when a sibling raises; the effect stays one.

    langgraph #7412.
    """
    paid = threading.Event()
    tools = [
        pay_tool(business, Hooks(after=paid.set), guarded=twin == "guarded", colour=colour),
        failing_sibling(paid, colour),
    ]
    graph = agent(seam, BOTH, tools, business, InMemorySaver())
    with pytest.raises(ConnectionError):
        await run(colour, graph, HELLO)
    ended = await run(colour, graph, None)
    assert [message.content for message in answers(ended["messages"])] == ["paid O-1", "fine"]
    assert business.payments == (ONCE if twin == "guarded" else TWICE)


@pytest.mark.parametrize("twin", TWINS)
async def test_case_19_a_sync_tool_goes_on_in_its_thread(business: Business, twin: str) -> None:
    """Under ``ainvoke`` a sync tool outlives the failure of its sibling; the resume waits for it.

    The thread cannot be stopped: its transaction is open when the resume comes, which waits at the
    database's lock and then finds the effect done.
    """
    writing, release = threading.Event(), threading.Event()

    def hold() -> None:
        writing.set()
        assert release.wait(30)

    hooks = Hooks(before=Once(hold)) if twin == "unguarded" else Hooks(unpaid=Once(hold))
    entered = Entered()
    tools = [
        pay_tool(business, replaced(hooks, entered), guarded=twin == "guarded"),
        failing_sibling(writing, "async"),
    ]
    graph = agent("tool_node", BOTH, tools, business, InMemorySaver())
    with pytest.raises(ConnectionError):
        await graph.ainvoke(HELLO, CONFIG)
    assert business.payments == []
    resumed = asyncio.create_task(graph.ainvoke(None, CONFIG))
    await asyncio.to_thread(entered.wait_for, 2)
    release.set()
    ended = await resumed
    assert answers(ended["messages"])[0].content == "paid O-1"
    await asyncio.to_thread(entered.wait_for_left, 2)
    assert business.payments == (ONCE if twin == "guarded" else TWICE)


class Entered:
    """Counts how often a tool was entered, and how often it was left."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.times = self.left = 0

    def enter(self) -> None:
        """Count one that comes."""
        with self.changed:
            self.times += 1
            self.changed.notify_all()

    def leave(self) -> None:
        """Count one that goes."""
        with self.changed:
            self.left += 1
            self.changed.notify_all()

    def wait_for(self, times: int) -> None:
        """Wait until so many have come."""
        with self.changed:
            assert self.changed.wait_for(lambda: self.times >= times, 30)

    def wait_for_left(self, times: int) -> None:
        """Wait until so many have gone."""
        with self.changed:
            assert self.changed.wait_for(lambda: self.left >= times, 30)


def replaced(hooks: Hooks, entered: Entered) -> Hooks:
    """Count at the door, too."""
    return Hooks(hooks.before, hooks.unpaid, entered.leave, entered.enter)


@pytest.mark.parametrize(("twin", "paid"), [("unguarded", THRICE), ("guarded", ONCE)])
async def test_case_20_a_node_time_out_with_a_sync_tool_in_a_thread(
    business: Business, twin: str, paid: Any
) -> None:
    """Three attempts, each given up while its thread goes on: one late effect, not three.

    Nothing stops a thread. The first one holds the transaction; the others wait for it and find
    the effect done. What is promised is the number of effects, not that a time-out undoes any.
    """
    release, entered = threading.Event(), Entered()
    hooks = replaced(Hooks(before=lambda: release.wait(30)), entered)
    tools = [pay_tool(business, hooks, guarded=twin == "guarded")]
    graph = retrying(business, ToolNode(tools), timeout=0.2)
    with pytest.raises(NodeTimeoutError):
        await graph.ainvoke(HELLO, CONFIG)
    assert business.payments == []
    await asyncio.to_thread(entered.wait_for, 3)
    release.set()
    await asyncio.to_thread(entered.wait_for_left, 3)
    assert business.payments == paid


@pytest.mark.parametrize("colour", ["sync", "async"])
@pytest.mark.parametrize(("twin", "paid"), [("unguarded", TWICE), ("guarded", ONCE)])
async def test_case_21_two_effects_in_one_node_and_the_second_fails(
    business: Business, twin: str, paid: Any, colour: str
) -> None:
    """On a retry the first effect is not repeated, and the second is brought about."""
    fails = Once(raises(ConnectionError("no luck")))

    def second(session: Any) -> None:
        fails()

    def pay(session: Session) -> None:
        session.execute(PAY, {"order_id": "O-1", "cents": 5})

    async def apay(session: AsyncSession) -> None:
        await session.execute(PAY, {"order_id": "O-1", "cents": 5})

    def ship(session: Session) -> None:
        fails()
        session.execute(PAY, {"order_id": "ship O-1", "cents": 0})

    async def aship(session: AsyncSession) -> None:
        fails()
        await session.execute(PAY, {"order_id": "ship O-1", "cents": 0})

    def node(state: MessagesState) -> None:
        if twin == "guarded":
            business.ledger.once("charge", key="O-1", do=pay)
            business.ledger.once("ship", key="O-1", do=ship)
            return
        business.pay("O-1", 5)
        fails()
        business.pay("ship O-1", 0)

    async def anode(state: MessagesState) -> None:
        if twin == "guarded":
            await business.ledger.aonce("charge", key="O-1", do=apay)
            await business.ledger.aonce("ship", key="O-1", do=aship)
            return
        node(state)

    builder: StateGraph[Any, Any, Any, Any] = StateGraph(MessagesState)
    builder.add_node("order", node if colour == "sync" else anode, retry_policy=FAST)
    builder.add_edge(START, "order")
    await run(colour, builder.compile(), HELLO)
    assert business.payments == [*paid, ("ship O-1", 0)]


class OutOfStockError(Exception):
    """There is none left."""


@pytest.mark.parametrize("colour", ["sync", "async"])
@pytest.mark.parametrize("seam", SEAMS)
async def test_case_22_a_business_refusal_is_not_done(
    business: Business, seam: str, colour: str
) -> None:
    """A tool that says no is rolled back and forgotten: the next call may succeed."""
    hooks = Hooks(unpaid=Once(raises(OutOfStockError("none left"))))
    script = [asks(PAY_ONE, ids=["first"]), asks(PAY_ONE, ids=["second"]), "Paid."]
    tools = [pay_tool(business, hooks, colour=colour)]
    graph = agent(seam, script, tools, business, InMemorySaver(), handle_tool_errors=True)
    ended = await run(colour, graph, HELLO)
    first, second = answers(ended["messages"])
    assert (first.status, second.status) == ("error", "success")
    assert business.payments == ONCE


@pytest.mark.parametrize("colour", ["sync", "async"])
async def test_case_22_a_refusal_recorded_for_good(business: Business, colour: str) -> None:
    """Where the tool opted in, its refusal is final: recorded, and told to the next call."""
    hooks = Hooks(unpaid=Once(raises(OutOfStockError("none left"))))
    pay: Any = pay_tool(business, hooks, colour=colour, refusals=(OutOfStockError,))
    given = {"order_id": "O-1", "cents": 5}
    with pytest.raises(OutOfStockError):
        await called(pay, given, colour)
    assert business.payments == []
    with pytest.raises(RecordedFailure, match="none left"):
        await called(pay, given, colour)
    (effect,) = business.ledger.effects()
    assert effect.state is State.FAILED
    assert business.payments == []


async def called(paying: Any, given: dict[str, Any], colour: str) -> Any:
    """Call a tool's function in a colour."""
    return paying.func(**given) if colour == "sync" else await paying.coroutine(**given)


def complaining(business: Business, kind: str, colour: str, fails: Once) -> BaseTool:
    """Make a tool that says by its message's status that it failed."""
    kinds: Any = {
        "transactional": business.ledger.transactional(key=("order_id",)),
        "remote": business.ledger.remote(key=("order_id",), on_unknown="raise"),
        "remote, not sent": business.ledger.remote(
            key=("order_id",), classify=lambda _: Verdict.NOT_SENT
        ),
    }
    guard = kinds[kind]

    def said() -> ToolMessage:
        status: Any = fails() or "success"
        return ToolMessage(f"it is a {status}", tool_call_id="call_0", status=status)

    def pay(session: Session, /, order_id: str, cents: int) -> ToolMessage:
        session.execute(PAY, {"order_id": order_id, "cents": cents})
        return said()

    async def apay(session: AsyncSession, /, order_id: str, cents: int) -> ToolMessage:
        await session.execute(PAY, {"order_id": order_id, "cents": cents})
        return said()

    def send(effect: Effect, /, order_id: str, cents: int) -> ToolMessage:
        assert effect.idempotency_key
        message = said()
        if message.status == "success":
            business.pay(order_id, cents)
        return message

    async def asend(effect: Effect, /, order_id: str, cents: int) -> ToolMessage:
        return send(effect, order_id, cents)

    sync, awaiting = (pay, apay) if kind == "transactional" else (send, asend)
    return StructuredTool.from_function(
        func=guard(sync) if colour == "sync" else None,
        coroutine=guard(awaiting) if colour == "async" else None,
        name="pay",
        description="Pay.",
    )


@pytest.mark.parametrize("colour", ["sync", "async"])
@pytest.mark.parametrize("kind", ["transactional", "remote, not sent"])
@pytest.mark.parametrize("seam", ALL_SEAMS)
async def test_case_23_an_error_message_is_no_success(
    business: Business, seam: str, kind: str, colour: str
) -> None:
    """A ToolMessage that says "error" is told to the model, but not recorded as a success.

    What was written is rolled back, and a later call may succeed.
    """
    tools = [complaining(business, kind, colour, Once(lambda: "error"))]
    script = [asks(PAY_ONE), asks(PAY_ONE), "Paid."]
    graph = agent(seam, script, tools, business, InMemorySaver())
    ended = await run(colour, graph, HELLO)
    first, second = answers(ended["messages"])
    assert (first.status, first.content) == ("error", "it is a error")
    assert (second.status, second.content) == ("success", "it is a success")
    assert business.payments == ONCE
    (effect,) = business.ledger.effects()
    assert effect.state is State.SUCCEEDED


@pytest.mark.parametrize("colour", ["sync", "async"])
async def test_case_23_a_remote_error_message_is_unknown(business: Business, colour: str) -> None:
    """A remote tool's error message says nothing about the provider: the outcome is UNKNOWN."""
    pay = complaining(business, "remote", colour, Once(lambda: "error"))
    with pytest.raises(OutcomeUnknown):
        await called(pay, {"order_id": "O-1", "cents": 5}, colour)
    (effect,) = business.ledger.effects()
    assert effect.state is State.UNKNOWN
    assert "it is a error" in (effect.reason or "")
