"""The checkpointer, and one that ends its own process at a chosen moment."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from langchain_core.messages import ToolMessage
from langgraph.checkpoint.base import BaseCheckpointSaver

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import ChannelVersions, Checkpoint, CheckpointMetadata

MOMENTS = {
    "unrecorded": "the deduction is committed, nothing of it is in any checkpoint",
    "checkpointed": "the deduction is in the checkpoint, the notification has not begun",
}

_last_words = threading.Lock()


class Mortal(BaseCheckpointSaver[Any]):
    """A checkpointer in whose process the power fails, just before or just after a write."""

    dies_when: str

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Store a tool's result, unless this is the moment to die."""
        told = [value for channel, value in writes if channel == "messages"]
        if self.dies_when == "unrecorded" and _is_deduction(told):
            _die(self.dies_when)
        super().put_writes(config, writes, task_id, task_path)

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint, unless this is the moment to die, or this is it afterwards.

        LangGraph stores a tool's result and the next checkpoint at once, in two threads: to die
        before the one only would be a race with the other.
        """
        tells = _is_deduction(checkpoint["channel_values"].get("messages", [])[-1:])
        if self.dies_when == "unrecorded" and tells:
            _die(self.dies_when)
        stored = super().put(config, checkpoint, metadata, new_versions)
        if self.dies_when == "checkpointed" and tells:
            _die(self.dies_when)
        return stored


def _is_deduction(messages: Any) -> bool:
    if isinstance(messages, list):
        return any(_is_deduction(message) for message in messages)
    return isinstance(messages, ToolMessage) and messages.name == "deduct_inventory"


def _die(moment: str) -> None:
    with _last_words:  # never released: another thread gets no further either
        print(f"SIGKILL now: {MOMENTS[moment]}", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def open_checkpoints(url: str, dies_when: str | None = None) -> Iterator[BaseCheckpointSaver[Any]]:
    """Open LangGraph's own checkpointer for a database.

    Args:
        url: ``sqlite:///PATH`` or a PostgreSQL URL.
        dies_when: A key of ``MOMENTS``; None: live.

    """
    kind, place = _saver_for(url)
    if dies_when is not None:
        kind = type(f"Mortal{kind.__name__}", (Mortal, kind), {"dies_when": dies_when})
    with kind.from_conn_string(place) as saver:
        saver.setup()
        yield saver


def _saver_for(url: str) -> tuple[Any, str]:
    if url.startswith("sqlite:///"):
        from langgraph.checkpoint.sqlite import SqliteSaver

        return SqliteSaver, url.removeprefix("sqlite:///")
    from langgraph.checkpoint.postgres import PostgresSaver

    return PostgresSaver, url.replace("postgresql+psycopg://", "postgresql://")
