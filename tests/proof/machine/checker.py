"""What must hold when all is quiet: pure, over evidence alone, so that it can be shown to fail."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.proof.machine.evidence import Evidence, Record

SETTLED: Final = "succeeded"

OURS: Final = frozenset(
    f"langgraph_idem.{name}" for name in ("EffectBusy", "LedgerError", "OutcomeUnknown")
)
"""Errors that a caller may get while everything is being broken. A refusal is none of them: nobody
here ever refuses."""
NOT_SENT: Final = frozenset({"httpx.ConnectError", "httpx.ConnectTimeout"})
"""The tool's own, that say that nothing has left."""
THE_DATABASES: Final = frozenset(
    {"sqlalchemy.DBAPIError", "psycopg.Error", "sqlite3.Error", "aiosqlite.Error"}
)
"""From the tool's own statements, or from the checkpointer."""


def violations(found: Evidence) -> list[str]:
    """Say in words what does not hold, each with the effect it is about; nothing: all is well."""
    names = {*found.called, *found.happened, *found.records, *found.answers}
    per_effect = [told for name in sorted(names) for told in _about(name, found)]
    return [*per_effect, *_about_all(found)]


def violations_at_rest(found: Evidence) -> list[str]:
    """Say what does not hold although others may still have to find out what became of an effect.

    So it is between the last kill and the first clean call.
    """
    names = sorted({*found.happened, *found.records, *found.answers})
    told: list[str] = []
    for name in names:
        record, numbers = found.records.get(name), found.happened.get(name, [])
        told += [*_twice(name, numbers), *_phantom(name, record, numbers)]
        told += [*_apart(name, record, numbers), *_unfounded(name, record, found)]
        told += _answers(name, record, numbers, found)
    return [*told, *_stock(found)]


def _about(name: str, found: Evidence) -> Iterator[str]:
    record, numbers = found.records.get(name), found.happened.get(name, [])
    yield from _twice(name, numbers)
    yield from _phantom(name, record, numbers)
    if name in found.called and not numbers:
        yield f"lost: {name} was asked for and has not happened"
    if numbers and record is None:
        yield f"unrecorded: {name} happened ({numbers}) and the ledger knows nothing of it"
    if record is not None and record.state != SETTLED:
        yield f"stuck: the ledger has {name} as {record.state}"
    yield from _answers(name, record, numbers, found)


def _about_all(found: Evidence) -> Iterator[str]:
    yield from _stock(found)
    for thread, where in sorted(found.unfinished.items()):
        yield f"unfinished: the run {thread} stands at {where}"
    if found.settled_by_person and not found.needs_person:
        yield f"left to a person: {found.settled_by_person} effects that could be found out about"
    for name in found.recorded_twice:
        yield f"recorded twice: {name}"
    for accident in found.accidents:
        yield f"accident: {accident}"


def _twice(name: str, numbers: list[int]) -> Iterator[str]:
    if len(numbers) > 1:
        yield f"twice: {name} happened as {numbers}"


def _phantom(name: str, record: Record | None, numbers: list[int]) -> Iterator[str]:
    if record is None or record.state != SETTLED:
        return
    if not numbers:
        yield f"phantom: {name} is recorded as done ({record.number}) and never happened"
    elif record.number not in numbers:
        yield f"wrong record: {name} is recorded as {record.number}, it happened as {numbers}"


def _apart(name: str, record: Record | None, numbers: list[int]) -> Iterator[str]:
    """Check that rows and record of a transactional effect are never seen without each other."""
    if name.startswith("ship ") and bool(numbers) != (record is not None):
        yield f"apart: {name} has the rows {numbers} and the record {record}"
    if record is not None and record.is_transactional and record.state != SETTLED:
        yield f"visible: the transactional claim of {name} is seen as {record.state}"


def _unfounded(name: str, record: Record | None, found: Evidence) -> Iterator[str]:
    """Check that nothing is called unknown unless an attempt's outcome was really lost."""
    if record is None:
        return
    if record.state == "failed":
        yield f"refused: {name} is recorded as failed, and nobody refused it"
    if record.state == "unknown" and name not in found.unanswered:
        yield f"unfounded: {name} is unknown though every call of it came back"


def _stock(found: Evidence) -> Iterator[str]:
    shipped = sum(len(n) for name, n in found.happened.items() if name.startswith("ship "))
    if found.deducted is not None and found.deducted != shipped:
        yield f"stock: {found.deducted} units are gone for {shipped} shipments"


def _answers(
    name: str, record: Record | None, numbers: list[int], found: Evidence
) -> Iterator[str]:
    """Check each answer against the record: an answer that reached a caller is never lost."""
    expected = OURS | NOT_SENT | (THE_DATABASES if found.shows_database else frozenset())
    for answer in found.answers.get(name, []):
        told = f"{name} gave {answer.worker} {answer.number}"
        if not answer.is_result:
            if not expected & set(answer.error):
                yield f"error: {name} gave {answer.worker} {answer.words}"
        elif record is None or record.state != SETTLED:
            yield f"answer lost: {told} and is {record.state if record else 'not recorded'}"
        elif answer.number != record.number:
            yield f"wrong answer: {told}, recorded is {record.number}, it happened as {numbers}"
