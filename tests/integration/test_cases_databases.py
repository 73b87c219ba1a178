"""Field cases 43, 44 and 46: what databases do to two that race, and to one that is interrupted.

Case 45 (a serialization failure is no result) is in ``tests/protocols/test_lost_answers.py``.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.orm import Session

from langgraph_idem import Ledger
from langgraph_idem.sql import sites
from langgraph_idem.testing import assert_effect_once, crash
from tests.support import databases
from tests.support import shop as shops
from tests.support.racers import Racers
from tests.support.shop import Shop


@pytest.fixture
def sqlite_shop(sqlite_url: str) -> Shop:
    """A shop on SQLite."""
    return Shop(sqlite_url)


def test_case_43_control_deferred_transactions_on_sqlite(sqlite_shop: Shop) -> None:
    """The control: two that read and then write different rows; one fails, and does not wait."""
    file = sqlite_shop.engine.url.database or ""
    with (
        closing(sqlite3.connect(file, timeout=60, isolation_level=None)) as one,
        closing(sqlite3.connect(file, timeout=60, isolation_level=None)) as other,
    ):
        for connection in (one, other):
            connection.execute("begin")
            connection.execute("select count(*) from shipments").fetchone()
        one.execute("insert into shipments (order_id) values ('O-1')")
        one.execute("commit")
        with pytest.raises(sqlite3.OperationalError, match="database is locked"):
            other.execute("insert into shipments (order_id) values ('O-2')")


def test_case_43_two_keys_at_once_on_sqlite(sqlite_shop: Shop) -> None:
    """Two effects of different keys that read and then write wait for each other, and both hold."""
    inside, go_on = threading.Event(), threading.Event()
    with Ledger(sqlite_shop.url) as ledger, ThreadPoolExecutor(2) as pool:

        @ledger.transactional(key=("order_id",), operation="ship")
        def ship(session: Session, /, order_id: str) -> int:
            count = session.scalar(sa.select(sa.func.count()).select_from(shops.shipments)) or 0
            if order_id == "O-1":
                inside.set()
                assert go_on.wait(60)
            session.execute(sa.insert(shops.shipments).values(order_id=order_id))
            return count

        first = pool.submit(ship, "O-1")
        assert inside.wait(60)
        second = pool.submit(ship, "O-2")
        go_on.set()
        assert [first.result(60), second.result(60)] == [0, 1]
        assert_effect_once(ledger, "ship", "O-1")
        assert_effect_once(ledger, "ship", "O-2")
    assert sqlite_shop.count() == 2


def test_case_44_control_select_then_insert_on_postgresql(postgresql_url: str) -> None:
    """The control: the loser of a race is told an IntegrityError, and its transaction is dead.

    dbos #812.
    """
    address = postgresql_url.replace("+psycopg", "")
    with psycopg.connect(address) as winner, psycopg.connect(address) as loser:
        winner.execute("create table done (key text primary key)")
        winner.commit()
        for connection in (winner, loser):
            assert connection.execute("select 1 from done where key = 'O-1'").fetchone() is None
        winner.execute("insert into done values ('O-1')")
        winner.commit()
        with pytest.raises(psycopg.errors.UniqueViolation):
            loser.execute("insert into done values ('O-1')")
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            loser.execute("select 1")
        loser.rollback()


@pytest.mark.parametrize("takes", ["connection", "async_session"])
def test_case_44_the_loser_gets_the_result(postgresql_url: str, racers: Racers, takes: str) -> None:
    """Who loses the race is told the winner's result, never an IntegrityError. dbos #812."""
    shop = Shop(postgresql_url)
    told = racers.run("ship", copies=4, url=shop.url, takes=takes, order_id="O-1")
    assert [each.result for each in told] == shop.see("O-1").numbers * 4
    assert shop.see("O-1").is_whole()


@pytest.mark.parametrize("takes", ["session", "connection"])
def test_case_44_an_error_inside_the_transaction(postgresql_url: str, takes: str) -> None:
    """An error of the tool's own aborts the transaction: all of it is undone, and it may try again.

    dbos #812.
    """
    shop = Shop(postgresql_url)
    shop.run("insert into shipments (order_id, note) values ('O-0', 'taken')")
    annotation: Any = Session if takes == "session" else sa.Connection
    notes = iter(["taken", "free"])

    def ship(first: Any, /, order_id: str) -> str:
        shops.ship(first.connection() if takes == "session" else first, order_id)
        row = {"order_id": order_id, "note": next(notes)}
        first.execute(sa.insert(shops.shipments).values(**row))
        return "shipped"

    ship.__annotations__["first"] = annotation
    with Ledger(shop.url) as ledger:
        tool = ledger.transactional(key=("order_id",))(ship)
        with pytest.raises(exc.IntegrityError, match="taken"):
            tool("O-1")
        assert shop.see("O-1").is_nothing
        assert tool("O-1") == "shipped"
        assert_effect_once(ledger, "ship", "O-1")
    assert len(shop.see("O-1").numbers) == 2


# --- the server is restarted ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def own_server() -> Iterator[databases.ThrowAwayPostgres]:
    """A PostgreSQL server of one's own, to restart."""
    try:
        server = databases.ThrowAwayPostgres()
    except databases.ServerMissingError as missing:
        pytest.skip(str(missing))
    with server:
        yield server


@pytest.fixture
def restarted(own_server: databases.ThrowAwayPostgres) -> Iterator[tuple[Shop, Callable[[], None]]]:
    """A shop, and what crashes its server and starts it again."""

    def restart() -> None:
        own_server.stop("immediate")
        own_server.start()

    with databases.fresh_postgres_database(own_server.url) as url:
        shop = Shop(url)
        yield shop, restart
        shop.engine.dispose()


def shipped_by(shop: Shop, takes: str) -> int:
    """Ship one order, and return the shipment's number."""
    return shops.call(shop.url, takes, "O-1").number


@pytest.mark.server("postgresql")
def test_case_46_restarted_between_the_write_and_the_commit(
    restarted: tuple[Shop, Callable[[], None]],
) -> None:
    """The tool's rows are gone with the server; the attempt runs again by itself, once."""
    shop, restart = restarted
    with Ledger(shop.url) as ledger:
        ship = shops.tool(ledger, "session")
        with crash(ledger, before="commit", by=restart) as staged:
            number = ship("O-1").number
        assert staged.passed.count("before effect") == 2
        assert_effect_once(ledger, "ship", "O-1")
    assert shop.see("O-1").numbers == [number]
    assert shop.see("O-1").is_whole()


@pytest.mark.server("postgresql")
def test_case_46_restarted_between_the_commit_and_its_answer(
    restarted: tuple[Shop, Callable[[], None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit took place, its answer was lost: the ledger is read again, nothing runs twice."""
    shop, restart = restarted
    commit = sites.BlockingTransaction.commit
    lost: list[str] = []

    async def interrupted(tx: sites.BlockingTransaction) -> None:
        if lost:
            return await commit(tx)
        lost.extend(["answer"])
        # The driver sends COMMIT only in a transaction: begin another one, which the crash ends.
        driver: Any = tx.conn.connection.driver_connection
        driver.commit()
        driver.execute("select 1")
        restart()
        return await commit(tx)

    monkeypatch.setattr(sites.BlockingTransaction, "commit", interrupted)
    number = shipped_by(shop, "session")
    assert lost == ["answer"]
    assert shop.see("O-1").numbers == [number]
    assert shop.see("O-1").is_whole()
    assert shipped_by(shop, "connection") == number
