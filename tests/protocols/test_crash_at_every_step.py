"""A crash before and after every step of the transactional protocol."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from langgraph_idem.effects import State
from tests.support import shop as shops
from tests.support.crash import BOUNDARIES, Crash, Fuse, fused
from tests.support.racers import Racers
from tests.support.shop import TOOLS, Shop

COMMITTED_FROM = BOUNDARIES.index("after commit")
EVERY_TOOL = pytest.mark.parametrize("takes", TOOLS)


def _one_effect(shop: Shop, order_id: str, number: int) -> None:
    """Assert that the order has exactly one row, whose number is recorded and was returned."""
    seen = shop.see(order_id)
    assert seen.is_whole(), seen
    assert seen.numbers == [number]
    assert seen.records[0].state is State.SUCCEEDED


def _all_or_nothing(shop: Shop, order_id: str, at: int) -> None:
    seen = shop.see(order_id)
    assert seen.is_whole() if at >= COMMITTED_FROM else seen.is_nothing, (BOUNDARIES[at], seen)


def test_the_steps_are_the_ones_that_are_crashed(shop: Shop) -> None:
    """No step is missed: an effect passes exactly the boundaries that are tested here."""
    for takes in TOOLS:
        with fused(Fuse(at=99)) as fuse:
            shops.call(shop.url, takes, f"order-{takes}")
        assert tuple(fuse.passed) == BOUNDARIES


@EVERY_TOOL
def test_crash_by_exception_at_every_boundary(shop: Shop, takes: str) -> None:
    """Whatever step a crash hits, a plain second call ends with exactly one effect."""
    for at, place in enumerate(BOUNDARIES):
        order_id = f"order-{at}"
        with fused(Fuse(at)) as fuse, pytest.raises(Crash):
            shops.call(shop.url, takes, order_id)
        assert fuse.passed[-1] == place
        _all_or_nothing(shop, order_id, at)
        _one_effect(shop, order_id, shops.call(shop.url, takes, order_id).number)


@EVERY_TOOL
def test_crash_by_sigkill_at_every_boundary(shop: Shop, racers: Racers, takes: str) -> None:
    """Killed at any step, a process leaves all or nothing; the next process needs nobody's hand."""
    for at in range(len(BOUNDARIES)):
        order_id = f"order-{at}"
        job: dict[str, Any] = {"url": shop.url, "takes": takes, "order_id": order_id}
        (killed,) = racers.run("ship_and_die", at=at, **job)
        assert killed.killed_by == signal.SIGKILL
        _all_or_nothing(shop, order_id, at)
        (second,) = racers.run("ship", **job)
        _one_effect(shop, order_id, second.result)


@EVERY_TOOL
def test_half_written_ledger_row_is_never_seen(shop: Shop, takes: str) -> None:
    """At no step does another connection see a claim, or a row without its record."""
    looks = []

    def look(place: str) -> None:
        seen = shop.see("O-1")
        assert seen.is_whole() or seen.is_nothing, (place, seen)
        looks.append(seen.is_whole())

    with fused(Fuse(at=99, look=look)):
        shops.call(shop.url, takes, "O-1")
    assert looks == [False] * COMMITTED_FROM + [True] * (len(BOUNDARIES) - COMMITTED_FROM)


@EVERY_TOOL
def test_crash_before_anything_was_recorded(shop: Shop, racers: Racers, takes: str) -> None:
    """Killed after its row was written, before the commit: nothing happened, and it can happen."""
    job: dict[str, Any] = {"url": shop.url, "takes": takes, "order_id": "O-1"}
    (killed,) = racers.run("ship_and_die", at=BOUNDARIES.index("after tool"), **job)
    assert killed.killed_by == signal.SIGKILL
    assert shop.see("O-1").is_nothing
    (second,) = racers.run("ship", **job)
    _one_effect(shop, "O-1", second.result)


@EVERY_TOOL
def test_idempotent_replay(shop: Shop, takes: str) -> None:
    """A call that is repeated returns the recorded result; nothing is written."""
    first = shops.call(shop.url, takes, "O-1")
    before = shop.see("O-1")
    assert [shops.call(shop.url, each, "O-1") for each in TOOLS] == [first] * 4
    assert shop.see("O-1") == before
    _one_effect(shop, "O-1", first.number)


@EVERY_TOOL
def test_crash_while_replaying(shop: Shop, takes: str) -> None:
    """A crash in a replay changes nothing."""
    first = shops.call(shop.url, takes, "O-1")
    before = shop.see("O-1")
    replayed = ("before begin", "after begin", "before sql", "after sql")
    for at, place in enumerate(replayed):
        with fused(Fuse(at)) as fuse, pytest.raises(Crash):
            shops.call(shop.url, takes, "O-1")
        assert fuse.passed[-1] == place
    assert shops.call(shop.url, takes, "O-1") == first
    assert shop.see("O-1") == before
