"""The engines of one ledger: made from a URL when first needed, or the user's own."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import math
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.orm import Session, sessionmaker

from langgraph_idem.errors import ConfigurationError
from langgraph_idem.sql.dialects import MYSQL_LIKE, SUPPORTED
from langgraph_idem.sql.probes.sqlite import ASKED_JOURNAL

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession

_POOL: Final = {"sqlite": (8, 56), "postgresql": (8, 24), "mysql": (8, 24), "mariadb": (8, 24)}
"""Connections kept, and further ones at a peak, for each colour of a ledger made from a URL."""


@dataclass(frozen=True)
class _Driver:
    name: str
    module: str
    extra: str


_BLOCKING: Final = {
    "sqlite": _Driver("pysqlite", "sqlite3", "sqlite"),
    "postgresql": _Driver("psycopg", "psycopg", "postgres"),
    "mysql": _Driver("pymysql", "pymysql", "mysql"),
    "mariadb": _Driver("pymysql", "pymysql", "mysql"),
}
_AWAITING: Final = {
    "sqlite": _Driver("aiosqlite", "aiosqlite", "sqlite"),
    "postgresql": _Driver("psycopg", "psycopg", "postgres"),
    "mysql": _Driver("asyncmy", "asyncmy", "mysql"),
    "mariadb": _Driver("asyncmy", "asyncmy", "mysql"),
}
_ASYNCPG: Final = _Driver("asyncpg", "asyncpg", "asyncpg")


class Engines:
    """Both colours of one database.

    Args:
        bind: A URL, an Engine, an AsyncEngine, a sessionmaker or an async_sessionmaker.
        wait_seconds: How long a statement waits for SQLite's lock, on engines of our own.

    """

    def __init__(self, bind: Any, wait_seconds: float) -> None:
        self._wait = wait_seconds
        self._lock = threading.Lock()
        self._url: sa.URL | None = None
        self._engine: sa.Engine | None = None
        self._async_engine: AsyncEngine | None = None
        self._sessions: Any = Session
        self._async_sessions: Any = None
        self._own_engine: sa.Engine | None = None
        self._own_async: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncEngine] = (
            WeakKeyDictionary()
        )
        self._take(bind)
        self.dialect = self._dialect()

    @property
    def sqlite_file(self) -> str | None:
        """Path of the SQLite file; None if it is no SQLite, or in memory."""
        engine = self._engine or self._async_engine
        url = self._url if self._url is not None else engine.url  # type: ignore[union-attr]  # one of the three is there
        if self.dialect != "sqlite" or not url.database or _is_memory(url):
            return None
        return url.database.removeprefix("file:").partition("?")[0]

    def blocking(self) -> sa.Engine:
        """Return the engine for sync tools.

        Raises:
            ConfigurationError: The ledger was made from an async engine, or the driver is missing.

        """
        if self._engine is not None:
            return self._engine
        if self._url is None:
            raise ConfigurationError(
                "This ledger was made from an AsyncEngine, which cannot serve a sync function. "
                "Write `async def`, or make the ledger from a URL, which serves both."
            )
        with self._lock:
            if self._engine is None:
                self._own_engine = _own_engine(self._url, self._wait)
                self._engine = self._own_engine
        return self._engine

    def awaiting(self) -> AsyncEngine:
        """Return the engine for async tools on the running loop.

        Raises:
            ConfigurationError: The ledger was made from a sync engine, or the driver is missing.

        """
        if self._async_engine is not None:
            return self._async_engine
        if self._url is None:
            raise ConfigurationError(
                "This ledger was made from a sync Engine, which cannot serve an async function. "
                "Write `def`, or make the ledger from a URL, which serves both."
            )
        loop = asyncio.get_running_loop()
        with self._lock:
            if loop not in self._own_async:
                self._own_async[loop] = _own_async_engine(self._url, self._wait)
            return self._own_async[loop]

    def check_colour(self, *, is_async: bool) -> None:
        """Refuse a function whose colour these engines cannot serve.

        Raises:
            ConfigurationError: With what to write instead.

        """
        if self._url is not None:
            _check_driver(_driver(self._url, is_async=is_async))
        elif is_async:
            self.awaiting()
        else:
            self.blocking()

    def session(self, conn: sa.Connection) -> Session:
        """Open a Session inside the connection's transaction, which it can undo but not commit."""
        session: Session = self._sessions(bind=conn, join_transaction_mode="rollback_only")
        return session

    def async_session(self, conn: AsyncConnection) -> AsyncSession:
        """Open an AsyncSession inside the connection's transaction, likewise."""
        if self._async_sessions is None:
            from sqlalchemy.ext.asyncio import AsyncSession

            self._async_sessions = AsyncSession
        session: AsyncSession = self._async_sessions(
            bind=conn, join_transaction_mode="rollback_only"
        )
        return session

    def close(self) -> None:
        """Close the sync engine, if it was made here."""
        with self._lock:
            if self._own_engine is not None:
                self._own_engine.dispose()
                self._own_engine = self._engine = None

    async def aclose(self) -> None:
        """Close the running loop's async engine and the sync one, if they were made here."""
        with self._lock:
            own = self._own_async.pop(asyncio.get_running_loop(), None)
        if own is not None:
            await own.dispose()
        self.close()

    def _take(self, bind: Any) -> None:
        if isinstance(bind, (str, sa.URL)):
            self._url = _checked_url(bind)
        elif isinstance(bind, sa.Engine):
            self._engine = bind
        elif isinstance(bind, sessionmaker):
            self._sessions = bind
            self._engine = _bind_of(bind, sa.Engine)
        elif importlib.util.find_spec("greenlet") is None or not self._took_async(bind):
            raise ConfigurationError(
                "A ledger is made from a database URL, an Engine, an AsyncEngine, a sessionmaker "
                f"or an async_sessionmaker; this is {type(bind).__name__}."
            )

    def _took_async(self, bind: Any) -> bool:
        from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker

        if isinstance(bind, async_sessionmaker):
            self._async_sessions = bind
            bind = _bind_of(bind, AsyncEngine)
        if not isinstance(bind, AsyncEngine):
            return False
        self._async_engine = bind
        _end_before_closing(bind.sync_engine)
        return True

    def _dialect(self) -> str:
        engine = self._engine or self._async_engine
        name = self._url.get_backend_name() if self._url is not None else engine.dialect.name  # type: ignore[union-attr]  # one of the three is there
        if name not in SUPPORTED:
            raise ConfigurationError(
                f"{name} is not supported: a ledger needs SQLite, PostgreSQL, MariaDB or MySQL."
            )
        return name


def _bind_of(maker: Any, wanted: type) -> Any:
    bind = maker.kw.get("bind")
    if not isinstance(bind, wanted):
        raise ConfigurationError(
            f"The {type(maker).__name__} has no {wanted.__name__} as its bind. Give it one: the "
            "ledger must know which database its rows share a transaction with."
        )
    if maker.kw.get("binds"):
        raise ConfigurationError(
            f"The {type(maker).__name__} has binds=, by which some tables would be written on "
            "connections of their own, outside of the ledger's transaction. Give it one bind."
        )
    return bind


def _checked_url(url: str | sa.URL) -> sa.URL:
    try:
        made = sa.make_url(url)
    except sa.exc.ArgumentError as error:
        raise ConfigurationError(
            f"{url!r} is no database URL. Write one like sqlite:///shop.db or "
            "postgresql://user:password@host/database."
        ) from error
    if made.drivername == "postgres":
        made = made.set(drivername="postgresql")
    if made.get_backend_name() == "sqlite" and _is_memory(made):
        raise ConfigurationError(
            "An in-memory SQLite database forgets everything when the process dies, which is when "
            "a ledger is needed. Name a file: sqlite:///idem.db."
        )
    return made


def _is_memory(url: sa.URL) -> bool:
    return (
        not url.database
        or ":memory:" in url.database
        or "mode=memory" in url.database
        or url.query.get("mode") == "memory"
    )


def _driver(url: sa.URL, *, is_async: bool) -> _Driver:
    backend = url.get_backend_name()
    if is_async and url.drivername.endswith("+asyncpg"):
        return _ASYNCPG
    known = (_AWAITING if is_async else _BLOCKING).get(backend)
    if known is None:
        raise ConfigurationError(
            f"{backend} is not supported: a ledger needs SQLite, PostgreSQL, MariaDB or MySQL."
        )
    return known


def _check_driver(driver: _Driver) -> None:
    if importlib.util.find_spec(driver.module) is None:
        raise ConfigurationError(
            f"The database driver {driver.module} is not installed: "
            f'pip install "langgraph-idem[{driver.extra}]"'
        )


def _options(url: sa.URL, wait_seconds: float, *, is_async: bool) -> dict[str, Any]:
    driver = _driver(url, is_async=is_async)
    _check_driver(driver)
    size, overflow = _POOL[url.get_backend_name()]
    options: dict[str, Any] = {
        "url": url.set(drivername=f"{url.get_backend_name()}+{driver.name}"),
        "pool_size": size,
        "max_overflow": overflow,
    }
    if url.get_backend_name() == "sqlite":
        options["connect_args"] = {"timeout": wait_seconds}
        options["isolation_level"] = "AUTOCOMMIT"  # as every transaction needs it; see sites.py
    return options


def _own_engine(url: sa.URL, wait_seconds: float) -> sa.Engine:
    engine = sa.create_engine(**_options(url, wait_seconds, is_async=False))
    _prepare(engine, wait_seconds)
    return engine


def _own_async_engine(url: sa.URL, wait_seconds: float) -> AsyncEngine:
    from sqlalchemy.ext.asyncio import create_async_engine

    engine = create_async_engine(**_options(url, wait_seconds, is_async=True))
    _prepare(engine.sync_engine, wait_seconds)
    return engine


def _prepare(engine: sa.Engine, wait_seconds: float) -> None:
    """Set up what can only be set on each connection."""
    settings = _settings(engine.dialect.name, wait_seconds)
    is_sqlite = engine.dialect.name == "sqlite"

    @event.listens_for(engine, "connect")
    def _set(connection: Any, record: Any) -> None:
        if is_sqlite:
            record.info[ASKED_JOURNAL] = "wal"  # setup() looks whether it was had
        try:
            for setting in settings:
                with contextlib.closing(connection.cursor()) as cursor:
                    cursor.execute(setting)
        except BaseException:  # cancelled: nobody else knows of this connection yet
            connection.close()
            raise

    _end_before_closing(engine)


def _end_before_closing(engine: sa.Engine) -> None:
    """Let a connection that was cancelled end its transaction before it is closed.

    A SQLite connection that is closed while one of its statements is alive keeps its lock, and a
    cancelled ``INSERT ... RETURNING`` is kept alive by the traceback of its exception.
    """
    if engine.dialect.driver == "aiosqlite" and not event.contains(engine, "invalidate", _end):
        event.listen(engine, "invalidate", _end)


def _end(connection: Any, _record: Any, _error: BaseException | None) -> None:
    # Cancelled once more, or not in a greenlet: the roll-back is sent, or the garbage's anyway.
    with contextlib.suppress(Exception, asyncio.CancelledError):
        connection.rollback()


def _settings(dialect: str, wait_seconds: float) -> tuple[str, ...]:
    """Make SQLite durable and let it read while somebody writes; bound MariaDB's wait for a lock.

    PostgreSQL's wait is bounded within the claim.
    """
    if dialect == "sqlite":
        return ("PRAGMA journal_mode=WAL", "PRAGMA synchronous=FULL")
    if dialect in MYSQL_LIKE:
        whole_seconds = max(1, math.ceil(wait_seconds))
        return (f"SET SESSION innodb_lock_wait_timeout = {whole_seconds}",)
    return ()
