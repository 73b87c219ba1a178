"""What PostgreSQL is asked: its encoding, whether a crash empties the table, what is unique."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import sqlalchemy as sa

from langgraph_idem.errors import ConfigurationError
from langgraph_idem.sql.probes.uniqueness import UniqueIndex

if TYPE_CHECKING:
    from collections.abc import Sequence

    from langgraph_idem.sql.schema import LedgerTables

_PERSISTENCE: Final = sa.text(
    "select relpersistence::text from pg_class where oid = to_regclass(cast(:name as text))"
)
_UNIQUE: Final = sa.text(
    "select c.relname as name, i.indisvalid, i.indimmediate, i.indpred is not null as is_partial,"
    " array(select coalesce(a.attname::text, '') from generate_series(0, i.indnkeyatts - 1) n"
    "  left join pg_attribute a on a.attrelid = i.indrelid and a.attnum = i.indkey[n]"
    "  order by n) as columns,"
    " exists(select from pg_collation l where l.oid = any(i.indcollation::oid[])"
    "  and not l.collisdeterministic) as is_folding"
    " from pg_index i join pg_class c on c.oid = i.indexrelid"
    " where i.indisunique and i.indrelid = to_regclass(cast(:name as text)) order by c.relname"
)


def check_database(conn: sa.Connection, _tables: LedgerTables) -> None:
    """Refuse a database that cannot keep every text.

    Raises:
        ConfigurationError: With what to do.

    """
    encoding = conn.exec_driver_sql("show server_encoding").scalar()
    if encoding != "UTF8":
        raise ConfigurationError(
            f"This PostgreSQL database is encoded in {encoding}, which has no place for every key "
            "and result: an effect could happen and not be written down. Make a database with "
            "ENCODING 'UTF8' (TEMPLATE template0)."
        )


def check_table(conn: sa.Connection, effects: sa.Table) -> None:
    """Refuse a table that the server's crash would empty.

    Raises:
        ConfigurationError: With what to do.

    """
    kept = conn.execute(_PERSISTENCE, {"name": _name(conn, effects)}).scalar()
    if kept != "p":
        raise ConfigurationError(
            f"Table {effects.fullname} is {'UNLOGGED' if kept == 'u' else 'no permanent table'}: "
            "after a crash of the server it would be empty, and every effect would be brought "
            f"about again. ALTER TABLE {effects.fullname} SET LOGGED."
        )


def unique_indexes(conn: sa.Connection, effects: sa.Table) -> Sequence[UniqueIndex]:
    """List the table's unique indexes."""
    rows = conn.execute(_UNIQUE, {"name": _name(conn, effects)})
    return [UniqueIndex(row.name, tuple(row.columns), _flaw(row)) for row in rows]


def _flaw(row: sa.Row[tuple[object, ...]]) -> str | None:
    if not row.indisvalid:
        return "is invalid, as a CREATE INDEX CONCURRENTLY that failed leaves it"
    if row.is_partial:
        return "is partial"
    if not row.indimmediate:
        return "is deferrable, and so decides nothing before the commit"
    return "does not compare byte by byte" if row.is_folding else None


def _name(conn: sa.Connection, effects: sa.Table) -> str:
    return conn.dialect.identifier_preparer.format_table(effects)
