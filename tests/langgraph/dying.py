"""Agents that run in a process of their own and are killed at a chosen instant.

The instant is the n-th time that LangGraph writes to its checkpointer, before or after the write,
or a place within the tool. SIGKILL: no exception, no clean-up, nothing flushed.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import multiprocessing
import os
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from langchain_core.tools import BaseTool, StructuredTool, tool
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from sqlalchemy.orm import Session

from langgraph_idem import ReActGraph, create_react_agent
from langgraph_idem.testing import ScriptedChatModel
from tests.langgraph.shop import CHECK, NOTIFY_ONE, TAKE, TAKE_ONE, Shop, calling

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from langgraph.checkpoint.base import BaseCheckpointSaver

CONFIG: Any = {"configurable": {"thread_id": "O-1"}}
TASK = {"task": "process order O-1"}
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["tests.langgraph.dying"])
_ROOT = str(Path(__file__).parents[2])


@dataclass
class Death:
    """The instant of a death.

    Attributes:
        at: At which write to the checkpointer, counted from 1; 0: never.
        when: ``"before"`` or ``"after"`` that write.

    """

    at: int
    when: str
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def strikes(self, number: int, when: str) -> int:
        """Die, if this is the instant; return the number of the write."""
        if (number, when) == (self.at, self.when):
            die()
        return number

    def __reduce__(self) -> tuple[Any, ...]:
        """Reach the other process without the counter."""
        return type(self), (self.at, self.when)


def die() -> None:
    """Kill this process, as the kernel's out-of-memory killer would."""
    os.kill(os.getpid(), signal.SIGKILL)


class DyingSaver(SqliteSaver):
    """A checkpointer that dies at one of its writes."""

    death: Death

    def put(self, *args: Any, **kwargs: Any) -> Any:
        """Write a checkpoint, or die."""
        number = self.death.strikes(next(self.death.numbers), "before")
        written = super().put(*args, **kwargs)
        self.death.strikes(number, "after")
        return written

    def put_writes(self, *args: Any, **kwargs: Any) -> None:
        """Write what a task did, or die."""
        number = self.death.strikes(next(self.death.numbers), "before")
        super().put_writes(*args, **kwargs)
        self.death.strikes(number, "after")


class DyingAsyncSaver(AsyncSqliteSaver):
    """A checkpointer that dies at one of its writes."""

    death: Death

    async def aput(self, *args: Any, **kwargs: Any) -> Any:
        """Write a checkpoint, or die."""
        number = self.death.strikes(next(self.death.numbers), "before")
        written = await super().aput(*args, **kwargs)
        self.death.strikes(number, "after")
        return written

    async def aput_writes(self, *args: Any, **kwargs: Any) -> None:
        """Write what a task did, or die."""
        number = self.death.strikes(next(self.death.numbers), "before")
        await super().aput_writes(*args, **kwargs)
        self.death.strikes(number, "after")


def order_agent(
    shop: Shop, tools: list[BaseTool], checkpointer: BaseCheckpointSaver[Any]
) -> ReActGraph:
    """Build the agent: check; take and notify at once; done."""
    script: list[Any] = [calling(CHECK), calling(TAKE_ONE, NOTIFY_ONE), "Done."]
    return create_react_agent(
        ScriptedChatModel(script), tools, ledger=shop.ledger, checkpointer=checkpointer
    )


def run_sync(url: str, checkpoints: str, death: Death) -> None:
    """Run the sync agent until it is through or dead."""
    shop = Shop.at(url)
    with DyingSaver.from_conn_string(checkpoints) as saver:
        saver.death = death  # type: ignore[attr-defined]  # from_conn_string makes one of our class
        order_agent(shop, shop.tools(), saver).invoke(TASK, CONFIG)


def run_async(url: str, checkpoints: str, death: Death) -> None:
    """Run the async agent until it is through or dead."""
    asyncio.run(_run_async(url, checkpoints, death))


async def _run_async(url: str, checkpoints: str, death: Death) -> None:
    shop = Shop.at(url)
    async with DyingAsyncSaver.from_conn_string(checkpoints) as saver:
        saver.death = death  # type: ignore[attr-defined]  # as above
        agent = order_agent(shop, shop.tools(colour="async"), saver)
        await agent.ainvoke(TASK, CONFIG)
    await shop.ledger.aclose()


def tools_that_die(shop: Shop, place: str) -> list[BaseTool]:
    """Return the shop's tools, of which ``take`` dies at a place."""

    @tool
    @shop.ledger.transactional(key=("order_id", "sku"))
    def take(session: Session, /, order_id: str, sku: str) -> dict[str, str]:
        """Take one from stock."""
        if place == "before the effect":
            die()
        session.execute(TAKE, {"order_id": order_id, "sku": sku})
        if place == "before the commit":
            die()
        return {"taken": sku}

    assert isinstance(take, StructuredTool)
    guarded = take.func
    assert guarded is not None

    @functools.wraps(guarded)
    def taken_and_dead(**kwargs: Any) -> Any:
        result = guarded(**kwargs)
        if place == "after the commit":
            die()
        return result

    take.func = taken_and_dead
    others = [known for known in shop.tools() if known.name != "take"]
    return [take, *others]


def run_dying_tool(url: str, checkpoints: str, place: str) -> None:
    """Run the sync agent whose tool dies at a place."""
    shop = Shop.at(url)
    with SqliteSaver.from_conn_string(checkpoints) as saver:
        order_agent(shop, tools_that_die(shop, place), saver).invoke(TASK, CONFIG)


def was_killed(target: Callable[..., None], *args: Any) -> bool:
    """Run a function in a process of its own; tell whether it was killed, or came to its end."""
    process = _PROCESSES.Process(target=target, args=args)
    with pytest.MonkeyPatch.context() as patch:
        # The server that forks imports this module once, for all: it must find it.
        patch.setenv("PYTHONPATH", _ROOT)
        process.start()
    process.join(60)
    assert process.exitcode in (0, -signal.SIGKILL), process.exitcode
    return process.exitcode != 0
