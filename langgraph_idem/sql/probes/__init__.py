"""What a database must promise: asked of it at set-up, and refused in words where it does not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sqlalchemy.pool import SingletonThreadPool, StaticPool

from langgraph_idem.errors import ConfigurationError
from langgraph_idem.sql.probes import mysql, postgresql, sqlite
from langgraph_idem.sql.probes.rehearsal import rehearse
from langgraph_idem.sql.probes.uniqueness import check_uniqueness

if TYPE_CHECKING:
    import sqlalchemy as sa

    from langgraph_idem.sql.schema import LedgerTables

_ASKED: Final = {
    "sqlite": sqlite,
    "postgresql": postgresql,
    "mysql": mysql,
    "mariadb": mysql,
}


def check_database(conn: sa.Connection, tables: LedgerTables) -> None:
    """Refuse a database, or a connection to it, that cannot keep a ledger's promises.

    Args:
        conn: A connection as every effect gets it, in its transaction.
        tables: The ledger's; they need not be there yet.

    Raises:
        ConfigurationError: With what is wrong, why it matters, and what to do.

    """
    if isinstance(conn.engine.pool, StaticPool | SingletonThreadPool):
        raise ConfigurationError(
            f"The engine's {type(conn.engine.pool).__name__} hands the same connection to several "
            "callers at once, so that one effect's rollback would undo another's. Leave poolclass= "
            "out, or use QueuePool or NullPool."
        )
    _ASKED[conn.dialect.name].check_database(conn, tables)


def check_tables(conn: sa.Connection, tables: LedgerTables) -> None:
    """Refuse tables that would let two attempts win, or forget; then rehearse an effect.

    Args:
        conn: A connection as every effect gets it, in its transaction.
        tables: The ledger's.

    Raises:
        ConfigurationError: With what is wrong, why it matters, and what to do.

    """
    asked = _ASKED[conn.dialect.name]
    asked.check_table(conn, tables.effects)
    check_uniqueness(tables.effects, asked.unique_indexes(conn, tables.effects))
    rehearse(conn, tables)
