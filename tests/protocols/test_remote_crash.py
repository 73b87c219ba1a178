"""A crash before and after every step of the remote protocol."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.ext.asyncio import create_async_engine

from langgraph_idem import Effect, Ledger
from langgraph_idem.effects import State
from tests.support import provider
from tests.support.crash import Crash, Death, Fuse, fused
from tests.support.provider import COLOURS, KINDS, Provider, Witness
from tests.support.racers import Racers

ONE = tuple(
    f"{when} {step}"
    for step in ("begin", "sql", "commit", "leaving")
    for when in ("before", "after")
)
FRESH = (*ONE, "before call", "after call", *ONE)
"""What a fresh effect passes: the claim, the call, the outcome. A new step must be added here."""
CLAIMED = FRESH.index("after leaving")
ACTED = FRESH.index("after call") + 1
"""Where an attempt dies that has claimed, and one that has acted and could not say so."""
MANY = 200
"""More boundaries than any call passes."""

EVERY_KIND = pytest.mark.parametrize("kind", KINDS)
EVERY_COLOUR = pytest.mark.parametrize("colour", COLOURS)
IN_THE_PROCESS = pytest.mark.parametrize("fuse", [Fuse, Death])
"""A crash by exception: with everything cleaned up on the way out, and with nothing."""

Dies = Callable[[str, int], bool]
"""Calls for an order and dies at a boundary; tells whether the boundary was there."""


@pytest.fixture
def witness(database_url: str) -> Witness:
    """A fresh ledger, and somebody to look at it."""
    return Witness(database_url)


@pytest.fixture
def api(tmp_path: Path, kind: str) -> Provider:
    """A provider to whom nothing has happened."""
    (tmp_path / "provider").touch()
    return Provider(tmp_path / "provider", kind)


def _by_exception(witness: Witness, api: Provider, colour: str, kind: type[Fuse]) -> Dies:
    def dies(order_id: str, at: int) -> bool:
        with fused(kind(at)) as fuse, contextlib.suppress(Crash):
            provider.told(witness.url, api, colour, order_id)
        return fuse.is_blown

    return dies


def _by_sigkill(witness: Witness, api: Provider, colour: str, racers: Racers) -> Dies:
    def dies(order_id: str, at: int) -> bool:
        what: dict[str, Any] = {"path": str(api.path), "kind": api.kind, "colour": colour}
        (finish,) = racers.run(
            "tests.support.provider:die", url=witness.url, order_id=order_id, at=at, **what
        )
        assert finish.killed_by in {0, signal.SIGKILL}, finish
        assert finish.failure is None, finish
        return finish.killed_by == signal.SIGKILL

    return dies


def _true(witness: Witness, api: Provider, order_id: str) -> None:
    """Assert that it happened once at most, and that the ledger claims nothing that is not so."""
    numbers, record = api.numbers(order_id), witness.find(order_id)
    assert len(numbers) <= 1, (numbers, record)
    assert record is None or record.state is not State.FAILED, record
    if record is not None and record.state is State.SUCCEEDED:
        assert [record.result] == [str(number) for number in numbers], record


def _goes_on(witness: Witness, api: Provider, colour: str, order_id: str) -> None:
    """Repeat the call until it is settled, by a person if need be, and see that all is true."""
    answers = []
    for _ in range(3):
        answers.append(provider.told(witness.url, api, colour, order_id))
        _true(witness, api, order_id)
        witness.expire(order_id)
    if answers[-1] == "OutcomeUnknown":
        answers.append(_settled_by_a_person(witness, api, colour, order_id))
    _true(witness, api, order_id)
    assert witness.state(order_id) is State.SUCCEEDED, (order_id, answers)
    assert api.numbers(order_id) == [answers[-1]], answers


def _settled_by_a_person(witness: Witness, api: Provider, colour: str, order_id: str) -> int | str:
    assert api.kind == "neither", "only an opaque provider may need a person here"
    assert witness.state(order_id) is State.UNKNOWN
    with Ledger(witness.url) as ledger:
        if happened := api.numbers(order_id):
            ledger.resolve("ship", order_id, "succeeded", result=happened[0], by="Ann")
        else:
            ledger.resolve("ship", order_id, "released", by="Ann")
    return provider.told(witness.url, api, colour, order_id)


def _dies_at_every_step(witness: Witness, api: Provider, colour: str, dies: Dies) -> None:
    for at in range(MANY):
        order_id = f"order-{at}"
        if not dies(order_id, at):
            assert at == len(FRESH)
            return
        _true(witness, api, order_id)
        _goes_on(witness, api, colour, order_id)
    pytest.fail("the call never came to its end")


def _dies_while_finding_out(
    witness: Witness, api: Provider, colour: str, dies: Dies, first_dies_at: int
) -> None:
    """The first attempt dies at a given place, the second at each of its own steps."""
    for at in range(MANY):
        order_id = f"order-{at}"
        assert _by_exception(witness, api, colour, Death)(order_id, first_dies_at)
        assert witness.state(order_id) is State.CLAIMED
        witness.expire(order_id)
        if not dies(order_id, at):
            assert at > 2 * len(ONE), "finding out takes more than two transactions"
            return
        _true(witness, api, order_id)
        witness.expire(order_id)
        _goes_on(witness, api, colour, order_id)
    pytest.fail("the call never came to its end")


@EVERY_KIND
@EVERY_COLOUR
def test_the_steps_are_the_ones_that_are_crashed(
    witness: Witness, api: Provider, colour: str
) -> None:
    """No step is missed: a fresh effect passes these boundaries; a replay commits and calls not."""
    with fused(Fuse(MANY)) as fuse:
        number = provider.told(witness.url, api, colour, "O-1")
    assert tuple(fuse.passed) == FRESH
    with fused(Fuse(MANY)) as fuse:
        assert provider.told(witness.url, api, colour, "O-1") == number
    assert tuple(fuse.passed) == tuple(place for place in ONE if "commit" not in place)


@EVERY_KIND
@EVERY_COLOUR
@IN_THE_PROCESS
def test_crash_by_exception_at_every_step(
    witness: Witness, api: Provider, colour: str, fuse: type[Fuse]
) -> None:
    """Whatever step a crash hits, repeated calls end with exactly one effect, and say so."""
    _dies_at_every_step(witness, api, colour, _by_exception(witness, api, colour, fuse))


@pytest.mark.slow
@EVERY_KIND
@EVERY_COLOUR
def test_crash_by_sigkill_at_every_step(
    witness: Witness, api: Provider, colour: str, racers: Racers
) -> None:
    """Killed at any step, a process leaves what the next ones settle: one effect, or a question."""
    _dies_at_every_step(witness, api, colour, _by_sigkill(witness, api, colour, racers))


@EVERY_KIND
@EVERY_COLOUR
@pytest.mark.parametrize("first_dies_at", [CLAIMED, ACTED])
def test_crash_by_exception_while_finding_out(
    witness: Witness, api: Provider, colour: str, first_dies_at: int
) -> None:
    """The attempt that takes over may die at any step too: take over, look up, send again, record.

    It took over from an attempt that is gone, whether that one had acted or not.
    """
    dies = _by_exception(witness, api, colour, Death)
    _dies_while_finding_out(witness, api, colour, dies, first_dies_at)


@pytest.mark.slow
@EVERY_KIND
@EVERY_COLOUR
def test_crash_by_sigkill_while_finding_out(
    witness: Witness, api: Provider, colour: str, racers: Racers
) -> None:
    """Killed while finding out about an attempt that had acted: found out by the next one."""
    dies = _by_sigkill(witness, api, colour, racers)
    _dies_while_finding_out(witness, api, colour, dies, ACTED)


def _counted(engine: sa.Engine) -> list[str]:
    commits: list[str] = []
    event.listen(engine, "commit", lambda _conn: commits.append("commit"))
    return commits


def test_a_remote_effect_costs_two_commits_and_no_connection(database_url: str) -> None:
    """Intent and outcome are one commit each; while the tool runs no connection is held."""
    engine = sa.create_engine(database_url)
    pool: Any = engine.pool
    ledger, held = Ledger(engine), []
    ledger.setup()
    commits = _counted(engine)

    @ledger.remote(key=("order_id",))
    def ship(effect: Effect, /, order_id: str) -> int:
        held.append(pool.checkedout())
        return 7

    assert ship("O-1") == 7
    assert (held, len(commits)) == ([0], 2)
    assert ship("O-1") == 7
    assert (held, len(commits)) == ([0], 2), "a replay commits nothing"
    assert pool.checkedout() == 0
    engine.dispose()


async def test_likewise_on_a_loop(async_database_url: str) -> None:
    """Two commits, no connection held, none for a replay: the same steps in the other colour."""
    engine = create_async_engine(async_database_url)
    pool: Any = engine.sync_engine.pool
    ledger, held = Ledger(engine), []
    await ledger.asetup()
    commits = _counted(engine.sync_engine)

    @ledger.remote(key=("order_id",))
    async def ship(effect: Effect, /, order_id: str) -> int:
        await asyncio.sleep(0)
        held.append(pool.checkedout())
        return 7

    assert await ship("O-1") == 7
    assert await ship("O-1") == 7
    assert (held, len(commits), pool.checkedout()) == ([0], 2, 0)
    await engine.dispose()
