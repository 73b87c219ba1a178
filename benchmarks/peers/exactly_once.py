"""exactly-once: a claim, the effect, a record, each committed by itself."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from exactly_once import Store, once

from benchmarks.measuring import blocking

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from benchmarks.databases import Database
    from benchmarks.measuring import Turn
    from benchmarks.shop import Shop


@contextlib.contextmanager
def opened(database: Database, here: Shop, folder: Path) -> Iterator[dict[str, Turn]]:
    """Open its store: a file (which does not wait for the disk), or a table in our database."""
    if database.name == "SQLite":
        store = Store.sqlite(str(folder / "exactly.db"))
    else:
        store = Store.postgres(database.url.replace("+psycopg", ""))

    @once(store, key=lambda number: f"exactly-{number}")
    def order(number: int) -> str:
        here.bare(number)
        return "done"

    yield {"exactly-once": blocking(order)}
    store.close()
