"""A shop for each test, on SQLite, or on both databases where the ledger matters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from tests.langgraph.shop import Shop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path


@pytest.fixture
def shop(sqlite_url: str) -> Iterator[Shop]:
    """Open a fresh shop on SQLite."""
    founded = Shop.founded_at(sqlite_url)
    yield founded
    founded.ledger.close()


@pytest.fixture
async def ashop(sqlite_url: str) -> AsyncIterator[Shop]:
    """Open a fresh shop on SQLite, for tests on an event loop."""
    founded = Shop.founded_at(sqlite_url)
    yield founded
    await founded.ledger.aclose()


@pytest.fixture
def checkpoints(tmp_path: Path) -> str:
    """Path of the checkpoints' own SQLite file."""
    return str(tmp_path / "checkpoints.db")


@pytest.fixture
def saver(checkpoints: str) -> Iterator[SqliteSaver]:
    """Open a fresh SQLite checkpointer."""
    with SqliteSaver.from_conn_string(checkpoints) as opened:
        yield opened


@pytest.fixture
async def asaver(checkpoints: str) -> AsyncIterator[AsyncSqliteSaver]:
    """Open a fresh SQLite checkpointer for an event loop."""
    async with AsyncSqliteSaver.from_conn_string(checkpoints) as opened:
        yield opened
