"""What a tool does with the transaction it was given, and how its effect ends."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event, exc
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncEngine,
    AsyncSession,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session, registry, sessionmaker

from langgraph_idem import events
from langgraph_idem.effects import Receipt, Relation, State
from langgraph_idem.errors import (
    AlreadyDone,
    ArgumentsChanged,
    ConfigurationError,
    LedgerError,
    RecordedFailure,
    ResultNotStorable,
)
from langgraph_idem.ledger import Ledger
from tests.support import crash, databases
from tests.support import shop as shops
from tests.support.shop import Shop, shipments


class OutOfStock(Exception):
    """The tool's no."""


@pytest.fixture
def ledger(shop: Shop) -> Iterator[Ledger]:
    """A ledger of the shop."""
    with Ledger(shop.url) as opened:
        yield opened


def _insert(order_id: str, note: str | None = None) -> Any:
    return sa.insert(shipments).values(order_id=order_id, note=note)


# --- commit and rollback by the tool --------------------------------------------------------------


def test_commit_inside_the_tool_commits_nothing(shop: Shop, ledger: Ledger) -> None:
    """After session.commit() and conn.commit() a crash still leaves nothing behind."""

    @ledger.transactional(key=("order_id",), operation="ship")
    def by_session(session: Session, /, order_id: str) -> None:
        session.execute(_insert(order_id))
        session.commit()
        session.connection().commit()
        session.commit()
        assert shop.see(order_id).is_nothing
        raise crash.Crash

    @ledger.transactional(key=("order_id",), operation="ship")
    def by_connection(conn: sa.Connection, /, order_id: str) -> None:
        conn.execute(_insert(order_id))
        conn.commit()
        assert shop.see(order_id).is_nothing
        raise crash.Crash

    for tool in (by_session, by_connection):
        with pytest.raises(crash.Crash):
            tool("O-1")
        assert shop.see("O-1").is_nothing
    shops.call(shop.url, "session", "O-1")
    assert shop.see("O-1").is_whole()


async def test_commit_inside_the_async_tool_commits_nothing(shop: Shop) -> None:
    """The same for AsyncSession and AsyncConnection."""
    async with Ledger(shop.url) as ledger:

        @ledger.transactional(key=("order_id",), operation="ship")
        async def by_session(session: AsyncSession, /, order_id: str) -> None:
            await session.execute(_insert(order_id))
            await session.commit()
            await (await session.connection()).commit()
            assert shop.see(order_id).is_nothing
            raise crash.Crash

        @ledger.transactional(key=("order_id",), operation="ship")
        async def by_connection(conn: AsyncConnection, /, order_id: str) -> None:
            await conn.execute(_insert(order_id))
            await conn.commit()
            assert shop.see(order_id).is_nothing
            raise crash.Crash

        for tool in (by_session, by_connection):
            with pytest.raises(crash.Crash):
                await tool("O-1")
            assert shop.see("O-1").is_nothing


def test_commit_inside_the_tool_then_return(shop: Shop, ledger: Ledger) -> None:
    """A tool that commits and goes on writing is one effect, committed once."""

    @ledger.transactional(key=("order_id",))
    def twice(session: Session, /, order_id: str) -> str:
        for _ in range(2):
            session.execute(_insert(order_id))
            session.commit()
        return "done"

    assert (twice("O-1"), twice("O-1")) == ("done", "done")
    assert len(shop.see("O-1").numbers) == 2
    assert [r.state for r in shop.see("O-1", "twice").records] == [State.SUCCEEDED]


def test_connection_is_given_back_as_it_was(shop: Shop) -> None:
    """The user's engine can commit for itself after an effect has used its connection."""
    engine = sa.create_engine(shop.url, pool_size=1, max_overflow=0)
    ledger = Ledger(engine)
    shops.tool(ledger, "connection")("O-1")
    with engine.connect() as conn:
        conn.execute(_insert("by hand"))
        conn.commit()
    assert len(shop.see("by hand").numbers) == 1
    engine.dispose()


ROLLED_BACK = pytest.raises(ConfigurationError, match=r"begin_nested\(\)")


@pytest.mark.parametrize("writes_again", [False, True])
def test_rollback_inside_the_tool_is_refused(
    shop: Shop, ledger: Ledger, *, writes_again: bool
) -> None:
    """rollback() and then a return: ConfigurationError, and nothing persists, whatever followed.

    What is written after the rollback must not be committed by itself either (SQLite's driver
    would, in autocommit mode).
    """

    def by_session(session: Session, /, order_id: str) -> None:
        session.execute(_insert(order_id))
        session.rollback()
        if writes_again:
            session.execute(_insert(order_id))

    def by_connection(conn: sa.Connection, /, order_id: str) -> None:
        conn.execute(_insert(order_id))
        conn.rollback()
        if writes_again:
            conn.execute(_insert(order_id))
            conn.commit()

    for function in (by_session, by_connection):
        with ROLLED_BACK:
            ledger.transactional(key=("order_id",), operation="ship")(function)("O-1")
        assert shop.see("O-1").is_nothing


@pytest.mark.parametrize("writes_again", [False, True])
async def test_rollback_inside_the_async_tool_is_refused(shop: Shop, *, writes_again: bool) -> None:
    """The same for AsyncSession and AsyncConnection."""

    async def by_session(session: AsyncSession, /, order_id: str) -> None:
        await session.execute(_insert(order_id))
        await session.rollback()
        if writes_again:
            await session.execute(_insert(order_id))
            await session.commit()

    async def by_connection(conn: AsyncConnection, /, order_id: str) -> None:
        await conn.execute(_insert(order_id))
        await conn.rollback()
        if writes_again:
            await conn.execute(_insert(order_id))

    async with Ledger(shop.url) as ledger:
        for function in (by_session, by_connection):
            guard: Any = ledger.transactional(key=("order_id",), operation="ship")
            with ROLLED_BACK:
                await guard(function)("O-1")
            assert shop.see("O-1").is_nothing


def test_deleted_claim_is_noticed(shop: Shop, ledger: Ledger) -> None:
    """A tool that deletes the ledger's row cannot complete: all is rolled back."""

    @ledger.transactional(key=("order_id",), operation="ship")
    def vandal(conn: sa.Connection, /, order_id: str) -> None:
        conn.execute(_insert(order_id))
        conn.exec_driver_sql("delete from idem_effects")

    with pytest.raises(LedgerError, match="everything was rolled back"):
        vandal("O-1")
    assert shop.see("O-1").is_nothing


def test_a_claim_that_loses_to_what_cannot_be_read_ends(tmp_path: Path) -> None:
    """Where keys are compared otherwise than byte by byte, the claim ends in words, not never."""
    mine = Shop(f"sqlite:///{tmp_path / 'shop.db'}")
    with mine.engine.begin() as conn:
        conn.exec_driver_sql(
            "create unique index folded on idem_effects (scope, operation, key collate nocase)"
        )
    with Ledger(mine.url) as ledger:
        shops.tool(ledger, "session")("O-1")
        with pytest.raises(LedgerError, match="cannot be claimed"):
            shops.tool(ledger, "session")("o-1")
    assert mine.see("o-1").is_nothing


def test_fencing_token_decides_who_completes(shop: Shop, ledger: Ledger) -> None:
    """A claim that carries another attempt's id is not completed: all is rolled back."""

    @ledger.transactional(key=("order_id",), operation="ship")
    def taken_over(conn: sa.Connection, /, order_id: str) -> None:
        conn.execute(_insert(order_id))
        conn.exec_driver_sql("update idem_effects set attempt_id = 'somebody else'")

    with pytest.raises(LedgerError, match="everything was rolled back"):
        taken_over("O-1")
    assert shop.see("O-1").is_nothing


# --- savepoints -----------------------------------------------------------------------------------


def _recipe(engine: sa.Engine) -> sa.Engine:
    """SQLAlchemy's recipe for SQLite: the driver begins nothing, an event listener does."""
    if engine.dialect.name != "sqlite":
        return engine

    @event.listens_for(engine, "connect")
    def _connect(connection: Any, _record: Any) -> None:
        connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def _begin(conn: sa.Connection) -> None:
        conn.exec_driver_sql("BEGIN")

    return engine


ENGINES: dict[str, Callable[[str], Any]] = {
    "url": lambda url: url,
    "engine": sa.create_engine,
    "engine with the BEGIN recipe": lambda url: _recipe(sa.create_engine(url)),
    "engine in autocommit": lambda url: sa.create_engine(url, isolation_level="AUTOCOMMIT"),
    "engine with autocommit as an option": lambda url: sa.create_engine(url).execution_options(
        isolation_level="AUTOCOMMIT"
    ),
    "engine whose driver is in autocommit": lambda url: sa.create_engine(
        url,
        connect_args={"isolation_level": None}
        if url.startswith("sqlite")
        else {"autocommit": True},
    ),
    "sessionmaker": lambda url: sessionmaker(sa.create_engine(url)),
}


@pytest.fixture(params=ENGINES)
def any_ledger(request: pytest.FixtureRequest, shop: Shop) -> Iterator[Ledger]:
    """A ledger made from each kind of bind, in each transaction mode that users run."""
    bind = ENGINES[request.param](shop.url)
    ledger = Ledger(bind)
    yield ledger
    ledger.close()
    engine = bind.kw["bind"] if isinstance(bind, sessionmaker) else bind
    if isinstance(engine, sa.Engine):
        engine.dispose()


def test_savepoint_undoes_a_part(shop: Shop, any_ledger: Ledger) -> None:
    """A part in begin_nested() may fail by itself; the rest is the effect."""

    @any_ledger.transactional(key=("order_id",), operation="ship")
    def in_parts(session: Session, /, order_id: str) -> shops.Shipped:
        part = session.begin_nested()
        session.execute(_insert(order_id))
        part.rollback()
        with session.begin_nested():
            return shops.ship(session.connection(), order_id)

    shipped = in_parts("O-1")
    assert shop.see("O-1").is_whole()
    assert shop.see("O-1").numbers == [shipped.number]
    assert in_parts("O-1") == shipped


def test_crash_after_a_savepoint_leaves_nothing(shop: Shop, any_ledger: Ledger) -> None:
    """A released savepoint is no commit: else the claim stays, and the effect is lost for ever."""

    @any_ledger.transactional(key=("order_id",), operation="ship")
    def crashing(session: Session, /, order_id: str) -> None:
        with session.begin_nested():
            session.execute(_insert(order_id))
        assert shop.see(order_id).is_nothing
        raise crash.Crash

    with pytest.raises(crash.Crash):
        crashing("O-1")
    assert shop.see("O-1").is_nothing


async def test_crash_after_a_savepoint_leaves_nothing_async(shop: Shop) -> None:
    """The same with the user's AsyncEngine, whose SQLite driver guesses transactions too."""
    engine = create_async_engine(databases.as_async(shop.url))
    ledger = Ledger(engine)

    @ledger.transactional(key=("order_id",), operation="ship")
    async def crashing(session: AsyncSession, /, order_id: str) -> None:
        async with session.begin_nested():
            await session.execute(_insert(order_id))
        assert shop.see(order_id).is_nothing
        raise crash.Crash

    with pytest.raises(crash.Crash):
        await crashing("O-1")
    assert shop.see("O-1").is_nothing
    await engine.dispose()


# --- errors of the tool ---------------------------------------------------------------------------


def test_integrity_error_of_the_tool_is_its_own(shop: Shop, any_ledger: Ledger) -> None:
    """The tool's IntegrityError surfaces raw, rolls back, and the effect can be done later."""
    shop.run("insert into shipments (order_id, note) values ('earlier', 'taken')")
    notes = ["taken", "free"]

    @any_ledger.transactional(key=("order_id",))
    def noted(session: Session, /, order_id: str) -> str:
        note = notes.pop(0)
        session.execute(_insert(order_id, note))
        return note

    with pytest.raises(exc.IntegrityError):
        noted("O-1")
    assert shop.see("O-1", "noted").is_nothing
    assert noted("O-1") == "free"
    assert len(shop.see("O-1").numbers) == 1


def test_error_at_the_last_flush_is_the_tools_own(shop: Shop, ledger: Ledger) -> None:
    """What the tool left unflushed is flushed before the commit, and may fail as the tool may."""
    shop.run("insert into shipments (order_id, note) values ('earlier', 'taken')")

    class Row:
        def __init__(self, order_id: str) -> None:
            self.order_id, self.note = order_id, "taken"

    mapping: Any = registry()
    mapping.map_imperatively(Row, shipments)

    @ledger.transactional(key=("order_id",))
    def lazy(session: Session, /, order_id: str) -> None:
        session.add(Row(order_id))

    with pytest.raises(exc.IntegrityError):
        lazy("O-1")
    assert shop.see("O-1", "lazy").is_nothing


def test_an_ordinary_error_is_forgotten(shop: Shop, ledger: Ledger) -> None:
    """An exception that is no refusal rolls back, is not recorded, and the next call runs."""
    left = [RuntimeError("flaky")]

    @ledger.transactional(key=("order_id",), operation="ship", refusals=(OutOfStock,))
    def flaky(conn: sa.Connection, /, order_id: str) -> shops.Shipped:
        shipped = shops.ship(conn, order_id)
        if left:
            raise left.pop()
        return shipped

    with pytest.raises(RuntimeError, match="flaky"):
        flaky("O-1")
    assert shop.see("O-1").is_nothing
    flaky("O-1")
    assert shop.see("O-1").is_whole()


def test_refusal_is_recorded(shop: Shop) -> None:
    """A refusal rolls the tool's rows back, is recorded, and is final for every later call."""
    heard: list[type[events.Event]] = []
    with Ledger(shop.url, observers=[lambda happened: heard.append(type(happened))]) as ledger:

        @ledger.transactional(key=("order_id",), operation="ship", refusals=(OutOfStock,))
        def refused(conn: sa.Connection, /, order_id: str) -> None:
            shops.ship(conn, order_id)
            raise OutOfStock("SKU-1")

        with pytest.raises(OutOfStock, match="SKU-1"):
            refused("O-1")
        (record,) = shop.see("O-1").records
        assert shop.see("O-1").numbers == []
        assert (record.state, record.reason) == (State.FAILED, "OutOfStock: SKU-1")
        assert record.settled_at is not None
        with pytest.raises(RecordedFailure, match="SKU-1"):
            refused("O-1")
        with pytest.raises(RecordedFailure, match="SKU-1") as failure:
            refused("O-1")
        assert (failure.value.operation, failure.value.key) == ("ship", "O-1")
        assert failure.value.reason == "OutOfStock: SKU-1"
    assert heard == [events.Refused]
    assert shop.see("O-1").records == [record]


def test_crash_while_refusing(shop: Shop, ledger: Ledger) -> None:
    """Whatever step of a refusal a crash hits: nothing, or a whole refusal; then the same no."""

    @ledger.transactional(key=("order_id",), operation="ship", refusals=(OutOfStock,))
    def refused(conn: sa.Connection, /, order_id: str) -> None:
        shops.ship(conn, order_id)
        raise OutOfStock("SKU-1")

    for at in itertools.count():
        shops.tool(ledger, "connection")(f"first-{at}")  # done anew: the ledger expects no replay
        with crash.fused(crash.Fuse(at)) as fuse, pytest.raises((OutOfStock, crash.Crash)):
            refused(f"O-{at}")
        with pytest.raises((OutOfStock, RecordedFailure), match="SKU-1"):
            refused(f"O-{at}")
        seen = shop.see(f"O-{at}")
        assert seen.numbers == []
        assert [record.state for record in seen.records] == [State.FAILED]
        if not fuse.is_blown:
            break
    assert at == 15  # 5 boundaries until the tool says no, 10 to record it


def test_wide_refusals_record_no_accident(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """refusals=(Exception,): a lock that was not had, or a bad result, is no refusal."""
    monkeypatch.setattr("langgraph_idem.protocols.PAUSES", ())
    locked = exc.OperationalError("select", None, Exception("database is locked"))
    broken: list[Any] = [locked, {1, 2}, "O-1"]

    with Ledger(shop.url) as ledger:

        @ledger.transactional(key=("order_id",), refusals=(Exception,))
        def unlucky(session: Session, /, order_id: str) -> str:
            if isinstance(broken[0], Exception):
                raise broken.pop(0)
            return broken.pop(0)  # type: ignore[no-any-return]  # the wrong type is the point

        for expected in (Exception, ResultNotStorable):
            with pytest.raises(expected):
                unlucky("O-1")
            assert shop.see("O-1", "unlucky").is_nothing
        assert unlucky("O-1") == "O-1"


def test_refused_while_somebody_else_succeeded(shop: Shop, ledger: Ledger) -> None:
    """If the effect took hold between the tool's no and its record, the answer is the effect."""

    @ledger.transactional(key=("order_id",), operation="ship", refusals=(OutOfStock,))
    def refused(conn: sa.Connection, /, order_id: str) -> shops.Shipped:
        raise OutOfStock

    def overtake(place: str) -> None:
        if place == "before begin" and "before tool" in fuse.passed and len(shop_calls) == 0:
            shop_calls.append(1)
            overtaking.append(shop_tool("O-1"))

    shop_calls: list[int] = []
    overtaking: list[shops.Shipped] = []
    fuse = crash.Fuse(99, look=overtake)
    with Ledger(shop.url) as other, crash.fused(fuse):
        shop_tool = shops.tool(other, "session")
        assert refused("O-1") == overtaking[0]
    assert shop.see("O-1").is_whole()


# --- results --------------------------------------------------------------------------------------


def test_result_that_cannot_be_kept_rolls_back(shop: Shop, ledger: Ledger) -> None:
    """The result is encoded before the commit: if it cannot be, nothing happened."""

    @ledger.transactional(key=("order_id",), operation="ship")
    def unstorable(conn: sa.Connection, /, order_id: str) -> Any:
        shops.ship(conn, order_id)
        return object()

    with pytest.raises(ResultNotStorable, match="return type") as refused:
        unstorable("O-1")
    assert refused.value.effect_happened is False
    assert refused.value.operation == "ship"
    assert shop.see("O-1").is_nothing
    shops.call(shop.url, "session", "O-1")
    assert shop.see("O-1").is_whole()


def test_changed_arguments_are_refused(shop: Shop, ledger: Ledger) -> None:
    """The same key with another argument that matters: ArgumentsChanged, and nothing is done."""

    @ledger.transactional(key=("order_id",), ignore=("memo",))
    def pay(session: Session, /, order_id: str, cents: int, memo: str = "", rush: str = "") -> int:
        session.execute(_insert(order_id))
        return cents

    assert pay("O-1", 100, memo="first") == 100
    assert pay(order_id="O-1", cents=100, memo="second", rush="") == 100
    with pytest.raises(ArgumentsChanged, match="cents, rush") as changed:
        pay("O-1", 101, rush="yes")
    assert changed.value.changed == ("cents", "rush")
    assert (changed.value.operation, changed.value.key) == ("pay", "O-1")
    assert len(shop.see("O-1").numbers) == 1


def test_arguments_need_not_be_kept(shop: Shop) -> None:
    """With keep_arguments=False the ledger holds a digest only, and still refuses a change."""
    with Ledger(shop.url, keep_arguments=False) as ledger:

        @ledger.transactional(key=("order_id",))
        def pay(session: Session, /, order_id: str, iban: str) -> None: ...

        pay("O-1", "DE02 1203 0000 0000 2020 51")
        with pytest.raises(ArgumentsChanged) as changed:
            pay("O-1", "DE89")
    assert changed.value.changed == ()
    with shop.engine.connect() as conn:
        row = conn.exec_driver_sql("select * from idem_effects").one()
    assert "DE02" not in str(row)


# --- replays --------------------------------------------------------------------------------------


def test_on_replay_raise(shop: Shop, ledger: Ledger) -> None:
    """on_replay="raise" does the effect once and then says AlreadyDone, with the receipt."""

    @ledger.transactional(key=("order_id",), on_replay="raise")
    def once(session: Session, /, order_id: str) -> str:
        session.execute(_insert(order_id))
        return "shipped"

    assert once("O-1") == "shipped"
    with pytest.raises(AlreadyDone) as done:
        once("O-1")
    receipt = done.value.receipt
    assert (receipt.operation, receipt.key, receipt.scope) == ("once", "O-1", "global")
    assert (receipt.replayed, receipt.result, receipt.outcome) == (True, "shipped", State.SUCCEEDED)
    assert len(shop.see("O-1").numbers) == 1


def test_on_replay_callable(shop: Shop, ledger: Ledger) -> None:
    """A callable gets the receipt, with the result, and says what a replay returns."""
    receipts: list[Receipt] = []

    def answer(receipt: Receipt) -> str:
        receipts.append(receipt)
        return "ALREADY_DONE"

    @ledger.transactional(key=("order_id",), on_replay=answer)
    def once(session: Session, /, order_id: str) -> str:
        session.execute(_insert(order_id))
        return "shipped"

    assert [once("O-1"), once("O-1")] == ["shipped", "ALREADY_DONE"]
    (receipt,) = receipts
    assert receipt.result == "shipped"
    assert receipt.relation is Relation.NOT_KNOWN
    assert receipt.settled_at == shop.see("O-1", "once").records[0].settled_at
    assert "result" not in receipt.as_dict()
    assert len(shop.see("O-1").numbers) == 1


def test_replay_returns_an_equal_object(ledger: Ledger) -> None:
    """A replay returns the annotated type again, not its JSON."""

    @dataclasses.dataclass
    class Parcel:
        labels: tuple[str, ...]
        cents: int

    # The annotation is a local class: given as an object, not as text.
    def pack(session: Any, /, order_id: Any) -> Any:
        return Parcel(("a", "b"), 5)

    pack.__annotations__ = {"session": Session, "order_id": str, "return": Parcel}
    packed: Any = ledger.transactional(key=("order_id",))(pack)
    first, second = packed("O-1"), packed("O-1")
    assert first == second == Parcel(("a", "b"), 5)
    assert first is not second


# --- cancellation ---------------------------------------------------------------------------------


@pytest.mark.parametrize("takes", ["async_session", "async_connection"])
async def test_cancel_before_the_commit_leaves_nothing(shop: Shop, takes: str) -> None:
    """A cancelled effect leaves no claim, no row and no connection behind."""
    engine: AsyncEngine = create_async_engine(databases.as_async(shop.url))
    ledger, written, never = Ledger(engine), asyncio.Event(), asyncio.Event()

    async def by_session(session: AsyncSession, /, order_id: str) -> None:
        await session.execute(_insert(order_id))
        written.set()
        await never.wait()

    async def by_connection(conn: AsyncConnection, /, order_id: str) -> None:
        await conn.execute(_insert(order_id))
        written.set()
        await never.wait()

    guard: Any = ledger.transactional(key=("order_id",), operation="ship")
    function = by_session if takes == "async_session" else by_connection
    task = asyncio.ensure_future(guard(function)("O-1"))
    await written.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    pool: Any = engine.pool
    assert pool.checkedout() == 0
    assert shop.see("O-1").is_nothing
    await shops.tool(ledger, takes)("O-1")
    assert shop.see("O-1").is_whole()
    assert pool.checkedout() == 0
    await engine.dispose()


async def test_cancel_at_every_boundary(shop: Shop) -> None:
    """Cancelled at any step: all or nothing, no leaked connection, and the next call is right."""
    engine: AsyncEngine = create_async_engine(databases.as_async(shop.url))
    tool = shops.tool(Ledger(async_sessionmaker(engine)), "async_session")

    def cancel() -> None:
        current = asyncio.current_task()
        assert current is not None
        current.cancel()

    pool: Any = engine.pool
    for at in range(len(crash.BOUNDARIES)):
        order_id = f"O-{at}"
        with crash.fused(crash.Fuse(at, cancel)):
            await asyncio.wait([asyncio.ensure_future(tool(order_id))])
        assert pool.checkedout() == 0
        seen = shop.see(order_id)
        assert seen.is_whole() or seen.is_nothing
        shipped = await tool(order_id)
        assert shop.see(order_id).is_whole()
        assert shop.see(order_id).numbers == [shipped.number]
    assert pool.checkedout() == 0
    await engine.dispose()


# --- what a person releases -----------------------------------------------------------------------


def test_what_a_person_released_takes_hold_at_the_next_call(shop: Shop, ledger: Ledger) -> None:
    """A claim that a raw COMMIT has torn off is settled by a person, and is not stuck."""
    torn = [True]

    @ledger.transactional(key=("order_id",), operation="ship")
    def ship(conn: sa.Connection, /, order_id: str, note: str = "") -> str:
        if torn.pop() if torn else False:
            conn.exec_driver_sql("COMMIT")
            raise OutOfStock
        conn.execute(_insert(order_id, note))
        return order_id

    with pytest.raises(OutOfStock):
        ship("O-1")
    assert ledger.resolve("ship", "O-1", "released", by="ann").state is State.RELEASED

    assert ship("O-1", note="again") == "O-1"

    record = ledger.effect("ship", "O-1")
    assert record is not None
    assert (record.state, record.attempts, record.resolved_by) == (State.SUCCEEDED, 2, "ann")
    assert shop.count() == 1
