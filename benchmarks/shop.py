"""The business that is measured: two statements, bare, by hand, and guarded, in each colour."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa
from pydantic import BaseModel
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlalchemy.orm import Session

from langgraph_idem import Ledger
from langgraph_idem.effects import Effect

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from benchmarks.databases import Database

SKUS: Final = 200

metadata = sa.MetaData()
stock = sa.Table(
    "stock",
    metadata,
    sa.Column("sku", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("quantity", sa.Integer, nullable=False),
)
orders = sa.Table(
    "orders",
    metadata,
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("order_id", sa.String(64), nullable=False),
    sa.Column("sku", sa.Integer, nullable=False),
)
by_hand = sa.Table(
    "by_hand",
    metadata,
    sa.Column("key", sa.String(64), primary_key=True),
    sa.Column("result", sa.Text),
)
"""The ledger that one would write by oneself: a key and a result."""

_take = (
    sa.update(stock)
    .where(stock.c.sku == sa.bindparam("p_sku"))
    .values(quantity=stock.c.quantity - 1)
)
_order = sa.insert(orders).inline()
_done = sa.update(by_hand).where(by_hand.c.key == sa.bindparam("p_key"))
_read = sa.select(by_hand.c.result).where(by_hand.c.key == sa.bindparam("p_key"))


class Taken(BaseModel):
    """What the tool returns."""

    order_id: str
    sku: int


def work(conn: sa.Connection | Session, order_id: str, sku: int) -> Taken:
    """Take one from the stock and write the order."""
    conn.execute(_take, {"p_sku": sku})
    conn.execute(_order, {"order_id": order_id, "sku": sku})
    return Taken(order_id=order_id, sku=sku)


async def awork(conn: AsyncConnection, order_id: str, sku: int) -> Taken:
    """Take one from the stock and write the order."""
    await conn.execute(_take, {"p_sku": sku})
    await conn.execute(_order, {"order_id": order_id, "sku": sku})
    return Taken(order_id=order_id, sku=sku)


def open_shop(engine: sa.Engine) -> None:
    """Make the tables and fill the shelves."""
    metadata.create_all(engine)
    with engine.begin() as conn:
        if conn.execute(sa.select(sa.func.count()).select_from(stock)).scalar_one() == 0:
            conn.execute(sa.insert(stock), [{"sku": n, "quantity": 0} for n in range(SKUS)])


@dataclass(frozen=True)
class Shop:
    """The business on one database, for functions that block."""

    engine: sa.Engine
    ledger: Ledger

    def bare(self, number: int) -> None:
        """Run the business transaction, and nothing else."""
        with self.engine.begin() as conn:
            work(conn, f"bare-{number}", number % SKUS)

    def bare_session(self, number: int) -> None:
        """Run it through a Session."""
        with Session(self.engine) as session, session.begin():
            work(session, f"bare-{number}", number % SKUS)

    def by_hand(self, number: int, prefix: str = "hand") -> None:
        """Run it with a ledger row in the same transaction, written by hand."""
        key = f"{prefix}-{number}"
        with self.engine.begin() as conn:
            if conn.execute(self._claim(), {"key": key}).first() is None:
                conn.execute(_read, {"p_key": key}).scalar_one()
                return
            taken = work(conn, key, number % SKUS)
            conn.execute(_done, {"p_key": key, "result": taken.model_dump_json()})

    def _claim(self) -> Any:
        kind = sqlite if self.engine.dialect.name == "sqlite" else postgresql
        return kind.insert(by_hand).on_conflict_do_nothing().returning(by_hand.c.key)

    def order(self) -> Callable[[str, int], Any]:
        """Make the guarded transaction, for a Connection."""

        @self.ledger.transactional(key=("order_id",), operation="order")
        def order(conn: sa.Connection, /, order_id: str, sku: int) -> Taken:
            return work(conn, order_id, sku)

        return order

    def guarded(self, prefix: str = "") -> Callable[[int], Any]:
        """Make the guarded transaction of a numbered order."""
        order = self.order()
        return lambda number: order(f"{prefix}order-{number}", number % SKUS)

    def guarded_session(self) -> Callable[[int], Any]:
        """Make the guarded transaction, for a Session."""

        @self.ledger.transactional(key=("order_id",), operation="order_by_session")
        def order(session: Session, /, order_id: str, sku: int) -> Taken:
            return work(session, order_id, sku)

        return lambda number: order(f"order-{number}", number % SKUS)

    def read(self, key: str) -> Callable[[int], Any]:
        """Make a read of one of the ledger's rows by its primary key: what a replay is made of."""
        effects = self.ledger.tables.effects
        question = sa.select(effects.c.result).where(
            effects.c.scope == "global",
            effects.c.operation == "order",
            effects.c.key == sa.bindparam("p_key"),
        )

        def read(_number: int) -> None:
            with self.engine.connect() as conn:
                assert conn.execute(question, {"p_key": key}).scalar_one()

        return read

    def two_commits(self, number: int) -> None:
        """Commit a row, and then a change to it."""
        with self.engine.begin() as conn:
            conn.execute(sa.insert(by_hand), {"key": f"twice-{number}"})
        with self.engine.begin() as conn:
            conn.execute(_done, {"p_key": f"twice-{number}", "result": "{}"})

    def remote(self) -> Callable[[int], Any]:
        """Make a guarded remote effect whose provider costs nothing."""

        @self.ledger.remote(key=("order_id",), operation="send")
        def send(effect: Effect, /, order_id: str, sku: int) -> Taken:
            assert effect.idempotency_key
            return Taken(order_id=order_id, sku=sku)

        return lambda number: send(f"order-{number}", number % SKUS)


@dataclass(frozen=True)
class AsyncShop:
    """The business on one database, for coroutine functions."""

    engine: AsyncEngine
    ledger: Ledger

    async def bare(self, number: int) -> None:
        """Run the business transaction, and nothing else."""
        async with self.engine.begin() as conn:
            await awork(conn, f"bare-{number}", number % SKUS)

    def guarded(self) -> Callable[[int], Awaitable[Any]]:
        """Make the guarded transaction."""

        @self.ledger.transactional(key=("order_id",), operation="order_async")
        async def order(conn: AsyncConnection, /, order_id: str, sku: int) -> Taken:
            return await awork(conn, order_id, sku)

        async def call(number: int) -> None:
            await order(f"order-{number}", number % SKUS)

        return call

    def read(self, key: str) -> Callable[[int], Awaitable[Any]]:
        """Make a read of one of the ledger's rows by its primary key."""
        effects = self.ledger.tables.effects
        question = sa.select(effects.c.result).where(
            effects.c.scope == "global",
            effects.c.operation == "order_async",
            effects.c.key == sa.bindparam("p_key"),
        )

        async def read(_number: int) -> None:
            async with self.engine.connect() as conn:
                assert (await conn.execute(question, {"p_key": key})).scalar_one()

        return read

    async def two_commits(self, number: int) -> None:
        """Commit a row, and then a change to it."""
        async with self.engine.begin() as conn:
            await conn.execute(sa.insert(by_hand), {"key": f"atwice-{number}"})
        async with self.engine.begin() as conn:
            await conn.execute(_done, {"p_key": f"atwice-{number}", "result": "{}"})

    def remote(self) -> Callable[[int], Awaitable[Any]]:
        """Make a guarded remote effect whose provider costs nothing."""

        @self.ledger.remote(key=("order_id",), operation="send_async")
        async def send(effect: Effect, /, order_id: str, sku: int) -> Taken:
            assert effect.idempotency_key
            return Taken(order_id=order_id, sku=sku)

        async def call(number: int) -> None:
            await send(f"order-{number}", number % SKUS)

        return call


@contextlib.contextmanager
def shop(database: Database, prefix: str = "idem_") -> Iterator[Shop]:
    """Open the shop of a database, and close it at the end.

    Args:
        database: Where.
        prefix: What the names of the ledger's tables begin with.

    """
    engine = database.engine()
    with Ledger(database.url, prefix=prefix) as ledger:
        ledger.setup()
        open_shop(engine)
        try:
            yield Shop(engine, ledger)
        finally:
            engine.dispose()
