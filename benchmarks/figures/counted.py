"""What an effect consists of, counted where the database hears it: no clock is involved."""

from __future__ import annotations

import contextlib
import re
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy import event

from benchmarks.measuring import Figure, in_turn
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
    with shop(database) as here:
        guarded, remote = here.guarded("counted-"), here.remote()
        read = here.read("counted-order-0")
        engines = [here.engine, here.ledger._engines.blocking()]  # noqa: SLF001 - to listen in
        pairs: list[tuple[str, Callable[[int], Any], Callable[[int], Any]]] = [
            ("transactional effect", here.bare, guarded),
            ("replay", read, lambda _number: guarded(0)),
            (
                "effect and replay in turn",
                in_turn(here.bare, read),
                in_turn(lambda number: guarded(number + 500), lambda _number: guarded(0)),
            ),
            ("remote effect", here.two_commits, remote),
        ]
        guarded(0)
        figures = []
        for group, bare, ours in pairs:
            beside, counts = _counts(engines, bare), _counts(engines, ours)
            for unit, count in counts.items():
                figures.append(_figure(group, database.where, unit, count, beside[unit]))
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
        sure_low=ratio,
        sure_high=ratio,
        rounds=CALLS,
        target=reached,
    )


def _counts(engines: list[sa.Engine], call: Callable[[int], Any]) -> dict[str, float]:
    for number in range(900, 910):  # psycopg prepares what it has sent five times
        call(number)
    heard: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace"
        with trace.open("w") as file, _listening(engines, heard, file):
            for number in range(1_000, 1_000 + CALLS):
                call(number)
        messages = trace.read_text().splitlines()
    heard += [tag for message in messages for tag in _COMPLETED.findall(message)]
    counts = {
        "statements": sum(not word.startswith(_BRACKETS) for word in heard) / CALLS,
        "commits": sum(word.startswith("COMMIT") for word in heard) / CALLS,
    }
    if messages:
        counts["round trips"] = _round_trips(messages) / CALLS
    return counts


_COMPLETED = re.compile(r"\tCommandComplete\t ?\"(.*)\"")
_BRACKETS = ("BEGIN", "COMMIT", "ROLLBACK")


def _round_trips(messages: list[str]) -> int:
    """Count how often the server's answer was waited for: by then all had been sent."""
    senders = [message.split("\t")[1] for message in messages if "\t" in message]
    return sum(pair == ("F", "B") for pair in pairwise(senders))


def _listeners(dialect: str, heard: list[str], file: Any) -> list[tuple[str, Any]]:
    """Listen in SQLite's own trace; on PostgreSQL in libpq's, which sees every message.

    What the client believes it sent does not count.
    """
    if dialect == "sqlite":

        def hear(statement: str) -> None:
            heard.append(statement.strip().upper())

        return [
            ("checkout", lambda conn, *_: conn.set_trace_callback(hear)),
            ("checkin", lambda conn, *_: conn.set_trace_callback(None)),
        ]
    return [
        ("checkout", lambda conn, *_: conn.pgconn.trace(file.fileno())),
        ("checkin", lambda conn, *_: conn.pgconn.untrace()),
    ]


@contextlib.contextmanager
def _listening(engines: list[sa.Engine], heard: list[str], file: Any) -> Iterator[None]:
    listeners = _listeners(engines[0].dialect.name, heard, file)
    pairs = [(engine, *listener) for engine in engines for listener in listeners]
    for target in pairs:
        event.listen(*target)
    yield
    for target in pairs:
        event.remove(*target)
