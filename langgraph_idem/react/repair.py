"""Answers for tool calls that were cut off: what the ledger knows, in the message's place.

Providers refuse a history in which a tool call has no ToolMessage right after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from langchain_core.messages import AIMessage, BaseMessage, RemoveMessage, ToolMessage
from langchain_core.tools.base import _format_output
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.prebuilt import ToolNode
from pydantic import BaseModel, ValidationError

from langgraph_idem.decisions import Execute, Replay, decide
from langgraph_idem.effects import Origin, State
from langgraph_idem.errors import IdempotencyError
from langgraph_idem.guarded import guarded_in
from langgraph_idem.ports import CallContext
from langgraph_idem.protocols import recorded_value, refusal_of
from langgraph_idem.react.recovery import addressed
from langgraph_idem.tools.node import RECEIPT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from langchain_core.runnables import RunnableConfig
    from langchain_core.tools import BaseTool
    from langgraph.graph.state import CompiledStateGraph
    from langgraph.types import StateSnapshot

    from langgraph_idem.decisions import Call, Decision, Seen
    from langgraph_idem.effects import EffectRecord
    from langgraph_idem.guarded import Guarded

    Graph = CompiledStateGraph[Any, Any, Any, Any]

MESSAGES: Final = "messages"


@dataclass(frozen=True)
class OpenCall:
    """A tool call that has no ToolMessage.

    Attributes:
        asking: The message that asks for it.
        asked: The call.
        tool: Its tool, None if the graph has none of that name.
        guarded: How the tool is guarded, None if it is not.
        call: What the ledger is asked, None if it cannot be.

    """

    asking: AIMessage
    asked: Mapping[str, Any]
    tool: BaseTool | None
    guarded: Guarded | None
    call: Call | None


def repair(
    graph: Graph,
    thread_id: str | None = None,
    *,
    config: RunnableConfig | None = None,
    messages_key: str = MESSAGES,
) -> list[ToolMessage]:
    """Give each tool call without a ToolMessage its answer, as the ledger knows it.

    For threads whose run was cancelled or given up, and which go on with a new message: the
    recorded result, or that it is in progress, unknown, or was never started. Nothing is run.
    To take up the run itself, use ``recover``.

    Args:
        graph: Any compiled graph with a checkpointer and a tool node.
        thread_id: The thread; may be in ``config`` instead.
        config: The run's config.
        messages_key: Name of the state field that holds the messages.

    Returns:
        The messages that were added, in order; empty if nothing was missing.

    Raises:
        ConfigurationError: No checkpointer, or no thread.

    """
    config = addressed(graph, thread_id, config)
    snapshot = graph.get_state(config)
    found = [
        (one, one.guarded.look(one.call) if one.guarded and one.call else None)
        for one in open_calls_of(graph, snapshot, messages_key)
    ]
    answers = [_answer(one, record) for one, record in found]
    if answers:
        node = _tool_node_of(graph)
        graph.update_state(config, _update(snapshot, answers, messages_key), as_node=node)
    return answers


async def arepair(
    graph: Graph,
    thread_id: str | None = None,
    *,
    config: RunnableConfig | None = None,
    messages_key: str = MESSAGES,
) -> list[ToolMessage]:
    """Give each tool call without a ToolMessage its answer, as :func:`repair` does."""
    config = addressed(graph, thread_id, config)
    snapshot = await graph.aget_state(config)
    found = [
        (one, await one.guarded.alook(one.call) if one.guarded and one.call else None)
        for one in open_calls_of(graph, snapshot, messages_key)
    ]
    answers = [_answer(one, record) for one, record in found]
    if answers:
        node = _tool_node_of(graph)
        await graph.aupdate_state(config, _update(snapshot, answers, messages_key), as_node=node)
    return answers


def open_calls_of(graph: Graph, snapshot: StateSnapshot, messages_key: str) -> list[OpenCall]:
    """Find the tool calls of a thread that have no ToolMessage."""
    values = snapshot.values if isinstance(snapshot.values, dict) else {}
    messages = list(values.get(messages_key) or ())
    tools = _tools_of(graph)
    return [
        _open_call(message, asked, tools.get(asked["name"]), snapshot.config)
        for at, message in enumerate(messages)
        if isinstance(message, AIMessage)
        for asked in message.tool_calls
        if asked["id"] not in _answered_after(messages, at)
    ]


def _answered_after(messages: Sequence[BaseMessage], at: int) -> set[str]:
    """Return the ids answered before the next AIMessage: providers number calls anew each turn."""
    answered = set()
    for message in messages[at + 1 :]:
        if isinstance(message, AIMessage):
            break
        if isinstance(message, ToolMessage):
            answered.add(message.tool_call_id)
    return answered


def _open_call(
    asking: AIMessage, asked: Mapping[str, Any], tool: BaseTool | None, config: RunnableConfig
) -> OpenCall:
    guarded = guarded_in(tool)
    if guarded is None or tool is None:
        return OpenCall(asking, asked, tool, guarded, None)
    configurable = config.get("configurable") or {}
    origin = Origin(configurable.get("thread_id"), asking.id, asked["id"])
    context = CallContext(origin=origin, configurable=dict(configurable))
    try:
        bound = guarded.operation.shape.signature.bind_partial(**_validated(tool, asked["args"]))
        call = guarded.operation.call(bound, context, keep_arguments=False)
    except (ValidationError, TypeError, LookupError, AttributeError, IdempotencyError):
        call = None  # its arguments name no effect, so none can have been claimed
    return OpenCall(asking, asked, tool, guarded, call)


def _validated(tool: BaseTool, args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments as the tool would have got them."""
    schema = tool.tool_call_schema
    if not (isinstance(schema, type) and issubclass(schema, BaseModel)):
        return dict(args)
    made = schema.model_validate(args)
    return {name: getattr(made, name) for name in type(made).model_fields}


def _answer(one: OpenCall, seen: Seen | None) -> ToolMessage:
    """Word what became of a call."""
    decision = decide(seen, one.call) if one.call is not None else Execute()
    if isinstance(decision, Replay):
        return _recorded(one, decision.record)
    told = _receipt(seen.record) if seen is not None else {}
    return ToolMessage(
        content=_words(one, seen, decision),
        name=one.asked["name"],
        tool_call_id=one.asked["id"],
        status="error",
        additional_kwargs={RECEIPT: told} if told else {},
    )


def _words(one: OpenCall, seen: Seen | None, decision: Decision) -> str:
    name = one.asked["name"]
    if one.guarded is None:
        return f"{name} was interrupted. It is not known whether it ran."
    if seen is None or one.call is None or seen.record.state is State.RELEASED:
        return f"{name} was interrupted before it took effect. Nothing was done."
    return refusal_of(decision, one.call).for_model or (
        f"{name} is in progress in another attempt; its outcome is not known yet. Do not start "
        "it under another name or with other arguments."
    )


def _recorded(one: OpenCall, record: EffectRecord) -> ToolMessage:
    assert one.guarded is not None  # noqa: S101 - the caller has looked
    value = recorded_value(record, one.guarded.rules.codec)
    pair = getattr(one.tool, "response_format", "content") == "content_and_artifact"
    content, artifact = value if pair and isinstance(value, tuple) else (value, None)
    message = _format_output(content, artifact, one.asked["id"], one.asked["name"], "success")
    if not isinstance(message, ToolMessage):
        message = ToolMessage(str(message), tool_call_id=one.asked["id"], name=one.asked["name"])
    told = {**message.additional_kwargs, RECEIPT: _receipt(record)}
    return message.model_copy(update={"additional_kwargs": told, "tool_call_id": one.asked["id"]})


def _receipt(record: EffectRecord) -> dict[str, Any]:
    return {
        "operation": record.operation,
        "key": record.key,
        "scope": record.scope,
        "outcome": str(record.state),
        "replayed": True,
    }


def _update(
    snapshot: StateSnapshot, answers: Sequence[ToolMessage], messages_key: str
) -> dict[str, Any]:
    """Write the history anew, each answer right after the message that asked."""
    by_call: dict[str, list[ToolMessage]] = {}
    for answer in answers:
        by_call.setdefault(answer.tool_call_id, []).append(answer)
    ordered: list[BaseMessage] = []
    messages = list(snapshot.values[messages_key])
    for at, message in enumerate(messages):
        ordered.append(message)
        if isinstance(message, AIMessage):
            answered = _answered_after(messages, at)
            missing = [call["id"] for call in message.tool_calls if call["id"] not in answered]
            ordered.extend(by_call[str(call_id)].pop(0) for call_id in missing)
    return {messages_key: [RemoveMessage(id=REMOVE_ALL_MESSAGES), *ordered]}


def _tool_nodes(graph: Graph) -> dict[str, ToolNode]:
    return {
        name: node.bound for name, node in graph.nodes.items() if isinstance(node.bound, ToolNode)
    }


def _tool_node_of(graph: Graph) -> str | None:
    """Name the node in whose place the answers are given, so that the model comes next."""
    return next(iter(_tool_nodes(graph)), None)


def _tools_of(graph: Graph) -> dict[str, BaseTool]:
    return {
        name: tool
        for node in _tool_nodes(graph).values()
        for name, tool in node.tools_by_name.items()
    }
