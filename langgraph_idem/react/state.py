"""The state of the ReAct graph: all of it is in the checkpoint, for a fresh process to read."""

# No `from __future__ import annotations`: LangGraph reads these annotations when the program runs.

import operator
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from enum import Enum
from typing import Annotated, Any, Final, Literal

from langchain_core.messages import AnyMessage
from langgraph._internal._typing import MISSING
from langgraph.channels import BaseChannel
from langgraph.graph.message import add_messages
from typing_extensions import Self, TypedDict, get_type_hints

from langgraph_idem.errors import ConfigurationError
from langgraph_idem.tools.steps import DoneSteps

WAITING_MODEL: Final = "waiting_model"
WAITING_TOOL: Final = "waiting_tool"
NextStep = Literal["waiting_model", "waiting_tool"]


class RunStatus(str, Enum):
    """Where a run stands."""

    RUNNING = "RUNNING"
    WAITING_FOR_HUMAN = "WAITING_FOR_HUMAN"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"

    def __str__(self) -> str:
        return str(self.value)


class Standing(BaseChannel[Any, Any, Any]):
    """A field that has a value from the start and may be written by several calls at once.

    Checkpoints hold its value as a plain text, so that any version of any program can read them.

    Args:
        initial: The value before anybody wrote one.
        read: Makes the field's value of the text.
        winner: Written together with others in one step, this value wins; else the last one.

    """

    __slots__ = ("initial", "read", "value", "winner")

    def __init__(
        self, initial: str | None, read: Callable[[str], Any] = str, winner: str | None = None
    ) -> None:
        super().__init__(str | None)
        self.initial = self.value = initial
        self.read = read
        self.winner = winner

    @property
    def ValueType(self) -> Any:  # noqa: N802 - LangGraph's name
        """The type of the value."""
        return self.typ

    @property
    def UpdateType(self) -> Any:  # noqa: N802 - LangGraph's name
        """The type of what is written."""
        return self.typ

    def from_checkpoint(self, checkpoint: Any) -> Self:
        """Return a channel with the value of a checkpoint."""
        made = type(self)(self.initial, self.read, self.winner)
        made.key = self.key
        if checkpoint is not MISSING:
            made.value = checkpoint
        return made

    def checkpoint(self) -> Any:
        """Return the plain text."""
        return self.value

    def update(self, values: Sequence[Any]) -> bool:
        """Take in what was written in one step."""
        texts = [None if value is None else str(value) for value in values]
        if texts:
            self.value = self.winner if self.winner in texts else texts[-1]
        return bool(texts)

    def get(self) -> Any:
        """Return the value."""
        return None if self.value is None else self.read(self.value)

    def is_available(self) -> bool:
        """Return True: it has a value from the start."""
        return True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Standing) and (self.initial, self.winner) == (
            other.initial,
            other.winner,
        )

    __hash__ = None  # type: ignore[assignment]  # a channel changes


class ReActState(TypedDict, total=False):
    """What the ReAct graph keeps in its checkpoints.

    Attributes:
        messages: What the model sees.
        task: The request that is being worked on, in words.
        trace: What happened, in order; entries are only ever added. Each has ``at`` (UTC, ISO
            8601) and ``event``, and what belongs to the event.
        status: Where the run stands.
        next_step: What the loop waits for; None when it is through.
        done_steps: The effects that took hold, from their receipts.

    """

    messages: Annotated[list[AnyMessage], add_messages]
    task: str
    trace: Annotated[list[dict[str, Any]], operator.add]
    status: Annotated[
        RunStatus, Standing(RunStatus.RUNNING.value, RunStatus, winner=RunStatus.FAILED.value)
    ]
    next_step: Annotated[NextStep | None, Standing(WAITING_MODEL, winner=WAITING_TOOL)]
    done_steps: DoneSteps


def entry(event: str, **details: Any) -> dict[str, Any]:
    """Write an entry of the trace."""
    return {"at": datetime.now(timezone.utc).isoformat(), "event": event, **details}


def with_users_fields(schema: Any) -> Any:
    """Join the user's state schema to the ReAct state.

    Args:
        schema: A TypedDict with further fields; it may inherit from ``ReActState``. None: no more.

    Raises:
        ConfigurationError: It is no TypedDict, or redefines one of the ReAct state's fields.

    """
    if schema is None or schema is ReActState:
        return ReActState
    if not isinstance(schema, type) or not hasattr(schema, "__required_keys__"):
        raise ConfigurationError(
            f"state_schema={schema!r} is no TypedDict. Write: class MyState(ReActState): ..."
        )
    ours = get_type_hints(ReActState, include_extras=True)
    theirs = get_type_hints(schema, include_extras=True)
    for name in ours.keys() & theirs.keys():
        if _merging(ours[name]) != _merging(theirs[name]):
            raise ConfigurationError(
                f"state_schema defines {name!r} in its own way, but the ReAct graph keeps it. "
                f"Give your field another name, or inherit {name!r} from ReActState."
            )
    return TypedDict(schema.__name__, {**theirs, **ours}, total=False)  # type: ignore[operator]


def _merging(annotation: Any) -> Any:
    """Return how writes to a field are merged: its reducer or channel, None for last-value."""
    return getattr(annotation, "__metadata__", (None,))[-1]
