"""Measure several candidates turn by turn, and tell each as a ratio to the first."""

from __future__ import annotations

import asyncio
import gc
import statistics
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    Turn = Callable[[int], list[float]]
    """Makes so many calls and returns what each took, in seconds."""


@dataclass(frozen=True)
class Size:
    """How much is measured.

    Attributes:
        turns: Turns of each candidate; a ratio is taken within each.
        calls: Calls in one turn.
        warm_up: Calls of each candidate beforehand, which are not measured.
        rows: Sizes of the ledger's table.
        threads: Numbers of threads.
        processes: Numbers of processes.
        rounds: Rounds of what takes seconds each.
        effects: Effects over which memory is measured.

    """

    turns: int = 40
    calls: int = 15
    warm_up: int = 40
    rows: tuple[int, ...] = (10**3, 10**4, 10**5, 10**6)
    threads: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    processes: tuple[int, ...] = (1, 2, 4)
    rounds: int = 5
    effects: int = 10_000


QUICK = Size(
    turns=8,
    calls=5,
    warm_up=5,
    rows=(10**3, 10**4),
    threads=(1, 4),
    processes=(2,),
    rounds=1,
    effects=500,
)


@dataclass(frozen=True)
class Figure:
    """One candidate beside its baseline.

    Attributes:
        group: What was measured.
        name: The candidate.
        where: The database and the colour, or whatever it ran on.
        baseline: What it is compared with.
        unit: Of the two values.
        value: Median of the candidate.
        baseline_value: Median of the baseline.
        ratio: Median of the turns' ratios.
        low: The smallest of them.
        high: The largest of them.
        target: What was aimed at; None: nothing.
        at_least: True if the ratio is to be above the target, as for throughput.

    """

    group: str
    name: str
    where: str
    baseline: str
    unit: str
    value: float
    baseline_value: float
    ratio: float
    low: float
    high: float
    target: float | None = None
    at_least: bool = False

    @property
    def is_reached(self) -> bool | None:
        """Whether the target was reached; None if there is none."""
        if self.target is None:
            return None
        return self.ratio >= self.target if self.at_least else self.ratio <= self.target

    def as_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {**asdict(self), "is_reached": self.is_reached}


def blocking(call: Callable[[int], Any], clock: Callable[[], float] = time.perf_counter) -> Turn:
    """Make turns of a function; it is given a number that never repeats.

    Args:
        call: The function.
        clock: ``time.perf_counter``, or ``time.thread_time`` to measure only its thread's own work.

    """
    count = iter(range(10**12))

    def turn(calls: int) -> list[float]:
        taken = []
        for _ in range(calls):
            number = next(count)
            started = clock()
            call(number)
            taken.append(clock() - started)
        return taken

    return turn


def awaiting(call: Callable[[int], Awaitable[Any]], loop: asyncio.AbstractEventLoop) -> Turn:
    """Make turns of a coroutine function; each turn runs within one task."""
    count = iter(range(10**12))

    async def all_of(calls: int) -> list[float]:
        taken = []
        for _ in range(calls):
            number = next(count)
            started = time.perf_counter()
            await call(number)
            taken.append(time.perf_counter() - started)
        return taken

    return lambda calls: loop.run_until_complete(all_of(calls))


def turn_by_turn(candidates: Mapping[str, Turn], size: Size) -> dict[str, list[float]]:
    """Run the candidates in turns; return the median of each turn, in seconds.

    Every second round runs backwards, so that nobody always comes after the same neighbour.
    """
    for turn in candidates.values():
        turn(size.warm_up)
    medians: dict[str, list[float]] = {name: [] for name in candidates}
    for round_ in range(size.turns):
        names = [*candidates] if round_ % 2 else [*candidates][::-1]
        gc.collect()
        for name in names:
            medians[name].append(statistics.median(candidates[name](size.calls)))
    return medians


def compared(
    group: str,
    where: str,
    medians: Mapping[str, list[float]],
    *,
    baseline: str,
    unit: str = "µs",
    scale: float = 1e6,
    targets: Mapping[str, float] | None = None,
    at_least: bool = False,
) -> list[Figure]:
    """Tell every candidate as a ratio to the baseline, taken within each turn."""
    base = medians[baseline]
    figures = []
    for name, values in medians.items():
        ratios = [value / beside for value, beside in zip(values, base, strict=True)]
        figures.append(
            Figure(
                group=group,
                name=name,
                where=where,
                baseline=baseline,
                unit=unit,
                value=statistics.median(values) * scale,
                baseline_value=statistics.median(base) * scale,
                ratio=statistics.median(ratios),
                low=min(ratios),
                high=max(ratios),
                target=(targets or {}).get(name),
                at_least=at_least,
            )
        )
    return figures
