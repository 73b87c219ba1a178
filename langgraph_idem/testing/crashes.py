"""A ledger that dies before or after any step of an effect, through its ports."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

from langgraph_idem.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator

    from sqlalchemy import Connection

    from langgraph_idem.effects import Effect
    from langgraph_idem.ledger import Ledger
    from langgraph_idem.ports import Site, Transaction

T = TypeVar("T")

Step = Literal[
    "begin",
    "claim",
    "effect",
    "complete",
    "commit",
    "lookup",
    "fail",
    "lose",
    "release",
    "renew",
    "take_over",
]
"""A step of an effect.

``begin``: a transaction is begun. ``claim``: the effect's row is inserted, or found. ``effect``:
your function runs. ``complete``: its success is written. ``commit``: a transaction is committed; a
transactional effect has one, a remote one has two, the intent and the outcome. ``lookup``: the
provider is asked. ``fail``, ``lose``, ``release``: another end is written (refused; unknown;
nothing happened). ``take_over``, ``renew``:
a remote effect is taken over from an attempt that is gone; its lease begins anew.
"""

_STEPS = get_args(Step)
_WRITTEN = tuple(step for step in _STEPS if step not in {"begin", "effect", "commit", "lookup"})
"""Steps that are statements of the ledger's."""


class Crashed(BaseException):
    """The program dies here. No ``except Exception`` can save it."""


def kill() -> None:
    """Kill this process with SIGKILL: nothing is cleaned up, no ``finally`` runs."""
    os.kill(os.getpid(), signal.SIGKILL)


def _raise() -> None:
    raise Crashed


@dataclass
class Crash:
    """A death that is due.

    Attributes:
        place: Where it is due: ``"before commit"``, ``"after claim"``...
        nth: At which time of passing there, from 1.
        by: What happens there.
        passed: The places that were passed, in order; the last is where it died.
        is_dead: True since then, unless ``by`` let it live.

    """

    place: str
    nth: int = 1
    by: Callable[[], None] = _raise
    passed: list[str] = field(default_factory=list)
    is_dead: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def happened(self) -> bool:
        """True if the place was reached."""
        return self.passed.count(self.place) >= self.nth

    def check_alive(self) -> None:
        """Stop whoever goes on after the death: a dead process reaches no database."""
        if self.is_dead:
            raise Crashed

    def reach(self, place: str) -> None:
        """Pass a place, or die there."""
        self.check_alive()
        with self._lock:
            self.passed.append(place)
            is_due = place == self.place and self.passed.count(place) == self.nth
        if is_due:
            self._die()

    def _die(self) -> None:
        try:
            self.by()
        except BaseException:
            self.is_dead = True
            raise


@contextmanager
def crash(
    ledger: Ledger,
    *,
    before: Step | None = None,
    after: Step | None = None,
    nth: int = 1,
    by: Callable[[], None] = _raise,
) -> Iterator[Crash]:
    """Let the program die before or after a step of an effect; the ``with`` block ends there.

    From its death on, the ledger does nothing more within the block: what is open is rolled back,
    and no outcome is written, just as if the process were gone. Only LangGraph still sees an
    exception; ``by=kill`` spares you that difference, in a process of its own.

    Args:
        ledger: The ledger whose effects it happens to, in any thread or task.
        before: The step that is not taken any more.
        after: Or: the last step that is taken.
        nth: At which passing of that place, from 1: a remote effect's second ``commit`` is that
            of its outcome.
        by: How: by the exception :class:`Crashed`, which ends with the block, or by :func:`kill`.
            A function of yours that returns lets the program live: what another worker does at
            that very moment can be staged so.

    Returns:
        The crash; its ``passed`` lists the places on the way.

    Raises:
        AssertionError: The place was not reached, or somebody caught the exception and went on.
        ConfigurationError: Not exactly one of ``before`` and ``after``, or no such step.

    """
    due = Crash(_place(before, after), nth, by)
    with _around(ledger, due):
        try:
            yield due
        except Crashed:
            if not due.is_dead:
                raise
            return
    if not due.happened:
        raise AssertionError(
            f"Nothing died: {due.place!r} was not reached {nth} time(s). "
            f"Passed were: {', '.join(due.passed) or 'no steps at all'}."
        )
    if due.is_dead:
        raise AssertionError(_caught(due))


def _caught(due: Crash) -> str:
    return (
        f"It died {due.place!r}, but somebody caught the exception and went on: look for an "
        "`except BaseException` or a bare `except` between the effect and here."
    )


def _place(before: Step | None, after: Step | None) -> str:
    step = before if after is None else after
    if (before is None) == (after is None) or step not in _STEPS:
        raise ConfigurationError(
            f"crash(before={before!r}, after={after!r}): give one of them, and a step: "
            f"{', '.join(_STEPS)}."
        )
    return f"{'before' if after is None else 'after'} {step}"


@contextmanager
def _around(ledger: Ledger, due: Crash) -> Iterator[None]:
    """Put the crash between the ledger's protocols and their ports."""
    sites, statements = ledger._sites, ledger._statements  # noqa: SLF001 - the seam for tests
    inner, earlier = sites.around, dict(vars(statements))
    sites.around = lambda site: _CrashingSite(inner(site), due)
    for name in _WRITTEN:
        setattr(statements, name, _passing(due, name, getattr(statements, name)))
    try:
        yield
    finally:
        sites.around = inner
        vars(statements).clear()
        vars(statements).update(earlier)


def _passing(due: Crash, name: str, statement: Callable[..., T]) -> Callable[..., T]:
    def passing(*args: Any) -> T:
        due.reach(f"before {name}")
        answer = statement(*args)
        due.reach(f"after {name}")
        return answer

    return passing


@dataclass(frozen=True)
class _CrashingTransaction:
    inner: Transaction
    due: Crash

    async def sql(self, work: Callable[[Connection], T]) -> T:
        self.due.check_alive()
        return await self.inner.sql(work)

    async def tool(self) -> Any:
        self.due.reach("before effect")
        value = await self.inner.tool()
        self.due.reach("after effect")
        return value

    async def commit(self) -> None:
        self.due.reach("before commit")
        await self.inner.commit()
        self.due.reach("after commit")


@dataclass(frozen=True)
class _CrashingSite:
    inner: Site
    due: Crash

    @asynccontextmanager
    async def transaction(self, *, writes: bool = True) -> AsyncIterator[Transaction]:
        if not writes:  # a look at the ledger, no step of an effect
            self.due.check_alive()
            async with self.inner.transaction(writes=False) as opened:
                yield opened
            return
        self.due.reach("before begin")
        async with self.inner.transaction() as opened:
            self.due.reach("after begin")
            yield _CrashingTransaction(opened, self.due)

    async def call(self, effect: Effect) -> Any:
        self.due.reach("before effect")
        value = await self.inner.call(effect)
        self.due.reach("after effect")
        return value

    async def lookup(self, effect: Effect) -> Any:
        self.due.reach("before lookup")
        answer = await self.inner.lookup(effect)
        self.due.reach("after lookup")
        return answer

    async def sleep(self, seconds: float) -> None:
        self.due.check_alive()
        await self.inner.sleep(seconds)

    def monotonic(self) -> float:
        return self.inner.monotonic()

    async def shielded(self, work: Coroutine[Any, Any, T]) -> T:
        return await self.inner.shielded(work)
