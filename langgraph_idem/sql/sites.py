"""Where a call runs: blocking in a thread, or awaiting on an event loop. The same ports twice."""

from __future__ import annotations

import asyncio
import inspect
import time
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import sqlalchemy as sa
from sqlalchemy import exc

from langgraph_idem.errors import ConfigurationError, LedgerError
from langgraph_idem.sql.dialects import Fault, fault_of
from langgraph_idem.sql.prepared import send

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator

    from sqlalchemy.ext.asyncio import AsyncConnection

    from langgraph_idem.effects import Effect
    from langgraph_idem.ports import Site
    from langgraph_idem.sql.engines import Engines

T = TypeVar("T")


class AttemptLost(Exception):
    """The database gave up on the attempt; nothing of it is known to be recorded."""

    def __init__(self, fault: Fault, cause: BaseException) -> None:
        super().__init__(str(cause))
        self.fault = fault
        self.cause = cause


class Takes(Enum):
    """What a user's function wants as its first parameter."""

    SESSION = "Session"
    CONNECTION = "Connection"
    EFFECT = "Effect"


@dataclass(frozen=True)
class Body:
    """The user's function with the arguments of one call."""

    function: Callable[..., Any]
    takes: Takes
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    lookup: Callable[[Effect], Any] | None = None

    def run(self, first: Any) -> Any:
        """Call it with what it takes first."""
        return self.function(first, *self.args, **self.kwargs)


@dataclass(frozen=True)
class BlockingTransaction:
    """A transaction in the thread that runs the tool."""

    conn: sa.Connection
    engines: Engines
    body: Body

    async def sql(self, work: Callable[[sa.Connection], T]) -> T:
        """Run the ledger's own SQL."""
        try:
            return work(self.conn)
        except exc.DBAPIError as error:
            _tell(error)

    async def tool(self) -> Any:
        """Run the user's function, and see that it left the transaction open."""
        with _commit_is_ours(self.conn) as ours:
            if self.body.takes is Takes.CONNECTION:
                value = self.body.run(self.conn)
            else:
                with self.engines.session(self.conn) as session:
                    value = self.body.run(session)
                    _check_open(self.conn, ours)
                    session.flush()
        _check_open(self.conn, ours)
        return value

    async def commit(self) -> None:
        """Commit claim, business rows and result as one."""
        _commit(self.conn)


@dataclass(frozen=True)
class AwaitingTransaction:
    """A transaction on an event loop."""

    conn: AsyncConnection
    engines: Engines
    body: Body

    async def sql(self, work: Callable[[sa.Connection], T]) -> T:
        """Run the ledger's own SQL: the very functions that the blocking site runs."""
        try:
            return await self.conn.run_sync(work)
        except exc.DBAPIError as error:
            _tell(error)

    async def tool(self) -> Any:
        """Run the user's function, and see that it left the transaction open."""
        sync_conn = self.conn.sync_connection
        with _commit_is_ours(sync_conn) as ours:
            if self.body.takes is Takes.CONNECTION:
                value = await self.body.run(self.conn)
            else:
                async with self.engines.async_session(self.conn) as session:
                    value = await self.body.run(session)
                    _check_open(sync_conn, ours)
                    await session.flush()
        _check_open(sync_conn, ours)
        return value

    async def commit(self) -> None:
        """Commit claim, business rows and result as one."""
        await self.conn.run_sync(_commit)


@dataclass(frozen=True)
class BlockingSite:
    """Runs sync functions in the thread that called."""

    engines: Engines
    body: Body

    @asynccontextmanager
    async def transaction(self, *, writes: bool = True) -> AsyncIterator[BlockingTransaction]:
        """Open a transaction, or only a connection to read from."""
        with _lost_attempts(), _connecting(self.engines.blocking().connect) as conn:
            (_begin if writes else _only_read)(conn)
            yield BlockingTransaction(conn, self.engines, self.body)

    async def call(self, effect: Effect) -> Any:
        """Run the remote function."""
        return self.body.run(effect)

    async def lookup(self, effect: Effect) -> Any:
        """Run the look-up."""
        return self.body.lookup(effect) if self.body.lookup is not None else None

    async def sleep(self, seconds: float) -> None:
        """Sleep in the thread."""
        time.sleep(seconds)

    def monotonic(self) -> float:
        """Return the time that only moves on."""
        return time.monotonic()

    async def shielded(self, work: Coroutine[Any, Any, T]) -> T:
        """Nothing cancels a thread."""
        return await work


@dataclass(frozen=True)
class AwaitingSite:
    """Runs async functions on the running loop."""

    engines: Engines
    body: Body

    @asynccontextmanager
    async def transaction(self, *, writes: bool = True) -> AsyncIterator[AwaitingTransaction]:
        """Open a transaction, or only a connection to read from."""
        with _lost_attempts():
            conn = await _aconnecting(self.engines.awaiting().connect())
            try:
                await conn.run_sync(_begin if writes else _only_read)
                yield AwaitingTransaction(conn, self.engines, self.body)
            finally:  # a cancel must not leak it, nor leave while it still holds the lock
                await self.shielded(conn.close())

    async def call(self, effect: Effect) -> Any:
        """Await the remote function."""
        return await self.body.run(effect)

    async def lookup(self, effect: Effect) -> Any:
        """Await the look-up; a sync one would block the loop, so it goes to a thread."""
        if self.body.lookup is None:
            return None
        if inspect.iscoroutinefunction(self.body.lookup):
            return await self.body.lookup(effect)
        answer = await asyncio.to_thread(self.body.lookup, effect)
        return await answer if inspect.isawaitable(answer) else answer

    async def sleep(self, seconds: float) -> None:
        """Sleep on the loop."""
        await asyncio.sleep(seconds)

    def monotonic(self) -> float:
        """Return the time that only moves on."""
        return time.monotonic()

    async def shielded(self, work: Coroutine[Any, Any, T]) -> T:
        """Let the work finish, however often the caller is cancelled meanwhile."""
        task = asyncio.ensure_future(work)
        cancelled: asyncio.CancelledError | None = None
        while not task.done():
            try:
                await asyncio.shield(task)
            except asyncio.CancelledError as error:
                if task.cancelled():
                    raise
                cancelled = error
            except BaseException:  # noqa: BLE001 - the task's own failure, raised by result() below
                break
        if cancelled is not None:
            task.exception()
            raise cancelled
        return task.result()


@dataclass(eq=False)
class Sites:
    """Makes the sites of one ledger, one for each call.

    Attributes:
        engines: The database.
        around: Stands between the protocols and each site that is made. Nothing does, but for
            tests, which let a call end at any step without the protocols knowing of it.

    """

    engines: Engines
    around: Callable[[Site], Site] = lambda site: site

    def blocking(self, body: Body) -> Site:
        """Make the site of a call that blocks its thread."""
        return self.around(BlockingSite(self.engines, body))

    def awaiting(self, body: Body) -> Site:
        """Make the site of a call on an event loop."""
        return self.around(AwaitingSite(self.engines, body))


def _begin(conn: sa.Connection) -> None:
    """Begin for real. SQLite takes the write lock at once: a later upgrade could fail at once."""
    try:
        _leave_begin_to_us(conn)
        conn.begin()
        if conn.dialect.name == "sqlite":
            _begin_immediate(conn)
    except exc.DBAPIError as error:
        _tell(error)


def _only_read(conn: sa.Connection) -> None:
    """Let every statement be a transaction of its own: one round trip instead of three.

    And psycopg forgets its prepared statements at every ROLLBACK. Elsewhere SQLite needs no
    transaction to read, and MariaDB's would take a round trip to switch off.
    """
    if conn.dialect.name == "postgresql":
        conn.execution_options(isolation_level="AUTOCOMMIT")


def _begin_immediate(conn: sa.Connection) -> None:
    try:
        send(conn, "BEGIN IMMEDIATE")
    except exc.OperationalError as error:
        if "within a transaction" not in str(error.orig):
            raise
        # A listener of the user's engine has sent its own, deferred BEGIN. Nothing ran in it.
        send(conn, "ROLLBACK")
        send(conn, "BEGIN IMMEDIATE")


def _leave_begin_to_us(conn: sa.Connection) -> None:
    """Put the connection, until it is given back, in a mode where a transaction is one.

    SQLite's driver begins transactions by guessing from the statement, so that a claim inside a
    savepoint would be committed by itself (bpo-10740); in autocommit mode it leaves BEGIN to us.
    Elsewhere autocommit is what must not be. It is set on the connection, for an option of the
    user's engine would win over one of ours.
    """
    if _commits_by_itself(conn) != (conn.dialect.name == "sqlite"):
        wanted = "AUTOCOMMIT" if conn.dialect.name == "sqlite" else "READ COMMITTED"
        conn.execution_options(isolation_level=wanted)


def _commits_by_itself(conn: sa.Connection) -> bool:
    at_connect = getattr(conn.dialect, "_on_connect_isolation_level", None)
    if conn.get_execution_options().get("isolation_level", at_connect) == "AUTOCOMMIT":
        return True
    told = getattr(conn.connection.driver_connection, "get_autocommit", None)  # MariaDB, MySQL
    if told is not None:
        return bool(told())
    return getattr(conn.connection.dbapi_connection, "autocommit", None) is True


def _commit(conn: sa.Connection) -> None:
    transaction = conn.get_transaction()
    if transaction is None:
        raise ConfigurationError(_ROLLED_BACK)
    try:
        transaction.commit()
    except exc.OperationalError as error:  # a full disk; a deferred constraint is the tool's own
        _tell(error)


_ROLLED_BACK = (
    "The tool rolled its transaction back and then returned as if it had succeeded, so nothing was "
    "written and nothing is recorded. Raise an exception instead of calling rollback(); for a part "
    "that may fail by itself use session.begin_nested()."
)


def _check_open(conn: sa.Connection | None, ours: sa.Transaction | None) -> None:
    """Refuse to go on in another transaction than the one that holds the claim."""
    now = conn.get_transaction() if conn is not None else None
    if now is None or now is not ours or not now.is_active:
        raise ConfigurationError(_ROLLED_BACK)


@contextmanager
def _commit_is_ours(conn: sa.Connection | None) -> Iterator[sa.Transaction | None]:
    """Make ``commit()`` inside the tool do nothing, as it does for a Session that joined.

    The claim is in this transaction: were it committed now, a crash before the result is
    recorded would leave a claim that nobody can complete. And after a rollback nothing may begin
    anew, for a Session would own, and could commit, that second transaction. The methods are
    hidden on the instance because SQLAlchemy offers no hook that could turn them down.
    """
    if conn is None:  # pragma: no cover - an open AsyncConnection always has its sync one
        yield None
        return

    def begin() -> sa.RootTransaction:
        if conn.get_transaction() is None:
            raise ConfigurationError(_ROLLED_BACK)
        return type(conn).begin(conn)

    conn.begin = begin  # type: ignore[method-assign]  # see above
    conn.commit = lambda: None  # type: ignore[method-assign]  # see above
    try:
        yield conn.get_transaction()
    finally:
        del conn.begin, conn.commit


def _tell(error: exc.DBAPIError) -> NoReturn:
    """Put a failure of the ledger's own statements into words; leave one that a retry can mend."""
    fault = fault_of(error)
    if fault is Fault.MISSING_TABLE:
        raise LedgerError(
            "The ledger's tables are not there. Call ledger.setup() (or await "
            "ledger.asetup()) once, when the program starts."
        ) from error
    if fault is Fault.OTHER:
        raise LedgerError(f"The ledger's database failed: {error.orig}") from error
    raise error


@contextmanager
def _lost_attempts() -> Iterator[None]:
    """Turn errors that ask for another attempt, from our SQL or the tool's, into AttemptLost."""
    try:
        yield
    except exc.DBAPIError as error:
        fault = fault_of(error)
        if fault in {Fault.CONTENTION, Fault.LOCKED, Fault.DISCONNECTED}:
            raise AttemptLost(fault, error) from error
        raise
    except exc.TimeoutError as error:  # the pool had no connection to give
        raise AttemptLost(Fault.LOCKED, error) from error


_REFUSED_BY_SERVER = ("28", "3D")
"""SQLSTATE classes that no waiting mends: wrong password, no such database."""


def _connecting(connect: Callable[[], sa.Connection]) -> sa.Connection:
    try:
        return connect()
    except (exc.DBAPIError, OSError) as error:
        raise _no_connection(error) from error


async def _aconnecting(conn: AsyncConnection) -> AsyncConnection:
    try:
        return await conn.start()
    except (exc.DBAPIError, OSError) as error:
        raise _no_connection(error) from error


def _no_connection(error: Exception) -> Exception:
    state = str(getattr(getattr(error, "orig", None), "sqlstate", None) or "")
    if state.startswith(_REFUSED_BY_SERVER) or "unable to open database file" in str(error):
        return LedgerError(f"The ledger's database cannot be opened: {error}")
    return AttemptLost(fault_of(error) if _is_busy(error) else Fault.DISCONNECTED, error)


def _is_busy(error: Exception) -> bool:
    return fault_of(error) is Fault.LOCKED
