"""The results as a picture, for the documentation. It needs matplotlib (extra ``dev``)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import matplotlib as mpl
from matplotlib.figure import Figure as Canvas

from benchmarks.pages import EFFECTS, WHERE, Results, sizes
from benchmarks.peers import GROUP as PEERS

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.measuring import Figure

COLOURS: Final = dict(zip(WHERE, ("#1f6fb4", "#9cc6e8", "#b4521f", "#eab892"), strict=True))
"""Those without the disk are lighter."""
SETTINGS: Final = {
    "svg.fonttype": "none",
    "svg.hashsalt": "langgraph-idem",  # the same picture from the same results
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def draw(results: Results, out: Path) -> None:
    """Draw everything onto one picture.

    Args:
        results: What was measured.
        out: The SVG file.

    """
    with mpl.rc_context(SETTINGS):  # type: ignore[arg-type, unused-ignore]  # typed by all its keys
        canvas = Canvas(figsize=(11, 20), layout="constrained")
        grid = canvas.add_gridspec(5, 2, height_ratios=(5, 3, 3, 3, 6))
        _ratios(canvas.add_subplot(grid[0, :]), results)
        for column, name in enumerate(("SQLite", "PostgreSQL")):
            _throughput(canvas.add_subplot(grid[1, column]), results, name, "threads")
            _throughput(canvas.add_subplot(grid[2, column]), results, name, "processes")
        for column, kind in enumerate(("effect", "replay")):
            _growth(canvas.add_subplot(grid[3, column]), results, kind)
        _peers(canvas.add_subplot(grid[4, :]), results)
        canvas.savefig(out, format="svg", metadata={"Date": None})


def _ratios(axes: Any, results: Results) -> None:
    rows = [
        (re.sub(r"\*", "", words), group, name, colour) for words, group, name, colour in EFFECTS
    ]
    labels = []
    for line, (words, group, name, colour) in enumerate(rows):
        labels.append(words if not words.startswith("the same") else f"… {words[10:]}")
        for place, where in enumerate(WHERE):
            figure = results.get(group, name, f"{where}, {colour}")
            if figure is not None:
                _bar(axes, line + (place - 1.5) * 0.2, figure, COLOURS[where])
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    _ratio_axis(axes, "What an effect costs, as a ratio to its baseline; black: the target")
    _legend(axes, list(WHERE), "lower right")


def _bar(axes: Any, line: float, figure: Figure, colour: str) -> None:
    error = [[figure.ratio - figure.sure_low], [figure.sure_high - figure.ratio]]
    shape: Any = {"height": 0.18, "left": 1, "color": colour}
    axes.barh(line, figure.ratio - 1, xerr=error, error_kw={"lw": 0.7}, **shape)
    if figure.target is not None:
        axes.plot([figure.target] * 2, [line - 0.1, line + 0.1], color="black", lw=2)


def _ratio_axis(axes: Any, title: str) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xlim(left=0.7)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.axvline(1, color="grey", lw=0.8)
    axes.set_title(title, loc="left", weight="bold")


def _legend(axes: Any, names: list[str], place: str) -> None:
    handles = [mpl.patches.Patch(color=COLOURS[name], label=name) for name in names]
    axes.legend(handles=handles, loc=place, frameon=False)


def _throughput(axes: Any, results: Results, name: str, unit: str) -> None:
    figures = results.in_group("throughput")
    for where in (where for where in WHERE if where.startswith(name)):
        for candidate, style in (("bare", ":"), ("guarded", "-")):
            points = sorted(
                (int(match[1]), figure.value)
                for figure in figures
                if figure.name == candidate
                and (match := re.fullmatch(rf"{where}, (\d+) {unit}", figure.where))
            )
            label = f"{where}, {candidate}"
            axes.plot(*_split(points), style, marker="o", ms=3, color=COLOURS[where], label=label)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    own = {"threads": "threads of one process", "processes": "processes of four threads"}
    axes.set_xlabel(own[unit])
    axes.set_title(f"Effects per second, {name}", loc="left", weight="bold")
    axes.legend(frameon=False, fontsize=7)


def _split(points: list[tuple[int, float]]) -> tuple[list[int], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


def _growth(axes: Any, results: Results, kind: str) -> None:
    group = f"{kind}, by rows in the ledger"
    for where in WHERE:
        points = [
            (int(re.sub(r"\D", "", name)), figure.value)
            for name in sizes(results, group)
            if (figure := results.get(group, name, f"{where}, sync"))
        ]
        axes.plot(*_split(points), marker="o", ms=3, color=COLOURS[where], label=where)
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("rows in the ledger")
    axes.set_ylabel("µs")
    axes.set_title(f"One {kind}, by rows in the ledger", loc="left", weight="bold")
    axes.legend(frameon=False, fontsize=7)


def _peers(axes: Any, results: Results) -> None:
    names = [
        name
        for name in dict.fromkeys(figure.name for figure in results.in_group(PEERS))
        if not name.startswith("bare")
    ]
    for line, name in enumerate(names):
        for place, where in enumerate(WHERE):
            figure = results.get(PEERS, name, where)
            if figure is not None:
                _bar(axes, line + (place - 1.5) * 0.2, figure, COLOURS[where])
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    _ratio_axis(axes, "Beside other libraries: one effect, as a ratio to the bare transaction")
    _legend(axes, list(WHERE), "upper right")
