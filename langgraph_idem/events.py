"""What observers are told, after the fact. Events carry facts, never decide anything."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Event:
    """Something happened to an effect.

    Attributes:
        scope: Whose effect it is.
        operation: Name of the operation.
        key: The key, as the library shows it.
        attempt_id: The attempt that the event is about.

    """

    scope: str
    operation: str
    key: str
    attempt_id: str


class Claimed(Event):
    """An attempt won the effect; for a remote one, its intent is committed."""


class Succeeded(Event):
    """The effect took hold and that is recorded."""


class Replayed(Event):
    """A recorded result was returned; nothing was done."""


class Refused(Event):
    """The effect failed for good, the world is unchanged, and that is recorded."""


class Released(Event):
    """The attempt ended with the world unchanged; the effect may be tried again."""


class BecameUnknown(Event):
    """Nobody can know whether the effect took hold; that is recorded."""


class Verified(Event):
    """A look-up, a late answer or a person settled an unknown outcome."""


class Fenced(Event):
    """An attempt came back late and found that it no longer holds the effect."""


class Retried(Event):
    """The database asked for another try (serialization, deadlock, lock, lost connection)."""
