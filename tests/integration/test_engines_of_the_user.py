"""Ledgers over the user's own engines, beside each other, and what an effect costs."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from langgraph_idem.effects import State
from langgraph_idem.errors import (
    ArgumentsChanged,
    ConfigurationError,
    EffectBusy,
    LedgerError,
)
from langgraph_idem.ledger import Ledger
from tests.support import databases
from tests.support import shop as shops
from tests.support.racers import Racers
from tests.support.shop import Shipped, Shop, shipments

BLOCKING = ("engine", "sessionmaker")
AWAITING = ("async_engine", "async_sessionmaker")


class OurSession(Session):
    """The user's own kind of session."""


def _bind(kind: str, url: str) -> tuple[Any, Any]:
    if kind in BLOCKING:
        engine: Any = sa.create_engine(url)
        return engine, (sessionmaker(engine) if kind == "sessionmaker" else engine)
    engine = create_async_engine(databases.as_async(url))
    return engine, (async_sessionmaker(engine) if kind == "async_sessionmaker" else engine)


@pytest.mark.parametrize("kind", BLOCKING)
@pytest.mark.parametrize("takes", ["session", "connection"])
def test_the_users_engine_is_used_and_never_closed(shop: Shop, kind: str, takes: str) -> None:
    """A ledger works on the user's Engine or sessionmaker; close() leaves its pool alone."""
    engine, bind = _bind(kind, shop.url)
    with Ledger(bind) as ledger:
        ledger.setup()
        shipped = shops.tool(ledger, takes)("O-1")
        assert shops.tool(ledger, takes)("O-1") == shipped
    assert shop.see("O-1").is_whole()
    assert engine.pool.checkedout() == 0
    assert engine.pool.checkedin() == 1  # still there: dispose() would have thrown it away
    assert ledger.effect("ship", "O-1") == shop.see("O-1").records[0]
    engine.dispose()


@pytest.mark.parametrize("kind", AWAITING)
@pytest.mark.parametrize("takes", ["async_session", "async_connection"])
async def test_the_users_async_engine_is_used_and_never_closed(
    shop: Shop, kind: str, takes: str
) -> None:
    """The same for AsyncEngine and async_sessionmaker."""
    engine, bind = _bind(kind, shop.url)
    async with Ledger(bind) as ledger:
        await ledger.asetup()
        shipped = await shops.tool(ledger, takes)("O-1")
        assert await shops.tool(ledger, takes)("O-1") == shipped
    assert shop.see("O-1").is_whole()
    assert engine.pool.checkedout() == 0
    assert engine.pool.checkedin() == 1
    assert await ledger.aeffect("ship", "O-1") == shop.see("O-1").records[0]
    assert await ledger.aeffects(state=State.SUCCEEDED) == shop.see("O-1").records
    await engine.dispose()


def test_the_users_sessions_are_given(shop: Shop) -> None:
    """A sessionmaker's own class and options reach the tool."""
    engine = sa.create_engine(shop.url)
    ledger = Ledger(sessionmaker(engine, class_=OurSession, expire_on_commit=False))
    given: list[Session] = []

    @ledger.transactional(key=("order_id",))
    def keep(session: OurSession, /, order_id: str) -> None:
        given.append(session)

    keep("O-1")
    assert isinstance(given[0], OurSession)
    assert given[0].expire_on_commit is False
    engine.dispose()


@pytest.mark.parametrize("kind", [*BLOCKING, *AWAITING])
def test_a_colour_that_the_engine_cannot_serve(shop: Shop, kind: str) -> None:
    """An async function on a sync engine, and the reverse: refused when decorating."""
    engine, bind = _bind(kind, shop.url)
    ledger = Ledger(bind)
    wrong = "async_session" if kind in BLOCKING else "session"
    with pytest.raises(ConfigurationError, match="make the ledger from a URL"):
        shops.tool(ledger, wrong)
    if isinstance(engine, AsyncEngine):
        asyncio.run(engine.dispose())
        with pytest.raises(ConfigurationError, match="AsyncEngine"):
            ledger.setup()
    else:
        engine.dispose()
        with pytest.raises(ConfigurationError, match="sync Engine"):
            asyncio.run(ledger.asetup())


def test_several_loops_one_after_another(shop: Shop) -> None:
    """A ledger from a URL serves each event loop with an engine of that loop's own."""
    ledger = Ledger(shop.url)
    ship = shops.tool(ledger, "async_session")

    async def once() -> Shipped:
        try:
            shipped: Shipped = await ship("O-1")
            return shipped
        finally:
            await ledger.aclose()

    assert asyncio.run(once()) == asyncio.run(once())
    assert shop.see("O-1").is_whole()
    assert shops.tool(ledger, "session")("O-1").number == shop.see("O-1").numbers[0]
    ledger.close()


def test_a_closed_ledger_opens_again(shop: Shop) -> None:
    """close() gives connections back; the next call opens new ones."""
    ledger = Ledger(shop.url)
    shipped = shops.tool(ledger, "session")("O-1")
    ledger.close()
    assert shops.tool(ledger, "session")("O-1") == shipped
    ledger.close()
    ledger.close()


# --- several ledgers, setup -----------------------------------------------------------------------


def test_two_ledgers_with_different_prefixes(shop: Shop) -> None:
    """Two ledgers in one database know nothing of each other."""
    with Ledger(shop.url, prefix="a_") as one, Ledger(shop.url, prefix="b_") as two:
        for ledger in (one, two):
            ledger.setup()
            shops.tool(ledger, "session")("O-1")
            shops.tool(ledger, "session")("O-1")
        assert len(shop.see("O-1").numbers) == 2
        assert one.effects()[0].attempt_id != two.effects()[0].attempt_id
    assert {"a_effects", "b_effects", "idem_effects"} <= set(
        sa.inspect(shop.engine).get_table_names()
    )
    assert shop.see("O-1").records == []  # the shop's own ledger, with the default prefix


def test_a_schema_of_its_own_on_postgresql(postgresql_url: str) -> None:
    """The ledger's tables can live in another schema of the database, in the same transaction."""
    shop = Shop(postgresql_url)
    shop.run("create schema ledgers")
    with Ledger(postgresql_url, schema="ledgers") as ledger:
        ledger.setup()
        ledger.setup()
        shipped = shops.tool(ledger, "session")("O-1")
        assert shops.tool(ledger, "session")("O-1") == shipped
        assert [record.state for record in ledger.effects()] == [State.SUCCEEDED]
    assert "idem_effects" in sa.inspect(shop.engine).get_table_names(schema="ledgers")
    assert shop.see("O-1").records == []
    assert shop.see("O-1").numbers == [shipped.number]


def test_setup_twice_changes_nothing(shop: Shop) -> None:
    """setup() may be called every time the program starts: what is there stays there."""
    shipped = shops.call(shop.url, "session", "O-1")
    before = shop.see("O-1")
    with Ledger(shop.url) as ledger:
        ledger.setup()
    assert shop.see("O-1") == before
    assert shops.call(shop.url, "session", "O-1") == shipped
    with shop.engine.connect() as conn:
        assert conn.exec_driver_sql("select count(*) from idem_schema").scalar() == 1


def test_setup_from_eight_processes_at_once(database_url: str, racers: Racers) -> None:
    """Eight processes that set up a fresh database at once all succeed, and it is set up once."""
    for told in racers.run("set_up", copies=8, url=database_url):
        assert told.result is None
    engine = sa.create_engine(database_url, poolclass=sa.NullPool)
    with engine.connect() as conn:
        assert conn.exec_driver_sql("select count(*) from idem_schema").scalar() == 1


async def test_asetup_of_a_fresh_database(database_url: str) -> None:
    """asetup() does what setup() does."""
    engine = sa.create_engine(database_url, poolclass=sa.NullPool)
    shops.metadata.create_all(engine)
    async with Ledger(database_url) as ledger:
        await ledger.asetup()
        await ledger.asetup()
        await shops.tool(ledger, "async_session")("O-1")
        assert [record.key for record in await ledger.aeffects()] == ["O-1"]


def test_tables_of_a_newer_library_are_refused(shop: Shop) -> None:
    """A ledger of a later version is not touched: the error says to upgrade here."""
    shop.run("insert into idem_schema (version, applied_at) values (999, '2030-01-01 00:00:00')")
    with Ledger(shop.url) as ledger, pytest.raises(ConfigurationError, match="Upgrade"):
        ledger.setup()


# --- what an effect costs -------------------------------------------------------------------------


class Counted:
    """Statements and commits on an engine."""

    def __init__(self) -> None:
        self.statements: list[str] = []
        self.commits = 0
        self.rollbacks = 0

    def clear(self) -> None:
        """Begin to count anew."""
        self.__init__()  # type: ignore[misc]  # its own state is all there is


@contextmanager
def _counting(engine: sa.Engine) -> Iterator[Counted]:
    counted = Counted()

    def statement(_conn: Any, _cursor: Any, sql: str, *_: Any) -> None:
        counted.statements.append(sql)

    def commit(_conn: Any) -> None:
        counted.commits += 1

    def rollback(_conn: Any) -> None:
        counted.rollbacks += 1

    event.listen(engine, "before_cursor_execute", statement)
    event.listen(engine, "commit", commit)
    event.listen(engine, "rollback", rollback)
    yield counted


def _check_effect(shop: Shop, counted: Counted) -> None:
    # SQLite's write lock at once, or a tool that reads first could fail.
    assert _verbs(counted) == ["BEGIN"] * shop.is_sqlite + ["INSERT", "INSERT", "UPDATE"]
    assert counted.commits == 1


def _check_replays(shop: Shop, first: list[str], second: Counted) -> None:
    assert first == ["BEGIN"] * shop.is_sqlite + ["INSERT", "SELECT"]
    assert _verbs(second) == ["SELECT"]  # it has seen a replay, and expects another one
    assert second.commits == 0


def _verbs(counted: Counted) -> list[str]:
    return [sql.split()[0] for sql in counted.statements]


def test_statements_and_commits_of_an_effect(shop: Shop) -> None:
    """An effect: one commit, two statements more than the tool's own; replays: no commit, one read.

    The first replay tries to claim; from then on the ledger reads first, until a claim wins.
    """
    engine = sa.create_engine(shop.url)
    tool = shops.tool(Ledger(engine), "connection")
    tool("warm-up")
    with _counting(engine) as counted:
        tool("O-1")
        _check_effect(shop, counted)
        counted.clear()
        tool("O-1")
        first = _verbs(counted)
        counted.clear()
        tool("O-1")
        _check_replays(shop, first, counted)
    assert shop.see("O-1").is_whole()
    engine.dispose()


async def test_statements_and_commits_of_an_async_effect(shop: Shop) -> None:
    """The other colour costs the same."""
    engine = create_async_engine(databases.as_async(shop.url))
    tool = shops.tool(Ledger(engine), "async_connection")
    await tool("warm-up")
    with _counting(engine.sync_engine) as counted:
        await tool("O-1")
        _check_effect(shop, counted)
        counted.clear()
        await tool("O-1")
        first = _verbs(counted)
        counted.clear()
        await tool("O-1")
        _check_replays(shop, first, counted)
    await engine.dispose()


def test_an_observer_that_fails_changes_nothing(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    """An observer is told after the fact: its exception is logged, the effect stands."""

    def broken(_event: Any) -> None:
        raise RuntimeError("the exporter is down")

    with Ledger(shop.url, observers=[broken]) as ledger:
        shops.tool(ledger, "session")("O-1")
    assert shop.see("O-1").is_whole()
    assert "the exporter is down" in caplog.text


# --- questions ------------------------------------------------------------------------------------


def test_effects_are_found_by_what_they_are(shop: Shop) -> None:
    """effect() and effects() find records by key, scope, operation and state."""
    with Ledger(shop.url) as ledger:

        @ledger.transactional(key=("tenant", "order_id"), scope=lambda given: given["tenant"])
        def book(session: Session, /, tenant: str, order_id: str) -> None: ...

        book("acme", "O-1")
        book("umbrella", "O-1")
        shops.tool(ledger, "session")("O-1")
        found = ledger.effect("book", ("acme", "O-1"), scope="acme")
        assert found is not None
        assert (found.key, found.scope) == ('["acme","O-1"]', "acme")
        assert ledger.effect("book", '["acme","O-1"]', scope="acme") == found
        assert ledger.effect("book", ("acme", "O-1")) is None
        assert ledger.effect("ship", "O-2") is None
        assert len(ledger.effects(operation="book")) == 2
        assert ledger.effects(scope="acme", state=State.SUCCEEDED) == [found]
        assert ledger.effects(state=State.FAILED) == []
        assert len(ledger.effects(limit=1)) == 1
        with pytest.raises(ConfigurationError, match="operashun"):
            ledger.effects(operashun="book")


def test_a_question_holds_no_lock(shop: Shop) -> None:
    """After effects() anybody can write at once; a question while somebody writes is bounded."""
    with Ledger(shop.url, wait=0.2) as asking:
        asking.effects()
        shops.call(shop.url, "session", "O-1")
        with shop.engine.connect() as writer:
            if shop.is_sqlite:
                writer.exec_driver_sql("begin immediate")
            began = time.monotonic()
            with contextlib.suppress(LedgerError):
                assert len(asking.effects()) == 1
            assert time.monotonic() - began < 20


def test_same_key_other_arguments_at_once(shop: Shop, racers: Racers) -> None:
    """Of two requests with one key and other arguments, the first stands; the second is refused."""
    with Ledger(shop.url) as ledger:

        @ledger.transactional(key=("order_id",))
        def pay(session: Session, /, order_id: str, cents: int) -> int:
            session.execute(sa.insert(shipments).values(order_id=order_id))
            return cents

        assert pay("O-1", 1) == 1
        for cents in (2, -1, True):
            with pytest.raises(ArgumentsChanged):
                pay("O-1", cents)
    assert len(shop.see("O-1").numbers) == 1


def test_pool_without_a_connection_is_busy(shop: Shop) -> None:
    """A pool that has nothing to give ends in EffectBusy, and nothing was done."""
    engine = sa.create_engine(shop.url, pool_size=1, max_overflow=0, pool_timeout=0.1)
    tool = shops.tool(Ledger(engine), "session")
    with engine.connect(), pytest.raises(EffectBusy):
        tool("O-1")
    assert shop.see("O-1").is_nothing
    tool("O-1")
    assert shop.see("O-1").is_whole()
    engine.dispose()


def test_a_file_that_cannot_be_opened_is_said_in_words(tmp_path: Path) -> None:
    """A path that leads nowhere is no reason to wait: LedgerError at once."""
    ledger = Ledger(f"sqlite:///{tmp_path}/missing/shop.db")
    with pytest.raises(LedgerError, match="cannot be opened"):
        ledger.setup()
    ledger.close()
