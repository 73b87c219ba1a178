"""What a replay returns, and what its receipt tells of the call that did the effect."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

import pytest
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session
from typing_extensions import TypedDict

from langgraph_idem import AlreadyDone, Effect, IdempotentToolNode, Receipt, Relation
from langgraph_idem.testing import crash
from tests.support.cases import (
    ALL_SEAMS,
    CONFIG,
    HELLO,
    PAY,
    PAY_ONE,
    Business,
    agent,
    answers,
    asks,
    pay_tool,
    run,
)

ONCE: Final = [("O-1", 5)]
COLOURS: Final = ("sync", "async")
OUR_SEAMS: Final = tuple(seam for seam in ALL_SEAMS if seam != "tool_node")
SCRIPT: Final = [asks(PAY_ONE), "Paid."]


@pytest.fixture
async def business(sqlite_url: str) -> AsyncIterator[Business]:
    """Open a fresh business."""
    founded = Business.founded_at(sqlite_url)
    yield founded
    await founded.ledger.aclose()


class Policy:
    """A policy that takes note of the receipts it is given."""

    def __init__(self) -> None:
        self.receipts: list[Receipt] = []

    def __call__(self, receipt: Receipt) -> Any:
        """Return the recorded result."""
        self.receipts.append(receipt)
        return receipt.result

    @property
    def relations(self) -> list[Relation | None]:
        """How the replays were related to the effect."""
        return [receipt.relation for receipt in self.receipts]


def receipts(messages: Any) -> list[dict[str, Any]]:
    """Return the receipts that answers carry."""
    return [each.additional_kwargs["idempotency"] for each in answers(messages)]


async def killed_and_resumed(business: Business, seam: str, colour: str, policy: Any) -> Any:
    """Let the program die after the commit, and resume it."""
    tools = [pay_tool(business, colour=colour, on_replay=policy)]
    graph = agent(seam, SCRIPT, tools, business, InMemorySaver())
    with crash(business.ledger, after="commit"):
        await run(colour, graph, HELLO, durability="sync")
    assert business.payments == ONCE
    return await run(colour, graph, None, durability="sync")


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize(
    ("seam", "relation"),
    [("tool_node", Relation.SAME_THREAD), *((seam, Relation.SAME_CALL) for seam in OUR_SEAMS)],
)
async def test_a_resume_is_the_same_call(
    business: Business, seam: str, relation: Relation, colour: str
) -> None:
    """A resumed call has the ids that it had; a plain ToolNode tells the ledger the thread only."""
    policy = Policy()
    ended = await killed_and_resumed(business, seam, colour, policy)
    assert policy.relations == [relation]
    (receipt,) = policy.receipts
    assert receipt.origin.thread_id == "thread-1"
    assert receipt.origin.tool_call_id == (None if seam == "tool_node" else "call_0")
    assert [answer.content for answer in answers(ended["messages"])] == ["paid O-1"]
    assert business.payments == ONCE


@pytest.mark.parametrize("seam", OUR_SEAMS)
async def test_another_call_of_the_thread(business: Business, seam: str) -> None:
    """The model plans anew, in one message or in a later one, even under the same id."""
    policy = Policy()
    tools = [pay_tool(business, on_replay=policy)]
    later, number_anew = asks(PAY_ONE, ids=["other"]), asks(PAY_ONE)
    script = [asks(PAY_ONE), later, number_anew, "Paid."]
    ended = agent(seam, script, tools, business, InMemorySaver()).invoke(HELLO, CONFIG)
    assert policy.relations == [Relation.SAME_THREAD, Relation.SAME_THREAD]
    assert [told["replayed"] for told in receipts(ended["messages"])] == [False, True, True]
    assert [told.get("relation") for told in receipts(ended["messages"])] == [
        None,
        "same_thread",
        "same_thread",
    ]
    assert business.payments == ONCE


@pytest.mark.parametrize("seam", ALL_SEAMS)
def test_another_thread(business: Business, seam: str) -> None:
    """An effect of another thread is told from one's own, whatever the ids of the calls."""
    policy = Policy()
    tools = [pay_tool(business, on_replay=policy)]
    graph = agent(seam, SCRIPT, tools, business, InMemorySaver())
    graph.invoke(HELLO, CONFIG)
    graph.invoke(HELLO, {"configurable": {"thread_id": "thread-2"}})
    assert policy.relations == [Relation.OTHER_THREAD]
    assert policy.receipts[0].origin.thread_id == "thread-1"
    assert business.payments == ONCE


def test_outside_of_a_thread_nothing_is_known(business: Business) -> None:
    """A script has no thread: what it repeats, or what repeats it, cannot be told."""
    policy = Policy()
    pay = pay_tool(business, on_replay=policy)
    for _ in range(2):
        pay.invoke({"order_id": "O-1", "cents": 5})
    agent("idempotent_tool_node", SCRIPT, [pay], business, InMemorySaver()).invoke(HELLO, CONFIG)
    assert policy.relations == [Relation.NOT_KNOWN, Relation.NOT_KNOWN]
    assert business.payments == ONCE


class Plain(TypedDict):
    """A state whose messages get no ids, for want of LangGraph's reducer."""

    messages: list[Any]


def test_messages_without_ids_are_not_the_same_call(business: Business) -> None:
    """Where messages have no ids, ``call_0`` may be another turn's: only the thread is known."""
    policy = Policy()
    node = IdempotentToolNode([pay_tool(business, on_replay=policy)], ledger=business.ledger)
    builder: Any = StateGraph(Plain)
    builder.add_node("tools", node)
    builder.add_edge(START, "tools")
    graph = builder.compile(checkpointer=InMemorySaver())
    call = {"name": "pay", "args": PAY_ONE[1], "id": "call_0"}
    for _ in range(2):
        graph.invoke({"messages": [AIMessage("", tool_calls=[call])]}, CONFIG)
    assert policy.relations == [Relation.SAME_THREAD]


# --- the policies ---------------------------------------------------------------------------------


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("seam", OUR_SEAMS)
async def test_raise_tells_the_model_that_it_was_done(
    business: Business, seam: str, colour: str
) -> None:
    """With "raise" the model reads that it was done, in words that ask for no second try."""
    ended = await killed_and_resumed(business, seam, colour, "raise")
    (answer,) = answers(ended["messages"])
    assert answer.status == "error"
    assert "was done before" in answer.content
    assert "try again" not in str(answer.content).lower()
    assert answer.additional_kwargs["idempotency"]["error"] == "already_done"
    assert answer.additional_kwargs["idempotency"]["replayed"] is True
    assert ended["messages"][-1].content == "Paid."
    assert business.payments == ONCE


def returns_to_its_own_call(receipt: Receipt) -> Any:
    """Return the result to the call that did it; refuse everybody else."""
    if receipt.relation is Relation.SAME_CALL:
        return receipt.result
    raise AlreadyDone(f"{receipt.operation} for {receipt.key} was done before.", receipt=receipt)


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("seam", OUR_SEAMS)
async def test_a_policy_may_go_by_the_relation(business: Business, seam: str, colour: str) -> None:
    """A callable may return to a resumed call, and refuse one that the model planned anew."""
    ended = await killed_and_resumed(business, seam, colour, returns_to_its_own_call)
    assert [answer.status for answer in answers(ended["messages"])] == ["success"]
    tools = [pay_tool(business, colour=colour, on_replay=returns_to_its_own_call)]
    graph = agent(seam, SCRIPT, tools, business, InMemorySaver())
    ended = await run(colour, graph, HELLO)  # the same ids, in a message of its own
    assert [answer.status for answer in answers(ended["messages"])] == ["error"]
    assert business.payments == ONCE


async def test_a_policy_gets_the_result_that_the_tool_returned(business: Business) -> None:
    """The receipt's result is the decoded one; what the policy returns is not kept."""
    results: list[Any] = []

    def policy(receipt: Receipt) -> dict[str, int]:
        results.append(receipt.result)
        return {"left": 0}

    @business.ledger.transactional(key=("order_id",), on_replay=policy)
    def pay(session: Session, /, order_id: str) -> dict[str, int]:
        session.execute(PAY, {"order_id": order_id, "cents": 5})
        return {"left": 9}

    assert [pay("O-1"), pay("O-1"), pay("O-1")] == [{"left": 9}, {"left": 0}, {"left": 0}]
    assert results == [{"left": 9}, {"left": 9}]


async def test_a_remote_effect_has_the_same_policies(business: Business) -> None:
    """Policies and relations are those of transactional effects, in both colours."""
    policy = Policy()
    sent: list[str] = []

    @business.ledger.remote(key=("order_id",), on_replay=policy)
    async def refund(effect: Effect, /, order_id: str) -> str:
        sent.append(effect.idempotency_key)
        return "refunded"

    assert [await refund("O-1"), await refund("O-1")] == ["refunded", "refunded"]
    assert policy.relations == [Relation.NOT_KNOWN]
    assert len(sent) == 1


async def test_a_failing_policy_changes_no_effect(business: Business) -> None:
    """What a policy raises leaves the tool as it is; the effect and its record stand."""

    def policy(_: Receipt) -> None:
        raise ConnectionError("the policy's own")

    @business.ledger.transactional(key=("order_id",), on_replay=policy)
    async def pay(session: AsyncSession, /, order_id: str) -> str:
        await session.execute(PAY, {"order_id": order_id, "cents": 5})
        return "paid"

    assert await pay("O-1") == "paid"
    for _ in range(2):
        with pytest.raises(ConnectionError, match="own"):
            await pay("O-1")
    assert business.payments == ONCE


def test_two_threads_with_a_scope_of_their_own(business: Business) -> None:
    """With ``scope="thread"`` another thread's effect is another effect: nothing is replayed."""
    policy = Policy()
    tools = [pay_tool(business, scope="thread", on_replay=policy)]
    graph = agent("create_react_agent", SCRIPT, tools, business, InMemorySaver())
    for thread in ("thread-1", "thread-2"):
        graph.invoke(HELLO, {"configurable": {"thread_id": thread}})
    assert business.payments == [("O-1", 5), ("O-1", 5)]
    assert policy.receipts == []
