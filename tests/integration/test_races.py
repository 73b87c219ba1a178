"""Many at once: one effect, and everybody the same result."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa

from langgraph_idem.effects import State
from langgraph_idem.errors import EffectBusy, IdempotencyError
from langgraph_idem.ledger import Ledger
from tests.support import shop as shops
from tests.support.racers import Racers
from tests.support.shop import TOOLS, Shipped, Shop

ORDERS = int(os.environ.get("IDEM_TEST_ORDERS", "10000"))
"""How many keys are done once each."""


@pytest.mark.parametrize("takes", TOOLS)
def test_case_28_eight_processes_on_one_key(shop: Shop, racers: Racers, takes: str) -> None:
    """Eight processes let go at once make one effect, and each gets its result."""
    told = racers.run("ship", copies=8, url=shop.url, takes=takes, order_id="O-1")
    assert shop.see("O-1").is_whole()
    assert [each.result for each in told] == shop.see("O-1").numbers * 8


def test_case_28_sixty_four_threads_on_one_key(shop: Shop) -> None:
    """Sixty-four threads of one ledger make one effect, and each gets its result."""
    gate = threading.Barrier(64)
    with Ledger(shop.url) as ledger, ThreadPoolExecutor(64) as pool:
        ship = shops.tool(ledger, "session")

        def race(_: int) -> int:
            gate.wait(60)
            shipped: Shipped = ship("O-1")
            return shipped.number

        numbers = list(pool.map(race, range(64)))
    assert shop.see("O-1").is_whole()
    assert numbers == shop.see("O-1").numbers * 64


async def test_case_28_sixty_four_tasks_on_one_key(shop: Shop) -> None:
    """Sixty-four tasks of one loop make one effect, and each gets its result."""
    async with Ledger(shop.url) as ledger:
        ship = shops.tool(ledger, "async_session")
        shipped = await asyncio.gather(*(ship("O-1") for _ in range(64)))
    assert shop.see("O-1").is_whole()
    assert [each.number for each in shipped] == shop.see("O-1").numbers * 64


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ten_thousand_keys_once_each(shop: Shop, racers: Racers) -> None:
    """Ten thousand keys: each has one row and one record."""
    shares = {"url": shop.url, "orders": ORDERS, "racers": 1, "threads": 2}
    told = racers.run("ship_many", copies=1, **shares)
    assert [each.result for each in told] == [ORDERS]
    with shop.engine.connect() as conn:
        rows = conn.exec_driver_sql("select count(*), count(distinct order_id) from shipments")
        assert tuple(rows.one()) == (ORDERS, ORDERS)
        records = conn.exec_driver_sql("select state, count(*) from idem_effects group by state")
        assert [tuple(row) for row in records] == [("succeeded", ORDERS)]


# --- staged races ---------------------------------------------------------------------------------


class Stage:
    """A tool that stops in the middle of its transaction, until it is told to go on."""

    def __init__(self) -> None:
        self.is_inside, self.go_on = threading.Event(), threading.Event()
        self.entered = 0

    def tool(self, ledger: Ledger, fails: Exception | None = None) -> Callable[[str], Any]:
        """Make the tool."""

        @ledger.transactional(key=("order_id",), operation="ship")
        def frozen(conn: sa.Connection, /, order_id: str) -> Shipped:
            self.entered += 1
            shipped = shops.ship(conn, order_id)
            self.is_inside.set()
            assert self.go_on.wait(60)
            if fails is not None:
                raise fails
            return shipped

        return frozen


@contextmanager
def staged(shop: Shop, fails: Exception | None = None) -> Iterator[tuple[Stage, Any]]:
    """Start the winner, and go on once it holds its claim and its row, uncommitted."""
    stage = Stage()
    with Ledger(shop.url) as ledger, ThreadPoolExecutor(1) as pool:
        winner = pool.submit(stage.tool(ledger, fails), "O-1")
        try:
            assert stage.is_inside.wait(60)
            yield stage, winner
        finally:
            stage.go_on.set()


def _wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _somebody_waits(shop: Shop) -> Callable[[], bool]:
    """Ask PostgreSQL whether somebody waits for another's transaction."""

    def asked() -> bool:
        with shop.engine.connect() as conn:
            sql = "select count(*) from pg_locks where not granted"
            return bool(conn.exec_driver_sql(sql).scalar())

    return asked


@pytest.mark.parametrize("takes", TOOLS)
def test_two_requests_at_once_one_effect(shop: Shop, takes: str) -> None:
    """The second request comes while the first holds its claim: it waits, and gets its result."""
    with staged(shop) as (stage, winner), ThreadPoolExecutor(1) as pool:
        loser = pool.submit(shops.call, shop.url, takes, "O-1")
        if not shop.is_sqlite:
            _wait_until(_somebody_waits(shop))
        assert shop.see("O-1").is_nothing
        stage.go_on.set()
        assert loser.result(60) == winner.result(60)
    assert shop.see("O-1").is_whole()
    assert shop.see("O-1").numbers == [winner.result().number]
    assert stage.entered == 1


@pytest.mark.parametrize("takes", TOOLS)
def test_the_loser_does_it_when_the_winner_fails(shop: Shop, takes: str) -> None:
    """The winner rolls back while the second request waits: that one brings the effect about."""
    with staged(shop, RuntimeError("no")) as (stage, winner), ThreadPoolExecutor(1) as pool:
        loser = pool.submit(shops.call, shop.url, takes, "O-1")
        if not shop.is_sqlite:
            _wait_until(_somebody_waits(shop))
        stage.go_on.set()
        with pytest.raises(RuntimeError, match="no"):
            winner.result(60)
        assert [loser.result(60).number] == shop.see("O-1").numbers
    assert shop.see("O-1").is_whole()


@pytest.mark.parametrize("takes", TOOLS)
def test_case_28_frozen_winner_makes_the_loser_busy(shop: Shop, takes: str) -> None:
    """A winner that does not end holds nobody longer than ``wait`` seconds: EffectBusy."""
    with staged(shop) as (stage, winner):
        began = time.monotonic()
        with pytest.raises(EffectBusy, match="Nothing was done") as busy:
            _call(Ledger(shop.url, wait=0.3), takes)
        assert 0.25 < time.monotonic() - began < 20
        assert (busy.value.operation, busy.value.key) == ("ship", "O-1")
        assert shop.see("O-1").is_nothing
        stage.go_on.set()
        winner.result(60)
    assert shop.see("O-1").is_whole()
    assert _call(Ledger(shop.url), takes) == winner.result()


def _call(ledger: Ledger, takes: str) -> Any:
    if not takes.startswith("async"):
        with ledger:
            return shops.tool(ledger, takes)("O-1")

    async def called() -> Any:
        async with ledger:
            return await shops.tool(ledger, takes)("O-1")

    return asyncio.run(called())


def test_other_keys_do_not_wait_on_postgresql(postgresql_url: str) -> None:
    """A frozen effect holds its own key only."""
    shop = Shop(postgresql_url)
    with staged(shop) as (_, winner):
        shops.call(shop.url, "session", "O-2")
        assert shop.see("O-2").is_whole()
        assert not winner.done()
    assert shop.see("O-1").is_whole()


def test_stopped_process_then_killed(shop: Shop) -> None:
    """A process stopped inside its transaction makes others busy; killed, it was never there."""
    script = (
        "import os, signal, sys\n"
        "from tests.support import crash, shop\n"
        "at = crash.BOUNDARIES.index('after tool')\n"
        "def stop():\n"
        "    print('inside', flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGSTOP)\n"
        "with crash.fused(crash.Fuse(at, stop)):\n"
        "    shop.call(sys.argv[1], 'session', 'O-1')\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, shop.url], stdout=subprocess.PIPE, text=True
    ) as frozen:
        try:
            assert frozen.stdout is not None
            assert frozen.stdout.readline() == "inside\n"
            with pytest.raises(EffectBusy):
                _call(Ledger(shop.url, wait=0.2), "session")
        finally:
            frozen.send_signal(signal.SIGKILL)
    assert frozen.returncode == -signal.SIGKILL
    assert [shops.call(shop.url, "session", "O-1").number] == shop.see("O-1").numbers
    assert shop.see("O-1").is_whole()


def test_busy_is_no_outcome(shop: Shop) -> None:
    """EffectBusy is not recorded, and is no reason to call the effect failed."""
    with staged(shop), pytest.raises(IdempotencyError) as busy:
        _call(Ledger(shop.url, wait=0.05), "session")
    assert type(busy.value) is EffectBusy
    assert [record.state for record in shop.see("O-1").records] == [State.SUCCEEDED]
