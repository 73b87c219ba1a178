"""Advice about the checkpointer: it must not share its SQLite file with the ledger."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

from langgraph_idem.advice import SharedFileWarning, once

if TYPE_CHECKING:
    from collections.abc import Iterable

    from langgraph_idem.ledger import Ledger

_FILES = "PRAGMA database_list"
_looked_at: WeakKeyDictionary[Ledger, WeakSet[Any]] = WeakKeyDictionary()


def check_file(ledger: Ledger, checkpointer: Any) -> None:
    """Warn if a ledger's SQLite file is the checkpointer's own; looked at once for each pair.

    Of an ``AsyncSqliteSaver`` this can be known on its event loop only; see :func:`acheck_file`.

    Args:
        ledger: The ledger.
        checkpointer: A checkpointer, or what stands for none.

    """
    connection = getattr(checkpointer, "conn", None)
    if not isinstance(connection, sqlite3.Connection) or not _is_new(ledger, checkpointer):
        return
    # A connection of another thread refuses to be asked; it then serves no graph there either.
    with checkpointer.lock, contextlib.suppress(sqlite3.Error):
        _compare(ledger, connection.execute(_FILES).fetchall())


async def acheck_file(ledger: Ledger, checkpointer: Any) -> None:
    """Warn if a ledger's SQLite file is the checkpointer's own, as :func:`check_file` does."""
    connection: Any = getattr(checkpointer, "conn", None)
    if not _is_aiosqlite(connection):
        check_file(ledger, checkpointer)
    elif _is_new(ledger, checkpointer):
        async with connection.execute(_FILES) as cursor:
            _compare(ledger, await cursor.fetchall())


def _is_aiosqlite(connection: Any) -> bool:
    return type(connection).__module__.partition(".")[0] == "aiosqlite"


def _is_new(ledger: Ledger, checkpointer: Any) -> bool:
    """Take note of a pair; False if it was looked at before or cannot share a file."""
    seen = _looked_at.setdefault(ledger, WeakSet())
    if ledger.sqlite_file is None or checkpointer in seen:
        return False
    seen.add(checkpointer)
    return True


def _compare(ledger: Ledger, listed: Iterable[Any]) -> None:
    own = ledger.sqlite_file
    for _number, _name, file in listed:
        if own and file and os.path.realpath(file) == os.path.realpath(own):
            once((SharedFileWarning, own), _warning(own))


def _warning(file: str) -> SharedFileWarning:
    return SharedFileWarning(
        f"The ledger and the checkpointer write to one SQLite file, {file}. SQLite lets one of "
        "them write at a time: while a tool's transaction is open no checkpoint can be stored, and "
        "a run may end with its effect done and no checkpoint of it. Give the checkpointer a file "
        'of its own: SqliteSaver.from_conn_string("checkpoints.db").'
    )
