"""What was measured, as JSON, as tables of everything, and a chart of bars."""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import json
import os
import platform
from dataclasses import fields
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.measuring import Figure

if TYPE_CHECKING:
    from collections.abc import Sequence

WIDTH: Final = 40
"""Characters of the longest bar."""
MANY: Final = 10
"""Figures whose names are too many to be told."""
LONGEST: Final = 4.0
"""Ratio at which a bar ends; what is beyond is marked."""

_PACKAGES: Final = ("langgraph-idem", "sqlalchemy", "langgraph", "psycopg", "aiosqlite")


def machine() -> dict[str, Any]:
    """Say where and when this is."""
    return {
        "date": dt.datetime.now(dt.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "packages": {name: importlib.metadata.version(name) for name in _PACKAGES},
    }


def told(run: dict[str, Any]) -> str:
    """Say it in a sentence."""
    packages = ", ".join(f"{name} {version}" for name, version in run["packages"].items())
    named = run["figures"]
    names = ", ".join(named) if len(named) < MANY else "everything"
    system = f"{run['cores']} cores, load {run['load']} at the start, Python {run['python']}"
    return f"Measured {run['date']}: {names}; {system}; {packages}."


def markdown(figures: Sequence[Figure], runs: Sequence[dict[str, Any]]) -> str:
    """Write the figures as one table for each group, and a chart."""
    lines = [line for run in runs for line in (told(run), "")]
    in_groups = sorted(figures, key=lambda figure: figure.group)  # stable: the rest stays in order
    for group, members in groupby(in_groups, key=lambda figure: figure.group):
        lines += [*_table(group, [*members]), ""]
    return "\n".join([*lines, "```text", chart(in_groups), "```", ""])


def _table(group: str, figures: list[Figure]) -> list[str]:
    head = (
        "| where | candidate | median | ratio to the baseline | 95 % interval | middle half"
        " | target |"
    )
    rows = [_row(figure) for figure in figures]
    return [f"### {group}", "", head, "|---|---|---:|---:|---:|---:|---|", *rows]


def _row(figure: Figure) -> str:
    value = f"{figure.value:,.4g} {figure.unit}"
    if figure.name == figure.baseline:
        return f"| {figure.where} | {figure.name} | {value} | 1 (the baseline) | | | |"
    sure = f"{figure.sure_low:.2f} to {figure.sure_high:.2f}"
    spread = f"{figure.low:.2f} to {figure.high:.2f}"
    ratio = f"**{figure.ratio:.2f}** to {figure.baseline}"
    return (
        f"| {figure.where} | {figure.name} | {value} | {ratio} | {sure} | {spread}"
        f" | {_aim(figure)} |"
    )


def _aim(figure: Figure) -> str:
    if figure.target is None:
        return ""
    sign, word = "≥" if figure.at_least else "≤", "reached" if figure.is_reached else "NOT reached"
    return f"{sign} {figure.target:.3g}: {word}"


def chart(figures: Sequence[Figure]) -> str:
    """Draw the ratios as bars; a mark shows the target, or else the baseline."""
    measured = [
        figure
        for figure in figures
        if not figure.group.startswith("parts") and not figure.group.endswith("counted")
    ]
    shown = [figure for figure in measured if figure.name != figure.baseline]
    names = [f"{f.group}, {f.name} ({f.where})" for f in shown]
    widest = max(map(len, names), default=0)
    bars = zip(names, shown, strict=True)
    return "\n".join(f"{name:<{widest}}  {_bar(f)} {f.ratio:.2f}" for name, f in bars)


def _bar(figure: Figure) -> str:
    length = round(min(figure.ratio, LONGEST) / LONGEST * WIDTH)
    cells = [*("█" * length).ljust(WIDTH)]
    cells[min(WIDTH - 1, round((figure.target or 1.0) / LONGEST * WIDTH))] = "|"
    return "".join(cells) + (">" if figure.ratio > LONGEST else " ")


def write(
    figures: Sequence[Figure], runs: list[dict[str, Any]], missing: list[str], out: Path
) -> None:
    """Write ``<out>.json`` and ``<out>.md``."""
    out.parent.mkdir(parents=True, exist_ok=True)
    in_lines = ",\n".join(
        json.dumps(figure.as_dict()) for figure in figures
    )  # for who reads a diff
    head = json.dumps({"runs": runs, "missing": missing}, indent=1).rstrip("\n}")
    # By suffix, not by with_suffix(): a date has dots of its own in some places.
    Path(f"{out}.json").write_text(f'{head},\n "figures": [\n{in_lines}\n]}}\n')
    not_here = "".join(f"- not measured: {what}\n" for what in missing)
    Path(f"{out}.md").write_text(markdown(figures, runs) + not_here)


def read(path: Path) -> tuple[list[Figure], list[dict[str, Any]]]:
    """Read what ``write`` wrote: the figures, and the runs that they come from."""
    results = json.loads(path.read_text())
    names = {field.name for field in fields(Figure)}
    figures = [
        Figure(**{name: value for name, value in figure.items() if name in names})
        for figure in results["figures"]
    ]
    return figures, results["runs"]


def replaced(before: Sequence[Figure], now: Sequence[Figure]) -> list[Figure]:
    """Put new figures into the place of older ones of the same group and database."""
    anew = {(figure.group, figure.where) for figure in now}
    return [f for f in before if (f.group, f.where) not in anew] + [*now]
