"""Errors that must leave the agent, past everybody who turns exceptions into words for a model."""

from __future__ import annotations

import contextlib
from functools import cache
from typing import TYPE_CHECKING, Any

from langgraph.errors import GraphBubbleUp

from langgraph_idem.errors import IdempotencyError

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def past_everybody() -> Iterator[None]:
    """Let the ledger's errors leave as signals of LangGraph's, which no middleware may hold back.

    ``ToolRetryMiddleware`` would else tell the model of an unknown outcome: "Please try again."
    They keep their class: ``except OutcomeUnknown`` around ``agent.invoke`` catches them.
    """
    try:
        yield
    except IdempotencyError as error:
        raise leaving(error).with_traceback(error.__traceback__) from error.__cause__


def leaving(error: IdempotencyError) -> IdempotencyError:
    """Return the error as one that is a ``GraphBubbleUp`` too."""
    if isinstance(error, GraphBubbleUp):
        return error
    kind: Any = type(error)
    made: IdempotencyError = _leaving(kind)(str(error), **error.__dict__)
    return made


@cache
def _leaving(kind: Any) -> type[Any]:
    names = {
        "__doc__": kind.__doc__,
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        # Unpickled elsewhere it is the plain error: this class has no address to be found at.
        "__reduce__": lambda error: (_plain, (kind, str(error), dict(error.__dict__))),
    }
    return type(kind.__name__, (kind, GraphBubbleUp), names)


def _plain(kind: type[IdempotencyError], words: str, fields: dict[str, Any]) -> IdempotencyError:
    return kind(words, **fields)
