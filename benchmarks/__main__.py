"""``python -m benchmarks``: measure, print a table and a chart, write both to disk."""

from __future__ import annotations

import dataclasses
import warnings
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from benchmarks import peers, report
from benchmarks.databases import databases
from benchmarks.figures import counted, effects, footprint, graph, growth, load
from benchmarks.measuring import QUICK, Figure, Size

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.databases import Database

    Measure = Callable[[Database, Size], list[Figure]]

FIGURES: Final[dict[str, Measure]] = {
    "counted": counted.counted,
    "transactional": effects.transactional,
    "own-work": effects.own_work,
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
RESULTS: Final = Path(__file__).parent / "results"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("names", nargs=-1, type=click.Choice([*FIGURES]))
@click.option("--quick", is_flag=True, help="Small sizes: to see that it runs, not what it costs.")
@click.option("--huge", is_flag=True, help="Measure a ledger of 10^7 rows too (some gigabytes).")
@click.option(
    "--database-url",
    metavar="URL",
    help="A PostgreSQL server to use; a database is made there and dropped.",
)
@click.option("--out", type=click.Path(path_type=Path), help="Where to write, without suffix.")
def main(
    names: tuple[str, ...], *, quick: bool, huge: bool, database_url: str | None, out: Path | None
) -> None:
    """Measure the figures named, or all of them."""
    size = QUICK if quick else Size()
    if huge:
        size = dataclasses.replace(size, rows=(*size.rows, 10**7))
    warnings.simplefilter("ignore", ResourceWarning)  # some peers leave connections behind
    out = out or RESULTS / f"{datetime.now(timezone.utc):%Y-%m-%d}{'-quick' if quick else ''}"
    about, figures = report.machine(), list[Figure]()
    missing = peers.missing() if "peers" in (names or FIGURES) else []
    with databases(database_url) as found:
        if len(found) == 1:
            missing.append("PostgreSQL (give --database-url, or install its server binaries)")
        for name in names or FIGURES:
            for database in found[:1] if name in ONCE else found:
                click.echo(f"{name}, {database.name} ...", err=True)
                figures += FIGURES[name](database, size)
                report.write(figures, about, missing, out)  # a run that is broken off leaves this
    click.echo(Path(f"{out}.md").read_text())
    click.echo(f"written: {out}.md and {out}.json", err=True)


if __name__ == "__main__":
    main()
