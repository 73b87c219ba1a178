"""The moment in a call in which nobody may be frozen for long, seen from outside."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.proof.machine.journal import Shared


class Window:
    """Whether some call of this worker has looked at the clock and not yet sent its request.

    The ledger cannot protect a worker that is frozen for a whole lease just then (the page on
    proof says so), so the machine, which sees the window from outside, freezes it elsewhere.
    """

    def __init__(self, path: Path) -> None:
        self._shared = Shared(path)
        self._open: set[object] = set()
        self._call: contextvars.ContextVar[object] = contextvars.ContextVar("call")

    @contextlib.contextmanager
    def call(self) -> Iterator[None]:
        """Mark one call, so that several in one worker are told apart."""
        token = self._call.set(object())
        try:
            yield
        finally:
            self.close()
            self._call.reset(token)

    def open(self) -> None:
        """Say that the clock is being looked at."""
        self._open.add(self._call.get(None))
        self._shared.value = len(self._open)

    def close(self) -> None:
        """Say that the request has left, or that there is none."""
        self._open.discard(self._call.get(None))
        self._shared.value = len(self._open)


@dataclass(frozen=True)
class WatchedSite:
    """A site of the library's that tells where in a call it is."""

    site: Any
    window: Window

    def monotonic(self) -> float:
        """Look at the clock."""
        self.window.open()
        return float(self.site.monotonic())

    def transaction(self, *, writes: bool = True) -> Any:
        """Open a transaction: whatever was seen on the clock is looked at again."""
        self.window.close()
        return self.site.transaction(writes=writes)

    async def call(self, effect: Any) -> Any:
        """Call the provider."""
        try:
            return await self.site.call(effect)
        finally:
            self.window.close()

    async def lookup(self, effect: Any) -> Any:
        """Ask the provider."""
        self.window.close()
        return await self.site.lookup(effect)

    async def sleep(self, seconds: float) -> None:
        """Sleep."""
        self.window.close()
        await self.site.sleep(seconds)

    async def shielded(self, work: Any) -> Any:
        """Finish the work."""
        return await self.site.shielded(work)
