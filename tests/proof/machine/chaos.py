"""Carries a schedule out: starts the workers and does to them, and to the world, what is drawn."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Final

import sqlalchemy as sa

from tests.proof.machine import evidence
from tests.proof.machine.journal import CONDUCTOR, Journal, Shared
from tests.proof.machine.places import Database, Place
from tests.proof.machine.plan import SLOTS, Cell, Cut, Fate, Life, Strike, What, latest_clock
from tests.proof.machine.report import Tally
from tests.proof.machine.wires import Wire
from tests.support.remotes.serving import Program, listens

LIBRARIES: Final = [
    *("langgraph_idem", "langgraph_idem.testing", "tests.proof.machine.workers"),
    *("langgraph.checkpoint.sqlite.aio", "langgraph.checkpoint.postgres.aio", "aiosqlite"),
    *("psycopg", "pymysql", "asyncmy", "httpx"),
]
FREEZES: Final = 200
"""How often a worker is looked at for a moment in which it may be frozen for long."""
REFUSED: Final = 0.3
"""Seconds, times one to four, that a port takes no connections."""
HANG: Final = 60.0
"""Seconds after which a worker that should have ended by itself is said to hang."""
BETWEEN_LOOKS: Final = 0.2
"""Seconds."""
INTERRUPTS: Final = 20
"""How often a worker is interrupted: one may be swallowed by a destructor of Python's."""
AWAKE: Final = 0.4
"""Seconds that a worker lives on after a freeze."""
FILE_LIMIT: Final = 200_000
LONG: Final = 0.1
"""Seconds from which on a freeze is a long one: before, no lease can be over."""

_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(LIBRARIES)


class Worker:
    """A worker as it is seen from outside: a pid.

    Args:
        place: Where it works.
        life: What is to become of it.
        name: Of its file of answers.

    """

    def __init__(self, place: Place, life: Life, name: str) -> None:
        from tests.proof.machine.workers import work

        self.place, self.name = place, name
        self._window = place.folder / f"window-{name}"
        self._told, telling = _forks.Pipe(duplex=False)
        self._fork: BaseProcess = _forks.Process(target=work, args=(place, life, name, telling))
        self._fork.start()
        telling.close()

    @property
    def exit_code(self) -> int | None:
        """How it ended; None: it lives."""
        return self._fork.exitcode

    async def ready(self) -> None:
        """Wait until it has nothing left to import, or is dead."""
        await _readable(self._told.fileno())
        self._told.close()

    async def ended(self, within: float | None = None) -> bool:
        """Wait until it is gone; tell whether it is."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(_readable(self._fork.sentinel), within)
            self._fork.join()
        return self._fork.exitcode is not None

    def send(self, number: signal.Signals) -> bool:
        """Send a signal; tell whether there was anybody to get it."""
        if self._fork.exitcode is not None or self._fork.pid is None:
            return False
        os.kill(self._fork.pid, number)
        return True

    async def killed(self) -> bool:
        """Kill it; tell whether it was alive."""
        was_alive = self.send(signal.SIGKILL)
        await self.ended()
        return was_alive and self._fork.exitcode == -signal.SIGKILL

    async def freeze(self, *, is_long: bool) -> bool:
        """Stop it, for long only where it has no request about to leave; tell whether it stands."""
        for _ in range(FREEZES):
            if not self.send(signal.SIGSTOP):
                return False
            await self._stands()
            if not is_long or not self._is_sending():
                return True
            self.send(signal.SIGCONT)
            await asyncio.sleep(0.002)
        return False

    def _is_sending(self) -> bool:
        with Shared(self._window) as window:
            return window.value > 0

    async def _stands(self) -> None:
        while not _is_still(self._fork.pid):  # noqa: ASYNC110 - the kernel tells nobody
            await asyncio.sleep(0.0005)


def _is_still(pid: int | None) -> bool:
    """Tell whether a SIGSTOP has come to it, or it is dead."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1] in "TZX"


async def _readable(fileno: int) -> None:
    """Wait until a pipe has something to read, or nobody left to write."""
    loop, came = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(fileno, came.set)
    try:
        await came.wait()
    finally:
        loop.remove_reader(fileno)


class Chaos:
    """One round's.

    Args:
        cell: What is broken.
        place: Where.
        database: The same, as a thing that can be struck.
        provider: The wire to the provider, None where there is none.
        tally: Is kept.
        tell: Called after each kill.

    """

    def __init__(
        self,
        cell: Cell,
        place: Place,
        database: Database,
        provider: Wire | None,
        tally: Tally,
        tell: Callable[[], None],
    ) -> None:
        self.cell, self.place, self.database, self.provider = cell, place, database, provider
        self.tally, self.tell = tally, tell
        self.accidents: list[str] = []
        self._clock = Shared(place.folder / "clock")
        self._notes = Journal(place.folder, CONDUCTOR)
        self._one_at_a_time = asyncio.Lock()

    async def run(self, lives: list[Life]) -> None:
        """Let all live and die, a few at a time, in the order of the schedule."""
        queue = iter(lives)

        async def in_turn() -> None:
            for life in queue:
                await self._live(life)

        await asyncio.gather(*(in_turn() for _ in range(SLOTS)))

    async def watch(self) -> None:
        """Look, as often as there is time, whether anybody can see half of an effect."""
        while True:
            await asyncio.sleep(BETWEEN_LOOKS)
            with contextlib.suppress(sa.exc.DBAPIError):  # the server is down
                apart = await asyncio.to_thread(evidence.apart, self.place)
                new = [told for told in apart if f"midway: {told}" not in self.accidents]
                self.accidents += [f"midway: {told}" for told in new]
                self.tally.detail["looks in between"] += 1

    def calm(self) -> None:
        """Break nothing from now on; every clock has come to where none was ahead of."""
        for wire in filter(None, (self.database.wire, self.provider)):
            wire.heal()
        self._clock.value = latest_clock(self.cell)
        if self.database.disk is not None:
            self.database.disk.free()

    async def _live(self, life: Life) -> None:
        worker = Worker(self.place, self._limited(life), f"{life.number:04}")
        await worker.ready()
        strike = asyncio.ensure_future(self._strike(life.strike))
        await worker.ended(HANG if life.fate is Fate.SPARED else life.after)
        await self._freeze(worker, life)
        if life.fate is Fate.INTERRUPTED:
            await self._interrupt(worker)
        elif life.is_killed:
            await self._kill(worker)
        elif worker.exit_code is None:
            self.accidents.append(f"worker {worker.name} hangs")
            await worker.killed()
        elif worker.exit_code:
            self.accidents.append(f"worker {worker.name} ended with {worker.exit_code}")
        await strike

    async def _kill(self, worker: Worker) -> None:
        if await worker.killed():
            self.tally.counts["kills"] += 1
            self.tell()
        else:
            self.accidents.append(f"worker {worker.name} ended with {worker.exit_code}")

    async def _freeze(self, worker: Worker, life: Life) -> None:
        is_long = life.frozen > LONG and self.cell.kind == "remote-lookup"
        if not life.frozen or not await worker.freeze(is_long=is_long):
            return
        self.tally.counts["stops"] += 1
        await asyncio.sleep(life.frozen)
        if life.fate is Fate.FROZEN and worker.send(signal.SIGCONT):
            await worker.ended(AWAKE)

    async def _interrupt(self, worker: Worker) -> None:
        """Ask it to end, as Ctrl-C or a cancelled task does, until it has cleaned up and gone."""
        self.tally.counts["interrupts"] += 1
        for _ in range(INTERRUPTS):
            if not worker.send(signal.SIGINT) or await worker.ended(0.5):
                return
        await worker.killed()

    def _limited(self, life: Life) -> Life:
        """Let files not grow where there is no small disk that could be full."""
        fills = life.strike is not None and life.strike.what is What.FILL_DISK
        if not fills or self.database.disk is not None or self.cell.database != "sqlite":
            return life
        self.tally.counts["full disks"] += 1
        return replace(life, file_limit=FILE_LIMIT)

    async def _strike(self, strike: Strike | None) -> None:
        if strike is None:
            return
        await asyncio.sleep(strike.after)
        strikes: dict[What, Callable[[Strike], Awaitable[None]]] = {
            What.RESTART: self._restart,
            What.FILL_DISK: self._fill,
            What.STEP_CLOCK: self._step,
            What.CUT_DATABASE: self._cut,
            What.CUT_PROVIDER: self._cut,
        }
        async with self._one_at_a_time:  # a server does not start on a disk that is full
            await strikes[strike.what](strike)

    async def _restart(self, _strike: Strike) -> None:
        await self.database.restart()
        self.tally.counts["restarts"] += 1

    async def _fill(self, strike: Strike) -> None:
        disk = self.database.disk
        if disk is None:
            return
        disk.fill()
        try:
            await asyncio.sleep(strike.seconds)
        finally:
            disk.free()
        self.tally.counts["full disks"] += 1

    async def _step(self, strike: Strike) -> None:
        self._notes.stepped()
        self._clock.value = strike.seconds
        self._notes.stepped()
        self.tally.counts["clock steps"] += 1

    async def _cut(self, strike: Strike) -> None:
        wire = self.provider if strike.what is What.CUT_PROVIDER else self.database.wire
        if wire is not None and strike.cut is Cut.REFUSED:
            await wire.refuse(REFUSED * strike.times)
        elif wire is not None:
            wire.arm(strike.cut, strike.times)


@contextlib.contextmanager
def provider_of(place: Place, port: int) -> Iterator[None]:
    """Run the provider, a program of its own."""
    kind = {"remote-lookup": "lookup", "remote-neither": "neither"}.get(place.kind, "keys")
    argv = [sys.executable, "-m", "tests.proof.machine.provider", str(port), str(place.book), kind]
    program = Program(argv, log=place.folder / "provider.log", ready=lambda: listens(port))
    program.start()
    try:
        yield
    finally:
        program.kill()


def clean(number: int, keys: list[str], colour: str, clock: float) -> Life:
    """Make the life of a worker that comes when all is quiet, and asks until it is answered."""
    return Life(number=-1 - number, colour=colour, keys=tuple(keys), fate=Fate.SPARED, clock=clock)
