"""Taking up a run that a process left behind."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, Literal

from langgraph.constants import START

from langgraph_idem.guarded import UNKNOWN_OUTCOME
from langgraph_idem.react.graph import MODEL, ReActGraph
from langgraph_idem.react.model_node import has_failed
from langgraph_idem.react.repair import arepair, is_cut_off, repair
from langgraph_idem.react.state import RunStatus, entry
from langgraph_idem.react.threads import addressed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from langchain_core.runnables import RunnableConfig
    from langgraph.graph.state import CompiledStateGraph
    from langgraph.types import Interrupt, StateSnapshot


class Recovery(str, Enum):
    """What ``recover`` found, and so what it did."""

    NOTHING_TO_RECOVER = "nothing_to_recover"
    RECOVERED_FROM_CHECKPOINT = "recovered_from_checkpoint"
    ALREADY_COMPLETED = "already_completed"
    WAITING_FOR_HUMAN = "waiting_for_human"

    def __str__(self) -> str:
        return str(self.value)


def recover(
    graph: CompiledStateGraph[Any, Any, Any, Any],
    thread_id: str | None = None,
    *,
    config: RunnableConfig | None = None,
    **invoke_kwargs: Any,
) -> Recovery:
    """Resume a run from its last checkpoint, if there is one that is not through.

    A completed run starts nothing. A run that waits for a person goes on waiting; but whether an
    outcome is still unknown is asked of the ledger again, since a person may have settled it
    there. Of a run that FAILED (see ``create_react_agent``) just the failed calls are run again.
    Where the model comes next, but tool calls before it were cut off for good (a new message came
    after a cancel), these are first answered from the ledger, as by ``repair``.

    Args:
        graph: Any compiled graph with a checkpointer, not only ours.
        thread_id: The thread; may be in ``config`` instead.
        config: The run's config.
        **invoke_kwargs: Further arguments of ``graph.invoke``, e.g. ``context``.

    Returns:
        What it found and did. After RECOVERED_FROM_CHECKPOINT the state tells how the run ended.

    Raises:
        ConfigurationError: No checkpointer, no thread, or a checkpoint_id, which would make a
            fork.
        Exception: Whatever the run raises.

    """
    config = addressed(graph, thread_id, config)
    snapshot = graph.get_state(config)
    looks_back = _looks_back(graph, snapshot)
    found = _standing(graph, snapshot, graph.get_state(looks_back) if looks_back else None)
    if found is not None:
        return found
    if _is_failed(graph, snapshot):
        graph.update_state(config, _second_try(), as_node=MODEL)
    elif is_cut_off(graph, snapshot):
        repair(graph, config=config)
    graph.invoke(None, config, **{"durability": "sync", **invoke_kwargs})
    return _afterwards(graph.get_state(config))


async def arecover(
    graph: CompiledStateGraph[Any, Any, Any, Any],
    thread_id: str | None = None,
    *,
    config: RunnableConfig | None = None,
    **invoke_kwargs: Any,
) -> Recovery:
    """Resume a run from its last checkpoint, as :func:`recover` does."""
    config = addressed(graph, thread_id, config)
    snapshot = await graph.aget_state(config)
    looks_back = _looks_back(graph, snapshot)
    found = _standing(graph, snapshot, await graph.aget_state(looks_back) if looks_back else None)
    if found is not None:
        return found
    if _is_failed(graph, snapshot):
        await graph.aupdate_state(config, _second_try(), as_node=MODEL)
    elif is_cut_off(graph, snapshot):
        await arepair(graph, config=config)
    await graph.ainvoke(None, config, **{"durability": "sync", **invoke_kwargs})
    return _afterwards(await graph.aget_state(config))


def _looks_back(
    graph: CompiledStateGraph[Any, Any, Any, Any], snapshot: StateSnapshot
) -> RunnableConfig | None:
    """Return the config of the step before, where it matters which nodes ran last."""
    return snapshot.parent_config if graph.interrupt_after_nodes and snapshot.next else None


def _standing(
    graph: CompiledStateGraph[Any, Any, Any, Any],
    snapshot: StateSnapshot,
    before: StateSnapshot | None,
) -> Recovery | None:
    """Tell where a run stands that is not to be resumed; None if it is."""
    if snapshot.metadata is None:
        return Recovery.NOTHING_TO_RECOVER
    asked_elsewhere = not all(_asks_the_ledger(asked) for asked in snapshot.interrupts)
    if asked_elsewhere or _stands_at_breakpoint(graph, snapshot, before):
        return Recovery.WAITING_FOR_HUMAN
    if not snapshot.tasks and not _is_failed(graph, snapshot):
        return Recovery.ALREADY_COMPLETED
    return None


def _asks_the_ledger(asked: Interrupt) -> bool:
    """Tell whether an interrupt is our question about an outcome: reading on repeats nothing."""
    return isinstance(asked.value, dict) and asked.value.get("type") == UNKNOWN_OUTCOME


def _stands_at_breakpoint(
    graph: CompiledStateGraph[Any, Any, Any, Any],
    snapshot: StateSnapshot,
    before: StateSnapshot | None,
) -> bool:
    """Tell whether a person has to let the run pass, by the graph's ``interrupt_before`` or after.

    A checkpoint does not tell a run that stopped there from one that died there; waiting is safe.
    """
    ran = [task.name for task in before.tasks] if before is not None else []
    return _names(graph.interrupt_before_nodes, snapshot.next) or _names(
        graph.interrupt_after_nodes, ran
    )


def _names(breakpoints: Sequence[str] | Literal["*"], nodes: Sequence[str]) -> bool:
    return any(breakpoints == "*" or name in breakpoints for name in nodes if name != START)


def _is_failed(graph: CompiledStateGraph[Any, Any, Any, Any], snapshot: StateSnapshot) -> bool:
    return isinstance(graph, ReActGraph) and has_failed(snapshot.values)


def _second_try() -> dict[str, Any]:
    return {"status": RunStatus.RUNNING.value, "trace": [entry("failed_calls_run_again")]}


def _afterwards(snapshot: StateSnapshot) -> Recovery:
    waits = bool(snapshot.interrupts)
    return Recovery.WAITING_FOR_HUMAN if waits else Recovery.RECOVERED_FROM_CHECKPOINT
