"""The answer to a commit is lost, or the database asks for another attempt."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any
from unittest import mock

import pytest
import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine
from sqlalchemy.orm import Session

from langgraph_idem import events
from langgraph_idem.effects import State
from langgraph_idem.errors import EffectBusy, LedgerError
from langgraph_idem.ledger import Ledger
from langgraph_idem.protocols import PAUSES
from langgraph_idem.sql import sites
from tests.support import shop as shops
from tests.support.shop import TOOLS, Shop, shipments

EVERY_TOOL = pytest.mark.parametrize("takes", TOOLS)


class Heard(list[type[events.Event]]):
    """An observer that remembers what it was told."""

    def __call__(self, event: events.Event, /) -> None:
        """Remember the kind of event."""
        self.append(type(event))


@contextmanager
def commits(instead: Callable[[Any, Any], Any], times: int = 1) -> Iterator[None]:
    """Let the first commits go as told: ``instead`` gets the transaction and its real commit."""
    left = [times]

    def replaced(inner: Any) -> Any:
        async def commit(tx: Any) -> None:
            if not left[0]:
                await inner(tx)
                return
            left[0] -= 1
            await instead(tx, inner)

        return commit

    blocking, awaiting = sites.BlockingTransaction, sites.AwaitingTransaction
    with (
        mock.patch.multiple(blocking, commit=replaced(blocking.commit)),
        mock.patch.multiple(awaiting, commit=replaced(awaiting.commit)),
    ):
        yield


def disconnect() -> exc.OperationalError:
    """Make the error that SQLAlchemy raises when the server is gone."""
    gone = Exception("server closed the connection unexpectedly")
    return exc.OperationalError("COMMIT", None, gone, connection_invalidated=True)


def ship(shop: Shop, takes: str, heard: Heard) -> shops.Shipped:
    """Ship O-1 by a fresh ledger with an observer."""
    if not takes.startswith("async"):
        with Ledger(shop.url, observers=[heard]) as ledger:
            shipped: shops.Shipped = shops.tool(ledger, takes)("O-1")
        return shipped

    async def aship() -> shops.Shipped:
        async with Ledger(shop.url, observers=[heard]) as ledger:
            shipped: shops.Shipped = await shops.tool(ledger, takes)("O-1")
        return shipped

    return asyncio.run(aship())


@EVERY_TOOL
def test_commit_took_place_but_its_answer_was_lost(shop: Shop, takes: str) -> None:
    """The ledger is asked again, by the attempt's id: one effect, and it is no replay."""

    async def lost(tx: Any, commit: Any) -> None:
        await commit(tx)
        raise disconnect()

    heard = Heard()
    with commits(lost):
        shipped = ship(shop, takes, heard)
    assert shop.see("O-1").numbers == [shipped.number]
    assert shop.see("O-1").is_whole()
    assert heard == [events.Retried, events.Succeeded]


@EVERY_TOOL
def test_commit_did_not_take_place(shop: Shop, takes: str) -> None:
    """The same error, but nothing was committed: the attempt runs again, once."""

    async def lost(tx: Any, commit: Any) -> None:
        raise disconnect()

    heard = Heard()
    with commits(lost):
        shipped = ship(shop, takes, heard)
    assert shop.see("O-1").numbers == [shipped.number]
    assert shop.see("O-1").is_whole()
    assert heard == [events.Retried, events.Succeeded]


def test_lost_answer_then_somebody_else_asks(shop: Shop) -> None:
    """Who comes later replays: the lost answer leaves nothing that blocks anybody."""

    async def lost(tx: Any, commit: Any) -> None:
        await commit(tx)
        raise KeyboardInterrupt

    with commits(lost), pytest.raises(KeyboardInterrupt):
        ship(shop, "session", Heard())
    heard = Heard()
    assert [ship(shop, "connection", heard).number] == shop.see("O-1").numbers
    assert heard == [events.Replayed]


def test_answer_is_lost_every_time(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A database that never answers ends in LedgerError, whose words say that a retry is safe."""
    monkeypatch.setattr("langgraph_idem.protocols.PAUSES", (0.0, 0.0))

    async def lost(tx: Any, commit: Any) -> None:
        raise disconnect()

    with commits(lost, times=99), pytest.raises(LedgerError, match="safe to run this again"):
        ship(shop, "session", Heard())
    assert shop.see("O-1").is_nothing
    ship(shop, "session", Heard())
    assert shop.see("O-1").is_whole()


@pytest.fixture
def postgresql(postgresql_url: str) -> Shop:
    """A fresh shop on PostgreSQL."""
    return Shop(postgresql_url)


@EVERY_TOOL
def test_server_cuts_the_connection_before_the_commit(postgresql: Shop, takes: str) -> None:
    """PostgreSQL really ends the backend before COMMIT: rolled back, done again, once."""

    async def cut(tx: Any, commit: Any) -> None:
        postgresql.cut_all_connections()
        await commit(tx)

    heard = Heard()
    with commits(cut):
        shipped = ship(postgresql, takes, heard)
    assert postgresql.see("O-1").numbers == [shipped.number]
    assert heard == [events.Retried, events.Succeeded]


@EVERY_TOOL
def test_server_cuts_the_connection_between_commit_and_answer(postgresql: Shop, takes: str) -> None:
    """The commit took place, then the backend is ended, and COMMIT raises the driver's own error.

    The number is the first one's: the tool did not run again.
    """
    numbers = []

    async def cut(tx: Any, commit: Any) -> None:
        # The driver sends COMMIT only in a transaction: begin another one, which the cut ends.
        if isinstance(tx, sites.BlockingTransaction):
            driver: Any = tx.conn.connection.driver_connection
            driver.commit()
            driver.execute("select 1")
        else:
            driver = (await tx.conn.get_raw_connection()).driver_connection
            await driver.commit()
            await driver.execute("select 1")
        numbers.extend(postgresql.see("O-1").numbers)
        postgresql.cut_all_connections()
        await commit(tx)

    heard = Heard()
    with commits(cut):
        shipped = ship(postgresql, takes, heard)
    assert postgresql.see("O-1").numbers == numbers == [shipped.number]
    assert postgresql.see("O-1").is_whole()
    assert heard == [events.Retried, events.Succeeded]


@EVERY_TOOL
def test_server_cuts_the_connection_after_the_commit(postgresql: Shop, takes: str) -> None:
    """Cut right after the answer came: the result is returned, nothing is done again."""

    async def cut(tx: Any, commit: Any) -> None:
        await commit(tx)
        postgresql.cut_all_connections()

    heard = Heard()
    with commits(cut):
        shipped = ship(postgresql, takes, heard)
    assert postgresql.see("O-1").numbers == [shipped.number]
    assert heard == [events.Succeeded]


def test_case_45_serialization_failure_is_retried_and_never_recorded(postgresql: Shop) -> None:
    """On a SERIALIZABLE engine a real 40001 runs the whole attempt again. dbos #679."""
    engine = sa.create_engine(postgresql.url, isolation_level="SERIALIZABLE")
    heard, entered = Heard(), []
    ledger = Ledger(engine, observers=[heard])

    @ledger.transactional(key=("order_id",))
    def number_next(session: Session, /, order_id: str) -> int:
        entered.append(order_id)
        number = session.scalar(sa.select(sa.func.count()).select_from(shipments)) or 0
        if len(entered) == 1:  # another writer comes between the reading and the writing
            with engine.begin() as other:
                other.scalar(sa.select(sa.func.count()).select_from(shipments))
                shops.ship(other, "somebody else's")
        session.execute(sa.insert(shipments).values(order_id=order_id))
        return number

    assert number_next("O-1") == 1  # the other's row is counted: not what the first try read
    assert entered == ["O-1", "O-1"]
    assert heard == [events.Retried, events.Succeeded]
    assert len(postgresql.see("O-1").numbers) == 1
    (record,) = postgresql.see("O-1", "number_next").records
    assert (record.state, record.result, record.attempts) == (State.SUCCEEDED, "1", 1)
    engine.dispose()


async def test_case_45_serialization_failure_is_retried_when_awaiting(postgresql: Shop) -> None:
    """The same, in the other colour."""
    engine = create_async_engine(postgresql.url, isolation_level="SERIALIZABLE")
    heard, entered = Heard(), []
    ledger = Ledger(engine, observers=[heard])

    @ledger.transactional(key=("order_id",))
    async def number_next(conn: AsyncConnection, /, order_id: str) -> int:
        entered.append(order_id)
        number = await conn.scalar(sa.select(sa.func.count()).select_from(shipments)) or 0
        if len(entered) == 1:
            async with engine.begin() as other:
                await other.scalar(sa.select(sa.func.count()).select_from(shipments))
                await other.run_sync(shops.ship, "somebody else's")
        await conn.execute(sa.insert(shipments).values(order_id=order_id))
        return number

    assert await number_next("O-1") == 1
    assert heard == [events.Retried, events.Succeeded]
    assert len(postgresql.see("O-1").numbers) == 1
    await engine.dispose()


def test_deadlock_is_retried_and_never_recorded(postgresql: Shop) -> None:
    """PostgreSQL chooses our attempt as the victim of a real deadlock: it runs again."""
    for order_id in ("left", "right"):
        with postgresql.engine.begin() as conn:
            shops.ship(conn, order_id)
    heard, entered = Heard(), []
    ledger = Ledger(postgresql.url, observers=[heard])
    other = sa.create_engine(postgresql.url).connect()
    other.exec_driver_sql("set deadlock_timeout = '60s'")  # ours finds it first, and loses
    locking = "update shipments set order_id = order_id where order_id = '{}'"

    @ledger.transactional(key=("order_id",))
    def cross(session: Session, /, order_id: str) -> str:
        entered.append(order_id)
        session.execute(sa.text(locking.format("left")))
        if len(entered) == 1:
            other.exec_driver_sql(locking.format("right"))
            opposite = Thread(target=other.exec_driver_sql, args=(locking.format("left"),))
            opposite.start()
            try:
                session.execute(sa.text(locking.format("right")))
            finally:
                session.rollback()  # lets the other one go on
                opposite.join(30)
                other.commit()
        shops.ship(session.connection(), order_id)
        return "crossed"

    assert cross("O-1") == "crossed"
    assert heard == [events.Retried, events.Succeeded]
    assert len(postgresql.see("O-1").numbers) == 1
    assert [r.state for r in postgresql.see("O-1", "cross").records] == [State.SUCCEEDED]
    other.close()
    other.engine.dispose()
    ledger.close()


def test_contention_without_end_is_busy(postgresql: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tries are bounded; in the end it is EffectBusy and nothing is recorded."""
    monkeypatch.setattr("langgraph_idem.protocols.PAUSES", (0.0,) * len(PAUSES))
    entered = []

    with Ledger(postgresql.url) as ledger:

        @ledger.transactional(key=("order_id",))
        def unlucky(session: Session, /, order_id: str) -> None:
            entered.append(order_id)
            session.execute(sa.text("do $$ begin raise exception using errcode = '40001'; end $$"))

        with pytest.raises(EffectBusy, match="Nothing was done") as busy:
            unlucky("O-1")
    assert isinstance(busy.value.__cause__, exc.OperationalError)
    assert len(entered) == len(PAUSES) + 1
    assert postgresql.see("O-1", "unlucky").is_nothing


def test_unreachable_database_is_said_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """No connection at all: LedgerError with the driver's error as cause, for every entrance."""
    monkeypatch.setattr("langgraph_idem.protocols.PAUSES", (0.0,))
    with Ledger("postgresql://nobody@127.0.0.1:1/nowhere") as ledger:
        tool = shops.tool(ledger, "session")
        for entrance in (ledger.setup, ledger.effects, lambda: tool("O-1")):
            with pytest.raises(LedgerError, match="cannot be reached") as failed:
                entrance()
            assert isinstance(failed.value.__cause__, exc.OperationalError)


def test_tables_that_are_not_there_are_said_in_words(database_url: str) -> None:
    """Without setup() the error says to call it, and nothing was done."""
    engine = sa.create_engine(database_url, poolclass=sa.NullPool)
    shops.metadata.create_all(engine)
    with Ledger(database_url) as ledger:
        with pytest.raises(LedgerError, match=r"ledger\.setup\(\)"):
            shops.tool(ledger, "session")("O-1")
        with pytest.raises(LedgerError, match=r"ledger\.setup\(\)"):
            ledger.effects()
    with engine.connect() as conn:
        assert conn.scalar(sa.select(sa.func.count()).select_from(shipments)) == 0
