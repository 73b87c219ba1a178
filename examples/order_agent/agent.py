"""The agent: a chat model, the three tools, a checkpointer."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from langchain_core.messages import AIMessage

from examples.order_agent.tools import TOOLS, ledger
from langgraph_idem import Recovery, create_react_agent, recover
from langgraph_idem.testing import ScriptedChatModel

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel
    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import BaseCheckpointSaver

TASK = "process order O-1001: check stock, deduct, notify"
THREAD = "O-1001"
PROMPT = (
    "You process orders. Order O-1001 is for one unit of SKU-1. Call one tool at a time. "
    "A result that begins with ALREADY_DONE is a success: go on with the next step."
)


def build_agent(saver: BaseCheckpointSaver[Any], model: BaseChatModel) -> Any:
    """Make the agent."""
    return create_react_agent(model, TOOLS, ledger=ledger, checkpointer=saver, prompt=PROMPT)


def work(agent: Any, config: RunnableConfig) -> None:
    """Go on with the order where a dead process left it, or begin with it."""
    found = recover(agent, config=config)
    print(f"recover: {found.value}", flush=True)
    if found is Recovery.NOTHING_TO_RECOVER:
        agent.invoke({"task": TASK}, config)


def scripted_model() -> BaseChatModel:
    """Return a model without a model: it makes the calls that the task asks for, in order."""
    return ScriptedChatModel(
        [
            _calls("check_inventory", sku="SKU-1"),
            _calls("deduct_inventory", order_id="O-1001", sku="SKU-1"),
            _calls("notify_shipped", order_id="O-1001"),
            AIMessage("Order O-1001: one unit taken from stock, the customer is notified."),
        ]
    )


def _calls(name: str, **args: str) -> AIMessage:
    return AIMessage("", tool_calls=[{"name": name, "args": args, "id": f"call_{name}"}])


def model_named(name: str | None) -> BaseChatModel:
    """Return the scripted model, or a real one through LangChain.

    Args:
        name: ``PROVIDER:NAME`` as LangChain's ``init_chat_model`` takes it; None: scripted.

    """
    if name is None:
        return scripted_model()
    try:
        from langchain.chat_models import init_chat_model
    except ImportError:
        sys.exit('--model needs LangChain: pip install "langgraph-idem[langchain]"')
    try:
        model: BaseChatModel = init_chat_model(name)
    except Exception as error:  # noqa: BLE001 - each provider's package has errors of its own
        sys.exit(f"--model {name}: {error}")
    return model
