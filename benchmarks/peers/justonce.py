"""justonce: a claim, the effect, a record, each committed by itself."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from justonce import Idempotent
from justonce.stores.postgres import PostgresStore
from justonce.stores.sqlite import SqliteStore

from benchmarks.measuring import blocking

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from benchmarks.databases import Database
    from benchmarks.measuring import Turn
    from benchmarks.shop import Shop


@contextlib.contextmanager
def opened(database: Database, here: Shop, folder: Path) -> Iterator[dict[str, Turn]]:
    """Open its store: a file, or a table in our database."""
    if database.name == "SQLite":
        store: Any = SqliteStore(str(folder / "just.db"))
    else:
        store = PostgresStore(database.url.replace("+psycopg", ""))
    runner = Idempotent(store)

    def order(number: int) -> Any:
        def effect() -> str:
            here.bare(number)
            return "done"

        return runner.run(f"just-{number}", effect, payload={"number": number})

    yield {"justonce": blocking(order)}
