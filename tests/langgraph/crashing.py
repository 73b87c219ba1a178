"""Programs for the field cases that die: each runs in a process of its own, killed for real."""

from __future__ import annotations

import asyncio
import threading
import uuid
from typing import Any

from langchain_core.messages import ToolMessage
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from langgraph_idem.testing import ScriptedChatModel
from tests.langgraph.dying import die
from tests.support.cases import CONFIG, HELLO, PAY_ONE, Business, Hooks, agent, asks, pay_tool

NEVER = 60.0
"""Seconds: longer than the process lives."""


def model() -> ScriptedChatModel:
    """Make a model that pays, then says so; it numbers its calls anew each time it is asked."""
    return ScriptedChatModel([lambda _: asks(PAY_ONE, ids=[uuid.uuid4().hex]), "Paid."])


class SlowWrites(SqliteSaver):
    """The tool's result is still on its way when the next checkpoint is put, which is the end."""

    def put_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        """Keep the tool's result waiting."""
        if _holds_tool_result(writes):
            threading.Event().wait(NEVER)
        super().put_writes(config, writes, task_id, task_path)

    def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        """Die while the checkpoint after the tool's step is put."""
        if _holds_tool_result(checkpoint["channel_values"].items()):
            die()
        return super().put(config, checkpoint, metadata, new_versions)


class SlowSaver(SqliteSaver):
    """Nothing after the input reaches the disk in this process's life."""

    def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        """Keep the checkpoint of the model's step waiting."""
        if metadata["step"] > 0:
            threading.Event().wait(NEVER)
        return super().put(config, checkpoint, metadata, new_versions)

    def put_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        """Keep what the tasks did waiting."""
        threading.Event().wait(NEVER)


def _holds_tool_result(pairs: Any) -> bool:
    return any(isinstance(item, ToolMessage) for _, value in pairs for item in _listed(value))


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


SAVERS = {"ordinary": SqliteSaver, "slow writes": SlowWrites, "slow": SlowSaver}


def pay_and_die(
    url: str, checkpoints: str, seam: str, saver: str, durability: str, *, guarded: bool
) -> None:
    """Run the agent; it dies after its effect, in the tool or where the saver says."""
    business = Business.at(url)
    hooks = Hooks() if saver == "slow writes" else Hooks(after=die)
    with SAVERS[saver].from_conn_string(checkpoints) as opened:
        tools = [pay_tool(business, hooks, guarded=guarded)]
        graph = agent(seam, model(), tools, business, opened)
        graph.invoke(HELLO, CONFIG, durability=durability)


def apay_and_die(
    url: str, checkpoints: str, seam: str, saver: str, durability: str, *, guarded: bool
) -> None:
    """Run the agent on an event loop; it dies in its async tool, after the effect."""
    assert saver == "ordinary"
    asyncio.run(_apay_and_die(url, checkpoints, seam, durability, guarded=guarded))


async def _apay_and_die(
    url: str, checkpoints: str, seam: str, durability: str, *, guarded: bool
) -> None:
    business = Business.at(url)
    async with AsyncSqliteSaver.from_conn_string(checkpoints) as opened:
        tools = [pay_tool(business, Hooks(after=die), guarded=guarded, colour="async")]
        graph = agent(seam, model(), tools, business, opened)
        await graph.ainvoke(HELLO, CONFIG, durability=durability)
