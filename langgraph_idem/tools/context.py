"""Which tool call is running: from the tool node that runs it, else from LangGraph's config."""

from __future__ import annotations

import contextlib
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from langchain_core.messages import AIMessage
from langchain_core.runnables.config import var_child_runnable_config
from langgraph._internal._constants import (
    CONFIG_KEY_CHECKPOINTER,
    CONFIG_KEY_DURABILITY,
    CONFIG_KEY_TASK_ID,
)
from langgraph.errors import GraphBubbleUp, is_invalid_resume

from langgraph_idem.effects import Origin, Receipt, State, Verdict
from langgraph_idem.errors import IdempotencyError
from langgraph_idem.guarded import Guarded, guarded_in
from langgraph_idem.ports import CallContext
from langgraph_idem.remote import RemoteRules

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from langchain_core.messages import ToolCall
    from langgraph.prebuilt.tool_node import ToolCallRequest

_LANGGRAPHS_OWN: Final = "__pregel"


@dataclass(eq=False)
class RunningCall:
    """One tool call while a tool node runs it.

    Attributes:
        node: The tool node that runs it.
        request: What the node was asked to run.
        messages_key: Name of the state field that holds the messages.
        receipts: Receipts of the effects that the tool brought about or replayed.

    """

    node: object
    request: ToolCallRequest
    messages_key: str
    receipts: list[Receipt] = field(default_factory=list)

    @cached_property
    def context(self) -> CallContext:
        """What the ledger wants to know; made when a guarded function asks for it."""
        configurable = configurable_of(self.request.runtime.config)
        call = self.request.tool_call
        origin = Origin(
            thread_id=_thread_id(configurable),
            message_id=_id_of(message_of(call, self.request.state, self.messages_key)),
            tool_call_id=call["id"],
        )
        return _context(configurable, origin, self.receipts)

    @property
    def guarded(self) -> Guarded | None:
        """How the tool is guarded; None if it is not."""
        return guarded_in(self.request.tool)

    @property
    def took_hold(self) -> bool:
        """True if an effect took hold within the call, now or before."""
        return any(receipt.outcome is State.SUCCEEDED for receipt in self.receipts)

    def refused(self, error: Exception) -> bool:
        """Tell whether an exception is the tool's final no, which the ledger has recorded."""
        if self.guarded is None or self.took_hold or not is_tools_own(error):
            return False
        rules = self.guarded.rules
        by_provider = isinstance(rules, RemoteRules) and rules.classify(error) is Verdict.REFUSED
        return rules.refuses(error) or by_provider

    @property
    def checkpointer(self) -> Any:
        """The checkpointer of the run; None if there is none."""
        return configurable_of(self.request.runtime.config).get(CONFIG_KEY_CHECKPOINTER)

    @property
    def task_id(self) -> Any:
        """LangGraph's id of the task that runs it; None outside of a graph."""
        return configurable_of(self.request.runtime.config).get(CONFIG_KEY_TASK_ID)


_running: ContextVar[RunningCall | None] = ContextVar("langgraph_idem_running_call", default=None)


@contextlib.contextmanager
def running(call: RunningCall) -> Iterator[None]:
    """Tell guarded functions, in this and in copied contexts, that they serve this call."""
    token = _running.set(call)
    # Before Python 3.11 LangGraph cannot tell an async task its config: interrupt() would fail in
    # it, and nobody could be asked about an unknown outcome.
    config = var_child_runnable_config.get() or call.request.runtime.config
    config_token = var_child_runnable_config.set(config)
    try:
        yield
    finally:
        var_child_runnable_config.reset(config_token)
        _running.reset(token)


def call_in(node: object) -> RunningCall | None:
    """Return the call whose tool this node is executing here; None within a wrapper around it."""
    call = _running.get()
    return call if call is not None and call.node is node else None


def current() -> CallContext:
    """Tell what call is running, as far as anybody knows."""
    configurable = configurable_of(var_child_runnable_config.get())
    call = _running.get()
    if call is not None and configurable.get(CONFIG_KEY_TASK_ID, call.task_id) == call.task_id:
        return call.context
    # A graph inside a tool runs calls of its own: they are not the outer call, whose ids would
    # make one effect of two.
    return _context(configurable, Origin(thread_id=_thread_id(configurable)), [])


def is_tools_own(error: Exception) -> bool:
    """Tell whether an exception is the tool's own, not LangGraph's signal or the ledger's error."""
    return not (isinstance(error, (GraphBubbleUp, IdempotencyError)) or is_invalid_resume(error))


def configurable_of(config: Any) -> Mapping[str, Any]:
    """Return the ``configurable`` part of a config, which may be None."""
    return (config or {}).get("configurable") or {}


def message_of(call: ToolCall, state: Any, messages_key: str) -> AIMessage | None:
    """Find the last AIMessage of the state that asks for a tool call."""
    for message in reversed(messages_in(state, messages_key)):
        if isinstance(message, AIMessage) and any(
            asked["id"] == call["id"] for asked in message.tool_calls
        ):
            return message
    return None


def messages_in(state: Any, messages_key: str) -> list[Any]:
    """Return the messages of a state, in any of the shapes that LangGraph knows."""
    if isinstance(state, list):
        return state
    found = state.get(messages_key) if isinstance(state, dict) else _field(state, messages_key)
    return list(found or ())


def _field(state: Any, name: str) -> Any:
    return getattr(state, name, None)


def _id_of(message: AIMessage | None) -> str | None:
    return message.id if message is not None else None


def _thread_id(configurable: Mapping[str, Any]) -> str | None:
    thread_id = configurable.get("thread_id")
    return None if thread_id is None else str(thread_id)


def _context(
    configurable: Mapping[str, Any], origin: Origin, receipts: list[Receipt]
) -> CallContext:
    has_checkpointer = configurable.get(CONFIG_KEY_CHECKPOINTER) is not None
    return CallContext(
        origin=origin,
        can_ask=has_checkpointer and origin.thread_id is not None,
        # LangGraph tells its tasks the mode only where it was chosen; "async" is its default.
        durability=configurable.get(CONFIG_KEY_DURABILITY, "async") if has_checkpointer else None,
        configurable={
            name: value
            for name, value in configurable.items()
            if not name.startswith(_LANGGRAPHS_OWN)
        },
        receipts=receipts,
    )
