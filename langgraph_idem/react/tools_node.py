"""The node that runs one tool call and writes down what became of it."""

from __future__ import annotations

import logging
from typing import Any

from langchain_core.messages import ToolMessage

from langgraph_idem.protocols import words_of
from langgraph_idem.react.model_node import failure_id
from langgraph_idem.react.state import WAITING_MODEL, WAITING_TOOL, RunStatus, entry
from langgraph_idem.tools.context import RunningCall, is_tools_own, message_of, messages_in
from langgraph_idem.tools.node import (
    RECEIPT,
    IdempotentToolNode,
    answer_in,
    with_message,
    with_update,
)

_log = logging.getLogger("langgraph_idem")


class ReActToolNode(IdempotentToolNode):
    """Keeps ``trace`` and ``next_step``, and makes a tool's failure a state of the run."""

    def _delivered(self, call: RunningCall, result: Any) -> Any:
        return super()._delivered(call, self._in_place_of_failure(call, result))

    def _failed(self, call: RunningCall, error: Exception) -> Any:
        if not is_tools_own(error):
            raise error
        name = call.request.tool_call["name"]
        _log.error("The tool %s failed; the run is FAILED.", name, exc_info=error)
        failure = entry("tool_failed", error=words_of(error), **_named(call))
        update = {
            "status": RunStatus.FAILED.value,
            "next_step": WAITING_TOOL,
            "trace": [failure],
        }
        return with_update(self._failure(call, error), update, self._messages_key)

    def _update(self, call: RunningCall, result: Any) -> dict[str, Any]:
        return {
            **super()._update(call, result),
            "next_step": WAITING_MODEL,
            "trace": [entry("tool_finished", **_named(call), **_outcome(call, result))],
        }

    def _failure(self, call: RunningCall, error: Exception) -> ToolMessage:
        name = call.request.tool_call["name"]
        return ToolMessage(
            content=f"{name} failed: {words_of(error)}.{_about_effect(call)}",
            name=name,
            tool_call_id=call.request.tool_call["id"],
            status="error",
            id=self._failure_id(call),
        )

    def _in_place_of_failure(self, call: RunningCall, result: Any) -> Any:
        """Let the result of a call that failed before take the place of its failure."""
        known = self._failure_id(call)
        before = messages_in(call.request.state, self._messages_key)
        if not any(getattr(message, "id", None) == known for message in before):
            return result
        return with_message(result, call.request.tool_call["id"], {"id": known})

    def _failure_id(self, call: RunningCall) -> str:
        asked = call.request.tool_call
        return failure_id(message_of(asked, call.request.state, self._messages_key), asked["id"])


def _about_effect(call: RunningCall) -> str:
    """Say what is known of the effect: only of a guarded tool is anything known.

    A guarded tool's own exception means that nothing took hold (else the outcome would be
    unknown), unless it came after the effect, while the result was being handed over.
    """
    if call.took_hold:
        return " Its effect took hold all the same; it must not be repeated."
    return " It did not take effect." if call.guarded is not None else ""


def _named(call: RunningCall) -> dict[str, Any]:
    asked = call.request.tool_call
    return {"tool": asked["name"], "tool_call_id": asked["id"]}


def _outcome(call: RunningCall, result: Any) -> dict[str, Any]:
    message = answer_in(result, call.request.tool_call["id"])
    told: dict[str, Any] = {"status": message.status} if message is not None else {}
    if message is not None and (receipt := message.additional_kwargs.get(RECEIPT)):
        told["effect"] = receipt
    return told
