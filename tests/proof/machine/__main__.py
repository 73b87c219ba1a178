"""The machine's command line."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import click

from tests.proof.machine.broken import BROKEN
from tests.proof.machine.plan import COLOURS, DATABASES, KINDS, Cell
from tests.proof.machine.rounds import Run, play


@click.command()
@click.option("--kills", default=100, show_default=True, type=click.IntRange(1))
@click.option("--seed", type=int, help="Of the schedule; default: another one each time.")
@click.option("--database", default="all", type=click.Choice([*DATABASES, "all"]))
@click.option("--kind", default="all", type=click.Choice([*KINDS, "all"]))
@click.option("--colour", default="both", type=click.Choice(COLOURS))
@click.option("--round", "first_round", default=0, help="Begin with this round, to replay it.")
@click.option("--report", type=click.Path(path_type=Path), help="A file: .md or .json.")
@click.option("--break", "broken", type=click.Choice(list(BROKEN)), help="See it caught.")
def main(
    kills: int,
    seed: int | None,
    database: str,
    kind: str,
    colour: str,
    first_round: int,
    report: Path | None,
    broken: str | None,
) -> None:
    """Kill workers at random, over and over, and prove that every effect took hold once.

    Exit code 0: nothing was violated. 1: something was, and the report says how to replay it.
    """
    run = Run(
        seed=time.time_ns() % 10**6 if seed is None else seed,
        kills=kills,
        databases=DATABASES if database == "all" else (database,),
        kinds=KINDS if kind == "all" else (kind,),
        colour=colour,
        first_round=first_round,
        broken=broken,
    )
    where = [""]
    bar: Any  # click keeps its type to itself
    with click.progressbar(
        length=kills,
        label=f"seed {run.seed}",
        show_pos=True,
        item_show_func=lambda _item: where[0],
        file=sys.stderr,
    ) as bar:

        def tell(cell: Cell) -> None:
            where[0] = cell.name
            bar.update(1)

        played = asyncio.run(play(run, tell))
    click.echo(played.in_words())
    if not played.tallies:
        raise click.UsageError("nothing was run")
    if report is not None:
        played.save(report)
    sys.exit(1 if played.violations else 0)


if __name__ == "__main__":
    main()
