"""A fuse at every boundary of the ports: it blows at the n-th, in either colour.

The production code knows nothing of it: the ports' methods are wrapped from outside.
"""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from unittest import mock

from langgraph_idem.sql import sites

BOUNDARIES = (
    *("before begin", "after begin"),
    *("before sql", "after sql"),  # claim
    *("before tool", "after tool"),
    *("before sql", "after sql"),  # complete
    *("before commit", "after commit"),
    *("before leaving", "after leaving"),
)
"""What an effect that is done for the first time passes. A new step must be added here."""


class Crash(BaseException):
    """The program dies here; no ``except Exception`` may save it."""


def crash() -> None:
    """Die by an exception."""
    raise Crash


def kill() -> None:
    """Die as a killed process does: nothing is cleaned up."""
    os.kill(os.getpid(), signal.SIGKILL)


class Fuse:
    """Blows at one boundary, once.

    Args:
        at: Number of the boundary, from 0.
        blow: What happens there.
        look: Is called at every boundary before that, with the boundary's name.

    """

    def __init__(
        self,
        at: int,
        blow: Callable[[], None] = crash,
        look: Callable[[str], None] = lambda _place: None,
    ) -> None:
        self.at, self.blow, self.look = at, blow, look
        self.passed: list[str] = []

    @property
    def is_blown(self) -> bool:
        """True if the boundary was reached."""
        return len(self.passed) > self.at

    def burn(self, place: str) -> None:
        """Pass a boundary."""
        self.look(place)
        self.passed.append(place)
        if len(self.passed) == self.at + 1:
            self.blow()


class Death(Fuse):
    """Blows at one boundary and at each one after it: the dead clean nothing up."""

    def burn(self, place: str) -> None:
        """Pass a boundary, alive."""
        super().burn(place)
        if len(self.passed) > self.at + 1:
            self.blow()


@contextmanager
def fused(fuse: Fuse) -> Iterator[Fuse]:
    """Put the fuse into both sites and both transactions."""
    blocking, awaiting = sites.BlockingSite, sites.AwaitingSite
    with (
        mock.patch.multiple(blocking, transaction=_entered(fuse, blocking)),
        mock.patch.multiple(awaiting, transaction=_entered(fuse, awaiting)),
        _at_site(fuse, blocking),
        _at_site(fuse, awaiting),
        _stepwise(fuse, sites.BlockingTransaction),
        _stepwise(fuse, sites.AwaitingTransaction),
    ):
        yield fuse


def _at_site(fuse: Fuse, kind: Any) -> Any:
    asked = {name: _passed(fuse, name, getattr(kind, name)) for name in ("call", "lookup")}
    return mock.patch.multiple(kind, **asked)


def _stepwise(fuse: Fuse, kind: type) -> Any:
    steps = {name: _passed(fuse, name, getattr(kind, name)) for name in ("sql", "tool", "commit")}
    return mock.patch.multiple(kind, **steps)


def _entered(fuse: Fuse, kind: Any) -> Any:
    inner = kind.transaction

    @asynccontextmanager
    async def transaction(site: Any, *, writes: bool = True) -> AsyncIterator[Any]:
        fuse.burn("before begin")
        async with inner(site, writes=writes) as tx:
            fuse.burn("after begin")
            yield tx
            fuse.burn("before leaving")
        fuse.burn("after leaving")

    return transaction


def _passed(fuse: Fuse, name: str, inner: Any) -> Any:
    async def step(tx: Any, *args: Any) -> Any:
        fuse.burn(f"before {name}")
        answer = await inner(tx, *args)
        fuse.burn(f"after {name}")
        return answer

    return step
