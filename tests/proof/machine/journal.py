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
        os.write(self._file, json.dumps(line).encode() + b"\n")
        os.fsync(self._file)


def names_of(error: BaseException) -> list[str]:
    """Name what an error is, the most special first: ``"langgraph_idem.LedgerError"``."""
    kinds = [kind for kind in type(error).__mro__ if kind.__module__ != "builtins"] or [type(error)]
    return [f"{kind.__module__.partition('.')[0]}.{kind.__qualname__}" for kind in kinds]


def lines(folder: Path, names: str = "*") -> Iterator[dict[str, Any]]:
    """Read the lines of all workers whose names fit a pattern, with the worker's name."""
    for path in sorted(folder.glob(f"answers-{names}.jsonl")):
        worker = path.stem.removeprefix("answers-")
        # A kill may have torn the last line: then the worker had not gone on.
        for line in path.read_text().split("\n")[:-1]:
            yield {"worker": worker, **json.loads(line)}


class Shared:
    """A number that one side writes and the others read, whoever is frozen.

    Args:
        path: Its file; made if it is not there.

    """

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(struct.pack("d", 0.0))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 8)

    @property
    def value(self) -> float:
        """The number."""
        (value,) = struct.unpack("d", self._memory[:8])
        return float(value)

    @value.setter
    def value(self, value: float) -> None:
        self._memory[:8] = struct.pack("d", value)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._memory.close()
