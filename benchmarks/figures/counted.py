"""What an effect consists of, counted where the database hears it: no clock is involved."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy import event

from benchmarks.measuring import Figure
from benchmarks.shop import shop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.databases import Database
    from benchmarks.measuring import Size

CALLS = 5
TARGETS = {
    ("transactional effect", "commits"): 1.0,
    ("transactional effect", "statements"): 2.0,
    ("replay", "commits"): 0.0,
    ("remote effect", "commits"): 2.0,
}
"""Commits in all; statements beyond those of the bare transaction."""


def counted(database: Database, _size: Size) -> list[Figure]:
    """Commits, statements and round trips of each, beside the bare ones."""
    here = shop(database)
    guarded, remote = here.guarded("counted-"), here.remote()
    engines = [here.engine, here.ledger._engines.blocking()]  # noqa: SLF001 - to listen in
    pairs: list[tuple[str, Callable[[int], Any], Callable[[int], Any]]] = [
        ("transactional effect", here.bare, guarded),
        ("replay", here.read("counted-order-0"), lambda _number: guarded(0)),
        ("remote effect", here.two_commits, remote),
    ]
    guarded(0)
    figures = []
    for group, bare, ours in pairs:
        beside, counts = _counts(engines, bare), _counts(engines, ours)
        for unit, count in counts.items():
            figures.append(_figure(group, database.name, unit, count, beside[unit]))
    return figures


def _figure(group: str, where: str, unit: str, count: float, beside: float) -> Figure:
    target = TARGETS.get((group, unit))
    most = None if target is None else target + (beside if unit == "statements" else 0)
    ratio = count / beside if beside else float(count == 0)
    reached = None if most is None else most / beside if beside else 1.0
    return Figure(
        *(f"{group}, counted", "guarded", where, "bare", unit),
        value=count,
        baseline_value=beside,
        ratio=ratio,
        low=ratio,
        high=ratio,
        target=reached,
    )


def _counts(engines: list[sa.Engine], call: Callable[[int], Any]) -> dict[str, float]:
    for number in range(900, 910):  # psycopg prepares what it has sent five times
        call(number)
    counting = {"statements": 0, "commits": 0}
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace"
        with trace.open("w") as file, _listening(engines, counting, file):
            for number in range(1_000, 1_000 + CALLS):
                call(number)
        trips = trace.read_text().count("ReadyForQuery")
    counts = {name: count / CALLS for name, count in counting.items()}
    if engines[0].dialect.name == "postgresql":
        counts["round trips"] = trips / CALLS
    return counts


def _hearing(counting: dict[str, int]) -> Callable[[str], None]:
    def hear(statement: str) -> None:
        word = statement.strip().upper()
        if word.startswith("COMMIT"):
            counting["commits"] += 1
        elif not word.startswith(("BEGIN", "ROLLBACK")):
            counting["statements"] += 1

    return hear


def _listeners(dialect: str, hear: Callable[[str], None], file: Any) -> list[tuple[str, Any]]:
    """Listen in SQLite's own trace; on PostgreSQL also in libpq's, which sees every message."""

    def execute(_conn: Any, _cursor: Any, statement: str, *_: Any) -> None:
        hear(statement)

    def commit(_conn: Any) -> None:
        hear("COMMIT")

    if dialect == "sqlite":
        return [
            ("checkout", lambda conn, *_: conn.set_trace_callback(hear)),
            ("checkin", lambda conn, *_: conn.set_trace_callback(None)),
        ]
    return [
        ("checkout", lambda conn, *_: conn.pgconn.trace(file.fileno())),
        ("checkin", lambda conn, *_: conn.pgconn.untrace()),
        ("before_cursor_execute", execute),
        ("commit", commit),
    ]


@contextlib.contextmanager
def _listening(engines: list[sa.Engine], counting: dict[str, int], file: Any) -> Iterator[None]:
    heard = _listeners(engines[0].dialect.name, _hearing(counting), file)
    pairs = [(engine, *listener) for engine in engines for listener in heard]
    for target in pairs:
        event.listen(*target)
    yield
    for target in pairs:
        event.remove(*target)
