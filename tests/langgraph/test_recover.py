"""``recover``: what it finds, what it does, and what it must not do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import pytest
from langchain_core.messages import AnyMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict

from langgraph_idem import (
    ConfigurationError,
    IdempotentToolNode,
    LedgerError,
    Recovery,
    RunStatus,
    arecover,
    recover,
)
from tests.langgraph.shop import NOTIFY_ONE, TAKE_ONE, Shop, calling
from tests.langgraph.test_react_graph import CONFIG, TASK, Failing, agent_of, events

if TYPE_CHECKING:
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver


class Stopping:
    """A plain tool that cannot be served as long as it is told so."""

    def __init__(self) -> None:
        self.stops = True

        @tool
        def fragile(what: str) -> str:
            """Meet a ledger that cannot serve at first."""
            if self.stops:
                raise LedgerError("the database is away")
            return what

        self.tool = fragile


FRAGILE = ("fragile", {"what": "x"})


def test_a_completed_run_starts_nothing(shop: Shop, saver: SqliteSaver) -> None:
    """Recovering a completed run, again and again, changes neither rows nor checkpoints."""
    agent = agent_of(shop, [calling(TAKE_ONE), "Done."], checkpointer=saver)
    agent.invoke(TASK, CONFIG)
    before = (agent.get_state(CONFIG), shop.rows("taken"), shop.rows("idem_effects"))
    for _ in range(2):
        assert recover(agent, "O-1") is Recovery.ALREADY_COMPLETED
    assert (agent.get_state(CONFIG), shop.rows("taken"), shop.rows("idem_effects")) == before


def test_an_unknown_thread_has_nothing_to_recover(shop: Shop, saver: SqliteSaver) -> None:
    """A thread that never wrote a checkpoint is told apart from one that completed."""
    agent = agent_of(shop, [], checkpointer=saver)
    assert recover(agent, "never seen") is Recovery.NOTHING_TO_RECOVER
    assert agent.get_state({"configurable": {"thread_id": "never seen"}}).metadata is None


def test_an_unfinished_run_is_finished(shop: Shop, saver: SqliteSaver) -> None:
    """A run that an error stopped is finished; what its sibling did is not done again."""
    stopping = Stopping()
    script = [calling(FRAGILE, NOTIFY_ONE), "Done."]
    agent = agent_of(shop, script, [stopping.tool, shop.tools()[2]], checkpointer=saver)
    with pytest.raises(LedgerError):
        agent.invoke(TASK, CONFIG)
    stopping.stops = False
    assert recover(agent, config=CONFIG) is Recovery.RECOVERED_FROM_CHECKPOINT
    assert agent.get_state(CONFIG).values["status"] is RunStatus.COMPLETED
    assert shop.rows("notified") == [("O-1",)]
    assert recover(agent, config=CONFIG) is Recovery.ALREADY_COMPLETED


def test_a_failed_run_runs_just_its_failed_calls(shop: Shop, saver: SqliteSaver) -> None:
    """The failed call is run again, not its sibling; its result takes the failure's place."""
    failing = Failing(shop)
    script = [calling(TAKE_ONE, NOTIFY_ONE), "Done."]
    agent = agent_of(shop, script, failing.tools, checkpointer=saver)
    agent.invoke(TASK, CONFIG)
    assert recover(agent, "O-1") is Recovery.RECOVERED_FROM_CHECKPOINT
    assert agent.get_state(CONFIG).values["status"] is RunStatus.FAILED
    failing.fails = False
    assert recover(agent, "O-1") is Recovery.RECOVERED_FROM_CHECKPOINT
    state = agent.get_state(CONFIG).values
    assert (state["status"], state["next_step"]) == (RunStatus.COMPLETED, None)
    assert [m.text for m in state["messages"] if isinstance(m, ToolMessage)] == [
        "took",
        "notified",
    ]
    assert [message.type for message in state["messages"]] == ["human", "ai", "tool", "tool", "ai"]
    assert events(state).count("tool_failed") == 2
    assert events(state).count("failed_calls_run_again") == 2
    assert failing.entered == 3
    notified = [e for e in state["trace"] if e.get("tool") == "notify"]
    assert len(notified) == 1
    assert (shop.rows("taken"), shop.rows("notified")) == ([("O-1", "A")], [("O-1",)])
    assert recover(agent, "O-1") is Recovery.ALREADY_COMPLETED


async def test_a_failed_run_is_recovered_async(ashop: Shop, asaver: AsyncSqliteSaver) -> None:
    """The same on an event loop."""
    failing = Failing(ashop)
    agent = agent_of(ashop, [calling(TAKE_ONE), "Done."], failing.tools, checkpointer=asaver)
    await agent.ainvoke(TASK, CONFIG)
    failing.fails = False
    assert await arecover(agent, "O-1") is Recovery.RECOVERED_FROM_CHECKPOINT
    assert (await agent.aget_state(CONFIG)).values["status"] is RunStatus.COMPLETED
    assert await arecover(agent, "O-1") is Recovery.ALREADY_COMPLETED
    assert await arecover(agent, "never seen") is Recovery.NOTHING_TO_RECOVER
    assert ashop.rows("taken") == [("O-1", "A")]


def test_a_question_for_a_person_stays_open(shop: Shop, saver: SqliteSaver) -> None:
    """A run that waits for a person is not resumed; one that comes to a question is told so."""
    stopping = Stopping()

    @tool
    def ask(what: str) -> str:
        """Ask a person."""
        return str(interrupt(what))

    script = [calling(FRAGILE), calling(("ask", {"what": "really?"})), "Done."]
    agent = agent_of(shop, script, [stopping.tool, ask], checkpointer=saver)
    with pytest.raises(LedgerError):
        agent.invoke(TASK, CONFIG)
    stopping.stops = False
    assert recover(agent, "O-1") is Recovery.WAITING_FOR_HUMAN
    before = agent.get_state(CONFIG)
    assert [question.value for question in before.interrupts] == ["really?"]
    assert recover(agent, "O-1") is Recovery.WAITING_FOR_HUMAN
    assert agent.get_state(CONFIG) == before
    assert agent.invoke(Command(resume="yes"), CONFIG)["status"] is RunStatus.COMPLETED


@pytest.mark.parametrize("stop", [{"interrupt_before": ["tools"]}, {"interrupt_after": ["model"]}])
def test_a_breakpoint_is_not_passed(shop: Shop, saver: SqliteSaver, stop: dict[str, Any]) -> None:
    """Where a person has to let the run pass, recover does not."""
    agent = agent_of(shop, [calling(TAKE_ONE), "Done."], checkpointer=saver, **stop)
    agent.invoke(TASK, CONFIG)
    assert recover(agent, "O-1") is Recovery.WAITING_FOR_HUMAN
    assert shop.rows("taken") == []
    assert agent.get_state(CONFIG).next == ("tools",)


class OwnState(TypedDict):
    """The state of a graph of one's own."""

    messages: Annotated[list[AnyMessage], add_messages]


def test_any_graph_can_be_recovered(shop: Shop, saver: SqliteSaver) -> None:
    """A graph that is not ours is resumed as well, and its completed runs start nothing."""
    stopping = Stopping()
    builder = StateGraph(OwnState)
    tools = [stopping.tool, *shop.tools()]
    builder.add_node("tools", IdempotentToolNode(tools, ledger=shop.ledger))
    builder.add_edge(START, "tools")
    graph = builder.compile(checkpointer=saver)
    with pytest.raises(LedgerError):
        graph.invoke({"messages": [calling(TAKE_ONE, FRAGILE)]}, CONFIG)
    stopping.stops = False
    assert recover(graph, "O-1") is Recovery.RECOVERED_FROM_CHECKPOINT
    assert recover(graph, "O-1") is Recovery.ALREADY_COMPLETED
    told = graph.get_state(CONFIG).values["messages"][1].additional_kwargs["idempotency"]
    assert told["relation"] == "same_call"
    assert shop.rows("taken") == [("O-1", "A")]


def test_a_run_without_an_address_is_refused(shop: Shop, saver: SqliteSaver) -> None:
    """No checkpointer, no thread, or an earlier checkpoint: refused, with what to write."""
    with pytest.raises(ConfigurationError, match="checkpointer"):
        recover(agent_of(shop, []), "O-1")
    agent = agent_of(shop, [], checkpointer=saver)
    with pytest.raises(ConfigurationError, match="thread_id"):
        recover(agent)
    forked: Any = {"configurable": {"thread_id": "O-1", "checkpoint_id": "1"}}
    with pytest.raises(ConfigurationError, match="fork"):
        recover(agent, config=forked)
