"""IdempotencyMiddleware: what the tool node adds, for create_agent, in both colours."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest
from langchain.agents import AgentState, create_agent
from langchain.agents.middleware import AgentMiddleware, ToolRetryMiddleware
from langchain_core.messages import SystemMessage, ToolMessage
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.prebuilt import ToolRuntime
from langgraph.types import Command
from sqlalchemy.orm import Session

import langgraph_idem
from langgraph_idem import (
    PER_CALL,
    ConfigurationError,
    EffectBusy,
    IdempotencyMiddleware,
    OutcomeUnknown,
    RunStatus,
)
from langgraph_idem.testing import ScriptedChatModel
from langgraph_idem.tools.leaving import leaving
from tests.langgraph.shop import CHECK, NOTIFY_ONE, TAKE, TAKE_ONE, Shop, calling

HELLO: Any = {"messages": [("user", "order O-1")]}


@dataclass
class Place:
    """Where a test's agents run: one colour, a shop and a checkpointer of that colour."""

    colour: str
    shop: Shop
    saver: Any

    def agent(self, script: list[Any], tools: list[BaseTool] | None = None, **options: Any) -> Any:
        """Make an agent whose last middleware is ours."""
        around = options.pop("around", [])
        return create_agent(
            options.pop("model", None) or ScriptedChatModel(script),
            self.shop.tools(colour=self.colour) if tools is None else tools,
            middleware=[*around, IdempotencyMiddleware(self.shop.ledger)],
            checkpointer=options.pop("checkpointer", self.saver),
            **options,
        )

    async def run(self, agent: Any, given: Any = HELLO, thread: str = "t") -> dict[str, Any]:
        """Run an agent in this place's colour."""
        config: Any = {"configurable": {"thread_id": thread}}
        durable = {"durability": "sync"} if agent.checkpointer else {}
        if self.colour == "sync":
            result = agent.invoke(given, config, **durable)
        else:
            result = await agent.ainvoke(given, config, **durable)
        told: dict[str, Any] = result
        return told

    async def state(self, agent: Any, thread: str = "t") -> Any:
        """Read the state from the checkpoint."""
        config: Any = {"configurable": {"thread_id": thread}}
        if self.colour == "sync":
            return agent.get_state(config)
        return await agent.aget_state(config)


@pytest.fixture(params=["sync", "async"])
def place(
    request: pytest.FixtureRequest, ashop: Shop, saver: SqliteSaver, asaver: AsyncSqliteSaver
) -> Place:
    """Give each test both colours."""
    colour = request.param
    return Place(colour, ashop, saver if colour == "sync" else asaver)


def answers(state: dict[str, Any]) -> list[ToolMessage]:
    """Return the tools' messages."""
    return [message for message in state["messages"] if isinstance(message, ToolMessage)]


async def test_done_steps_and_the_rest_are_in_the_state(place: Place) -> None:
    """Parallel calls and a repetition: one effect each, all of it told in the checkpoint."""
    script = [calling(TAKE_ONE, NOTIFY_ONE, CHECK), calling(TAKE_ONE), "done"]
    agent = place.agent(script)
    await place.run(agent)
    told = (await place.state(agent)).values
    assert place.shop.rows("taken") == [("O-1", "A")]
    assert place.shop.rows("notified") == [("O-1",)]
    assert [(s["operation"], s["replayed"]) for s in told["done_steps"]] == [
        ("take", False),
        ("notify", False),
    ]
    assert (told["status"], told["next_step"]) == (RunStatus.COMPLETED, None)
    assert [entry["event"] for entry in told["trace"]] == [
        "task_received",
        "model_answered",
        *["tool_finished"] * 3,
        "model_answered",
        "tool_finished",
        "model_answered",
        "completed",
    ]
    again = answers(told)[-1]
    assert (again.tool_call_id, again.additional_kwargs["idempotency"]["replayed"]) == (
        "call_0",
        True,
    )


async def test_a_second_turn_begins_anew(place: Place) -> None:
    """What was done stays told; the status of a new turn is its own."""
    seen: list[tuple[Any, Any]] = []

    class Watching(AgentMiddleware[Any, Any, Any]):
        def wrap_model_call(self, request: Any, handler: Any) -> Any:
            seen.append((request.state["status"], request.state["next_step"]))
            return handler(request)

        async def awrap_model_call(self, request: Any, handler: Any) -> Any:
            seen.append((request.state["status"], request.state["next_step"]))
            return await handler(request)

    agent = place.agent([calling(TAKE_ONE), "done", "again"], around=[Watching()])
    await place.run(agent)
    told = await place.run(agent, {"messages": [("user", "and now?")]})
    assert seen == [(RunStatus.RUNNING, "waiting_model")] * 3
    assert told["status"] is RunStatus.COMPLETED
    assert [step["operation"] for step in told["done_steps"]] == ["take"]
    assert [e["task"] for e in told["trace"] if e["event"] == "task_received"] == [
        "order O-1",
        "and now?",
    ]


async def test_where_the_loop_stands_is_read_back_after_a_failure(place: Place) -> None:
    """While tools run the checkpoint says waiting_tool; the resume runs just what is missing."""
    failing = [True]

    @tool
    def flaky(what: str) -> str:
        """Fail the first time."""
        if failing.pop() if failing else False:
            raise KeyError(what)
        return "well"

    tools = [*place.shop.tools(colour=place.colour), flaky]
    agent = place.agent([calling(TAKE_ONE, ("flaky", {"what": "x"})), "done"], tools)
    with pytest.raises(KeyError):
        await place.run(agent)
    snapshot = await place.state(agent)
    assert (snapshot.values["next_step"], snapshot.values["status"]) == (
        "waiting_tool",
        RunStatus.RUNNING,
    )
    told = await place.run(agent, None)
    assert [message.status for message in answers(told)] == ["success", "success"]
    assert place.shop.rows("taken") == [("O-1", "A")]


async def test_the_model_is_told_what_was_done(place: Place) -> None:
    """The system message, with the user's own prompt or without, lists the effects."""
    model = ScriptedChatModel([calling(TAKE_ONE), "done"])
    agent = place.agent([], model=model, system_prompt="You sell.")
    await place.run(agent)
    first, second = (messages[0] for messages in model.seen)
    assert isinstance(second, SystemMessage)
    assert first.content == "You sell."
    assert "You sell." in second.text
    assert 'take for ["O-1","A"]: succeeded' in second.text


async def test_the_model_is_not_told_where_that_is_not_wanted(place: Place) -> None:
    """tell_model=False leaves the prompt as it is."""
    model = ScriptedChatModel([calling(TAKE_ONE), "done"])
    ours = IdempotencyMiddleware(place.shop.ledger, tell_model=False)
    agent: Any = create_agent(model, place.shop.tools(colour=place.colour), middleware=[ours])
    await place.run(agent)
    assert not any(isinstance(m, SystemMessage) for messages in model.seen for m in messages)


async def test_results_are_what_they_were(place: Place) -> None:
    """A middleware around ours gets the tools' own messages, of plain tools the very objects."""
    got: list[Any] = []
    mine = ToolMessage("mine", tool_call_id="call_0", name="plain")

    @tool
    def plain() -> Any:
        """Answer by itself."""
        return mine

    class Watching(AgentMiddleware[Any, Any, Any]):
        def wrap_tool_call(self, request: Any, handler: Any) -> Any:
            got.append(handler(request))
            return got[-1]

        async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
            got.append(await handler(request))
            return got[-1]

    tools = [*place.shop.tools(colour=place.colour), plain]
    agent = place.agent([calling(("plain", {})), calling(TAKE_ONE), "done"], tools,
                        around=[Watching()])  # fmt: skip
    await place.run(agent)
    assert got[0] is mine
    assert isinstance(got[1], ToolMessage)
    assert got[1].additional_kwargs["idempotency"]["operation"] == "take"


async def test_a_command_is_replayed_as_an_answer_to_the_call_that_asks(place: Place) -> None:
    """A tool that returns a Command: its update is made again, under the new call's id."""

    class Owned(AgentState[Any], total=False):
        owner: str

    ledger = place.shop.ledger

    @tool
    @ledger.transactional(key=("order_id",))
    def own(session: Session, /, order_id: str, runtime: ToolRuntime) -> Command[Any]:
        """Take an order over."""
        session.execute(TAKE, {"order_id": order_id, "sku": "-"})
        message = ToolMessage("yours", tool_call_id=runtime.tool_call_id)
        return Command(update={"owner": order_id, "messages": [message]})

    script = [calling(("own", {"order_id": "O-1"}), ids=[name]) for name in ("one", "two")]
    agent = place.agent([*script, "done"], [own], state_schema=Owned)
    told = await place.run(agent)
    assert told["owner"] == "O-1"
    assert [message.tool_call_id for message in answers(told)] == ["one", "two"]
    assert [m.additional_kwargs["idempotency"]["replayed"] for m in answers(told)] == [False, True]
    assert [step["operation"] for step in told["done_steps"]] == ["own"]
    assert place.shop.rows("taken") == [("O-1", "-")]


async def test_return_direct_ends_the_run_with_everything_told(place: Place) -> None:
    """A tool that ends the run itself leaves the same traces."""
    ledger = place.shop.ledger

    @tool(return_direct=True)
    @ledger.transactional(key=("order_id",))
    def last(session: Session, /, order_id: str) -> str:
        """Be the last."""
        session.execute(TAKE, {"order_id": order_id, "sku": "-"})
        return "that is all"

    told = await place.run(place.agent([calling(("last", {"order_id": "O-1"}))], [last]))
    assert [step["operation"] for step in told["done_steps"]] == ["last"]
    assert (told["status"], told["next_step"]) == (RunStatus.COMPLETED, None)
    assert [e["event"] for e in told["trace"]][-2:] == ["tool_finished", "completed"]


async def test_errors_that_a_model_can_act_on_are_worded(place: Place) -> None:
    """Other arguments under the same key: the first request stands, in words for the model."""
    ledger = place.shop.ledger

    @tool
    @ledger.transactional(key=("order_id",))
    def take(session: Session, /, order_id: str, sku: str) -> str:
        """Take one from stock."""
        session.execute(TAKE, {"order_id": order_id, "sku": sku})
        return "taken"

    other = ("take", {"order_id": "O-1", "sku": "B"})
    told = await place.run(place.agent([calling(TAKE_ONE), calling(other), "done"], [take]))
    refusal = answers(told)[-1]
    assert refusal.status == "error"
    assert refusal.additional_kwargs["idempotency"]["error"] == "arguments_changed"
    assert "try again" not in refusal.text.lower()
    assert place.shop.rows("taken") == [("O-1", "A")]


async def test_per_call_keys_know_the_call(place: Place) -> None:
    """PER_CALL under create_agent: two identical calls are two effects, a resumed one is one."""
    ledger = place.shop.ledger

    @tool
    @ledger.transactional(key=PER_CALL)
    def take(session: Session, /, order_id: str, sku: str) -> str:
        """Take one from stock."""
        session.execute(TAKE, {"order_id": order_id, "sku": sku})
        return "taken"

    await place.run(place.agent([calling(TAKE_ONE, TAKE_ONE), "done"], [take]))
    assert place.shop.rows("taken") == [("O-1", "A")] * 2
    assert {effect.origin.tool_call_id for effect in ledger.effects()} == {"call_0", "call_1"}


STREAMED = ["values", "updates", "messages", "custom", "debug"]


@pytest.mark.parametrize("mode", STREAMED)
async def test_streams_are_what_they_were(place: Place, mode: str) -> None:
    """Every stream mode gives what it gave without us, plus our own nodes and fields."""

    @tool
    def talk(runtime: ToolRuntime) -> str:
        """Say something on the way."""
        runtime.stream_writer("on my way")
        return "said"

    async def streamed(agent: Any, thread: str) -> list[Any]:
        config: Any = {"configurable": {"thread_id": thread}}
        if place.colour == "sync":
            return list(agent.stream(HELLO, config, stream_mode=mode))
        return [chunk async for chunk in agent.astream(HELLO, config, stream_mode=mode)]

    script: list[Any] = [calling(("talk", {})), "done"]
    bare: Any = create_agent(ScriptedChatModel(script), [talk], checkpointer=place.saver)
    theirs, ours = await streamed(bare, "a"), await streamed(place.agent(script, [talk]), "b")
    assert theirs
    if mode in {"values", "debug"}:  # one more for each of our nodes
        assert len(ours) > len(theirs)
    else:
        assert _shown(mode, ours) == _shown(mode, theirs)


def _shown(mode: str, chunks: list[Any]) -> list[Any]:
    if mode == "updates":
        return [
            (node, [(m.type, m.content) for m in update["messages"]])
            for chunk in chunks
            for node, update in chunk.items()
            if "messages" in update
        ]
    return [(c[0].type, c[0].content) if mode == "messages" else c for c in chunks]


class Inner(AgentMiddleware[Any, Any, Any]):
    """Stands inside of ours."""

    def wrap_tool_call(self, request: Any, handler: Any) -> Any:
        """Let it through."""
        return handler(request)

    async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
        """Let it through."""
        return await handler(request)


async def test_a_middleware_inside_of_ours_is_refused_before_the_tool_runs(place: Place) -> None:
    """The first tool call says what to write; no tool ran, and no outer middleware hides it."""
    hiding = ToolRetryMiddleware(max_retries=0)
    agent: Any = create_agent(
        ScriptedChatModel([calling(TAKE_ONE), "done"]),
        place.shop.tools(colour=place.colour),
        middleware=[hiding, IdempotencyMiddleware(place.shop.ledger), Inner()],
        checkpointer=place.saver,
    )
    with pytest.raises(ConfigurationError, match="must be the last in middleware"):
        await place.run(agent)
    assert place.shop.rows("taken") == []


async def test_a_field_of_the_same_name_is_refused_before_the_model_is_asked(
    place: Place,
) -> None:
    """LangChain would silently take the user's field for ours; the words name the field."""

    class Mine(AgentState[Any], total=False):
        status: str

    class Ours(AgentState[Any], total=False):
        trace: list[str]

    for schema, name in ((Mine, "status"), (Ours, "trace")):
        model = ScriptedChatModel(["done"])
        agent = place.agent([], model=model, state_schema=schema)
        with pytest.raises(ConfigurationError, match=f"a field '{name}' of its own"):
            await place.run(agent, thread=name)
        assert model.seen == []


async def test_the_names_of_its_nodes_are_stable(place: Place) -> None:
    """Checkpoints hold node names: a subclass, or another release, must go on with them."""

    class Mine(IdempotencyMiddleware):
        pass

    agent: Any = create_agent(ScriptedChatModel(["done"]), [], middleware=[Mine(place.shop.ledger)])
    assert {name for name in agent.nodes if "Middleware" in name} == {
        "IdempotencyMiddleware.before_model",
        "IdempotencyMiddleware.after_agent",
    }


def plain_take(place: Place, colour: str) -> BaseTool:
    """Return a tool that was written without a thought of us."""

    def take(order_id: str, sku: str) -> str:
        """Take one from stock."""
        place.shop.write(f"insert into taken values ('{order_id}', '{sku}')")
        return f"taken {sku}"

    async def atake(order_id: str, sku: str) -> str:
        """Take one from stock."""
        return take(order_id, sku)

    return tool("take")(take if colour == "sync" else atake)


GUARDS: list[Any] = [("order_id", "sku"), {"key": ("order_id", "sku"), "operation": "take"}]


@pytest.mark.parametrize("spec", GUARDS, ids=["key", "options"])
async def test_tools_are_guarded_by_name(place: Place, spec: Any) -> None:
    """guard= takes a key or all options; the tool itself is left as it is, others are too."""
    taking = plain_take(place, place.colour)
    agent: Any = create_agent(
        ScriptedChatModel([calling(TAKE_ONE), calling(TAKE_ONE), "done"]),
        [taking],
        middleware=[IdempotencyMiddleware(place.shop.ledger, guard={"take": spec})],
        checkpointer=place.saver,
    )
    told = await place.run(agent)
    assert [message.text for message in answers(told)] == ["taken A"] * 2
    assert place.shop.rows("taken") == [("O-1", "A")]
    assert [step["operation"] for step in told["done_steps"]] == ["take"]
    assert not hasattr(taking, "__idempotent__")


async def test_a_guard_for_no_tool_is_refused_before_any_tool_runs(place: Place) -> None:
    """A slip of the pen would leave a tool unguarded; the words name the tools that there are."""
    ours = IdempotencyMiddleware(place.shop.ledger, guard={"tale": ("order_id",)})
    tools = [plain_take(place, place.colour)]
    agent: Any = create_agent(ScriptedChatModel([calling(TAKE_ONE)]), tools, middleware=[ours])
    with pytest.raises(ConfigurationError, match=r"'tale'.* Its tools are: take\."):
        await place.run(agent)
    assert place.shop.rows("taken") == []


async def test_a_guard_for_a_guarded_tool_is_refused(place: Place) -> None:
    """Two guards on one tool would be two effects of one call."""
    ours = IdempotencyMiddleware(place.shop.ledger, guard={"take": ("order_id",)})
    tools = place.shop.tools(colour=place.colour)
    agent: Any = create_agent(ScriptedChatModel([calling(TAKE_ONE)]), tools, middleware=[ours])
    with pytest.raises(ConfigurationError, match="'take', which is guarded already"):
        await place.run(agent)
    assert place.shop.rows("taken") == []


def test_what_is_no_ledger_is_refused() -> None:
    """The words say what to write."""
    wrong: Any = "sqlite:///shop.db"
    with pytest.raises(ConfigurationError, match=r"IdempotencyMiddleware\(Ledger\("):
        IdempotencyMiddleware(wrong)


def test_a_leaving_error_is_what_it_was() -> None:
    """Past all middleware an error keeps class, words, fields; pickled it is the plain one."""
    error = leaving(OutcomeUnknown("unknown", operation="pay", key="1", scope="global"))
    assert isinstance(error, OutcomeUnknown)
    assert (str(error), error.operation, error.code) == ("unknown", "pay", "outcome_unknown")
    assert leaving(error) is error
    assert type(error) is type(leaving(OutcomeUnknown("other")))
    back = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert type(back) is OutcomeUnknown
    assert (str(back), back.__dict__) == ("unknown", error.__dict__)
    assert not isinstance(leaving(EffectBusy("busy")), OutcomeUnknown)


WITHOUT_LANGCHAIN = """
import sys
sys.modules["langchain"] = None
import langgraph_idem
try:
    from langgraph_idem import IdempotencyMiddleware
except ImportError as error:
    print(error)
"""


def test_without_langchain_the_words_name_the_pip_line() -> None:
    """The package is imported without LangChain; only the middleware asks for it."""
    told = subprocess.run(
        [sys.executable, "-c", WITHOUT_LANGCHAIN], capture_output=True, text=True, check=True
    )
    assert 'pip install "langgraph-idem[langchain]"' in told.stdout


def test_other_names_are_missing_as_ever() -> None:
    """A name that is not there is an AttributeError, as in any module."""
    with pytest.raises(AttributeError, match="no attribute 'Idempotency'"):
        _ = langgraph_idem.Idempotency
