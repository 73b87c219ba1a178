"""A shop for the tests: its tables, its guarded tools in both colours, and what is on disk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from langchain_core.messages import AIMessage
from langchain_core.tools import BaseTool, tool
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from langgraph_idem import Ledger

if TYPE_CHECKING:
    from collections.abc import Sequence

TAKE = sa.text("insert into taken (order_id, sku) values (:order_id, :sku)")
NOTIFY = sa.text("insert into notified (order_id) values (:order_id)")


@dataclass
class Shop:
    """A shop on a database; what it tells is read on a connection of its own.

    Attributes:
        url: The database of the business rows and of the ledger.
        ledger: The shop's ledger.

    """

    url: str
    ledger: Ledger

    @classmethod
    def at(cls, url: str) -> Shop:
        """Open a shop whose tables are there."""
        return cls(url, Ledger(url))

    @classmethod
    def founded_at(cls, url: str) -> Shop:
        """Make the tables of business and ledger, then open the shop."""
        shop = cls.at(url)
        shop.ledger.setup()
        shop.write("create table taken (order_id text, sku text)")
        shop.write("create table notified (order_id text)")
        return shop

    def write(self, sql: str) -> None:
        """Run a statement and commit it."""
        engine = sa.create_engine(self.url, poolclass=sa.NullPool)
        with engine.begin() as connection:
            connection.execute(sa.text(sql))

    def rows(self, table: str) -> list[tuple[Any, ...]]:
        """Read a table."""
        engine = sa.create_engine(self.url, poolclass=sa.NullPool)
        with engine.connect() as connection:
            return [tuple(row) for row in connection.execute(sa.text(f"select * from {table}"))]

    def tools(self, *, colour: str = "sync") -> list[BaseTool]:
        """Return the shop's tools: one plain, two guarded."""
        guarded = _sync_tools(self.ledger) if colour == "sync" else _async_tools(self.ledger)
        return [check_stock, *guarded]


@tool
def check_stock(sku: str) -> str:
    """Tell how many are in stock."""
    return f"{sku}: enough"


def _sync_tools(ledger: Ledger) -> list[BaseTool]:
    @tool
    @ledger.transactional(key=("order_id", "sku"))
    def take(session: Session, /, order_id: str, sku: str) -> dict[str, str]:
        """Take one from stock."""
        session.execute(TAKE, {"order_id": order_id, "sku": sku})
        return {"taken": sku}

    @tool
    @ledger.transactional(key=("order_id",))
    def notify(session: Session, /, order_id: str) -> str:
        """Tell the customer."""
        session.execute(NOTIFY, {"order_id": order_id})
        return "notified"

    return [take, notify]


def _async_tools(ledger: Ledger) -> list[BaseTool]:
    @tool
    @ledger.transactional(key=("order_id", "sku"))
    async def take(session: AsyncSession, /, order_id: str, sku: str) -> dict[str, str]:
        """Take one from stock."""
        await session.execute(TAKE, {"order_id": order_id, "sku": sku})
        return {"taken": sku}

    @tool
    @ledger.transactional(key=("order_id",))
    async def notify(session: AsyncSession, /, order_id: str) -> str:
        """Tell the customer."""
        await session.execute(NOTIFY, {"order_id": order_id})
        return "notified"

    return [take, notify]


def calling(*calls: tuple[str, dict[str, Any]], ids: Sequence[str] | None = None) -> AIMessage:
    """Return the message of a model that calls tools.

    Args:
        *calls: Name and arguments of each.
        ids: Their ids; ``call_0``, ``call_1``... by default, as some providers number them.

    """
    given = ids or [f"call_{i}" for i in range(len(calls))]
    return AIMessage(
        "",
        tool_calls=[
            {"name": name, "args": args, "id": call_id}
            for (name, args), call_id in zip(calls, given, strict=True)
        ],
    )


TAKE_ONE = ("take", {"order_id": "O-1", "sku": "A"})
NOTIFY_ONE = ("notify", {"order_id": "O-1"})
CHECK = ("check_stock", {"sku": "A"})
