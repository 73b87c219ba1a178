"""The agent's three tools: this is all that a user of langgraph-idem writes."""

from __future__ import annotations

import os

from langchain_core.tools import tool
from sqlalchemy import create_engine, update
from sqlalchemy.orm import Session

from examples.order_agent.shop import Notification, Product
from langgraph_idem import Ledger, Receipt

engine = create_engine(os.environ.get("SHOP_URL", "sqlite:///shop.db"))
ledger = Ledger(engine)  # its rows lie beside the shop's: that is how both are one commit


def already_done(receipt: Receipt) -> str:
    """What the model reads when the effect took hold in an earlier attempt."""
    return f"ALREADY_DONE: {receipt.result}"


@tool
def check_inventory(sku: str) -> str:
    """Look up how many units of a product are in stock."""
    with Session(engine) as session:
        product = session.get(Product, sku)
    return f"{product.stock} in stock" if product else f"no product {sku}"


@tool
@ledger.transactional(key=("order_id", "sku"), on_replay=already_done)
def deduct_inventory(session: Session, /, order_id: str, sku: str) -> str:
    """Take one unit of a product from stock for an order."""
    in_stock = (Product.sku == sku) & (Product.stock > 0)
    take_one = update(Product).where(in_stock).values(stock=Product.stock - 1)
    left = session.scalar(take_one.returning(Product.stock))
    if left is None:
        raise ValueError(f"{sku} is out of stock")
    return f"deducted, {left} left"


@tool
@ledger.transactional(key=("order_id",), on_replay=already_done)
def notify_shipped(session: Session, /, order_id: str) -> str:
    """Tell the customer that an order is on its way."""
    session.add(Notification(order_id=order_id))
    return "customer notified"


TOOLS = [check_inventory, deduct_inventory, notify_shipped]
