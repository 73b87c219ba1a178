"""A person's word about an effect, held against the state table and the row that was seen."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from langgraph_idem import events
from langgraph_idem.decisions import lease_end, lease_holds
from langgraph_idem.effects import BY_A_PERSON, State
from langgraph_idem.errors import TransitionForbidden
from langgraph_idem.protocols import own_work

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from langgraph_idem.decisions import Seen, Word
    from langgraph_idem.effects import EffectRecord
    from langgraph_idem.ports import Site, Statements
    from langgraph_idem.protocols import Rules


async def resolve(site: Site, rules: Rules, seen: EffectRecord, word: Word) -> EffectRecord:
    """Settle an unknown outcome by a person's word and return the row as it is then.

    Args:
        site: Where to run.
        rules: The operation's rules.
        seen: The row as the person saw it; if it has moved on, nothing is changed.
        word: What the person says.

    Raises:
        TransitionForbidden: The state table does not allow it, or the row has moved on.

    """
    record = await settle(site, rules.statements, seen.scope, seen.operation, seen.key, word, seen)
    rules.observe(events.Verified(record.scope, record.operation, record.key, record.attempt_id))
    return record


async def settle(
    site: Site,
    statements: Statements,
    scope: str,
    operation: str,
    key: str,
    word: Word,
    expected: EffectRecord | None = None,
) -> EffectRecord:
    """Settle the effect that is named; ``expected`` is the row as the person saw it, if known."""

    def change(conn: Connection) -> EffectRecord:
        found = statements.read(conn, scope, operation, key)
        check_allowed(found, operation, key, word, expected)
        assert found is not None  # noqa: S101 - it has been refused
        if not statements.resolve(conn, found.record, _with_evidence(word, found.record)):
            raise _moved_on(found.record)
        changed = statements.read(conn, scope, operation, key)
        return (changed or found).record

    return await own_work(site, change, keep=True)


def check_allowed(
    seen: Seen | None,
    operation: str,
    key: str,
    word: Word,
    expected: EffectRecord | None = None,
) -> None:
    """Hold a person's word against the state table.

    Raises:
        TransitionForbidden: The state table does not allow it, or the row is not the expected one.

    """
    if seen is None:
        raise TransitionForbidden(
            f"There is no effect {operation} for {key} in this scope: nothing was ever claimed.",
            operation=operation,
            key=key,
            state="absent",
        )
    record = seen.record
    if expected is not None and _moves_of(expected) != _moves_of(record):
        raise _moved_on(record)
    if word.outcome not in BY_A_PERSON or not is_open(seen):
        raise TransitionForbidden(
            f"{operation} for {key} is {record.state}{_told(record)}; a person can settle only "
            f"what is unknown, as {', '.join(sorted(map(str, BY_A_PERSON)))}.",
            operation=operation,
            key=key,
            state=str(record.state),
        )
    if record.evidence is not None and word.outcome is not State.SUCCEEDED:
        raise TransitionForbidden(
            f"{operation} for {key} happened: an attempt that had lost its claim got an answer. It "
            "can only be settled as succeeded.",
            operation=operation,
            key=key,
            state=str(record.state),
        )


def _moves_of(record: EffectRecord) -> tuple[object, ...]:
    """Tell what changes with every attempt, though one may come back under the same id."""
    return record.attempt_id, record.attempts, record.claimed_at


def _with_evidence(word: Word, record: EffectRecord) -> Word:
    """Let a late answer be the result where the person gave none."""
    return word if word.result is not None else replace(word, result=record.evidence or None)


def is_open(seen: Seen) -> bool:
    """Unknown, or claimed by an attempt that is no longer presumed alive (or never expires)."""
    record = seen.record
    if record.state is not State.CLAIMED:
        return record.state is State.UNKNOWN
    return record.lease_seconds is None or not lease_holds(record, seen.now)


def _told(record: EffectRecord) -> str:
    if record.resolved_by:
        return f" (by {record.resolved_by})"
    end = lease_end(record) if record.state is State.CLAIMED else None
    return f" by an attempt that may be alive until {end:%Y-%m-%d %H:%M:%S} UTC" if end else ""


def _moved_on(record: EffectRecord) -> TransitionForbidden:
    return TransitionForbidden(
        f"{record.operation} for {record.key} has changed since it was looked at: it is "
        f"{record.state} now. Nothing was changed; look again.",
        operation=record.operation,
        key=record.key,
        state=str(record.state),
    )
