"""What works, but not as its author may think: said once, as a warning, with the line to change."""

from __future__ import annotations

import warnings
from typing import Final

SYNC: Final = "sync"
"""The durability under which a step is stored before the next one begins."""

_told: set[object] = set()


class IdempotencyWarning(UserWarning):
    """Root of this library's warnings."""


class DurabilityWarning(IdempotencyWarning):
    """An effect is keyed by ids that this run may not remember after a crash."""


class SharedFileWarning(IdempotencyWarning):
    """The ledger and the checkpointer write to one SQLite file."""


def once(about: object, warning: IdempotencyWarning) -> None:
    """Warn, unless it was said before in this process.

    Args:
        about: What makes it the same advice: a hashable value.
        warning: The advice.

    """
    if about in _told:
        return
    warnings.warn(warning, stacklevel=2)
    _told.add(about)


def per_call(operation: str, durability: str | None) -> None:
    """Warn, once per operation, where PER_CALL is used and steps are not stored in time.

    Args:
        operation: Name of the operation.
        durability: LangGraph's mode of this run; None: it keeps no checkpoints.

    """
    if durability == SYNC:
        return
    run = "keeps no checkpoints" if durability is None else f'has durability="{durability}"'
    advice = "give the graph a checkpointer" if durability is None else "have each step stored"
    once(
        (DurabilityWarning, operation),
        DurabilityWarning(
            f"{operation} is keyed PER_CALL, and this run {run}: after a crash the model may be "
            "asked anew and call under new ids, and the effect would take hold twice. Key it by "
            f'the arguments that name the effect, key=("order_id",), or {advice}: '
            'graph.invoke(..., durability="sync").'
        ),
    )
