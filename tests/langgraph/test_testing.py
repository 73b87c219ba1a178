"""The tools for users' tests: crashes at every step, faulty checkpointers, age, one effect."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from langgraph_idem import (
    ConfigurationError,
    Effect,
    EffectBusy,
    Found,
    OutcomeUnknown,
    State,
)
from langgraph_idem.testing import (
    Crashed,
    FaultyCheckpointer,
    WriteFault,
    aage,
    aassert_effect_once,
    age,
    assert_effect_once,
    crash,
    dying,
    failing,
    slow,
)
from tests.support.cases import CONFIG, HELLO, PAY_ONE, Business, agent, asks, pay_tool, run

ONCE = [("O-1", 5)]
SCRIPT = [asks(PAY_ONE), "Paid."]
TRANSACTIONAL = ("begin", "claim", "effect", "complete", "commit")
REMOTE = ("begin", "claim", "commit", "effect", "begin", "complete", "commit")


@pytest.fixture
def business(database_url: str) -> Iterator[Business]:
    """Open a fresh business."""
    founded = Business.founded_at(database_url)
    yield founded
    founded.ledger.close()


def places(steps: tuple[str, ...]) -> list[str]:
    """Name the places before and after steps."""
    return [f"{when} {step}" for step in steps for when in ("before", "after")]


# --- crashes --------------------------------------------------------------------------------------


def test_a_crash_names_the_places_it_passed(business: Business) -> None:
    """The way to the last place shows every step of a transactional effect, in order."""
    with crash(business.ledger, after="commit") as died:
        pay_tool(business).invoke({"order_id": "O-1"})
    assert died.passed == places(TRANSACTIONAL)
    assert died.happened


@pytest.mark.parametrize("colour", ["sync", "async"])
@pytest.mark.parametrize("place", places(TRANSACTIONAL))
async def test_a_transactional_effect_survives_a_crash_at_every_step(
    business: Business, place: str, colour: str
) -> None:
    """Whatever the step, there is all of the effect or nothing; the resume makes it one."""
    when, step = place.split()
    saver = InMemorySaver()
    graph = agent(
        "create_react_agent", SCRIPT, [pay_tool(business, colour=colour)], business, saver
    )
    crashing: dict[str, Any] = {when: step}
    with crash(business.ledger, **crashing):
        await run(colour, graph, HELLO)
    is_committed = place == "after commit"
    assert business.payments == (ONCE if is_committed else [])
    assert len(await business.ledger.aeffects()) == is_committed
    await run(colour, graph, None)
    assert business.payments == ONCE
    await aassert_effect_once(business.ledger, "pay", "O-1")
    await business.ledger.aclose()


def refund_tool(
    business: Business, sent: list[str], colour: str, **options: Any
) -> Callable[..., Any]:
    """Make a remote tool; the provider is a list."""
    guard: Any = business.ledger.remote(key=("order_id",), operation="refund", **options)

    def refund(effect: Effect, /, order_id: str) -> str:
        sent.append(effect.idempotency_key)
        return "refunded"

    async def arefund(effect: Effect, /, order_id: str) -> str:
        return refund(effect, order_id)

    made: Callable[..., Any] = guard(refund if colour == "sync" else arefund)
    return made


async def called(tool: Callable[..., Any], colour: str) -> Any:
    """Call a tool in its colour."""
    return tool(order_id="O-1") if colour == "sync" else await tool(order_id="O-1")


@pytest.mark.parametrize("colour", ["sync", "async"])
@pytest.mark.parametrize(("number", "place"), [*enumerate(places(REMOTE))])
async def test_a_remote_effect_survives_a_crash_at_every_step(
    business: Business, number: int, place: str, colour: str
) -> None:
    """The dead attempt writes nothing more; another one looks up, and nothing is sent twice."""
    when, step = place.split()
    sent: list[str] = []

    def lookup(effect: Effect) -> Found | None:
        return Found("refunded") if effect.idempotency_key in sent else None

    tool = refund_tool(business, sent, colour, lookup=lookup, lease=60, wait=0)
    crashing: dict[str, Any] = {when: step, "nth": places(REMOTE)[: number + 1].count(place)}
    with crash(business.ledger, **crashing) as died:
        await called(tool, colour)
    assert died.passed == places(REMOTE)[: number + 1]
    was_sent = number >= places(REMOTE).index("after effect")
    assert len(sent) == was_sent
    found = await business.ledger.aeffects()
    if number < places(REMOTE).index("after commit"):
        assert found == []
    elif number == len(places(REMOTE)) - 1:
        assert [record.state for record in found] == [State.SUCCEEDED]
    else:
        assert [record.state for record in found] == [State.CLAIMED]
        with pytest.raises(EffectBusy):
            await called(tool, colour)
        await aage(business.ledger, "refund", "O-1", 61)
    if was_sent or not found:
        assert await called(tool, colour) == "refunded"
        assert len(sent) == 1
        await aassert_effect_once(business.ledger, "refund", "O-1")
    else:
        with pytest.raises(OutcomeUnknown):
            await called(tool, colour)
    await business.ledger.aclose()


def test_a_place_that_is_not_reached_fails_the_test(business: Business) -> None:
    """A crash that does not come is no passed test; the message names what was passed."""
    nothing = r"'before lookup' was not reached 1 time.*Passed were: before begin, .*after commit"
    with pytest.raises(AssertionError, match=nothing), crash(business.ledger, before="lookup"):
        pay_tool(business).invoke({"order_id": "O-1"})


def test_a_crash_that_is_caught_fails_the_test(business: Business) -> None:
    """Who catches the exception and goes on has not died."""

    def careless() -> None:
        with contextlib.suppress(BaseException):  # the very fault
            pay_tool(business).invoke({"order_id": "O-1"})

    caught = pytest.raises(AssertionError, match="somebody caught the exception")
    with caught, crash(business.ledger, before="commit"):
        careless()


def test_the_dead_do_nothing_more(business: Business) -> None:
    """After its death the ledger neither answers nor writes, until the block has ended."""
    tool = pay_tool(business)
    with crash(business.ledger, before="commit"):
        with pytest.raises(Crashed):
            tool.invoke({"order_id": "O-1"})
        with pytest.raises(Crashed):
            business.ledger.effects()
        tool.invoke({"order_id": "O-2"})
    assert business.payments == []
    assert business.ledger.effects() == []
    tool.invoke({"order_id": "O-1"})
    assert business.payments == ONCE


def test_what_another_worker_does_at_that_moment(business: Business) -> None:
    """A ``by`` that returns stages a race: another one is done first, and ours is a replay."""
    other = Business.at(business.url)

    def overtaken() -> None:
        pay_tool(other).invoke({"order_id": "O-1"})

    with crash(business.ledger, before="begin", by=overtaken) as staged:
        pay_tool(business).invoke({"order_id": "O-1"})
    assert staged.happened
    assert not staged.is_dead
    assert business.payments == ONCE
    other.ledger.close()


def test_another_ledger_lives_on(business: Business) -> None:
    """A crash concerns one ledger; another one of the same database knows nothing of it."""
    other = Business.at(business.url)
    with crash(business.ledger, before="claim"):
        pay_tool(other).invoke({"order_id": "O-1"})
        pay_tool(business).invoke({"order_id": "O-1"})
    assert business.payments == ONCE
    other.ledger.close()


def test_crashes_may_be_nested(business: Business) -> None:
    """The inner block's end leaves the outer crash due."""
    with crash(business.ledger, before="complete"):
        with crash(business.ledger, before="claim"):
            pay_tool(business).invoke({"order_id": "O-1"})
        pay_tool(business).invoke({"order_id": "O-1"})
    assert business.payments == []
    pay_tool(business).invoke({"order_id": "O-1"})
    assert business.payments == ONCE


@pytest.mark.parametrize(
    "wrong", [{}, {"before": "claim", "after": "claim"}, {"before": "lunch"}], ids=str
)
def test_a_step_must_be_named(business: Business, wrong: dict[str, Any]) -> None:
    """Neither, both, or an unknown step: the error lists the steps there are."""
    with (
        pytest.raises(ConfigurationError, match="claim, effect, complete, commit"),
        crash(business.ledger, **wrong),
    ):
        pass


KILLED = """
import sys
from langgraph_idem.testing import crash, kill
from tests.support.cases import Business, pay_tool

business = Business.at(sys.argv[1])
with crash(business.ledger, **{sys.argv[2]: sys.argv[3]}, by=kill):
    pay_tool(business).invoke({"order_id": "O-1"})
"""


@pytest.mark.parametrize(
    ("place", "paid"), [("before commit", []), ("after effect", []), ("after commit", ONCE)]
)
def test_a_crash_may_be_a_kill(business: Business, place: str, paid: list[Any]) -> None:
    """``by=kill`` ends the process with SIGKILL at the very step."""
    program = [sys.executable, "-c", KILLED, business.url, *place.split()]
    assert subprocess.run(program, check=False).returncode == -signal.SIGKILL
    assert business.payments == paid
    pay_tool(business).invoke({"order_id": "O-1"})
    assert business.payments == ONCE


# --- checkpointers --------------------------------------------------------------------------------


async def faulty_run(
    business: Business, colour: str, saver: Any, *faults: WriteFault, durability: Any = "sync"
) -> Any:
    """Run the agent to its end or into a fault."""
    graph = agent(
        "tool_node",
        SCRIPT,
        [pay_tool(business, colour="sync")],
        business,
        FaultyCheckpointer(saver, *faults),
    )
    return await run(colour, graph, HELLO, durability=durability)


@pytest.fixture(params=["sync", "async"])
async def opened(request: pytest.FixtureRequest, checkpoints: str) -> Any:
    """A SQLite checkpointer of either colour."""
    if request.param == "sync":
        with SqliteSaver.from_conn_string(checkpoints) as saver:
            yield "sync", saver
    else:
        async with AsyncSqliteSaver.from_conn_string(checkpoints) as asaver:
            yield "async", asaver


async def test_without_a_fault_it_is_the_checkpointer(business: Business, opened: Any) -> None:
    """A wrapped checkpointer without faults runs, counts, and is read through."""
    colour, saver = opened
    wrapped = FaultyCheckpointer(saver)
    graph = agent("tool_node", SCRIPT, [pay_tool(business)], business, wrapped)
    assert (await run(colour, graph, HELLO))["messages"][-1].content == "Paid."
    assert wrapped.written["put"] >= 4
    assert wrapped.written["put"] + wrapped.written["put_writes"] == wrapped.written["any"]
    kept = (
        [state async for state in graph.aget_state_history(CONFIG)]
        if colour == "async"
        else [*graph.get_state_history(CONFIG)]
    )
    assert len(kept) == wrapped.written["put"]


async def test_a_failing_put_after_the_effect(business: Business, opened: Any) -> None:
    """The checkpoint after the effect fails to be put: the run fails, the resume pays nothing."""
    colour, saver = opened
    with pytest.raises(OSError, match="is gone"):
        await faulty_run(business, colour, saver, failing("put", nth=4))
    assert business.payments == ONCE
    graph = agent("tool_node", SCRIPT, [pay_tool(business)], business, saver)
    assert (await run(colour, graph, None))["messages"][-1].content == "Paid."
    assert business.payments == ONCE


async def test_a_write_may_fail_after_it_was_written(business: Business, opened: Any) -> None:
    """``when="after"``: the checkpoint is there, though its writer was told otherwise."""
    colour, saver = opened
    error = ConnectionError("no answer")
    with pytest.raises(ConnectionError, match="no answer"):
        await faulty_run(business, colour, saver, failing("put", nth=1, error=error, when="after"))
    graph = agent("tool_node", SCRIPT, [pay_tool(business)], business, saver)
    state = await graph.aget_state(CONFIG) if colour == "async" else graph.get_state(CONFIG)
    assert state.metadata["step"] == -1


async def test_slow_writes_take_their_time(business: Business, opened: Any) -> None:
    """Slow writes are waited for, in a thread or on the loop, and only those that were named."""
    colour, saver = opened
    began = time.monotonic()
    await faulty_run(business, colour, saver, slow("put", seconds=0.3, nth=1))
    assert time.monotonic() - began >= 0.3
    assert business.payments == ONCE


async def test_slow_writes_do_not_block_the_loop(business: Business, checkpoints: str) -> None:
    """While an async write is slow, other tasks go on."""
    async with AsyncSqliteSaver.from_conn_string(checkpoints) as saver:
        going = asyncio.create_task(
            faulty_run(business, "async", saver, slow("put", seconds=0.5, nth=1))
        )
        ticks = 0
        while not going.done():
            await asyncio.sleep(0.02)
            ticks += 1
        await going
    assert ticks >= 10


KILLED_AT_A_WRITE = """
import asyncio, sys
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph_idem.testing import dying
from tests.langgraph.test_testing import faulty_run
from tests.support.cases import Business

with SqliteSaver.from_conn_string(sys.argv[2]) as saver:
    fault = dying(4, "put", when=sys.argv[3])
    asyncio.run(faulty_run(Business.at(sys.argv[1]), "sync", saver, fault))
"""


@pytest.mark.parametrize(("when", "step"), [("before", 1), ("after", 2)])
def test_a_process_dies_at_a_write(
    business: Business, checkpoints: str, when: str, step: int
) -> None:
    """``dying`` kills the process before or after a write, counted among its kind."""
    assert dying(3).nth == 3
    program = [sys.executable, "-c", KILLED_AT_A_WRITE, business.url, checkpoints, when]
    assert subprocess.run(program, check=False).returncode == -signal.SIGKILL
    with SqliteSaver.from_conn_string(checkpoints) as saver:
        graph = agent("tool_node", SCRIPT, [pay_tool(business)], business, saver)
        assert graph.get_state(CONFIG).metadata["step"] == step
        graph.invoke(None, CONFIG)
    assert business.payments == ONCE


# --- records --------------------------------------------------------------------------------------


def test_one_effect_is_asserted(business: Business) -> None:
    """An effect that took hold, however often it was called, is one; its record is returned."""
    for _ in range(3):
        pay_tool(business).invoke({"order_id": "O-1"})
    assert assert_effect_once(business.ledger, "pay", "O-1").state is State.SUCCEEDED
    assert assert_effect_once(business.ledger, "pay", ("O-1",), scope="global").key == "O-1"


def test_no_effect_shows_what_the_ledger_holds(business: Business) -> None:
    """The message says what there is in its place: other keys, or nothing at all."""
    with pytest.raises(AssertionError, match=r"pay for O-2 did not .* no effect of pay at all"):
        assert_effect_once(business.ledger, "pay", "O-2")
    pay_tool(business).invoke({"order_id": "O-1"})
    with pytest.raises(AssertionError, match=r"did not .* holds: O-1 in global: succeeded"):
        assert_effect_once(business.ledger, "pay", "O-2")
    with pytest.raises(AssertionError, match="pay for O-1 in tenant-7 did not take hold"):
        assert_effect_once(business.ledger, "pay", "O-1", scope="tenant-7")


def test_an_effect_in_two_scopes_is_two(business: Business) -> None:
    """Without a scope, one key in two scopes is two effects; with one, each is one."""
    for tenant in ("tenant-1", "tenant-2"):
        pay_tool(business, scope=tenant).invoke({"order_id": "O-1"})
    with pytest.raises(AssertionError, match=r"is there 2 times: .*tenant-2: .*tenant-1: "):
        assert_effect_once(business.ledger, "pay", "O-1")
    assert assert_effect_once(business.ledger, "pay", "O-1", scope="tenant-1").scope == "tenant-1"


def test_an_unknown_effect_says_why(business: Business) -> None:
    """An effect that is not known to have happened is none, and the message says why."""

    @business.ledger.remote(key=("order_id",), operation="refund", on_unknown="raise")
    def refund(effect: Effect, /, order_id: str) -> str:
        raise TimeoutError("no answer")

    with pytest.raises(OutcomeUnknown):
        refund("O-1")
    with pytest.raises(AssertionError, match=r"O-1 in global: unknown \(TimeoutError: no answer"):
        assert_effect_once(business.ledger, "refund", "O-1")


@pytest.mark.parametrize("by", [timedelta(hours=1), 3600.0], ids=str)
def test_an_effect_gets_older(business: Business, by: timedelta | float) -> None:
    """All instants of an effect are moved by the same time, those of others are not."""
    for order_id in ("O-1", "O-2"):
        pay_tool(business).invoke({"order_id": order_id})
    before, other = business.ledger.effect("pay", "O-1"), business.ledger.effect("pay", "O-2")
    aged = age(business.ledger, "pay", "O-1", by)
    assert before is not None
    for instant in ("began_at", "claimed_at", "sent_at", "settled_at"):
        moved = getattr(before, instant) - getattr(aged, instant)
        assert moved == timedelta(hours=1), instant
    assert business.ledger.effect("pay", "O-1") == aged
    assert business.ledger.effect("pay", "O-2") == other


def test_what_is_not_there_cannot_get_older(business: Business) -> None:
    """Aging an effect that is not there fails the test."""
    with pytest.raises(AssertionError, match="no effect pay for O-9 in global to age"):
        age(business.ledger, "pay", "O-9", 1)
