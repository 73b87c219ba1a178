"""What is on disk, read by a process that has seen nothing else."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from typing import Any

import sqlalchemy as sa

from examples.order_agent.shop import SKU, Notification, Product


@dataclasses.dataclass(frozen=True)
class Evidence:
    """The persisted facts about one order.

    Attributes:
        stock: Units on the shelf.
        notifications: Messages to the customer.
        effects: The ledger's rows in the order of their beginning: operation and state.
        status: The checkpoint's status; None if there is no checkpoint.
        next_step: Where the checkpoint says that the loop stands.
        last_message: Type of the last message in the checkpoint.
        checkpoint_id: Which checkpoint it is.

    """

    stock: int
    notifications: int
    effects: tuple[str, ...]
    status: str | None = None
    next_step: str | None = None
    last_message: str | None = None
    checkpoint_id: str | None = None

    def in_words(self) -> list[str]:
        """Tell it in two lines."""
        where = f"{self.status or 'none'}{f', {self.next_step}' if self.next_step else ''}"
        return [
            f"stock {self.stock} | notifications {self.notifications} | checkpoint {where}",
            f"ledger: {', '.join(self.effects) or 'empty'}",
        ]


def main() -> None:
    """Print the evidence as JSON; the databases are named by SHOP_URL and CHECKPOINTS_URL."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--unsafe", action="store_true")
    found = read(unsafe=parser.parse_args().unsafe)
    print(json.dumps(dataclasses.asdict(found)))


def read(*, unsafe: bool = False) -> Evidence:
    """Read the shop's rows, the ledger's rows and the checkpoint."""
    return Evidence(**_shop_rows(), **_ledger_rows(unsafe=unsafe), **_checkpoint(unsafe=unsafe))


def _shop_rows() -> dict[str, Any]:
    with sa.create_engine(os.environ["SHOP_URL"]).connect() as conn:
        stock = conn.scalar(sa.select(Product.stock).where(Product.sku == SKU))
        notifications = conn.scalar(sa.select(sa.func.count()).select_from(Notification))
    return {"stock": stock, "notifications": notifications}


def _ledger_rows(*, unsafe: bool) -> dict[str, Any]:
    from examples.order_agent.tools import engine, ledger

    if unsafe or not sa.inspect(engine).has_table("idem_effects"):
        return {"effects": ()}
    rows = sorted(ledger.effects(), key=lambda row: row.began_at)
    return {"effects": tuple(f"{row.operation} {row.state}" for row in rows)}


def _checkpoint(*, unsafe: bool) -> dict[str, Any]:
    from examples.order_agent.agent import THREAD, scripted_model
    from examples.order_agent.checkpoints import open_checkpoints
    from examples.order_agent.worker import variant

    with open_checkpoints(os.environ["CHECKPOINTS_URL"]) as saver:
        agent = variant(unsafe=unsafe).build_agent(saver, scripted_model())
        state = agent.get_state({"configurable": {"thread_id": THREAD}})
    if state.created_at is None:
        return {}
    told = _told_by_langgraph(state) if unsafe else state.values
    messages = state.values.get("messages") or [None]
    return {
        "status": getattr(told["status"], "name", told["status"]),
        "next_step": told["next_step"],
        "last_message": getattr(messages[-1], "type", None),
        "checkpoint_id": state.config["configurable"]["checkpoint_id"],
    }


def _told_by_langgraph(state: Any) -> dict[str, Any]:
    """Without our state there is only the name of the next node."""
    if not state.next:
        return {"status": "COMPLETED", "next_step": None}
    return {"status": "RUNNING", "next_step": f"waiting_{state.next[0].removesuffix('s')}"}


if __name__ == "__main__":
    main()
