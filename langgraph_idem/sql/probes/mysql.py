"""What MariaDB and MySQL are asked: isolation, strictness, storage engine, what is unique."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import sqlalchemy as sa

from langgraph_idem.errors import ConfigurationError
from langgraph_idem.sql.probes.uniqueness import UniqueIndex, gathered

if TYPE_CHECKING:
    from collections.abc import Sequence

    from langgraph_idem.sql.schema import LedgerTables

_STRICT: Final = frozenset({"STRICT_TRANS_TABLES", "STRICT_ALL_TABLES"})
_ENGINE: Final = sa.text(
    "select engine from information_schema.tables"
    " where table_schema = coalesce(:schema, database()) and table_name = :name"
)
_UNIQUE: Final = sa.text(
    "select index_name as name, column_name as `column`, sub_part as part"
    " from information_schema.statistics"
    " where table_schema = coalesce(:schema, database()) and table_name = :name"
    " and non_unique = 0 order by index_name, seq_in_index"
)


def check_database(conn: sa.Connection, _tables: LedgerTables) -> None:
    """Refuse connections that read what nobody has committed, or that cut what does not fit.

    Raises:
        ConfigurationError: With what to do.

    """
    if conn.get_isolation_level() == "READ UNCOMMITTED":
        raise ConfigurationError(
            "This connection reads uncommitted rows: an effect could be answered with a result "
            "that is rolled back afterwards. Set the isolation level READ COMMITTED or higher "
            '(create_engine(..., isolation_level="READ COMMITTED")).'
        )
    modes = str(conn.exec_driver_sql("select @@session.sql_mode").scalar()).split(",")
    if _STRICT.isdisjoint(modes):
        raise ConfigurationError(
            "This connection's sql_mode is not strict: what does not fit is cut off without an "
            "error, and a key or a result that was cut is another one. Add STRICT_TRANS_TABLES to "
            "sql_mode, as MariaDB and MySQL have it by default."
        )


def check_table(conn: sa.Connection, effects: sa.Table) -> None:
    """Refuse a table that no transaction can roll back.

    Raises:
        ConfigurationError: With what to do.

    """
    engine = conn.execute(_ENGINE, _named(effects)).scalar()
    if str(engine).lower() != "innodb":
        raise ConfigurationError(
            f"Table {effects.fullname} is stored by {engine}, which has no transactions: a claim "
            "would stay when its effect is rolled back, and the effect would be lost for ever. "
            f"ALTER TABLE {effects.fullname} ENGINE = InnoDB; the business tables too."
        )


def unique_indexes(conn: sa.Connection, effects: sa.Table) -> Sequence[UniqueIndex]:
    """List the table's unique indexes."""
    return gathered(conn.execute(_UNIQUE, _named(effects)), _flaw)


def _flaw(rows: Sequence[sa.Row[tuple[object, ...]]]) -> str | None:
    cut = [row for row in rows if row.part is not None]
    return f"compares only the first {cut[0].part} characters of {cut[0].column}" if cut else None


def _named(effects: sa.Table) -> dict[str, str | None]:
    return {"schema": effects.schema, "name": effects.name}
