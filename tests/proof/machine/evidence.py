"""What is on disk when all is quiet, read by nobody's API: rows, the provider's file, answers."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from tests.proof.machine import journal, provider
from tests.proof.machine.places import Place
from tests.proof.machine.plan import LEASE

SAY_SOMETHING: Final = frozenset({"langgraph_idem.EffectBusy", "langgraph_idem.OutcomeUnknown"})
"""Errors after which everybody knows as much as before."""


@dataclass(frozen=True)
class Record:
    """A row of the ledger, as far as it matters here."""

    state: str
    number: int | None = None
    is_transactional: bool = True


@dataclass(frozen=True)
class Answer:
    """What one call gave one worker: a number, or an error.

    Attributes:
        worker: Who.
        number: The result, None if it was an error.
        error: Names of the error's class and its bases.
        words: The error's own.

    """

    worker: str
    number: int | None = None
    error: tuple[str, ...] = ()
    words: str = ""

    @property
    def is_result(self) -> bool:
        """Tell whether it is no error."""
        return not self.error

    @property
    def leaves_open(self) -> bool:
        """Tell whether it says nothing of the effect: the database failed somewhere."""
        return bool(self.error) and self.error[0] not in SAY_SOMETHING


@dataclass
class Evidence:
    """All of it; effects are named by operation and key, as ``"ship O-0001"``.

    Attributes:
        called: Effects that were asked for when all was quiet: each must have happened.
        happened: The numbers of what really took place, by the business rows and the provider.
        records: The ledger's rows.
        recorded_twice: Effects with more than one of them.
        shows_database: Whether callers see the database's own errors, because their tools or
            their checkpointer use it.
        answers: Every answer that any worker got.
        unanswered: Effects with a call that never came back, came back without an outcome, or
            outlived its lease.
        deducted: Units gone from stock; None: there is no stock here.
        unfinished: Runs of the agent that are not through, and where they stand.
        settled_by_person: Effects that a person had to settle.
        needs_person: Whether some may have needed one: nothing else could tell.
        cut_off: Calls that never came back.
        accidents: Workers that ended by themselves though nobody asked them to.

    """

    called: set[str] = field(default_factory=set)
    happened: dict[str, list[int]] = field(default_factory=dict)
    records: dict[str, Record] = field(default_factory=dict)
    recorded_twice: list[str] = field(default_factory=list)
    shows_database: bool = True
    answers: dict[str, list[Answer]] = field(default_factory=dict)
    unanswered: set[str] = field(default_factory=set)
    deducted: int | None = None
    unfinished: dict[str, str] = field(default_factory=dict)
    settled_by_person: int = 0
    needs_person: bool = False
    cut_off: int = 0
    accidents: list[str] = field(default_factory=list)


def read(place: Place) -> Evidence:
    """Read everything that is on disk."""
    found = Evidence(
        needs_person=place.kind == "remote-neither",
        shows_database=place.kind in {"transactional", "agent"},
    )
    happened: defaultdict[str, list[int]] = defaultdict(list)
    engine = sa.create_engine(place.direct, poolclass=sa.NullPool)
    with engine.connect() as conn:
        _business(conn, found, happened)
        rows = conn.execute(_LEDGER).mappings().all()
    _records(rows, found)
    found.settled_by_person = sum(row["resolved_by"] is not None for row in rows)
    for entry in provider.read(place.book):
        happened[f"charge {entry['order_id']}"].append(entry["number"])
    found.happened = dict(happened)
    _answers(place.folder, found)
    return found


_COLUMNS = ("operation", "key", "kind", "state", "result", "resolved_by")
_LEDGER = sa.select(sa.table("idem_effects", *map(sa.column, _COLUMNS)))


def apart(place: Place) -> list[str]:
    """Look, at any moment, for rows and records of transactional effects without each other.

    One statement, so that it sees one state of the database, whoever is at work.
    """
    engine = sa.create_engine(place.direct, poolclass=sa.NullPool)
    with engine.connect() as conn:
        seen = conn.execute(_APART).all()
    return [f"{order} has the row {number} and the record {state}" for order, number, state in seen]


_RECORDS = sa.table("idem_effects", *map(sa.column, ("operation", "key", "state")))
_ROWS = sa.table("shipments", *map(sa.column, ("order_id", "number")))
_JOINED = (_ROWS.c.order_id == _RECORDS.c.key) & (_RECORDS.c.operation == "ship")
_APART = sa.union_all(
    sa.select(_ROWS.c.order_id, _ROWS.c.number, _RECORDS.c.state)
    .select_from(_ROWS.outerjoin(_RECORDS, _JOINED))
    .where(_RECORDS.c.state.is_distinct_from("succeeded")),
    sa.select(_RECORDS.c.key, _ROWS.c.number, _RECORDS.c.state)
    .select_from(_RECORDS.outerjoin(_ROWS, _JOINED))
    .where((_RECORDS.c.operation == "ship") & _ROWS.c.number.is_(None)),
)


def _business(conn: sa.Connection, found: Evidence, happened: dict[str, list[int]]) -> None:
    for order_id, number in conn.execute(sa.text("select order_id, number from shipments")):
        happened[f"ship {order_id}"].append(number)
    left, shelves = conn.execute(sa.text("select sum(units), count(*) from stock")).one()
    found.deducted = shelves * 1_000_000 - int(left)


def _records(rows: Sequence[Any], found: Evidence) -> None:
    for name, record in map(_record, rows):
        if name in found.records:
            found.recorded_twice.append(name)
        found.records[name] = record


def _record(row: Any) -> tuple[str, Record]:
    result = json.loads(row["result"]) if row["result"] else {}
    is_transactional = row["kind"] == "transactional"
    name = f"{row['operation']} {row['key']}"
    return name, Record(row["state"], result.get("number"), is_transactional)


def _answers(folder: Path, found: Evidence) -> None:
    lines = list(journal.lines(folder))
    steps = [line["at"] for line in lines if "stepped" in line]
    open_since: dict[tuple[str, str], list[float]] = defaultdict(list)
    answers: defaultdict[str, list[Answer]] = defaultdict(list)
    for line in lines:
        worker, key = line["worker"], line.get("key")
        if "asked" in line:
            open_since[worker, line["asked"]].append(line["at"])
        elif "lost" in line:
            found.unanswered.add(line["lost"])
        elif key is not None:
            answers[key].append(_answer(line))
            began = open_since[worker, key].pop() if open_since[worker, key] else line["at"]
            if answers[key][-1].leaves_open or _outlived(began, line["at"], steps):
                found.unanswered.add(key)
    found.answers = dict(answers)
    still_open = [key for (_worker, key), begun in open_since.items() for _ in begun]
    found.cut_off = len(still_open)
    found.unanswered |= set(still_open)


def _outlived(began: float, ended: float, steps: list[float]) -> bool:
    """Tell whether a call may have lasted longer than its lease: it lost its claim, then."""
    return ended - began > LEASE * 0.9 or any(began <= step <= ended for step in steps)


def _answer(line: dict[str, Any]) -> Answer:
    names = tuple(line.get("error", ()))
    return Answer(line["worker"], line.get("number"), names, line.get("words", ""))
