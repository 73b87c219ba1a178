"""Suites that other projects wrote for themselves, run over our ledger and our guarded tools.

Each comes with a control: the suite fails what deserves it, so that passing means something.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import crashresume
import pytest
from band_once.ledger import Disposition, IdempotencyLedger
from band_once.verify import verify_exactly_once
from sqlalchemy import Connection

from langgraph_idem import Ledger
from langgraph_idem.effects import ABSENT, Effect, Found, State
from tests.support.databases import free_port

if TYPE_CHECKING:
    from collections.abc import Callable

ITEMS = ["a", "b", "c"]
REPOSITORY = Path(__file__).parents[2]


# --- crashresume ---------------------------------------------------------------------------------


class Died(BaseException):
    """What a kill is to the code it hits: nothing can catch it and go on."""


class GuardedAgent:
    """An agent whose only tool is a remote effect; its provider is crashresume's effect log.

    Args:
        ctx: crashresume's context: the provider, which "crashes" after the effect.
        folder: Where the ledgers are, one for each scenario.
        dies: True: the crash ends the process; False: it looks like a failed request.

    """

    def __init__(self, ctx: crashresume.Context, folder: Path, *, dies: bool) -> None:
        self.ledger = Ledger(f"sqlite:///{folder / ctx.run_id}.db")
        self.ledger.setup()

        def look_up(effect: Effect) -> Any:
            happened = effect.idempotency_key in ctx.effects.keys()  # noqa: SIM118 - their method
            return Found(effect.arguments["item"]) if happened else ABSENT

        @self.ledger.remote(key=("item",), operation="process", lookup=look_up, lease=0)
        def act(effect: Effect, /, item: str) -> str:
            try:
                ctx.effect("process", item, key=effect.idempotency_key)
            except crashresume.InjectedCrash as crash:
                _end(crash, dies=dies)
            return item

        self.act = act

    def step(self, item: str) -> None:
        """Do one unit of work; their harness knows a crash by its type only."""
        try:
            self.act(item)
        except Died as death:
            raise crashresume.InjectedCrash from death

    def state(self) -> list[tuple[str, str | None]]:
        """Return what is recorded: key and result of every effect that took hold."""
        done = self.ledger.effects(state=State.SUCCEEDED)
        return sorted((record.key, record.result) for record in done)


def _end(crash: crashresume.InjectedCrash, *, dies: bool) -> NoReturn:
    if dies:
        raise Died from crash
    raise crash


@pytest.mark.parametrize("dies", [False, True], ids=["request-fails", "process-dies"])
def test_crashresume_finds_nothing(
    conform: Callable[..., crashresume.ConformanceReport], tmp_path: Path, *, dies: bool
) -> None:
    """Crashed right after each of its effects and started anew, an agent repeats and loses none."""
    report = conform(lambda ctx: GuardedAgent(ctx, tmp_path, dies=dies), ITEMS)
    assert report.crash_points == len(ITEMS)
    assert report.passed


def test_crashresume_does_find_an_unguarded_agent() -> None:
    """The same suite finds every repetition of an agent that is not guarded."""

    class Unguarded:
        def __init__(self, ctx: crashresume.Context) -> None:
            self.ctx = ctx

        def step(self, item: str) -> None:
            self.ctx.effect("process", item, key=item)

    report = crashresume.conform(Unguarded, ITEMS)
    assert {finding.kind for finding in report.findings} == {"effect_replayed"}


# --- agentraas-chaos -----------------------------------------------------------------------------


def _chaos(fault: str, *agent: str) -> subprocess.CompletedProcess[str]:
    proxy = [sys.executable, "-m", "agentraas.chaos", "--mock", "--port", str(free_port())]
    program = [sys.executable, "-m", "tests.support.chaotic_agent", *agent]
    return subprocess.run(
        [*proxy, "--fault", fault, "--", *program],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("fault", ["error-after-commit", "lost-response"])
def test_agentraas_chaos_sees_one_protected_retry(fault: str, tmp_path: Path) -> None:
    """A provider that acts and then fails is asked again with the same key, and acts no more."""
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    done = _chaos(fault, "guarded", url)
    assert done.returncode == 0, done.stderr
    assert "Protected by an idempotency key: 1 retry" in done.stderr
    with Ledger(url) as ledger:
        (record,) = ledger.effects()
    assert (record.state, record.attempts) == (State.SUCCEEDED, 2)
    assert record.result is not None
    assert record.result.strip('"') == done.stdout.strip()


def test_agentraas_chaos_does_find_an_unguarded_agent() -> None:
    """The same proxy reports the retry of an agent that sends no key."""
    done = _chaos("error-after-commit", "unguarded")
    assert done.returncode == 1
    assert "DUPLICATES: 1" in done.stderr


# --- band-once -----------------------------------------------------------------------------------

SCHEDULES = 5
"""Of their 500: each delivers 406 messages, and finds a faulty agent in its first few."""


class BandAgent:
    """band-once's agent: their ledger is written to inside our effect, and by nothing else."""

    def __init__(self, ledger: Ledger, scope: str) -> None:
        self.theirs = IdempotencyLedger()

        @ledger.transactional(
            key=("key",),
            operation="deliver",
            scope=scope,
            ignore=("attempt", "at"),
            on_replay=lambda _receipt: Disposition.DUPLICATE_DROPPED.value,
        )
        def deliver(_conn: Connection, /, key: str, attempt: int, at: str) -> str:
            return str(self.theirs.record(key, attempt, at).disposition.value)

        self.deliver = deliver

    def __call__(self, theirs: IdempotencyLedger, key: str, attempt: int, at: str) -> Disposition:
        """Take one delivery."""
        self.theirs = theirs
        return Disposition(self.deliver(key, attempt, at))


def test_band_once_verifies_exactly_once(sqlite_url: str) -> None:
    """However often and in whatever order a message is delivered, it is taken exactly once."""
    made: list[BandAgent] = []
    with Ledger(sqlite_url) as ledger:
        ledger.setup()

        def factory() -> BandAgent:
            made.append(BandAgent(ledger, f"schedule-{len(made)}"))
            return made[-1]

        verdict = verify_exactly_once(factory, schedules=SCHEDULES)
        recorded = ledger.effects(state=State.SUCCEEDED)
    assert verdict.ok, verdict.reason
    assert verdict.schedules_checked == SCHEDULES
    assert len(recorded) == sum(len(agent.theirs.accepted_keys()) for agent in made)
    assert all(agent.theirs.duplicates_dropped() == 0 for agent in made)


def test_band_once_does_find_an_unguarded_agent() -> None:
    """The same verification refuses an agent that takes whatever comes."""

    def takes_all(_theirs: IdempotencyLedger, _key: str, _attempt: int, _at: str) -> Disposition:
        return Disposition.ACCEPTED

    verdict = verify_exactly_once(lambda: takes_all, schedules=1)
    assert "double-post" in verdict.reason
