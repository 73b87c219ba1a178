"""What a tool that is not guarded pays for standing in our tool node."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.prebuilt import ToolNode
from langgraph.runtime import Runtime

from benchmarks.measuring import awaiting, blocking, compared, turn_by_turn
from langgraph_idem import IdempotentToolNode, Ledger

if TYPE_CHECKING:
    from benchmarks.databases import Database
    from benchmarks.measuring import Figure, Size

TARGETS = {"IdempotentToolNode": 1.05}
CONFIG: Any = {"configurable": {"__pregel_runtime": Runtime()}}


@tool
def look(sku: str) -> str:
    """Look something up, in no time: the worst case for whatever stands around it."""
    return sku


@tool
async def alook(sku: str) -> str:
    """Look something up, in no time."""
    return sku


def _calling(name: str) -> dict[str, Any]:
    call = {"name": name, "args": {"sku": "tea"}, "id": "call_0"}
    return {"messages": [AIMessage("", tool_calls=[call])]}


def unguarded_tool(database: Database, size: Size) -> list[Figure]:
    """An unguarded tool in our node beside the same tool in LangGraph's own node."""
    ledger = Ledger(database.url)
    plain, ours = ToolNode([look, alook]), IdempotentToolNode([look, alook], ledger=ledger)
    loop = asyncio.new_event_loop()

    async def aplain(_number: int) -> None:
        await plain.ainvoke(_calling("alook"), CONFIG)

    async def aours(_number: int) -> None:
        await ours.ainvoke(_calling("alook"), CONFIG)

    sync = turn_by_turn(
        {
            "ToolNode": blocking(lambda _number: plain.invoke(_calling("look"), CONFIG)),
            "IdempotentToolNode": blocking(lambda _number: ours.invoke(_calling("look"), CONFIG)),
        },
        size,
    )
    in_async = turn_by_turn(
        {"ToolNode": awaiting(aplain, loop), "IdempotentToolNode": awaiting(aours, loop)}, size
    )
    loop.close()
    about: Any = {"baseline": "ToolNode", "targets": TARGETS}
    return [
        *compared("unguarded tool", "sync", sync, **about),
        *compared("unguarded tool", "async", in_async, **about),
    ]
