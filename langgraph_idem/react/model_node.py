"""The node that asks the model; its two colours differ in the one line that asks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, SystemMessage, ToolMessage
from langchain_core.runnables import Runnable, RunnableBinding, RunnableConfig
from langgraph.constants import END
from langgraph.types import Send

from langgraph_idem.errors import ConfigurationError
from langgraph_idem.react.graph import TOOLS
from langgraph_idem.react.history import (
    Place,
    aanswers_to,
    anew,
    answered_entry,
    answers_to,
    completed,
    find_open,
    steps_in,
)
from langgraph_idem.react.state import WAITING_TOOL, RunStatus, entry
from langgraph_idem.tools.steps import DONE_STEPS, merge_steps

if TYPE_CHECKING:
    from langchain_core.tools import BaseTool

Prompt = str | SystemMessage | Callable[[Any], Sequence[BaseMessage]]


@dataclass(frozen=True)
class ModelNode:
    """Asks the model what to do next.

    Attributes:
        model: The model, tools bound.
        prompt: What stands before the messages.
        tools: The tools by name: calls of theirs that were cut off are answered from the ledger.

    """

    model: Runnable[Any, Any]
    prompt: Prompt | None
    tools: Mapping[str, BaseTool]

    def blocking(self, state: dict[str, Any], config: RunnableConfig) -> dict[str, Any] | None:
        """Ask, in a thread."""
        if has_failed(state):
            return None
        cut_off = find_open(state.get("messages") or [], self.tools, config)
        state, repairs = _repaired(state, answers_to(cut_off))
        return _joined(repairs, answered(self.model.invoke(self.asked(state), config)))

    async def awaiting(
        self, state: dict[str, Any], config: RunnableConfig
    ) -> dict[str, Any] | None:
        """Ask, on an event loop."""
        if has_failed(state):
            return None
        cut_off = find_open(state.get("messages") or [], self.tools, config)
        state, repairs = _repaired(state, await aanswers_to(cut_off))
        return _joined(repairs, answered(await self.model.ainvoke(self.asked(state), config)))

    def asked(self, state: dict[str, Any]) -> list[BaseMessage]:
        """Return what the model gets to see."""
        return with_done_steps(self._prompted(state), state.get("done_steps") or [])

    def _prompted(self, state: dict[str, Any]) -> list[BaseMessage]:
        messages = list(state.get("messages") or [])
        if self.prompt is None:
            return messages
        if isinstance(self.prompt, str):
            return [SystemMessage(self.prompt), *messages]
        if isinstance(self.prompt, SystemMessage):
            return [self.prompt, *messages]
        return list(self.prompt(state))


def _repaired(
    state: dict[str, Any], answers: Mapping[Place, ToolMessage]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the state that the model is to see, and the updates that make it so.

    After a cancel a new message finds calls that nobody will answer any more: a provider would
    refuse such a history.
    """
    if not answers:
        return state, {}
    messages, steps = completed(state["messages"], answers), steps_in(answers)
    known = merge_steps(state.get(DONE_STEPS) or [], steps)
    updates = {"messages": anew(messages), DONE_STEPS: steps, "trace": [answered_entry(answers)]}
    return {**state, "messages": messages, DONE_STEPS: known}, updates


def _joined(repairs: dict[str, Any], update: dict[str, Any]) -> dict[str, Any]:
    """Put what was mended before what the model answered."""
    joined = {name: [*value, *update.get(name, ())] for name, value in repairs.items()}
    return {**update, **joined}


def bound_model(model: Any, tools: Sequence[BaseTool]) -> Runnable[Any, Any]:
    """Bind the tools to a model, unless it has some bound already.

    Raises:
        ConfigurationError: It is no chat model that can call tools.

    """
    if isinstance(model, RunnableBinding):
        if "tools" in model.kwargs or not tools:
            return model
        return bound_model(model.bound, tools).bind(**model.kwargs)
    if not tools and isinstance(model, Runnable):
        return model
    if not isinstance(model, BaseChatModel) and not hasattr(model, "bind_tools"):
        raise ConfigurationError(
            f"model={model!r} cannot call tools. Give a LangChain chat model, e.g. "
            "init_chat_model('anthropic:claude-sonnet-4-5')."
        )
    bound: Runnable[Any, Any] = model.bind_tools(tools)
    return bound


def has_failed(state: dict[str, Any]) -> bool:
    """Tell whether the calls that were just run failed; a new turn would have said RUNNING."""
    return bool(state.get("status") == RunStatus.FAILED)


def answered(message: Any) -> dict[str, Any]:
    """Return the updates that the model's answer makes, what comes next included."""
    calls = message.tool_calls if isinstance(message, AIMessage) else []
    told = entry("model_answered", tool_calls=[call["name"] for call in calls])
    if calls:
        return {
            "messages": [message],
            "status": RunStatus.RUNNING.value,
            "next_step": WAITING_TOOL,
            "trace": [told],
        }
    return {
        "messages": [message],
        "status": RunStatus.COMPLETED.value,
        "next_step": None,
        "trace": [told, entry("completed")],
    }


def next_after_model(state: dict[str, Any]) -> Any:
    """Send each call that has no result yet on its way by itself, or end."""
    calls = [] if has_failed(state) else open_calls(state.get("messages") or [])
    return [Send(TOOLS, [call]) for call in calls] or END


def open_calls(messages: Sequence[BaseMessage]) -> list[dict[str, Any]]:
    """Return the tool calls of the last AIMessage that have no result, or a failure for one."""
    at = next((i for i in reversed(range(len(messages))) if _is_ai(messages[i])), None)
    if at is None:
        return []
    asking = messages[at]
    assert isinstance(asking, AIMessage)  # noqa: S101 - found by its type above
    answers = [m for m in messages[at + 1 :] if isinstance(m, ToolMessage)]
    settled = {m.tool_call_id for m in answers if m.id != failure_id(asking, m.tool_call_id)}
    still_open = [call for call in asking.tool_calls if call["id"] not in settled]
    return [{**call, "type": "tool_call"} for call in still_open]


def failure_id(asking: AIMessage | None, call_id: str | None) -> str:
    """Name the message of a failed call, so that its later result takes the message's place.

    The AIMessage's id is part of it: some providers number their calls anew each turn.
    """
    return f"failed-{asking.id if asking is not None else None}-{call_id}"


def _is_ai(message: BaseMessage) -> bool:
    return isinstance(message, AIMessage)


def with_done_steps(
    messages: list[BaseMessage], steps: Sequence[dict[str, Any]]
) -> list[BaseMessage]:
    """Tell the model what has been done, in the system message: there can be but one."""
    if not steps:
        return messages
    lines = [f"- {step['operation']} for {step['key']}: {step['outcome']}" for step in steps]
    text = "\n".join(["Effects that have taken hold already; do not repeat them:", *lines])
    if messages and isinstance(messages[0], SystemMessage):
        return [_appended(messages[0], text), *messages[1:]]
    return [SystemMessage(text), *messages]


def _appended(message: SystemMessage, text: str) -> SystemMessage:
    content = message.content
    if isinstance(content, str):
        return message.model_copy(update={"content": f"{content}\n\n{text}"})
    return message.model_copy(update={"content": [*content, {"type": "text", "text": text}]})
