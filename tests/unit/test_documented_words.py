"""What the pages quote are the words and codes that the library has."""

from __future__ import annotations

from pathlib import Path

import pytest

from langgraph_idem import errors
from langgraph_idem.errors import (
    ArgumentsChanged,
    IdempotencyError,
    OutcomeUnknown,
    RecordedFailure,
)

DOCS = Path(__file__).parents[2] / "docs"
REFUND = {"operation": "refund", "key": "O-1001"}


@pytest.mark.parametrize(
    "error",
    [
        OutcomeUnknown("", **REFUND),
        RecordedFailure("", **REFUND, reason="ReadTimeout: the bank did not answer"),
        ArgumentsChanged("", **REFUND, changed=("cents",)),
    ],
    ids=lambda error: error.code,
)
def test_the_words_for_the_model_are_quoted_as_they_are(error: IdempotencyError) -> None:
    """A page that tells what the model reads tells it to the letter."""
    page = (DOCS / "how-to" / "unknown-outcomes.md").read_text(encoding="utf-8")
    assert f"| {error.for_model} |" in page


def test_every_code_is_in_the_table() -> None:
    """Each error that somebody can meet has a row that says what to do."""
    page = (DOCS / "reference" / "errors.md").read_text(encoding="utf-8")
    bases = {errors.IdempotencyError, errors.InvalidCall}
    kinds = {
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.IdempotencyError)
    }
    missing = [
        kind.code for kind in kinds - bases if f"| `{kind.code}` | `{kind.__name__}`" not in page
    ]
    assert missing == []
