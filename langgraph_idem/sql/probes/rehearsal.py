"""An effect in rehearsal: what no catalogue tells is tried, and rolled back."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Final

from sqlalchemy import exc

from langgraph_idem.decisions import Call
from langgraph_idem.effects import Kind
from langgraph_idem.errors import ConfigurationError
from langgraph_idem.keys import GLOBAL, MAX_KEY
from langgraph_idem.sql.dialects import Fault, fault_of
from langgraph_idem.sql.statements import LedgerStatements

if TYPE_CHECKING:
    import sqlalchemy as sa

    from langgraph_idem.sql.schema import LedgerTables

_OPERATION: Final = "rehearsal of langgraph-idem"
_WAIT: Final = 1.0
"""Seconds; nobody else can hold a key that was made up just now."""
_ENDS: Final = ("a", "A", "\N{LATIN SMALL LETTER A WITH ACUTE}", "", " ")
"""What tells keys apart, and what some collations do not tell apart."""
_TEXT: Final = '"\N{RECEIPT}"'
"""A result that needs four bytes for a character, which some encodings do not have."""


def rehearse(conn: sa.Connection, tables: LedgerTables) -> None:
    """Claim, lose, complete and release as effects do, and leave no trace.

    Raises:
        ConfigurationError: It went otherwise than it has to.

    """
    savepoint = conn.begin_nested()
    try:
        _play(conn, tables)
    except exc.DBAPIError as error:
        if fault_of(error) is not Fault.OTHER:
            raise
        told = str(error.orig).partition("\n")[0]
        raise ConfigurationError(
            f"The ledger's table {tables.effects.fullname} does not take an effect: {told}. "
            "At set-up one is written, read, changed and deleted, and rolled back. The database "
            "must be writable, this user needs SELECT, INSERT, UPDATE and DELETE on the table, "
            "and its columns must be those that `langgraph-idem schema` prints."
        ) from error
    finally:
        if savepoint.is_active:
            savepoint.rollback()


def _play(conn: sa.Connection, tables: LedgerTables) -> None:
    table = tables.effects.fullname
    statements = LedgerStatements(tables, conn.dialect.name, _WAIT)
    stem = uuid.uuid4().hex.ljust(MAX_KEY - 1, "\N{RECEIPT}")
    calls = [_call(stem + end) for end in _ENDS]
    for call, end in zip(calls, _ENDS, strict=True):
        if not statements.insert(conn, call):
            raise ConfigurationError(_taken_for_another(table, end))
    if statements.insert(conn, _call(calls[0].key)):
        raise ConfigurationError(_won_twice(table))
    done = statements.complete(conn, calls[0], _TEXT) and statements.release(conn, calls[1])
    if not done or statements.standing(conn, calls[1]) is not None:
        raise ConfigurationError(_unchanged(table))


def _call(key: str) -> Call:
    return Call(
        scope=GLOBAL,
        operation=_OPERATION,
        key=key,
        kind=Kind.TRANSACTIONAL,
        fingerprint="",
        arguments=_TEXT,
        attempt_id=uuid.uuid4().hex,
    )


def _taken_for_another(table: str, end: str) -> str:
    return (
        f"Table {table} takes two keys for one, which differ by {end!r} at the end only: an effect "
        "would be answered with another one's result. Its columns scope, operation and key must "
        "be compared byte by byte. Give them the type and collation that `langgraph-idem schema` "
        "prints."
    )


def _won_twice(table: str) -> str:
    return (
        f"Table {table} took a second claim of the same effect: two callers would both bring it "
        "about. Something lets inserts pass by its primary key (a trigger, a rule, a partition): "
        "remove it."
    )


def _unchanged(table: str) -> str:
    return (
        f"Table {table} did not change when an effect was completed or released. Something keeps "
        "changes out (a trigger, a rule, row-level security): remove it, or give this user its "
        "rows."
    )
