"""What an effect opens it closes, however it ends: connections, tasks, threads, file handles."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import datetime as dt
import gc
import threading
import time
from collections.abc import Awaitable, Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from langgraph_idem import (
    Effect,
    EffectBusy,
    Ledger,
    OutcomeUnknown,
    RecordedFailure,
    ResultNotStorable,
)
from langgraph_idem.sql.schema import ledger_tables
from tests.support import shop as shops
from tests.support.shop import Shop

ROUNDS: Final = 10
WAIT: Final = 0.1
"""Seconds that a loser waits."""

# --- counting -------------------------------------------------------------------------------------


def held(shop: Shop) -> dict[str, Any]:
    """Count what this process, and the server for it, hold now."""
    gc.collect()
    return {
        "threads": sorted(thread.name.partition("-")[0] for thread in threading.enumerate()),
        "files": _open_files(),
        "server": _on_the_server(shop),
    }


def _open_files() -> dict[str, int]:
    """Count the open files by what they are; one socket is like another."""
    found: collections.Counter[str] = collections.Counter()
    for handle in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the listing's own handle is gone already
            found[str(handle.readlink()).partition(":[")[0]] += 1
    return dict(found)


def _on_the_server(shop: Shop) -> dict[str, int]:
    """Count the server's connections of others to this database, by what they are doing."""
    if shop.is_sqlite:
        return {}
    with shop.engine.connect() as conn:
        asked = conn.exec_driver_sql(_CONNECTIONS[shop.engine.dialect.name])
        return {row.state: row.number for row in asked}


_CONNECTIONS: Final = {
    "postgresql": "select coalesce(state, '') as state, count(*) as number from pg_stat_activity"
    " where datname = current_database() and pid <> pg_backend_pid() group by 1",
    "mysql": "select command as state, count(*) as number from information_schema.processlist"
    " where db = database() and id <> connection_id() group by 1",
}


def running(shop: Shop) -> dict[str, Any]:
    """Count what runs, here and on the server, without the open files.

    While one connection to a file is open, SQLite leaves the handle of another one that was closed
    to the next that is opened: there may be one more than before, but never many.
    """
    return {**held(shop), "files": None}


def settled_to(shop: Shop, expected: dict[str, Any]) -> None:
    """Assert that no more is held than expected; a thread or a backend may need a moment to end."""
    deadline = time.monotonic() + 20
    while (now := held(shop)) != expected and time.monotonic() < deadline:
        time.sleep(0.02)
    assert now == expected


# --- what may go wrong ----------------------------------------------------------------------------


class Unstorable:
    """What no ledger can keep."""


@dataclass(frozen=True)
class Ending:
    """A way in which an effect ends.

    Attributes:
        inside: What the tool does last, on the effect's connection.
        raises: What the caller gets; None: the result.
        is_held: Whether somebody else holds the key all the while.

    """

    inside: Callable[[Shop, sa.Connection], Any] = lambda _shop, _conn: "shipped"
    raises: type[BaseException] | None = None
    is_held: bool = False


class Refused(Exception):
    """Says no for good."""


class Broken(Exception):
    """Anything else."""


def _raise(error: BaseException) -> Any:
    raise error


def _cut_once(shop: Shop, conn: sa.Connection) -> str:
    """Lose the connection in the first attempt; the second one is a new connection's."""
    if not conn.info.get("was cut"):
        cuts = shop.__dict__.setdefault("cuts", [])
        cuts.append(None)
        if len(cuts) % 2:
            shop.cut_all_connections()
            conn.exec_driver_sql("select 1")
    return "shipped"


ENDINGS: Final = {
    "succeeds": Ending(),
    "fails": Ending(lambda _shop, _conn: _raise(Broken()), Broken),
    "is refused": Ending(lambda _shop, _conn: _raise(Refused()), Refused),
    "breaks a constraint": Ending(
        lambda _shop, conn: conn.exec_driver_sql(
            "insert into shipments (order_id, note) values ('O-0', 'taken')"
        ),
        sa.exc.IntegrityError,
    ),
    "dies by a BaseException": Ending(
        lambda _shop, _conn: _raise(KeyboardInterrupt()), KeyboardInterrupt
    ),
    "cannot be stored": Ending(lambda _shop, _conn: Unstorable(), ResultNotStorable),
    "times out": Ending(raises=EffectBusy, is_held=True),
    "loses its connection": Ending(_cut_once),
}


def transactional(ledger: Ledger, shop: Shop, ending: Ending, *, is_async: bool) -> Any:
    """Make the shipping tool that ends so."""
    guard = ledger.transactional(key=("order_id",), operation="ship", refusals=(Refused,))

    def body(conn: sa.Connection, order_id: str) -> Any:
        shops.ship(conn, order_id)
        return ending.inside(shop, conn)

    def tool(conn: sa.Connection, /, order_id: str) -> Any:
        return body(conn, order_id)

    async def atool(conn: AsyncConnection, /, order_id: str) -> Any:
        return await conn.run_sync(body, order_id)

    return guard(atool if is_async else tool)


def remote(ledger: Ledger, *, is_async: bool) -> Any:
    """Make a remote tool whose order says how the provider behaves."""
    guard = ledger.remote(
        key=("order_id",), operation="ask", refusals=(Refused,), on_unknown="raise", lease=None
    )

    def answer(order_id: str) -> str:
        if "lost" in order_id:
            raise TimeoutError
        if "refused" in order_id:
            raise Refused
        return "asked"

    def tool(effect: Effect, /, order_id: str) -> str:
        return answer(order_id)

    async def atool(effect: Effect, /, order_id: str) -> str:
        await asyncio.sleep(0)
        return answer(order_id)

    return guard(atool if is_async else tool)


REMOTE_ENDS: Final = {"done": None, "lost": OutcomeUnknown, "refused": Refused}


@contextmanager
def held_key(shop: Shop, order_id: str, *, is_held: bool) -> Iterator[None]:
    """Let somebody else hold the key, uncommitted."""
    if not is_held:
        yield
        return
    with shop.engine.connect() as conn:
        if shop.is_sqlite:
            conn.exec_driver_sql("begin immediate")
        conn.execute(sa.insert(ledger_tables().effects).values(_CLAIM | {"key": order_id}))
        yield
        conn.rollback()


_CLAIM: Final = {
    "scope": "global",
    "operation": "ship",
    "kind": "transactional",
    "state": "claimed",
    "fingerprint": "x",
    "attempt_id": "x",
    "attempts": 1,
    **dict.fromkeys(("began_at", "claimed_at", "sent_at"), dt.datetime.now(dt.timezone.utc)),
}


def expected(error: type[BaseException] | None) -> contextlib.AbstractContextManager[Any]:
    """Expect an error, or none."""
    return contextlib.nullcontext() if error is None else pytest.raises(error)


@pytest.fixture(params=sorted(ENDINGS))
def ending(request: pytest.FixtureRequest, shop: Shop) -> Ending:
    """Each way in which an effect may end."""
    if request.param == "loses its connection" and shop.is_sqlite:
        pytest.skip("not applicable: a file has no connection to lose")
    shop.run("insert into shipments (order_id, note) values ('O-0', 'taken')")
    return ENDINGS[request.param]


# --- blocking -------------------------------------------------------------------------------------


def test_a_sync_effect_leaves_nothing_open(shop: Shop, ending: Ending) -> None:
    """However often effects end so, no more is open than after the first; nothing after close()."""
    at_first = held(shop)
    ledger = Ledger(shop.url, wait=WAIT)
    tool = transactional(ledger, shop, ending, is_async=False)

    def once(order_id: str) -> None:
        with held_key(shop, order_id, is_held=ending.is_held), expected(ending.raises):
            tool(order_id)
        pool: Any = ledger._engines.blocking().pool
        assert pool.checkedout() == 0

    once("warm-up")
    warm = held(shop)
    assert "idle in transaction" not in warm["server"]
    for number in range(ROUNDS):
        once(f"O-{number}")
    settled_to(shop, warm)
    ledger.close()
    settled_to(shop, at_first)


@pytest.mark.parametrize("end", sorted(REMOTE_ENDS))
def test_a_sync_remote_effect_leaves_nothing_open(shop: Shop, end: str) -> None:
    """Likewise a remote effect, its replays included."""
    at_first = held(shop)
    ledger = Ledger(shop.url, wait=WAIT)
    tool = remote(ledger, is_async=False)

    def once(order_id: str) -> None:
        with expected(REMOTE_ENDS[end]):
            tool(order_id)
        with expected(RecordedFailure if end == "refused" else REMOTE_ENDS[end]):
            tool(order_id)
        pool: Any = ledger._engines.blocking().pool
        assert pool.checkedout() == 0

    once(f"{end} warm-up")
    warm = held(shop)
    for number in range(ROUNDS):
        once(f"{end} {number}")
    settled_to(shop, warm)
    ledger.close()
    settled_to(shop, at_first)


def test_many_threads_leave_nothing_open(shop: Shop) -> None:
    """Sixteen threads on one key and on many: all their connections are closed with the ledger."""
    at_first = held(shop)
    with Ledger(shop.url) as ledger:
        tool = shops.tool(ledger, "session")
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(tool, [f"O-{number % 20}" for number in range(200)]))
        engine_pool: Any = ledger._engines.blocking().pool
        assert engine_pool.checkedout() == 0
    settled_to(shop, at_first)
    assert shop.count() == 20


# --- awaiting -------------------------------------------------------------------------------------


@pytest.fixture(params=["sqlite", "psycopg", "asyncpg", "asyncmy"])
def async_url(request: pytest.FixtureRequest) -> str:
    """URL of a fresh database, for each async driver."""
    if request.param == "sqlite":
        return str(request.getfixturevalue("sqlite_url"))
    server = "mariadb" if request.param == "asyncmy" else "postgresql"
    plain = str(request.getfixturevalue(f"{server}_url"))
    return plain.replace("+psycopg", f"+{request.param}").replace("+pymysql", "+asyncmy")


@pytest.fixture
def async_shop(async_url: str) -> Shop:
    """A fresh shop; its witness is a sync one."""
    return Shop(async_url.replace("+asyncpg", "+psycopg").replace("+asyncmy", "+pymysql"))


def tasks() -> int:
    """Count the loop's tasks."""
    return len(asyncio.all_tasks())


def no_connection_is_out(ledger: Ledger) -> None:
    """Assert that all connections are back in the running loop's pool."""
    pool: Any = ledger._engines.awaiting().pool
    assert pool.checkedout() == 0


async def asettled_to(
    shop: Shop, expected: dict[str, Any], count: Callable[[Shop], dict[str, Any]] = held
) -> None:
    """Assert that no more is held than expected, while the loop goes on."""
    deadline = time.monotonic() + 20
    while (now := count(shop)) != expected and time.monotonic() < deadline:  # noqa: ASYNC110 - a count, no event
        await asyncio.sleep(0.02)
    assert now == expected


@pytest.mark.parametrize("name", sorted(set(ENDINGS) - {"dies by a BaseException"}))
async def test_an_async_effect_leaves_nothing_open(
    async_shop: Shop, async_url: str, name: str
) -> None:
    """However often async effects end so: no connection, task, thread or file more than before."""
    shop, ending = async_shop, ENDINGS[name]
    if name == "loses its connection" and shop.engine.dialect.name != "postgresql":
        pytest.skip("not applicable: PostgreSQL cuts the connection")
    shop.run("insert into shipments (order_id, note) values ('O-0', 'taken')")
    at_first = held(shop)
    ledger = Ledger(async_url, wait=WAIT)
    tool = transactional(ledger, shop, ending, is_async=True)

    async def once(order_id: str) -> None:
        with held_key(shop, order_id, is_held=ending.is_held), expected(ending.raises):
            await tool(order_id)
        no_connection_is_out(ledger)
        assert tasks() == 1

    await once("warm-up")
    warm = held(shop)
    assert "idle in transaction" not in warm["server"]
    for number in range(ROUNDS):
        await once(f"O-{number}")
    await asettled_to(shop, warm)
    await ledger.aclose()
    await asettled_to(shop, at_first)


@pytest.mark.parametrize("end", sorted(REMOTE_ENDS))
async def test_an_async_remote_effect_leaves_nothing_open(
    async_shop: Shop, async_url: str, end: str
) -> None:
    """Likewise an async remote effect, its replays included."""
    shop = async_shop
    at_first = held(shop)
    ledger = Ledger(async_url, wait=WAIT)
    tool = remote(ledger, is_async=True)

    async def once(order_id: str) -> None:
        with expected(REMOTE_ENDS[end]):
            await tool(order_id)
        with expected(RecordedFailure if end == "refused" else REMOTE_ENDS[end]):
            await tool(order_id)
        no_connection_is_out(ledger)
        assert tasks() == 1

    await once(f"{end} warm-up")
    warm = held(shop)
    for number in range(ROUNDS):
        await once(f"{end} {number}")
    await asettled_to(shop, warm)
    await ledger.aclose()
    await asettled_to(shop, at_first)


# --- cancelled ------------------------------------------------------------------------------------


class CancelledAt:
    """Awaits something, and is cancelled where it waits for the n-th time.

    Args:
        awaited: What is awaited.
        at: At which wait, from 0.

    """

    def __init__(self, awaited: Awaitable[Any], at: int) -> None:
        self._awaited: Any = awaited
        self._at, self.waits = at, 0

    def __await__(self) -> Generator[Any, None, Any]:
        """Pass every wait on, but for the one."""
        inner = self._awaited.__await__()
        error: BaseException | None = None
        while True:
            try:
                waits_for = next(inner) if error is None else inner.throw(error)
            except StopIteration as stop:
                return stop.value
            if self.waits == self._at:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
            self.waits, error = self.waits + 1, None
            try:
                yield waits_for
            except BaseException as caught:  # noqa: BLE001 - passed on as it came
                error = caught


async def cancelled_at(call: Callable[[], Awaitable[Any]], at: int) -> bool:
    """Make a call in a task that is cancelled at its n-th wait; tell whether it came that far."""
    stepping: list[CancelledAt] = []

    async def stepped() -> None:
        stepping.append(CancelledAt(call(), at))
        await stepping[0]

    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.ensure_future(stepped())
    return stepping[0].waits > at


@pytest.mark.parametrize("is_cold", [False, True])
async def test_a_cancel_at_every_wait_leaves_nothing_open(
    async_shop: Shop, async_url: str, *, is_cold: bool
) -> None:
    """Cancelled wherever it waits, connecting included, an effect leaves nothing open or half done.

    It can be called again at once, and is there once.
    """
    shop = async_shop
    at_first = held(shop)
    ledger = Ledger(async_url)
    tool = shops.tool(ledger, "async_session")
    if not is_cold:
        await tool("warm-up")
    warm, at = running(shop), 0
    while await cancelled_at(lambda order_id=f"O-{at}": tool(order_id), at):  # type: ignore[misc]  # its default is its only argument
        no_connection_is_out(ledger)
        assert tasks() == 1
        await tool(f"O-{at}")  # what was lost in a cancelled wait is opened anew
        assert shop.see(f"O-{at}").is_whole()
        if is_cold:
            await ledger.aclose()
        await asettled_to(shop, warm, running)
        at += 1
    assert at > 5
    await ledger.aclose()
    await asettled_to(shop, at_first)


async def test_a_remote_effect_cancelled_at_every_wait(async_shop: Shop, async_url: str) -> None:
    """Likewise a remote effect; its provider may have been asked or not, and the ledger says so."""
    shop = async_shop
    at_first = held(shop)
    ledger = Ledger(async_url)
    tool = remote(ledger, is_async=True)
    await tool("warm-up")
    warm, at = running(shop), 0
    while await cancelled_at(lambda order_id=f"O-{at}": tool(order_id), at):  # type: ignore[misc]  # its default is its only argument
        no_connection_is_out(ledger)
        assert tasks() == 1
        await tool("warm-up")  # what was lost in a cancelled wait is opened anew
        await asettled_to(shop, warm, running)
        at += 1
    assert at > 5
    await ledger.aclose()
    await asettled_to(shop, at_first)


async def cancelled_together(call: Callable[[], Awaitable[Any]]) -> None:
    """Let thirty-two tasks wait for what nobody gives, and cancel them all."""
    waiting = [asyncio.ensure_future(call()) for _ in range(32)]
    await asyncio.sleep(0.3)  # long enough for some to connect and to wait; any number will do
    for task in waiting:
        task.cancel()
    told = await asyncio.gather(*waiting, return_exceptions=True)
    assert {type(each) for each in told} == {asyncio.CancelledError}


async def test_waiters_that_are_cancelled_together(async_shop: Shop, async_url: str) -> None:
    """Thirty-two tasks that wait for one key, all cancelled: every connection comes back."""
    shop = async_shop
    at_first = held(shop)
    ledger = Ledger(async_url, wait=2)  # a thread that waits for SQLite's lock hears of no cancel
    tool = shops.tool(ledger, "async_connection")
    with held_key(shop, "O-1", is_held=True):
        await cancelled_together(lambda: tool("O-1"))
    no_connection_is_out(ledger)
    assert tasks() == 1
    await tool("O-1")
    assert shop.see("O-1").is_whole()
    await ledger.aclose()
    await asettled_to(shop, at_first)


# --- the counting itself --------------------------------------------------------------------------


def test_the_count_sees_a_connection_that_stays_open(shop: Shop) -> None:
    """The control: one connection that is kept is seen."""
    before = held(shop)
    with Ledger(shop.url) as ledger:
        kept = ledger._engines.blocking().connect()
        kept.exec_driver_sql("select 1")
        assert held(shop)["files"] != before["files"]
        if not shop.is_sqlite:
            assert held(shop)["server"] == {"idle in transaction": 1}
        kept.close()
    settled_to(shop, before)
