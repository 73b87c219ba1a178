"""What to do about a call, given what the ledger holds. Pure and total: no clock, no database."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from langgraph_idem.effects import EffectRecord, Kind, Origin, State

if TYPE_CHECKING:
    from datetime import datetime


@dataclass(frozen=True)
class Call:
    """One request for one effect.

    Attributes:
        scope: Whose effect.
        operation: Name of the kind of effect.
        key: Which effect of that operation, as canonical text.
        kind: Transactional, remote or staged.
        fingerprint: Digest of the arguments that matter.
        arguments: Canonical JSON of these arguments, None if they are not to be kept.
        attempt_id: Random id of this attempt: the fencing token.
        origin: Who asked.
        lease_seconds: How long a claim of a remote effect is presumed alive; None: for ever.
        told: All arguments that callers see, defaults included, as JSON; never kept.
        needs_approval: True as long as nobody has approved it who has to: it must not begin.
        approved_by: Who approved it, where a person was asked; recorded with the claim.
        approval_note: What that person wrote.

    """

    scope: str
    operation: str
    key: str
    kind: Kind
    fingerprint: str
    arguments: str | None
    attempt_id: str
    origin: Origin = Origin()
    lease_seconds: float | None = None
    told: str = "{}"
    needs_approval: bool = False
    approved_by: str | None = None
    approval_note: str | None = None


@dataclass(frozen=True)
class Word:
    """A person's word about an unknown outcome.

    Attributes:
        outcome: Succeeded, failed, or released (it did not happen and may be tried again).
        result: The result as JSON text, if it succeeded and has one.
        by: Who says so.
        note: Why.

    """

    outcome: State
    result: str | None = None
    by: str | None = None
    note: str | None = None


@dataclass(frozen=True)
class Seen:
    """A row of the ledger, and what time the database says it is."""

    record: EffectRecord
    now: datetime


@dataclass(frozen=True)
class Execute:
    """The effect is ours to bring about."""


@dataclass(frozen=True)
class Ask:
    """It would be ours, but a person has to approve it first."""


@dataclass(frozen=True)
class Replay:
    """It took hold before: return what was recorded."""

    record: EffectRecord
    ours: bool
    """True if this very attempt did it and only the answer to its commit was lost."""


@dataclass(frozen=True)
class Failed:
    """It failed before, for good."""

    record: EffectRecord


@dataclass(frozen=True)
class Busy:
    """Somebody else is at it."""

    record: EffectRecord
    retry_at: datetime | None


@dataclass(frozen=True)
class Changed:
    """The same key, but other arguments."""

    record: EffectRecord


@dataclass(frozen=True)
class Verify:
    """The attempt that held it is gone or lost: find out before anything else."""

    found: Seen


Decision = Execute | Ask | Replay | Failed | Busy | Changed | Verify


def decide(found: Seen | None, call: Call) -> Decision:
    """Say what to do about a call.

    Args:
        found: The row that was there before us, or None if our claim won.
        call: The request.

    Returns:
        Exactly one decision, for every combination.

    """
    if found is None:
        return Ask() if call.needs_approval else Execute()
    record = found.record
    if record.state is State.RELEASED:
        return Ask() if call.needs_approval else Verify(found)
    if record.fingerprint != call.fingerprint:
        return Changed(record)
    if record.state is State.SUCCEEDED:
        return Replay(record, ours=record.attempt_id == call.attempt_id)
    if record.state is State.FAILED:
        return Failed(record)
    if record.state is State.STAGED:
        return Replay(record, ours=record.attempt_id == call.attempt_id)
    if record.state is State.CLAIMED and lease_holds(record, found.now):
        if record.attempt_id == call.attempt_id and record.attempts == 1:
            return Execute()  # only the answer to our claim's commit was lost
        return Busy(record, lease_end(record))
    return Verify(found)


def lease_end(record: EffectRecord) -> datetime | None:
    """Return when a claim stops being presumed alive (UTC); None: never."""
    if record.lease_seconds is None:
        return None
    return record.claimed_at + timedelta(seconds=record.lease_seconds)


def lease_holds(record: EffectRecord, now: datetime) -> bool:
    """Tell whether the attempt that claimed is still presumed alive."""
    end = lease_end(record)
    return end is None or now < end
