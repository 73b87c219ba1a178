"""What the explorer can stop, remember and put back: actors, a provider, messages, a clock.

Nothing in here decides anything; it is the state between two steps, and it can be compared, so
that two schedules which lead to the same state are followed only once from there on.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import exc

from langgraph_idem.sql import statements as sql_statements
from langgraph_idem.sql.dialects import Fault
from langgraph_idem.sql.schema import ledger_tables
from langgraph_idem.sql.sites import AttemptLost

LEASE: Final = 100.0
"""Seconds that a claim is presumed alive."""
TRAVEL: Final = 60.0
"""Seconds after which a request that has not arrived never will: the client's time-out.

It is shorter than the lease, as the documentation of ``lease=`` asks for.
"""
KEEPS_KEY: Final = 1000.0
"""Seconds that the provider remembers a key."""

BEGINNING: Final = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)


class Refused(Exception):
    """The business, or the provider, says no for good."""


class NotSent(Exception):
    """The request did not leave."""


class Broken(Exception):
    """The tool fails for a reason of its own."""


class Dropped(BaseException):
    """The actor is dead; whatever it still tries to do comes to nothing."""


def _database_says(words: str) -> BaseException:
    return exc.OperationalError("", None, sqlite3.OperationalError(words))


ERRORS: Final[dict[str, Callable[[], BaseException]]] = {
    "locked": lambda: AttemptLost(Fault.LOCKED, _database_says("database is locked")),
    "disconnected": lambda: AttemptLost(Fault.DISCONNECTED, _database_says("gone")),
    "timed out": lambda: TimeoutError("no answer"),
    "not sent": NotSent,
    "refused": lambda: Refused("no"),
    "broken": Broken,
    "cancelled": asyncio.CancelledError,
}


@dataclass(frozen=True)
class Failure:
    """An exception that a port raised, comparable."""

    words: str
    error: BaseException = field(compare=False, hash=False, repr=False)


def _hash_once(thing: Any, of: tuple[Any, ...]) -> int:
    known: int | None = thing.__dict__.get("_hash")
    if known is None:
        known = thing.__dict__["_hash"] = hash(of)
    return known


@dataclass(frozen=True)
class Entry:
    """What a port answered an actor."""

    kind: str
    answer: Any = None
    clock: float = 0.0
    """When its SQL ran, as long as the transaction is open and the SQL may have to run again."""

    def __hash__(self) -> int:
        """Reckon it once: states are compared many thousand times."""
        return _hash_once(self, (self.kind, self.answer, self.clock))

    def give(self) -> Any:
        """Return the answer, or raise it."""
        if isinstance(self.answer, Failure):
            error = self.answer.error.with_traceback(None)
            error.__context__ = None  # it was raised before, in runs that are gone
            raise error
        return self.answer


def failed(kind: str, name: str) -> Entry:
    """Make the entry of a fault."""
    return Entry(kind, Failure(name, ERRORS[name]()))


@dataclass(frozen=True)
class Message:
    """A request on its way, or its answer waiting to be taken."""

    sender: str
    number: int
    key: str
    sent_at: float
    answer: Any = None


@dataclass(frozen=True)
class Budget:
    """How often what may still happen."""

    crashes: int = 0
    faults: int = 0
    cancels: int = 0
    jumps: int = 0

    def without(self, kind: str) -> Budget:
        """Return what is left after one of a kind."""
        return replace(self, **{kind: getattr(self, kind) - 1})


@dataclass(frozen=True)
class Actor:
    """Where an actor stands: what it has been answered so far says everything."""

    name: str
    status: str = "running"
    """``running``, ``dead`` or ``done``."""
    history: tuple[Entry, ...] = ()
    opened: int | None = None
    """Number of the entry with which its open transaction began; None: there is none."""
    at: str = ""
    """The port that it is about to use."""
    asleep_since: Any = None
    outcome: tuple[Any, ...] = ()
    """``("value", value)`` or ``("error", name of the type)``."""
    was_told: bool = False
    """True if the provider's answer reached it."""

    def __hash__(self) -> int:
        """Reckon it once."""
        return _hash_once(self, (self.name, self.status, self.history, self.at, self.outcome))


@dataclass(frozen=True)
class World:
    """One state of everything."""

    actors: tuple[Actor, ...]
    budget: Budget
    rows: tuple[tuple[Any, ...], ...] = ()
    business: tuple[tuple[Any, ...], ...] = ()
    effects: tuple[tuple[str, float, int], ...] = ()
    """What happened at the provider: key, when, number."""
    flight: tuple[Message, ...] = ()
    clock: float = 0.0

    def actor(self, index: int, changed: Actor, **others: Any) -> World:
        """Return the world with one actor changed."""
        actors = (*self.actors[:index], changed, *self.actors[index + 1 :])
        return replace(self, actors=actors, **others)

    @property
    def row(self) -> dict[str, Any] | None:
        """The ledger's row, by column."""
        return dict(zip(COLUMNS, self.rows[0], strict=True)) if self.rows else None


TABLES: Final = ledger_tables()
COLUMNS: Final = tuple(column.name for column in TABLES.effects.columns)


class Database:
    """The real SQL on a real SQLite, in memory, whose clock is the explorer's.

    One connection is enough: SQLite has one writer at a time, and the explorer lets nobody begin
    while another one has begun.
    """

    def __init__(self) -> None:
        self.clock = 0.0
        engine = sa.create_engine("sqlite://", isolation_level="AUTOCOMMIT")
        self._engine = engine
        self.conn = engine.connect()
        connection: Any = self.conn.connection.dbapi_connection
        self.raw = connection
        # SQLite lets a program put its own function in the place of a built-in one.
        self.raw.create_function("strftime", 2, lambda _format, _when: self._now())
        TABLES.effects.create(self.conn)
        self.raw.execute("create table business (number integer primary key, doer text)")
        self._loaded: Any = ((), ())
        self._put: dict[str, str] = {
            name: f"insert into {name} values ({','.join('?' * width)})"
            for name, width in (("idem_effects", len(COLUMNS)), ("business", 2))
        }

    def close(self) -> None:
        """Close it."""
        self.conn.close()
        self._engine.dispose()

    def load(self, world: World) -> None:
        """Put back what was committed."""
        self.clock = world.clock
        wanted = (world.rows, world.business)
        if wanted == self._loaded:
            return
        self.raw.execute("begin")
        for name, rows in zip(("idem_effects", "business"), wanted, strict=True):
            self.raw.execute(f"delete from {name}")
            self.raw.executemany(self._put[name], rows)
        self.raw.execute("commit")
        self._loaded = wanted

    def committed(self) -> dict[str, Any]:
        """Read what is committed now."""
        rows = tuple(self.raw.execute("select * from idem_effects").fetchall())
        business = tuple(self.raw.execute("select * from business").fetchall())
        self._loaded = (rows, business)
        return {"rows": rows, "business": business}

    def _now(self) -> str:
        now = BEGINNING + dt.timedelta(seconds=self.clock)
        return now.strftime("%Y-%m-%d %H:%M:%S.%f")


class Names:
    """Stands for ``uuid``: a person's attempt is named after the actor, or no run is repeatable."""

    def __init__(self) -> None:
        self.current = ""

    def uuid4(self) -> Names:
        """Return something with a ``hex``."""
        return self

    @property
    def hex(self) -> str:
        """The name."""
        return f"word of {self.current}"


STATEMENTS_MODULE: Final = sql_statements
