"""What the workers leave behind: what they asked for, and every answer they got."""

from __future__ import annotations

import json
import mmap
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from typing_extensions import Self

CONDUCTOR: Final = "conductor"
"""Whose file tells what was done to the clocks."""


class Journal:
    """One worker's file; every line is on disk before the worker goes on.

    Args:
        folder: Of the round.
        name: The worker's.

    """

    def __init__(self, folder: Path, name: str) -> None:
        path = folder / f"answers-{name}.jsonl"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def asked(self, key: str) -> None:
        """Note that the worker is about to call."""
        self._note(asked=key)

    def result(self, key: str, number: int) -> None:
        """Note the result of a call."""
        self._note(key=key, number=number)

    def error(self, key: str, error: BaseException) -> None:
        """Note the error that a call ended with."""
        self._note(key=key, error=names_of(error), words=repr(error)[:500])

    def lost(self, key: str) -> None:
        """Note that the provider's answer did not come."""
        self._note(lost=key)

    def stepped(self) -> None:
        """Note that a clock was put forward or back."""
        self._note(stepped=True)

    def _note(self, **line: Any) -> None:
        line["at"] = time.monotonic()  # the same for all, and nobody shifts it
