"""Real processes that run jobs against one database, at once or to their death.

One program is started and imports everything once; each racer is a fork of it, so that a race
or a kill costs milliseconds. It has one thread and no connection when it forks.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from typing_extensions import Self

from langgraph_idem.ledger import Ledger
from tests.support import crash, shop

# --- on the test's side ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Finish:
    """How a racer ended."""

    killed_by: int
    answer: Any
    failure: str | None = None

    @property
    def result(self) -> Any:
        """The job's answer; an error if it has none."""
        if self.killed_by or self.failure:
            raise AssertionError(self.failure or f"killed by signal {self.killed_by}")
        return self.answer


class Racers:
    """Starts racers."""

    def __enter__(self) -> Self:
        """Start the program that forks."""
        self._starter = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *exc: object) -> None:
        """End it."""
        assert self._starter.stdin is not None
        assert self._starter.stdout is not None
        self._starter.stdin.close()
        self._starter.wait(30)
        self._starter.stdout.close()

    def run(self, job: str, *, copies: int = 1, **arguments: Any) -> list[Finish]:
        """Run copies of a job, all let go at the same moment, and wait for all to end."""
        assert self._starter.stdin is not None
        assert self._starter.stdout is not None
        order = {"job": job, "copies": copies, "arguments": arguments}
        self._starter.stdin.write(json.dumps(order) + "\n")
        self._starter.stdin.flush()
        return [Finish(**told) for told in json.loads(self._starter.stdout.readline())]


# --- the jobs -------------------------------------------------------------------------------------


def set_up(url: str, racer: int) -> None:
    """Set the ledger up."""
    with Ledger(url) as ledger:
        ledger.setup()


def ship(url: str, racer: int, takes: str, order_id: str) -> int:
    """Ship one order; the answer is the shipment's number."""
    return shop.call(url, takes, order_id).number


def ship_and_die(url: str, racer: int, takes: str, order_id: str, at: int) -> int:
    """Ship one order, killed at a boundary."""
    with crash.fused(crash.Fuse(at, crash.kill)):
        return shop.call(url, takes, order_id).number


def ship_many(url: str, racer: int, orders: int, racers: int, threads: int) -> int:
    """Ship this racer's share of many orders, in several threads."""
    with Ledger(url) as ledger, ThreadPoolExecutor(threads) as pool:
        made = shop.tool(ledger, "connection")
        mine = (f"many-{n}" for n in range(racer, orders, racers))
        return len({shipped.number for shipped in pool.map(made, mine)})


JOBS: dict[str, Callable[..., Any]] = {
    job.__name__: job for job in (set_up, ship, ship_and_die, ship_many)
}

# --- on the racers' side --------------------------------------------------------------------------


def _serve() -> None:
    for line in sys.stdin:
        order = json.loads(line)
        gate_out, gate_in = os.pipe()
        racers = [_forked(order, racer, gate_out, gate_in) for racer in range(order["copies"])]
        os.close(gate_out)
        os.close(gate_in)  # the last writer is gone: every racer's read ends at once
        sys.stdout.write(json.dumps([_finish(*racer) for racer in racers]) + "\n")
        sys.stdout.flush()


def _forked(order: dict[str, Any], racer: int, gate_out: int, gate_in: int) -> tuple[int, int]:
    told_out, told_in = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(gate_in)
        os.close(told_out)
        _race(order, racer, gate_out, told_in)
    os.close(told_in)
    return pid, told_out


def _race(order: dict[str, Any], racer: int, gate: int, told: int) -> None:
    answer: dict[str, Any] = {"answer": None}
    try:
        os.read(gate, 1)
        answer["answer"] = _job(order["job"])(racer=racer, **order["arguments"])
    except BaseException:  # noqa: BLE001 - whatever it is, the test shall see it
        answer["failure"] = traceback.format_exc()
    finally:
        os.write(told, json.dumps(answer).encode())
        os._exit(0)


def _job(name: str) -> Callable[..., Any]:
    """Find a job here, or in the module that its name begins with (``module:job``)."""
    module, _, job = name.rpartition(":")
    found: Callable[..., Any] = (
        getattr(importlib.import_module(module), job) if module else JOBS[job]
    )
    return found


def _finish(pid: int, told: int) -> dict[str, Any]:
    with os.fdopen(told) as pipe:
        said = pipe.read()
    _, status = os.waitpid(pid, 0)
    answer = json.loads(said) if said else {"answer": None}
    return {"killed_by": os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0, **answer}


if __name__ == "__main__":
    _serve()
