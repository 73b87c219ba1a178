"""airlock-sdk: a claim, the effect, a record, a link of its audit chain, each committed alone."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import airlock

from benchmarks.measuring import blocking

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from benchmarks.databases import Database
    from benchmarks.measuring import Turn
    from benchmarks.shop import Shop


@contextlib.contextmanager
def opened(database: Database, here: Shop, folder: Path) -> Iterator[dict[str, Turn]]:
    """Open its store: a file (which does not wait for the disk), or tables in our database."""
    if database.name == "SQLite":
        store = airlock.from_url(f"sqlite:///{folder / 'airlock.db'}")
    else:
        store = airlock.from_url(database.url.replace("+psycopg", ""))
        store.ensure_schema()

    @airlock.guard(
        f"shop.{folder.name}",  # an action is registered once in a process
        key=lambda number, **_: f"order-{number}",
        effect=airlock.Effect(key_param="idempotency_key"),
    )
    def order(number: int, *, idempotency_key: str | None = None) -> str:
        here.bare(number)
        return "done"

    rules = [airlock.Rule(match="shop.*", decision=airlock.Decision.AUTO)]
    airlock.init(store=store, policy=airlock.Policy(rules=rules))
    yield {"airlock-sdk": blocking(order)}
    store.close()
