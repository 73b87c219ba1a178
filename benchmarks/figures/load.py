"""Many at once: threads, processes, and a crowd at one key."""

from __future__ import annotations

import contextlib
import multiprocessing
import secrets
import statistics
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.databases import Database
from benchmarks.measuring import Figure, compared, shuffled
from benchmarks.shop import SKUS, shop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from multiprocessing.connection import Connection

    from benchmarks.measuring import Size

CROWD = 64
MANY_WRITERS = {"SQLite": 8}
"""Threads beyond which only the waiting grows: one writes at a time."""
SELLERS = 4
"""Threads in each process."""


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


def _sold(call: Callable[[int], Any], sellers: range, seconds: float) -> tuple[int, float]:
    """Let every seller sell for so long; return how many were sold, and the seconds it took.

    Each sells another thing, so that none waits for a row.
    """
    run = secrets.randbelow(10**9) * 10**6
    sold: list[int] = []

    def sell(seller: int) -> None:
        count, until = 0, time.perf_counter() + seconds
        while count == 0 or time.perf_counter() < until:
            call(run + count * SKUS + seller)
            count += 1
        sold.append(count)

    taken = max(_at_once([partial(sell, seller) for seller in sellers]))
    return sum(sold), taken


def _rate(call: Callable[[int], Any], threads: int, seconds: float) -> float:
    """Return calls per second."""
    count, taken = _sold(call, range(threads), seconds)
    return count / taken


def throughput(database: Database, size: Size) -> list[Figure]:
    """Effects per second with 1 to 32 threads, beside bare transactions per second."""
    with shop(database) as here:
        candidates = {"bare": here.bare, "guarded": here.guarded("t")}
        figures: list[Figure] = []
        for threads in size.threads:
            if threads > MANY_WRITERS.get(database.name, threads):
                continue
            rates: dict[str, list[float]] = {name: [] for name in candidates}
            for call in candidates.values():
                _rate(call, threads, size.seconds / 5)
            for names in shuffled(candidates, size.rounds):
                for name in names:
                    rates[name].append(_rate(candidates[name], threads, size.seconds))
            figures += _throughput(f"{database.where}, {threads} threads", rates, aim=threads == 16)
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
    with shop(database):  # makes the tables
        pass
    figures: list[Figure] = []
    with _branches(database, max(size.processes)) as branches:
        for number in size.processes:
            rates: dict[str, list[float]] = {"bare": [], "guarded": []}
            for names in shuffled(rates, size.rounds):
                for name in names:
                    rates[name].append(_rate_of(branches[:number], name, size.seconds))
            figures += _throughput(f"{database.where}, {number} processes", rates, aim=False)
    return figures


@contextlib.contextmanager
def _branches(database: Database, number: int) -> Iterator[list[Connection]]:
    """Start processes that sell when they are told to, and stop them at the end."""
    spawn = multiprocessing.get_context("spawn")
    ends = [spawn.Pipe() for _ in range(number)]
    branches = [
        spawn.Process(target=_branch, args=(database, which, end), daemon=True)
        for which, (_, end) in enumerate(ends)
    ]
    for branch in branches:
        branch.start()
    ours = [end for end, _ in ends]
    for end in ours:
        _answer(end)  # it is ready
    yield ours
    for end in ours:
        end.send(None)
    for branch in branches:
        branch.join()


def _branch(database: Database, which: int, orders: Connection) -> None:
    with shop(database) as here:
        calls = {"bare": here.bare, "guarded": here.guarded(f"p{secrets.token_hex(4)}-")}
        sellers = range(which * SELLERS, (which + 1) * SELLERS)
        for call in calls.values():
            _sold(call, sellers, 0.05)
        orders.send(0)
        while (order := orders.recv()) is not None:
            name, begin, seconds = order
            # The clock is the machine's, so that all begin together without one more message.
            time.sleep(max(0.0, begin - time.monotonic()))
            count, _ = _sold(calls[name], sellers, seconds)
            orders.send((count, time.monotonic()))


def _rate_of(branches: list[Connection], name: str, seconds: float) -> float:
    begin = time.monotonic() + 0.05
    for branch in branches:
        branch.send((name, begin, seconds))
    answers = [_answer(branch) for branch in branches]
    return float(sum(count for count, _ in answers) / (max(end for _, end in answers) - begin))


def _answer(branch: Connection) -> Any:
    if not branch.poll(300):
        raise TimeoutError("A process of the benchmark does not answer.")
    return branch.recv()


def hot_key(database: Database, size: Size) -> list[Figure]:
    """Sixty-four callers at once ask for one and the same effect, which nobody has done yet.

    The baseline is sixty-four readers at once: each caller but one has nothing else to do.
    """
    with shop(database) as here:
        guarded = here.guarded("hot-")
        guarded(0)
        read = here.read("hot-order-0")
        last: dict[str, list[float]] = {"64 reads": [], "64 callers": []}
        middle: dict[str, list[float]] = {"64 reads": [], "64 callers": []}
        for round_ in range(max(2, size.turns // 4)):
            number = 1 + round_ + secrets.randbelow(10**9) * 10**3
            calls: dict[str, Callable[[], Any]] = {
                "64 reads": lambda: read(0),
                "64 callers": lambda number=number: guarded(number),  # type: ignore[misc]  # bound at once
            }
            for name, call in calls.items():
                done = _at_once([call] * CROWD)
                last[name].append(max(done))
                middle[name].append(statistics.median(done))
        where = f"{database.where}, sync"
        about: dict[str, Any] = {"baseline": "64 reads", "unit": "ms", "scale": 1e3}
        return [
            *compared("one hot key: median caller", where, middle, **about),
            *compared("one hot key: last caller", where, last, **about),
        ]
