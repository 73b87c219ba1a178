"""What is done to whom, and when: drawn from a seed before anything runs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final

DATABASES: Final = ("sqlite", "postgresql", "mariadb")
KINDS: Final = ("transactional", "remote-keys", "remote-lookup", "remote-neither", "agent")
COLOURS: Final = ("sync", "async", "both")

LEASE: Final = 2.5
"""Seconds that a claim of a remote effect is presumed alive."""
PATIENCE: Final = 0.8
"""Seconds that a client waits for the provider: well under nine tenths of the lease."""
WAIT: Final = 1.0
"""Seconds that the loser of a race waits."""
SLOTS: Final = 4
"""How many workers live at once."""

_WINDOW: Final = 10
_STEP: Final = 2
"""Each worker gets so many keys, the first of them so many further on than its predecessor's."""

_FAR: Final = 7200.0
_NEAR: Final = 0.8
"""Seconds that a clock may be off. With a look-up, "absent" is believed once the lease is over:
the lease, less the step, must outlast a request that is under way."""


class Fate(str, Enum):
    """How a worker ends."""

    KILLED = "killed"
    FROZEN = "frozen, woken, then killed"
    FROZEN_THEN_KILLED = "frozen, then killed"
    INTERRUPTED = "interrupted"
    SPARED = "spared"


class What(str, Enum):
    """What is done to the world."""

    RESTART = "restart"
    CUT_DATABASE = "cut database"
    CUT_PROVIDER = "cut provider"
    FILL_DISK = "fill disk"
    STEP_CLOCK = "step clock"


class Cut(str, Enum):
    """Where a connection is cut."""

    ALL = "all at once"
    REFUSED = "refused for a while"
    COMMIT_DROPPED = "commit dropped"
    COMMIT_UNANSWERED = "commit unanswered"
    COMMIT_LEFT = "commit left to itself"
    REQUEST_DROPPED = "request dropped"
    ANSWER_SWALLOWED = "answer swallowed"
    ANSWER_LATE = "answer late"


@dataclass(frozen=True)
class Strike:
    """One thing done to the world.

    Attributes:
        what: The thing.
        after: Seconds after the worker that it is drawn with was ready.
        cut: Where, for connections.
        times: How many of the next connections or statements that fit.
        seconds: How long a disk stays full; by how much a clock is off from then on.

    """

    what: What
    after: float
    cut: Cut = Cut.ALL
    times: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Life:
    """One worker, from its start to its end.

    Attributes:
        number: Its place in the schedule.
        colour: sync or async.
        keys: What it works on, in this order, over and over.
        fate: How it ends.
        after: Seconds after it was ready that its fate comes.
        frozen: Seconds between SIGSTOP and SIGCONT, or SIGKILL.
        clock: Seconds by which its own clock is off.
        strike: What is done to the world meanwhile.
        file_limit: Bytes beyond which no file of its grows, in place of a disk that is full, where
            no small disk can be mounted; 0: none.

    """

    number: int
    colour: str
    keys: tuple[str, ...]
    fate: Fate
    after: float = 0.0
    frozen: float = 0.0
    clock: float = 0.0
    strike: Strike | None = None
    file_limit: int = 0

    @property
    def is_killed(self) -> bool:
        """Tell whether it is to end by SIGKILL."""
        return self.fate not in {Fate.SPARED, Fate.INTERRUPTED}


@dataclass(frozen=True)
class Cell:
    """One field of the matrix: a database, a kind of effect, a colour, and which round of it."""

    database: str
    kind: str
    colour: str
    round: int = 0

    @property
    def name(self) -> str:
        """What the schedule is drawn for."""
        return f"{self.database}/{self.kind}/{self.colour}/{self.round}"


def schedule(cell: Cell, seed: int, kills: int) -> list[Life]:
    """Draw the workers of a round, until so many of them are to be killed."""
    dice = random.Random(f"{seed}/{cell.name}")  # noqa: S311 - no secret
    lives: list[Life] = []
    while sum(life.is_killed for life in lives) < kills:
        lives.append(_life(cell, len(lives), dice))
    return lives


def all_keys(lives: list[Life]) -> list[str]:
    """List every key of a schedule once."""
    return sorted({key for life in lives for key in life.keys})


def _life(cell: Cell, number: int, dice: random.Random) -> Life:
    colour = dice.choice(("sync", "async")) if cell.colour == "both" else cell.colour
    fate = dice.choices(tuple(Fate), weights=(65, 9, 10, 8, 8))[0]
    is_long = dice.random() < 0.5
    frozen = LEASE * dice.uniform(1.1, 1.5) if is_long else dice.uniform(0.05, 0.5)
    return Life(
        number=number,
        colour=colour,
        keys=tuple(_keys(number, dice)),
        fate=fate,
        after=dice.uniform(0.0, 1.1 if cell.kind == "agent" else 0.7),
        frozen=frozen if "frozen" in fate.value else 0.0,
        # LangGraph orders checkpoints by the clock: agents' clocks are only ever ahead, and those
        # of the clean workers afterwards are ahead of all.
        clock=dice.uniform(0.0 if cell.kind == "agent" else -_FAR, _FAR),
        strike=_strike(cell, dice) if dice.random() < 0.4 else None,
    )


def _keys(number: int, dice: random.Random) -> Iterator[str]:
    """Draw keys that the neighbours in the schedule have too, and some old ones."""
    first = number * _STEP
    chosen = list(range(first, first + _WINDOW))
    chosen += [dice.randrange(first + 1) for _ in range(2)]
    dice.shuffle(chosen)
    yield from (f"O-{order:04}" for order in dict.fromkeys(chosen))


def _strike(cell: Cell, dice: random.Random) -> Strike:
    weights = _possible(cell)
    what = dice.choices(tuple(weights), weights=tuple(weights.values()))[0]
    cuts = _PROVIDER_CUTS if what is What.CUT_PROVIDER else _DATABASE_CUTS
    seconds = dice.uniform(0.2, 1.0) if what is What.FILL_DISK else _clock(cell, dice)
    return Strike(what, dice.uniform(0.0, 0.5), dice.choice(cuts), dice.randint(1, 4), seconds)


_PROVIDER_CUTS: Final = (
    Cut.REQUEST_DROPPED,
    Cut.ANSWER_SWALLOWED,
    Cut.ANSWER_LATE,
    Cut.ALL,
    Cut.REFUSED,
)
_DATABASE_CUTS: Final = (
    *(Cut.ALL, Cut.COMMIT_DROPPED, Cut.COMMIT_UNANSWERED, Cut.COMMIT_LEFT),
    *(Cut.REQUEST_DROPPED, Cut.ANSWER_SWALLOWED, Cut.REFUSED),
)


def _possible(cell: Cell) -> dict[What, int]:
    """Say what can be done to this world, and how often relative to each other."""
    weights = {
        "sqlite": {What.FILL_DISK: 3, What.STEP_CLOCK: 4},
        "postgresql": {What.RESTART: 2, What.CUT_DATABASE: 7, What.FILL_DISK: 2},
        "mariadb": {What.RESTART: 2, What.CUT_DATABASE: 7, What.FILL_DISK: 2},
    }[cell.database]
    if cell.kind != "transactional":
        weights[What.CUT_PROVIDER] = 5
    return weights


def _clock(cell: Cell, dice: random.Random) -> float:
    """Draw how far a SQLite's clock, which is its machine's, is off from now on."""
    return dice.uniform(0, _NEAR) if cell.kind == "remote-lookup" else dice.uniform(-_FAR, _FAR)


def latest_clock(cell: Cell) -> float:
    """Return an offset that no clock of the cell was ever ahead of: at the end all have come."""
    return (_NEAR if cell.kind == "remote-lookup" else _FAR) + 1
