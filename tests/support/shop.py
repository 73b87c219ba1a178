"""A business to protect: one table, and one tool in each colour and for each first parameter."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

from langgraph_idem.effects import EffectRecord, State
from langgraph_idem.ledger import Ledger
from langgraph_idem.sql import queries
from langgraph_idem.sql.schema import ledger_tables

metadata = sa.MetaData()
shipments = sa.Table(
    "shipments",
    metadata,
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("order_id", sa.Text, nullable=False),
    sa.Column("note", sa.Text, unique=True),
)

TOOLS: Final = ("session", "connection", "async_session", "async_connection")
"""What a tool may take first."""


class Shipped(BaseModel):
    """What the tool returns: the number of the row it wrote, so that a result names its effect."""

    order_id: str
    number: int


def ship(conn: sa.Connection, order_id: str) -> Shipped:
    """Write one shipment."""
    written = conn.execute(
        sa.insert(shipments).values(order_id=order_id).returning(shipments.c.number)
    )
    return Shipped(order_id=order_id, number=written.scalar_one())


def tool(ledger: Ledger, takes: str) -> Callable[[str], Any]:
    """Make the shipping tool that takes what is named; all make effects of one operation."""
    guard: Any = ledger.transactional(key=("order_id",), operation="ship")

    def with_session(session: Session, /, order_id: str) -> Shipped:
        return ship(session.connection(), order_id)

    def with_connection(conn: sa.Connection, /, order_id: str) -> Shipped:
        return ship(conn, order_id)

    async def with_async_session(session: AsyncSession, /, order_id: str) -> Shipped:
        return await (await session.connection()).run_sync(ship, order_id)

    async def with_async_connection(conn: AsyncConnection, /, order_id: str) -> Shipped:
        return await conn.run_sync(ship, order_id)

    made: Callable[[str], Any] = guard(
        {
            "session": with_session,
            "connection": with_connection,
            "async_session": with_async_session,
            "async_connection": with_async_connection,
        }[takes]
    )
    return made


def call(url: str, takes: str, order_id: str) -> Shipped:
    """Ship once, by a ledger that did not exist before and does not afterwards."""
    if takes.startswith("async"):
        return asyncio.run(_acall(url, takes, order_id))
    with Ledger(url) as ledger:
        shipped: Shipped = tool(ledger, takes)(order_id)
    return shipped


async def _acall(url: str, takes: str, order_id: str) -> Shipped:
    async with Ledger(url) as ledger:
        shipped: Shipped = await tool(ledger, takes)(order_id)
    return shipped


@dataclass(frozen=True)
class Seen:
    """What another connection sees of one order."""

    numbers: list[int]
    records: list[EffectRecord]

    @property
    def is_nothing(self) -> bool:
        """True if neither the business nor the ledger knows of the order."""
        return not self.numbers and not self.records

    def is_whole(self) -> bool:
        """Tell whether there is one row, and one record that says so."""
        if len(self.numbers) != 1 or len(self.records) != 1:
            return False
        (record,), (number,) = self.records, self.numbers
        told = record.state is State.SUCCEEDED and record.settled_at is not None
        return told and Shipped.model_validate_json(record.result or "{}").number == number


class Shop:
    """A fresh database with the business's table and the ledger's, and a witness to look at it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.engine = sa.create_engine(url, poolclass=sa.NullPool)
        metadata.create_all(self.engine)
        with Ledger(url) as ledger:
            ledger.setup()

    @property
    def is_sqlite(self) -> bool:
        """True on SQLite."""
        return self.engine.dialect.name == "sqlite"

    def see(self, order_id: str, operation: str = "ship") -> Seen:
        """Look at one order through a connection of the witness's own."""
        with self.engine.connect() as conn:
            numbers = conn.scalars(
                sa.select(shipments.c.number).where(shipments.c.order_id == order_id)
            )
            seen = list(numbers)
            found = queries.many(conn, ledger_tables(), operation=operation, key=order_id)
        return Seen(seen, found)

    def count(self) -> int:
        """Count all shipments."""
        with self.engine.connect() as conn:
            return conn.scalar(sa.select(sa.func.count()).select_from(shipments)) or 0

    def run(self, sql: str) -> None:
        """Run a statement of the witness's own, committed at once."""
        with self.engine.begin() as conn:
            conn.exec_driver_sql(sql)

    def cut_all_connections(self) -> None:
        """Let PostgreSQL end every other connection to this database."""
        self.run(
            "select pg_terminate_backend(pid) from pg_stat_activity "
            "where datname = current_database() and pid <> pg_backend_pid()"
        )
