"""agent-ledger with its ``tx=``: the record in the business transaction; PostgreSQL only.

It works on connections of psycopg's awaiting kind, without SQLAlchemy, so it has a bare transaction
of its own to be compared with. Its table is made by the ``SCHEMA_SQL`` that it ships; nothing in it
makes the table by itself. ``tx=`` is an argument of ``run`` that its README does not mention: the
caller opens the transaction, writes on the same connection, and commits.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any

from agent_ledger import EffectLedger, EffectLedgerOptions, ToolCall
from agent_ledger.stores.postgres import SCHEMA_SQL, PostgresStore

from benchmarks.measuring import awaiting
from benchmarks.shop import SKUS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

    from benchmarks.databases import Database
    from benchmarks.measuring import Turn
    from benchmarks.shop import Shop

_SCHEMA = "agent_ledger"
_TAKE = "update stock set quantity = quantity - 1 where sku = %s"
_ORDER = "insert into orders (order_id, sku) values (%s, %s)"


@contextlib.contextmanager
def opened(database: Database, here: Shop, folder: Path) -> Iterator[dict[str, Turn]]:
    """Make its table in our database; it has no store for SQLite."""
    if database.name == "SQLite":
        yield {}
        return
    from psycopg_pool import AsyncConnectionPool

    logging.getLogger("agent_ledger").setLevel(logging.ERROR)
    loop = asyncio.new_event_loop()
    # A schema of its own: its table is called as another's is.
    own = {"options": f"-c search_path={_SCHEMA},public"}
    pool = AsyncConnectionPool(database.url.replace("+psycopg", ""), kwargs=own, open=False)
    loop.run_until_complete(_open(pool))
    try:
        yield {
            "bare, psycopg async": awaiting(_bare(pool), loop),
            "agent-ledger, tx=": awaiting(_guarded(pool), loop),
        }
    finally:
        loop.run_until_complete(pool.close())
        loop.close()


async def _open(pool: Any) -> None:
    await pool.open()
    async with pool.connection() as conn:
        await conn.execute(f"create schema {_SCHEMA}")
        await conn.execute(SCHEMA_SQL)


async def _work(conn: Any, order_id: str, sku: int) -> dict[str, Any]:
    await conn.execute(_TAKE, (sku,))
    await conn.execute(_ORDER, (order_id, sku))
    return {"order_id": order_id, "sku": sku}


def _bare(pool: Any) -> Callable[[int], Awaitable[Any]]:
    async def order(number: int) -> None:
        async with pool.connection() as conn, conn.transaction():
            await _work(conn, f"bare-{number}", number % SKUS)

    return order


def _guarded(pool: Any) -> Callable[[int], Awaitable[Any]]:
    ledger = EffectLedger(EffectLedgerOptions(store=PostgresStore(pool=pool)))

    async def order(number: int) -> None:
        arguments: dict[str, Any] = {"order_id": f"ledger-{number}", "sku": number % SKUS}
        call = ToolCall(workflow_id="shop", tool="order", args=arguments)
        async with pool.connection() as conn, conn.transaction():
            await ledger.run(call, lambda _effect: _work(conn, **arguments), tx=conn)

    return order
