"""Every interleaving up to a bound, of the protocols as they are, and of broken ones."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import pytest
import sqlalchemy as sa

from langgraph_idem import protocols, remote
from langgraph_idem.decisions import decide
from langgraph_idem.effects import State, Verdict
from langgraph_idem.sql.prepared import Prepared
from langgraph_idem.sql.statements import LedgerStatements
from tests.proof.explorer import Explorer, Scenario, Violation
from tests.proof.explorer_scenarios import (
    racing,
    remotely,
    scenarios,
    transactional,
)
from tests.proof.explorer_world import KEEPS_KEY, TABLES, Budget

SCENARIOS = {scenario.name: scenario for scenario in scenarios()}


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    """Failed look-ups are logged; thousands of them tell nobody anything."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.timeout(0)
@pytest.mark.parametrize("name", SCENARIOS)
def test_no_schedule_breaks_a_promise(
    name: str, record_property: Callable[[str, object], None]
) -> None:
    """Whoever goes first, dies, waits or loses an answer: one effect, recorded as it happened."""
    explored = Explorer(SCENARIOS[name]).run()
    counts = {
        "states": explored.states,
        "steps": explored.steps,
        "schedules": explored.schedules,
        "ends": explored.ends,
    }
    for what, count in counts.items():
        record_property(what, count)
    print(f"{name}: " + ", ".join(f"{count:,} {what}" for what, count in counts.items()))  # noqa: T201 - the figures of the documentation
    assert explored.schedules > explored.ends > 1


# --- broken on purpose ----------------------------------------------------------------------------


def _patched(target: Any, name: str, value: Any) -> AbstractContextManager[Any]:
    return mock.patch.object(target, name, value)


async def _uncommitted_claim(site: Any, call: Any, rules: Any) -> Any:
    async with site.transaction() as tx:
        seen = await tx.sql(lambda conn: rules.statements.claim(conn, call))
        return decide(seen, call)


async def _completed_later(site: Any, call: Any, rules: Any) -> Any:
    async with site.transaction() as tx:
        found = await tx.sql(lambda conn: rules.statements.claim(conn, call))
        if found is not None:
            return protocols.settled(decide(found, call), call, rules)
        value = await tx.tool()
        await tx.commit()
    text = rules.codec.encode(value)
    async with site.transaction() as tx:
        await tx.sql(lambda conn: rules.statements.complete(conn, call, text))
        await tx.commit()
    return protocols.Done(value)


async def _runs_again(site: Any, call: Any, rules: Any, seen: Any) -> Any:
    if not await remote._taken_over(site, call, rules, seen.record):
        return None
    attempt = remote.Attempt(call, remote._effect(call, seen.record), is_clean=True)
    return await remote._send_again(site, attempt, rules)


async def _always(*_: Any) -> bool:
    return True


def _believes_refusals(error: Any, attempt: Any, rules: Any) -> Any:
    refused = Verdict.REFUSED
    return refused if rules.refuses(error) else remote._classified(error, attempt, rules)


class _UnfencedLoss(LedgerStatements):
    """Records that nobody can know, whoever's the claim is, and whether or not it is one."""

    def lose(self, conn: Any, call: Any, reason: str) -> bool:
        effects = TABLES.effects
        wrote = conn.execute(
            sa.update(effects).values(state=State.UNKNOWN.value, result=None, codec=None)
        )
        return bool(wrote.rowcount)


class _UnfencedFailure(LedgerStatements):
    """Records an outcome on whatever row there is, whoever's it is."""

    def fail(self, conn: Any, call: Any, reason: str) -> bool:
        effects = TABLES.effects
        wrote = conn.execute(sa.update(effects).values(state=State.FAILED.value, reason=reason))
        return bool(wrote.rowcount)


class _Forgetful(LedgerStatements):
    """Takes over whatever it finds under the same id, as if nothing could have come between."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        effects = args[0].effects
        self._as_found = sa.and_(
            self._this_effect,
            effects.c.attempt_id == sa.bindparam("p_attempt"),
            effects.c.state == sa.bindparam("p_state"),
        )
        self._take = Prepared(self._taking(effects))


class _Deaf(LedgerStatements):
    """Throws late answers away."""

    def testify(self, conn: Any, call: Any, evidence: str) -> bool:
        return False


class _Deleting(LedgerStatements):
    """Deletes the claim when the outcome is unknown, so that it may be tried again."""

    def lose(self, conn: Any, call: Any, reason: str) -> bool:
        return bool(conn.execute(sa.delete(TABLES.effects)).rowcount)

    def standing(self, conn: Any, call: Any) -> Any:
        self.claim(conn, call)
        return super().standing(conn, call)


def _with(statements: type[LedgerStatements], provider: str, budget: Budget) -> Scenario:
    made = statements(TABLES, "sqlite", 0)
    if provider == "database":
        return racing(provider, 2, budget, make=lambda: transactional(made))
    return racing(provider, 2, budget, make=lambda: remotely(provider, made))


NOTHING = _patched(remote, "_FRESH", remote._FRESH)
HALF = (50.0,)
BROKEN: dict[str, tuple[Callable[[], Scenario], AbstractContextManager[Any], str]] = {
    "absent is believed while the request may still arrive": (
        lambda: racing("lookup", 2, Budget(faults=1)),
        _patched(remote, "_may_still_arrive", lambda _record, _now: False),
        "took hold twice",
    ),
    "the request leaves at the end of the lease": (
        lambda: racing("lookup", 2, Budget(jumps=2), HALF),
        _patched(remote, "_FRESH", 1.0),
        "took hold twice",
    ),
    "the lease is not looked at before sending": (
        lambda: racing("lookup", 2, Budget(jumps=1)),
        _patched(remote, "_RENEWALS", 0),
        "took hold twice",
    ),
    "the claim is not committed before the call": (
        lambda: racing("neither", 2, Budget(crashes=1)),
        _patched(remote, "_claim", _uncommitted_claim),
        "took hold twice",
    ),
    "taking over compares the attempt's id alone": (
        lambda: _with(_Forgetful, "lookup", Budget(crashes=1, jumps=1)),
        NOTHING,
        "took hold twice",
    ),
    "an unknown outcome recorded without the fencing token": (
        lambda: _with(_UnfencedLoss, "lookup", Budget(faults=1, jumps=1)),
        NOTHING,
        "recorded",
    ),
    "an expired lease runs again": (
        lambda: racing("neither", 2, Budget(jumps=1)),
        _patched(remote, "_verify", _runs_again),
        "took hold twice",
    ),
    "sending without looking whose the claim is": (
        lambda: racing("lookup", 2, Budget(crashes=1, jumps=2)),
        _patched(remote, "_renewed", _always),
        "took hold twice",
    ),
    "a failure recorded without the fencing token": (
        lambda: _with(_UnfencedFailure, "lookup", Budget(faults=1, jumps=1)),
        NOTHING,
        "a failure is recorded, yet it happened",
    ),
    "late answers are thrown away": (
        lambda: _with(_Deaf, "neither", Budget(jumps=1)),
        NOTHING,
        "is not recorded",
    ),
    "the claim is deleted when the answer is lost": (
        lambda: _with(_Deleting, "neither", Budget(faults=1)),
        NOTHING,
        "took hold twice",
    ),
    "the key is sent after the provider has forgotten it": (
        lambda: racing("keys", 2, Budget(crashes=1, jumps=1), (KEEPS_KEY,)),
        _patched(remote, "_key_is_kept", lambda *_: True),
        "took hold twice",
    ),
    "a refusal is believed though an earlier attempt may have succeeded": (
        lambda: racing("keys", 2, Budget(faults=1, jumps=1)),
        _patched(remote, "_verdict", _believes_refusals),
        "a failure is recorded, yet it happened",
    ),
    "completed in a transaction of its own": (
        lambda: racing("database", 2, Budget(crashes=1)),
        _patched(protocols, "_transactional_once", _completed_later),
        "without its record",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_the_explorer_finds_what_is_broken(name: str) -> None:
    """A protocol with one guarantee taken out is found out, with the schedule that shows it."""
    make, breaking, promise = BROKEN[name]
    with breaking, pytest.raises(Violation, match=promise) as found:
        Explorer(make()).run()
    assert found.value.schedule, "a violation names its schedule"
    print(f"{name}: {found.value}")  # noqa: T201 - for the reader of a failure


def test_a_schedule_is_the_same_each_time() -> None:
    """Two explorations of one scenario count the same: nothing is left to chance."""
    counts = [
        (run.states, run.steps, run.schedules)
        for run in (Explorer(racing("keys", 2, Budget(crashes=1))).run() for _ in range(2))
    ]
    assert counts[0] == counts[1]
