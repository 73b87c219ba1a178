"""Field cases 26 to 30: several workers, clients that send again, and checks that race.

Case 28 (8 processes, 64 threads and 64 tasks on one key) is in ``tests/integration/test_races.py``.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import pytest
import sqlalchemy as sa
from langchain_core.messages import HumanMessage
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver

from langgraph_idem import Relation
from langgraph_idem.testing import Crashed, aage, aassert_effect_once, assert_effect_once
from tests.langgraph.working import (
    freeze_after_sending,
    freeze_before_sending,
    refund_tool,
    resume,
    workers,
)
from tests.support.cases import (
    ALL_SEAMS,
    CONFIG,
    HELLO,
    PAY_ONE,
    TWINS,
    Business,
    Hooks,
    agent,
    answers,
    asks,
    pay_tool,
    raises,
    run,
)

ONCE: Final = [("O-1", 5)]
TWICE: Final = [("O-1", 5), ("O-1", 5)]
PAID: Final = {"unguarded": TWICE, "guarded": ONCE}
COLOURS: Final = ("sync", "async")
SEAMS_AND_TWINS: Final = [("tool_node", "unguarded"), *((seam, "guarded") for seam in ALL_SEAMS)]


@pytest.fixture
async def business(database_url: str) -> AsyncIterator[Business]:
    """Open a fresh business."""
    founded = Business.founded_at(database_url)
    yield founded
    await founded.ledger.aclose()


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize(
    ("seam", "twin"),
    [("tool_node", "unguarded"), ("tool_node", "guarded"), ("create_react_agent", "guarded")],
)
def test_case_26_two_workers_resume_one_thread(
    business: Business, checkpoints: str, seam: str, twin: str, colour: str
) -> None:
    """Two processes that resume one thread are both in the tool at once; one effect, two answers.

    langgraph #7213: two live runs of one thread need no crash.
    """
    with SqliteSaver.from_conn_string(checkpoints) as saver:
        dying = [pay_tool(business, Hooks(entered=raises(Crashed())))]
        graph = agent(seam, [asks(PAY_ONE), "Paid."], dying, business, saver)
        with pytest.raises(Crashed):
            graph.invoke(HELLO, CONFIG)
    with workers(resume, business.url, checkpoints, seam, colour, twin, number=2) as both:
        assert [worker.said() for worker in both] == ["entered", "entered"]
        for worker in both:
            worker.go()
        assert [worker.said() for worker in both] == ["Paid.", "Paid."]
    assert business.payments == PAID[twin]


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize(("seam", "twin"), SEAMS_AND_TWINS)
async def test_case_27_the_client_sends_its_message_again(
    business: Business, seam: str, twin: str, colour: str
) -> None:
    """The same HumanMessage is kept once, but it starts a run: the model plans a new call.

    identity table: the client re-sends the same ``HumanMessage(id=...)``.
    """
    first, again = asks(PAY_ONE, ids=["call_a"]), asks(PAY_ONE, ids=["call_b"])
    tools = [pay_tool(business, guarded=twin == "guarded", colour=colour)]
    graph = agent(seam, [first, "Paid.", again, "Paid."], tools, business, InMemorySaver())
    given = {"messages": [HumanMessage("pay O-1", id="from-the-client")]}
    await run(colour, graph, given)
    ended = await run(colour, graph, given)
    assert sum(isinstance(message, HumanMessage) for message in ended["messages"]) == 1
    assert business.payments == PAID[twin]
    if twin == "guarded" and seam != "tool_node":
        told = [each.additional_kwargs["idempotency"] for each in answers(ended["messages"])]
        assert [receipt["replayed"] for receipt in told] == [False, True]
        assert told[1]["relation"] == Relation.SAME_THREAD


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("twin", TWINS)
async def test_case_29_a_frozen_worker_wakes_after_its_lease(
    business: Business, twin: str, colour: str
) -> None:
    """Frozen after the provider acted: another worker verifies and finishes; the first is fenced.

    langgraph #7417: a worker that misses its heartbeats is not dead.
    """
    with workers(freeze_after_sending, business.url, colour, twin) as (frozen,):
        assert frozen.said() == "frozen"
        if twin == "unguarded":
            business.pay("O-1", 5)  # what the other worker does
        else:
            await finished_by_another(business)
        settled = await business.ledger.aeffect("refund", "O-1")
        frozen.thaw()
        assert frozen.said() == {"guarded": "found", "unguarded": "refunded"}[twin]
    assert business.payments == PAID[twin]
    late = await business.ledger.aeffect("refund", "O-1")
    assert (late and late.attempt_id) == (settled and settled.attempt_id)
    assert (late and late.result) == (settled and settled.result)


async def finished_by_another(business: Business) -> None:
    """Let the lease end, and another worker verify and finish the refund."""
    await aage(business.ledger, "refund", "O-1", 3601)
    other = refund_tool(business, sent=lambda: None, colour="async", lease=3600)
    assert await other(order_id="O-1") == "found"
    assert (await aassert_effect_once(business.ledger, "refund", "O-1")).attempts == 2


@pytest.mark.parametrize("colour", COLOURS)
def test_case_29_a_worker_frozen_before_it_sends(business: Business, colour: str) -> None:
    """Frozen between claim and sending: when it wakes its lease is over, and it sends nothing.

    The other worker waits for the end of the lease, is told "absent", and sends.
    """
    with workers(freeze_before_sending, business.url, colour) as (frozen,):
        assert frozen.said() == "frozen"
        other = refund_tool(business, sent=lambda: None, colour="sync", lease=3600)
        assert other(order_id="O-1") == "refunded"
        assert business.payments == ONCE
        frozen.thaw()
        assert frozen.said() == "refunded"
    assert business.payments == ONCE
    assert assert_effect_once(business.ledger, "refund", "O-1").attempts == 2


# --- check, then store ----------------------------------------------------------------------------


class Meeting:
    """A place where two calls wait for each other, in threads or on a loop."""

    def __init__(self) -> None:
        self._here = 0
        self._both = threading.Event()
        self._lock = threading.Lock()

    def _arrive(self) -> None:
        with self._lock:
            self._here += 1
            if self._here == 2:
                self._both.set()

    def wait(self) -> None:
        """Wait in a thread."""
        self._arrive()
        assert self._both.wait(30)

    async def await_(self) -> None:
        """Wait on a loop, where nothing but the other call can set the event."""
        self._arrive()
        while not self._both.is_set():  # noqa: ASYNC110 - the event serves threads as well
            await asyncio.sleep(0)


def home_made(business: Business, meeting: Meeting, colour: str) -> BaseTool:
    """Guard a payment as one does by hand: ask whether it was made, make it, remember it."""

    def is_paid(order_id: str) -> bool:
        with business.connected() as conn:
            query = sa.text("select count(*) from payments where order_id = :it")
            return bool(conn.scalar(query, {"it": order_id}))

    def pay_unless(order_id: str, *, paid: bool) -> str:
        if not paid:
            business.pay(order_id, 5)
        return f"paid {order_id}"

    def pay(order_id: str, cents: int) -> str:
        paid = is_paid(order_id)
        meeting.wait()
        return pay_unless(order_id, paid=paid)

    async def apay(order_id: str, cents: int) -> str:
        paid = is_paid(order_id)
        await meeting.await_()
        return pay_unless(order_id, paid=paid)

    return StructuredTool.from_function(
        func=pay if colour == "sync" else None,
        coroutine=apay if colour == "async" else None,
        name="pay",
        description="Pay.",
    )


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize(("seam", "twin"), SEAMS_AND_TWINS)
async def test_case_30_check_then_store(
    business: Business, seam: str, twin: str, colour: str
) -> None:
    """Two parallel identical calls both pass a check that somebody makes before storing.

    Both of ours are in the tool at once as well; the insert of the claim decides.
    """
    meeting = Meeting()
    hook: Callable[[], Any] = meeting.wait if colour == "sync" else meeting.await_
    ours = pay_tool(business, Hooks(entered=hook), colour=colour)
    tools = [ours if twin == "guarded" else home_made(business, meeting, colour)]
    script = [asks(PAY_ONE, PAY_ONE), "Paid."]
    ended = await run(colour, agent(seam, script, tools, business, InMemorySaver()), HELLO)
    assert [each.content for each in answers(ended["messages"])] == ["paid O-1", "paid O-1"]
    assert business.payments == PAID[twin]
