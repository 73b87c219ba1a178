"""A conversation in which each tool call has its answer, right after it: what providers insist on.

Calls that were cut off are answered from the ledger; nothing is run.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from langchain_core.messages import AIMessage, BaseMessage, RemoveMessage, ToolMessage
from langchain_core.tools.base import _format_output
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from pydantic import BaseModel, ValidationError

from langgraph_idem.decisions import Execute, Replay, decide
from langgraph_idem.effects import Origin, Receipt, State
from langgraph_idem.errors import IdempotencyError, InvalidCall
from langgraph_idem.guarded import guarded_in
from langgraph_idem.ports import CallContext
from langgraph_idem.protocols import recorded_value, refusal_of
from langgraph_idem.react.state import entry
from langgraph_idem.tools.node import RECEIPT
from langgraph_idem.tools.results import message_in
from langgraph_idem.tools.steps import merge_steps

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from langchain_core.runnables import RunnableConfig
    from langchain_core.tools import BaseTool

    from langgraph_idem.decisions import Call, Decision, Seen
    from langgraph_idem.effects import EffectRecord
    from langgraph_idem.guarded import Guarded

Place = tuple[int, int]
"""Which call: number of its message, and of the call within it. Ids are no names: some providers
number their calls anew each turn."""

_PAIR: Final = 2


@dataclass(frozen=True)
class OpenCall:
    """A tool call that has no ToolMessage.

    Attributes:
        place: Where it stands in the conversation.
        asked: The call.
        tool: Its tool, None if none of that name is known.
        guarded: How the tool is guarded, None if it is not.
        call: What the ledger is asked, None if there is nothing to ask it.
        is_valid: False if the arguments name no effect, so that none can have been claimed.

    """

    place: Place
    asked: Mapping[str, Any]
    tool: BaseTool | None
    guarded: Guarded | None = None
    call: Call | None = None
    is_valid: bool = True

    def look(self) -> Seen | None:
        """Ask the ledger, from a thread."""
        return self.guarded.look(self.call) if self.guarded and self.call else None

    async def alook(self) -> Seen | None:
        """Ask the ledger, from an event loop; in the colour that the tool's own ledger serves."""
        if self.guarded is None or self.call is None:
            return None
        if self.guarded.operation.shape.is_async:
            return await self.guarded.alook(self.call)
        return await asyncio.to_thread(self.guarded.look, self.call)


def find_open(
    messages: Sequence[BaseMessage], tools: Mapping[str, BaseTool], config: RunnableConfig
) -> list[OpenCall]:
    """Find the tool calls that have no ToolMessage, in order."""
    paired = _paired(messages)
    return [
        _open_call((at, number), message, tools.get(asked["name"]), config)
        for at, message in enumerate(messages)
        if isinstance(message, AIMessage)
        for number, asked in enumerate(message.tool_calls)
        if (at, number) not in paired
    ]


def answers_to(calls: Sequence[OpenCall]) -> dict[Place, ToolMessage]:
    """Word what became of calls, as the ledger knows it."""
    return {one.place: _answer(one, one.look()) for one in calls}


async def aanswers_to(calls: Sequence[OpenCall]) -> dict[Place, ToolMessage]:
    """Word what became of calls, as the ledger knows it."""
    return {one.place: _answer(one, await one.alook()) for one in calls}


def completed(
    messages: Sequence[BaseMessage], answers: Mapping[Place, ToolMessage]
) -> list[BaseMessage]:
    """Write the conversation anew, each answer right after the message that asks for it."""
    known = {place: messages[at] for place, at in _paired(messages).items()} | dict(answers)
    moved = {id(message) for message in known.values()}
    ordered: list[BaseMessage] = []
    for at, message in enumerate(messages):
        if id(message) in moved:
            continue
        ordered.append(message)
        calls = message.tool_calls if isinstance(message, AIMessage) else ()
        ordered.extend(known[at, number] for number in range(len(calls)) if (at, number) in known)
    return ordered


def anew(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Return the update by which ``add_messages`` takes these messages for the whole."""
    return [RemoveMessage(id=REMOVE_ALL_MESSAGES), *messages]


def steps_in(answers: Mapping[Place, ToolMessage]) -> list[dict[str, Any]]:
    """Return the effects that took hold, from the receipts on answers."""
    receipts = [answer.additional_kwargs.get(RECEIPT, {}) for answer in answers.values()]
    taken = [receipt for receipt in receipts if receipt.get("outcome") == State.SUCCEEDED]
    return merge_steps([], taken)


def answered_entry(answers: Mapping[Place, ToolMessage]) -> dict[str, Any]:
    """Write the trace's entry about calls that were answered from the ledger."""
    return entry(
        "cut_off_calls_answered",
        tool_call_ids=[answer.tool_call_id for answer in answers.values()],
    )


def _paired(messages: Sequence[BaseMessage]) -> dict[Place, int]:
    """Match each call with the number of the message that answers it.

    An answer belongs to the latest call of its id: providers may use ids again in later turns.
    """
    waiting: dict[str | None, list[Place]] = {}
    paired: dict[Place, int] = {}
    for at, message in enumerate(messages):
        if isinstance(message, AIMessage):
            here: dict[str | None, list[Place]] = {}
            for number, call in enumerate(message.tool_calls):
                here.setdefault(call["id"], []).append((at, number))
            waiting |= here
        elif isinstance(message, ToolMessage) and waiting.get(message.tool_call_id):
            paired[waiting[message.tool_call_id].pop(0)] = at
    return paired


def _open_call(
    place: Place, asking: AIMessage, tool: BaseTool | None, config: RunnableConfig
) -> OpenCall:
    asked, guarded = asking.tool_calls[place[1]], guarded_in(tool)
    if guarded is None or tool is None:
        return OpenCall(place, asked, tool)
    configurable = config.get("configurable") or {}
    thread_id = configurable.get("thread_id")
    origin = Origin(None if thread_id is None else str(thread_id), asking.id, asked["id"])
    context = CallContext(origin, durability="sync", configurable=dict(configurable))
    try:
        bound = guarded.operation.shape.signature.bind_partial(**_validated(tool, asked["args"]))
    except (ValidationError, TypeError):
        return OpenCall(place, asked, tool, guarded, is_valid=False)
    try:
        call = guarded.operation.call(bound, context, keep_arguments=guarded.keep_arguments)
    except InvalidCall:
        return OpenCall(place, asked, tool, guarded, is_valid=False)
    except Exception:  # noqa: BLE001 - a key= or scope= of the user's that needs the run itself
        return OpenCall(place, asked, tool, guarded)
    return OpenCall(place, asked, tool, guarded, call)


def _validated(tool: BaseTool, args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments as the tool would have got them."""
    schema = tool.tool_call_schema
    if not (isinstance(schema, type) and issubclass(schema, BaseModel)):
        return dict(args)
    made = schema.model_validate(args)
    return {name: getattr(made, name) for name in type(made).model_fields}


def _answer(one: OpenCall, seen: Seen | None) -> ToolMessage:
    decision = decide(seen, one.call) if one.call is not None else Execute()
    if isinstance(decision, Replay):
        return _recorded(one, decision.record)
    told = _receipt(one, seen.record) if seen is not None else None
    return ToolMessage(
        content=_words(one, seen, decision),
        name=one.asked["name"],
        tool_call_id=one.asked["id"],
        status="error",
        additional_kwargs={RECEIPT: told} if told else {},
    )


def _words(one: OpenCall, seen: Seen | None, decision: Decision) -> str:
    name = one.asked["name"]
    if one.call is None and one.is_valid:
        return (
            f"{name} was interrupted. It is not known whether it took effect: do not repeat it "
            "before that is found out."
        )
    if seen is None or one.call is None or seen.record.state is State.RELEASED:
        return f"{name} was interrupted before it took effect. Nothing was done."
    refusal: IdempotencyError = refusal_of(decision, one.call)
    return refusal.for_model or (
        f"{name} is in progress in another attempt; its outcome is not known yet. Do not start "
        "it under another name or with other arguments."
    )


def _recorded(one: OpenCall, record: EffectRecord) -> ToolMessage:
    assert one.guarded is not None  # noqa: S101 - it had a call, so it is guarded
    value = recorded_value(record, one.guarded.rules.codec)
    if record.result is None:
        value = f"{record.operation} for {record.key} took hold; its result was not kept."
    message = message_in(value) or _formatted(one, value)
    told = {**message.additional_kwargs, RECEIPT: _receipt(one, record)}
    changes = {"tool_call_id": one.asked["id"], "name": one.asked["name"]}
    return message.model_copy(update={**changes, "additional_kwargs": told})


def _formatted(one: OpenCall, value: Any) -> ToolMessage:
    """Make the message that LangChain would have made of the tool's result."""
    pair = getattr(one.tool, "response_format", "content") == "content_and_artifact"
    is_pair = pair and isinstance(value, (tuple, list)) and len(value) == _PAIR
    content, artifact = value if is_pair else (value, None)
    made = _format_output(content, artifact, one.asked["id"], one.asked["name"], "success")
    if isinstance(made, ToolMessage):
        return made
    return ToolMessage(str(made), tool_call_id=one.asked["id"], name=one.asked["name"])


def _receipt(one: OpenCall, record: EffectRecord) -> dict[str, Any]:
    receipt = Receipt(
        operation=record.operation,
        key=record.key,
        scope=record.scope,
        outcome=record.state,
        replayed=True,
        relation=record.origin.relation_of(one.call.origin) if one.call else None,
    )
    return receipt.as_dict()
