"""exactly-once: a claim, the effect, a record, each committed by itself."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from exactly_once import Store, once

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from benchmarks.databases import Database
    from benchmarks.shop import Shop


@contextlib.contextmanager
def opened(
    database: Database, here: Shop, folder: Path
) -> Iterator[dict[str, Callable[[int], Any]]]:
    """Open its store: a file (which does not wait for the disk), or a table in our database."""
    if database.name == "SQLite":
        store, note = Store.sqlite(str(folder / "exactly.db")), " (no fsync)"
    else:
        store, note = Store.postgres(database.url.replace("+psycopg", "")), ""

    @once(store, key=lambda number: f"exactly-{number}")
    def order(number: int) -> str:
        here.bare(number)
        return "done"

    yield {f"exactly-once{note}": order}
    store.close()
