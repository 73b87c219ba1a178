"""Kill the order agent at random instants, over and over, until it is done; then read the disk.

Also a program: ``python -m tests.acceptance.random_kills 300 [POSTGRESQL-URL]``. Each worker and
each reader of the disk is a process of its own, forked from one that has loaded the libraries
and opened nothing, so that a kill hits the work and not Python's start.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from examples.order_agent.stores import in_database, in_folder

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.process import BaseProcess

    from examples.order_agent.evidence import Evidence
    from examples.order_agent.stores import Stores

LIBRARIES = ["langgraph_idem", "langgraph_idem.testing", "langgraph.checkpoint.sqlite", "psycopg"]
MOST_KILLS = 6
"""After so many kills of one order its worker is left alone."""

LONGEST = 1.5
"""Seconds after which a worker is killed at the latest, should it still live."""

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(LIBRARIES)


@dataclass
class Tally:
    """What was done and seen.

    Attributes:
        orders: Orders that came to their end with one deduction and one notification.
        kills: Workers that were killed.
        seen: How often which state was on disk after a kill.
        seconds: How long the last undisturbed worker took, its imports apart.

    """

    orders: int = 0
    kills: int = 0
    seen: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    @property
    def kills_midway(self) -> int:
        """Kills that left an order begun and not completed."""
        return sum(count for state, count in self.seen.items() if state.startswith("RUNNING"))


def kill_at_random(
    orders: int,
    new_stores: Callable[[str], Stores],
    *,
    seed: int,
    tell: Callable[[str], object] = lambda _: None,
) -> Tally:
    """Process orders with workers that are killed at random instants.

    Args:
        orders: How many.
        new_stores: Makes the databases of one order.
        seed: Of the delays; the instants themselves are as random as the machine.
        tell: Is told how it goes.

    Raises:
        AssertionError: What was on disk after a kill, or at the end, is wrong.

    """
    dice = random.Random(seed)  # noqa: S311 - no secret
    tally = Tally()
    tell(f"seed {seed}")
    for number in range(orders):
        _one_order(new_stores(f"order-{number}"), dice, tally)
        tell(f"order {number + 1}: {tally.kills} kills so far, {tally.kills_midway} of them midway")
    return tally


def _one_order(stores: Stores, dice: random.Random, tally: Tally) -> None:
    stores.open_shop()
    for turn in range(MOST_KILLS if tally.seconds else 0):  # the first order is for measuring
        if turn and dice.random() < 0.4:
            break
        # The first part of a worker's life only opens databases: most kills come later.
        if _killed_after(dice.triangular(0, tally.seconds, 0.8 * tally.seconds), stores):
            tally.kills += 1
        found = _read(stores)
        check_sense(found)
        tally.seen[_state(found)] += 1
        if found.status == "COMPLETED":
            break
    seconds = _run_to_its_end(stores)
    # A successor has less to do, and the machine's load comes and goes.
    tally.seconds = min(max(seconds, tally.seconds * 0.7), LONGEST)
    check_end(_read(stores))
    tally.orders += 1


def check_sense(found: Evidence) -> None:
    """Check what a killed worker may leave: business rows, ledger and checkpoint that agree."""
    deducted = "deduct_inventory succeeded" in found.effects
    notified = "notify_shipped succeeded" in found.effects
    assert len(found.effects) == deducted + notified, found  # no claim without its result
    assert (found.stock, found.notifications) == (10 - deducted, int(notified)), found
    assert deducted or not notified, found
    if found.status is None:
        assert not found.effects, found
    elif found.status == "COMPLETED":
        assert found.next_step is None, found
        assert notified, found
    else:
        assert found.status == "RUNNING", found
        # The answer of a tool may be stored before the step that it belongs to is through.
        possible: dict[str, set[str | None]] = {
            "waiting_tool": {"ai", "tool"},
            "waiting_model": {None, "human", "tool"},
        }
        assert found.last_message in possible[str(found.next_step)], found


def check_end(found: Evidence) -> None:
    """Check that the order was processed once."""
    check_sense(found)
    assert (found.stock, found.notifications, found.status) == (9, 1, "COMPLETED"), found


def _state(found: Evidence) -> str:
    where = f"{found.status or 'no checkpoint'} {found.next_step or ''}".strip()
    return f"{where}, {len(found.effects)} effects"


def _killed_after(delay: float, stores: Stores) -> bool:
    worker = _started(stores)
    time.sleep(delay)
    worker.kill()
    worker.join()
    assert worker.exitcode in {0, -signal.SIGKILL}, worker.exitcode
    return worker.exitcode != 0


def _run_to_its_end(stores: Stores) -> float:
    worker = _started(stores)
    began = time.monotonic()
    worker.join(60)
    assert worker.exitcode == 0, worker.exitcode
    return time.monotonic() - began


def _started(stores: Stores) -> BaseProcess:
    """Start a worker and wait until it has nothing left to import."""
    receiver, sender = _processes.Pipe(duplex=False)
    worker = _processes.Process(target=_work, args=(stores, sender))
    worker.start()
    sender.close()
    with receiver:
        receiver.recv()
    return worker


def _read(stores: Stores) -> Evidence:
    receiver, sender = _processes.Pipe(duplex=False)
    reader = _processes.Process(target=_send_evidence, args=(stores, sender))
    reader.start()
    sender.close()
    with receiver:
        found: Evidence = receiver.recv()
    reader.join()
    return found


def _work(stores: Stores, is_ready: Any) -> None:
    os.environ.update(stores.environment)
    from examples.order_agent.worker import run

    is_ready.send(True)  # noqa: FBT003 - any message
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):  # noqa: PTH123
        run()


def _send_evidence(stores: Stores, sender: Any) -> None:
    os.environ.update(stores.environment)
    from examples.order_agent.evidence import read

    sender.send(read())


def main(arguments: list[str]) -> None:
    """Run as a program."""
    orders = int(arguments[0]) if arguments else 300
    stores = in_database(arguments[1], keep=False) if arguments[1:] else in_folder(None)
    with stores as new_stores:
        tally = kill_at_random(orders, new_stores, seed=time.time_ns() % 10**6, tell=_tell)
    _tell(f"{tally.orders} orders, {tally.kills} workers killed, {tally.kills_midway} midway")
    for state, count in sorted(tally.seen.items()):
        _tell(f"{count:6}  {state}")


def _tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
