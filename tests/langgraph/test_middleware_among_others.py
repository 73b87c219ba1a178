"""IdempotencyMiddleware among LangChain's own: retries, people, error words, limits."""

from __future__ import annotations

import inspect
import sys
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import (
    HumanInTheLoopMiddleware,
    ModelCallLimitMiddleware,
    SummarizationMiddleware,
    ToolCallLimitMiddleware,
    ToolErrorMiddleware,
    ToolRetryMiddleware,
)
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.types import Command, interrupt
from sqlalchemy.orm import Session

from langgraph_idem import (
    Effect,
    IdempotencyMiddleware,
    Ledger,
    OutcomeUnknown,
    RunStatus,
    answer,
)
from langgraph_idem.testing import ScriptedChatModel
from tests.langgraph.shop import NOTIFY_ONE, TAKE, TAKE_ONE, Shop, calling

HELLO: Any = {"messages": [("user", "pay O-1")]}
PAY = ("pay", {"order_id": "O-1"})
PAY_TWICE: list[Any] = [calling(PAY, ids=["one"]), calling(PAY, ids=["two"]), "done"]
# Not in every LangChain that the middleware works with.
ASKS_PER_CALL = "interrupt_mode" in inspect.signature(HumanInTheLoopMiddleware).parameters
QUICK: Any = {"initial_delay": 0.0, "jitter": False}


class Runs:
    """Runs agents in one colour."""

    def __init__(self, colour: str, saver: Any) -> None:
        self.colour, self.saver = colour, saver

    async def __call__(self, agent: Any, given: Any = HELLO) -> dict[str, Any]:
        """Run an agent; durably, if it has a checkpointer."""
        config: Any = {"configurable": {"thread_id": "t"}}
        durable = {"durability": "sync"} if agent.checkpointer else {}
        if self.colour == "sync":
            result = agent.invoke(given, config, **durable)
        else:
            result = await agent.ainvoke(given, config, **durable)
        told: dict[str, Any] = result
        return told


@pytest.fixture(params=["sync", "async"])
def run(request: pytest.FixtureRequest, saver: SqliteSaver, asaver: AsyncSqliteSaver) -> Runs:
    """Give each test both colours."""
    return Runs(request.param, saver if request.param == "sync" else asaver)


def answers(state: dict[str, Any]) -> list[ToolMessage]:
    """Return the tools' messages."""
    return [message for message in state["messages"] if isinstance(message, ToolMessage)]


def paid(shop: Shop) -> int:
    """Count the payments that the provider has."""
    return len(shop.rows("taken"))


def charge(shop: Shop, order_id: str) -> None:
    """Pay at a provider whose answer is lost."""
    shop.write(f"insert into taken values ('{order_id}', 'paid')")
    raise TimeoutError("read timed out")


def unguarded_pay(shop: Shop) -> BaseTool:
    """Return the control: a tool whose effect takes hold, and whose answer is lost."""

    @tool
    def pay(order_id: str) -> str:
        """Pay."""
        charge(shop, order_id)
        return "paid"

    return pay


def guarded_pay(shop: Shop, run: Runs, **options: Any) -> BaseTool:
    """Return the same tool, guarded, in the run's colour."""

    @shop.ledger.remote(key=("order_id",), operation="pay", **options)
    def pay(effect: Effect, /, order_id: str) -> str:
        """Pay."""
        charge(shop, order_id)
        return "paid"

    @shop.ledger.remote(key=("order_id",), operation="pay", **options)
    async def apay(effect: Effect, /, order_id: str) -> str:
        """Pay."""
        charge(shop, order_id)
        return "paid"

    return tool("pay")(pay if run.colour == "sync" else apay)


async def test_case_17_control_retries_pay_three_times(ashop: Shop, run: Runs) -> None:
    """Without us a read time-out is paid three times, and the model is told to try again."""
    model = ScriptedChatModel([calling(PAY), "done"])
    agent: Any = create_agent(
        model, [unguarded_pay(ashop)], middleware=[ToolRetryMiddleware(**QUICK)]
    )
    told = await run(agent)
    assert paid(ashop) == 3
    assert "Please try again" in answers(told)[0].text


async def test_case_17_retries_by_their_defaults_and_a_model_that_is_told(
    ashop: Shop, run: Runs
) -> None:
    """LangChain #40688: one payment, at once, and words that stop the model."""
    agent: Any = create_agent(
        ScriptedChatModel(PAY_TWICE),
        [guarded_pay(ashop, run, on_unknown="tell_model")],
        middleware=[ToolRetryMiddleware(), IdempotencyMiddleware(ashop.ledger)],
    )
    told = await run(agent)
    assert paid(ashop) == 1
    for message in answers(told):
        assert message.status == "error"
        assert "must not be repeated" in message.text
        assert "try again" not in message.text.lower()
    assert [str(effect.state) for effect in ashop.ledger.effects()] == ["unknown"]


OUTER: list[Any] = [
    ToolRetryMiddleware(**QUICK),
    ToolErrorMiddleware(lambda error, request: "It failed. Please try again."),
]


@pytest.mark.parametrize("outer", OUTER, ids=lambda outer: outer.name)
async def test_case_17_an_unknown_outcome_leaves_past_everybody(
    ashop: Shop, run: Runs, outer: Any
) -> None:
    """Where nobody can be asked the run fails as it should; no middleware words it otherwise."""
    model = ScriptedChatModel(PAY_TWICE)
    ours = IdempotencyMiddleware(ashop.ledger)
    agent: Any = create_agent(model, [guarded_pay(ashop, run)], middleware=[outer, ours])
    with pytest.raises(OutcomeUnknown):
        await run(agent)
    assert paid(ashop) == 1
    assert len(model.seen) == 1


async def test_case_17_a_person_is_asked_through_retries(ashop: Shop, run: Runs) -> None:
    """The question of an unknown outcome passes retries; the answer is what the model gets."""
    agent: Any = create_agent(
        ScriptedChatModel([calling(PAY), "done"]),
        [guarded_pay(ashop, run)],
        middleware=[ToolRetryMiddleware(**QUICK), IdempotencyMiddleware(ashop.ledger)],
        checkpointer=run.saver,
    )
    (question,) = (await run(agent))["__interrupt__"]
    reply = answer(question, "succeeded", result="paid after all", by="Ada")
    told = await run(agent, Command(resume=reply))
    assert [message.text for message in answers(told)] == ["paid after all"]
    assert paid(ashop) == 1
    assert [step["operation"] for step in told["done_steps"]] == ["pay"]


async def test_case_17_retries_still_serve_what_they_are_for(ashop: Shop, run: Runs) -> None:
    """A tool that fails before its effect is rolled back and tried again: one effect."""
    tries = [TimeoutError("no connection"), None]

    @tool
    @ashop.ledger.transactional(key=("order_id",))
    def pay(session: Session, /, order_id: str) -> str:
        """Pay."""
        session.execute(TAKE, {"order_id": order_id, "sku": "paid"})
        if error := tries.pop(0):
            raise error
        return "paid"

    agent: Any = create_agent(
        ScriptedChatModel([calling(PAY), "done"]),
        [pay],
        middleware=[ToolRetryMiddleware(**QUICK), IdempotencyMiddleware(ashop.ledger)],
    )
    told = await run(agent)
    assert [message.text for message in answers(told)] == ["paid"]
    assert paid(ashop) == 1


async def test_siblings_of_a_call_whose_outcome_is_unknown_are_kept(ashop: Shop, run: Runs) -> None:
    """A leaving error lets parallel calls finish; the resume does not run them again."""
    counted: list[str] = []

    @tool
    def look(what: str) -> str:
        """Look at something."""
        counted.append(what)
        return what

    agent: Any = create_agent(
        ScriptedChatModel([calling(PAY, ("look", {"what": "x"}), NOTIFY_ONE), "done"]),
        [guarded_pay(ashop, run, on_unknown="raise"), look, *ashop.tools(colour=run.colour)],
        middleware=[ToolRetryMiddleware(**QUICK), IdempotencyMiddleware(ashop.ledger)],
        checkpointer=run.saver,
    )
    with pytest.raises(OutcomeUnknown):
        await run(agent)
    ashop.ledger.resolve("pay", ("O-1",), "succeeded", result="paid after all")
    told = await run(agent, None)
    assert sorted(message.text for message in answers(told)) == ["notified", "paid after all", "x"]
    assert counted == ["x"]
    assert ashop.rows("notified") == [("O-1",)]


MODES = ["batched", *(["per_call"] if ASKS_PER_CALL else [])]


def hitl(mode: str) -> HumanInTheLoopMiddleware:
    """Ask a person before every taking from stock."""
    options: Any = {"interrupt_mode": mode} if ASKS_PER_CALL else {}
    return HumanInTheLoopMiddleware({"take": True}, **options)


EDITED = {"name": "take", "args": {"order_id": "O-1", "sku": "B"}}


def skip_where_langchain_cannot_ask(run: Runs) -> None:
    """LangChain's own limit: a person can be asked on an event loop from Python 3.11 on."""
    if run.colour == "async" and sys.version_info < (3, 11):
        pytest.skip("HumanInTheLoopMiddleware needs Python 3.11 on an event loop")


def edited(mode: str, question: Any) -> Any:
    """Return a person's answer: other arguments than the model's."""
    decision = {"type": "edit", "edited_action": EDITED}
    if mode == "batched":
        return Command(resume={"decisions": [decision]})
    return Command(resume={question.id: decision})


def take_by_order(ledger: Ledger) -> BaseTool:
    """Return a tool of which an order has but one."""

    @tool
    @ledger.transactional(key=("order_id",))
    def take(session: Session, /, order_id: str, sku: str) -> str:
        """Take one from stock."""
        session.execute(TAKE, {"order_id": order_id, "sku": sku})
        return f"taken {sku}"

    return take


@pytest.mark.parametrize("mode", MODES)
async def test_case_14_edited_arguments_are_what_counts(ashop: Shop, run: Runs, mode: str) -> None:
    """LangChain #33787: the edited call is done; the model's own, again, is told apart from it."""
    skip_where_langchain_cannot_ask(run)
    script: list[Any] = [calling(TAKE_ONE, ids=["one"]), calling(TAKE_ONE, ids=["two"]), "done"]
    agent: Any = create_agent(
        ScriptedChatModel(script),
        [take_by_order(ashop.ledger)],
        middleware=[hitl(mode), IdempotencyMiddleware(ashop.ledger)],
        checkpointer=run.saver,
    )
    (question,) = (await run(agent))["__interrupt__"]
    again = (await run(agent, edited(mode, question)))["__interrupt__"]
    approved: Any = {"type": "approve"}
    resume = {"decisions": [approved]} if mode == "batched" else {again[0].id: approved}
    told = await run(agent, Command(resume=resume))
    assert ashop.rows("taken") == [("O-1", "B")]
    assert ashop.ledger.effects()[0].arguments == '{"order_id":"O-1","sku":"B"}'
    first, second = answers(told)
    assert first.additional_kwargs["idempotency"]["replayed"] is False
    assert second.additional_kwargs["idempotency"]["error"] == "arguments_changed"
    assert "the first request stands" in second.text


@pytest.mark.parametrize("mode", MODES)
async def test_a_rejected_call_has_no_effect(ashop: Shop, run: Runs, mode: str) -> None:
    """What a person rejects never reaches the ledger, and is no done step."""
    skip_where_langchain_cannot_ask(run)
    agent: Any = create_agent(
        ScriptedChatModel([calling(TAKE_ONE), "done"]),
        [take_by_order(ashop.ledger)],
        middleware=[hitl(mode), IdempotencyMiddleware(ashop.ledger)],
        checkpointer=run.saver,
    )
    (question,) = (await run(agent))["__interrupt__"]
    rejected: Any = {"type": "reject", "message": "no"}
    resume = {"decisions": [rejected]} if mode == "batched" else {question.id: rejected}
    told = await run(agent, Command(resume=resume))
    assert ashop.ledger.effects() == []
    assert (told["status"], told.get("done_steps")) == (RunStatus.COMPLETED, [])


async def test_case_15_an_interrupt_in_the_tool_undoes_the_claim(ashop: Shop, run: Runs) -> None:
    """The tool's own question passes through: no failure stored, one effect after the answer."""

    @tool
    @ashop.ledger.transactional(key=("order_id",))
    def pay(session: Session, /, order_id: str) -> str:
        """Pay."""
        session.execute(TAKE, {"order_id": order_id, "sku": "paid"})
        return f"paid by {interrupt('who pays?')}"

    agent: Any = create_agent(
        ScriptedChatModel([calling(PAY), "done"]),
        [pay],
        middleware=[*OUTER, IdempotencyMiddleware(ashop.ledger)],
        checkpointer=run.saver,
    )
    await run(agent)
    assert (paid(ashop), ashop.ledger.effects()) == (0, [])
    told = await run(agent, Command(resume="Ada"))
    assert [message.text for message in answers(told)] == ["paid by Ada"]
    assert paid(ashop) == 1


async def test_limits_end_the_run_and_the_state_says_so(ashop: Shop, run: Runs) -> None:
    """Calls over a limit are answered by the limit; the run is through, the effect is one."""
    limits: list[Any] = [
        ToolCallLimitMiddleware(run_limit=1, exit_behavior="end"),
        ModelCallLimitMiddleware(run_limit=5),
    ]
    agent: Any = create_agent(
        ScriptedChatModel([calling(TAKE_ONE), calling(NOTIFY_ONE), "done"]),
        ashop.tools(colour=run.colour),
        middleware=[*limits, IdempotencyMiddleware(ashop.ledger)],
    )
    told = await run(agent)
    assert (told["status"], told["next_step"]) == (RunStatus.COMPLETED, None)
    assert ashop.rows("taken") == [("O-1", "A")]
    assert ashop.rows("notified") == []


class ByItsOwnCount(ScriptedChatModel):
    """Plays its script on, whatever became of the conversation."""

    def _reply(self, messages: list[Any]) -> AIMessage:
        given = sum(isinstance(message, AIMessage) for message in messages)
        missing = [AIMessage("")] * (len(self.seen) - given)
        return super()._reply([*missing, *messages])


async def test_steps_outlive_a_summary_of_the_messages(ashop: Shop, run: Runs) -> None:
    """When old messages are summed up, what was done is still told to the model."""
    summing = SummarizationMiddleware(
        ScriptedChatModel(["They talked."] * 9), trigger=("messages", 4), keep=("messages", 2)
    )
    agent: Any = create_agent(
        ByItsOwnCount(script=[calling(TAKE_ONE), calling(NOTIFY_ONE), "done"]),
        ashop.tools(colour=run.colour),
        middleware=[summing, IdempotencyMiddleware(ashop.ledger)],
    )
    told = await run(agent)
    assert len(told["messages"]) < 6
    assert [step["operation"] for step in told["done_steps"]] == ["take", "notify"]
