"""IdempotentToolNode: as ToolNode for plain tools; receipts, steps and words for guarded ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import pytest
from langchain_core.messages import AIMessage, AnyMessage, ToolMessage
from langchain_core.tools import BaseTool, tool
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode
from langgraph.prebuilt.tool_node import ToolCallRequest
from langgraph.runtime import Runtime
from langgraph.types import Command
from sqlalchemy.orm import Session
from typing_extensions import TypedDict

from langgraph_idem import (
    PER_CALL,
    ConfigurationError,
    DoneSteps,
    EffectBusy,
    IdempotentToolNode,
    LedgerError,
    Relation,
    merge_steps,
)
from tests.langgraph.shop import NOTIFY_ONE, TAKE, TAKE_ONE, Shop, calling, check_stock

if TYPE_CHECKING:
    from collections.abc import Callable

RUNTIME: Any = {"configurable": {"__pregel_runtime": Runtime()}}
ANSWER = ToolMessage("one and the same", tool_call_id="call_0")
GOTO: Any = Command(update={"messages": [ToolMessage("moved", tool_call_id="call_0")]}, goto="x")


class OutOfStockError(Exception):
    """There is none left."""


@tool
def plain(what: str) -> Any:
    """Do what is asked."""
    answers: dict[str, Any] = {"text": "text", "message": ANSWER, "command": GOTO}
    if what == "boom":
        raise KeyError(what)
    return answers[what]


CALL = calling(("plain", {"what": "text"}))
INPUTS = {
    "dict": {"messages": [CALL]},
    "list": [CALL],
    "tool_calls": [{**CALL.tool_calls[0], "type": "tool_call"}],
    "tool_call_with_context": {
        "__type": "tool_call_with_context",
        "tool_call": CALL.tool_calls[0],
        "state": {"messages": [CALL], "done_steps": []},
    },
}


@pytest.mark.parametrize("shape", INPUTS)
@pytest.mark.parametrize("colour", ["sync", "async"])
async def test_plain_tools_pass_in_every_shape(ashop: Shop, shape: str, colour: str) -> None:
    """What goes in and what comes out is ToolNode's own, whatever the shape."""
    given: Any = INPUTS[shape]
    ours, theirs = IdempotentToolNode([plain], ledger=ashop.ledger), ToolNode([plain])
    if colour == "sync":
        assert ours.invoke(given, RUNTIME) == theirs.invoke(given, RUNTIME)
    else:
        assert await ours.ainvoke(given, RUNTIME) == await theirs.ainvoke(given, RUNTIME)


def test_plain_tools_results_are_the_very_objects(shop: Shop) -> None:
    """A message that a plain tool returns is not copied, nor marked."""
    node = IdempotentToolNode([plain], ledger=shop.ledger)
    state = {"messages": [calling(("plain", {"what": "message"}))], "done_steps": []}
    assert node.invoke(state, RUNTIME)["messages"][0] is ANSWER
    assert ANSWER.additional_kwargs == {}


def test_a_plain_tools_command_is_toolnodes(shop: Shop) -> None:
    """A Command of a plain tool goes through as ToolNode gives it."""
    state = {"messages": [calling(("plain", {"what": "command"}))], "done_steps": []}
    ours = IdempotentToolNode([plain], ledger=shop.ledger).invoke(state, RUNTIME)
    assert ours == ToolNode([plain]).invoke(state, RUNTIME)


def handle_key_errors(error: KeyError) -> str:
    """Word one kind of error."""
    return f"worded {error!r}"


def handle_value_errors(error: ValueError) -> str:
    """Word another kind of error."""
    return f"worded {error!r}"


def wrapper(request: ToolCallRequest, execute: Callable[[ToolCallRequest], Any]) -> Any:
    """Let everything through."""
    return execute(request)


def failing_wrapper(request: ToolCallRequest, execute: Callable[[ToolCallRequest], Any]) -> Any:
    """Fail by itself."""
    raise KeyError("wrapper")


def _named(value: Any) -> str:
    return getattr(value, "__name__", str(value))


@pytest.mark.parametrize(
    "policy",
    [True, False, "sorry", KeyError, ValueError, (ValueError, KeyError), (), handle_key_errors,
     handle_value_errors, None],
    ids=_named,
)  # fmt: skip
@pytest.mark.parametrize("wrap", [None, wrapper, failing_wrapper], ids=_named)
@pytest.mark.parametrize("call", [("plain", {"what": "boom"}), ("plain", {"no": 1}), ("x", {})])
async def test_errors_of_plain_tools_are_handled_as_in_toolnode(
    ashop: Shop, policy: Any, wrap: Any, call: Any
) -> None:
    """Whatever handle_tool_errors says and whoever wraps, plain tools fail as in ToolNode."""
    options: dict[str, Any] = {} if policy is None else {"handle_tool_errors": policy}
    ours = IdempotentToolNode([plain], ledger=ashop.ledger, wrap_tool_call=wrap, **options)
    theirs = ToolNode([plain], wrap_tool_call=wrap, **options)
    state = {"messages": [calling(call)]}
    assert _outcome(ours, state) == _outcome(theirs, state)
    assert await _aoutcome(ours, state) == await _aoutcome(theirs, state)


def _outcome(node: ToolNode, state: Any) -> Any:
    try:
        return node.invoke(state, RUNTIME)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is compared
        return type(error), str(error)


async def _aoutcome(node: ToolNode, state: Any) -> Any:
    try:
        return await node.ainvoke(state, RUNTIME)
    except Exception as error:  # noqa: BLE001 - as above
        return type(error), str(error)


def test_the_receipt_is_on_the_message(shop: Shop) -> None:
    """The message of a guarded call tells operation, key, outcome, and whether it was replayed."""
    node = IdempotentToolNode(shop.tools(), ledger=shop.ledger)
    state = {"messages": [calling(TAKE_ONE)]}
    first, again = (node.invoke(state, RUNTIME)["messages"][0] for _ in range(2))
    receipt = {
        "operation": "take",
        "key": '["O-1","A"]',
        "scope": "global",
        "outcome": "succeeded",
        "replayed": False,
    }
    assert first.additional_kwargs["idempotency"] == receipt
    told = again.additional_kwargs["idempotency"]
    assert told == {**receipt, "replayed": True, "relation": str(Relation.NOT_KNOWN)}
    assert shop.rows("taken") == [("O-1", "A")]


def test_effects_within_a_plain_tool_are_told_too(shop: Shop) -> None:
    """A plain tool that calls guarded functions gets their receipts: the last one first."""
    take, notify = (made.func for made in shop.tools()[1:])  # type: ignore[attr-defined]  # tools of functions

    @tool
    def order(order_id: str) -> str:
        """Process an order."""
        take(order_id=order_id, sku="A")
        return str(notify(order_id=order_id))

    node = IdempotentToolNode([order], ledger=shop.ledger)
    state = {"messages": [calling(("order", {"order_id": "O-1"}))], "done_steps": []}
    (command,) = node.invoke(state, RUNTIME)
    told = command.update["messages"][0].additional_kwargs["idempotency"]
    assert (told["operation"], [also["operation"] for also in told["also"]]) == (
        "notify",
        ["take"],
    )
    assert [step["operation"] for step in command.update["done_steps"]] == ["take", "notify"]


class OwnState(TypedDict, total=False):
    """A state of one's own that wants to know what was done."""

    messages: Annotated[list[AnyMessage], add_messages]
    done_steps: DoneSteps


class BareState(TypedDict):
    """A state of one's own that does not."""

    messages: Annotated[list[AnyMessage], add_messages]


def own_graph(node: ToolNode, schema: type[Any]) -> Any:
    """Build a graph of one node."""
    builder = StateGraph(schema)
    builder.add_node("tools", node)
    builder.add_edge(START, "tools")
    return builder.compile()


def test_done_steps_where_the_state_has_them(shop: Shop) -> None:
    """A state with ``done_steps`` learns of parallel effects, each once however often replayed."""
    graph = own_graph(IdempotentToolNode(shop.tools(), ledger=shop.ledger), OwnState)
    asked = {"messages": [calling(TAKE_ONE, NOTIFY_ONE, TAKE_ONE, ("check_stock", {"sku": "A"}))]}
    state = graph.invoke(asked)
    assert sorted(step["operation"] for step in state["done_steps"]) == ["notify", "take"]
    assert len(state["messages"]) == 5
    assert shop.rows("taken") == [("O-1", "A")]


def test_no_done_steps_where_the_state_has_none(shop: Shop) -> None:
    """A state without the field gets messages only."""
    graph = own_graph(IdempotentToolNode(shop.tools(), ledger=shop.ledger), BareState)
    assert graph.invoke({"messages": [calling(TAKE_ONE)]}).keys() == {"messages"}


def test_steps_are_merged_by_effect() -> None:
    """The reducer keeps order, lists an effect once, and lets a later outcome win."""
    step = {"scope": "global", "operation": "pay", "key": "1", "outcome": "unknown"}
    other = {**step, "key": "2", "outcome": "succeeded"}
    settled = {**step, "outcome": "succeeded"}
    replayed = {**settled, "replayed": True}
    merged = merge_steps(merge_steps([step], [other]), [settled])
    assert merged == [settled, other]
    assert merge_steps(merged, [replayed]) == merged
    assert merge_steps(None, [step]) == [step]


@pytest.mark.parametrize("policy", [True, "sorry", Exception, False])
def test_errors_that_a_model_can_act_on_are_worded_by_the_ledger(shop: Shop, policy: Any) -> None:
    """Missing key, changed arguments, a final no: never told by ToolNode's template."""

    @tool
    @shop.ledger.transactional(key=("order_id",), refusals=(OutOfStockError,))
    def take(session: Session, /, order_id: str, sku: str) -> str:
        """Take one from stock."""
        if sku == "none":
            raise OutOfStockError(sku)
        session.execute(TAKE, {"order_id": order_id, "sku": sku})
        return "took"

    node = IdempotentToolNode([take], ledger=shop.ledger, handle_tool_errors=policy)

    def told(**arguments: str) -> ToolMessage:
        given = {"messages": [calling(("take", arguments))]}
        message: ToolMessage = node.invoke(given, RUNTIME)["messages"][0]
        return message

    told(order_id="O-1", sku="A")
    blank, changed = told(order_id=" ", sku="A"), told(order_id="O-1", sku="B")
    assert [m.additional_kwargs["idempotency"]["error"] for m in (blank, changed)] == [
        "missing_key",
        "arguments_changed",
    ]
    assert all(
        m.status == "error" and m.text.startswith("Nothing was done.") for m in (blank, changed)
    )
    refused = told(order_id="O-2", sku="none")
    assert refused.text.startswith("take was refused, and that is final: OutOfStockError: none.")
    assert refused.additional_kwargs["idempotency"]["error"] == "refused"
    final = told(order_id="O-2", sku="none")
    assert final.additional_kwargs["idempotency"] == {
        "operation": "take",
        "key": "O-2",
        "scope": "global",
        "outcome": "failed",
        "replayed": True,
        "error": "recorded_failure",
    }
    assert "try again" not in (blank.text + changed.text + final.text).lower()
    assert shop.rows("taken") == [("O-1", "A")]


@pytest.mark.parametrize("policy", [True, "sorry", Exception])
@pytest.mark.parametrize("error", [EffectBusy, LedgerError, ConfigurationError])
async def test_errors_that_are_not_the_models_business_leave_the_node(
    ashop: Shop, policy: Any, error: type[Exception]
) -> None:
    """However handle_tool_errors is set, a busy or broken ledger ends the step, to be resumed."""

    @tool
    def broken(order_id: str) -> str:
        """Meet a ledger that cannot serve."""
        raise error("not now")

    for wrap in (None, wrapper):
        node = IdempotentToolNode(
            [broken], ledger=ashop.ledger, handle_tool_errors=policy, wrap_tool_call=wrap
        )
        state = {"messages": [calling(("broken", {"order_id": "O-1"}))]}
        with pytest.raises(error, match="not now"):
            node.invoke(state, RUNTIME)
        with pytest.raises(error, match="not now"):
            await node.ainvoke(state, RUNTIME)


def test_a_users_wrapper_stands_outside(shop: Shop) -> None:
    """The user's wrapper sees receipts, may change arguments, and what then runs is keyed so."""
    seen: list[Any] = []

    def redirecting(request: ToolCallRequest, execute: Callable[[ToolCallRequest], Any]) -> Any:
        call: Any = {**request.tool_call, "args": {**request.tool_call["args"], "sku": "B"}}
        result = execute(request.override(tool_call=call))
        seen.append(result)
        return execute(request.override(tool_call=call))  # a retry

    node = IdempotentToolNode(shop.tools(), ledger=shop.ledger, wrap_tool_call=redirecting)
    (command,) = node.invoke({"messages": [calling(TAKE_ONE)], "done_steps": []}, RUNTIME)
    assert isinstance(seen[0], ToolMessage)
    assert seen[0].additional_kwargs["idempotency"]["replayed"] is False
    assert [step["key"] for step in command.update["done_steps"]] == ['["O-1","B"]']
    assert shop.rows("taken") == [("O-1", "B")]


async def test_wrappers_of_either_colour_serve_async_runs(ashop: Shop) -> None:
    """As in ToolNode: an async wrapper wins in async runs, and a sync one alone serves them too."""
    used: list[str] = []

    def sync(request: ToolCallRequest, execute: Callable[[ToolCallRequest], Any]) -> Any:
        used.append("sync")
        return execute(request)

    async def awaiting(request: ToolCallRequest, execute: Callable[[ToolCallRequest], Any]) -> Any:
        used.append("async")
        return await execute(request)

    state = {"messages": [calling(("check_stock", {"sku": "A"}))]}
    options: list[dict[str, Any]] = [
        {"wrap_tool_call": sync},
        {"wrap_tool_call": sync, "awrap_tool_call": awaiting},
        {"awrap_tool_call": awaiting},
    ]
    for wrappers in options:
        node = IdempotentToolNode([check_stock], ledger=ashop.ledger, **wrappers)
        await node.ainvoke(state, RUNTIME)
    IdempotentToolNode([check_stock], ledger=ashop.ledger, awrap_tool_call=awaiting).invoke(
        state, RUNTIME
    )
    assert used == ["sync", "async", "async"]


def test_the_ledger_learns_which_call_it_was(shop: Shop) -> None:
    """The row holds thread, message and tool call, found in the state."""
    builder = StateGraph(BareState)
    builder.add_node("tools", IdempotentToolNode(shop.tools(), ledger=shop.ledger))
    builder.add_edge(START, "tools")
    asking = calling(TAKE_ONE)
    asking.id = "m-1"
    config: Any = {"configurable": {"thread_id": "t"}}
    builder.compile().invoke({"messages": [asking]}, config)
    (effect,) = shop.ledger.effects()
    origin = effect.origin
    assert (origin.thread_id, origin.message_id, origin.tool_call_id) == ("t", "m-1", "call_0")


def _sub_agents_tool(shop: Shop, inner_node: Callable[[list[BaseTool]], ToolNode]) -> BaseTool:
    @tool
    @shop.ledger.transactional(key=PER_CALL, operation="inner")
    def inner(session: Session, /, sku: str) -> str:
        """Take one, each call one."""
        session.execute(TAKE, {"order_id": "O-1", "sku": sku})
        return sku

    graph = own_graph(inner_node([inner]), BareState)

    @tool
    def sub_agent(task: str) -> str:
        """Let another agent do it."""
        asking = calling(("inner", {"sku": "A"}), ("inner", {"sku": "B"}), ids=["i0", "i1"])
        asking.id = "inner-message"
        return str(graph.invoke({"messages": [asking]})["messages"][-1].content)

    return sub_agent


@pytest.mark.filterwarnings("ignore:.*PER_CALL.*")
def test_a_sub_agents_calls_are_not_the_outer_call(shop: Shop) -> None:
    """Two calls within a sub-agent are two effects, though one outer call asked for both."""
    made = _sub_agents_tool(shop, lambda tools: IdempotentToolNode(tools, ledger=shop.ledger))
    graph = own_graph(IdempotentToolNode([made], ledger=shop.ledger), BareState)
    asking = AIMessage("", id="outer", tool_calls=calling(("sub_agent", {"task": "x"})).tool_calls)
    config: Any = {"configurable": {"thread_id": "t"}}
    graph.invoke({"messages": [asking]}, config)
    assert sorted(shop.rows("taken")) == [("O-1", "A"), ("O-1", "B")]


@pytest.mark.filterwarnings("ignore:.*PER_CALL.*")
def test_a_sub_agents_plain_tool_node_never_borrows_the_outer_call(shop: Shop) -> None:
    """Where nobody knows the inner call, PER_CALL is refused rather than keyed by the outer one."""
    made = _sub_agents_tool(shop, ToolNode)
    graph = own_graph(IdempotentToolNode([made], ledger=shop.ledger), BareState)
    asking = AIMessage("", id="outer", tool_calls=calling(("sub_agent", {"task": "x"})).tool_calls)
    config: Any = {"configurable": {"thread_id": "t"}}
    told = graph.invoke({"messages": [asking]}, config)["messages"][-1]
    assert told.additional_kwargs["idempotency"]["error"] == "missing_key"
    assert shop.rows("taken") == []


def test_a_ledger_is_asked_for(shop: Shop) -> None:
    """Something else than a ledger is refused when the node is made, with what to write."""
    with pytest.raises(ConfigurationError, match="ledger=Ledger"):
        IdempotentToolNode([plain], ledger="sqlite:///shop.db")  # type: ignore[arg-type]  # the error itself
