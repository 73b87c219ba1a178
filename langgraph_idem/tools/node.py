"""The tool node: LangGraph's own, plus scope, receipts, ``done_steps`` and words for the model."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from langchain_core.messages import ToolMessage
from langgraph.prebuilt import ToolNode
from langgraph.prebuilt.tool_node import (
    ToolCallRequest,
    _default_handle_tool_errors,
)
from langgraph.types import Command

from langgraph_idem.effects import State
from langgraph_idem.errors import ConfigurationError, IdempotencyError, OutcomeUnknown
from langgraph_idem.ledger import Ledger
from langgraph_idem.protocols import words_of
from langgraph_idem.tools.advice import acheck_file, check_file
from langgraph_idem.tools.context import RunningCall, call_in, running
from langgraph_idem.tools.errors import HandleToolErrors, error_policy
from langgraph_idem.tools.steps import DONE_STEPS, steps_of

if TYPE_CHECKING:
    from langchain_core.tools import BaseTool
    from langgraph.prebuilt.tool_node import AsyncToolCallWrapper, ToolCallWrapper


Execute = Callable[[ToolCallRequest], Any]
AExecute = Callable[[ToolCallRequest], Awaitable[Any]]

REFUSED = "refused"
"""The receipt's ``error`` where the tool said no for good, for the first time."""

RECEIPT = "idempotency"
"""Where a receipt is found in ``ToolMessage.additional_kwargs``."""


class IdempotentToolNode(ToolNode):
    """A ToolNode that knows what the ledger knows.

    It tells guarded tools which call of which thread they serve, puts their receipts into
    ``ToolMessage.additional_kwargs["idempotency"]``, adds the effects that took hold to
    ``done_steps`` where the state has such a field, and words the ledger's errors for the model.
    Tools that are not guarded pass through it untouched.

    Args:
        tools: Tools or functions, guarded or not.
        ledger: The ledger that the guarded tools were decorated with.
        name: Name of the node.
        tags: Tags of the node, as in ToolNode.
        handle_tool_errors: As in ToolNode, for the tools' own exceptions. The ledger's errors are
            no such: those that a model can act on are worded by the ledger, and the others
            (``EffectBusy``, ``LedgerError``, ``OutcomeUnknown``...) always leave the node.
        messages_key: Name of the state field that holds the messages.
        wrap_tool_call: As in ToolNode. It stands outside of what this class adds.
        awrap_tool_call: Likewise, for async runs.

    Raises:
        ConfigurationError: ``ledger`` is no Ledger.

    """

    def __init__(
        self,
        tools: Sequence[BaseTool | Callable[..., Any]],
        *,
        ledger: Ledger,
        name: str = "tools",
        tags: list[str] | None = None,
        handle_tool_errors: HandleToolErrors = _default_handle_tool_errors,
        messages_key: str = "messages",
        wrap_tool_call: ToolCallWrapper | None = None,
        awrap_tool_call: AsyncToolCallWrapper | None = None,
    ) -> None:
        if not isinstance(ledger, Ledger):
            raise ConfigurationError(
                f"ledger={ledger!r} is no ledger. Write ledger=Ledger('sqlite:///shop.db')."
            )
        self.ledger = ledger
        self._users_wrap = wrap_tool_call
        self._users_awrap = awrap_tool_call
        is_wrapped = wrap_tool_call is not None or awrap_tool_call is not None
        # A sync wrapper alone serves async runs too in ToolNode: it must stay the only one then.
        only_sync = wrap_tool_call is not None and awrap_tool_call is None
        super().__init__(
            tools,
            name=name,
            tags=tags,
            handle_tool_errors=error_policy(
                handle_tool_errors, executing=lambda: call_in(self), wrapped=is_wrapped
            ),
            messages_key=messages_key,
            wrap_tool_call=self._wrap,
            awrap_tool_call=None if only_sync else self._awrap,
        )

    def _wrap(self, request: ToolCallRequest, execute: Execute) -> Any:
        call = RunningCall(self, request, self._messages_key)

        def guarded(inner: ToolCallRequest) -> Any:
            return executed(self.ledger, call, inner, execute)

        try:
            users = self._users_wrap
            result = users(request, guarded) if users is not None else guarded(request)
        except Exception as error:  # noqa: BLE001 - sorted there; what is not taken is raised
            return self._failed(call, error)
        return self._delivered(call, result)

    async def _awrap(self, request: ToolCallRequest, execute: AExecute) -> Any:
        call = RunningCall(self, request, self._messages_key)

        async def guarded(inner: ToolCallRequest) -> Any:
            return await aexecuted(self.ledger, call, inner, execute)

        try:
            users = self._users_awrap
            result = await (users(request, guarded) if users is not None else guarded(request))
        except Exception as error:  # noqa: BLE001 - sorted there; what is not taken is raised
            return self._failed(call, error)
        return self._delivered(call, result)

    def _delivered(self, call: RunningCall, result: Any) -> Any:
        """Add to the state what a call leaves behind, beside its result."""
        update = self._update(call, result)
        return with_update(result, update, self._messages_key) if update else result

    def _failed(self, call: RunningCall, error: Exception) -> Any:  # noqa: ARG002 - for subclasses
        """Take an exception that nobody else took; here: let it go on."""
        raise error

    def _update(self, call: RunningCall, result: Any) -> dict[str, Any]:  # noqa: ARG002 - for subclasses
        """Return what goes into the state beside the messages."""
        steps = steps_of(call.receipts)
        return {DONE_STEPS: steps} if steps and _has_field(call.request.state, DONE_STEPS) else {}


def executed(ledger: Ledger, call: RunningCall, request: ToolCallRequest, execute: Execute) -> Any:
    """Run a tool so that guarded functions know the call; add receipts, and words for the model."""
    call.request = request
    check_file(ledger, call.checkpointer)
    try:
        with running(call):
            result = execute(request)
    except Exception as error:  # noqa: BLE001 - what is not for the model is raised
        result = _worded(call, error)
    return _with_receipts(call, result)


async def aexecuted(
    ledger: Ledger, call: RunningCall, request: ToolCallRequest, execute: AExecute
) -> Any:
    """Run an async tool, as :func:`executed` does."""
    call.request = request
    await acheck_file(ledger, call.checkpointer)
    try:
        with running(call):
            result = await execute(request)
    except Exception as error:  # noqa: BLE001 - what is not for the model is raised
        result = _worded(call, error)
    return _with_receipts(call, result)


def with_update(result: Any, update: dict[str, Any], messages_key: str) -> Any:
    """Return a tool's result with further state updates."""
    if isinstance(result, ToolMessage):
        return Command(update={messages_key: [result], **update})
    if isinstance(result, Command) and result.graph is None and isinstance(result.update, dict):
        return replace(result, update={**result.update, **update})
    results = result if isinstance(result, list) else [result]
    return [*results, Command(update=update)]


def with_message(result: Any, call_id: str | None, changes: dict[str, Any]) -> Any:
    """Return a tool's result in which the message that answers the call is changed."""
    if isinstance(result, ToolMessage):
        return result.model_copy(update=changes) if result.tool_call_id == call_id else result
    if isinstance(result, list):
        return [with_message(item, call_id, changes) for item in result]
    if isinstance(result, Command) and isinstance(result.update, (dict, list)):
        return replace(result, update=_with_message_in(result.update, call_id, changes))
    return result


def _with_message_in(update: Any, call_id: str | None, changes: dict[str, Any]) -> Any:
    if isinstance(update, list):
        return with_message(update, call_id, changes)
    return {
        name: with_message(value, call_id, changes) if isinstance(value, list) else value
        for name, value in update.items()
    }


def answer_in(result: Any, call_id: str | None) -> ToolMessage | None:
    """Find the message that answers the call in a tool's result."""
    if isinstance(result, ToolMessage):
        return result if result.tool_call_id == call_id else None
    if isinstance(result, Command):
        result = result.update
    if isinstance(result, dict):
        result = [item for value in result.values() if isinstance(value, list) for item in value]
    if not isinstance(result, list):
        return None
    found = (answer_in(item, call_id) for item in result if not isinstance(item, dict))
    return next((message for message in found if message is not None), None)


def _with_receipts(call: RunningCall, result: Any) -> Any:
    """Put the receipts into the message that answers the call."""
    if not call.receipts:
        return result
    call_id = call.request.tool_call["id"]
    message = answer_in(result, call_id)
    if message is None or RECEIPT in message.additional_kwargs:
        return result
    return with_message(result, call_id, {"additional_kwargs": _marked(message, _told(call))})


def _marked(message: ToolMessage, told: dict[str, Any]) -> dict[str, Any]:
    return {**message.additional_kwargs, RECEIPT: told}


def _told(call: RunningCall) -> dict[str, Any]:
    """Write the receipts down: the tool's own is the last one that was completed."""
    *others, own = [receipt.as_dict() for receipt in call.receipts]
    return {**own, "also": others} if others else own


def _worded(call: RunningCall, error: Exception) -> ToolMessage:
    """Tell the model what it can act on; raise what is not its business."""
    if call.refused(error):
        words = f"{_name(call)} was refused, and that is final: {words_of(error)}."
        receipt = {"operation": _operation(call), "outcome": str(State.FAILED), "replayed": False}
        return _answer(call, f"{words} It did not take effect.", receipt, REFUSED)
    stops = isinstance(error, OutcomeUnknown) and not error.tell_model
    if not isinstance(error, IdempotencyError) or error.for_model is None or stops:
        raise error
    receipt = _told(call) if call.receipts else {"operation": getattr(error, "operation", "")}
    return _answer(call, error.for_model, receipt, error.code)


def _answer(call: RunningCall, words: str, receipt: dict[str, Any], code: str) -> ToolMessage:
    return ToolMessage(
        content=words,
        name=_name(call),
        tool_call_id=call.request.tool_call["id"],
        status="error",
        additional_kwargs={RECEIPT: {**receipt, "error": code}},
    )


def _name(call: RunningCall) -> str:
    return call.request.tool_call["name"]


def _operation(call: RunningCall) -> str:
    return call.guarded.operation.name if call.guarded is not None else _name(call)


def _has_field(state: Any, name: str) -> bool:
    return name in state if isinstance(state, dict) else hasattr(state, name)
