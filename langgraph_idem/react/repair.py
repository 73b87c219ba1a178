"""Answers, in a thread's own history, for tool calls that were cut off."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from langgraph.constants import END
from langgraph.prebuilt import ToolNode

from langgraph_idem.errors import ConfigurationError
from langgraph_idem.react.graph import ReActGraph
from langgraph_idem.react.history import (
    aanswers_to,
    anew,
    answered_entry,
    answers_to,
    completed,
    find_open,
    steps_in,
)
from langgraph_idem.react.state import WAITING_MODEL, RunStatus
from langgraph_idem.react.threads import addressed
from langgraph_idem.tools.steps import DONE_STEPS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from langchain_core.messages import BaseMessage, ToolMessage
    from langchain_core.runnables import RunnableConfig
    from langchain_core.tools import BaseTool
    from langgraph.graph.state import CompiledStateGraph
    from langgraph.types import StateSnapshot

    from langgraph_idem.react.history import OpenCall, Place

    Graph = CompiledStateGraph[Any, Any, Any, Any]

MESSAGES: Final = "messages"


def repair(
    graph: Graph,
    thread_id: str | None = None,
    *,
    config: RunnableConfig | None = None,
    messages_key: str = MESSAGES,
) -> list[ToolMessage]:
    """Give each tool call without a ToolMessage its answer, as the ledger knows it.

    For threads whose run was cancelled or given up, and which go on with a new message: the
    recorded result, or that it is in progress, unknown, or was never started. Nothing is run,
    and each answer stands right after the message that asks for it. The model comes next.

    A run that is not through is given up by it, an open question to a person included; what its
    finished calls have left is kept. To take up the run instead, call ``recover``.

    Of a tool that is not guarded nobody knows whether it ran, and its answer says so. Of a
    recorded ``Command`` only the message is given, not its further changes of the state.

    Args:
        graph: Any compiled graph with a checkpointer and a ToolNode (or ``create_agent``'s), whose
            messages are joined by ``add_messages``.
        thread_id: The thread; may be in ``config`` instead.
        config: The run's config.
        messages_key: Name of the state field that holds the messages.

    Returns:
        The messages that were added, in order; empty if nothing was missing, and then nothing is
        changed.

    Raises:
        ConfigurationError: No checkpointer, no thread, or no ToolNode.
        LedgerError: The ledger's database failed; nothing was changed.

    """
    config = addressed(graph, thread_id, config)
    snapshot = graph.get_state(config)
    answers = answers_to(open_calls_of(graph, snapshot, messages_key))
    if answers:
        node = _tool_node_of(graph)
        if snapshot.next:
            graph.update_state(config, None, as_node=END)
        update = _update(graph, snapshot, answers, messages_key)
        graph.update_state(config, update, as_node=node)
    return list(answers.values())


async def arepair(
    graph: Graph,
    thread_id: str | None = None,
    *,
    config: RunnableConfig | None = None,
    messages_key: str = MESSAGES,
) -> list[ToolMessage]:
    """Give each tool call without a ToolMessage its answer, as :func:`repair` does."""
    config = addressed(graph, thread_id, config)
    snapshot = await graph.aget_state(config)
    answers = await aanswers_to(open_calls_of(graph, snapshot, messages_key))
    if answers:
        node = _tool_node_of(graph)
        if snapshot.next:
            await graph.aupdate_state(config, None, as_node=END)
        update = _update(graph, snapshot, answers, messages_key)
        await graph.aupdate_state(config, update, as_node=node)
    return list(answers.values())


def open_calls_of(graph: Graph, snapshot: StateSnapshot, messages_key: str) -> list[OpenCall]:
    """Find the tool calls of a thread that have no ToolMessage."""
    return find_open(_messages(snapshot, messages_key), _tools_of(graph), snapshot.config)


def is_cut_off(graph: Graph, snapshot: StateSnapshot, messages_key: str = MESSAGES) -> bool:
    """Tell whether the model comes next, with calls before it that nobody will answer any more."""
    nodes = _tool_nodes(graph)
    if not snapshot.next or not nodes or nodes.keys() & set(snapshot.next) or snapshot.interrupts:
        return False
    return bool(open_calls_of(graph, snapshot, messages_key))


def _messages(snapshot: StateSnapshot, messages_key: str) -> list[BaseMessage]:
    values = snapshot.values
    return list(values.get(messages_key) or ()) if isinstance(values, dict) else []


def _update(
    graph: Graph,
    snapshot: StateSnapshot,
    answers: Mapping[Place, ToolMessage],
    messages_key: str,
) -> dict[str, Any]:
    """Return the history as it is to be, and what else our own graph keeps."""
    update: dict[str, Any] = {
        messages_key: anew(completed(_messages(snapshot, messages_key), answers))
    }
    if DONE_STEPS in snapshot.values and (steps := steps_in(answers)):
        update[DONE_STEPS] = steps
    if isinstance(graph, ReActGraph):
        update |= {
            "status": RunStatus.RUNNING.value,
            "next_step": WAITING_MODEL,
            "trace": [answered_entry(answers)],
        }
    return update


def _tool_nodes(graph: Graph) -> dict[str, ToolNode]:
    return {
        name: node.bound for name, node in graph.nodes.items() if isinstance(node.bound, ToolNode)
    }


def _tool_node_of(graph: Graph) -> str:
    """Name the node in whose place the answers are given, so that the model comes next."""
    nodes = _tool_nodes(graph)
    if not nodes:
        raise ConfigurationError(
            "repair() finds no ToolNode among this graph's nodes, so it knows neither its tools "
            "nor where to go on. Add the tools as builder.add_node('tools', "
            "IdempotentToolNode(tools, ledger=ledger))."
        )
    return next(iter(nodes))


def _tools_of(graph: Graph) -> dict[str, BaseTool]:
    return {
        name: tool
        for node in _tool_nodes(graph).values()
        for name, tool in node.tools_by_name.items()
    }
