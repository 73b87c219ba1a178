"""The ledger's tables, in a MetaData of their own so that Alembic can be given them."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from langgraph_idem.keys import MAX_KEY, MAX_OPERATION, MAX_SCOPE


class UtcDateTime(sa.types.TypeDecorator[dt.datetime]):
    """An instant. Stored in UTC with microseconds, always handed back aware."""

    impl = sa.DateTime
    cache_ok = True

    def load_dialect_impl(self, dialect: sa.Dialect) -> sa.types.TypeEngine[Any]:
        """Keep the zone where the database can, the microseconds everywhere."""
        if dialect.name in {"mysql", "mariadb"}:
            return dialect.type_descriptor(mysql.DATETIME(fsp=6))
        return dialect.type_descriptor(sa.DateTime(timezone=dialect.name == "postgresql"))

    def process_bind_param(self, value: dt.datetime | None, dialect: sa.Dialect) -> Any:
        """Send UTC; without the zone where the database has none."""
        if value is None:
            return None
        utc = value.astimezone(dt.timezone.utc)
        return utc if dialect.name == "postgresql" else utc.replace(tzinfo=None)

    def process_result_value(self, value: Any, dialect: sa.Dialect) -> dt.datetime | None:  # noqa: ARG002 - SQLAlchemy's signature
        """Return an aware datetime: SQLite and MariaDB hand back naive ones."""
        if value is None:
            return None
        utc: dt.datetime
        if value.tzinfo is None:
            utc = value.replace(tzinfo=dt.timezone.utc)
        else:
            utc = value.astimezone(dt.timezone.utc)
        return utc


class db_now(FunctionElement[dt.datetime]):  # noqa: N801 - reads like an SQL function
    """The database's clock at this moment, not at the start of the transaction."""

    type = UtcDateTime()
    inherit_cache = True
    name = "db_now"


@compiles(db_now)
def _now_standard(_element: db_now, _compiler: Any, **_: Any) -> str:
    return "CURRENT_TIMESTAMP"


@compiles(db_now, "postgresql")
def _now_postgresql(_element: db_now, _compiler: Any, **_: Any) -> str:
    return "clock_timestamp()"


@compiles(db_now, "sqlite")
def _now_sqlite(_element: db_now, _compiler: Any, **_: Any) -> str:
    return "strftime('%Y-%m-%d %H:%M:%f000', 'now')"


@compiles(db_now, "mysql", "mariadb")
def _now_mysql(_element: db_now, _compiler: Any, **_: Any) -> str:
    return "UTC_TIMESTAMP(6)"


class ExactText(mysql.VARCHAR):
    """Text that MariaDB and MySQL compare byte by byte, trailing blanks included.

    Their usual collations fold case or ignore trailing blanks, so that two keys would meet. Each
    names the collation that does neither in its own way, and a ``mysql://`` URL may lead to both.
    """


@compiles(ExactText, "mysql", "mariadb")
def _exact_text(element: ExactText, compiler: Any, **_: Any) -> str:
    collation = exact_collation(compiler.dialect)
    return f"VARCHAR({element.length}) CHARACTER SET utf8mb4 COLLATE {collation}"


def exact_collation(dialect: sa.Dialect) -> str:
    """Name the collation that compares byte by byte: MySQL's on MySQL, else MariaDB's."""
    is_mysql = dialect.name == "mysql" and not getattr(dialect, "is_mariadb", False)
    return "utf8mb4_0900_bin" if is_mysql else "utf8mb4_nopad_bin"


def _identity(length: int) -> sa.types.TypeEngine[Any]:
    """Text that names an effect: two of them are the same only if every byte is."""
    return (
        sa.String(length)
        .with_variant(sa.String(length, collation="C"), "postgresql")
        .with_variant(ExactText(length), "mysql", "mariadb")
    )


_LONG_TEXT = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")


_STORED: dict[str, Any] = {
    f"{name}_{option}": value
    for name in ("mysql", "mariadb")
    for option, value in (("engine", "InnoDB"), ("charset", "utf8mb4"))
}
"""With transactions, and with a place for every text whatever the database's own default is."""


@dataclass(frozen=True)
class LedgerTables:
    """The tables of one ledger."""

    metadata: sa.MetaData
    effects: sa.Table
    schema: sa.Table


def ledger_tables(prefix: str = "idem_", schema: str | None = None) -> LedgerTables:
    """Define the tables of a ledger.

    Args:
        prefix: What the tables' names begin with.
        schema: The database schema they are in; None: the connection's own.

    """
    metadata = sa.MetaData(schema=schema)
    effects = sa.Table(
        f"{prefix}effects",
        metadata,
        sa.Column("scope", _identity(MAX_SCOPE), primary_key=True),
        sa.Column("operation", _identity(MAX_OPERATION), primary_key=True),
        sa.Column("key", _identity(MAX_KEY), primary_key=True),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("fingerprint", sa.String(80), nullable=False),
        sa.Column("attempt_id", sa.String(32), nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("began_at", UtcDateTime(), nullable=False),
        sa.Column("claimed_at", UtcDateTime(), nullable=False),
        sa.Column("sent_at", UtcDateTime(), nullable=False),
        sa.Column("arguments", _LONG_TEXT),
        sa.Column("result", _LONG_TEXT),
        sa.Column("codec", sa.SmallInteger),
        sa.Column("reason", sa.Text),
        sa.Column("evidence", _LONG_TEXT),
        # Not ours, so of any length: some gateways pack kilobytes into a tool call's id.
        sa.Column("thread_id", sa.Text),
        sa.Column("message_id", sa.Text),
        sa.Column("tool_call_id", sa.Text),
        sa.Column("lease_seconds", sa.Double),
        sa.Column("settled_at", UtcDateTime()),
        sa.Column("resolved_by", sa.Text),
        sa.Column("note", sa.Text),
        sa.Column("approved_by", sa.Text),
        sa.Column("approval_note", sa.Text),
        sqlite_with_rowid=False,
        **_STORED,
    )
    version = sa.Table(
        f"{prefix}schema",
        metadata,
        sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("applied_at", UtcDateTime(), nullable=False),
        **_STORED,
    )
    return LedgerTables(metadata, effects, version)


COLUMNS: Final = tuple(column.name for column in ledger_tables().effects.columns)
"""The names of the columns of an effect's row, in their order."""
