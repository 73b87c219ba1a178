"""What the library takes in memory, and how long it takes to import."""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import sys
import tempfile
import time
import tracemalloc
from typing import TYPE_CHECKING, Any, Final

from benchmarks.measuring import compared, shuffled
from benchmarks.shop import shop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.databases import Database
    from benchmarks.measuring import Figure, Size

_HOSTS: Final = "import sqlalchemy.orm, pydantic, langgraph.prebuilt, langchain_core.tools"
_IMPORTS: Final = {
    "the hosts alone": _HOSTS,
    "the hosts, then langgraph_idem": f"{_HOSTS}, langgraph_idem",
    "langgraph_idem alone": "import langgraph_idem",
}


def memory(database: Database, size: Size) -> list[Figure]:
    """Memory kept after many effects, beside what as many bare transactions keep."""
    with shop(database) as here:
        candidates = {"bare": here.bare, "guarded": here.guarded("m")}
        kept: dict[str, list[float]] = {name: [] for name in candidates}
        for name, call in candidates.items():
            for number in range(min(200, size.effects)):  # what is made once is no growth
                call(number)
            kept[name].append(_kept(call, size.effects))
        return compared(
            *(f"memory kept after {size.effects:,} effects", database.where, kept),
            baseline="bare",
            unit="KiB",
            scale=1 / 1024,
        )


def _kept(call: Callable[[int], Any], effects: int) -> float:
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for number in range(1_000, 1_000 + effects):
        call(number)
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return max(1.0, float(after - before))


@contextlib.contextmanager
def _compiled() -> Iterator[dict[str, str]]:
    """Have everything compiled beforehand, as it is where a program is installed."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": folder}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        command = [sys.executable, "-c", _IMPORTS["the hosts, then langgraph_idem"]]
        subprocess.run(command, check=True, env=environment)
        yield environment


def import_time(_database: Database, size: Size) -> list[Figure]:
    """Seconds to import the library in a new process, beside what it stands on."""
    taken: dict[str, list[float]] = {name: [] for name in _IMPORTS}
    with _compiled() as environment:
        for names in shuffled(_IMPORTS, max(1, size.turns // 10)):
            for name in names:
                command = [sys.executable, "-c", _IMPORTS[name]]
                started = time.perf_counter()
                subprocess.run(command, check=True, env=environment)
                taken[name].append(time.perf_counter() - started)
    return compared(
        *("import", "a new process", taken), baseline="the hosts alone", unit="ms", scale=1e3
    )
