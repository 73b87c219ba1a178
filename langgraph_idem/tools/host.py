"""LangGraph, as the ledger sees it."""

from __future__ import annotations

import contextlib
import inspect
import typing
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from langchain_core.callbacks import BaseCallbackManager
from langchain_core.callbacks.base import CallbackManagerMixin
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config
from langchain_core.tools.base import _is_injected_arg_type
from langgraph._internal._constants import CONFIG_KEY_SCRATCHPAD
from langgraph.errors import GraphBubbleUp, is_invalid_resume
from langgraph.types import interrupt
from pydantic import AfterValidator, ConfigDict, ValidationError, create_model

from langgraph_idem.ports import Answer, CallContext, Host, Question
from langgraph_idem.tools import context
from langgraph_idem.tools.guard import guard_tool
from langgraph_idem.tools.results import MessageCodec, is_message_result, reports_error

if TYPE_CHECKING:
    from collections.abc import Callable

    from langchain_core.tools import BaseTool

    from langgraph_idem.codec import Codec
    from langgraph_idem.ports import ToolGuard

_BY_NAME: Final = frozenset({"ToolRuntime", "RunnableConfig", "InjectedState", "InjectedStore"})
"""What is recognised where an annotation could not be resolved and is still a text."""


class LangGraphHost(Host):
    """Installed as the ledger's host when ``langgraph_idem.tools`` is imported."""

    def context(self) -> CallContext:
        """Tell what tool call is running; outside of a tool node at least the thread."""
        return context.current()

    def is_injected(self, annotation: Any) -> bool:
        """Tell whether LangChain or LangGraph fills a parameter in, unseen by the model."""
        if isinstance(annotation, str):
            return any(name in annotation for name in _BY_NAME)
        parts = (annotation, *typing.get_args(annotation))
        return bool(_is_injected_arg_type(annotation)) or any(map(_is_langchains_own, parts))

    def is_control_flow(self, error: BaseException) -> bool:
        """Tell whether an exception is LangGraph's own signal: it is no outcome of the tool."""
        return isinstance(error, GraphBubbleUp) or is_invalid_resume(error)

    def reports_error(self, result: Any) -> bool:
        """Tell whether a result holds a ToolMessage whose status is "error"."""
        return reports_error(result)

    def ask(self, question: Question) -> Answer:
        """Interrupt the run with the question; it comes back here with the answer on resume.

        The answer is checked against the question's choices, so that a mistyped one is refused and
        the question stays open. LangGraph hands answers out by position; one that was given to
        another question carries that question's id and is passed over, and one that was handed to
        another question of this task before is found.
        """
        schema = _reply_to(question)
        reply: Any = _handed_out(schema, question.id)
        while reply is None or reply.question_id != question.id:
            reply = interrupt(_payload(question), response_schema=schema)
        return Answer(reply.choice, reply.by, reply.note, reply.result)

    def answered(self) -> frozenset[str]:
        """Return the ids of our questions to which this task has been given an answer."""
        scratchpad = _scratchpad()
        if scratchpad is None:
            return frozenset()
        given = [*scratchpad.resume, scratchpad.get_null_resume(False)]  # noqa: FBT003 - LangGraph's
        ids = (reply.get("question_id") for reply in given if isinstance(reply, dict))
        return frozenset(name for name in ids if isinstance(name, str))

    def guard(self, tool: Any, guard: ToolGuard) -> BaseTool:
        """Wrap a BaseTool that cannot be decorated."""
        return guard_tool(tool, guard)

    def codec(self, operation: str, annotation: Any) -> Codec | None:
        """Return the codec for messages and commands, None for plain results."""
        return MessageCodec(operation) if is_message_result(annotation) else None


def _is_langchains_own(annotation: Any) -> bool:
    callbacks = (BaseCallbackManager, CallbackManagerMixin)
    is_class = inspect.isclass(annotation) and typing.get_origin(annotation) is None
    return annotation is RunnableConfig or (is_class and issubclass(annotation, callbacks))


def _payload(question: Question) -> dict[str, Any]:
    """Write the question in LangChain's shape for one tool call, and what only we know."""
    return {
        "type": question.type,
        "tool_call_id": question.origin.tool_call_id,
        "name": question.operation,
        "args": question.arguments,
        "description": question.description,
        "scope": question.scope,
        "key": question.key,
        "fingerprint": question.fingerprint,
        "since": question.since.isoformat() if question.since else None,
        "choices": list(question.choices),
        "question_id": question.id,
    }


def _scratchpad() -> Any:
    config = context.configurable_of(var_child_runnable_config.get())
    return config.get(CONFIG_KEY_SCRATCHPAD)


def _handed_out(schema: Any, question_id: str) -> Any:
    """Find the answer to a question among those that this task's questions have taken."""
    scratchpad = _scratchpad()
    for given in scratchpad.resume if scratchpad is not None else ():
        if isinstance(given, dict) and given.get("question_id") == question_id:
            with contextlib.suppress(ValidationError):  # another question's schema let it through
                return schema.model_validate(given)
    return None


def _reply_to(question: Question) -> Any:
    choice: Any = Literal[question.choices]
    result: Any = Any
    if question.check is not None:
        result = Annotated[Any, AfterValidator(_checked_by(question.check))]
    return create_model(
        "Reply",
        __config__=ConfigDict(extra="forbid"),
        question_id=(str, ...),
        choice=(choice, ...),
        by=(str | None, None),
        note=(str | None, None),
        result=(result, None),
    )


def _checked_by(check: Callable[[Any], None]) -> Callable[[Any], Any]:
    def checked(result: Any) -> Any:
        if result is not None:
            check(result)
        return result

    return checked
