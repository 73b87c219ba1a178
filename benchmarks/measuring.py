"""Measure several candidates turn by turn, and tell each as a ratio to its baseline.

Other programs come and go on the machine. So turns are short and take each other's place, in a new
order each round; a ratio is taken within a round, whose turns had the same neighbours; the middle
one of all rounds is told, with the interval that holds it in 19 of 20 repetitions.
"""

from __future__ import annotations

import asyncio
import gc
import math
import random
import statistics
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence

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
        rounds: Rounds of what takes long.
        seconds: How long threads and processes work in one round.
        effects: Effects over which memory is measured.

    """

    turns: int = 100
    calls: int = 6
    warm_up: int = 40
    rows: tuple[int, ...] = (10**3, 10**4, 10**5, 10**6)
    threads: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    processes: tuple[int, ...] = (1, 2, 4)
    rounds: int = 7
    seconds: float = 0.5
    effects: int = 10_000


QUICK = Size(
    turns=8,
    calls=5,
    warm_up=10,
    rows=(10**3, 10**4),
    threads=(1, 4),
    processes=(1, 2),
    rounds=2,
    seconds=0.2,
    effects=500,
)
TINY = Size(
    turns=2,
    calls=1,
    warm_up=1,
    rows=(10, 20),
    threads=(1, 2),
    processes=(1,),
    rounds=1,
    seconds=0.01,
    effects=5,
)
"""To see in a test that each still runs."""


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
        ratio: Median of the rounds' ratios.
        low: Their first quartile: a quarter of them is below.
        high: Their third quartile.
        sure_low: Lower end of the 95 % interval of the median.
        sure_high: Its upper end.
        rounds: How many ratios there are.
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
    sure_low: float
    sure_high: float
    rounds: int
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


def in_turn(*calls: Callable[[int], Any]) -> Callable[[int], None]:
    """Make one call of several."""

    def call(number: int) -> None:
        for each in calls:
            each(number)

    return call


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

    The order is another one each round, so that nobody always comes after the same neighbour.
    """
    for turn in candidates.values():
        turn(size.warm_up)
    medians: dict[str, list[float]] = {name: [] for name in candidates}
    gc.collect()
    gc.freeze()  # each round begins without litter; what is here by now need not be looked through
    for names in shuffled(candidates, size.turns):
        gc.collect()
        for name in names:
            medians[name].append(statistics.median(candidates[name](size.calls)))
    gc.unfreeze()
    return medians


def shuffled(names: Iterable[str], rounds: int) -> Iterator[list[str]]:
    """Put names in another order for each round; the same orders at each run."""
    order, dice = [*names], random.Random(0)  # noqa: S311 - no secret
    for _ in range(rounds):
        dice.shuffle(order)
        yield [*order]


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
    """Tell every candidate as a ratio to the baseline, taken within each round."""
    base = medians[baseline]
    figures = []
    for name, values in medians.items():
        ratios = [value / beside for value, beside in zip(values, base, strict=True)]
        low, high = quartiles(ratios)
        sure_low, sure_high = interval(ratios)
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
                low=low,
                high=high,
                sure_low=sure_low,
                sure_high=sure_high,
                rounds=len(ratios),
                target=(targets or {}).get(name),
                at_least=at_least,
            )
        )
    return figures


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """Return the values below and above which a quarter of them lies."""
    if len(values) == 1:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, method="inclusive")
    return low, high


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of the median, which supposes nothing of how the values are spread.

    How many of n values lie below the true median is binomial with one half, so two of the sorted
    values hold it between them (Conover, Practical Nonparametric Statistics, section 3.2).
    """
    inside = sorted(values)
    away = 1.96 * math.sqrt(len(inside)) / 2
    lower = max(0, math.floor(len(inside) / 2 - away))
    return inside[lower], inside[len(inside) - 1 - lower]
