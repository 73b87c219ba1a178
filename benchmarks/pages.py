"""What the documentation shows of the results: nobody copies a figure by hand.

In ``docs/explanation/speed.md`` a table stands between two comments, by whose name it is made anew.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks import report
from benchmarks.figures.parts import PARTS
from benchmarks.peers import GROUP as PEERS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from benchmarks.measuring import Figure

PAGE: Final = Path(__file__).parents[1] / "docs" / "explanation" / "speed.md"
PLOT: Final = PAGE.with_suffix(".svg")
WHERE: Final = (
    "SQLite",
    "SQLite without the disk",
    "PostgreSQL",
    "PostgreSQL without the disk",
)
EFFECTS: Final = (
    ("transactional effect / bare transaction", "transactional effect", "guarded", "sync"),
    ("the same, through a Session", "transactional effect", "guarded, Session", "sync"),
    ("the same, async", "transactional effect", "guarded", "async"),
    ("*a row by hand in SQLAlchemy Core*", "transactional effect", "by hand", "sync"),
    ("*bare transaction / itself*", "transactional effect", "bare, again", "sync"),
    ("replay / one read by primary key", "replay", "replay", "sync"),
    ("the same, async", "replay", "replay", "async"),
    (
        "effect and replay in turn / bare transaction and read",
        "effect and replay in turn",
        "guarded",
        "sync",
    ),
    ("remote effect / two bare commits", "remote effect", "guarded", "sync"),
    ("the same, async", "remote effect", "guarded", "async"),
)
"""Words, group, candidate, colour."""
PROMISES: Final = {
    "langgraph-idem, transactional": "one commit with your rows",
    "by hand, the same transaction": "one commit with your rows",
    "agent-ledger, tx=": "one commit with your rows",
    "DBOS, workflow + datasource transaction": "one commit with your rows; the workflow comes back",
    "DBOS, datasource transaction within a workflow": "the same; the workflow's own cost left out",
    "DBOS, workflow + step": "a record after yours; the workflow comes back",
    "DBOS, step within a workflow": "the same; the workflow's own cost left out",
}
CLAIM_AND_RECORD: Final = "a claim and a record around yours"
NO_FSYNC: Final = frozenset({"airlock-sdk", "exactly-once"})
"""Whose file on SQLite does not wait for the disk, so that a power cut can lose a record."""
_MARKED: Final = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


class Results:
    """The figures, to be asked for."""

    def __init__(self, figures: Iterable[Figure], runs: Sequence[dict[str, Any]]) -> None:
        self.runs = runs
        self.all = [*figures]
        self._named = {(f.group, f.name, f.where, f.unit): f for f in self.all}
        self._any_unit = {(f.group, f.name, f.where): f for f in self.all}

    def get(self, group: str, name: str, where: str, unit: str | None = None) -> Figure | None:
        """Return a figure; None if it was not measured."""
        if unit is not None:
            return self._named.get((group, name, where, unit))
        return self._any_unit.get((group, name, where))

    def in_group(self, group: str) -> list[Figure]:
        """Return a group's figures."""
        return [figure for figure in self.all if figure.group == group]


def newest(folder: Path) -> Path:
    """Find the newest results that are no trial."""
    return max(path for path in folder.glob("*.json") if not path.stem.endswith("-quick"))


def publish(source: Path) -> list[str]:
    """Write the page's tables and the plot anew; return what was written."""
    from benchmarks import plot  # matplotlib is not needed to measure

    results = Results(*report.read(source))
    PAGE.write_text(filled(PAGE.read_text(), results))
    plot.draw(results, PLOT)
    return [str(PAGE), str(PLOT)]


def filled(page: str, results: Results) -> str:
    """Return the page with its tables made anew."""
    return _MARKED.sub(lambda found: f"{found[1]}\n{TABLES[found[2]](results)}\n\n{found[3]}", page)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    aligned = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, aligned, *rows))


def _ratio(figure: Figure | None) -> str:
    """Tell a ratio and its interval; one that misses its target is bold."""
    if figure is None:
        return ""
    ratio = f"{figure.ratio:.2f}" if figure.is_reached is not False else f"**{figure.ratio:.2f}**"
    return f"{ratio} ({figure.sure_low:.2f} to {figure.sure_high:.2f})"


def _target(figures: Sequence[Figure | None]) -> str:
    targets = {f"{'≥' if f.at_least else '≤'} {f.target:g}" for f in figures if f and f.target}
    return ", ".join(sorted(targets))


def _micro(figure: Figure | None) -> str:
    return "" if figure is None else f"{figure.value:,.0f}"


def _run(results: Results) -> str:
    return "\n\n".join(report.told(run) for run in results.runs)


def _counted(results: Results) -> str:
    units = ("commits", "statements", "round trips")

    def cells(words: str, group: str, value: Callable[[Figure], float]) -> list[str]:
        found = [results.get(f"{group}, counted", "guarded", "PostgreSQL", unit) for unit in units]
        return [words, *(f"{value(figure):g}" if figure else "" for figure in found)]

    pairs = (
        ("bare transaction of two statements", "**transactional effect**", "transactional effect"),
        ("one read by primary key", "**replay**", "replay"),
        (
            "bare transaction and one read",
            "**effect and replay in turn**",
            "effect and replay in turn",
        ),
        (
            "two bare commits of one statement each",
            "**remote effect**, without your request",
            "remote effect",
        ),
    )
    rows = []
    for bare, guarded, group in pairs:
        rows.append(cells(bare, group, lambda figure: figure.baseline_value))
        rows.append(cells(guarded, group, lambda figure: figure.value))
    return _table(["", "commits", "statements", "round trips to PostgreSQL"], rows)


def _effects(results: Results) -> str:
    rows = []
    for words, group, name, colour in EFFECTS:
        found = [results.get(group, name, f"{where}, {colour}") for where in WHERE]
        rows.append([words, *map(_ratio, found), _target(found)])
    rows.append(_tool(results))
    return _table(["ratio to its baseline", *WHERE, "target"], rows)


def _tool(results: Results) -> list[str]:
    found = [
        results.get("unguarded tool", "IdempotentToolNode", colour) for colour in ("sync", "async")
    ]
    words = "an unguarded tool in our node / in LangGraph's: sync, async"
    return [words, *map(_ratio, found), "", "", _target(found)]


def _times(results: Results) -> str:
    rows = []
    for words, group, name in (
        ("bare transaction", "transactional effect", "bare"),
        ("a row by hand", "transactional effect", "by hand"),
        ("**transactional effect**", "transactional effect", "guarded"),
        ("one read by primary key", "replay", "one read"),
        ("**replay**", "replay", "replay"),
        ("two bare commits", "remote effect", "two commits"),
        ("**remote effect**", "remote effect", "guarded"),
    ):
        found = (results.get(group, name, f"{where}, sync") for where in WHERE)
        rows.append([words, *map(_micro, found)])
    return _table(["median, µs", *WHERE], rows)


def _own_work(results: Results) -> str:
    rows = []
    for words, group, name in (
        ("bare transaction", "own work of a transactional effect", "bare"),
        ("a row by hand", "own work of a transactional effect", "by hand"),
        ("**transactional effect**", "own work of a transactional effect", "guarded"),
        ("one read by primary key", "own work of a replay", "one read"),
        ("**replay**", "own work of a replay", "replay"),
    ):
        found = [results.get(group, name, f"{where}, sync") for where in WHERE[1::2]]
        ratios = [f"{f.value:,.0f} ({f.ratio:.2f})" if f else "" for f in found]
        rows.append([words, *ratios])
    return _table(["median, µs (ratio to bare)", *WHERE[1::2]], rows)


def _parts(results: Results) -> str:
    kinds = ("bare transaction", "transactional effect", "replay")
    columns = [(kind, where) for where in WHERE[1::2] for kind in kinds]
    found = {
        part: [results.get(f"parts of a {kind}", part, where) for kind, where in columns]
        for part in PARTS
    }
    rows = [[part, *map(_micro, figures)] for part, figures in found.items()]
    last = next(iter(found.values()))
    rows.append(["all", *(f"{f.baseline_value:,.0f}" if f else "" for f in last)])
    head = [f"{where.split()[0]}: {kind}" for kind, where in columns]
    return _table(["µs", *head], rows)


def _throughput(results: Results) -> str:
    rows = []
    for unit in ("threads", "processes"):
        for number in _numbers(results, "throughput", unit):
            found = [
                results.get("throughput", "guarded", f"{where}, {number} {unit}") for where in WHERE
            ]
            rates = [f"{f.value:,.0f}: {_ratio(f)}" if f else "" for f in found]
            words = f"{number} {unit}" + (" of 4 threads" if unit == "processes" else "")
            rows.append([words, *rates, _target(found)])
    return _table(["effects per second: ratio to bare", *WHERE, "target"], rows)


def _numbers(results: Results, group: str, unit: str) -> list[int]:
    found = (re.search(rf", (\d+) {unit}", figure.where) for figure in results.in_group(group))
    return sorted({int(match[1]) for match in found if match})


def sizes(results: Results, group: str) -> list[str]:
    """Name the sizes of the ledger that were measured, the smallest first."""
    names = {figure.name for figure in results.in_group(group)}
    return sorted(names, key=lambda name: int(re.sub(r"\D", "", name)))


def _growth(results: Results) -> str:
    rows = []
    for words, group in (
        ("effect", "effect, by rows in the ledger"),
        ("replay", "replay, by rows in the ledger"),
    ):
        for name in sizes(results, group):
            found = [results.get(group, name, f"{where}, sync") for where in WHERE]
            told = [
                _micro(f) + (f": {_ratio(f)}" if f and f.name != f.baseline else "") for f in found
            ]
            rows.append([f"{words}, {name}", *told, _target(found)])
    return _table(["median, µs: ratio to the smallest", *WHERE, "target"], rows)


def _peers(results: Results) -> str:
    names = dict.fromkeys(figure.name for figure in results.in_group(PEERS))
    rows = []
    for name in names:
        found = [results.get(PEERS, name, where) for where in WHERE]
        told = [f"{_micro(f)}: {f.ratio:.2f}" if f else "" for f in found]
        is_bare = name.startswith("bare")
        promise = "" if is_bare else PROMISES.get(name, CLAIM_AND_RECORD)
        promise += "; its SQLite file without fsync" if name in NO_FSYNC else ""
        ours = f"**{name}**" if name.startswith("langgraph-idem") else name
        rows.append([ours, *told, promise])
    return _table(["median, µs: ratio to bare", *WHERE, "promise"], rows)


def _rest(results: Results) -> str:
    rows = []
    for figure in results.all:
        if figure.name == figure.baseline:
            continue
        if figure.group.startswith(("one hot key", "memory", "import")):
            value, beside = (
                f"{v:,.3g} {figure.unit}" for v in (figure.value, figure.baseline_value)
            )
            rows.append(
                [f"{figure.group}: {figure.name}", figure.where, value, beside, _ratio(figure)]
            )
    return _table(["", "where", "median", "baseline", "ratio"], rows)


TABLES: Final[dict[str, Callable[[Results], str]]] = {
    "run": _run,
    "counted": _counted,
    "effects": _effects,
    "times": _times,
    "own_work": _own_work,
    "parts": _parts,
    "throughput": _throughput,
    "growth": _growth,
    "peers": _peers,
    "rest": _rest,
}
