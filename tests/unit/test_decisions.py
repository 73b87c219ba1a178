"""What to do about a call: every combination has exactly one answer, and no answer is unsafe."""

from __future__ import annotations

import dataclasses
import itertools
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from langgraph_idem.decisions import (
    Ask,
    Busy,
    Call,
    Changed,
    Execute,
    Failed,
    Replay,
    Seen,
    Verify,
    decide,
    lease_end,
)
from langgraph_idem.effects import (
    TRANSITIONS,
    EffectRecord,
    Kind,
    Origin,
    Relation,
    State,
    may_become,
)

BEGAN = datetime(2026, 11, 29, tzinfo=timezone.utc)
CALL = Call("global", "ship", "O-1", Kind.REMOTE, "v1:same", None, "mine")


def _record(state: State, **fields: object) -> EffectRecord:
    plain = EffectRecord(
        "global", "ship", "O-1", Kind.REMOTE, state, "v1:same", "theirs", 1, BEGAN, BEGAN, BEGAN
    )
    return dataclasses.replace(plain, **fields)  # type: ignore[arg-type]  # fields by name


def test_nothing_there_means_execute() -> None:
    """Only a claim that won may execute."""
    assert decide(None, CALL) == Execute()


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("fingerprint", ["v1:same", "v1:other"])
@pytest.mark.parametrize("lease", [None, 0.0, 10.0])
@pytest.mark.parametrize("age", [0, 9, 10, 11])
def test_decisions_are_total_and_never_execute_anothers_effect(
    state: State, fingerprint: str, lease: float | None, age: int
) -> None:
    """Whatever another attempt left, it is answered, and never by doing it again unasked."""
    record = _record(state, fingerprint=fingerprint, lease_seconds=lease)
    seen = Seen(record, BEGAN + timedelta(seconds=age))
    held = lease is None or age < lease
    if state is State.RELEASED:
        expected: object = Verify(seen)
    elif fingerprint == "v1:other":
        expected = Changed(record)
    elif state in {State.SUCCEEDED, State.STAGED}:
        expected = Replay(record, ours=False)
    elif state is State.FAILED:
        expected = Failed(record)
    elif state is State.CLAIMED and held:
        expected = Busy(record, lease_end(record))
    else:
        expected = Verify(seen)
    assert decide(seen, CALL) == expected


def test_ones_own_success_is_known_by_the_attempt() -> None:
    """After a lost commit answer the attempt finds its own row, and that is no replay."""
    record = _record(State.SUCCEEDED, attempt_id="mine")
    assert decide(Seen(record, BEGAN), CALL) == Replay(record, ours=True)


@given(st.floats(0, 1e6), st.floats(0, 1e6))
def test_a_lease_ends_once_and_for_all(lease: float, age: float) -> None:
    """Before its end a claim is Busy, from its end on it is to be verified: no gap, no overlap."""
    record = _record(State.CLAIMED, lease_seconds=lease)
    now = BEGAN + timedelta(seconds=age)
    decision = decide(Seen(record, now), CALL)
    end = lease_end(record)
    assert end is not None
    assert isinstance(decision, Busy if now < end else Verify)


ALLOWED = {
    None: {State.CLAIMED, State.STAGED},
    State.STAGED: {State.CLAIMED},
    State.CLAIMED: {
        State.CLAIMED,
        State.SUCCEEDED,
        State.FAILED,
        State.UNKNOWN,
        State.RELEASED,
    },
    State.UNKNOWN: {State.SUCCEEDED, State.FAILED, State.RELEASED, State.CLAIMED},
    State.RELEASED: {State.CLAIMED, State.SUCCEEDED},
    State.SUCCEEDED: set(),
    State.FAILED: set(),
}


def test_the_table_of_transitions() -> None:
    """The whole table, written out once more: what is final stays final, for a person too."""
    assert set(TRANSITIONS) == {None, *State}
    for state, wanted in itertools.product(TRANSITIONS, State):
        assert may_become(state, wanted) is (wanted in ALLOWED[state]), (state, wanted)


@pytest.mark.parametrize(
    ("earlier", "later", "relation"),
    [
        (Origin(), Origin(), Relation.NOT_KNOWN),
        (Origin("t"), Origin(), Relation.NOT_KNOWN),
        (Origin("t", "m", "c"), Origin("t", "m", "c"), Relation.SAME_CALL),
        (Origin("t", "m", "c"), Origin("t", "n", "c"), Relation.SAME_THREAD),
        (Origin("t"), Origin("t"), Relation.SAME_THREAD),
        (Origin("t", None, "c"), Origin("t", None, "c"), Relation.SAME_THREAD),
        (Origin("t", "m", "c"), Origin("u", "m", "c"), Relation.OTHER_THREAD),
    ],
)
def test_relation_of_two_calls(earlier: Origin, later: Origin, relation: Relation) -> None:
    """The same tool_call_id in another message is another call: providers number anew."""
    assert earlier.relation_of(later) is relation


def test_what_needs_approval_never_begins_without() -> None:
    """Where it would begin, or begin anew, a person is asked; what is there stands as it is."""
    call = dataclasses.replace(CALL, needs_approval=True)
    assert decide(None, call) == Ask()
    assert decide(Seen(_record(State.RELEASED), BEGAN), call) == Ask()
    assert isinstance(decide(Seen(_record(State.SUCCEEDED), BEGAN), call), Replay)
