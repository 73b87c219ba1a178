"""Wherever a worker is killed, the order is processed once."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from examples.order_agent.stores import in_database, in_folder
from tests.acceptance.random_kills import kill_at_random

if TYPE_CHECKING:
    from pathlib import Path

ORDERS = int(os.environ.get("IDEM_TEST_RANDOM_KILLS", "20"))


@pytest.mark.slow
@pytest.mark.timeout(60 + 30 * ORDERS)
def test_one_effect_whenever_it_is_killed_on_sqlite(tmp_path: Path) -> None:
    """A worker killed at any instant, and its successors too, leave one deduction in the end."""
    with in_folder(tmp_path) as new_stores:
        tally = kill_at_random(ORDERS, new_stores, seed=1)
    assert tally.orders == ORDERS
    assert tally.kills_midway > 0  # or the kills came too early or too late to mean anything


@pytest.mark.slow
@pytest.mark.server("postgresql")
@pytest.mark.timeout(60 + 30 * ORDERS)
def test_one_effect_whenever_it_is_killed_on_postgresql(postgresql_url: str) -> None:
    """The same where shop, ledger and checkpoints are in PostgreSQL."""
    with in_database(postgresql_url, keep=True) as new_stores:
        tally = kill_at_random(ORDERS // 2, new_stores, seed=2)
    assert tally.orders == ORDERS // 2
    assert tally.kills_midway > 0
