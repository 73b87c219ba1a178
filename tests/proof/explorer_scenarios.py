"""The scenarios that the explorer goes through: kinds of effects, actors, bounds."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from langgraph_idem import protocols, remote
from langgraph_idem.codec import PydanticCodec
from langgraph_idem.decisions import Call, Word
from langgraph_idem.effects import Kind, State, Verdict
from langgraph_idem.resolving import settle
from langgraph_idem.sql.statements import LedgerStatements
from tests.proof.explorer import Protocol, Scenario, Site
from tests.proof.explorer_world import KEEPS_KEY, LEASE, TABLES, Budget, NotSent, Refused

SCALE: Final = int(os.environ.get("IDEM_EXPLORE", "0"))
"""Set to 1 or more for larger bounds: minutes, then hours."""

SCOPE: Final = ("global", "ship", "O-1")


def call_of(name: str, kind: Kind) -> Call:
    """Make an actor's call; all want the same effect."""
    lease = LEASE if kind is Kind.REMOTE else None
    return Call(*SCOPE, kind, "v1:same", "{}", name, lease_seconds=lease)


def transactional(statements: Any = None) -> Protocol:
    """Make what an actor runs for an effect in the ledger's own database."""
    rules = protocols.Rules(**_common(statements), refusals=(Refused,))

    async def run(site: Site, name: str) -> Any:
        call = call_of(name, Kind.TRANSACTIONAL)
        return (await protocols.transactional(site, call, rules)).value

    return run


def remotely(provider: str, statements: Any = None, wait: float = 0.0) -> Protocol:
    """Make what an actor runs for an effect at a provider."""
    rules = remote.RemoteRules(
        **_common(statements),
        refusals=(Refused,),
        classify=lambda error: Verdict.NOT_SENT if isinstance(error, NotSent) else Verdict.UNKNOWN,
        has_lookup=provider == "lookup",
        keeps_key=timedelta(seconds=KEEPS_KEY) if provider == "keys" else None,
        wait_seconds=wait,
    )

    async def run(site: Site, name: str) -> Any:
        return (await remote.remote(site, call_of(name, Kind.REMOTE), rules)).value

    return run


def person(no: State = State.FAILED) -> Protocol:
    """Make what a person does who looks at the provider and then says what is true.

    Args:
        no: What the person says if it did not happen: failed, or released.

    """
    statements = LedgerStatements(TABLES, "sqlite", 0)

    async def run(site: Site, name: str) -> Any:
        happened = await site.look()
        word = Word(State.SUCCEEDED, "1", name) if happened else Word(no, None, name)
        return (await settle(site, statements, *SCOPE, word)).state

    return run


def _common(statements: Any) -> dict[str, Any]:
    return {
        "statements": statements or LedgerStatements(TABLES, "sqlite", 0),
        "codec": PydanticCodec("ship", int),
        "observe": lambda _event: None,
    }


def racing(
    provider: str,
    actors: int,
    budget: Budget,
    jumps: tuple[float, ...] = (LEASE,),
    make: Callable[[], Protocol] | None = None,
    others: dict[str, Protocol] | None = None,
    name: str = "",
) -> Scenario:
    """Make a scenario of several actors that want the same effect at once."""
    run = make() if make else transactional() if provider == "database" else remotely(provider)
    started = dict.fromkeys("abc"[:actors], run) | (others or {})
    title = name or f"{provider}, {actors} actors"
    return Scenario(title, started, run, provider, budget, jumps)


KINDS: Final = ("database", "keys", "lookup", "neither")


def scenarios() -> list[Scenario]:
    """Return every scenario with its bound."""
    crash_and_time = Budget(crashes=1 + SCALE, jumps=1)
    crash_and_fault = Budget(crashes=1, faults=1, jumps=SCALE)
    cancel = Budget(cancels=1, jumps=SCALE)
    made = [
        racing(kind, 2, budget, name=f"{kind}, 2 actors, {words_of(budget)}")
        for budget in (crash_and_time, crash_and_fault, cancel)
        for kind in KINDS
    ]
    three = Budget(crashes=1, jumps=SCALE)
    made += [racing(kind, 3, three, name=f"{kind}, 3 actors, {words_of(three)}") for kind in KINDS]
    return made + _looking_first() + _special()


def _looking_first() -> list[Scenario]:
    """Let the ledger expect replays in every call, rightly or not."""
    crash = Budget(crashes=1, jumps=1)
    made = [
        racing(kind, 2, crash, name=f"{kind}, looks first, {words_of(crash)}") for kind in KINDS
    ]
    return [replace(scenario, looks_first=True) for scenario in made]


def _special() -> list[Scenario]:
    crash = Budget(crashes=1, jumps=1 + SCALE)
    slow = Budget(crashes=1, jumps=2 + SCALE)
    half = (LEASE / 2,)
    return [
        racing("lookup", 2, slow, half, name=f"lookup, frozen within the lease, {words_of(slow)}"),
        racing("keys", 2, slow, half, name=f"keys, frozen within the lease, {words_of(slow)}"),
        racing("keys", 2, crash, (KEEPS_KEY,), name=f"keys forgotten, {words_of(crash)}"),
        racing(
            "keys",
            2,
            crash,
            make=lambda: remotely("keys", wait=30),
            name=f"keys, the loser waits, {words_of(crash)}",
        ),
        *(
            racing(
                "neither",
                2,
                crash,
                others={"person": person(no)},
                name=f"neither, and a person who says {no}, {words_of(crash)}",
            )
            for no in (State.FAILED, State.RELEASED)
        ),
    ]


def words_of(budget: Budget) -> str:
    """Say a bound in words."""
    counts = {
        "crash": budget.crashes,
        "fault": budget.faults,
        "cancel": budget.cancels,
        "jump of time": budget.jumps,
    }
    told = (f"{count} {_many(name, count)}" for name, count in counts.items() if count)
    return ", ".join(told)


def _many(name: str, count: int) -> str:
    if count == 1:
        return name
    return {"crash": "crashes", "jump of time": "jumps of time"}.get(name, f"{name}s")
