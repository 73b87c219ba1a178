"""``done_steps``: the effects that took hold in a thread, in the graph's own state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from langgraph_idem.effects import Receipt, State

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

DONE_STEPS = "done_steps"
"""Name of the state field. A state that has it is kept up to date by ``IdempotentToolNode``."""


def merge_steps(
    earlier: list[dict[str, Any]] | None, later: Sequence[dict[str, Any]] | None
) -> list[dict[str, Any]]:
    """Add steps to those that are known; the reducer of ``done_steps``.

    An effect is listed once, where it was first seen, however often it is replayed; a later
    outcome takes the place of an earlier, different one.

    Args:
        earlier: Steps as :meth:`Receipt.as_dict` gives them.
        later: Further steps.

    """
    steps = {_effect_of(step): step for step in earlier or ()}
    for step in later or ():
        known = steps.get(_effect_of(step))
        if known is None or known["outcome"] != step["outcome"]:
            steps[_effect_of(step)] = step
    return list(steps.values())


DoneSteps = Annotated[list[dict[str, Any]], merge_steps]
"""The type of ``done_steps`` for a state of your own: ``done_steps: DoneSteps``."""


def steps_of(receipts: Iterable[Receipt]) -> list[dict[str, Any]]:
    """Return the steps that receipts stand for: effects that took hold, now or before."""
    taken = [receipt for receipt in receipts if receipt.outcome is State.SUCCEEDED]
    return merge_steps([], [receipt.as_dict() for receipt in taken])


def _effect_of(step: dict[str, Any]) -> tuple[str, str, str]:
    return step["scope"], step["operation"], step["key"]
