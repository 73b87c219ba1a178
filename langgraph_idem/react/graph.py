"""The compiled ReAct graph: durable without being asked, truthful when it is looked at."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from langchain_core.messages import HumanMessage, convert_to_messages
from langchain_core.runnables.config import var_child_runnable_config
from langgraph._internal._constants import CONFIG_KEY_CHECKPOINTER, CONFIG_KEY_DURABILITY
from langgraph.constants import START
from langgraph.graph.state import CompiledStateGraph

from langgraph_idem.react.state import WAITING_MODEL, WAITING_TOOL, RunStatus, entry
from langgraph_idem.tools.context import configurable_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from langchain_core.runnables import RunnableConfig
    from langgraph.types import StateSnapshot

MODEL = "model"
TOOLS = "tools"
_INTERRUPT = "__interrupt__"


class ReActGraph(CompiledStateGraph[Any, Any, Any, Any]):
    """What ``create_react_agent`` returns: a compiled LangGraph graph with three differences.

    It runs with ``durability="sync"`` unless another mode is asked for, takes ``{"task": "..."}``
    as input, and its ``get_state`` tells the truth in ``status`` and ``next_step`` even where a
    process died between two checkpoints or the run waits for a person.
    """

    @classmethod
    def of(cls, compiled: CompiledStateGraph[Any, Any, Any, Any]) -> ReActGraph:
        """Make one of a compiled graph, attribute by attribute."""
        made = cls.__new__(cls)
        made.__dict__.update(compiled.__dict__)
        return made

    def stream(self, input: Any, config: Any = None, **kwargs: Any) -> Iterator[Any]:  # noqa: A002 - LangGraph's name
        """Stream a run, as LangGraph does."""
        config, kwargs = self._durable(config, kwargs)
        return super().stream(taken_in(input), config, **kwargs)

    def astream(self, input: Any, config: Any = None, **kwargs: Any) -> AsyncIterator[Any]:  # noqa: A002 - LangGraph's name
        """Stream a run, as LangGraph does."""
        config, kwargs = self._durable(config, kwargs)
        return super().astream(taken_in(input), config, **kwargs)

    def invoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:  # noqa: A002 - LangGraph's name
        """Run to the end, to a failure (``status`` FAILED) or to a question for a person."""
        return _told(super().invoke(input, config, **kwargs))

    async def ainvoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:  # noqa: A002 - LangGraph's name
        """Run to the end, to a failure (``status`` FAILED) or to a question for a person."""
        return _told(await super().ainvoke(input, config, **kwargs))

    def get_state(self, config: RunnableConfig, *, subgraphs: bool = False) -> StateSnapshot:
        """Get the state, with ``status`` and ``next_step`` as they truly are."""
        return truthful(super().get_state(config, subgraphs=subgraphs))

    async def aget_state(self, config: RunnableConfig, *, subgraphs: bool = False) -> StateSnapshot:
        """Get the state, with ``status`` and ``next_step`` as they truly are."""
        return truthful(await super().aget_state(config, subgraphs=subgraphs))

    def get_state_history(self, config: RunnableConfig, **kwargs: Any) -> Iterator[StateSnapshot]:
        """Get the states that a thread went through, the latest first."""
        return map(truthful, super().get_state_history(config, **kwargs))

    async def aget_state_history(
        self, config: RunnableConfig, **kwargs: Any
    ) -> AsyncIterator[StateSnapshot]:
        """Get the states that a thread went through, the latest first."""
        async for snapshot in super().aget_state_history(config, **kwargs):
            yield truthful(snapshot)

    def _durable(self, config: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Choose ``durability="sync"`` where there is a choice and nobody made it."""
        lent = configurable_of(config) or configurable_of(var_child_runnable_config.get())
        if self.checkpointer is False and lent.get(CONFIG_KEY_DURABILITY) == "sync":
            # LangGraph 1.2 would wait for a checkpoint that nobody puts: an AttributeError.
            return {
                **(config or {}),
                "configurable": {**lent, CONFIG_KEY_DURABILITY: "async"},
            }, kwargs
        has_saver = lent.get(CONFIG_KEY_CHECKPOINTER, self.checkpointer) not in (None, False)
        chosen = (
            kwargs.get("durability") is not None
            or kwargs.get("checkpoint_during") is not None
            or CONFIG_KEY_DURABILITY in lent
            or CONFIG_KEY_DURABILITY in configurable_of(self.config)
        )
        if chosen or not has_saver or self.checkpointer is False:
            return config, kwargs
        return config, {**kwargs, "durability": "sync"}


def taken_in(given: Any) -> Any:
    """Make the input of a new turn: the task as a message, and a status that says it runs.

    What is no new turn (None, a Command) stays as it is.
    """
    if not isinstance(given, dict) or not given:
        return given
    messages = _messages_of(given)
    task = given.get("task") or _last_request(messages)
    return {
        **given,
        **({"messages": messages} if messages else {}),
        **({"task": task} if task else {}),
        "trace": [*given.get("trace", ()), entry("task_received", task=task)],
        "status": RunStatus.RUNNING.value,
        "next_step": WAITING_MODEL,
    }


def _messages_of(given: dict[str, Any]) -> list[Any]:
    messages = given.get("messages") or ()
    if not isinstance(messages, (list, tuple)):
        messages = [messages]
    if messages:
        return list(messages)
    return [HumanMessage(given["task"])] if given.get("task") else []


def _last_request(messages: list[Any]) -> str | None:
    asked = [m for m in convert_to_messages(messages) if isinstance(m, HumanMessage)]
    return str(asked[-1].text) if asked else None


def truthful(snapshot: StateSnapshot) -> StateSnapshot:
    """Correct what channels cannot know: a state is read between two checkpoints, too.

    LangGraph shows the writes of finished calls before their step is through, and a question for
    a person is in no channel.
    """
    if not snapshot.tasks or not isinstance(snapshot.values, dict):
        return snapshot
    values = dict(snapshot.values)
    if TOOLS in snapshot.next:
        values["next_step"] = WAITING_TOOL
    elif START in snapshot.next:
        values |= {"status": RunStatus.RUNNING, "next_step": WAITING_MODEL}
    if snapshot.interrupts:
        values["status"] = RunStatus.WAITING_FOR_HUMAN
    return snapshot._replace(values=values)


def _told(result: Any) -> Any:
    """Say in the result of a run, too, that it waits for a person."""
    if isinstance(result, dict):
        waits = _INTERRUPT in result and "status" in result
        return {**result, "status": RunStatus.WAITING_FOR_HUMAN} if waits else result
    if getattr(result, "interrupts", ()) and isinstance(result.value, dict):
        return replace(result, value={**result.value, "status": RunStatus.WAITING_FOR_HUMAN})
    return result
