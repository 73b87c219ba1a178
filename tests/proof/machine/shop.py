"""The business that is protected: its tables, its effects, and the API that it calls."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import Any, Final

import httpx
import sqlalchemy as sa
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

from langgraph_idem import ABSENT, Effect, Found, Ledger
from tests.proof.machine.journal import Journal
from tests.proof.machine.plan import LEASE, PATIENCE

STOCK: Final = 1_000_000
SHELVES: Final = 4
_FILLER: Final = "x" * 1500
"""Makes rows so large that a full disk is noticed."""
_PAUSE: Final = 0.03
"""Seconds that a tool takes at most between its statements."""

metadata = sa.MetaData()
shipments = sa.Table(
    "shipments",
    metadata,
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("order_id", sa.String(40), nullable=False),
    sa.Column("filler", sa.Text),
)
stock = sa.Table(
    "stock",
    metadata,
    sa.Column("shelf", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("units", sa.Integer, nullable=False),
)


class Done(BaseModel):
    """What an effect returns: a number that names it."""

    order_id: str
    number: int


def open_shop(url: str) -> None:
    """Make the tables of the business and of the ledger."""
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    metadata.create_all(engine)
    with engine.begin() as conn:
        shelves = [{"shelf": shelf, "units": STOCK} for shelf in range(SHELVES)]
        conn.execute(sa.insert(stock), shelves)
    with Ledger(url) as ledger:
        ledger.setup()


def _shipped(conn: sa.Connection, order_id: str) -> Done:
    row = {"order_id": order_id, "filler": _FILLER}
    written = conn.execute(sa.insert(shipments).values(row).returning(shipments.c.number))
    return Done(order_id=order_id, number=written.scalar_one())


def _deducted(conn: sa.Connection, order_id: str) -> None:
    shelf = stock.c.shelf == int(order_id.partition("-")[2]) % SHELVES
    conn.execute(sa.update(stock).where(shelf).values(units=stock.c.units - 1))


def _pause() -> float:
    return random.uniform(0, _PAUSE)  # noqa: S311 - no secret


def shipping(ledger: Ledger, colour: str) -> Callable[..., Any]:
    """Make the tool that writes two rows of the ledger's own database."""
    guard: Any = ledger.transactional(key=("order_id",), operation="ship")

    def ship(session: Session, /, order_id: str) -> Done:
        """Ship an order."""
        done = _shipped(session.connection(), order_id)
        time.sleep(_pause())
        _deducted(session.connection(), order_id)
        return done

    async def aship(session: AsyncSession, /, order_id: str) -> Done:
        """Ship an order."""
        conn: AsyncConnection = await session.connection()
        done: Done = await conn.run_sync(_shipped, order_id)
        await asyncio.sleep(_pause())
        await conn.run_sync(_deducted, order_id)
        return done

    made: Callable[..., Any] = guard(ship if colour == "sync" else aship)
    return made


class Desk:
    """The provider, as its clients see it.

    Args:
        port: Of the wire to it.
        journal: Is told of answers that did not come.
        on_sent: Called when a request has left.

    """

    def __init__(self, port: int, journal: Journal, on_sent: Callable[[], None]) -> None:
        self._url = f"http://127.0.0.1:{port}"
        self._journal = journal
        self._on_sent = on_sent

    def act(self, effect: Effect, order_id: str) -> Done:
        """Ask for an effect."""
        try:
            with httpx.Client(timeout=PATIENCE, trust_env=False) as client:
                answer = client.post(
                    self._url,
                    json=_asked(effect, order_id),
                    extensions={"trace": self._trace},
                )
        except httpx.HTTPError:
            self._journal.lost(f"charge {order_id}")
            raise
        return Done.model_validate(answer.raise_for_status().json())

    async def aact(self, effect: Effect, order_id: str) -> Done:
        """Ask for an effect."""
        try:
            async with httpx.AsyncClient(timeout=PATIENCE, trust_env=False) as client:
                answer = await client.post(
                    self._url,
                    json=_asked(effect, order_id),
                    extensions={"trace": self._atrace},
                )
        except httpx.HTTPError:
            self._journal.lost(f"charge {order_id}")
            raise
        return Done.model_validate(answer.raise_for_status().json())

    def find(self, effect: Effect) -> Any:
        """Ask whether an effect has happened."""
        with httpx.Client(timeout=PATIENCE, trust_env=False) as client:
            asked = client.get(self._url, params={"key": effect.idempotency_key})
        number = asked.raise_for_status().json()["number"]
        return Found(Done(order_id=effect.key, number=number)) if number else ABSENT

    def _trace(self, event: str, _info: object) -> None:
        if event == "http11.send_request_body.complete":
            self._on_sent()

    async def _atrace(self, event: str, info: object) -> None:
        self._trace(event, info)


def _asked(effect: Effect, order_id: str) -> dict[str, Any]:
    until = time.monotonic() + PATIENCE
    return {"key": effect.idempotency_key, "order_id": order_id, "until": until}


def charging(ledger: Ledger, desk: Desk, kind: str, colour: str) -> Callable[..., Any]:
    """Make the tool that calls the provider."""
    abilities: dict[str, dict[str, Any]] = {
        "remote-keys": {"provider_keeps_key": 24 * 3600},
        "remote-lookup": {"lookup": desk.find},
        "remote-neither": {},
        "agent": {"provider_keeps_key": 24 * 3600},
    }
    guard: Any = ledger.remote(
        key=("order_id",), operation="charge", lease=LEASE, on_unknown="raise", **abilities[kind]
    )

    def charge(effect: Effect, /, order_id: str) -> Done:
        """Charge an order."""
        return desk.act(effect, order_id)

    async def acharge(effect: Effect, /, order_id: str) -> Done:
        """Charge an order."""
        return await desk.aact(effect, order_id)

    made: Callable[..., Any] = guard(charge if colour == "sync" else acharge)
    return made
