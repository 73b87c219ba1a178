"""The same agent without the library: the same tools, LangGraph's own graph and ToolNode."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from sqlalchemy import update
from sqlalchemy.orm import Session

from examples.order_agent.agent import TASK
from examples.order_agent.shop import Notification, Product
from examples.order_agent.tools import check_inventory, engine

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel
    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import BaseCheckpointSaver


@tool
def deduct_inventory(order_id: str, sku: str) -> str:
    """Take one unit of a product from stock for an order."""
    in_stock = (Product.sku == sku) & (Product.stock > 0)
    take_one = update(Product).where(in_stock).values(stock=Product.stock - 1)
    with Session(engine) as session, session.begin():
        left = session.scalar(take_one.returning(Product.stock))
    if left is None:
        raise ValueError(f"{sku} is out of stock")
    return f"deducted, {left} left"


@tool
def notify_shipped(order_id: str) -> str:
    """Tell the customer that an order is on its way."""
    with Session(engine) as session, session.begin():
        session.add(Notification(order_id=order_id))
    return "customer notified"


def build_agent(saver: BaseCheckpointSaver[Any], model: BaseChatModel) -> Any:
    """Make the agent as LangGraph's documentation does."""
    tools = [check_inventory, deduct_inventory, notify_shipped]
    bound = model.bind_tools(tools)
    graph = StateGraph(MessagesState)
    graph.add_node("model", lambda state: {"messages": [bound.invoke(state["messages"])]})
    graph.add_node("tools", ToolNode(tools))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    return graph.compile(checkpointer=saver)


def work(agent: Any, config: RunnableConfig) -> None:
    """Go on from the checkpoint if there is one, or begin. LangGraph's best: durability "sync"."""
    is_unfinished = bool(agent.get_state(config).next)
    task = None if is_unfinished else {"messages": [("user", TASK)]}
    agent.invoke(task, config, durability="sync")
