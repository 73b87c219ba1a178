"""The guarantees that can be taken out, by name; trying them all is left to a run of its own."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

from tests.proof.mutations import MUTATIONS, ROOT, Mutation


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_each_mutation_still_fits_the_code(mutation: Mutation) -> None:
    """A guarantee that has moved must be found again: its text is there once, and still parses."""
    ast.parse(mutation.source())
    for test in mutation.tests:
        path, _, name = test.partition("::")
        assert (ROOT / path).exists()
        assert not name or f"def {name}(" in (ROOT / path).read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_broken_guarantee_is_found_out() -> None:
    """The run itself works: it breaks a copy, and tells which test noticed."""
    command = [sys.executable, "-m", "tests.proof.mutations", "may commit by itself"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "test_commit_inside_the_tool_commits_nothing" in run.stdout
    assert "1 broken, 0 survived" in run.stdout
