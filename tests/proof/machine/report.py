"""What was done and seen: a table for people, JSON for programs."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from tests.proof.machine.plan import Cell

COLUMNS: Final = (
    *("kills", "stops", "interrupts", "restarts", "cut wires", "full disks", "clock steps"),
    *("cut off", "effects", "answers", "errors", "settled by a person"),
)


@dataclass
class Tally:
    """Of one round.

    Attributes:
        cell: Which.
        counts: By the names of ``COLUMNS``.
        violations: In words.
        seconds: How long it took.
        detail: Finer counts: which cuts, which errors.

    """

    cell: Cell
    counts: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    seconds: float = 0.0
    detail: Counter[str] = field(default_factory=Counter)


@dataclass
class Report:
    """Of a run.

    Attributes:
        seed: What it was drawn from.
        tallies: Of its rounds.
        left_out: What could not be done here, and why.

    """

    seed: int
    tallies: list[Tally] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    @property
    def violations(self) -> list[str]:
        """All of them, each with where it was seen."""
        return [f"{tally.cell.name}: {told}" for tally in self.tallies for told in tally.violations]

    @property
    def total(self) -> Counter[str]:
        """The sums."""
        return sum((tally.counts for tally in self.tallies), Counter[str]())

    def in_words(self) -> str:
        """Tell it as a table and a verdict."""
        count, seconds = len(self.violations), sum(tally.seconds for tally in self.tallies)
        told = [self.as_markdown(), *(f"left out: {what}" for what in self.left_out)]
        told += [f"violation: {violation}" for violation in self.violations]
        told += [
            f"replay: {_again(self.seed, tally)}" for tally in self.tallies if tally.violations
        ]
        finer = sum((tally.detail for tally in self.tallies), Counter[str]())
        told += [f"{count:6} {name}" for name, count in sorted(finer.items())]
        return "\n".join([*told, f"seed {self.seed}: {count} violations, {seconds:.0f} s"])

    def as_markdown(self) -> str:
        """Tell it as a table."""
        head = ["database", "kind of effect", "colour", *COLUMNS, "violations", "seconds"]
        rows = [_row(tally) for tally in self.tallies]
        total = [str(self.total[name]) for name in COLUMNS]
        seconds = f"{sum(tally.seconds for tally in self.tallies):.0f}"
        rows.append(["**all**", "", "", *total, str(len(self.violations)), seconds])
        rule = ["---", "---", "---", *["---:"] * (len(COLUMNS) + 2)]
        return "\n".join(f"| {' | '.join(row)} |" for row in [head, rule, *rows])

    def save(self, path: Path) -> None:
        """Write it to a file: Markdown if it is called so, else JSON."""
        if path.suffix == ".md":
            path.write_text(self.in_words() + "\n")
        else:
            path.write_text(json.dumps(self._plain(), indent=2) + "\n")

    def _plain(self) -> dict[str, object]:
        return {
            "seed": self.seed,
            "left_out": self.left_out,
            "total": dict(self.total),
            "violations": self.violations,
            "rounds": [_plain(tally) for tally in self.tallies],
        }


def _plain(tally: Tally) -> dict[str, object]:
    told = vars(tally) | {"cell": asdict(tally.cell)}
    return told | {"counts": dict(tally.counts), "detail": dict(tally.detail)}


def _row(tally: Tally) -> list[str]:
    cell = tally.cell
    counts = [str(tally.counts[name]) for name in COLUMNS]
    where = [cell.database, cell.kind, cell.colour]
    return [*where, *counts, str(len(tally.violations)), f"{tally.seconds:.0f}"]


def _again(seed: int, tally: Tally) -> str:
    cell = tally.cell
    where = f"--database {cell.database} --kind {cell.kind} --colour {cell.colour}"
    kills = tally.detail["kills asked for"]
    return (
        f"python -m tests.proof.machine --seed {seed} --kills {kills} {where} --round {cell.round}"
    )
