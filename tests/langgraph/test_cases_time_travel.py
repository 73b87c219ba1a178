"""Field cases 31 to 36: time travel, forks, and graphs whose structure repeats an effect."""

from __future__ import annotations

import sys
import uuid
from collections.abc import AsyncIterator
from typing import Any, Final

import pytest
from langchain_core.messages import AIMessage
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.cache.memory import InMemoryCache
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.types import CachePolicy, Command, interrupt
from sqlalchemy.orm import Session
from typing_extensions import TypedDict

from langgraph_idem import ArgumentsChanged, Relation, create_react_agent
from langgraph_idem.testing import ScriptedChatModel
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
TWICE: Final = [("O-1", 5), ("O-1", 5)]
PAID: Final = {"unguarded": TWICE, "guarded": ONCE}
SCRIPT: Final = [asks(PAY_ONE), "Paid."]
SEAMS_AND_TWINS: Final = [("tool_node", "unguarded"), *((seam, "guarded") for seam in ALL_SEAMS)]
# Before Python 3.11 async nodes are not told their config: neither a question nor a thread.
COLOURS: Final = ["sync", "async"]
ASKING_COLOURS: Final = COLOURS if sys.version_info >= (3, 11) else ["sync"]


@pytest.fixture
async def business(database_url: str) -> AsyncIterator[Business]:
    """Open a fresh business."""
    founded = Business.founded_at(database_url)
    yield founded
    await founded.ledger.aclose()


def before_the_tool(graph: Any) -> Any:
    """Find the checkpoint in which the model has asked for the payment, and nothing was paid."""
    return next(
        state
        for state in graph.get_state_history(CONFIG)
        if state.values["messages"]
        and state.values["messages"][-1].type == "ai"
        and state.values["messages"][-1].tool_calls
    )


def receipt(message: Any) -> dict[str, Any]:
    """Return the receipt that an answer carries."""
    told: dict[str, Any] = message.additional_kwargs["idempotency"]
    return told


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize(("seam", "twin"), SEAMS_AND_TWINS)
async def test_case_31_replay_from_an_old_checkpoint(
    business: Business, seam: str, twin: str, colour: str
) -> None:
    """Time travel runs the tool again; the recorded result comes back, marked replayed.

    identity table: the tool call's id is the same, the checkpoint's and the task's are new.
    """
    tools = [pay_tool(business, guarded=twin == "guarded", colour=colour)]
    graph = agent(seam, SCRIPT, tools, business, InMemorySaver())
    await run(colour, graph, HELLO)
    ended = await run(colour, graph, None, before_the_tool(graph).config)
    assert ended["messages"][-1].content == "Paid."
    assert business.payments == PAID[twin]
    (answer,) = answers(ended["messages"])
    assert answer.content == "paid O-1"
    if twin == "guarded" and seam != "tool_node":
        assert receipt(answer)["replayed"] is True
        assert receipt(answer)["relation"] == Relation.SAME_CALL


@pytest.mark.parametrize(
    ("policy", "content", "status"),
    [
        ("return", "paid O-1", "success"),
        ("raise", "It was done before this call and was not done again.", "error"),
        (lambda receipt: f"ALREADY_DONE: {receipt.result}", "ALREADY_DONE: paid O-1", "success"),
    ],
)
def test_case_31_the_policy_says_what_a_replay_returns(
    business: Business, policy: Any, content: str, status: str
) -> None:
    """``on_replay`` is the effect's own: return, raise, or whatever a callable makes of it."""
    tools = [pay_tool(business, on_replay=policy)]
    graph = agent("create_react_agent", SCRIPT, tools, business, InMemorySaver())
    graph.invoke(HELLO, CONFIG)
    ended = graph.invoke(None, before_the_tool(graph).config)
    (answer,) = answers(ended["messages"])
    assert content in answer.content
    assert answer.status == status
    assert receipt(answer)["replayed"] is True
    assert business.payments == ONCE


def test_case_31_a_new_scope_on_purpose_runs_anew(business: Business) -> None:
    """Who wants the effect anew gives it another scope; no flag switches the guard off."""
    tools = [
        pay_tool(business, scope=lambda _, context: context.configurable.get("rehearsal", "live"))
    ]
    graph = agent("idempotent_tool_node", SCRIPT, tools, business, InMemorySaver())
    graph.invoke(HELLO, CONFIG)
    old = before_the_tool(graph).config
    for rehearsal, paid in (("live", ONCE), ("rehearsal-1", TWICE), ("rehearsal-1", TWICE)):
        config = {"configurable": {**old["configurable"], "rehearsal": rehearsal}}
        graph.invoke(None, config)
        assert business.payments == paid
    assert {effect.scope for effect in business.ledger.effects()} == {"live", "rehearsal-1"}


def test_case_31_a_new_key_part_on_purpose_runs_anew(business: Business) -> None:
    """A part of the key that says which time it is makes another effect of it."""

    def key(arguments: dict[str, Any], context: Any) -> tuple[str, str]:
        return arguments["order_id"], context.configurable.get("time", "first")

    tools = [pay_tool(business, key=key)]
    graph = agent("create_react_agent", SCRIPT, tools, business, InMemorySaver())
    graph.invoke(HELLO, CONFIG)
    old = before_the_tool(graph).config
    graph.invoke(None, {"configurable": {**old["configurable"], "time": "second"}})
    assert business.payments == TWICE


def edited(state: Any, cents: int) -> dict[str, Any]:
    """Edit the arguments of the model's call, as a person does in a fork; the ids stay."""
    message = state.values["messages"][-1]
    (call,) = message.tool_calls
    args = {**call["args"], "cents": cents}
    return {"messages": [AIMessage("", id=message.id, tool_calls=[{**call, "args": args}])]}


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize(("seam", "twin"), SEAMS_AND_TWINS)
async def test_case_32_a_fork_with_edited_arguments(
    business: Business, seam: str, twin: str, colour: str
) -> None:
    """A fork keeps the tool call's id with other arguments: never a silent hit, never a second pay.

    identity table: 5 and then 99 under one id.
    """
    tools = [pay_tool(business, guarded=twin == "guarded", colour=colour)]
    graph = agent(seam, SCRIPT, tools, business, InMemorySaver())
    await run(colour, graph, HELLO)
    old = before_the_tool(graph)
    fork = graph.update_state(old.config, edited(old, 99))
    if (seam, twin) == ("tool_node", "guarded"):
        with pytest.raises(ArgumentsChanged, match="differ: cents"):
            await run(colour, graph, None, fork)
    else:
        ended = await run(colour, graph, None, fork)
        (answer,) = answers(ended["messages"])
        assert answer.tool_call_id == "call_0"
        if twin == "guarded":
            assert answer.status == "error"
            assert "cents" in answer.content
            assert receipt(answer)["error"] == "arguments_changed"
    assert business.payments == (ONCE if twin == "guarded" else [("O-1", 5), ("O-1", 99)])


def test_case_32_a_fork_may_be_another_effect_on_purpose(business: Business) -> None:
    """If another amount is another effect, the amount belongs into the key."""
    tools = [pay_tool(business, key=("order_id", "cents"))]
    graph = agent("create_react_agent", SCRIPT, tools, business, InMemorySaver())
    graph.invoke(HELLO, CONFIG)
    old = before_the_tool(graph)
    graph.invoke(None, graph.update_state(old.config, edited(old, 99)))
    assert business.payments == [("O-1", 5), ("O-1", 99)]


def sub_agent_tool(business: Business, ids: list[str], colour: str, *, guarded: bool) -> BaseTool:
    """Make a tool that lets a sub-agent without a checkpointer pay, and then asks a person."""

    def plan(_: Any) -> AIMessage:
        ids.append(uuid.uuid4().hex)
        return asks(PAY_ONE, ids=[ids[-1]])

    paying = pay_tool(business, guarded=guarded, colour=colour)
    model = ScriptedChatModel([plan, "Paid."])
    # A plain graph that keeps nothing fails under durability "sync": LangGraph 1.2's own fault.
    inner = create_react_agent(model, [paying], ledger=business.ledger, checkpointer=False)

    def delegate() -> str:
        inner.invoke(HELLO)
        return str(interrupt("sure?"))

    async def adelegate() -> str:
        await inner.ainvoke(HELLO)
        return str(interrupt("sure?"))

    return StructuredTool.from_function(
        func=delegate if colour == "sync" else None,
        coroutine=adelegate if colour == "async" else None,
        name="delegate",
        description="Let somebody else pay.",
    )


@pytest.mark.parametrize("colour", ASKING_COLOURS)
@pytest.mark.parametrize(("seam", "twin"), SEAMS_AND_TWINS)
async def test_case_33_a_sub_agents_ids_are_new_on_resume(
    business: Business, seam: str, twin: str, colour: str
) -> None:
    """A sub-agent in a tool plans anew on resume, under new ids; a business key knows its effect.

    identity table: sub-agent as tool, checkpointer off.
    """
    ids: list[str] = []
    tools = [sub_agent_tool(business, ids, colour, guarded=twin == "guarded")]
    graph = agent(seam, [asks(("delegate", {})), "Done."], tools, business, InMemorySaver())
    await run(colour, graph, HELLO)
    assert business.payments == ONCE
    ended = await run(colour, graph, Command(resume="yes"))
    assert ended["messages"][-1].content == "Done."
    assert len(set(ids)) == 2
    assert business.payments == PAID[twin]


# --- the functional API's memo --------------------------------------------------------------------


def workflow(pay: Any, payee: str, saver: Any, *, fails: bool) -> Any:
    """Make the program that pays, in the version that pays this payee."""

    @entrypoint(checkpointer=saver)
    def paying(_: Any) -> str:
        paid = pay(payee)
        said: str = paid.result() if hasattr(paid, "result") else paid
        if fails:
            raise ConnectionError("the program dies here")
        return said

    return paying


def changed_and_resumed(pay: Any) -> Any:
    """Pay alice and die; then change the code so that it pays carol, and resume."""
    saver = InMemorySaver()
    with pytest.raises(ConnectionError):
        workflow(pay, "alice", saver, fails=True).invoke({}, CONFIG)
    return workflow(pay, "carol", saver, fails=False).invoke(None, CONFIG)


def test_case_34_a_memo_that_is_matched_by_position(business: Business) -> None:
    """The control: ``@task`` answers by position. Carol is never paid, and nothing says so."""

    @task
    def pay(payee: str) -> str:
        business.pay(payee, 5)
        return f"paid {payee}"

    assert changed_and_resumed(pay) == "paid alice"
    assert business.payments == [("alice", 5)]


def test_case_34_a_guarded_function_goes_by_its_arguments(business: Business) -> None:
    """Guarded instead of memoised, carol is paid, and alice's result is not taken for hers."""
    pay = pay_tool(business).func  # type: ignore[attr-defined]  # a StructuredTool
    assert changed_and_resumed(lambda payee: pay(order_id=payee)) == "paid carol"
    assert business.payments == [("alice", 5), ("carol", 5)]
    assert changed_and_resumed(lambda payee: pay(order_id=payee)) == "paid carol"
    assert business.payments == [("alice", 5), ("carol", 5)]


def test_case_34_a_mismatch_under_one_key_is_loud(business: Business) -> None:
    """Keyed by the step of the program, as the memo is, the change is refused in words."""

    def pay(payee: str) -> str:
        def do(session: Session) -> str:
            session.execute(PAY, {"order_id": payee, "cents": 5})
            return f"paid {payee}"

        return business.ledger.once("pay", key="step-1", arguments={"payee": payee}, do=do)

    with pytest.raises(ArgumentsChanged, match="differ: payee"):
        changed_and_resumed(pay)
    assert business.payments == [("alice", 5)]


def test_case_34_a_memo_around_the_guard_answers_first(business: Business) -> None:
    """A known limit: where ``@task`` has a memo, our guard is not asked. The docs say so."""

    @task
    @business.ledger.transactional(key=("payee",))
    def pay(session: Session, /, payee: str) -> str:
        session.execute(PAY, {"order_id": payee, "cents": 5})
        return f"paid {payee}"

    assert changed_and_resumed(pay) == "paid alice"
    assert business.ledger.effect("pay", "carol") is None


# --- nodes ----------------------------------------------------------------------------------------


class Order(TypedDict):
    """The state of a graph without a model."""

    order_id: str
    cents: int


def payer(business: Business, colour: str, *, guarded: bool, **options: Any) -> Any:
    """Make a node that pays."""
    tool: Any = pay_tool(business, guarded=guarded, colour=colour, **options)

    def pay(state: Order) -> None:
        tool.func(order_id=state["order_id"], cents=state["cents"])

    async def apay(state: Order) -> None:
        await tool.coroutine(order_id=state["order_id"], cents=state["cents"])

    return pay if colour == "sync" else apay


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("twin", PAID)
async def test_case_35_a_join_that_runs_twice(business: Business, twin: str, colour: str) -> None:
    """A node that branches of unequal length reach runs once for each; the effect takes hold once.

    LangGraph runs the node whenever a branch arrives, unless it is told to wait for all.
    """
    builder: Any = StateGraph(Order)
    builder.add_node("join", payer(business, colour, guarded=twin == "guarded"))
    for name in ("short", "long", "longer"):
        builder.add_node(name, lambda _: None)
    for edge in [
        (START, "short"),
        (START, "long"),
        ("long", "longer"),
        ("short", "join"),
        ("longer", "join"),
    ]:
        builder.add_edge(*edge)
    await run(colour, builder.compile(), {"order_id": "O-1", "cents": 5})
    assert business.payments == PAID[twin]


def of_customer(customer: str) -> dict[str, Any]:
    """Make the config of a customer's run."""
    return {"configurable": {"thread_id": f"thread-{customer}", "customer": customer}}


@pytest.mark.parametrize("colour", ASKING_COLOURS)
@pytest.mark.parametrize(
    ("scope", "paid"),
    [
        (None, ONCE),
        ("thread", TWICE),
        (lambda _, context: context.configurable["customer"], TWICE),
    ],
    ids=["cache", "thread", "customer"],
)
async def test_case_36_two_customers_with_equal_input(
    business: Business, scope: Any, paid: list[Any], colour: str
) -> None:
    """A cache keyed by the input drops the second customer's payment; scopes keep them apart.

    The control is LangGraph's ``CachePolicy``. Each customer's second run pays nothing.
    """
    is_guarded = scope is not None
    options = {"scope": scope} if is_guarded else {}
    builder: Any = StateGraph(Order)
    builder.add_node(
        "pay",
        payer(business, colour, guarded=is_guarded, **options),
        cache_policy=None if is_guarded else CachePolicy(),
    )
    builder.add_edge(START, "pay")
    graph = builder.compile(cache=InMemoryCache(), checkpointer=InMemorySaver())
    for customer in ("anna", "bela", "anna"):
        await run(colour, graph, {"order_id": "O-1", "cents": 5}, of_customer(customer))
    assert business.payments == paid
    assert len(await business.ledger.aeffects()) == (2 if is_guarded else 0)
