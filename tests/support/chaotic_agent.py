"""A program that makes one payment through the API at $AGENTRAAS_CHAOS_URL, guarded or not.

``python -m tests.support.chaotic_agent guarded LEDGER_URL`` sends the ledger's key;
``python -m tests.support.chaotic_agent unguarded`` tries once more without one, as many do.
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta

import httpx

from langgraph_idem import Ledger
from langgraph_idem.effects import Effect


def post(order_id: str, headers: dict[str, str]) -> str:
    """Send the payment."""
    url = f"{os.environ['AGENTRAAS_CHAOS_URL']}/charges"
    answer = httpx.post(url, json={"order": order_id, "cents": 500}, headers=headers)
    return str(answer.raise_for_status().json()["id"])


def guarded(ledger_url: str) -> str:
    """Pay once, through a ledger."""
    with Ledger(ledger_url) as ledger:
        ledger.setup()

        @ledger.remote(key=("order_id",), provider_keeps_key=timedelta(hours=24))
        def charge(effect: Effect, /, order_id: str) -> str:
            return post(order_id, {"Idempotency-Key": effect.idempotency_key})

        return charge("O-1")


def unguarded() -> str:
    """Pay, and once more if that seems to have failed."""
    try:
        return post("O-1", {})
    except httpx.HTTPError:
        return post("O-1", {})


if __name__ == "__main__":
    print(guarded(sys.argv[2]) if sys.argv[1] == "guarded" else unguarded())  # noqa: T201 - its answer
