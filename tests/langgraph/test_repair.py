"""repair: calls that were cut off are answered from the ledger; the model then goes on."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langchain_core.tools import BaseTool, StructuredTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, Send
from sqlalchemy.orm import Session

from langgraph_idem import (
    PER_CALL,
    ConfigurationError,
    Effect,
    IdempotentToolNode,
    Recovery,
    RunStatus,
    State,
    arecover,
    arepair,
    recover,
    repair,
)
from langgraph_idem.testing import ScriptedChatModel
from tests.support.cases import (
    ALL_SEAMS,
    CONFIG,
    PAY,
    Business,
    Hooks,
    agent,
    answers,
    asks,
    assert_provider_valid,
    pay_tool,
)

COLOURS = ["sync", "async"]


@pytest.fixture
async def business(sqlite_url: str) -> AsyncIterator[Business]:
    """Open a fresh business."""
    founded = Business.founded_at(sqlite_url)
    yield founded
    await founded.ledger.aclose()


async def repaired(colour: str, graph: Any, **options: Any) -> list[ToolMessage]:
    """Repair in a colour."""
    if colour == "sync":
        return repair(graph, config=CONFIG, **options)
    return await arepair(graph, config=CONFIG, **options)


def order(number: int, **more: Any) -> tuple[str, dict[str, Any]]:
    """Ask for the payment of an order."""
    return "pay", {"order_id": f"O-{number}", **more}


def refund_tool(business: Business) -> BaseTool:
    """Make a remote tool whose answers are lost."""

    def refund(effect: Effect, /, order_id: str) -> str:
        assert effect.idempotency_key
        raise TimeoutError("the answer was lost")

    guard: Any = business.ledger.remote(key=("order_id",), lease=0, on_unknown="raise")
    return StructuredTool.from_function(func=guard(refund), name="refund", description="Refund.")


@tool
def plain(what: str) -> str:
    """Do something that nobody guards."""
    return what


class OutOfStockError(Exception):
    """There is none left."""


def stocked(order_id: str) -> None:
    """Refuse one order for good."""
    if order_id == "O-5":
        raise OutOfStockError("none left")


def refusing_tool(business: Business) -> BaseTool:
    """Make a tool that refuses for good."""

    def ship(session: Session, /, order_id: str) -> str:
        stocked(order_id)
        return f"shipped {order_id}"

    guard: Any = business.ledger.transactional(key=("order_id",), refusals=(OutOfStockError,))
    return StructuredTool.from_function(func=guard(ship), name="ship", description="Ship.")


def per_call_tool(business: Business) -> BaseTool:
    """Make a tool keyed by its call."""

    def ping(session: Session, /, what: str) -> str:
        session.execute(PAY, {"order_id": what, "cents": 0})
        return f"pinged {what}"

    guard: Any = business.ledger.transactional(key=PER_CALL)
    return StructuredTool.from_function(func=guard(ping), name="ping", description="Ping.")


def artifact_tool(business: Business) -> BaseTool:
    """Make a tool of content and artifact."""

    def invoice(session: Session, /, order_id: str) -> tuple[str, dict[str, int]]:
        return f"invoice of {order_id}", {"pages": 2}

    guard: Any = business.ledger.transactional(key=("order_id",))
    return StructuredTool.from_function(
        func=guard(invoice),
        name="invoice",
        description="Write an invoice.",
        response_format="content_and_artifact",
    )


def commanding_tool(business: Business) -> BaseTool:
    """Make a tool that answers by a Command."""

    def move(session: Session, /, order_id: str) -> Command[Any]:
        moved = ToolMessage(f"moved {order_id}", tool_call_id="before")
        return Command(update={"messages": [moved]})

    guard: Any = business.ledger.transactional(key=("order_id",))
    return StructuredTool.from_function(func=guard(move), name="move", description="Move.")


def all_tools(business: Business) -> list[BaseTool]:
    """Make one tool of each kind."""
    return [
        pay_tool(business),
        refund_tool(business),
        refusing_tool(business),
        per_call_tool(business),
        artifact_tool(business),
        commanding_tool(business),
        plain,
    ]


def cut_off(seam: str, business: Business, *history: Any, script: Any = ("Going on.",) * 9) -> Any:
    """Build a graph on a thread whose history ends with calls that nobody answered."""
    graph = agent(seam, list(script), all_tools(business), business, InMemorySaver())
    graph.update_state(CONFIG, {"messages": [("user", "go"), *history]}, as_node=START)
    return graph


def messages_of(graph: Any) -> list[AnyMessage]:
    """Read a thread's messages."""
    messages: list[AnyMessage] = graph.get_state(CONFIG).values["messages"]
    return messages


def do_what_was_asked(business: Business, tools: list[BaseTool]) -> None:
    """Bring some effects about, and leave others as a crash would."""
    pay, refund, ship, _, invoice, move, _ = (made.func for made in tools)  # type: ignore[attr-defined]  # StructuredTools
    pay(order_id="O-1")
    pay(order_id="O-2", cents=7)
    invoice(order_id="O-1")
    move(order_id="O-1")
    with pytest.raises(OutOfStockError):
        ship(order_id="O-5")
    with pytest.raises(Exception, match="unknown"):
        refund(order_id="O-1")


ASKED = asks(
    order(1),
    order(2),
    order(3),
    ("pay", {"order_id": " "}),
    ("pay", {"cents": "many"}),
    ("refund", {"order_id": "O-1"}),
    ("ship", {"order_id": "O-5"}),
    ("invoice", {"order_id": "O-1"}),
    ("move", {"order_id": "O-1"}),
    ("ping", {"what": "x"}),
    ("plain", {"what": "x"}),
    ("gone", {}),
)
TOLD = [
    ("success", "paid O-1"),
    ("error", "other arguments (cents differ)"),
    ("error", "before it took effect. Nothing was done."),
    ("error", "Nothing was done."),
    ("error", "Nothing was done."),
    ("error", "UNKNOWN"),
    ("error", "refused earlier and that is final"),
    ("success", "invoice of O-1"),
    ("success", "moved O-1"),
    ("error", "Nothing was done."),
    ("error", "not known whether it took effect"),
    ("error", "not known whether it took effect"),
]


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("seam", ALL_SEAMS)
async def test_each_call_is_answered_as_the_ledger_knows_it(
    business: Business, seam: str, colour: str
) -> None:
    """Recorded, changed, never started, invalid, unknown, refused, PER_CALL, unguarded, gone."""
    do_what_was_asked(business, all_tools(business))
    before = business.ledger.effects()
    graph = cut_off(seam, business, ASKED)
    added = await repaired(colour, graph)
    assert [message.tool_call_id for message in added] == [f"call_{i}" for i in range(12)]
    for message, (status, words) in zip(added, TOLD, strict=True):
        assert message.status == status, message
        assert words in message.content
        assert "try again" not in str(message.content).lower()
    assert added[7].artifact == {"pages": 2}
    assert added[0].additional_kwargs["idempotency"]["replayed"] is True
    assert business.ledger.effects() == before
    assert_provider_valid(messages_of(graph))
    assert graph.invoke(None, CONFIG)["messages"][-1].content == "Going on."


def claimed_for_ever(business: Business) -> tuple[BaseTool, threading.Event, threading.Thread]:
    """Make a remote tool, and a thread that is in the middle of it."""
    begun, release = threading.Event(), threading.Event()

    def send(effect: Effect, /, order_id: str) -> str:
        begun.set()
        assert release.wait(30)
        return "sent"

    guard: Any = business.ledger.remote(key=("order_id",), lease=None)
    made = StructuredTool.from_function(func=guard(send), name="send", description="Send.")
    busy = threading.Thread(target=made.func, kwargs={"order_id": "O-1"})
    busy.start()
    assert begun.wait(30)
    return made, release, busy


@pytest.mark.parametrize("colour", COLOURS)
async def test_an_effect_in_progress_is_said_to_be_so(business: Business, colour: str) -> None:
    """Somebody else is at it: the model learns that, and nobody waits."""
    send, release, busy = claimed_for_ever(business)
    asked = asks(("send", {"order_id": "O-1"}))
    graph = agent("create_react_agent", ["On."] * 3, [send], business, InMemorySaver())
    graph.update_state(CONFIG, {"messages": [("user", "go"), asked]}, as_node=START)
    (message,) = await repaired(colour, graph)
    assert "in progress" in message.content
    assert message.additional_kwargs["idempotency"]["outcome"] == "claimed"
    release.set()
    busy.join(30)
    (effect,) = business.ledger.effects()
    assert effect.state is State.SUCCEEDED


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("seam", ALL_SEAMS)
async def test_it_is_idempotent(business: Business, seam: str, colour: str) -> None:
    """A second repair finds nothing to do and writes no checkpoint."""
    graph = cut_off(seam, business, asks(order(1)))
    assert len(await repaired(colour, graph)) == 1
    checkpoint = graph.get_state(CONFIG).config
    assert await repaired(colour, graph) == []
    assert graph.get_state(CONFIG).config == checkpoint


@pytest.mark.parametrize("seam", ALL_SEAMS)
def test_several_messages_and_ids_used_again(business: Business, seam: str) -> None:
    """Each answer stands right after its own message, though providers number calls anew.

    The user's messages that came in between stay where they are, and so do answers that are there.
    """
    pay_tool(business).func(order_id="O-1")  # type: ignore[attr-defined]  # a StructuredTool
    graph = cut_off(
        seam,
        business,
        asks(order(1), order(2)),
        HumanMessage("are you there?"),
        asks(order(3), order(4)),
        ToolMessage("paid O-4", tool_call_id="call_1"),
        HumanMessage("hello?"),
        asks(order(5)),
        HumanMessage("please"),
    )
    added = repair(graph, config=CONFIG)
    found = messages_of(graph)
    assert_provider_valid(found)
    assert [m.content for m in found if isinstance(m, HumanMessage)] == [
        "go",
        "are you there?",
        "hello?",
        "please",
    ]
    assert [message.content == "paid O-1" for message in added] == [True, False, False, False]
    assert [m.content for m in answers(found)][3] == "paid O-4"


def test_one_id_twice_in_one_message(business: Business) -> None:
    """Two calls of one id get two answers, each its own."""
    pay_tool(business).func(order_id="O-1")  # type: ignore[attr-defined]  # a StructuredTool
    graph = cut_off("tool_node", business, asks(order(1), order(2), ids=["same", "same"]))
    first, second = repair(graph, config=CONFIG)
    assert first.content == "paid O-1"
    assert "Nothing was done" in second.content
    assert_provider_valid(messages_of(graph))


def test_an_answer_that_came_late_is_moved_to_its_call(business: Business) -> None:
    """An answer behind the user's next message stands right after its call afterwards."""
    late = ToolMessage("paid O-1, late", tool_call_id="call_0")
    history = [asks(order(1), order(2)), HumanMessage("hello?"), late]
    graph = cut_off("tool_node", business, *history)
    assert len(repair(graph, config=CONFIG)) == 1
    assert_provider_valid(messages_of(graph))
    assert answers(messages_of(graph))[0].content == "paid O-1, late"


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("seam", ALL_SEAMS)
async def test_a_new_message_goes_on_after_it(business: Business, seam: str, colour: str) -> None:
    """After a repair the thread takes a new message, and the model sees a valid history."""
    model = ScriptedChatModel([asks(order(1)), "Hello."])
    graph = agent(seam, model, all_tools(business), business, InMemorySaver())
    graph.update_state(CONFIG, {"messages": [("user", "go"), asks(order(1))]}, as_node=START)
    await repaired(colour, graph)
    ended = graph.invoke({"messages": [("user", "hello")]}, CONFIG)
    assert ended["messages"][-1].content == "Hello."
    for seen in model.seen:
        assert_provider_valid(seen)
    if seam in {"create_react_agent", "create_agent"}:
        assert ended["status"] is RunStatus.COMPLETED
        assert graph.get_state(CONFIG).values["next_step"] is None


def interrupted_run(seam: str, business: Business, script: list[Any]) -> Any:
    """Run an agent whose first call is done and whose second one fails, and leave it so."""
    done = threading.Event()

    def flaky() -> str:
        assert done.wait(30)
        raise KeyboardInterrupt

    def noting(self: Any, config: Any, writes: Any, *rest: Any) -> None:
        InMemorySaver.put_writes(self, config, writes, *rest)
        if any("paid O-1" in str(value) for _, value in writes):
            done.set()

    saver = type("Noting", (InMemorySaver,), {"put_writes": noting})()
    tools = [
        pay_tool(business, Hooks()),
        StructuredTool.from_function(func=flaky, name="flaky", description="Fail."),
    ]
    graph = agent(seam, script, tools, business, saver)
    with pytest.raises(KeyboardInterrupt):
        graph.invoke({"messages": [("user", "go")]}, CONFIG)
    return graph


@pytest.mark.parametrize("seam", ["create_react_agent", "create_agent"])
def test_what_a_finished_sibling_has_left_is_kept(business: Business, seam: str) -> None:
    """A run that is not through is given up by repair; its finished calls' writes are not."""
    graph = interrupted_run(seam, business, [asks(order(1), ("flaky", {})), "Going on."])
    assert graph.get_state(CONFIG).next == ("tools",)
    (added,) = repair(graph, config=CONFIG)
    assert added.name == "flaky"
    found = graph.get_state(CONFIG)
    assert_provider_valid(found.values["messages"])
    assert answers(found.values["messages"])[0].content == "paid O-1"
    if seam == "create_react_agent":
        assert [step["key"] for step in found.values["done_steps"]] == ["O-1"]
        assert "tool_finished" in [entry["event"] for entry in found.values["trace"]]
        assert (found.next, found.values["next_step"]) == (("model",), "waiting_model")
    ended = graph.invoke(None, CONFIG)
    assert ended["messages"][-1].content == "Going on."
    assert [step["key"] for step in ended["done_steps"]] == ["O-1"]
    assert business.payments == [("O-1", 5)]


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("seam", ALL_SEAMS)
async def test_recover_repairs_by_itself(business: Business, seam: str, colour: str) -> None:
    """Where the model comes next, calls that were cut off before it are answered first."""
    pay_tool(business).func(order_id="O-1")  # type: ignore[attr-defined]  # a StructuredTool
    model = ScriptedChatModel([asks(order(1)), "Hello."])
    graph = agent(seam, model, all_tools(business), business, InMemorySaver())
    history = [("user", "go"), asks(order(1), order(2)), ("user", "hello?")]
    graph.update_state(CONFIG, {"messages": history}, as_node=START)
    found = (
        await arecover(graph, config=CONFIG) if colour == "async" else recover(graph, "thread-1")
    )
    assert found is Recovery.RECOVERED_FROM_CHECKPOINT
    assert_provider_valid(messages_of(graph))
    assert [message.status for message in answers(messages_of(graph))] == ["success", "error"]
    (seen,) = model.seen
    assert_provider_valid(seen)
    assert business.payments == [("O-1", 5)]


@pytest.mark.parametrize("seam", ALL_SEAMS)
def test_recover_runs_what_is_to_be_run(business: Business, seam: str) -> None:
    """Calls that a pending tool node will run are not answered by recover: it runs them."""
    graph = agent(seam, [asks(order(1)), "Paid."], all_tools(business), business, InMemorySaver())
    graph.interrupt_before_nodes = ["tools"]
    graph.invoke({"messages": [("user", "go")]}, CONFIG)
    graph.interrupt_before_nodes = []
    assert recover(graph, "thread-1") is Recovery.RECOVERED_FROM_CHECKPOINT
    assert [message.content for message in answers(messages_of(graph))] == ["paid O-1"]


def test_a_key_that_needs_the_run_is_not_known(business: Business) -> None:
    """A key over what only the run injects cannot be made up afterwards: then it says so."""

    def pay(session: Session, /, order_id: str) -> str:
        raise NotImplementedError

    guard: Any = business.ledger.transactional(key=lambda arguments: arguments["customer"])
    made = StructuredTool.from_function(func=guard(pay), name="pay", description="Pay.")
    graph = agent("tool_node", ["On."] * 2, [made], business, InMemorySaver())
    graph.update_state(CONFIG, {"messages": [asks(order(1))]}, as_node=START)
    (message,) = repair(graph, config=CONFIG)
    assert "not known whether it took effect" in message.content


def test_per_call_effects_are_found_by_their_call(business: Business) -> None:
    """An effect keyed PER_CALL is found by thread, message and call."""
    done = threading.Event()
    ping = per_call_tool(business)

    def fail() -> str:
        assert done.wait(30)
        raise KeyboardInterrupt

    after: Any = ping.func  # type: ignore[attr-defined]  # a StructuredTool

    def pinged(what: str) -> str:
        result: str = after(what=what)
        done.set()
        return result

    pinged.__dict__.update(after.__dict__)
    ping.func = pinged
    tools = [ping, StructuredTool.from_function(func=fail, name="fail", description="Fail.")]
    node = IdempotentToolNode(tools, ledger=business.ledger)
    graph = looping(["On."] * 2, node)
    with pytest.raises(KeyboardInterrupt):
        graph.invoke(
            {"messages": [asks(("ping", {"what": "x"}), ("fail", {}))]}, CONFIG, durability="sync"
        )
    first, second = repair(graph, config=CONFIG)
    assert (first.content, first.status) == ("pinged x", "success")
    assert first.additional_kwargs["idempotency"]["relation"] == "same_call"
    assert second.status == "error"
    assert business.payments == [("x", 0)]


def looping(script: list[Any], node: ToolNode) -> Any:
    """Build a graph that runs the calls of its input first; all calls of a message in one task."""
    model = ScriptedChatModel(script)

    def ask(state: MessagesState) -> dict[str, list[AnyMessage]]:
        return {"messages": [model.invoke(state["messages"])]}

    def routed(state: MessagesState) -> list[Any]:
        last = state["messages"][-1]
        waits = isinstance(last, AIMessage) and last.tool_calls
        return [Send("tools", state)] if waits else ["model"]

    builder: StateGraph[Any, Any, Any, Any] = StateGraph(MessagesState)
    builder.add_node("model", ask)
    builder.add_node("tools", node)
    builder.add_conditional_edges(START, routed, ["tools", "model"])
    builder.add_edge("tools", "model")
    return builder.compile(checkpointer=InMemorySaver())


def test_a_graph_without_a_tool_node_is_refused(business: Business) -> None:
    """Without a ToolNode nobody knows where to go on: the words say what to add."""
    builder: StateGraph[Any, Any, Any, Any] = StateGraph(MessagesState)
    builder.add_node("model", lambda _state: None)
    builder.add_edge(START, "model")
    graph = builder.compile(checkpointer=InMemorySaver())
    graph.update_state(CONFIG, {"messages": [asks(order(1))]}, as_node=START)
    with pytest.raises(ConfigurationError, match="IdempotentToolNode"):
        repair(graph, config=CONFIG)


def test_an_empty_thread_has_nothing_to_repair(business: Business) -> None:
    """A thread that nobody ever used stays so."""
    graph = agent("create_react_agent", ["Hi."], all_tools(business), business, InMemorySaver())
    assert repair(graph, "nobody") == []
    assert graph.get_state({"configurable": {"thread_id": "nobody"}}).metadata is None
