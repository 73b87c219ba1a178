"""Errors: their fields survive, their codes are stable, their words invite no second effect."""

from __future__ import annotations

import pickle
import re
from datetime import datetime, timezone

import pytest

from langgraph_idem import errors
from langgraph_idem.effects import Receipt, State
from langgraph_idem.errors import IdempotencyError

NOON = datetime(2026, 11, 29, 12, tzinfo=timezone.utc)
SHIP = {"operation": "ship", "key": "O-1"}
ONE_OF_EACH: dict[str, IdempotencyError] = {
    "idempotency_error": IdempotencyError("Something."),
    "configuration_error": errors.ConfigurationError("Write it otherwise."),
    "invalid_call": errors.InvalidCall("Wrong.", operation="ship"),
    "missing_key": errors.MissingKey("ship is keyed by 'order_id'.", operation="ship"),
    "invalid_arguments": errors.InvalidArguments("NaN is no number."),
    "arguments_changed": errors.ArgumentsChanged("Changed.", changed=("cents",), **SHIP),
    "result_not_storable": errors.ResultNotStorable("No.", operation="ship", effect_happened=True),
    "effect_busy": errors.EffectBusy("Busy.", retry_at=NOON, **SHIP),
    "outcome_unknown": errors.OutcomeUnknown("Unknown.", scope="global", since=NOON, **SHIP),
    "recorded_failure": errors.RecordedFailure("Failed.", reason="OutOfStock: SKU-1", **SHIP),
    "already_done": errors.AlreadyDone(
        "ship for O-1 was done before.",
        receipt=Receipt("ship", "O-1", "global", State.SUCCEEDED, replayed=True, result=7),
    ),
    "approval_rejected": errors.ApprovalRejected("Rejected.", by="Ann", note="no", **SHIP),
    "transition_forbidden": errors.TransitionForbidden("No.", state="succeeded", **SHIP),
    "ledger_error": errors.LedgerError("Gone."),
}


def _all_kinds(kind: type[IdempotencyError]) -> set[type[IdempotencyError]]:
    own = {sub for sub in kind.__subclasses__() if getattr(errors, sub.__name__, None) is sub}
    return {kind}.union(*(_all_kinds(sub) for sub in own))


def test_every_kind_has_a_code_of_its_own() -> None:
    """Programs match on codes: each kind has one, and it stays."""
    assert {code: type(error) for code, error in ONE_OF_EACH.items()} == {
        kind.code: kind for kind in _all_kinds(IdempotencyError)
    }
    assert len(ONE_OF_EACH) == len(_all_kinds(IdempotencyError))


@pytest.mark.parametrize("error", ONE_OF_EACH.values(), ids=ONE_OF_EACH)
def test_errors_survive_pickling(error: IdempotencyError) -> None:
    """Task queues and process pools pickle errors: text, type and every field come through."""
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert again.__dict__ == error.__dict__
    assert again.for_model == error.for_model


TRY_AGAIN = re.compile(r"try (it )?again|retry|once more|repeat (it|the call)$", re.IGNORECASE)
LIKE_SUCCESS = re.compile(r"^(ok|done|success|it worked|completed)\b|succeeded", re.IGNORECASE)


@pytest.mark.parametrize("error", ONE_OF_EACH.values(), ids=ONE_OF_EACH)
def test_words_for_the_model(error: IdempotencyError) -> None:
    """What a model reads never looks like success and never invites a repetition."""
    words = error.for_model
    if words is None:
        return
    assert not TRY_AGAIN.search(words), words
    assert not LIKE_SUCCESS.search(words), words


def test_what_is_not_the_models_business() -> None:
    """Broken code, a broken database and a busy one are for the program, not for the model."""
    silent = {code for code, error in ONE_OF_EACH.items() if error.for_model is None}
    assert {"configuration_error", "ledger_error", "effect_busy", "result_not_storable"} <= silent


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("missing_key", "Nothing was done."),
        ("arguments_changed", "(cents differ)"),
        ("outcome_unknown", "must not be repeated"),
        ("outcome_unknown", "may or may not have happened"),
        ("recorded_failure", "It did not take effect."),
        ("recorded_failure", "OutOfStock: SKU-1"),
        ("already_done", "was not done again"),
    ],
)
def test_the_model_learns_what_matters(code: str, words: str) -> None:
    """Each text says what became of the world."""
    assert words in (ONE_OF_EACH[code].for_model or "")


def test_fields_can_be_read() -> None:
    """What a program needs is in fields, not in the text."""
    changed = ONE_OF_EACH["arguments_changed"]
    assert isinstance(changed, errors.ArgumentsChanged)
    assert (changed.operation, changed.key, changed.changed) == ("ship", "O-1", ("cents",))
