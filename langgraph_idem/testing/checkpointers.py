"""A checkpointer whose writes are slow, fail, or are the program's last."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from langgraph.checkpoint.base import BaseCheckpointSaver

from langgraph_idem.testing.crashes import kill

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence

    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import (
        ChannelVersions,
        Checkpoint,
        CheckpointMetadata,
        CheckpointTuple,
    )

Writes = Literal["put", "put_writes", "any"]
"""Which writes: of a checkpoint, of what a task did, or both."""
When = Literal["before", "after"]


@dataclass(frozen=True)
class WriteFault:
    """What befalls a checkpointer's writes; made by :func:`slow`, :func:`failing`, :func:`dying`.

    Attributes:
        writes: Which writes.
        nth: The how manieth of them, from 1; None: each.
        when: Before or after the write.
        seconds: How long it takes longer.
        act: What happens then.

    """

    writes: Writes = "any"
    nth: int | None = None
    when: When = "before"
    seconds: float = 0.0
    act: Callable[[], None] = lambda: None

    def strikes(self, write: Write, when: When) -> bool:
        """Tell whether it befalls a write."""
        return self.when == when and self.nth in {None, write.numbers.get(self.writes)}


@dataclass(frozen=True)
class Write:
    """One write: the how manieth it is of its own kind, and of all."""

    numbers: Mapping[str, int]


def slow(writes: Writes = "any", *, seconds: float, nth: int | None = None) -> WriteFault:
    """Let writes take longer.

    Args:
        writes: ``"put"`` (checkpoints), ``"put_writes"`` (what a task did), or ``"any"``.
        seconds: How much longer.
        nth: The how manieth of them, from 1; None: each.

    """
    return WriteFault(writes, nth, seconds=seconds)


def failing(
    writes: Writes = "any",
    *,
    nth: int | None = None,
    error: Exception | None = None,
    when: When = "before",
) -> WriteFault:
    """Let writes fail.

    Args:
        writes: As in :func:`slow`.
        nth: As in :func:`slow`.
        error: What is raised; default: an ``OSError``.
        when: ``"after"``: it was written, but that is not known.

    """
    raised = error if error is not None else OSError("The checkpointer's database is gone.")

    def act() -> None:
        raise raised

    return WriteFault(writes, nth, when, act=act)


def dying(nth: int, writes: Writes = "any", *, when: When = "before") -> WriteFault:
    """Kill the process at a write, with SIGKILL: for a test that runs it in one of its own.

    Args:
        nth: At the how manieth write, from 1.
        writes: As in :func:`slow`.
        when: Before or after it.

    """
    return WriteFault(writes, nth, when, act=kill)


_BOTH: Final = "any"


class FaultyCheckpointer(BaseCheckpointSaver[Any]):
    """Any checkpointer, with faults in its writes; reads are the checkpointer's own.

    Args:
        saver: The checkpointer, sync, async or both.
        *faults: What befalls its writes, in this order.

    Attributes:
        written: How many writes there were, by kind (``put``, ``put_writes``, ``any``).

    """

    def __init__(self, saver: BaseCheckpointSaver[Any], *faults: WriteFault) -> None:
        super().__init__(serde=saver.serde)
        self.saver = saver
        self.faults = faults
        self.written: dict[str, int] = {"put": 0, "put_writes": 0, _BOTH: 0}
        self._lock = threading.Lock()

    def _next(self, kind: str) -> Write:
        with self._lock:
            for name in (kind, _BOTH):
                self.written[name] += 1
            return Write({name: self.written[name] for name in (kind, _BOTH)})

    def _befall(self, write: Write, when: When) -> None:
        for fault in self.faults:
            if fault.strikes(write, when):
                time.sleep(fault.seconds)
                fault.act()

    async def _abefall(self, write: Write, when: When) -> None:
        for fault in self.faults:
            if fault.strikes(write, when):
                await asyncio.sleep(fault.seconds)
                fault.act()

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Write a checkpoint."""
        write = self._next("put")
        self._befall(write, "before")
        written = self.saver.put(config, checkpoint, metadata, new_versions)
        self._befall(write, "after")
        return written

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Write what a task did."""
        write = self._next("put_writes")
        self._befall(write, "before")
        self.saver.put_writes(config, writes, task_id, task_path)
        self._befall(write, "after")

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Write a checkpoint."""
        write = self._next("put")
        await self._abefall(write, "before")
        written = await self.saver.aput(config, checkpoint, metadata, new_versions)
        await self._abefall(write, "after")
        return written

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Write what a task did."""
        write = self._next("put_writes")
        await self._abefall(write, "before")
        await self.saver.aput_writes(config, writes, task_id, task_path)
        await self._abefall(write, "after")

    @property
    def config_specs(self) -> list[Any]:
        """The checkpointer's own."""
        return self.saver.config_specs

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Read a checkpoint."""
        return self.saver.get_tuple(config)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Read a checkpoint."""
        return await self.saver.aget_tuple(config)

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - LangGraph's name
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """List checkpoints."""
        return self.saver.list(config, filter=filter, before=before, limit=limit)

    def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - LangGraph's name
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """List checkpoints."""
        return self.saver.alist(config, filter=filter, before=before, limit=limit)

    def delete_thread(self, thread_id: str) -> None:
        """Forget a thread."""
        self.saver.delete_thread(thread_id)

    async def adelete_thread(self, thread_id: str) -> None:
        """Forget a thread."""
        await self.saver.adelete_thread(thread_id)

    def get_next_version(self, current: Any, channel: None) -> Any:
        """Count versions as the checkpointer does."""
        return self.saver.get_next_version(current, channel)
