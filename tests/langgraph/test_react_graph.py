"""The ReAct graph: its state, its failures, its questions, and what a fresh process reads."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Annotated, Any

import pytest
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt
from sqlalchemy.orm import Session
from typing_extensions import TypedDict

from langgraph_idem import (
    ConfigurationError,
    LedgerError,
    ReActGraph,
    ReActState,
    RunStatus,
    State,
    create_react_agent,
)
from langgraph_idem.testing import ScriptedChatModel
from tests.langgraph.shop import CHECK, NOTIFY_ONE, TAKE, TAKE_ONE, Shop, calling

if TYPE_CHECKING:
    from collections.abc import Sequence

    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

CONFIG: Any = {"configurable": {"thread_id": "O-1"}}
TASK: Any = {"task": "process order O-1"}


def agent_of(
    shop: Shop, script: Sequence[Any], tools: Sequence[BaseTool] | None = None, **options: Any
) -> ReActGraph:
    """Build an agent that plays a script."""
    model = ScriptedChatModel(script)
    used = shop.tools() if tools is None else tools
    return create_react_agent(model, used, ledger=shop.ledger, **options)


def events(state: dict[str, Any]) -> list[str]:
    """Return what the trace tells, without times."""
    return [entry["event"] for entry in state["trace"]]


def test_a_normal_run(shop: Shop, saver: SqliteSaver) -> None:
    """Task in, effects once, everything of the run in the state, and completed at the end."""
    agent = agent_of(
        shop, [calling(CHECK), calling(TAKE_ONE, NOTIFY_ONE), "Done."], checkpointer=saver
    )
    state = agent.invoke(TASK, CONFIG)
    assert [type(message) for message in state["messages"]] == [
        HumanMessage, AIMessage, ToolMessage, AIMessage, ToolMessage, ToolMessage, AIMessage,
    ]  # fmt: skip
    assert state["messages"][0].text == state["task"] == TASK["task"]
    assert (state["status"], state["next_step"]) == (RunStatus.COMPLETED, None)
    assert [step["operation"] for step in state["done_steps"]] == ["take", "notify"]
    assert events(state) == [
        "task_received", "model_answered", "tool_finished", "model_answered", "tool_finished",
        "tool_finished", "model_answered", "completed",
    ]  # fmt: skip
    assert (shop.rows("taken"), shop.rows("notified")) == ([("O-1", "A")], [("O-1",)])


async def test_a_normal_run_async(ashop: Shop, asaver: AsyncSqliteSaver) -> None:
    """The same on an event loop, with tools of either colour in one agent."""
    tools = [*ashop.tools(colour="async")[:2], ashop.tools()[2]]
    script = [calling(TAKE_ONE, NOTIFY_ONE, CHECK), "Done."]
    agent = agent_of(ashop, script, tools, checkpointer=asaver)
    state = await agent.ainvoke(TASK, CONFIG)
    assert (state["status"], state["next_step"]) == (RunStatus.COMPLETED, None)
    assert (ashop.rows("taken"), ashop.rows("notified")) == ([("O-1", "A")], [("O-1",)])


def test_the_state_is_plain_in_the_checkpoint(
    shop: Shop, checkpoints: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A program that knows nothing of us reads texts, and no serializer has to warn."""
    with SqliteSaver.from_conn_string(checkpoints) as saver:
        agent_of(shop, [calling(TAKE_ONE), "Done."], checkpointer=saver).invoke(TASK, CONFIG)
    with SqliteSaver.from_conn_string(checkpoints) as saver:
        found = saver.get_tuple(CONFIG)
        assert found is not None
        values = found.checkpoint["channel_values"]
        assert type(values["status"]) is str
        assert values["status"] == RunStatus.COMPLETED
        assert values["next_step"] is None
        state = agent_of(shop, [], checkpointer=saver).get_state(CONFIG).values
        assert state["status"] is RunStatus.COMPLETED
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_every_checkpoint_says_where_the_loop_stands(shop: Shop, saver: SqliteSaver) -> None:
    """Each step of the history, the first included, has a status and a next step that is true."""
    agent = agent_of(shop, [calling(TAKE_ONE), "Done."], checkpointer=saver)
    agent.invoke(TASK, CONFIG)
    told = [
        (snapshot.next, snapshot.values["status"].value, snapshot.values["next_step"])
        for snapshot in agent.get_state_history(CONFIG)
    ]
    assert told[::-1] == [
        (("__start__",), "RUNNING", "waiting_model"),
        (("model",), "RUNNING", "waiting_model"),
        (("tools",), "RUNNING", "waiting_tool"),
        (("model",), "RUNNING", "waiting_model"),
        ((), "COMPLETED", None),
    ]


def test_messages_as_input_and_a_second_turn(shop: Shop, saver: SqliteSaver) -> None:
    """Messages serve as input too; a new turn on a completed thread runs, and says so."""
    seen: list[dict[str, Any]] = []
    script = [calling(TAKE_ONE), "Done.", lambda _: noting()]
    agent = agent_of(shop, script, checkpointer=saver)

    def noting() -> str:
        seen.append(dict(agent.get_state(CONFIG).values))
        return "Again done."

    first = agent.invoke({"messages": [HumanMessage("take one")]}, CONFIG)
    assert (first["task"], first["status"]) == ("take one", RunStatus.COMPLETED)
    second = agent.invoke({"messages": "and now?"}, CONFIG)
    assert (seen[0]["status"], seen[0]["next_step"]) == (RunStatus.RUNNING, "waiting_model")
    assert (second["task"], second["status"]) == ("and now?", RunStatus.COMPLETED)
    assert [m.text for m in second["messages"] if isinstance(m, HumanMessage)] == [
        "take one",
        "and now?",
    ]
    assert len(second["done_steps"]) == 1


def test_the_model_is_told_what_is_done(shop: Shop) -> None:
    """Prompt and done effects reach the model as one system message, the only one."""
    model = ScriptedChatModel([calling(TAKE_ONE), "Done."])
    agent = create_react_agent(model, shop.tools(), ledger=shop.ledger, prompt="Be brief.")
    agent.invoke(TASK)
    before, after = (messages[0].text for messages in model.seen)
    assert before == "Be brief."
    assert after.startswith("Be brief.\n\n")
    assert "take for" in after
    assert [isinstance(m, SystemMessage) for m in model.seen[1]] == [True, False, False, False]
    assert [known["function"]["name"] for known in model.bound_tools] == [
        "check_stock",
        "take",
        "notify",
    ]


@pytest.mark.parametrize(
    "prompt",
    [
        SystemMessage([{"type": "text", "text": "Be brief."}]),
        lambda state: [SystemMessage("Be brief."), *state["messages"]],
    ],
)
def test_prompts_of_other_kinds(shop: Shop, prompt: Any) -> None:
    """A SystemMessage of blocks or a function of the state is a prompt, too."""
    model = ScriptedChatModel([calling(TAKE_ONE), "Done."])
    create_react_agent(model, shop.tools(), ledger=shop.ledger, prompt=prompt).invoke(TASK)
    assert [messages[0].text.startswith("Be brief.") for messages in model.seen] == [True, True]
    assert "take for" in model.seen[1][0].text


def test_parallel_calls_run_at_once(shop: Shop) -> None:
    """Two calls of one message run side by side; neither waits for the other to end."""
    barrier = threading.Barrier(2, timeout=20)

    @tool
    def meet(who: str) -> str:
        """Wait for the other one."""
        barrier.wait()
        return who

    script = [calling(("meet", {"who": "a"}), ("meet", {"who": "b"})), "Done."]
    state = agent_of(shop, script, [meet]).invoke(TASK)
    assert [m.content for m in state["messages"] if isinstance(m, ToolMessage)] == ["a", "b"]


class Failing:
    """A guarded tool that fails as long as it is told to, beside one that does not."""

    def __init__(self, shop: Shop) -> None:
        self.fails = True
        self.entered = 0

        @tool
        @shop.ledger.transactional(key=("order_id", "sku"))
        def take(session: Session, /, order_id: str, sku: str) -> str:
            """Take one from stock."""
            self.entered += 1
            session.execute(TAKE, {"order_id": order_id, "sku": sku})
            if self.fails:
                raise RuntimeError("the printer is out of paper")
            return "took"

        self.tools = [take, *(made for made in shop.tools() if made.name != "take")]


def test_a_failed_tool_ends_the_run_as_a_state(
    shop: Shop, saver: SqliteSaver, caplog: pytest.LogCaptureFixture
) -> None:
    """The failure is in status, trace, messages and log; nothing took hold; the sibling's did."""
    failing = Failing(shop)
    agent = agent_of(
        shop, [calling(TAKE_ONE, NOTIFY_ONE), "Not reached."], failing.tools, checkpointer=saver
    )
    with caplog.at_level(logging.ERROR, logger="langgraph_idem"):
        state = agent.invoke(TASK, CONFIG)
    assert (state["status"], state["next_step"]) == (RunStatus.FAILED, "waiting_tool")
    (failure,) = [entry for entry in state["trace"] if entry["event"] == "tool_failed"]
    assert failure["error"] == "RuntimeError: the printer is out of paper"
    assert (failure["tool"], failure["tool_call_id"]) == ("take", "call_0")
    told, sibling = state["messages"][2:]
    assert (told.status, sibling.status) == ("error", "success")
    assert told.text == (
        "take failed: RuntimeError: the printer is out of paper. It did not take effect."
    )
    assert "the printer is out of paper" in caplog.text
    assert (shop.rows("taken"), shop.rows("notified")) == ([], [("O-1",)])
    fresh = agent.get_state(CONFIG)
    assert (fresh.values["status"], fresh.next) == (RunStatus.FAILED, ())
    assert [effect.operation for effect in shop.ledger.effects()] == ["notify"]


def test_a_failed_plain_tool_says_no_more_than_is_known(shop: Shop) -> None:
    """Of an unguarded tool nobody knows whether it took effect, and nobody says so."""

    @tool
    def email(to: str) -> str:
        """Send a mail."""
        raise OSError("connection reset")

    state = agent_of(shop, [calling(("email", {"to": "a"}))], [email]).invoke(TASK)
    assert state["messages"][-1].text == "email failed: OSError: connection reset."
    assert state["status"] is RunStatus.FAILED


def test_a_failure_after_the_effect_is_not_called_no_effect(shop: Shop) -> None:
    """If the result cannot be handed over though the effect is committed, it says just that."""

    @tool(response_format="content_and_artifact")
    @shop.ledger.transactional(key=("order_id",))
    def take(session: Session, /, order_id: str) -> str:
        """Take one from stock."""
        session.execute(TAKE, {"order_id": order_id, "sku": "A"})
        return "no pair"

    state = agent_of(shop, [calling(("take", {"order_id": "O-1"}))], [take]).invoke(TASK)
    assert shop.rows("taken") == [("O-1", "A")]
    assert state["status"] is RunStatus.FAILED
    assert state["messages"][-1].text.endswith(
        "Its effect took hold all the same; it must not be repeated."
    )


def test_failures_that_are_handled_go_to_the_model(shop: Shop) -> None:
    """With handle_tool_errors the model is told instead, and the run goes on."""
    failing = Failing(shop)
    agent = agent_of(shop, [calling(TAKE_ONE), "Sorry."], failing.tools, handle_tool_errors=True)
    state = agent.invoke(TASK)
    assert (state["status"], state["messages"][-1].text) == (RunStatus.COMPLETED, "Sorry.")
    assert state["messages"][2].status == "error"


def test_invalid_arguments_go_to_the_model_by_default(shop: Shop) -> None:
    """A model that calls a tool wrongly is told so and may do better."""
    script = [calling(("take", {"order": 1})), calling(TAKE_ONE), "Done."]
    state = agent_of(shop, script).invoke(TASK)
    assert state["status"] is RunStatus.COMPLETED
    assert shop.rows("taken") == [("O-1", "A")]


def test_a_new_turn_after_a_failure_goes_on_from_the_error(shop: Shop, saver: SqliteSaver) -> None:
    """On a failed thread a new message continues; the model sees the error, in valid order."""
    failing = Failing(shop)
    agent = agent_of(
        shop, [calling(TAKE_ONE), "I see it failed."], failing.tools, checkpointer=saver
    )
    agent.invoke(TASK, CONFIG)
    state = agent.invoke({"messages": "what happened?"}, CONFIG)
    assert state["status"] is RunStatus.COMPLETED
    assert [message.type for message in state["messages"]] == ["human", "ai", "tool", "human", "ai"]
    assert failing.entered == 1


def test_a_broken_ledger_leaves_the_run_resumable(shop: Shop, saver: SqliteSaver) -> None:
    """An error of the ledger leaves the graph as an exception; a plain resume goes on."""
    broken = [True]

    @tool
    def fragile(order_id: str) -> str:
        """Meet a ledger that cannot serve at first."""
        if broken[0]:
            raise LedgerError("the database is away")
        return "fine"

    script = [calling(("fragile", {"order_id": "O-1"}), NOTIFY_ONE), "Done."]
    agent = agent_of(shop, script, [fragile, shop.tools()[2]], checkpointer=saver)
    with pytest.raises(LedgerError):
        agent.invoke(TASK, CONFIG)
    found = agent.get_state(CONFIG).values
    assert (found["status"], found["next_step"]) == (RunStatus.RUNNING, "waiting_tool")
    broken[0] = False
    state = agent.invoke(None, CONFIG)
    assert state["status"] is RunStatus.COMPLETED
    assert shop.rows("notified") == [("O-1",)]


def test_a_failing_model_leaves_the_run_waiting_for_it(shop: Shop, saver: SqliteSaver) -> None:
    """If the model cannot be reached, the run waits for the model, and resumes there."""
    replies: list[Any] = [calling(TAKE_ONE)]
    agent = agent_of(shop, replies, checkpointer=saver)
    with pytest.raises(IndexError, match="add the reply that comes next"):
        agent.invoke(TASK, CONFIG)
    found = agent.get_state(CONFIG).values
    assert (found["status"], found["next_step"]) == (RunStatus.RUNNING, "waiting_model")
    later = agent_of(shop, [*replies, "Done."], checkpointer=saver)
    assert later.invoke(None, CONFIG)["status"] is RunStatus.COMPLETED
    assert shop.rows("taken") == [("O-1", "A")]


def asking_tools(shop: Shop) -> list[BaseTool]:
    """Return a guarded tool that asks a person after it has written, and the plain ones."""

    @tool
    @shop.ledger.transactional(key=("order_id", "sku"))
    def take(session: Session, /, order_id: str, sku: str) -> str:
        """Take one from stock."""
        session.execute(TAKE, {"order_id": order_id, "sku": sku})
        return f"took, {interrupt('really?')}"

    return [take, *(made for made in shop.tools() if made.name != "take")]


def test_an_interrupt_within_a_guarded_tool(shop: Shop, saver: SqliteSaver) -> None:
    """A question undoes claim and rows, a sibling's effect stays, and the answer resumes it."""
    script = [calling(TAKE_ONE, NOTIFY_ONE), "Done."]
    agent = agent_of(shop, script, asking_tools(shop), checkpointer=saver)
    asked = agent.invoke(TASK, CONFIG)
    assert [question.value for question in asked["__interrupt__"]] == ["really?"]
    assert asked["status"] is RunStatus.WAITING_FOR_HUMAN
    found = agent.get_state(CONFIG)
    assert (found.values["status"], found.values["next_step"]) == (
        RunStatus.WAITING_FOR_HUMAN,
        "waiting_tool",
    )
    assert (shop.rows("taken"), shop.rows("notified")) == ([], [("O-1",)])
    assert [effect.operation for effect in shop.ledger.effects()] == ["notify"]
    state = agent.invoke(Command(resume="yes"), CONFIG)
    assert state["status"] is RunStatus.COMPLETED
    assert [m.text for m in state["messages"] if isinstance(m, ToolMessage)] == [
        "took, yes",
        "notified",
    ]
    assert (shop.rows("taken"), shop.rows("notified")) == ([("O-1", "A")], [("O-1",)])
    assert {effect.state for effect in shop.ledger.effects()} == {State.SUCCEEDED}


async def test_an_interrupt_within_a_guarded_tool_async(
    ashop: Shop, asaver: AsyncSqliteSaver
) -> None:
    """The same on an event loop, where the sync tool runs in a thread."""
    script = [calling(TAKE_ONE), "Done."]
    agent = agent_of(ashop, script, asking_tools(ashop), checkpointer=asaver)
    asked = await agent.ainvoke(TASK, CONFIG)
    assert asked["status"] is RunStatus.WAITING_FOR_HUMAN
    assert (await agent.aget_state(CONFIG)).values["status"] is RunStatus.WAITING_FOR_HUMAN
    assert (ashop.rows("taken"), await ashop.ledger.aeffects()) == ([], [])
    state = await agent.ainvoke(Command(resume="yes"), CONFIG)
    assert state["status"] is RunStatus.COMPLETED
    assert ashop.rows("taken") == [("O-1", "A")]


def test_interrupts_are_told_by_the_newer_output_form(shop: Shop, saver: SqliteSaver) -> None:
    """``version="v2"`` gives values and interrupts apart; the status waits there, too."""
    agent = agent_of(shop, [calling(TAKE_ONE)], asking_tools(shop), checkpointer=saver)
    output = agent.invoke(TASK, CONFIG, version="v2")
    assert output.value["status"] is RunStatus.WAITING_FOR_HUMAN
    assert [question.value for question in output.interrupts] == ["really?"]


class DurabilityOfRun:
    """A plain tool that looks from within how durable the run is: what a crash here would leave."""

    def __init__(self, saver: Any) -> None:
        self.saved: list[bool] = []

        @tool
        def look(what: str) -> str:
            """Look whether it is written already that a tool is waited for."""
            written = [found.checkpoint["channel_values"] for found in saver.list(CONFIG)]
            saver.was_looked_at.set()
            self.saved.append("waiting_tool" in [values.get("next_step") for values in written])
            return what

        self.look = look


class LateSaver(InMemorySaver):
    """A checkpointer that is slow to write: whoever does not wait for it is ahead of it."""

    def __init__(self) -> None:
        super().__init__()
        self.was_looked_at = threading.Event()

    def put(self, *args: Any, **kwargs: Any) -> Any:
        """Write when somebody has looked, or after a while if nobody does."""
        self.was_looked_at.wait(0.4)
        return super().put(*args, **kwargs)


@pytest.mark.parametrize(
    ("options", "seen"),
    [({}, True), ({"durability": "sync"}, True), ({"durability": "async"}, False),
     ({"durability": "exit"}, False)],
)  # fmt: skip
def test_durability_is_sync_unless_told_otherwise(
    shop: Shop,
    options: dict[str, Any],
    seen: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    """Before a tool runs, the step that leads to it is on disk: nobody has to ask for it."""
    saver = LateSaver()
    durability = DurabilityOfRun(saver)
    agent = agent_of(
        shop, [calling(("look", {"what": "x"})), "Done."], [durability.look], checkpointer=saver
    )
    agent.invoke(TASK, CONFIG, **options)
    assert durability.saved == [seen]


@pytest.mark.parametrize("way", ["stream", "with_config", "subgraph", "events"])
async def test_durability_is_sync_whoever_runs_it(ashop: Shop, way: str) -> None:
    """Streamed, reconfigured, as a part of another graph, or by its events: sync all the same."""
    saver = LateSaver()
    durability = DurabilityOfRun(saver)
    script = [calling(("look", {"what": "x"})), "Done."]
    lent: dict[str, Any] = {} if way == "subgraph" else {"checkpointer": saver}
    agent = agent_of(ashop, script, [durability.look], **lent)
    if way == "stream":
        list(agent.stream(TASK, CONFIG))
    elif way == "with_config":
        agent.with_config(tags=["x"]).invoke(TASK, CONFIG)
    elif way == "events":
        async for _ in agent.astream_events(TASK, CONFIG):
            pass
    else:
        builder = StateGraph(ReActState)
        builder.add_node("agent", agent)
        builder.add_edge(START, "agent")
        parent = builder.compile(checkpointer=saver)
        parent.invoke(TASK, CONFIG)
    assert durability.saved == [True]


def test_without_a_checkpointer_it_runs_and_nothing_warns(shop: Shop) -> None:
    """An agent without memory works, silently (warnings are errors here)."""
    assert agent_of(shop, [calling(TAKE_ONE), "Done."]).invoke(TASK)["status"] == "COMPLETED"


def test_streaming_modes(shop: Shop) -> None:
    """Values, updates, messages and custom streams are LangGraph's own."""
    script = [calling(TAKE_ONE), "Done.\nReally.\n"]
    agent = agent_of(shop, script)
    modes: Any = ["values", "updates", "messages", "custom"]
    streamed = list(agent.stream(TASK, stream_mode=modes))
    values = [chunk for mode, chunk in streamed if mode == "values"]
    assert [(str(value["status"]), value["next_step"]) for value in values] == [
        ("RUNNING", "waiting_model"),
        ("RUNNING", "waiting_tool"),
        ("RUNNING", "waiting_model"),
        ("COMPLETED", None),
    ]
    assert [[*chunk] for mode, chunk in streamed if mode == "updates"] == [
        ["model"],
        ["tools"],
        ["model"],
    ]
    tokens = [
        chunk[0].content
        for mode, chunk in streamed
        if mode == "messages" and isinstance(chunk[0], AIMessageChunk) and chunk[0].content
    ]
    assert tokens == ["Done.\n", "Really.\n"]


async def test_streaming_async(ashop: Shop) -> None:
    """The same stream on an event loop."""
    agent = agent_of(ashop, [calling(TAKE_ONE), "Done."], ashop.tools(colour="async"))
    statuses = [str(v["status"]) async for v in agent.astream(TASK, stream_mode="values")]
    assert statuses == ["RUNNING", "RUNNING", "RUNNING", "COMPLETED"]


class ShopState(ReActState, total=False):
    """The state with a field of the user's own."""

    customer: str


class FieldsOnly(TypedDict):
    """Fields of one's own, without ours."""

    customer: Annotated[list[str], lambda earlier, later: earlier + later]


def test_fields_of_ones_own(shop: Shop, saver: SqliteSaver) -> None:
    """A state schema adds fields, inherited from ours or on its own, and tools may write them."""

    @tool
    def ask_name(what: str) -> str:
        """Ask for a name."""
        return "Ada"

    for schema, customer in ((ShopState, "Ada"), (FieldsOnly, ["Ada"])):
        agent = agent_of(
            shop, [calling(("ask_name", {"what": "x"})), "Done."], [ask_name],
            state_schema=schema, checkpointer=saver,
        )  # fmt: skip
        config: Any = {"configurable": {"thread_id": schema.__name__}}
        agent.invoke({**TASK, "customer": customer}, config)
        state = agent.get_state(config).values
        assert (state["customer"], state["status"]) == (customer, RunStatus.COMPLETED)


class Clashing(TypedDict):
    """A schema that would take ``trace`` from us."""

    trace: list[str]


class Agreeing(MessagesState):
    """A schema whose ``messages`` are merged as ours are."""

    customer: str


def test_clashing_fields_are_refused(shop: Shop) -> None:
    """A schema that merges one of our fields in another way is refused, one that agrees is not."""
    with pytest.raises(ConfigurationError, match="trace"):
        agent_of(shop, [], state_schema=Clashing)
    with pytest.raises(ConfigurationError, match="TypedDict"):
        agent_of(shop, [], state_schema=dict)
    agent_of(shop, [], state_schema=Agreeing)


def test_models_that_cannot_call_tools_are_refused(shop: Shop) -> None:
    """What is no chat model is refused when the agent is built; a bound model is taken as it is."""
    with pytest.raises(ConfigurationError, match="cannot call tools"):
        create_react_agent("gpt", shop.tools(), ledger=shop.ledger)  # type: ignore[arg-type]  # the error itself
    with pytest.raises(ConfigurationError, match="ledger="):
        create_react_agent(ScriptedChatModel([]), [], ledger=None)  # type: ignore[arg-type]  # the error itself
    bound = ScriptedChatModel([calling(TAKE_ONE), "Done."]).bind_tools(shop.tools())
    assert create_react_agent(bound, shop.tools(), ledger=shop.ledger).invoke(TASK)["done_steps"]
    plain = GenericFakeChatModel(messages=iter([AIMessage("Hello.")]))
    state = create_react_agent(plain, [], ledger=shop.ledger).invoke(TASK)
    assert state["status"] is RunStatus.COMPLETED


def test_numbers_that_start_anew_each_turn(shop: Shop, saver: SqliteSaver) -> None:
    """A provider that calls every first call ``call_0`` loses no message and no effect by it."""
    second = ("take", {"order_id": "O-1", "sku": "B"})
    script = [calling(TAKE_ONE), calling(second), "Done."]
    state = agent_of(shop, script, checkpointer=saver).invoke(TASK, CONFIG)
    assert len([m for m in state["messages"] if isinstance(m, ToolMessage)]) == 2
    assert shop.rows("taken") == [("O-1", "A"), ("O-1", "B")]
