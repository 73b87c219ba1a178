"""Read by mypy, never run: what type checkers see of guarded functions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session
from typing_extensions import assert_type

from langgraph_idem.ledger import Ledger

ledger = Ledger("sqlite:///shop.db")


@ledger.transactional(key=("order_id",))
def by_session(session: Session, /, order_id: str, units: int = 1) -> float:
    """Return a number."""
    return 1.0


@ledger.transactional(key=("order_id",))
def by_connection(conn: Connection, /, order_id: str) -> list[str]:
    """Return texts."""
    return []


@ledger.transactional(key=("order_id",))
async def by_async_session(session: AsyncSession, /, order_id: str) -> int:
    """Return a whole number."""
    return 1


@ledger.transactional(key=("order_id",))
async def by_async_connection(conn: AsyncConnection, /, order_id: str) -> None:
    """Return nothing."""


# Parameters and results stay; the first parameter is gone.
assert_type(by_session("O-1", units=2), float)
assert_type(by_connection("O-1"), list[str])
as_value: Callable[[str], float] = by_session


async def awaited() -> None:
    """An async function stays one."""
    assert_type(await by_async_session("O-1"), int)
    nothing: Awaitable[None] = by_async_connection("O-1")
    await nothing


# Each of these lines is wrong, and mypy must say so: an ignore that is not needed is an error.
by_session(1)  # type: ignore[arg-type]  # the argument's type
by_session()  # type: ignore[call-arg]  # a missing argument
by_session("O-1", sku="x")  # type: ignore[call-arg]  # an argument that is not there
by_session(Session(), "O-1")  # type: ignore[arg-type]  # the session is given by the ledger
ledger.transactional()  # type: ignore[call-arg]  # a key has no default
