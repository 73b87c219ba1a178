"""Answers to the ledger's questions: what goes into ``Command(resume=...)``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langgraph.types import Interrupt

from langgraph_idem.errors import ConfigurationError


def answer(
    question: Interrupt | Mapping[str, Any],
    choice: str,
    *,
    result: Any = None,
    by: str | None = None,
    note: str | None = None,
) -> dict[str, Any]:
    """Answer a question of the ledger's: ``graph.invoke(Command(resume=answer(...)), config)``.

    Several questions are answered at once by joining the answers:
    ``Command(resume=answer(one, "failed") | answer(other, "released"))``.

    Args:
        question: The interrupt, as in ``graph.get_state(config).interrupts`` or in the result's
            ``"__interrupt__"``; or its value, where only that is at hand.
        choice: One of the question's ``choices``: ``"succeeded"``, ``"failed"`` or ``"released"``
            for an unknown outcome.
        result: What the tool would have returned, as plain JSON values; with ``"succeeded"`` only.
        by: Who says so; kept with the effect.
        note: Why; kept with the effect.

    Returns:
        For an interrupt, the answer under the interrupt's id; for a bare value, the answer alone.

    Raises:
        ConfigurationError: It is no question of the ledger's, or the choice is none of its own.

    """
    asked = question.value if isinstance(question, Interrupt) else question
    if not isinstance(asked, Mapping) or not {"question_id", "choices"} <= asked.keys():
        raise ConfigurationError(
            f"{asked!r} is no question of the ledger's. Take one of "
            "graph.get_state(config).interrupts whose value has a 'question_id'."
        )
    if choice not in asked["choices"]:
        raise ConfigurationError(
            f"{choice!r} is no answer to this question; it is one of {list(asked['choices'])}."
        )
    if result is not None and choice != "succeeded":
        raise ConfigurationError(
            f"A result goes with 'succeeded'; this answer is {choice!r}. Leave result= out."
        )
    reply = {
        "question_id": asked["question_id"],
        "choice": choice,
        "result": result,
        "by": by,
        "note": note,
    }
    return {question.id: reply} if isinstance(question, Interrupt) else reply
