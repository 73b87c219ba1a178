"""Field cases 37 to 41 and 47: which effect a call stands for.

Case 42 (the canonical form of arguments) is in ``tests/unit/test_keys.py``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any, Final

import pytest
import sqlalchemy as sa
from langchain_core.messages import ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from sqlalchemy.orm import Session

from langgraph_idem import PER_CALL, LedgerError
from langgraph_idem.testing import age
from tests.support.cases import (
    ALL_SEAMS,
    HELLO,
    PAY,
    PAY_ONE,
    Business,
    Hooks,
    agent,
    answers,
    asks,
    pay_tool,
    run,
)

ONCE: Final = [("O-1", 5)]
TWICE: Final = [("O-1", 5), ("O-1", 5)]
PAY_TWO: Final = ("pay", {"order_id": "O-2", "cents": 7})
COLOURS: Final = ("sync", "async")
OUR_SEAMS: Final = tuple(seam for seam in ALL_SEAMS if seam != "tool_node")
SYNC: Final[Any] = {"durability": "sync"}
"""What ``PER_CALL`` asks for."""


@pytest.fixture
async def business(sqlite_url: str) -> AsyncIterator[Business]:
    """Open a fresh business."""
    founded = Business.founded_at(sqlite_url)
    yield founded
    await founded.ledger.aclose()


async def ended(
    business: Business, seam: str, script: list[Any], colour: str = "sync", **options: Any
) -> list[ToolMessage]:
    """Run an agent whose model says what the script says, and return the tool's answers."""
    tools = [pay_tool(business, colour=colour, **options)]
    graph = agent(seam, script, tools, business, InMemorySaver())
    end = await run(colour, graph, HELLO, **SYNC)
    while sum(message.type == "ai" for message in end["messages"]) < len(script):
        end = await run(colour, graph, {"messages": [("user", "go on")]}, **SYNC)
    return answers(end["messages"])


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize(
    ("seam", "options", "paid"),
    [
        ("tool_node", {"guarded": False}, TWICE),
        *((seam, {}, ONCE) for seam in ALL_SEAMS),
        *((seam, {"key": PER_CALL}, TWICE) for seam in OUR_SEAMS),
    ],
)
async def test_case_37_two_identical_calls_in_one_message(
    business: Business, seam: str, options: dict[str, Any], paid: list[Any], colour: str
) -> None:
    """Two ids in one message: one effect under a business key; two under PER_CALL, as asked."""
    told = await ended(business, seam, [asks(PAY_ONE, PAY_ONE), "Paid."], colour, **options)
    assert [message.content for message in told] == ["paid O-1", "paid O-1"]
    assert business.payments == paid


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("seam", OUR_SEAMS)
async def test_case_38_one_id_twice_with_different_arguments(
    business: Business, seam: str, colour: str
) -> None:
    """Two calls under one id are no two effects by that id: the second is refused in words."""
    dear = ("pay", {"order_id": "O-1", "cents": 99})
    script = [asks(PAY_ONE, dear, ids=["call_0", "call_0"]), "Paid."]
    told = await ended(business, seam, script, colour, key=PER_CALL)
    assert sorted(message.status for message in told) == ["error", "success"]
    (refused,) = (message for message in told if message.status == "error")
    assert refused.additional_kwargs["idempotency"]["error"] == "arguments_changed"
    assert "cents" in refused.content
    assert business.payments in ([("O-1", 5)], [("O-1", 99)])


@pytest.mark.parametrize("seam", OUR_SEAMS)
async def test_case_38_one_id_twice_for_two_orders(business: Business, seam: str) -> None:
    """A business key does not care about ids: two orders under one id are two effects."""
    script = [asks(PAY_ONE, PAY_TWO, ids=["call_0", "call_0"]), "Paid."]
    await ended(business, seam, script)
    assert business.payments == [("O-1", 5), ("O-2", 7)]


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("seam", OUR_SEAMS)
@pytest.mark.parametrize("key", [("order_id",), PER_CALL], ids=["business", "per call"])
async def test_case_39_call_0_again_in_a_later_turn(
    business: Business, seam: str, key: Any, colour: str
) -> None:
    """Where calls are numbered anew each turn, ``call_0`` for another order is another effect."""
    script = [asks(PAY_ONE), "Paid.", asks(PAY_TWO), "Paid."]
    told = await ended(business, seam, script, colour, key=key)
    assert [message.tool_call_id for message in told] == ["call_0", "call_0"]
    assert business.payments == [("O-1", 5), ("O-2", 7)]


@pytest.mark.parametrize("seam", OUR_SEAMS)
async def test_case_39_control_a_key_on_the_id_alone(business: Business, seam: str) -> None:
    """The control: keyed by the id alone, the second order is not paid; with us at least loudly."""

    def key(_: dict[str, Any], context: Any) -> str:
        return str(context.origin.tool_call_id)

    script = [asks(PAY_ONE), "Paid.", asks(PAY_TWO), "Paid."]
    told = await ended(business, seam, script, key=key)
    assert [message.status for message in told] == ["success", "error"]
    assert told[1].additional_kwargs["idempotency"]["error"] == "arguments_changed"
    assert business.payments == ONCE


@pytest.mark.parametrize("colour", COLOURS)
async def test_case_40_the_same_charge_twice_on_purpose(business: Business, colour: str) -> None:
    """A repetition that is meant has a key that says so; one that is not is still one effect."""
    guard: Any = business.ledger.transactional(key=("order_id", "instalment"), operation="charge")

    def charge(session: Session, /, order_id: str, instalment: int) -> str:
        session.execute(PAY, {"order_id": order_id, "cents": 5})
        return f"charged {instalment}"

    charged = guard(charge)
    for instalment in (1, 2, 2, 1):
        assert charged(order_id="O-1", instalment=instalment) == f"charged {instalment}"
    assert business.payments == TWICE
    assert len(business.ledger.effects(operation="charge")) == 2
    # Through an agent as well, in either colour: one order each time is one effect each.
    await ended(business, "create_react_agent", [asks(PAY_ONE, PAY_TWO), "Paid."], colour)
    assert business.payments == [("O-1", 5), ("O-1", 5), ("O-1", 5), ("O-2", 7)]


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("seam", OUR_SEAMS)
@pytest.mark.parametrize(
    ("ignore", "statuses"),
    [(("cents",), ["success", "success"]), ((), ["success", "error"])],
    ids=["ignored", "compared"],
)
async def test_case_41_free_text_differs_on_the_second_try(
    business: Business, seam: str, ignore: Any, statuses: list[str], colour: str
) -> None:
    """What the model words anew each time is left out of the comparison; what counts decides.

    ``cents`` stands for the field in question: ignored, the first value stands; compared, the
    second try is refused in words.
    """
    again = ("pay", {"order_id": "O-1", "cents": 6})
    script = [asks(PAY_ONE, ids=["a"]), asks(again, ids=["b"]), "Paid."]
    told = await ended(business, seam, script, colour, ignore=ignore)
    assert [message.status for message in told] == statuses
    assert business.payments == ONCE


# --- keys that are forgotten ----------------------------------------------------------------------


def test_case_47_a_key_is_never_forgotten_by_itself(business: Business) -> None:
    """There is no reaper: an effect of ten years ago is replayed as one of today.

    dbos #769.
    """
    pay = pay_tool(business)
    pay.invoke({"order_id": "O-1", "cents": 5})
    age(business.ledger, "pay", "O-1", timedelta(days=3650))
    assert pay.invoke({"order_id": "O-1", "cents": 5}) == "paid O-1"
    assert business.payments == ONCE


def test_case_47_a_row_that_is_deleted_in_flight_is_noticed(business: Business) -> None:
    """Who deletes the ledger's rows while an effect is under way makes it fail, not silent.

    dbos #769. On SQLite only the tool's own transaction can: no other writer gets in.
    """

    @business.ledger.transactional(key=("order_id",), operation="pay")
    def pay(session: Session, /, order_id: str) -> str:
        session.execute(PAY, {"order_id": order_id, "cents": 5})
        session.execute(sa.text("delete from idem_effects"))
        return "paid"

    with pytest.raises(LedgerError, match="claim is gone"):
        pay("O-1")
    assert business.payments == []


def test_case_47_a_row_that_was_deleted_by_hand_is_a_new_effect(business: Business) -> None:
    """The known limit, told in the docs: a row deleted with SQL is forgotten, and nothing can tell.

    dbos #769. The ledger offers no way to delete one.
    """
    pay = pay_tool(business, Hooks())
    pay.invoke({"order_id": "O-1", "cents": 5})
    with business.connected() as conn:
        conn.execute(sa.text("delete from idem_effects"))
    pay.invoke({"order_id": "O-1", "cents": 5})
    assert business.payments == TWICE
