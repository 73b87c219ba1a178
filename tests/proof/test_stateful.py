"""The state table against the real SQL: several attempts and people do anything, in any order."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from langgraph_idem.decisions import Seen, Verify, Word, decide, lease_holds
from langgraph_idem.effects import BY_A_PERSON, EffectRecord, Kind, State, may_become
from langgraph_idem.errors import TransitionForbidden
from langgraph_idem.ports import run_blocking
from langgraph_idem.resolving import settle
from langgraph_idem.sql.statements import LedgerStatements
from tests.proof.explorer_scenarios import SCOPE, call_of
from tests.proof.explorer_world import LEASE, TABLES, Database

ATTEMPTS: Final = st.sampled_from("abcd")
CLOSED: Final = {State.SUCCEEDED, State.FAILED}


def _moves(record: EffectRecord | None) -> tuple[object, ...]:
    """Tell what changes with every attempt."""
    return (record.attempt_id, record.attempts, record.claimed_at) if record else ()


class _Site:
    """A site whose transactions are single statements: the machine has one thread."""

    def __init__(self, conn: Any) -> None:
        self.conn = conn

    @asynccontextmanager
    async def transaction(self, *, writes: bool = True) -> AsyncIterator[_Site]:
        yield self

    async def sql(self, work: Callable[[Any], Any]) -> Any:
        return work(self.conn)

    async def commit(self) -> None:
        return


class Attempts(RuleBasedStateMachine):
    """Attempts that claim, settle, take over and testify; people who have their say; time."""

    statements_type: type[LedgerStatements] = LedgerStatements

    def __init__(self) -> None:
        super().__init__()
        self.database = Database()
        self.conn = self.database.conn
        self.statements = self.statements_type(TABLES, "sqlite", 0)
        self.seen: dict[str, Seen] = {}
        self.held: set[str] = set()
        self.before: EffectRecord | None = None

    def teardown(self) -> None:
        """Close the database."""
        self.database.close()

    # --- what attempts do

    @rule(who=ATTEMPTS)
    def claim(self, who: str) -> None:
        """A claim is won exactly if there is no row; the loser sees the row that is there."""
        found = self.statements.claim(self.conn, call_of(who, Kind.REMOTE))
        assert (found is None) == (self.before is None)
        if found is None:
            self.held.add(who)
        else:
            assert found.record == self.before
            self.seen[who] = found

    @rule(who=ATTEMPTS)
    def take_over(self, who: str) -> None:
        """What was seen, however long ago, is taken over exactly if nothing has happened since."""
        seen, call = self.seen.get(who), call_of(who, Kind.REMOTE)
        if seen is None or not isinstance(decide(seen, call), Verify):
            return
        took = self.statements.take_over(self.conn, call, seen.record)
        is_as_seen = self.before is not None and seen.record.state is self.before.state
        assert took == (is_as_seen and _moves(seen.record) == _moves(self.before))
        if took:
            self.held.add(who)
            now = self._now()
            assert (now.attempt_id, now.attempts) == (who, seen.record.attempts + 1)
            assert now.sent_at == seen.record.sent_at, "to look is not to send"

    @rule(who=st.permutations("abcd"), then=st.sampled_from(["take_over", "testify", "claim"]))
    def find_out_at_once(self, who: list[str], then: str) -> None:
        """Two find the lease over at once: one takes over. The rules above, often enough."""
        self.time_passes(LEASE)
        for step in (self.claim, self.take_over):
            for one in who[:2]:
                step(one)
                self.only_what_the_table_allows()
        getattr(self, then)(who[2])

    @rule(who=ATTEMPTS)
    def complete(self, who: str) -> None:
        """A success is recorded under the fencing token only."""
        self._fenced(who, self.statements.complete(self.conn, call_of(who, Kind.REMOTE), "1"))

    @rule(who=ATTEMPTS)
    def lose(self, who: str) -> None:
        """So is the loss of the answer; a late answer that came meanwhile makes it a success."""
        self._without_success(who, self.statements.lose(self.conn, self._call(who), "lost"))

    @rule(who=ATTEMPTS)
    def fail(self, who: str) -> None:
        """So is a failure."""
        self._without_success(who, self.statements.fail(self.conn, self._call(who), "no"))

    @rule(who=ATTEMPTS)
    def release(self, who: str) -> None:
        """So is a trial that did not leave; only a first one leaves no trace."""
        released = self.statements.release(self.conn, self._call(who))
        self._without_success(who, released)
        if released:
            self.held.discard(who)  # it did not send: it will have no answer
        is_first = self.before is not None and self.before.attempts == 1
        assert (self._row() is None) == (self.before is None or (released and is_first))

    @rule(who=ATTEMPTS)
    def renew(self, who: str) -> None:
        """So is a lease that begins anew."""
        self._fenced(who, self.statements.renew(self.conn, self._call(who)))

    @precondition(lambda self: self.before is not None)
    @rule(who=ATTEMPTS)
    def testify(self, who: str) -> None:
        """A late answer is kept, and settles what nobody has settled; it never unsettles."""
        before = self.before
        if before is None or who not in self.held or before.attempt_id == who:
            return
        assert self.statements.testify(self.conn, self._call(who), "1")
        now = self._now()
        assert now.evidence == "1"
        if before.state in {State.UNKNOWN, State.RELEASED}:
            assert now.state is State.SUCCEEDED
        else:
            assert now.state is before.state
            assert (now.result, now.settled_at) == (before.result, before.settled_at)

    # --- what people do, and time

    @rule(outcome=st.sampled_from(sorted(State)), saw=st.sampled_from([None, *"abcd"]))
    def resolve(self, outcome: State, saw: str | None) -> None:
        """A person settles what is open, as it was seen, and never against a late answer."""
        expected = self.seen[saw].record if saw in self.seen else None
        site: Any = _Site(self.conn)
        word = Word(outcome, by="person")
        try:
            run_blocking(settle(site, self.statements, *SCOPE, word, expected))
        except TransitionForbidden:
            assert self._row() == self.before
            return
        before, now = self.before, self._now()
        assert before is not None
        assert outcome in BY_A_PERSON
        assert now.state is outcome
        assert before.state is State.UNKNOWN or not lease_holds(before, self._seen().now)
        assert before.evidence is None or outcome is State.SUCCEEDED
        assert expected is None or _moves(expected) == _moves(before)
        assert now.attempt_id not in "abcd"

    @rule(seconds=st.sampled_from([1.0, LEASE / 2, LEASE]))
    def time_passes(self, seconds: float) -> None:
        """Time passes, which by itself changes nothing."""
        self.database.clock += seconds

    @precondition(lambda self: self.before is not None and self.before.state in CLOSED)
    @rule()
    def another_effect(self) -> None:
        """What is settled for good stays so: go on with another effect."""
        self.database.raw.execute("delete from idem_effects")
        self.seen, self.held, self.before = {}, set(), None

    # --- what holds after every step

    @invariant()
    def only_what_the_table_allows(self) -> None:
        """From state to state as the table says; what is final stays; the row fits its state."""
        before, now = self.before, self._row()
        self.before = now
        if now is not None:
            assert (now.settled_at is None) == (now.state is State.CLAIMED)
            assert (now.result is None) == (now.codec is None)
            assert now.began_at <= now.sent_at
        if now == before:
            return
        if now is None:
            assert before is not None
            assert (before.state, before.attempts) == (State.CLAIMED, 1)
            return
        self._check_step(before, now)

    def _check_step(self, before: EffectRecord | None, now: EffectRecord) -> None:
        if before is not None and before.state in CLOSED:
            assert now == replace(before, evidence=now.evidence), "it was final"
            return
        is_still = before is not None and before.state is now.state
        assert is_still or may_become(before.state if before else None, now.state)
        if before is not None:
            assert now.began_at == before.began_at
            assert now.attempts - before.attempts in {0, 1}
            assert before.evidence is None or now.evidence is not None, "a late answer is lost"

    def _fenced(self, who: str, changed: bool) -> None:  # noqa: FBT001 - what the SQL answered
        before = self.before
        is_holder = (
            before is not None and before.state is State.CLAIMED and before.attempt_id == who
        )
        assert changed == is_holder
        if not changed:
            assert self._row() == before

    def _without_success(self, who: str, changed: bool) -> None:  # noqa: FBT001 - as above
        self._fenced(who, changed)
        if changed and self.before is not None and self.before.evidence is not None:
            assert self._now().state is State.SUCCEEDED

    def _call(self, who: str) -> Any:
        return call_of(who, Kind.REMOTE)

    def _seen(self) -> Seen:
        seen = self.statements.standing(self.conn, self._call("nobody"))
        assert seen is not None
        return seen

    def _row(self) -> EffectRecord | None:
        seen = self.statements.standing(self.conn, self._call("nobody"))
        return seen.record if seen else None

    def _now(self) -> EffectRecord:
        return self._seen().record


BOUNDS: Final = settings(
    max_examples=50,
    stateful_step_count=40,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
)


FIRST: Final = settings(BOUNDS, phases=[Phase.generate], report_multiple_bugs=False)
"""For what must be found: the first finding will do, however long."""


def test_only_the_transitions_of_the_table_happen() -> None:
    """Whatever attempts and people do, and in which order: the table, and the fencing token."""
    run_state_machine_as_test(Attempts, settings=BOUNDS)


class _Unfenced(LedgerStatements):
    def complete(self, conn: Any, call: Any, result: str | None) -> bool:
        row = self.standing(conn, call)
        owner = call if row is None else replace(call, attempt_id=row.record.attempt_id)
        return super().complete(conn, owner, result)


class _TakesAnything(LedgerStatements):
    def take_over(self, conn: Any, call: Any, earlier: EffectRecord) -> bool:
        now = self.standing(conn, call)
        return super().take_over(conn, call, now.record if now else earlier)


class _Unheard(LedgerStatements):
    def testify(self, conn: Any, call: Any, evidence: str) -> bool:
        return True


@pytest.mark.parametrize("broken", [_Unfenced, _TakesAnything, _Unheard])
def test_broken_statements_are_found_out(broken: type[LedgerStatements]) -> None:
    """The machine can fail: statements without one of the guarantees do not pass it."""
    machine = type("Broken", (Attempts,), {"statements_type": broken})
    with pytest.raises(AssertionError):
        run_state_machine_as_test(machine, settings=FIRST)
