"""The benchmarks still run, and they count what the documentation says. Nothing is timed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import pages, plot, report
from benchmarks.__main__ import FIGURES, where
from benchmarks.databases import Database
from benchmarks.measuring import TINY, interval, quartiles

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What ``python -m benchmarks counted --quick`` writes."""
    out = tmp_path_factory.mktemp("bench") / "counted"
    command = [sys.executable, "-m", "benchmarks", "counted", "--quick", "--out", str(out)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    figures: list[dict[str, Any]] = json.loads(Path(f"{out}.json").read_text())["figures"]
    return figures


@pytest.mark.parametrize(
    ("group", "commits", "statements"),
    [("transactional effect", 1, 4), ("replay", 0, 2), ("remote effect", 2, 2)],
)
def test_what_an_effect_consists_of(
    counted: list[dict[str, Any]], group: str, commits: int, statements: int
) -> None:
    """A transactional effect is one commit and two statements more, a replay none, a remote two."""
    found = [figure for figure in counted if figure["group"] == f"{group}, counted"]
    assert {figure["where"] for figure in found} >= {"SQLite"}
    for figure in found:
        if figure["unit"] == "commits":
            assert figure["value"] == commits, figure
        if figure["unit"] == "statements":
            assert 0 < figure["value"] <= statements, figure


MAY_BE_NONE = {"commits", "statements", "µs, sampled"}


def runs(name: str, url: str) -> None:
    """Measure one figure wherever it is measured, in the smallest size, and read the result."""
    kind = "SQLite" if url.startswith("sqlite") else "PostgreSQL"
    both = [Database(kind, url), Database(kind, url, is_durable=False)]
    for database in where(name, both)[:1]:
        figures = FIGURES[name](database, TINY)
        assert figures
        assert all(figure.value > 0 or figure.unit in MAY_BE_NONE for figure in figures)
        assert all(figure.sure_low <= figure.ratio <= figure.sure_high for figure in figures)


QUICKLY = [name for name in FIGURES if name != "import"]
"""All but what compiles every module of the environment, which takes longer than the rest."""


@pytest.mark.parametrize("name", QUICKLY)
def test_every_figure_is_measured_on_sqlite(name: str, sqlite_url: str) -> None:
    """Each benchmark runs from its beginning to its end, and has something to tell."""
    runs(name, sqlite_url)


@pytest.mark.parametrize("name", [name for name in QUICKLY if name not in {"peers", "processes"}])
def test_every_figure_is_measured_on_postgresql(name: str, postgresql_url: str) -> None:
    """Likewise, where the database is a server."""
    runs(name, postgresql_url)


def test_the_interval_holds_the_median() -> None:
    """Of a hundred values the middle twenty hold the median in 19 of 20 repetitions."""
    values = [float(number) for number in range(100)]
    assert interval(values) == (40, 59)
    assert interval(values[:4]) == (0, 3)
    assert quartiles(values) == (24.75, 74.25)
    assert quartiles([2.0]) == (2, 2)


def test_the_page_shows_the_newest_results() -> None:
    """Every table of the page on speed is made from the results that are here, none by hand."""
    results = pages.Results(*report.read(pages.newest(ROOT / "benchmarks" / "results")))
    page = pages.PAGE.read_text()
    for name in pages.TABLES:
        assert f"<!-- table: {name} -->" in page
    assert pages.filled(page, results) == page, "run: python -m benchmarks --publish"


def test_the_plot_is_drawn(tmp_path: Path) -> None:
    """The results become a picture that names what was measured, beside whom, and the target."""
    results = pages.Results(*report.read(pages.newest(ROOT / "benchmarks" / "results")))
    plot.draw(results, tmp_path / "speed.svg")
    words = (tmp_path / "speed.svg").read_text()
    for shown in ("transactional effect / bare", "the target", "langgraph-idem, transactional"):
        assert shown in words
    assert "speed.svg" in pages.PAGE.read_text()
    assert pages.PLOT.exists()
