"""What users write is checked when it is written, not when it is needed."""

from __future__ import annotations

import inspect
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from langgraph_idem.effects import BY_A_PERSON, Kind, State
from langgraph_idem.errors import ConfigurationError

if TYPE_CHECKING:
    from langgraph_idem.shapes import Shape


def check_policy(refusals: Any, on_replay: Any, shape: Shape) -> None:
    """Check what would otherwise fail when it is needed: at the first refusal or replay.

    Raises:
        ConfigurationError: With what to write instead.

    """
    if not isinstance(refusals, tuple) or not all(
        isinstance(kind, type) and issubclass(kind, BaseException) for kind in refusals
    ):
        raise ConfigurationError(
            f"refusals= of {shape.name} is a tuple of exception classes, like (OutOfStock,); it "
            f"is {refusals!r}."
        )
    is_async = inspect.iscoroutinefunction(on_replay)
    if is_async or (not callable(on_replay) and on_replay not in {"return", "raise"}):
        raise ConfigurationError(
            f"on_replay= of {shape.name} is 'return', 'raise' or a plain function (def) that "
            f"gets the receipt; it is {on_replay!r}."
        )


def check_approval(approval: Any, shape: Shape) -> None:
    """Check what would otherwise let everything pass, or nothing.

    Raises:
        ConfigurationError: It is neither True, False nor a sync function.

    """
    if inspect.iscoroutinefunction(approval) or not (
        isinstance(approval, bool) or callable(approval)
    ):
        raise ConfigurationError(
            f"approval= of {shape.name} is True, False or a plain function (def) that gets the "
            f"arguments as a dict and returns whether a person is to be asked; it is {approval!r}."
        )


def check_remote(on_unknown: Any, lookup: Any, classify: Any, shape: Shape) -> None:
    """Check what would otherwise fail when an outcome is unknown, which is too late.

    Raises:
        ConfigurationError: With what to write instead.

    """
    if on_unknown not in {"interrupt", "raise", "tell_model"}:
        raise ConfigurationError(
            f"on_unknown= of {shape.name} is 'interrupt', 'raise' or 'tell_model'; it is "
            f"{on_unknown!r}."
        )
    for name, function in (("lookup", lookup), ("classify", classify)):
        if function is not None and not callable(function):
            raise ConfigurationError(f"{name}= of {shape.name} is a function; it is {function!r}.")
    if inspect.iscoroutinefunction(lookup) and not shape.is_async:
        raise ConfigurationError(
            f"{shape.name} is sync, so its lookup= must be too: write `def "
            f"{lookup.__name__}(effect: Effect)`."
        )


def check_guard(kind: str) -> None:
    """Refuse kinds that a tool made elsewhere cannot be.

    Raises:
        ConfigurationError: With what to write instead.

    """
    if kind != Kind.REMOTE.value:
        raise ConfigurationError(
            f"ledger.guard(kind={kind!r}): a tool that was made elsewhere knows nothing of our "
            "transaction, so it can only be kind='remote'. For a transactional effect, write the "
            "tool yourself and decorate it with ledger.transactional."
        )


def seconds_of(what: str, value: timedelta | float | None, shape: Shape) -> float | None:
    """Turn a length of time into seconds; None stays None, 0 stays 0.

    Raises:
        ConfigurationError: It is negative or no length of time.

    """
    seconds: Any = value.total_seconds() if isinstance(value, timedelta) else value
    if seconds is None:
        return None
    is_number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if not is_number or not seconds >= 0:
        raise ConfigurationError(
            f"{what}= of {shape.name} is a timedelta or seconds, 0 or more, or None; it is "
            f"{value!r}."
        )
    return float(seconds)


def outcome_of(said: State | str) -> State:
    """Read what a person said of an outcome.

    Raises:
        ConfigurationError: It is none of the words that a person may say.

    """
    words = sorted(str(state) for state in BY_A_PERSON)
    if str(said) not in words:
        raise ConfigurationError(
            f"An outcome is settled as {', '.join(words)}; {said!r} is none of them."
        )
    return State(str(said))
