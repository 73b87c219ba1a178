"""The databases that are measured: as durable as in production, and thrown away afterwards."""

from __future__ import annotations

import contextlib
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

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


@dataclass(frozen=True)
class Database:
    """One database.

    Attributes:
        name: ``SQLite`` or ``PostgreSQL``.
        url: Its SQLAlchemy URL.

    """

    name: str
    url: str

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
    """Open every database there is.

    Args:
        postgresql: URL of a PostgreSQL server; None: a throw-away one, if it can be started.

    """
    with contextlib.ExitStack() as stack:
        # Beside the sources, since /tmp may be in memory, where a commit costs nothing.
        folder = stack.enter_context(tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-"))
        found = [Database("SQLite", f"sqlite:///{folder}/shop.db")]
        with contextlib.suppress(ServerMissingError):
            server = postgresql or stack.enter_context(DurablePostgres()).url
            url = stack.enter_context(fresh_postgres_database(server))
            found.append(Database("PostgreSQL", url))
        yield found


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
