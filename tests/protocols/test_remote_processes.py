"""Several processes at one remote effect: racing, and frozen past the lease."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from langgraph_idem.effects import State
from tests.support import provider
from tests.support.provider import COLOURS, Provider, Witness
from tests.support.racers import Racers


@pytest.fixture
def witness(database_url: str) -> Witness:
    """A fresh ledger, and somebody to look at it."""
    return Witness(database_url)


@pytest.mark.parametrize("colour", COLOURS)
def test_eight_processes_and_one_key(
    witness: Witness, racers: Racers, tmp_path: Path, colour: str
) -> None:
    """One calls the provider, seven wait for its result; all return the same."""
    path = tmp_path / "provider"
    path.touch()
    finishes = racers.run(
        "tests.support.provider:race",
        copies=8,
        url=witness.url,
        path=str(path),
        kind="neither",
        colour=colour,
        order_id="O-1",
    )
    assert [finish.result for finish in finishes] == [1] * 8
    assert Provider(path, "neither").numbers("O-1") == [1]


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize(
    ("kind", "found_out"), [("neither", "OutcomeUnknown"), ("lookup", 1), ("keys", 1)]
)
def test_a_frozen_worker_that_wakes_up(
    witness: Witness, tmp_path: Path, colour: str, kind: str, found_out: int | str
) -> None:
    """Frozen past its lease, overtaken, awake again: fenced, and its answer is not lost."""
    path = tmp_path / "provider"
    path.touch()
    argv = [sys.executable, "-m", "tests.support.provider", witness.url, str(path), kind, colour]
    with subprocess.Popen([*argv, "O-1"], stdout=subprocess.PIPE, text=True) as worker:
        _, status = os.waitpid(worker.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        assert witness.state("O-1") is State.CLAIMED
        witness.expire("O-1")
        assert provider.told(witness.url, Provider(path, kind), colour, "O-1") == found_out
        worker.send_signal(signal.SIGCONT)
        said, _ = worker.communicate(timeout=60)
    record = witness.record("O-1")
    assert (said, record.state, record.result) == ("1", State.SUCCEEDED, "1")
    assert (record.evidence, record.attempts) == ("1", 2)
    assert Provider(path, kind).numbers("O-1") == [1]
