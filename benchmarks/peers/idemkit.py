"""idemkit: a claim, the effect, a record, each committed by itself; PostgreSQL only."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from idemkit.adapters.ai import idempotent_sync
from idemkit.backends.postgres import PostgresBackend, init_pg
from idemkit.core.policy import MethodConfig

from benchmarks.measuring import blocking

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from benchmarks.databases import Database
    from benchmarks.measuring import Turn
    from benchmarks.shop import Shop


@contextlib.contextmanager
def opened(database: Database, here: Shop, folder: Path) -> Iterator[dict[str, Turn]]:
    """Open its store; it has none on SQLite."""
    if database.name == "SQLite":
        yield {}
        return
    url = database.url.replace("+psycopg", "")
    asyncio.run(init_pg(url))

    @idempotent_sync(
        backend=PostgresBackend.from_url(url), config=MethodConfig(key_fields=["number"])
    )
    def order(number: int) -> str:
        here.bare(number)
        return "done"

    yield {"idemkit": blocking(lambda number: order(number=number))}
