"""The databases that are measured, and thrown away afterwards.

Each twice: as durable as in production, where most of an effect's time is the disk's, and with
commits that wait for no disk, where nothing hides our own work. Both run the same statements.
"""

from __future__ import annotations

import contextlib
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from tests.support.databases import (
    START_TIMEOUT,
    ServerMissingError,
    ThrowAwayPostgres,
    as_async,
    fresh_postgres_database,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

POOL = {"pool_size": 8, "max_overflow": 56}
IN_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - a fresh folder is made there
"""Where a file's commit costs nothing: Linux keeps it in memory."""


@dataclass(frozen=True)
class Database:
    """One database.

    Attributes:
        name: ``SQLite`` or ``PostgreSQL``.
        url: Its SQLAlchemy URL.
        is_durable: Whether a commit waits for the disk.

    """

    name: str
    url: str
    is_durable: bool = True

    @property
    def where(self) -> str:
        """How figures call it."""
        return self.name if self.is_durable else f"{self.name} without the disk"

    def engine(self) -> sa.Engine:
        """Make an engine as an application would."""
        return _durable(sa.create_engine(self.url, **POOL))

    def async_engine(self) -> AsyncEngine:
        """Make an async engine as an application would."""
        engine = create_async_engine(as_async(self.url), **POOL)
        _durable(engine.sync_engine)
        return engine


class DurablePostgres(ThrowAwayPostgres):
    """A throw-away server that, unlike the tests', waits for the disk at each commit."""

    def start(self) -> None:
        """Start the server and wait until it answers."""
        options = f"-p {self._port} -k {self._folder} -c listen_addresses=127.0.0.1"
        more = " -c max_connections=200 -c fsync=on -c synchronous_commit=on"
        log = str(self._folder / "server.log")
        self._pg_ctl("start", "-t", str(int(START_TIMEOUT)), "-l", log, "-o", options + more)


@contextlib.contextmanager
def databases(postgresql: str | None) -> Iterator[list[Database]]:
    """Open every database there is, the durable ones first.

    Args:
        postgresql: URL of a PostgreSQL server; None: a throw-away one, if it can be started.

    """
    with contextlib.ExitStack() as stack:
        # Beside the sources, since /tmp may be in memory.
        found = [_sqlite(stack, Path.cwd(), is_durable=True)]
        if IN_MEMORY.is_dir():
            found.append(_sqlite(stack, IN_MEMORY, is_durable=False))
        with contextlib.suppress(ServerMissingError):
            server = postgresql or stack.enter_context(DurablePostgres()).url
            found += [_postgresql(stack, server, is_durable=durable) for durable in (True, False)]
        yield sorted(found, key=lambda database: not database.is_durable)


def _sqlite(stack: contextlib.ExitStack, folder: Path, *, is_durable: bool) -> Database:
    own = stack.enter_context(tempfile.TemporaryDirectory(dir=folder, prefix=".bench-"))
    return Database("SQLite", f"sqlite:///{own}/shop.db", is_durable)


def _postgresql(stack: contextlib.ExitStack, server: str, *, is_durable: bool) -> Database:
    url = stack.enter_context(fresh_postgres_database(server))
    wait = "on" if is_durable else "off"
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as conn:  # of the database, not of a session: it holds for peers as well
        name = conn.engine.url.database
        conn.exec_driver_sql(f'alter database "{name}" set synchronous_commit = {wait}')
    engine.dispose()
    return Database("PostgreSQL", url, is_durable)


def _durable(engine: sa.Engine) -> sa.Engine:
    """Give SQLite the pragmas that the ledger's own engines have: the same disk, the same rules."""
    if engine.dialect.name == "sqlite":

        @event.listens_for(engine, "connect")
        def _pragmas(connection: Any, _record: Any) -> None:
            cursor = connection.cursor()
            cursor.execute("PRAGMA journal_mode=WAL")
            cursor.execute("PRAGMA synchronous=FULL")
            cursor.execute("PRAGMA busy_timeout=30000")
            cursor.close()

    return engine
