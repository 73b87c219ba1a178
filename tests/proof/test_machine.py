"""The crash machine finds nothing in the library, and finds what is put there to be found."""

from __future__ import annotations

import asyncio
import json
import os
import resource
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import sqlalchemy as sa
from click.testing import CliRunner

from langgraph_idem import Effect, Ledger, LedgerError
from tests.proof.machine import checker, evidence, plan, shop
from tests.proof.machine.__main__ import main
from tests.proof.machine.journal import Journal
from tests.proof.machine.places import Place
from tests.proof.machine.plan import Cell
from tests.proof.machine.rounds import Run, play

KILLS = int(os.environ.get("IDEM_MACHINE_KILLS", "25"))
"""Over the five kinds of effect, on each database."""


# --- short runs -----------------------------------------------------------------------------------


def check(database: str) -> None:
    """Run the machine on one database and expect nothing."""
    report = asyncio.run(play(Run(seed=1, kills=KILLS, databases=(database,))))
    if not report.tallies:
        pytest.skip("; ".join(report.left_out))
    assert not report.violations, report.in_words()
    assert report.total["kills"] == KILLS
    assert report.total["cut off"] > 0  # or the kills came when nothing was under way
    assert report.total["effects"] > KILLS


@pytest.mark.slow
@pytest.mark.timeout(120 + 6 * KILLS)
def test_nothing_is_violated_on_sqlite() -> None:
    """Kills, freezes, full disks and wrong clocks leave every effect done once, on SQLite."""
    check("sqlite")


@pytest.mark.slow
@pytest.mark.server("postgresql")
@pytest.mark.timeout(120 + 6 * KILLS)
def test_nothing_is_violated_on_postgresql() -> None:
    """So do cut connections and crashes of the server, on PostgreSQL."""
    check("postgresql")


@pytest.mark.slow
@pytest.mark.server("mariadb")
@pytest.mark.timeout(120 + 6 * KILLS)
def test_nothing_is_violated_on_mariadb() -> None:
    """So do cut connections and crashes of the server, on MariaDB."""
    check("mariadb")


# --- it can fail ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("broken", "kind", "found"),
    [
        ("no-claim", "transactional", "twice"),
        ("result-alone", "transactional", "stuck"),
        ("unasked", "remote-lookup", "twice"),
        ("unasked", "remote-neither", "twice"),
        ("forgotten", "remote-neither", "twice"),
    ],
)
def test_a_broken_guarantee_is_found_within_a_few_kills(broken: str, kind: str, found: str) -> None:
    """With a guarantee taken out of the library, some twenty kills are enough to see it."""
    run = Run(seed=1, kills=20, databases=("sqlite",), kinds=(kind,), broken=broken)
    violations = asyncio.run(play(run)).violations
    assert any(f": {found}: " in violation for violation in violations), violations


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_violation_is_told_with_the_way_to_replay_it(tmp_path: Path) -> None:
    """The program ends with 1, names the seed, and prints the command that runs the round again."""
    report = tmp_path / "report.json"
    options = ["--seed", "3", "--kills", "3", "--database", "sqlite", "--kind", "transactional"]
    ended = CliRunner().invoke(main, [*options, "--break", "no-claim", "--report", str(report)])
    assert ended.exit_code == 1, ended.output
    again = "--seed 3 --kills 3 --database sqlite --kind transactional --colour both --round 0"
    assert f"python -m tests.proof.machine {again}" in ended.output
    told = json.loads(report.read_text())
    assert told["seed"] == 3
    assert told["violations"]


@dataclass
class World:
    """A small world in which all is well, for tests to spoil.

    Attributes:
        place: Where it is.
        orders: What was shipped there.

    """

    place: Place
    orders: tuple[str, ...]

    def run(self, sql: str) -> None:
        """Spoil the database."""
        engine = sa.create_engine(self.place.direct, poolclass=sa.NullPool)
        with engine.begin() as conn:
            conn.exec_driver_sql(sql)

    def violations(self) -> list[str]:
        """Check it."""
        found = evidence.read(self.place)
        found.called = {f"ship {order}" for order in self.orders}
        return checker.violations(found)


@pytest.fixture
def world(tmp_path: Path, sqlite_url: str) -> World:
    """Three orders, shipped and answered."""
    place = Place("transactional", sqlite_url, sqlite_url, "", 0, tmp_path)
    shop.open_shop(sqlite_url)
    orders, journal = ("O-0001", "O-0002", "O-0003"), Journal(tmp_path, "0000")
    with Ledger(sqlite_url) as ledger:
        ship = shop.shipping(ledger, "sync")
        for order in orders:
            journal.asked(f"ship {order}")
            journal.result(f"ship {order}", ship(order).number)
    return World(place, orders)


def test_a_world_in_which_all_is_well_passes(world: World) -> None:
    """The checker has nothing to say where every effect is done, recorded and answered once."""
    assert world.violations() == []
    assert checker.violations_at_rest(evidence.read(world.place)) == []


AGAIN = "insert into shipments (order_id, filler) values ('O-0002', '')"
GONE = "delete from shipments where order_id = 'O-0002'"
UNRECORDED = "delete from idem_effects where key = 'O-0002'"


def becomes(state: str) -> str:
    """Write the SQL that puts the second order's record into another state."""
    return f"update idem_effects set state = '{state}' where key = 'O-0002'"


@pytest.mark.parametrize(
    ("sql", "found"),
    [
        (AGAIN, "twice: ship O-0002"),
        (GONE, "phantom: ship O-0002"),
        (GONE, "lost: ship O-0002"),
        (UNRECORDED, "unrecorded: ship O-0002"),
        (UNRECORDED, "answer lost: ship O-0002"),
        (becomes("claimed"), "stuck: the ledger has ship O-0002 as claimed"),
        (becomes("unknown"), "stuck: the ledger has ship O-0002 as unknown"),
        (
            """update idem_effects set result = '{"number": 77}' where key = 'O-0002'""",
            "wrong answer: ship O-0002",
        ),
        ("update stock set units = units - 1 where shelf = 0", "stock: 4 units are gone"),
    ],
)
def test_what_is_spoilt_is_found(world: World, sql: str, found: str) -> None:
    """A row too many or too few, a record that is stuck or differs: each is told by its name."""
    world.run(sql)
    assert any(told.startswith(found) for told in world.violations()), world.violations()


@pytest.mark.parametrize("sql", [GONE, UNRECORDED, becomes("claimed"), becomes("unknown")])
def test_half_an_effect_is_seen_at_any_moment(world: World, sql: str) -> None:
    """While others are at work, too, a row without its record, or the reverse, is seen."""
    assert evidence.apart(world.place) == []
    world.run(sql)
    (told,) = evidence.apart(world.place)
    assert told.startswith("O-0002 has the row")


@pytest.mark.parametrize(
    ("sql", "found"),
    [
        (AGAIN, "twice: ship O-0002"),
        (GONE, "apart: ship O-0002"),
        (UNRECORDED, "apart: ship O-0002"),
        (becomes("claimed"), "visible: the transactional claim of ship O-0002"),
        (becomes("unknown"), "unfounded: ship O-0002"),
        (becomes("failed"), "refused: ship O-0002"),
    ],
)
def test_what_is_spoilt_is_found_before_anybody_mends_it(
    world: World, sql: str, found: str
) -> None:
    """Right after the last kill, too, rows and records of transactional effects agree."""
    world.run(sql)
    told = checker.violations_at_rest(evidence.read(world.place))
    assert any(violation.startswith(found) for violation in told), told


SPOILT_ANSWERS: dict[str, Callable[[Journal], None]] = {
    "wrong answer: ship O-0001 gave 0001 99": lambda told: told.result("ship O-0001", 99),
    "answer lost: ship O-0009 gave 0001 9": lambda told: told.result("ship O-0009", 9),
    "error: ship O-0001 gave 0001 KeyError": lambda told: told.error("ship O-0001", KeyError()),
}


@pytest.mark.parametrize("found", SPOILT_ANSWERS)
def test_an_answer_that_is_not_the_recorded_one_is_found(
    world: World, tmp_path: Path, found: str
) -> None:
    """An answer that differs, one that nobody recorded, an error that nobody should get."""
    SPOILT_ANSWERS[found](Journal(tmp_path, "0001"))
    assert any(told.startswith(found) for told in world.violations()), world.violations()


def test_the_drivers_error_is_for_those_whose_tools_use_the_database(
    world: World, tmp_path: Path
) -> None:
    """Where no tool and no checkpointer touches the database, its errors come as LedgerError."""
    Journal(tmp_path, "0001").error("ship O-0001", sa.exc.OperationalError("", {}, OSError()))
    found = evidence.read(world.place)
    assert checker.violations(found) == []
    found.shows_database = False
    (told,) = checker.violations(found)
    assert told.startswith("error: ship O-0001 gave 0001 OperationalError")


def test_an_unknown_outcome_is_founded_where_an_answer_was_lost(
    world: World, tmp_path: Path
) -> None:
    """UNKNOWN is no violation before the quiet where a call never came back."""
    world.run("update idem_effects set kind = 'remote', state = 'unknown' where key = 'O-0002'")
    told = checker.violations_at_rest(evidence.read(world.place))
    assert any("unfounded" in violation for violation in told)
    Journal(tmp_path, "0001").asked("ship O-0002")
    told = checker.violations_at_rest(evidence.read(world.place))
    assert not any("unfounded" in violation for violation in told)


def test_a_run_that_stands_still_and_a_worker_that_fails_are_found(world: World) -> None:
    """An agent's run that is not through, and a worker that ends by itself, are violations."""
    found = evidence.read(world.place)
    found.unfinished, found.accidents = {"O-0001": "RUNNING"}, ["worker 0001 ended with 1"]
    found.recorded_twice, found.settled_by_person = ["ship O-0001"], 1
    assert checker.violations(found) == [
        "unfinished: the run O-0001 stands at RUNNING",
        "left to a person: 1 effects that could be found out about",
        "recorded twice: ship O-0001",
        "accident: worker 0001 ended with 1",
    ]


# --- the seed -------------------------------------------------------------------------------------

CELLS = [
    Cell(database, kind, colour)
    for database in plan.DATABASES
    for kind in plan.KINDS
    for colour in plan.COLOURS
]


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_a_seed_gives_the_same_schedule(cell: Cell) -> None:
    """Who is killed after how long on which keys follows from seed, field and round alone."""
    lives = plan.schedule(cell, 7, 50)
    assert lives == plan.schedule(cell, 7, 50)
    assert lives != plan.schedule(cell, 8, 50)
    assert sum(life.is_killed for life in lives) == 50
    longer = plan.schedule(cell, 7, 60)
    assert longer[: len(lives)] == lives


def test_kills_are_shared_out_over_all_fields() -> None:
    """No field of the matrix is left out, and no kill is lost in dividing."""
    run = Run(seed=1, kills=1003)
    rounds = [found for database in plan.DATABASES for found in run.rounds(database)]
    assert sum(kills for _cell, kills in rounds) == 1003
    assert {(cell.database, cell.kind) for cell, _kills in rounds} == {
        (database, kind) for database in plan.DATABASES for kind in plan.KINDS
    }


# --- what it has found ----------------------------------------------------------------------------


@pytest.mark.parametrize("full_at", ["the claim", "the outcome"])
def test_a_full_disk_at_commit_is_a_ledger_error(tmp_path: Path, full_at: str) -> None:
    """A commit of the ledger's own that fails is told as every failure of its database is."""
    file = tmp_path / "ledger.db"
    with Ledger(f"sqlite:///{file}") as ledger:
        ledger.setup()

        def fill() -> None:
            size = (tmp_path / "ledger.db-wal").stat().st_size
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

        @ledger.remote(key=("order_id",), operation="charge", on_unknown="raise")
        def charge(effect: Effect, /, order_id: str) -> int:
            fill()
            return 1

        if full_at == "the claim":
            fill()
        try:
            with pytest.raises(LedgerError):
                charge("O-1")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
