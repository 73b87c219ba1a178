"""What differs between databases: the insert that decides a race, and what an error means."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa
from sqlalchemy import bindparam, exc, func
from sqlalchemy.dialects import postgresql, sqlite

from langgraph_idem.sql.prepared import Prepared
from langgraph_idem.sql.schema import db_now

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Insert = Callable[[sa.Connection, Mapping[str, Any]], bool]

MYSQL_LIKE: Final = frozenset({"mysql", "mariadb"})
SUPPORTED: Final = frozenset({"sqlite", "postgresql"}) | MYSQL_LIKE

_STAMPED: Final = ("began_at", "claimed_at", "sent_at")
_CLAIMED: Final = (
    *("scope", "operation", "key", "kind", "state", "fingerprint", "attempt_id", "attempts"),
    *("arguments", "thread_id", "message_id", "tool_call_id", "lease_seconds"),
    *("approved_by", "approval_note"),
)
"""What a claim gives a value to; the rest is stamped by the database, or written later."""


def arbitrated_insert(effects: sa.Table, dialect: str, wait_seconds: float) -> Insert:
    """Build the insert that wins or loses, and tells which.

    Args:
        effects: The ledger's table.
        dialect: SQLAlchemy's name of the database.
        wait_seconds: How long the loser of a race waits for the winner's commit; 0: not at all.

    """
    if dialect == "postgresql":
        return _returning(_postgresql_insert(effects, wait_seconds))
    if dialect in MYSQL_LIKE:
        return _refused_duplicate(effects)
    return _returning(_sqlite_insert(effects))


def _returning(statement: Any) -> Insert:
    """Trust RETURNING: psycopg's rowcount is -1 for a won and for a lost insert alike."""
    run = Prepared(statement)

    def insert(conn: sa.Connection, values: Mapping[str, Any]) -> bool:
        return run.first(conn, values) is not None

    return insert


def _sqlite_insert(effects: sa.Table) -> Any:
    values: dict[str, Any] = {name: bindparam(name) for name in _CLAIMED}
    values |= {name: db_now() for name in _STAMPED}
    insert = sqlite.insert(effects).values(values)
    return insert.on_conflict_do_nothing().returning(effects.c.attempt_id)


def _postgresql_insert(effects: sa.Table, wait_seconds: float) -> Any:
    """Bound the wait at the unique index within the insert, so that it costs no round trip.

    Without a bound, a frozen winner would hold every loser for ever. ``lock_timeout`` is set
    for this transaction only; 0 would mean "no bound", so the least wait is one millisecond.
    """
    milliseconds = str(max(1, round(wait_seconds * 1000)))
    bounded = func.set_config("lock_timeout", milliseconds, sa.true()).is_not(None)
    columns = [bindparam(name, type_=effects.c[name].type) for name in _CLAIMED]
    row = sa.select(*columns, *(db_now() for _ in _STAMPED)).where(bounded)
    insert = postgresql.insert(effects).from_select([*_CLAIMED, *_STAMPED], row)
    return insert.on_conflict_do_nothing().returning(effects.c.attempt_id)


def _refused_duplicate(effects: sa.Table) -> Insert:
    """Let the unique constraint refuse: MySQL has no RETURNING, and INSERT IGNORE cuts keys.

    A refused row leaves the transaction usable there, unlike in PostgreSQL.
    """
    values: dict[str, Any] = {name: bindparam(name) for name in _CLAIMED}
    run = Prepared(sa.insert(effects).values(values | {name: db_now() for name in _STAMPED}))

    def insert(conn: sa.Connection, values: Mapping[str, Any]) -> bool:
        try:
            return run.changes_one(conn, values)
        except exc.IntegrityError as error:
            if _mysql_code(error) == _DUPLICATE_ENTRY:
                return False
            raise

    return insert


class Fault(Enum):
    """What a database's error means for the attempt."""

    CONTENTION = "contention"
    """Serialization failure, deadlock: the whole attempt may run again at once."""
    LOCKED = "locked"
    """A lock was not had in time: somebody else is at it."""
    DISCONNECTED = "disconnected"
    """The connection is gone; whether a commit took place only the ledger can tell."""
    MISSING_TABLE = "missing_table"
    OTHER = "other"


_DUPLICATE_ENTRY: Final = 1062
_MYSQL: Final = {
    1213: Fault.CONTENTION,
    1205: Fault.LOCKED,
    3572: Fault.LOCKED,
    1020: Fault.CONTENTION,
    1146: Fault.MISSING_TABLE,
    **dict.fromkeys((1053, 1927, 2006, 2013, 2055), Fault.DISCONNECTED),
}
_SQLSTATE: Final = {
    "40001": Fault.CONTENTION,
    "40P01": Fault.CONTENTION,
    "55P03": Fault.LOCKED,
    "42P01": Fault.MISSING_TABLE,
    "57P01": Fault.DISCONNECTED,
    "57P02": Fault.DISCONNECTED,
    "57P03": Fault.DISCONNECTED,
}


def fault_of(error: BaseException) -> Fault:
    """Tell what a database's error means, by its code where the driver gives one."""
    if not isinstance(error, exc.DBAPIError):
        return Fault.OTHER
    if error.connection_invalidated:
        return Fault.DISCONNECTED
    if (code := _mysql_code(error)) is not None:  # first: its SQLSTATE is mostly "HY000"
        return _MYSQL.get(code, Fault.OTHER)
    state = _sqlstate(error)
    if state is not None:
        return _SQLSTATE.get(state) or _by_class(state)
    return _sqlite_fault(error)


def _by_class(state: str) -> Fault:
    return Fault.DISCONNECTED if state.startswith("08") else Fault.OTHER


def _sqlstate(error: exc.DBAPIError) -> str | None:
    for name in ("sqlstate", "pgcode"):
        state = getattr(error.orig, name, None)
        if isinstance(state, str):
            return state
    return None


def _mysql_code(error: exc.DBAPIError) -> int | None:
    arguments = getattr(error.orig, "args", ())
    return arguments[0] if arguments and isinstance(arguments[0], int) else None


def _sqlite_fault(error: exc.DBAPIError) -> Fault:
    """SQLite's errors carry codes only from Python 3.11 on; its words have been stable longer."""
    words = str(error.orig)
    if "is locked" in words or "database is busy" in words:
        return Fault.LOCKED
    if "no such table" in words:
        return Fault.MISSING_TABLE
    if "server closed the connection" in words or "connection is closed" in words:
        return Fault.DISCONNECTED
    return Fault.OTHER
