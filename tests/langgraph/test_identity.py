"""The table of LangGraph's ids in the docs, held against the LangGraph that is installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.identity import EVENTS, IDS, measured

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "langgraph.md"


def rows() -> dict[str, list[str]]:
    """Read the table: event, then for each id whether it is the same again."""
    lines = PAGE.read_text().splitlines()
    start = next(number for number, line in enumerate(lines) if IDS[0] in line and "|" in line)
    found = {}
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        event, *ids = (cell.strip() for cell in line.strip("|").split("|"))
        found[event] = ids
    return found


def test_the_page_shows_every_event() -> None:
    """The table has the events that are measured, all of them and in their order."""
    assert list(rows()) == list(EVENTS)


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("event", EVENTS)
def test_an_event_keeps_and_changes_the_ids_that_the_page_says(event: str) -> None:
    """A tool that runs again is told what the table says, and its effect has happened twice."""
    assert measured(EVENTS[event]) == rows()[event]
