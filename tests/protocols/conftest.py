"""A fresh shop for every test, and processes to kill."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.racers import Racers
from tests.support.shop import Shop


@pytest.fixture
def shop(database_url: str) -> Shop:
    """A fresh shop with its ledger."""
    return Shop(database_url)


@pytest.fixture(scope="session")
def racers() -> Iterator[Racers]:
    """Real processes."""
    with Racers() as started:
        yield started
