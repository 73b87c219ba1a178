"""agent-once: a claim, the effect, a record, each committed by itself."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from once import Once

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from benchmarks.databases import Database
    from benchmarks.shop import Shop


@contextlib.contextmanager
def opened(
    database: Database, here: Shop, folder: Path
) -> Iterator[dict[str, Callable[[int], Any]]]:
    """Open its store: a file, or a table in our database."""
    is_file = database.name == "SQLite"
    once = Once(folder / "once.db" if is_file else database.url.replace("+psycopg", ""))

    def order(number: int) -> str:
        here.bare(number)
        return "done"

    yield {
        "agent-once": lambda number: once.execute(
            order, key=f"once-{number}", tool_name="order", number=number
        )
    }
