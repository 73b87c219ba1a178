"""``IdempotencyMiddleware``: what the tool node adds, for LangChain's ``create_agent``."""

# No `from __future__ import annotations`: LangChain reads the state's annotations at run time.

import operator
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Final

from langchain.agents.middleware import AgentMiddleware, AgentState, ModelRequest
from langchain.agents.middleware.types import (
    ExtendedModelResponse,
    ModelResponse,
    OmitFromInput,
    ToolCallRequest,
)
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import BaseTool
from langgraph.runtime import Runtime
from langgraph.types import Command

from langgraph_idem.effects import State
from langgraph_idem.errors import ConfigurationError
from langgraph_idem.guarded import guarded_in
from langgraph_idem.ledger import Ledger
from langgraph_idem.operations import KeySpec
from langgraph_idem.react.model_node import open_calls, with_done_steps
from langgraph_idem.react.state import (
    WAITING_MODEL,
    WAITING_TOOL,
    NextStep,
    RunStatus,
    Standing,
    entry,
)
from langgraph_idem.tools.context import RunningCall
from langgraph_idem.tools.leaving import past_everybody
from langgraph_idem.tools.node import RECEIPT, aexecuted, executed
from langgraph_idem.tools.steps import merge_steps

_MESSAGES: Final = "messages"
_LANGCHAINS_CHAIN: Final = "langchain.agents.factory"
"""Where the function comes from that a middleware is given if another one stands inside of it."""


class IdempotencyState(AgentState[Any], total=False):
    """What ``IdempotencyMiddleware`` adds to an agent's state.

    Attributes:
        done_steps: The effects that took hold, from their receipts.
        next_step: What the loop waits for; None when it is through.
        status: Where the run stands: RUNNING until it is COMPLETED.
        trace: What happened, in order; entries are only ever added.

    """

    # LangGraph takes the last item for the reducer; in any other place it would be overlooked.
    done_steps: Annotated[list[dict[str, Any]], OmitFromInput, merge_steps]
    next_step: Annotated[NextStep | None, OmitFromInput, Standing(WAITING_MODEL)]
    status: Annotated[RunStatus, OmitFromInput, Standing(RunStatus.RUNNING.value, RunStatus)]
    trace: Annotated[list[dict[str, Any]], OmitFromInput, operator.add]


_FIELDS: Final = ("done_steps", "next_step", "status", "trace")


class IdempotencyMiddleware(AgentMiddleware[Any, Any, Any]):
    """Makes the guarded tools of ``create_agent`` take hold exactly once, whatever is around them.

    It does for ``create_agent`` what ``IdempotentToolNode`` does for a graph of your own: it tells
    guarded tools which call they serve, puts their receipts on the tools' messages, and words the
    ledger's errors for the model. Those that are not the model's business (an unknown outcome, a
    busy effect, a database that fails) leave the run past any other middleware. By its hooks it
    keeps ``done_steps``, ``next_step``, ``status`` and ``trace`` in the state.

    It must be the last in ``middleware=[...]``: only there does it see what really runs. Another
    order is refused at the first tool call, before the tool runs.

    Args:
        ledger: The ledger that the guarded tools were decorated with.
        guard: Tools to be guarded here, as by :meth:`Ledger.guard`: the tool's name, and its key
            or all its options, ``{"refund": ("order_id",), "mail": {"key": ("to",), ...}}``.
        tell_model: Whether the system message lists what has been done already.

    Raises:
        ConfigurationError: ``ledger`` is no Ledger. At the first tool call: ``guard`` names no
            tool of the agent, or one that is guarded already.

    """

    state_schema = IdempotencyState

    def __init__(
        self,
        ledger: Ledger,
        *,
        guard: Mapping[str, KeySpec | Mapping[str, Any]] | None = None,
        tell_model: bool = True,
    ) -> None:
        super().__init__()
        if not isinstance(ledger, Ledger):
            raise ConfigurationError(
                f"ledger={ledger!r} is no ledger. Write "
                "IdempotencyMiddleware(Ledger('sqlite:///shop.db'))."
            )
        self.ledger = ledger
        self.tell_model = tell_model
        self.tools = ()
        self._guard = dict(guard or {})
        self._guarded: dict[str, tuple[BaseTool, BaseTool]] = {}

    @property
    def name(self) -> str:
        """The name of its nodes in checkpoints: it must never change, in subclasses neither."""
        return "IdempotencyMiddleware"

    def before_model(self, state: Any, runtime: Runtime[Any]) -> dict[str, Any]:  # noqa: ARG002 - LangChain's signature
        """Take down what the tools did, and that the model is to be asked."""
        _check_fields(state)
        return {
            **_taken_down(state[_MESSAGES]),
            "status": RunStatus.RUNNING.value,
            "next_step": WAITING_MODEL,
        }

    async def abefore_model(self, state: Any, runtime: Runtime[Any]) -> dict[str, Any]:
        """Take down what the tools did, and that the model is to be asked."""
        return self.before_model(state, runtime)

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ExtendedModelResponse[Any]:
        """Tell the model what has been done, and take down what it answers."""
        return _answered(handler(self._told(request)))

    async def awrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]],
    ) -> ExtendedModelResponse[Any]:
        """Tell the model what has been done, and take down what it answers."""
        return _answered(await handler(self._told(request)))

    def wrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Any]
    ) -> Any:
        """Run a tool as ``IdempotentToolNode`` does."""
        with past_everybody():
            call = self._entered(request, handler)
            return executed(self.ledger, call, call.request, handler)

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Any]]
    ) -> Any:
        """Run a tool as ``IdempotentToolNode`` does."""
        with past_everybody():
            call = self._entered(request, handler)
            return await aexecuted(self.ledger, call, call.request, handler)

    def after_agent(self, state: Any, runtime: Runtime[Any]) -> dict[str, Any]:  # noqa: ARG002 - LangChain's signature
        """Take down that the run is through, however it came to its end."""
        taken = _taken_down(state[_MESSAGES])
        return {
            **taken,
            "status": RunStatus.COMPLETED.value,
            "next_step": None,
            "trace": [*taken.get("trace", ()), entry("completed")],
        }

    async def aafter_agent(self, state: Any, runtime: Runtime[Any]) -> dict[str, Any]:
        """Take down that the run is through, however it came to its end."""
        return self.after_agent(state, runtime)

    def _entered(self, request: ToolCallRequest, handler: Callable[..., Any]) -> RunningCall:
        _check_order(handler)
        _check_names(self._guard, [*request.runtime.tools, request.tool])
        if request.tool is not None and request.tool.name in self._guard:
            request = request.override(tool=self._guarded_here(request.tool))
        return RunningCall(self, request, _MESSAGES)

    def _guarded_here(self, tool: BaseTool) -> BaseTool:
        """Guard a tool, once."""
        known, guarded = self._guarded.get(tool.name, (None, tool))
        if known is not tool:
            options = self._guard[tool.name]
            options = options if isinstance(options, Mapping) else {"key": options}
            guarded = self.ledger.guard(tool, **options)
            self._guarded[tool.name] = tool, guarded
        return guarded

    def _told(self, request: ModelRequest[Any]) -> ModelRequest[Any]:
        steps: Any = request.state.get("done_steps") or []
        if not self.tell_model or not steps:
            return request
        given = [request.system_message] if request.system_message is not None else []
        told: Any = with_done_steps([*given], steps)[0]
        return request.override(system_message=told)


def _check_order(handler: Callable[..., Any]) -> None:
    """Refuse to run a tool through a middleware that stands inside of ours.

    LangChain shows a middleware nothing of the others; what it gives to the innermost is the tool
    node's own function, and to all others one of its chain's.
    """
    if getattr(handler, "__module__", None) == _LANGCHAINS_CHAIN:
        raise ConfigurationError(
            "IdempotencyMiddleware must be the last in middleware=[...]: a middleware after it "
            "(HumanInTheLoopMiddleware, ToolRetryMiddleware...) changes the call, or the answer "
            "to the model, behind its back. Write middleware=[..., IdempotencyMiddleware(ledger)]. "
            "Nothing was done."
        )


def _check_names(named: Iterable[str], tools: Sequence[Any]) -> None:
    """Refuse to run any tool while one that should be guarded is not, by a slip of the pen."""
    by_name = {tool.name: tool for tool in tools if isinstance(tool, BaseTool)}
    for name in named:
        if name not in by_name:
            raise ConfigurationError(
                f"guard= of IdempotencyMiddleware names {name!r}, which is no tool of this agent. "
                f"Its tools are: {', '.join(sorted(by_name)) or '(none)'}."
            )
        if guarded_in(by_name[name]) is not None:
            raise ConfigurationError(
                f"guard= of IdempotencyMiddleware names {name!r}, which is guarded already. Leave "
                "it out of guard=."
            )


def _check_fields(state: Any) -> None:
    """Refuse a state in which somebody else's field took the place of one of ours.

    Of two fields of one name LangChain silently takes the later one. Ours have a value from the
    start.
    """
    strange = [name for name in _FIELDS if name not in state]
    if not isinstance(state.get("status"), RunStatus):
        strange.append("status")
    if strange:
        raise ConfigurationError(
            f"The agent's state_schema, or another middleware's, has a field {strange[0]!r} of "
            "its own, which IdempotencyMiddleware keeps. Give that field another name."
        )


def _taken_down(messages: Sequence[BaseMessage]) -> dict[str, Any]:
    """Return the updates that follow from the messages since the model's last answer."""
    answers = _answers(messages)
    if not answers and messages and isinstance(messages[-1], HumanMessage):
        return {"trace": [entry("task_received", task=str(messages[-1].text))]}
    steps = [step for message in answers for step in _steps_in(message)]
    finished = [_finished(message) for message in answers]
    return {"trace": finished, "done_steps": steps} if finished else {}


def _answers(messages: Sequence[BaseMessage]) -> list[ToolMessage]:
    last = max((i for i, m in enumerate(messages) if isinstance(m, AIMessage)), default=-1)
    return [message for message in messages[last + 1 :] if isinstance(message, ToolMessage)]


def _steps_in(message: ToolMessage) -> list[dict[str, Any]]:
    """Return the effects that took hold, from the receipts on a tool's message."""
    own = dict(message.additional_kwargs.get(RECEIPT) or {})
    receipts = [*own.pop("also", ()), own]
    return [step for step in receipts if step.get("outcome") == State.SUCCEEDED]


def _finished(message: ToolMessage) -> dict[str, Any]:
    receipt = message.additional_kwargs.get(RECEIPT)
    return entry(
        "tool_finished",
        tool=message.name,
        tool_call_id=message.tool_call_id,
        status=message.status,
        **({"effect": receipt} if receipt else {}),
    )


def _answered(response: ModelResponse[Any]) -> ExtendedModelResponse[Any]:
    """Add to the model's answer what comes next; its commit is the answer's own."""
    asked = [call for m in response.result if isinstance(m, AIMessage) for call in m.tool_calls]
    update = {
        "next_step": WAITING_TOOL if open_calls(response.result) else None,
        "trace": [entry("model_answered", tool_calls=[call["name"] for call in asked])],
    }
    return ExtendedModelResponse(model_response=response, command=Command(update=update))
