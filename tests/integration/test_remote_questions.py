"""An unknown outcome becomes a question in a graph, and the answer goes on from there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command
from pydantic import BaseModel, ValidationError

from langgraph_idem import (
    DONT_KNOW,
    ConfigurationError,
    Effect,
    Found,
    IdempotentToolNode,
    Ledger,
    OutcomeUnknown,
    answer,
    create_react_agent,
)
from langgraph_idem.effects import State
from langgraph_idem.testing import ScriptedChatModel
from tests.support.provider import Witness

CONFIG: Any = {"configurable": {"thread_id": "T-1"}}


class Lost(Exception):
    """The answer did not come."""


class Refund(BaseModel):
    """What the tool returns."""

    number: int


@pytest.fixture
def witness(sqlite_url: str) -> Witness:
    """A fresh ledger, and somebody to look at it."""
    return Witness(sqlite_url)


@pytest.fixture
def ledger(witness: Witness) -> Iterator[Ledger]:
    """The ledger."""
    with Ledger(witness.url, wait=5) as opened:
        yield opened


@pytest.fixture
def saver(tmp_path: Path) -> Iterator[SqliteSaver]:
    """A checkpointer on disk."""
    with SqliteSaver.from_conn_string(str(tmp_path / "checkpoints.db")) as opened:
        yield opened


class Api:
    """A provider whose answers are lost until it is told otherwise."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.is_down = True

    def refund(self, effect: Effect, order_id: str) -> Refund:
        """Take a request."""
        self.sent.append(order_id)
        assert effect.idempotency_key
        if self.is_down:
            raise Lost("read timed out")
        return Refund(number=len(self.sent))


def refunding(ledger: Ledger, api: Api, **options: Any) -> Any:
    """Make the tool."""

    @tool
    @ledger.remote(key=("order_id",), **options)
    def refund(effect: Effect, /, order_id: str, cents: int = 5) -> Refund:
        """Refund an order."""
        return api.refund(effect, order_id)

    return refund


def called(*orders: str, name: str = "refund") -> AIMessage:
    """Make the model's wish."""
    calls = [{"name": name, "args": {"order_id": o}, "id": f"call-{o}"} for o in orders]
    return AIMessage("", tool_calls=calls, id="m-1")


def by_node(tools: list[Any], ledger: Ledger, saver: Any) -> Any:
    """A graph of one's own around the tool node."""
    graph = StateGraph(MessagesState)
    graph.add_node("tools", IdempotentToolNode(tools, ledger=ledger))
    graph.add_edge(START, "tools")
    return graph.compile(checkpointer=saver)


def by_agent(tools: list[Any], ledger: Ledger, saver: Any) -> Any:
    """The ReAct agent, whose model wishes for one refund."""
    model = ScriptedChatModel([called("O-1"), AIMessage("Done.")])
    return create_react_agent(model, tools, ledger=ledger, checkpointer=saver)


def begin(graph: Any, made: Callable[..., Any]) -> Any:
    """Start the run."""
    given = {"task": "refund O-1"} if made is by_agent else {"messages": [called("O-1")]}
    return graph.invoke(given, CONFIG)


def question(graph: Any) -> Any:
    """Return the one question that is pending."""
    (asked,) = graph.get_state(CONFIG).interrupts
    return asked


def answered(graph: Any) -> ToolMessage:
    """Return the last tool message."""
    messages = graph.get_state(CONFIG).values["messages"]
    return next(m for m in reversed(messages) if isinstance(m, ToolMessage))


BOTH_GRAPHS = pytest.mark.parametrize("made", [by_node, by_agent])


@BOTH_GRAPHS
def test_the_question_says_what_a_person_must_know(
    ledger: Ledger, saver: SqliteSaver, made: Callable[..., Any]
) -> None:
    """LangChain's shape for one tool call, and what only the ledger knows."""
    graph = made([refunding(ledger, Api())], ledger, saver)
    begin(graph, made)
    asked = question(graph).value
    record = ledger.effect("refund", "O-1")
    assert record is not None
    assert asked | {"description": "", "question_id": "", "fingerprint": ""} == {
        "type": "idempotency_unknown_outcome",
        "tool_call_id": "call-O-1",
        "name": "refund",
        "args": {"order_id": "O-1"},
        "description": "",
        "scope": "global",
        "key": "O-1",
        "fingerprint": "",
        "since": record.began_at.isoformat(),
        "choices": ["failed", "released", "succeeded"],
        "question_id": "",
    }
    assert "unknown whether refund for O-1 took hold (Lost: read timed out)" in asked["description"]
    assert asked["question_id"]


@BOTH_GRAPHS
@pytest.mark.parametrize(
    ("choice", "result", "says", "state"),
    [
        ("succeeded", {"number": 9}, "number=9", State.SUCCEEDED),
        ("failed", None, "final", State.FAILED),
        ("released", None, "number=2", State.SUCCEEDED),
    ],
)
def test_the_answer_goes_on(
    ledger: Ledger,
    saver: SqliteSaver,
    made: Callable[..., Any],
    choice: str,
    result: Any,
    says: str,
    state: State,
) -> None:
    """Each answer is recorded with who and why, and the run goes on as it says."""
    api = Api()
    graph = made([refunding(ledger, api)], ledger, saver)
    begin(graph, made)
    api.is_down = False
    reply = answer(question(graph), choice, result=result, by="Ann", note="asked the bank")
    graph.invoke(Command(resume=reply), CONFIG)
    record = ledger.effect("refund", "O-1")
    assert record is not None
    assert (record.state, record.resolved_by, record.note) == (state, "Ann", "asked the bank")
    assert says in str(answered(graph).content)
    assert len(api.sent) == (2 if choice == "released" else 1)
    assert not graph.get_state(CONFIG).next


@BOTH_GRAPHS
@pytest.mark.parametrize(
    "spoilt",
    [
        {"choice": "yes"},
        {"question_id": None},
        {"more": 1},
        {"choice": "succeeded", "result": {"number": "many"}},
    ],
)
def test_a_bad_answer_is_refused_and_the_question_stays(
    ledger: Ledger, saver: SqliteSaver, made: Callable[..., Any], spoilt: dict[str, Any]
) -> None:
    """A mistyped choice, a missing id, an unknown field, a result that the tool cannot return."""
    api = Api()
    graph = made([refunding(ledger, api)], ledger, saver)
    begin(graph, made)
    good = answer(question(graph).value, "failed")
    with pytest.raises(ValidationError):
        graph.invoke(Command(resume=good | spoilt), CONFIG)
    record = ledger.effect("refund", "O-1")
    assert record is not None
    assert (record.state, len(api.sent)) == (State.UNKNOWN, 1)
    graph.invoke(Command(resume=answer(question(graph), "failed")), CONFIG)
    assert "final" in str(answered(graph).content)


@BOTH_GRAPHS
def test_a_stale_answer_runs_nothing(
    ledger: Ledger, saver: SqliteSaver, made: Callable[..., Any]
) -> None:
    """An answer to another question is passed over; the question stays open."""
    api = Api()
    graph = made([refunding(ledger, api)], ledger, saver)
    begin(graph, made)
    stale = answer(question(graph).value, "released") | {"question_id": "0" * 16}
    graph.invoke(Command(resume=stale), CONFIG)
    record = ledger.effect("refund", "O-1")
    assert record is not None
    assert (record.state, len(api.sent)) == (State.UNKNOWN, 1)
    graph.invoke(Command(resume=answer(question(graph), "failed")), CONFIG)
    assert "final" in str(answered(graph).content)
    assert len(api.sent) == 1


@BOTH_GRAPHS
@pytest.mark.parametrize(
    "options", [{"lookup": lambda _effect: DONT_KNOW}, {"provider_keeps_key": 60}]
)
def test_an_answer_is_heeded_before_anything_is_tried_again(
    ledger: Ledger, saver: SqliteSaver, made: Callable[..., Any], options: dict[str, Any]
) -> None:
    """Looking up and sending again must not make a new question of the one that is answered."""
    api = Api()
    graph = made([refunding(ledger, api, **options)], ledger, saver)
    begin(graph, made)
    sent = len(api.sent)
    graph.invoke(Command(resume=answer(question(graph), "failed", by="Ann")), CONFIG)
    record = ledger.effect("refund", "O-1")
    assert record is not None
    assert (record.state, record.resolved_by, len(api.sent)) == (State.FAILED, "Ann", sent)
    assert not graph.get_state(CONFIG).next


@BOTH_GRAPHS
def test_looking_in_between_does_not_make_an_answer_stale(
    ledger: Ledger, saver: SqliteSaver, made: Callable[..., Any]
) -> None:
    """A plain resume asks the provider again, in vain: the question is still the same one."""
    graph = made([refunding(ledger, Api(), lookup=lambda _effect: DONT_KNOW)], ledger, saver)
    begin(graph, made)
    asked = question(graph)
    graph.invoke(None, CONFIG)
    assert question(graph).value["question_id"] == asked.value["question_id"]
    graph.invoke(Command(resume=answer(asked.value, "failed")), CONFIG)
    assert not graph.get_state(CONFIG).next


@BOTH_GRAPHS
def test_what_was_settled_elsewhere_is_found_by_the_next_resume(
    ledger: Ledger, saver: SqliteSaver, made: Callable[..., Any]
) -> None:
    """A word by the command line or the API: a resume without an answer goes on from it."""
    api = Api()
    graph = made([refunding(ledger, api)], ledger, saver)
    begin(graph, made)
    ledger.resolve("refund", "O-1", "succeeded", result={"number": 9}, by="Ann")
    graph.invoke(None, CONFIG)
    assert "number=9" in str(answered(graph).content)
    assert (len(api.sent), graph.get_state(CONFIG).next) == (1, ())


@BOTH_GRAPHS
def test_an_answer_after_it_was_settled_elsewhere_changes_nothing(
    ledger: Ledger, saver: SqliteSaver, made: Callable[..., Any]
) -> None:
    """The first word stands; the run goes on from it."""
    api = Api()
    graph = made([refunding(ledger, api)], ledger, saver)
    begin(graph, made)
    asked = question(graph)
    ledger.resolve("refund", "O-1", "succeeded", result={"number": 9}, by="Ann")
    graph.invoke(Command(resume=answer(asked, "released", by="Bob")), CONFIG)
    record = ledger.effect("refund", "O-1")
    assert record is not None
    assert (record.state, record.resolved_by, len(api.sent)) == (State.SUCCEEDED, "Ann", 1)


@BOTH_GRAPHS
def test_the_provider_answers_a_plain_resume(
    ledger: Ledger, saver: SqliteSaver, made: Callable[..., Any]
) -> None:
    """The look-up that did not know yesterday knows today: nobody need answer."""
    finds: list[Any] = [DONT_KNOW]
    api = Api()
    graph = made([refunding(ledger, api, lookup=lambda _effect: finds[-1])], ledger, saver)
    begin(graph, made)
    finds.append(Found(Refund(number=4)))
    graph.invoke(None, CONFIG)
    assert "number=4" in str(answered(graph).content)
    assert len(api.sent) == 1


def _two(ledger: Ledger, api: Api) -> Any:
    inner = refunding(ledger, api).func

    @tool
    def refund_both(order_id: str) -> str:
        """Refund two orders in one tool call."""
        return f"{inner(order_id='A')}, {inner(order_id='B')}"

    return refund_both


def test_two_unknown_effects_in_one_tool(ledger: Ledger, saver: SqliteSaver) -> None:
    """Answers go to their own question, though LangGraph knows positions only."""
    api = Api()
    graph = by_node([_two(ledger, api)], ledger, saver)
    graph.invoke({"messages": [called("O-1", name="refund_both")]}, CONFIG)
    first = question(graph)
    assert first.value["key"] == "A"
    reply = answer(first, "succeeded", result={"number": 1})
    graph.invoke(Command(resume=reply), CONFIG)
    second = question(graph)
    assert second.value["key"] == "B"
    graph.invoke(Command(resume=answer(first.value, "failed")), CONFIG)
    assert question(graph).value["question_id"] == second.value["question_id"]
    reply = answer(question(graph), "succeeded", result={"number": 2})
    graph.invoke(Command(resume=reply), CONFIG)
    assert "number=1, number=2" in str(answered(graph).content)
    assert api.sent == ["A", "B"]


def test_several_calls_of_one_message(ledger: Ledger, saver: SqliteSaver) -> None:
    """Two questions from one model message; each is answered, whatever their order."""
    api = Api()
    graph = by_node([refunding(ledger, api)], ledger, saver)
    graph.invoke({"messages": [called("A", "B")]}, CONFIG)
    numbers = {"A": 1, "B": 2}
    for _ in range(4):
        if not (pending := graph.get_state(CONFIG).interrupts):
            break
        result = {"number": numbers[pending[0].value["key"]]}
        graph.invoke(Command(resume=answer(pending[0], "succeeded", result=result)), CONFIG)
    assert not graph.get_state(CONFIG).next
    states = [ledger.effect("refund", order) for order in "AB"]
    assert [record and record.result for record in states] == ['{"number": 1}', '{"number": 2}']
    assert sorted(api.sent) == ["A", "B"]


def test_raise_leaves_the_graph(ledger: Ledger, saver: SqliteSaver) -> None:
    """``on_unknown="raise"``: the run stops with the error; a word settles it, a resume goes on."""
    api = Api()
    graph = by_node([refunding(ledger, api, on_unknown="raise")], ledger, saver)
    for resumed in ({"messages": [called("O-1")]}, None):
        with pytest.raises(OutcomeUnknown):
            graph.invoke(resumed, CONFIG)
    ledger.resolve("refund", "O-1", "failed")
    graph.invoke(None, CONFIG)
    assert "final" in str(answered(graph).content)
    assert len(api.sent) == 1


def test_without_a_checkpointer_there_is_nobody_to_ask(ledger: Ledger) -> None:
    """The default raises where no question could be kept."""
    graph = by_node([refunding(ledger, Api())], ledger, None)
    with pytest.raises(OutcomeUnknown):
        graph.invoke({"messages": [called("O-1")]})


def test_the_model_is_told_that_nobody_knows(ledger: Ledger, saver: SqliteSaver) -> None:
    """The words say that it is unknown, that it must not be repeated, and who can find out."""
    graph = by_node([refunding(ledger, Api(), on_unknown="tell_model")], ledger, saver)
    graph.invoke({"messages": [called("O-1")]}, CONFIG)
    message = answered(graph)
    assert message.content == (
        "The outcome of refund for O-1 is UNKNOWN: it may or may not have happened. It must not be "
        "repeated. A person has to find out; tell the user so."
    )
    assert message.status == "error"
    assert message.additional_kwargs["idempotency"]["error"] == "outcome_unknown"


def test_an_answer_is_checked_when_it_is_made(ledger: Ledger, saver: SqliteSaver) -> None:
    """A choice that was not offered, a result that goes with none, a question of somebody else."""
    graph = by_node([refunding(ledger, Api())], ledger, saver)
    begin(graph, by_node)
    asked = question(graph)
    with pytest.raises(ConfigurationError, match="one of"):
        answer(asked, "yes")
    with pytest.raises(ConfigurationError, match="goes with 'succeeded'"):
        answer(asked, "failed", result=1)
    with pytest.raises(ConfigurationError, match="no question of the ledger"):
        answer({"type": "tool_call"}, "failed")
    assert list(answer(asked, "failed")) == [asked.id]
    assert answer(asked.value, "failed") == answer(asked, "failed")[asked.id]
