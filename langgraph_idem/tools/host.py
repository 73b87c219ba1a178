"""LangGraph, as the ledger sees it."""

from __future__ import annotations

import inspect
import typing
from typing import TYPE_CHECKING, Any, Final, Literal

from langchain_core.callbacks import BaseCallbackManager
from langchain_core.callbacks.base import CallbackManagerMixin
from langchain_core.runnables import RunnableConfig
from langchain_core.tools.base import _is_injected_arg_type
from langgraph.errors import GraphBubbleUp, is_invalid_resume
from langgraph.types import interrupt
from pydantic import ConfigDict, create_model

from langgraph_idem.ports import Answer, CallContext, Host, Question
from langgraph_idem.tools import context
from langgraph_idem.tools.guard import guard_tool
from langgraph_idem.tools.results import MessageCodec, is_message_result

if TYPE_CHECKING:
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

    def ask(self, question: Question) -> Answer:
        """Interrupt the run with the question; it comes back here with the answer on resume.

        The answer is checked against the question's choices, so that a mistyped one is refused and
        the question stays open. LangGraph hands answers out by position; one that was given to
        another question carries that question's id and is passed over.
        """
        while True:
            reply: Any = interrupt(_payload(question), response_schema=_reply_to(question))
            if reply.question_id == question.id:
                break
        return Answer(reply.choice, reply.by, reply.note, reply.result)

    def guard(self, tool: Any, guard: ToolGuard) -> BaseTool:
        """Wrap a BaseTool that cannot be decorated."""
        return guard_tool(tool, guard)

    def codec(self, operation: str, annotation: Any) -> Codec | None:
        """Return the codec for messages and commands, None for plain results."""
        return MessageCodec(operation) if is_message_result(annotation) else None


def _is_langchains_own(annotation: Any) -> bool:
    callbacks = (BaseCallbackManager, CallbackManagerMixin)
    return annotation is RunnableConfig or (
        inspect.isclass(annotation) and issubclass(annotation, callbacks)
    )


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


def _reply_to(question: Question) -> Any:
    choice: Any = Literal[question.choices]
    return create_model(
        "Reply",
        __config__=ConfigDict(extra="forbid"),
        question_id=(str, ...),
        choice=(choice, ...),
        by=(str | None, None),
        note=(str | None, None),
        result=(Any, None),
    )
