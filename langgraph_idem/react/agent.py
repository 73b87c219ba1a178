"""``create_react_agent``: two nodes, one Send per tool call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from langgraph._internal._runnable import RunnableCallable
from langgraph.constants import START
from langgraph.graph import StateGraph
from langgraph.prebuilt.tool_node import _default_handle_tool_errors

from langgraph_idem.react.graph import MODEL, TOOLS, ReActGraph
from langgraph_idem.react.model_node import ModelNode, Prompt, bound_model, next_after_model
from langgraph_idem.react.state import with_users_fields
from langgraph_idem.react.tools_node import ReActToolNode
from langgraph_idem.tools.advice import check_file

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from langchain_core.language_models import LanguageModelLike
    from langchain_core.tools import BaseTool
    from langgraph.store.base import BaseStore
    from langgraph.types import Checkpointer

    from langgraph_idem.ledger import Ledger
    from langgraph_idem.tools.errors import HandleToolErrors


def create_react_agent(  # noqa: PLR0913 - options of their own, all but two by name
    model: LanguageModelLike,
    tools: Sequence[BaseTool | Callable[..., Any]],
    *,
    ledger: Ledger,
    checkpointer: Checkpointer = None,
    prompt: Prompt | None = None,
    state_schema: type[Any] | None = None,
    store: BaseStore | None = None,
    context_schema: type[Any] | None = None,
    name: str | None = None,
    handle_tool_errors: HandleToolErrors = _default_handle_tool_errors,
    interrupt_before: list[str] | None = None,
    interrupt_after: list[str] | None = None,
) -> ReActGraph:
    """Build an agent whose guarded tools take hold exactly once, whatever dies on the way.

    The run's state (see ``ReActState``) is written through to the checkpointer at each step. A
    tool's own exception ends the run with ``status`` FAILED, told in ``trace`` and to the model;
    ``recover`` runs the failed calls again. ``invoke(None, config)`` or ``recover`` resumes what
    a process left behind when it died.

    Args:
        model: A chat model; the tools are bound to it unless it has tools bound.
        tools: Tools or functions, guarded or not.
        ledger: The ledger that the guarded tools were decorated with.
        checkpointer: Where the run's state is kept; without one nothing survives the process.
        prompt: A text or SystemMessage before the messages, or a function of the state that
            returns all the messages the model is to see.
        state_schema: A TypedDict with fields of your own; best derived from ``ReActState``.
        store: LangGraph's long-term store, for tools that want it.
        context_schema: Type of the run-time context.
        name: Name of the graph.
        handle_tool_errors: Which exceptions of tools are worded for the model and do not fail the
            run, as in ToolNode; by default only invalid arguments.
        interrupt_before: Nodes (``"model"``, ``"tools"``) before which the run stops.
        interrupt_after: Nodes after which it stops.

    Raises:
        ConfigurationError: The model cannot call tools, the ledger is none, or the state schema
            redefines a field.

    """
    check_file(ledger, checkpointer)
    tool_node = ReActToolNode(
        tools, ledger=ledger, name=TOOLS, handle_tool_errors=handle_tool_errors
    )
    asking = ModelNode(
        bound_model(model, list(tool_node.tools_by_name.values())),
        prompt,
        tool_node.tools_by_name,
    )
    builder: StateGraph[Any, Any, Any, Any] = StateGraph(
        with_users_fields(state_schema), context_schema=context_schema
    )
    builder.add_node(MODEL, RunnableCallable(asking.blocking, asking.awaiting, name=MODEL))
    builder.add_node(TOOLS, tool_node)
    builder.add_edge(START, MODEL)
    builder.add_conditional_edges(MODEL, next_after_model, path_map=[TOOLS, "__end__"])
    builder.add_edge(TOOLS, MODEL)
    return ReActGraph.of(
        builder.compile(
            checkpointer=checkpointer,
            store=store,
            name=name,
            interrupt_before=interrupt_before,
            interrupt_after=interrupt_after,
        )
    )
