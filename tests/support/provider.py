"""Somebody else's API, as small as can be: a file that only grows, kept apart from any ledger.

What stands in it happened. It can honour idempotency keys, it can be looked up, or neither.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from langgraph_idem import ABSENT, Effect, EffectBusy, Found, Ledger, OutcomeUnknown
from langgraph_idem.effects import EffectRecord, State
from langgraph_idem.sql import queries
from langgraph_idem.sql.schema import ledger_tables
from tests.support import crash

KINDS: Final = ("keys", "lookup", "neither")
"""What the provider can do: honour a key, be looked up, or neither."""
COLOURS: Final = ("sync", "async")
LEASE: Final = 3600.0


@dataclass(frozen=True)
class Provider:
    """The API.

    Args:
        path: Its file.
        kind: One of ``KINDS``.

    """

    path: Path
    kind: str

    def act(self, key: str, order_id: str) -> int:
        """Bring one effect about; return its number. A repeated key counts if keys are honoured."""
        with self._locked():
            known = self.effects()
            for effect in known if self.kind == "keys" else []:
                if effect["key"] == key:
                    return int(effect["number"])
            made = {"number": len(known) + 1, "key": key, "order_id": order_id}
            with self.path.open("a") as file:
                file.write(json.dumps(made) + "\n")
                file.flush()
                os.fsync(file.fileno())
            return len(known) + 1

    def find(self, key: str) -> Any:
        """Look an effect up."""
        found = [effect for effect in self.effects() if effect["key"] == key]
        return Found(found[0]["number"]) if found else ABSENT

    def effects(self) -> list[dict[str, Any]]:
        """Everything that ever happened."""
        return [json.loads(line) for line in self.path.read_text().splitlines()]

    def numbers(self, order_id: str) -> list[int]:
        """What happened for one order."""
        return [effect["number"] for effect in self.effects() if effect["order_id"] == order_id]

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self.path.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def tool(ledger: Ledger, provider: Provider, colour: str, **options: Any) -> Callable[[str], Any]:
    """Make the tool that calls the provider."""
    abilities: dict[str, dict[str, Any]] = {
        "keys": {"provider_keeps_key": 24 * 3600},
        "lookup": {"lookup": lambda effect: provider.find(effect.idempotency_key)},
        "neither": {},
    }
    chosen = {"lease": LEASE, "on_unknown": "raise", **abilities[provider.kind], **options}
    guard: Any = ledger.remote(key=("order_id",), operation="ship", **chosen)

    def ship(effect: Effect, /, order_id: str) -> int:
        return provider.act(effect.idempotency_key, order_id)

    async def aship(effect: Effect, /, order_id: str) -> int:
        await asyncio.sleep(0)
        return provider.act(effect.idempotency_key, order_id)

    made: Callable[[str], Any] = guard(ship if colour == "sync" else aship)
    return made


def call(url: str, provider: Provider, colour: str, order_id: str, wait: float = 0) -> int:
    """Call once, by a ledger that did not exist before and does not afterwards."""
    if colour == "async":
        return asyncio.run(_acall(url, provider, order_id, wait))
    with Ledger(url, wait=wait) as ledger:
        return int(tool(ledger, provider, colour)(order_id))


async def _acall(url: str, provider: Provider, order_id: str, wait: float) -> int:
    async with Ledger(url, wait=wait) as ledger:
        return int(await tool(ledger, provider, "async")(order_id))


def told(url: str, provider: Provider, colour: str, order_id: str) -> int | str:
    """Call once; return the result, or the name of what kept it away."""
    try:
        return call(url, provider, colour, order_id)
    except (EffectBusy, OutcomeUnknown) as error:
        return type(error).__name__


class Witness:
    """Looks at a ledger through connections of its own, and sets its clock back by its rows."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.engine = sa.create_engine(url, poolclass=sa.NullPool)
        self.effects = ledger_tables().effects
        with Ledger(url) as ledger:
            ledger.setup()

    def record(self, key: str, operation: str = "ship") -> EffectRecord:
        """Read a row that must be there."""
        found = self.find(key, operation)
        assert found is not None, f"the ledger knows nothing of {operation} for {key}"
        return found

    def find(self, key: str, operation: str = "ship") -> EffectRecord | None:
        """Read a row."""
        with self.engine.connect() as conn:
            found = queries.many(conn, ledger_tables(), operation=operation, key=key)
        return found[0] if found else None

    def state(self, key: str, operation: str = "ship") -> State | None:
        """Read a row's state; None: there is no row."""
        record = self.find(key, operation)
        return record.state if record else None

    def age(self, key: str, seconds: float, *columns: str, operation: str = "ship") -> None:
        """Let an effect be older than it is: its lease runs out without anybody waiting.

        Args:
            key: Which.
            seconds: By how much.
            columns: Which times; default: those of the last attempt, not the effect's beginning.
            operation: Of which operation.

        """
        record, shift = self.record(key, operation), timedelta(seconds=seconds)
        names = columns or ("claimed_at", "sent_at")
        values = {name: getattr(record, name) - shift for name in names}
        with self.engine.begin() as conn:
            conn.execute(sa.update(self.effects).where(self.effects.c.key == key).values(values))

    def expire(self, key: str) -> None:
        """Let the lease of an effect's last attempt be over; nothing if nobody knows of it."""
        if self.state(key) in {State.CLAIMED, State.UNKNOWN}:
            self.age(key, 2 * LEASE)


def die(
    url: str, racer: int, path: str, kind: str, colour: str, order_id: str, at: int
) -> int | str:
    """Call once in a process of its own, killed at a boundary. A job of the racers."""
    with crash.fused(crash.Fuse(at, crash.kill)):
        return told(url, Provider(Path(path), kind), colour, order_id)


def race(url: str, racer: int, path: str, kind: str, colour: str, order_id: str) -> int:
    """Call once, and wait for whoever is faster. A job of the racers."""
    return call(url, Provider(Path(path), kind), colour, order_id, wait=30)


class Freezing(Provider):
    """A provider whose caller is frozen by SIGSTOP after it has acted."""

    def act(self, key: str, order_id: str) -> int:
        """Act, then stand still until somebody sends SIGCONT."""
        number = super().act(key, order_id)
        os.kill(os.getpid(), signal.SIGSTOP)
        return number


if __name__ == "__main__":  # URL PATH KIND COLOUR ORDER: a worker that freezes
    url_, path_, kind_, colour_, order_ = sys.argv[1:]
    sys.stdout.write(str(told(url_, Freezing(Path(path_), kind_), colour_, order_)))
