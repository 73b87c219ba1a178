"""Which thread of which graph is meant."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from langgraph_idem.errors import ConfigurationError

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig
    from langgraph.graph.state import CompiledStateGraph


def addressed(
    graph: CompiledStateGraph[Any, Any, Any, Any],
    thread_id: str | None,
    config: RunnableConfig | None,
) -> RunnableConfig:
    """Return the config of the thread, or say what is missing."""
    configurable = dict((config or {}).get("configurable") or {})
    if thread_id is not None:
        configurable["thread_id"] = thread_id
    if graph.checkpointer in (None, False):
        raise ConfigurationError(
            "This graph has no checkpointer, so there is nothing to recover from. Compile it with "
            "one: create_react_agent(..., checkpointer=SqliteSaver(...))."
        )
    if not configurable.get("thread_id"):
        raise ConfigurationError("Which run? Write recover(graph, thread_id='...').")
    if configurable.get("checkpoint_id"):
        raise ConfigurationError(
            "recover() goes on from where a thread stands; from an earlier checkpoint it would "
            "be a fork. Leave checkpoint_id out, or call graph.invoke(None, config) on purpose."
        )
    merged: RunnableConfig = {**(config or {}), "configurable": configurable}
    return merged
