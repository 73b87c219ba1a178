"""Where the time of an effect goes: whose code is running whenever an alarm rings."""

from __future__ import annotations

import contextlib
import linecache
import re
import signal
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import langgraph_idem
from benchmarks.measuring import Figure
from benchmarks.shop import shop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from benchmarks.databases import Database
    from benchmarks.measuring import Size

EVERY: Final = 0.000_7
"""Seconds between two alarms; no multiple of anything that an effect does."""
WHOSE: Final = (
    ("the database and its driver", ("/sqlite3/", "/psycopg/", "/psycopg_binary/")),
    ("SQLAlchemy", ("/sqlalchemy/",)),
    ("this library", (f"{Path(langgraph_idem.__file__).parent}/",)),
    ("the tool", (f"{Path(__file__).parents[1]}/",)),
)
OTHERS: Final = "pydantic, the standard library, LangChain"
_CALLS_THE_DRIVER: Final = frozenset(
    {"do_execute", "do_execute_no_params", "do_commit", "do_rollback", "do_begin"}
)
"""The functions of SQLAlchemy that do nothing else; drivers in C have no frames of their own."""
_DRIVER_CALLED: Final = re.compile(r"\w*(cursor|connection|raw)\w*\.(execute|commit|rollback)\(")
"""Likewise a line of this library."""
PARTS: Final = (*(name for name, _ in WHOSE), OTHERS)


def where_time_goes(database: Database, size: Size) -> list[Figure]:
    """Microseconds of an effect, of a replay and of the bare transaction, by whose code runs."""
    figures: list[Figure] = []
    with shop(database) as here:
        guarded = here.guarded("parts-")
        guarded(-1)
        for name, call in {
            "bare transaction": here.bare,
            "transactional effect": guarded,
            "replay": lambda _number: guarded(-1),
        }.items():
            figures += _figures(name, database.where, *_sampled(call, size))
    return figures


def _figures(name: str, where: str, seen: Counter[str], taken: float, calls: int) -> list[Figure]:
    micro, heard = taken / calls * 1e6, max(1, seen.total())
    return [
        Figure(
            *(f"parts of a {name}", part, where, "all", "µs, sampled"),
            value=seen[part] / heard * micro,
            baseline_value=micro,
            ratio=(share := seen[part] / heard),
            low=share,
            high=share,
            sure_low=share,
            sure_high=share,
            rounds=calls,
        )
        for part in PARTS
    ]


def _sampled(call: Callable[[int], Any], size: Size) -> tuple[Counter[str], float, int]:
    for number in range(size.warm_up):
        call(number)
    calls, started = 0, time.perf_counter()
    with _listening() as seen:
        while calls == 0 or time.perf_counter() - started < size.seconds * 4:
            call(1_000 + calls)
            calls += 1
        taken = time.perf_counter() - started
    return seen, taken, calls


@contextlib.contextmanager
def _listening() -> Iterator[Counter[str]]:
    seen: Counter[str] = Counter()

    def ring(_signal: int, frame: FrameType | None) -> None:
        seen[_whose(frame)] += 1

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, EVERY, EVERY)
    try:
        yield seen
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _whose(frame: FrameType | None) -> str:
    if frame is None:
        return OTHERS
    code = frame.f_code
    if code.co_name in _CALLS_THE_DRIVER:
        return PARTS[0]
    if _DRIVER_CALLED.search(linecache.getline(code.co_filename, frame.f_lineno or 0)):
        return PARTS[0]
    return next(
        (name for name, inside in WHOSE if any(i in code.co_filename for i in inside)), OTHERS
    )
