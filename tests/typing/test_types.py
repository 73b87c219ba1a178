"""Guarded functions keep their types."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

GUARDED = Path(__file__).with_name("guarded.py")


def test_guarded_functions_keep_their_types() -> None:
    """Mypy --strict agrees with every assert_type, and finds every mistake that is marked."""
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--warn-unused-ignores", str(GUARDED)],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    mine = [line for line in done.stdout.splitlines() if GUARDED.name in line]
    assert mine == [], done.stdout
    assert done.returncode == 0, done.stdout + done.stderr
