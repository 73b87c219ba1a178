"""agent-once: a claim, the effect, a record, each committed by itself."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from once import Once

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
    is_file = database.name == "SQLite"
    once = Once(folder / "once.db" if is_file else database.url.replace("+psycopg", ""))

    def order(number: int) -> str:
        here.bare(number)
        return "done"

    yield {
        "agent-once": blocking(
            lambda number: once.execute(
                order, key=f"once-{number}", tool_name="order", number=number
            )
        )
    }
