"""The suites of the core once more, on MariaDB: claim, replay, races, refusals, every crash.

The tests are the very ones that SQLite and PostgreSQL pass; only the database is another.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import sqlalchemy as sa

from langgraph_idem import EffectBusy, Ledger
from langgraph_idem.effects import State
from tests.integration import test_races
from tests.integration.test_races import (  # noqa: F401 - collected here
    test_busy_is_no_outcome,
    test_case_28_eight_processes_on_one_key,
    test_case_28_frozen_winner_makes_the_loser_busy,
    test_case_28_sixty_four_tasks_on_one_key,
    test_case_28_sixty_four_threads_on_one_key,
    test_stopped_process_then_killed,
    test_the_loser_does_it_when_the_winner_fails,
    test_two_requests_at_once_one_effect,
)
from tests.protocols.conftest import racers, shop  # noqa: F401 - fixtures of those tests
from tests.protocols.test_crash_at_every_step import *  # noqa: F403 - collected here
from tests.protocols.test_inside_the_tool import *  # noqa: F403 - collected here
from tests.protocols.test_remote_crash import *  # type: ignore[assignment]  # noqa: F403 - one name is in both
from tests.support import shop as shops
from tests.support.shop import Shop, shipments

# A minute each there, and they show an order of steps, which SQLite and PostgreSQL show as well.
del test_crash_by_exception_while_finding_out  # noqa: F821 - from the star above
del test_crash_by_sigkill_while_finding_out  # noqa: F821 - likewise


@pytest.fixture
def database_url(mariadb_url: str) -> str:
    """URL of a fresh MariaDB database, for every test here."""
    return mariadb_url


@pytest.fixture(autouse=True)
def _asks_mariadb(monkeypatch: pytest.MonkeyPatch) -> None:
    """The staged races ask the server who waits; each server is asked in its own words."""
    monkeypatch.setattr(
        test_races, "_somebody_waits", lambda seen: lambda: _count_waits(seen.engine) > 0
    )


@pytest.mark.parametrize("scheme", ["mysql+pymysql", "mariadb+pymysql", "mysql", "mariadb"])
def test_keys_are_compared_byte_by_byte(mariadb_url: str, scheme: str) -> None:
    """Case, accents and trailing blanks tell keys apart, whichever way the URL names MariaDB."""
    mine = Shop(mariadb_url)
    with Ledger(mariadb_url.replace("mysql+pymysql", scheme), prefix="mine_") as ledger:
        ledger.setup()
        names = ["order", "Order", "order ", "ordér", "order\u0301", "\N{SNOWMAN}\N{PILE OF POO}"]
        numbers = {shops.tool(ledger, "session")(name).number for name in names}
        assert len(numbers) == len(names) == mine.count()


@pytest.mark.parametrize("level", ["REPEATABLE READ", "READ COMMITTED", "SERIALIZABLE"])
def test_the_loser_sees_the_winner_under_every_isolation(shop: Shop, level: Any) -> None:  # noqa: F811 - the fixture
    """A lost claim is answered from the winner's row, though the snapshot may be an older one."""
    engine = sa.create_engine(shop.url, isolation_level=level)
    ledger = Ledger(engine)
    began, may_end = threading.Event(), threading.Event()

    @ledger.transactional(key=("order_id",), operation="ship")
    def slow(conn: sa.Connection, /, order_id: str) -> shops.Shipped:
        began.set()
        assert may_end.wait(30)
        return shops.ship(conn, order_id)

    with ThreadPoolExecutor(2) as pool:
        winner = pool.submit(slow, "O-1")
        try:
            assert began.wait(30)
            loser = pool.submit(shops.tool(ledger, "session"), "O-1")
            _until_somebody_waits(shop)
        finally:
            may_end.set()  # whatever went wrong, no thread outlives the test
        told = [winner.result(30), loser.result(30)]
    engine.dispose()
    assert shop.see("O-1").numbers == [told[0].number] == [told[1].number]


def test_wait_for_a_lock_is_bounded(shop: Shop) -> None:  # noqa: F811 - the fixture
    """A frozen winner makes the loser busy after the ledger's own wait, not the server's 50 s."""
    with Ledger(shop.url, wait=1) as ledger, shop.engine.begin() as frozen:
        _claim_by_hand(frozen, "O-1")
        began = time.monotonic()
        with pytest.raises(EffectBusy):
            shops.tool(ledger, "connection")("O-1")
        assert 0.5 < time.monotonic() - began < 20
        frozen.rollback()
    assert shop.see("O-1").is_nothing


async def test_wait_for_a_lock_is_bounded_when_awaiting(shop: Shop) -> None:  # noqa: F811 - the fixture
    """Likewise with the async driver, whose loop goes on meanwhile."""
    async with Ledger(shop.url, wait=1) as ledger:
        with shop.engine.begin() as frozen:
            _claim_by_hand(frozen, "O-1")
            ticks = asyncio.ensure_future(asyncio.sleep(0.05))
            with pytest.raises(EffectBusy):
                await shops.tool(ledger, "async_connection")("O-1")
            assert ticks.done()
            frozen.rollback()


def test_deadlock_is_retried_and_never_recorded(shop: Shop) -> None:  # noqa: F811 - the fixture
    """InnoDB's deadlock victim runs again as a whole: two effects, each once."""
    for number, order_id in enumerate(("left", "right"), 1):
        shop.run(f"insert into shipments (number, order_id) values ({number}, '{order_id}')")
    heard: list[str] = []
    ledger = Ledger(shop.url, observers=[lambda event: heard.append(type(event).__name__)])
    meet = threading.Barrier(2)
    tries: list[str] = []

    @ledger.transactional(key=("first", "second"), operation="cross")
    def cross(conn: sa.Connection, /, first: str, second: str) -> str:
        tries.append(first)
        _touch(conn, first)
        if tries.count(first) == 1:
            meet.wait(30)
        _touch(conn, second)
        return first

    pairs = [("left", "right"), ("right", "left")]
    with ThreadPoolExecutor(2) as pool:
        told = list(pool.map(lambda pair: cross(*pair), pairs, timeout=60))
    states = [record.state for record in ledger.effects(operation="cross")]
    ledger.close()
    assert sorted(told) == ["left", "right"]
    assert states == [State.SUCCEEDED, State.SUCCEEDED]
    assert heard.count("Retried") >= 1
    assert len(tries) == 2 + heard.count("Retried")


def test_setup_twice_and_at_once(mariadb_url: str) -> None:
    """DDL commits by itself there: a named lock keeps two set-ups apart."""

    def set_up(_: int) -> None:
        with Ledger(mariadb_url) as ledger:
            ledger.setup()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(set_up, range(4), timeout=60))
    with Ledger(mariadb_url) as ledger:
        ledger.setup()
        assert ledger.effects() == []


def _touch(conn: sa.Connection, order_id: str) -> None:
    by_number = shipments.c.number == ("left", "right").index(order_id) + 1  # locks no other row
    conn.execute(sa.update(shipments).where(by_number).values(note=None))


def _claim_by_hand(conn: sa.Connection, key: str) -> None:
    conn.exec_driver_sql(
        "insert into idem_effects (scope, operation, `key`, kind, state, fingerprint, attempt_id,"
        " attempts, began_at, claimed_at, sent_at) values ('global', 'ship', %s, 'transactional',"
        " 'claimed', 'x', 'x', 1, utc_timestamp(6), utc_timestamp(6), utc_timestamp(6))",
        (key,),
    )


_WAITS = re.compile(r"^LOCK WAIT (?:(?!^---).)*?^M\w+ thread id (\d+),", re.DOTALL | re.MULTILINE)


def _count_waits(engine: sa.Engine) -> int:
    """Count who waits for a row in this database.

    The tables in information_schema that tell it are a cache which is only refreshed if nobody has
    read it for a tenth of a second, so that who asks often never learns anything; and other tests
    have waiters of their own on the same server.
    """
    with engine.connect() as conn:
        query = "select id from information_schema.processlist where db = database()"
        here = set(conn.scalars(sa.text(query)))
        told = conn.exec_driver_sql("show engine innodb status").one()[2]
    transactions = told.partition("\nTRANSACTIONS\n")[2]  # before it: the latest deadlock
    return len(here.intersection(map(int, _WAITS.findall(transactions))))


def _until_somebody_waits(shop: Shop) -> None:  # noqa: F811 - the fixture's type
    deadline = time.monotonic() + 30
    while not _count_waits(shop.engine):
        assert time.monotonic() < deadline, "nobody waits for the lock"
        time.sleep(0.01)
