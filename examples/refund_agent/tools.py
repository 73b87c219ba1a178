"""The agent's tool, twice: with a look-up, and without anything that could tell."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from langchain_core.tools import BaseTool, tool

from examples.refund_agent.provider import client
from langgraph_idem import ABSENT, Effect, Found, Ledger

if TYPE_CHECKING:
    import stripe

LEASE = float(os.environ.get("REFUND_LEASE", "300"))


def find_refund(effect: Effect) -> Any:
    """Ask the provider: is there a refund that carries this effect's mark?"""
    made = client().v1.refunds.list({"charge": effect.arguments["charge"], "limit": 100})
    for refund in made.auto_paging_iter():
        if (refund.to_dict().get("metadata") or {}).get("effect") == effect.idempotency_key:
            return Found(f"refund {refund.id} over {refund.amount} cents")
    return ABSENT


def refund_tool(ledger: Ledger, stripe_client: stripe.StripeClient, *, looks_up: bool) -> BaseTool:
    """Make the tool.

    Args:
        ledger: Where its effects are recorded.
        stripe_client: How it calls the provider.
        looks_up: Whether it can ask the provider what became of a lost attempt. Without, it
            stands for all the providers that have neither a look-up nor idempotency keys.

    """

    @tool
    @ledger.remote(key=("order_id",), lookup=find_refund if looks_up else None, lease=LEASE)
    def refund(effect: Effect, /, order_id: str, charge: str, cents: int) -> str:
        """Pay a customer's money back."""
        made = stripe_client.v1.refunds.create(
            {"charge": charge, "amount": cents, "metadata": {"effect": effect.idempotency_key}},
            {"idempotency_key": effect.idempotency_key},
        )
        return f"refund {made.id} over {made.amount} cents"

    made: BaseTool = refund
    return made
