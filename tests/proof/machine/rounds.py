"""One round: chaos, then quiet, then the count; and all rounds of a run."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Final

from langgraph_idem import Ledger, create_react_agent
from langgraph_idem.testing import ScriptedChatModel
from tests.proof.machine import checker, evidence, plan, provider, shop
from tests.proof.machine.chaos import HANG, Chaos, Worker, clean, provider_of
from tests.proof.machine.evidence import Evidence
from tests.proof.machine.places import Database, Place, database
from tests.proof.machine.plan import Cell
from tests.proof.machine.report import Report, Tally
from tests.proof.machine.wires import Wire
from tests.support.databases import ServerMissingError
from tests.support.remotes.serving import free_port

MOST_KILLS: Final = 100
"""Of one round: then a fresh database is taken."""
PERSON: Final = "a person who looked"

Tell = Callable[[Cell], None]


@dataclass(frozen=True)
class Run:
    """What is wanted.

    Attributes:
        seed: Of all schedules.
        kills: How many, over all cells.
        databases: Which of ``plan.DATABASES``.
        kinds: Which of ``plan.KINDS``.
        colour: One of ``plan.COLOURS``.
        first_round: Number of the first round of each cell, to replay a later one alone.
        broken: A guarantee to be taken out of the library.

    """

    seed: int
    kills: int
    databases: tuple[str, ...] = plan.DATABASES
    kinds: tuple[str, ...] = plan.KINDS
    colour: str = "both"
    first_round: int = 0
    broken: str | None = None

    def rounds(self, name: str) -> Iterator[tuple[Cell, int]]:
        """List the rounds on one database, with the kills of each."""
        fields = list(product(self.databases, self.kinds))
        for index, (where, kind) in enumerate(fields):
            kills = self.kills // len(fields) + (index < self.kills % len(fields))
            for number, start in enumerate(range(0, kills, MOST_KILLS), self.first_round):
                if where == name:
                    yield Cell(where, kind, self.colour, number), min(MOST_KILLS, kills - start)


async def play(run: Run, tell: Tell = lambda _cell: None) -> Report:
    """Play all rounds, one after the other."""
    report = Report(run.seed)
    for name in run.databases:
        try:
            async with database(name) as there:
                report.left_out += _left_out(name, there)
                for cell, kills in run.rounds(name):
                    report.tallies.append(await _round(run, cell, kills, there, tell))
        except ServerMissingError as missing:
            report.left_out.append(str(missing))
    return report


def _left_out(name: str, there: Database) -> list[str]:
    if there.disk is not None:
        return []
    if name == "sqlite":
        return [
            "no small disk could be mounted: a limit on the size of files stands for a full one"
        ]
    return [f"full disks on {name}"]


async def _round(run: Run, cell: Cell, kills: int, there: Database, tell: Tell) -> Tally:
    tally, began = Tally(cell), time.monotonic()
    tally.detail["kills asked for"] = kills
    lives = plan.schedule(cell, run.seed, kills)
    with _folder() as folder:
        async with _place(cell, there, folder, run.broken) as (place, wire):
            chaos = Chaos(cell, place, there, wire, tally, lambda: tell(cell))
            watching = asyncio.ensure_future(chaos.watch())
            await chaos.run(lives)
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching
            chaos.calm()
            at_rest = evidence.read(place)
            found = await _quiet(place, cell, plan.all_keys(lives))
            found.accidents += chaos.accidents
        tally.violations += [f"at rest: {told}" for told in checker.violations_at_rest(at_rest)]
        tally.violations += checker.violations(found)
        if tally.violations and run.broken is None:
            _keep(folder, tally, found)
    _count(tally, found, there, wire)
    tally.seconds = time.monotonic() - began
    return tally


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="idem_machine_"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def _keep(folder: Path, tally: Tally, found: Evidence) -> None:
    """Keep what the workers wrote, for whoever wants to know how it came to this."""
    (folder / "evidence.json").write_text(json.dumps(asdict(found), default=sorted, indent=1))
    kept = shutil.copytree(folder, f"{folder}_kept")
    tally.violations.append(f"kept: what the workers wrote is in {kept}")


@contextlib.asynccontextmanager
async def _place(
    cell: Cell, there: Database, folder: Path, broken: str | None
) -> AsyncIterator[tuple[Place, Wire | None]]:
    """Open a fresh database, and a provider behind a wire where one is needed."""
    with there.fresh(folder) as (url, direct, checkpoints), contextlib.ExitStack() as stack:
        wire = None
        if cell.kind != "transactional":
            wire = Wire(free_port())
            await wire.open()
        port = wire.port if wire else 0
        place = Place(cell.kind, url, direct, checkpoints, port, folder, broken)
        await asyncio.to_thread(_open, place)
        if wire:
            stack.enter_context(provider_of(place, wire.upstream))
        try:
            yield place, wire
        finally:
            if wire:
                await wire.close()


def _open(place: Place) -> None:
    from tests.proof.machine.workers import saver_of

    shop.open_shop(place.direct)
    if place.kind == "agent":
        with saver_of(place) as saver:
            saver.setup()


async def _quiet(place: Place, cell: Cell, keys: list[str]) -> Evidence:
    """Let clean workers call every key until all are settled, and a person where nobody knows."""
    operations = {"transactional": ("ship",), "agent": ("ship", "charge")}
    accidents = await _clean_workers(place, cell, keys, 0)
    await asyncio.to_thread(_settle, place)
    accidents += await _clean_workers(place, cell, keys, 1)
    found = await asyncio.to_thread(evidence.read, place)
    found.accidents += accidents
    named = operations.get(cell.kind, ("charge",))
    found.called = {f"{operation} {key}" for operation in named for key in keys}
    if cell.kind == "agent":
        found.unfinished = await asyncio.to_thread(_unfinished, place, keys)
    return found


async def _clean_workers(place: Place, cell: Cell, keys: list[str], turn: int) -> list[str]:
    """Let one of each colour call all keys, at once and in different orders."""
    colours = ("sync", "async") if cell.colour == "both" else (cell.colour,) * 2
    workers = []
    for number, colour in enumerate(colours):
        ordered = keys if number else keys[::-1]
        life = clean(number, ordered, colour, plan.latest_clock(cell) + turn)
        workers.append(Worker(place, life, f"clean-{turn}-{number}"))
    accidents = []
    for worker in workers:
        if not await worker.ended(HANG + len(keys)):
            await worker.killed()
        if worker.exit_code != 0:
            accidents.append(f"worker {worker.name} hung or failed: {worker.exit_code}")
    return accidents


def _settle(place: Place) -> None:
    """Do what a person does: look at the provider, and say what is true."""
    happened = {entry["key"]: entry for entry in provider.read(place.book)}
    done = {entry["order_id"]: entry["number"] for entry in happened.values()}
    with Ledger(place.direct) as ledger:
        for record in ledger.effects(state="unknown"):
            number = done.get(record.key)
            result = None if number is None else {"order_id": record.key, "number": number}
            outcome = "released" if number is None else "succeeded"
            ledger.resolve(record.operation, record.key, outcome, result=result, by=PERSON)


def _unfinished(place: Place, keys: list[str]) -> dict[str, str]:
    """Say which runs are not through, by their checkpoints."""
    from tests.proof.machine.workers import saver_of

    standing: dict[str, str] = {}
    with saver_of(place) as saver, Ledger(place.direct) as ledger:
        agent = create_react_agent(ScriptedChatModel([]), [], ledger=ledger, checkpointer=saver)
        for key in keys:
            state = agent.get_state({"configurable": {"thread_id": key}})
            status = str(state.values.get("status"))
            if state.next or status != "COMPLETED":
                standing[key] = f"{status}, next {state.next}"
    return standing


def _count(tally: Tally, found: Evidence, there: Database, wire: Wire | None) -> None:
    answers = [answer for answered in found.answers.values() for answer in answered]
    tally.counts["effects"] = sum(map(len, found.happened.values()))
    tally.counts["cut off"] = found.cut_off
    tally.counts["answers"] = sum(answer.is_result for answer in answers)
    tally.counts["errors"] = len(answers) - tally.counts["answers"]
    tally.counts["settled by a person"] = found.settled_by_person
    tally.detail.update(answer.error[0] for answer in answers if answer.error)
    for struck in filter(None, (there.wire, wire)):
        tally.counts["cut wires"] += struck.cuts.total()
        tally.detail.update(struck.cuts)
        struck.cuts.clear()
