"""``python -m benchmarks``: measure, print tables and a chart, write both to disk."""

from __future__ import annotations

import dataclasses
import logging
import time
import warnings
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from benchmarks import pages, peers, report
from benchmarks.databases import databases
from benchmarks.figures import counted, effects, footprint, graph, growth, load, parts
from benchmarks.measuring import QUICK, Figure, Size

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.databases import Database

    Measure = Callable[[Database, Size], list[Figure]]

FIGURES: Final[dict[str, Measure]] = {
    "counted": counted.counted,
    "transactional": effects.transactional,
    "own-work": effects.own_work,
    "parts": parts.where_time_goes,
    "replay": effects.replay,
    "remote": effects.remote,
    "async": effects.in_async,
    "unguarded-tool": graph.unguarded_tool,
    "throughput": load.throughput,
    "processes": load.processes,
    "hot-key": load.hot_key,
    "ledger-rows": growth.ledger_rows,
    "memory": footprint.memory,
    "import": footprint.import_time,
    "peers": peers.beside_peers,
}
ONCE: Final = frozenset({"unguarded-tool", "import"})
"""What has nothing to do with the kind of database."""
DURABLE_ONLY: Final = frozenset({"counted", "hot-key"})
"""What is not measured without the disk: nothing else would come of it."""
WITHOUT_DISK_ONLY: Final = frozenset({"own-work", "parts", "memory"})
"""What is not about the disk, which would only make it longer."""
RESULTS: Final = Path(__file__).parent / "results"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("names", nargs=-1, type=click.Choice([*FIGURES]))
@click.option("--quick", is_flag=True, help="Small sizes: to see that it runs, not what it costs.")
@click.option("--huge", is_flag=True, help="Measure ledgers of 10^7 rows too (some gigabytes).")
@click.option(
    "--database-url",
    metavar="URL",
    help="A PostgreSQL server to use; databases are made there and dropped.",
)
@click.option("--out", type=click.Path(path_type=Path), help="Where to write, without suffix.")
@click.option("--add", is_flag=True, help="Keep what is there already of other figures.")
@click.option(
    "--publish",
    is_flag=True,
    help="Measure nothing: bring the newest results (or --out) into docs/explanation/speed.md.",
)
def main(
    names: tuple[str, ...],
    *,
    quick: bool,
    huge: bool,
    database_url: str | None,
    out: Path | None,
    add: bool,
    publish: bool,
) -> None:
    """Measure the figures named, or all of them."""
    if publish:
        source = Path(f"{out}.json") if out else pages.newest(RESULTS)
        click.echo(f"written from {source}: {', '.join(pages.publish(source))}")
        return
    size = QUICK if quick else Size()
    if huge:
        size = dataclasses.replace(size, rows=(*size.rows, 10**7))
    warnings.simplefilter("ignore")  # some peers leave connections behind
    logging.getLogger("asyncpg").setLevel(logging.CRITICAL)  # one looks for a database that is gone
    out = out or RESULTS / f"{datetime.now(timezone.utc):%Y-%m-%d}{'-quick' if quick else ''}"
    measure(names or [*FIGURES], size, database_url, out, add=add)
    click.echo(Path(f"{out}.md").read_text())
    click.echo(f"written: {out}.md and {out}.json", err=True)


def measure(
    names: Sequence[str], size: Size, database_url: str | None, out: Path, *, add: bool
) -> None:
    """Measure, and write after each figure: a run that is broken off leaves what it has."""
    figures, runs = report.read(Path(f"{out}.json")) if add else ([], [])
    run: dict[str, Any] = {**report.machine(), "figures": [*names]}
    missing = peers.missing() if "peers" in names else []
    if "peers" in names:
        run["packages"] |= peers.versions()
    began = time.monotonic()
    with databases(database_url) as found:
        if not any(database.name == "PostgreSQL" for database in found):
            missing.append("PostgreSQL (give --database-url, or install its server binaries)")
        for name in names:
            for database in where(name, found):
                minutes = (time.monotonic() - began) / 60
                click.echo(f"{minutes:5.1f} min: {name}, {database.where} ...", err=True)
                figures = report.replaced(figures, FIGURES[name](database, size))
                run["minutes"] = round((time.monotonic() - began) / 60, 1)
                report.write(figures, [*runs, run], missing, out)


def where(name: str, found: Sequence[Database]) -> list[Database]:
    """Choose the databases on which a figure says something."""
    if name in ONCE:
        return [*found[:1]]
    if name in DURABLE_ONLY:
        return [database for database in found if database.is_durable]
    if name in WITHOUT_DISK_ONLY:
        return [database for database in found if not database.is_durable] or [*found]
    return [*found]


if __name__ == "__main__":
    main()
