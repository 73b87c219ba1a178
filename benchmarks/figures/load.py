"""Many at once: threads, processes, and a crowd at one key."""

from __future__ import annotations

import multiprocessing
import secrets
import statistics
import threading
import time
from typing import TYPE_CHECKING, Any

from benchmarks.databases import Database
from benchmarks.measuring import Figure, compared
from benchmarks.shop import SKUS, shop

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.measuring import Size

CROWD = 64
CALLS_AT_ONCE = 4
"""Calls of each thread, times the size's calls."""


def _at_once(calls: Sequence[Callable[[], Any]]) -> list[float]:
    """Run all at the same time, each in a thread; return when each was done, in seconds."""
    ready = threading.Barrier(len(calls) + 1)
    done = [0.0] * len(calls)
    failures: list[BaseException] = []

    def run(number: int, call: Callable[[], Any]) -> None:
        ready.wait()
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - a lost thread must not count as a fast one
            failures.append(error)
        done[number] = time.perf_counter()

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(calls)]
    for thread in threads:
        thread.start()
    ready.wait()
    started = time.perf_counter()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return [moment - started for moment in done]


def _rate(call: Callable[[int], Any], threads: int, each: int) -> float:
    """Return calls per second; every thread sells another thing, so that none waits for a row."""
    run = secrets.randbelow(10**9) * 10**6

    def sell(seller: int) -> Callable[[], None]:
        def selling() -> None:
            for count in range(each):
                call(run + count * SKUS + seller)

        return selling

    return threads * each / max(_at_once([sell(number) for number in range(threads)]))


def throughput(database: Database, size: Size) -> list[Figure]:
    """Effects per second with 1 to 32 threads, beside bare transactions per second."""
    here = shop(database)
    candidates = {"bare": here.bare, "guarded": here.guarded("t")}
    figures: list[Figure] = []
    for threads in size.threads:
        each = max(2, CALLS_AT_ONCE * size.calls * 4 // threads)
        rates: dict[str, list[float]] = {name: [] for name in candidates}
        for call in candidates.values():
            _rate(call, threads, 2)
        for round_ in range(size.rounds):
            for name in [*candidates] if round_ % 2 else [*candidates][::-1]:
                rates[name].append(_rate(candidates[name], threads, each))
        figures += _throughput(f"{database.name}, {threads} threads", rates, aim=threads == 16)
    return figures


def _throughput(where: str, rates: dict[str, list[float]], *, aim: bool) -> list[Figure]:
    targets = {"guarded": 0.8} if aim and where.startswith("PostgreSQL") else None
    return compared(
        *("throughput", where, rates),
        baseline="bare",
        unit="per second",
        scale=1,
        targets=targets,
        at_least=True,
    )


def processes(database: Database, size: Size) -> list[Figure]:
    """Effects per second with 1 to 4 processes of 4 threads, beside bare transactions."""
    shop(database)
    each = CALLS_AT_ONCE * size.calls
    figures: list[Figure] = []
    for number in size.processes:
        rates: dict[str, list[float]] = {"bare": [], "guarded": []}
        for round_ in range(size.rounds):
            for name in sorted(rates, reverse=bool(round_ % 2)):
                rates[name].append(_rate_of_processes(database, name, number, each))
        figures += _throughput(f"{database.name}, {number} processes", rates, aim=False)
    return figures


def _rate_of_processes(database: Database, name: str, number: int, each: int) -> float:
    spawn = multiprocessing.get_context("spawn")
    ready = spawn.Barrier(number)
    answers: Any = spawn.Queue()
    sellers = [
        spawn.Process(target=_seller, args=(database, name, which, each, ready, answers))
        for which in range(number)
    ]
    for seller in sellers:
        seller.start()
    spans: list[tuple[float, float]] = [answers.get(timeout=300) for _ in sellers]
    for seller in sellers:
        seller.join()
    # The clock is the machine's: from the first start to the last end.
    return number * 4 * each / (max(end for _, end in spans) - min(start for start, _ in spans))


def _seller(database: Database, name: str, which: int, each: int, ready: Any, answers: Any) -> None:
    here = shop(database)
    call = here.bare if name == "bare" else here.guarded(f"p{secrets.token_hex(4)}-")
    _rate(call, 4, 2)
    ready.wait(timeout=300)
    started = time.monotonic()

    def sell(seller: int) -> Callable[[], None]:
        def selling() -> None:
            for count in range(each):
                call(count * SKUS + which * 4 + seller)

        return selling

    _at_once([sell(seller) for seller in range(4)])
    answers.put((started, time.monotonic()))


def hot_key(database: Database, size: Size) -> list[Figure]:
    """Sixty-four callers at once ask for one and the same effect, which nobody has done yet.

    The baseline is sixty-four readers at once: each caller but one has nothing else to do.
    """
    here = shop(database)
    guarded = here.guarded("hot-")
    guarded(0)
    read = here.read("hot-order-0")
    last: dict[str, list[float]] = {"64 reads": [], "64 callers": []}
    middle: dict[str, list[float]] = {"64 reads": [], "64 callers": []}
    for round_ in range(max(3, size.turns // 4)):
        number = 1 + round_ + secrets.randbelow(10**9) * 10**3
        calls: dict[str, Callable[[], Any]] = {
            "64 reads": lambda: read(0),
            "64 callers": lambda number=number: guarded(number),  # type: ignore[misc]  # bound at once
        }
        for name, call in calls.items():
            done = _at_once([call] * CROWD)
            last[name].append(max(done))
            middle[name].append(statistics.median(done))
    where = f"{database.name}, sync"
    about: dict[str, Any] = {"baseline": "64 reads", "unit": "ms", "scale": 1e3}
    return [
        *compared("one hot key: median caller", where, middle, **about),
        *compared("one hot key: last caller", where, last, **about),
    ]
