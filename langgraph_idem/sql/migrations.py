"""Numbered steps from an older ledger to today's. A step, once released, never changes."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import sqlalchemy as sa

from langgraph_idem.errors import ConfigurationError, LedgerError
from langgraph_idem.sql import probes
from langgraph_idem.sql.dialects import MYSQL_LIKE
from langgraph_idem.sql.schema import db_now

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from langgraph_idem.sql.schema import LedgerTables

    Step = Callable[[sa.Connection, LedgerTables], None]

_ADVISORY_LOCK: Final = 7_421_905_310_244_118
"""An arbitrary number that stands for "somebody is migrating a ledger"."""
_NAMED_LOCK: Final = "langgraph_idem_migration"
_LOCK_SECONDS: Final = 60


def _create(conn: sa.Connection, tables: LedgerTables) -> None:
    tables.metadata.create_all(conn)


STEPS: Final[tuple[Step, ...]] = (_create,)
"""Step n (from 1) leads from version n-1 to version n."""


def migrate(conn: sa.Connection, tables: LedgerTables) -> None:
    """Bring a ledger's tables to this library's version, in the caller's transaction.

    Raises:
        ConfigurationError: The tables are newer than this library, or the database cannot keep
            what a ledger promises.

    """
    with _alone(conn):
        probes.check_database(conn, tables)
        _step_up(conn, tables)
    probes.check_tables(conn, tables)


def _step_up(conn: sa.Connection, tables: LedgerTables) -> None:
    version = current_version(conn, tables)
    if version > len(STEPS):
        raise ConfigurationError(
            f"The ledger's tables are at version {version}; this langgraph-idem knows versions up "
            f"to {len(STEPS)}. Upgrade langgraph-idem on this machine."
        )
    for number, step in enumerate(STEPS[version:], start=version + 1):
        step(conn, tables)
        conn.execute(sa.insert(tables.schema).values(version=number, applied_at=db_now()))


def current_version(conn: sa.Connection, tables: LedgerTables) -> int:
    """Return the version of the tables; 0 if there are none."""
    if not sa.inspect(conn).has_table(tables.schema.name, schema=tables.schema.schema):
        return 0
    return conn.scalar(sa.select(sa.func.max(tables.schema.c.version))) or 0


@contextmanager
def _alone(conn: sa.Connection) -> Iterator[None]:
    """Keep two migrations apart. SQLite's BEGIN IMMEDIATE has done so already."""
    if conn.dialect.name == "postgresql":
        # Else a user's stricter level would show what was there before the wait for the lock.
        conn.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
        conn.execute(sa.select(sa.func.pg_advisory_xact_lock(_ADVISORY_LOCK)))
    if conn.dialect.name not in MYSQL_LIKE:
        yield
        return
    if conn.scalar(sa.select(sa.func.get_lock(_NAMED_LOCK, _LOCK_SECONDS))) != 1:
        raise LedgerError(
            f"Another migration of a ledger on this server has not ended within {_LOCK_SECONDS} s. "
            "Nothing was changed here; try again when it has."
        )
    try:
        conn.exec_driver_sql("COMMIT")  # what was read before the lock is an older snapshot
        yield
        # The next one must see the version when it has the lock, so not after our own commit.
        conn.exec_driver_sql("COMMIT")
    finally:  # MySQL's DDL commits, and its named locks outlive transactions
        conn.execute(sa.select(sa.func.release_lock(_NAMED_LOCK)))
