"""Results that are LangChain's own: messages and commands, as JSON text."""

from __future__ import annotations

import json
import typing
from typing import Any, Final

from langchain_core.messages import (
    BaseMessage,
    ToolMessage,
    message_to_dict,
    messages_from_dict,
)
from langgraph.types import Command, Send

from langgraph_idem.codec import CODEC_VERSION
from langgraph_idem.errors import LedgerError, ResultNotStorable
from langgraph_idem.tools import context

_MESSAGE: Final = "__message__"
_COMMAND: Final = "__command__"
_SEND: Final = "__send__"
_ANSWER: Final = "__answers_this_call__"


def is_message_result(annotation: Any) -> bool:
    """Tell whether a return annotation names messages or commands, alone, in a list or a union."""
    origin = typing.get_origin(annotation)
    # Not the type alone: on Python 3.10 dict[str, str] passes for a class, too.
    if origin is None and isinstance(annotation, type):
        return issubclass(annotation, (BaseMessage, Command))
    if isinstance(origin, type) and issubclass(origin, Command):
        return True
    return any(is_message_result(part) for part in typing.get_args(annotation))


def reports_error(result: Any) -> bool:
    """Tell whether a tool's result says that it failed: by a message's status, however wrapped."""
    if isinstance(result, ToolMessage):
        return result.status == "error"
    if isinstance(result, Command):
        return reports_error(result.update)
    if isinstance(result, dict):
        return any(reports_error(value) for value in result.values() if isinstance(value, list))
    return isinstance(result, list) and any(map(reports_error, result))


def message_in(result: Any) -> ToolMessage | None:
    """Find the first ToolMessage in a tool's result, however wrapped."""
    if isinstance(result, ToolMessage):
        return result
    if isinstance(result, Command):
        return message_in(result.update)
    parts: Any = result.values() if isinstance(result, dict) else result
    if not isinstance(result, (dict, list)):
        return None
    return next((found for part in parts if (found := message_in(part)) is not None), None)


class MessageCodec:
    """Keeps messages and commands; a replay answers the call that is running then.

    A ToolMessage that answers the tool call is kept without the call's id and without its own:
    the model may have planned anew, and the replay belongs to the new call.
    """

    def __init__(self, operation: str) -> None:
        self._operation = operation

    def encode(self, value: Any) -> str:
        """Return messages, commands and the plain values around them as JSON text."""
        try:
            return json.dumps(_plain(value, context.current().origin.tool_call_id), allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise ResultNotStorable(
                f"The result of {self._operation} ({type(value).__name__}) cannot be kept: "
                f"{error}. A replay must return the very same value: let messages and commands "
                "hold plain values only.",
                operation=self._operation,
            ) from error

    def decode(self, text: str, version: int) -> Any:
        """Return the recorded result, as an answer to the call that is running."""
        if version > CODEC_VERSION:
            raise LedgerError(
                f"The result of {self._operation} was written with encoding {version}; this "
                f"langgraph-idem reads up to {CODEC_VERSION}. Upgrade it on this machine."
            )
        return _restored(json.loads(text), context.current().origin.tool_call_id)


def _plain(value: Any, call_id: str | None) -> Any:
    if isinstance(value, BaseMessage):
        return _plain_message(value, call_id)
    if isinstance(value, Command):
        fields = ("graph", "update", "resume", "goto")
        return {_COMMAND: {name: _plain(getattr(value, name), call_id) for name in fields}}
    if isinstance(value, Send):
        return {_SEND: [value.node, _plain(value.arg, call_id)]}
    if isinstance(value, dict):
        return {_text(key): _plain(item, call_id) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, call_id) for item in value]
    if value is None or isinstance(value, (str, int, float)):
        return value
    raise TypeError(f"it holds a {type(value).__name__}")


def _text(key: Any) -> str:
    if not isinstance(key, str):
        raise TypeError(f"it holds the key {key!r}, which is no text")
    return key


def _plain_message(message: BaseMessage, call_id: str | None) -> dict[str, Any]:
    answers = isinstance(message, ToolMessage) and message.tool_call_id == call_id
    kept = message.model_copy(update={"id": None}) if answers else message
    told = json.loads(json.dumps(message_to_dict(kept), allow_nan=False))
    if messages_from_dict([told]) != [kept]:
        raise TypeError(f"reading the {type(message).__name__} back gives another one")
    return {_MESSAGE: told, _ANSWER: answers}


def _restored(value: Any, call_id: str | None) -> Any:
    if isinstance(value, list):
        return [_restored(item, call_id) for item in value]
    if not isinstance(value, dict):
        return value
    if _MESSAGE in value:
        return _restored_message(value, call_id)
    if _COMMAND in value:
        return Command(**_restored(value[_COMMAND], call_id))
    if _SEND in value:
        node, argument = value[_SEND]
        return Send(node, _restored(argument, call_id))
    return {key: _restored(item, call_id) for key, item in value.items()}


def _restored_message(value: dict[str, Any], call_id: str | None) -> Any:
    (message,) = messages_from_dict([value[_MESSAGE]])
    if value[_ANSWER] and call_id is not None:
        return message.model_copy(update={"tool_call_id": call_id})
    return message
