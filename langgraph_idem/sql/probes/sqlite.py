"""What SQLite is asked: where its file is, how it is journaled, what is unique in it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import sqlalchemy as sa

from langgraph_idem.errors import ConfigurationError
from langgraph_idem.sql.probes.mounts import network_file_system
from langgraph_idem.sql.probes.uniqueness import UniqueIndex, gathered

if TYPE_CHECKING:
    from collections.abc import Sequence

    from langgraph_idem.sql.schema import LedgerTables

_OLDEST: Final = (3, 35, 0)
"""The first with RETURNING, by which a claim knows that it won."""
_WITHOUT_LOCKS: Final = re.compile(r"[?&]((?:nolock|immutable)=[^0&][^&]*|vfs=unix-none)(?=&|$)")
_KEPT_AFTER_A_CRASH: Final = frozenset({"delete", "truncate", "persist", "wal"})

ASKED_JOURNAL: Final = "langgraph_idem_asked_journal"
"""Under this name a connection's ``info`` says which journal mode the ledger asked for."""


def check_database(conn: sa.Connection, tables: LedgerTables) -> None:
    """Refuse a SQLite that is too old, in memory, on a network, or without a proper journal.

    Raises:
        ConfigurationError: With what to do.

    """
    _check_version(conn)
    _check_locks(conn.engine.url)
    schema = tables.effects.schema or "main"
    files = {row.name: row.file for row in conn.exec_driver_sql("PRAGMA database_list")}
    if schema not in files:
        raise ConfigurationError(
            f"No database is attached to this SQLite connection as {schema}. SQLite has no schemas "
            "of its own: leave schema= out, or attach the file on every connection."
        )
    _check_place(files[schema])
    journals = {name: _journal(conn, name) for name in {"main", schema}}
    _check_journal(conn, journals[schema])
    if schema != "main" and "wal" in journals.values():
        raise ConfigurationError(
            f"The ledger is in an attached file ({schema}), and with a write-ahead log SQLite does "
            "not commit several files as one: after a crash an effect could be in one of them "
            "only. Leave schema= out, so that the ledger is in the file of the business rows; or "
            "set journal_mode=DELETE on both files."
        )


def check_table(_conn: sa.Connection, _effects: sa.Table) -> None:
    """Find nothing to refuse: what there is to SQLite's tables is in their indexes."""


def unique_indexes(conn: sa.Connection, effects: sa.Table) -> Sequence[UniqueIndex]:
    """List the table's unique indexes."""
    query = sa.text(
        'select i.name, i.partial, c.name as "column", c.coll from pragma_index_list(:t, :s) i,'
        ' pragma_index_xinfo(i.name, :s) c where i."unique" and c.key order by i.name, c.seqno'
    )
    names = {"t": effects.name, "s": effects.schema or "main"}
    return gathered(conn.execute(query, names), _flaw)


def _flaw(rows: Sequence[sa.Row[tuple[object, ...]]]) -> str | None:
    if rows[0].partial:
        return "is partial"
    folding = {row.coll for row in rows if row.coll.upper() != "BINARY"}
    return f"compares by {', '.join(sorted(folding))}, not byte by byte" if folding else None


def _check_version(conn: sa.Connection) -> None:
    version = str(conn.exec_driver_sql("select sqlite_version()").scalar())
    if tuple(map(int, version.split("."))) < _OLDEST:
        wanted = ".".join(map(str, _OLDEST))
        raise ConfigurationError(
            f"This Python is linked to SQLite {version}; a ledger needs {wanted} or later (for "
            "INSERT ... RETURNING). Use a newer Python or system, or another database."
        )


def _check_locks(url: sa.URL) -> None:
    if found := _WITHOUT_LOCKS.search(url.render_as_string()):
        raise ConfigurationError(
            f"{found[1]} opens the SQLite file without locks: two processes could both win, or "
            "damage it. Leave it out."
        )


def _check_place(file: str) -> None:
    if not file:
        raise ConfigurationError(
            "This engine's SQLite database is in memory: it forgets everything when the process "
            "dies, which is when a ledger is needed, and every connection may have one of its own. "
            "Name a file: sqlite:///idem.db."
        )
    if (kind := network_file_system(file)) is not None:
        raise ConfigurationError(
            f"{file} is on a network file system ({kind}). SQLite's locks and its write-ahead log "
            "hold on one machine only (sqlite.org/wal.html): two machines could both win, or "
            "damage the file. Put it on a local disk, or use PostgreSQL."
        )


def _journal(conn: sa.Connection, schema: str) -> str:
    quoted = conn.dialect.identifier_preparer.quote(schema)
    return str(conn.exec_driver_sql(f"PRAGMA {quoted}.journal_mode").scalar()).lower()


def _check_journal(conn: sa.Connection, mode: str) -> None:
    if mode not in _KEPT_AFTER_A_CRASH:
        raise ConfigurationError(
            f"This SQLite connection has journal_mode={mode.upper()}, with which a process that is "
            "killed inside a transaction leaves a damaged file. Set journal_mode=WAL, or DELETE, "
            "SQLite's default."
        )
    asked = conn.info.get(ASKED_JOURNAL, mode)
    if asked != mode:
        raise ConfigurationError(
            f"SQLite was asked for journal_mode={asked.upper()} and answers {mode.upper()}: this "
            "file, or the way it is opened (vfs=), has no shared memory and perhaps no locks. Put "
            "it on a local disk and open it as an ordinary file."
        )
