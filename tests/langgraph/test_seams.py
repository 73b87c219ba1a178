"""Guarded functions at LangGraph's seams: the decorator alone protects, and knows the thread."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, AnyMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.func import entrypoint, task
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, ToolRuntime
from langgraph.types import Command, Send, interrupt
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session
from typing_extensions import TypedDict

from langgraph_idem import (
    PER_CALL,
    DoneSteps,
    IdempotencyMiddleware,
    IdempotentToolNode,
    Ledger,
    MissingKey,
    create_react_agent,
)
from langgraph_idem.testing import ScriptedChatModel
from tests.langgraph.shop import NOTIFY, NOTIFY_ONE, TAKE, TAKE_ONE, Shop, calling

HELLO: Any = {"messages": [("user", "order O-1")]}


def on(thread: str) -> Any:
    """Return the config of a thread."""
    return {"configurable": {"thread_id": thread}}


def needs_config(colour: Colour) -> None:
    """LangGraph's own limit: async nodes and tasks are told their config from Python 3.11 on."""
    if colour.name == "async" and sys.version_info < (3, 11):
        pytest.skip("LangGraph tells async nodes their config from Python 3.11 on")


class Colour:
    """Runs graphs in one colour, and makes functions of that colour."""

    def __init__(self, name: str, saver: Any, shop: Shop) -> None:
        self.name, self.saver, self.shop = name, saver, shop

    async def run(self, graph: Any, given: Any, thread: str = "t") -> Any:
        """Run a graph durably."""
        if self.name == "sync":
            return graph.invoke(given, on(thread), durability="sync")
        return await graph.ainvoke(given, on(thread), durability="sync")

    def take(self, **options: Any) -> Any:
        """Return a guarded function that takes one from stock."""
        options = {"key": ("order_id", "sku"), "operation": "take", **options}

        @self.shop.ledger.transactional(**options)
        def take(session: Session, /, order_id: str, sku: str) -> str:
            """Take one from stock."""
            session.execute(TAKE, {"order_id": order_id, "sku": sku})
            return f"taken {sku}"

        @self.shop.ledger.transactional(**options)
        async def atake(session: AsyncSession, /, order_id: str, sku: str) -> str:
            """Take one from stock."""
            await session.execute(TAKE, {"order_id": order_id, "sku": sku})
            return f"taken {sku}"

        return take if self.name == "sync" else atake

    def node(self, steps: Callable[..., Awaitable[Any]]) -> Any:
        """Make a node of steps that are written once, as a coroutine over this colour."""
        if self.name == "async":
            return steps

        def node(state: Any, config: RunnableConfig) -> Any:
            return unsuspended(steps(state, config))

        return node


def unsuspended(coroutine: Any) -> Any:
    """Run a coroutine that awaits nothing but what is there already."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("It suspended.")


async def done(result: Any) -> Any:
    """Await what is awaitable."""
    return await result if isinstance(result, Awaitable) else result


@pytest.fixture(params=["sync", "async"])
def colour(
    request: pytest.FixtureRequest, ashop: Shop, saver: SqliteSaver, asaver: AsyncSqliteSaver
) -> Colour:
    """Give each test both colours."""
    return Colour(request.param, saver if request.param == "sync" else asaver, ashop)


def graph_of(colour: Colour, *nodes: tuple[str, Any], schema: Any = MessagesState) -> Any:
    """Build a graph of nodes, one after the other."""
    builder = StateGraph(schema)
    for name, node in nodes:
        builder.add_node(name, node)
    builder.add_edge(START, nodes[0][0])
    for (before, _), (after, _) in itertools.pairwise(nodes):
        builder.add_edge(before, after)
    return builder.compile(checkpointer=colour.saver)


async def test_a_plain_toolnode_is_enough(colour: Colour) -> None:
    """The decorator protects without anything of ours in the graph: new ids, one effect."""
    graph = graph_of(colour, ("tools", ToolNode([tool("take")(colour.take())])))
    for name in ("one", "two"):
        await colour.run(graph, {"messages": [calling(TAKE_ONE, ids=[name])]})
    assert colour.shop.rows("taken") == [("O-1", "A")]


async def test_a_plain_toolnode_knows_the_thread(colour: Colour) -> None:
    """scope="thread" needs no node of ours: LangGraph tells the tool its thread."""
    graph = graph_of(colour, ("tools", ToolNode([tool("take")(colour.take(scope="thread"))])))
    for thread in ("t", "t", "u"):
        await colour.run(graph, {"messages": [calling(TAKE_ONE)]}, thread)
    assert colour.shop.rows("taken") == [("O-1", "A")] * 2
    scopes = {effect.scope for effect in colour.shop.ledger.effects()}
    assert scopes == {"thread:t", "thread:u"}


async def test_a_plain_node_is_enough(colour: Colour) -> None:
    """A node that calls a guarded function and then dies: one effect, the thread is known."""
    needs_config(colour)
    take, failures = colour.take(scope="thread"), [KeyError("dies"), None]

    async def steps(state: Any, config: RunnableConfig) -> Any:
        result = await done(take(order_id="O-1", sku="A"))
        if error := failures.pop(0):
            raise error
        return {"messages": [AIMessage(result)]}

    graph = graph_of(colour, ("node", colour.node(steps)))
    with pytest.raises(KeyError):
        await colour.run(graph, HELLO)
    told = await colour.run(graph, None)
    assert told["messages"][-1].text == "taken A"
    assert colour.shop.rows("taken") == [("O-1", "A")]
    assert [effect.scope for effect in colour.shop.ledger.effects()] == ["thread:t"]


@pytest.mark.skipif(sys.version_info >= (3, 11), reason="LangGraph tells the config there")
async def test_what_needs_a_thread_is_refused_where_it_is_not_told(colour: Colour) -> None:
    """On Python 3.10 an async node does not know its thread: loud, and nothing is done."""
    take = colour.take(scope="thread")

    async def steps(state: Any, config: RunnableConfig) -> Any:
        await done(take(order_id="O-1", sku="A"))

    graph = graph_of(colour, ("node", colour.node(steps)))
    if colour.name == "async":
        with pytest.raises(MissingKey, match="thread"):
            await colour.run(graph, HELLO)
    assert colour.shop.rows("taken") == []


async def test_case_21_two_effects_in_one_node_the_second_fails(colour: Colour) -> None:
    """Run again, the first is not done again, the second is: each once."""
    ledger, failures = colour.shop.ledger, [KeyError("second"), None]

    def take(session: Session) -> str:
        session.execute(TAKE, {"order_id": "O-1", "sku": "A"})
        return "taken"

    async def atake(session: AsyncSession) -> str:
        await session.execute(TAKE, {"order_id": "O-1", "sku": "A"})
        return "taken"

    def notify(session: Session) -> str:
        session.execute(NOTIFY, {"order_id": "O-1"})
        if error := failures.pop(0):
            raise error
        return "notified"

    async def anotify(session: AsyncSession) -> str:
        await session.execute(NOTIFY, {"order_id": "O-1"})
        if error := failures.pop(0):
            raise error
        return "notified"

    def node(state: Any) -> Any:
        first = ledger.once("take", key="O-1", do=take)
        second = ledger.once("notify", key="O-1", do=notify)
        return {"messages": [AIMessage(f"{first}, {second}")]}

    async def anode(state: Any) -> Any:
        first = await ledger.aonce("take", key="O-1", do=atake)
        second = await ledger.aonce("notify", key="O-1", do=anotify)
        return {"messages": [AIMessage(f"{first}, {second}")]}

    graph = graph_of(colour, ("node", node if colour.name == "sync" else anode))
    with pytest.raises(KeyError):
        await colour.run(graph, HELLO)
    assert (colour.shop.rows("taken"), colour.shop.rows("notified")) == ([("O-1", "A")], [])
    told = await colour.run(graph, None)
    assert told["messages"][-1].text == "taken, notified"
    assert colour.shop.rows("taken") == [("O-1", "A")]
    assert colour.shop.rows("notified") == [("O-1",)]


async def test_the_functional_api_is_enough(colour: Colour) -> None:
    """@task and @entrypoint: a workflow that fails is run again, the effect is one."""
    needs_config(colour)
    take, failures = colour.take(scope="thread"), [KeyError("dies"), None]

    @task
    def taking(order_id: str) -> str:
        return str(take(order_id=order_id, sku="A"))

    @task
    async def ataking(order_id: str) -> str:
        return str(await take(order_id=order_id, sku="A"))

    def fail() -> None:
        if error := failures.pop(0):
            raise error

    @entrypoint(checkpointer=colour.saver)
    def workflow(order_id: str) -> str:
        result = taking(order_id).result()
        fail()
        return str(result)

    @entrypoint(checkpointer=colour.saver)
    async def aworkflow(order_id: str) -> str:
        result = await ataking(order_id)
        fail()
        return str(result)

    graph = workflow if colour.name == "sync" else aworkflow
    with pytest.raises(KeyError):
        await colour.run(graph, "O-1")
    assert await colour.run(graph, "O-1") == "taken A"  # the client sends it again, anew
    assert colour.shop.rows("taken") == [("O-1", "A")]
    assert [effect.scope for effect in colour.shop.ledger.effects()] == ["thread:t"]


async def test_case_34_a_task_matched_by_position_is_not_taken_for_another(
    colour: Colour,
) -> None:
    """LangGraph gives a changed task the memo of the old one; called by itself, ours is not."""
    take, customers = colour.take(), ["alice", "carol"]

    async def steps(state: Any, config: RunnableConfig) -> Any:
        result = await done(take(order_id=customers.pop(0), sku="A"))
        if customers:
            raise KeyError("the process dies, and the code is changed")
        return {"messages": [AIMessage(result)]}

    graph = graph_of(colour, ("node", colour.node(steps)))
    with pytest.raises(KeyError):
        await colour.run(graph, HELLO)
    await colour.run(graph, None)
    assert colour.shop.rows("taken") == [("alice", "A"), ("carol", "A")]


async def test_scripts_need_no_graph(colour: Colour) -> None:
    """Outside of any graph the guard is the same; only what needs a thread is refused."""
    take = colour.take()
    for _ in range(2):
        assert await done(take(order_id="O-1", sku="A")) == "taken A"
    assert colour.shop.rows("taken") == [("O-1", "A")]
    with pytest.raises(MissingKey, match="outside of a LangGraph thread"):
        await done(colour.take(scope="thread")(order_id="O-1", sku="A"))


def tenant_of(arguments: dict[str, Any], context: Any) -> str:
    """Return whose effect it is, from the run's configurable."""
    return f"tenant:{context.configurable['tenant']}"


@pytest.mark.parametrize("seam", ["tool_node", "node", "react", "create_agent"])
async def test_two_tenants_with_equal_keys_are_two(colour: Colour, seam: str) -> None:
    """Each has an effect and a result of its own; neither ever sees the other's."""
    if seam == "node":
        needs_config(colour)
    numbers = iter(("first", "second", "third"))
    ledger = colour.shop.ledger

    @ledger.transactional(key=("order_id",), scope=tenant_of)
    def bill(session: Session, /, order_id: str) -> str:
        """Bill an order."""
        session.execute(TAKE, {"order_id": order_id, "sku": "bill"})
        return f"bill {next(numbers)}"

    @ledger.transactional(key=("order_id",), scope=tenant_of, operation="bill")
    async def abill(session: AsyncSession, /, order_id: str) -> str:
        """Bill an order."""
        await session.execute(TAKE, {"order_id": order_id, "sku": "bill"})
        return f"bill {next(numbers)}"

    billing = bill if colour.name == "sync" else abill
    graph = _billing_graph(seam, colour, tool("bill")(billing), billing)
    told = {}
    for run, tenant in enumerate(("acme", "bolt", "acme")):
        config: Any = {"configurable": {"thread_id": f"{run}", "tenant": tenant}}
        asked = calling(("bill", {"order_id": "O-1"}))
        given = {"messages": [asked]} if seam in {"tool_node", "node"} else HELLO
        if colour.name == "sync":
            state = graph.invoke(given, config, durability="sync")
        else:
            state = await graph.ainvoke(given, config, durability="sync")
        told[run] = [m.text for m in state["messages"] if m.text.startswith("bill")]
    assert told == {0: ["bill first"], 1: ["bill second"], 2: ["bill first"]}
    assert len(colour.shop.rows("taken")) == 2


def _billing_graph(seam: str, colour: Colour, bill: BaseTool, billing: Any) -> Any:
    ledger, saver = colour.shop.ledger, colour.saver
    model = ScriptedChatModel([calling(("bill", {"order_id": "O-1"})), "done"])
    if seam == "react":
        return create_react_agent(model, [bill], ledger=ledger, checkpointer=saver)
    if seam == "create_agent":
        middleware = [IdempotencyMiddleware(ledger)]
        return create_agent(model, [bill], middleware=middleware, checkpointer=saver)
    if seam == "tool_node":
        return graph_of(colour, ("tools", IdempotentToolNode([bill], ledger=ledger)))

    async def steps(state: Any, config: RunnableConfig) -> Any:
        return {"messages": [AIMessage(await done(billing(order_id="O-1")))]}

    return graph_of(colour, ("node", colour.node(steps)))


class Basket(TypedDict, total=False):
    """A state whose orders are sent to workers."""

    orders: list[str]
    messages: list[AnyMessage]


async def test_send_runs_each_worker_once(colour: Colour) -> None:
    """Map-reduce by Send: one worker fails, the resume finds the others' effects done."""
    take, failing = colour.take(), ["O-2"]

    async def worker(order: Any, config: RunnableConfig) -> Any:
        await done(take(order_id=order["id"], sku="A"))
        if order["id"] in failing:
            failing.clear()
            raise KeyError("dies after its effect")
        return {}

    builder = StateGraph(Basket)
    builder.add_node("worker", colour.node(worker))
    builder.add_conditional_edges(
        START, lambda state: [Send("worker", {"id": order}) for order in state["orders"]]
    )
    graph = builder.compile(checkpointer=colour.saver)
    with pytest.raises(KeyError):
        await colour.run(graph, {"orders": ["O-1", "O-2", "O-3"]})
    await colour.run(graph, None)
    assert sorted(colour.shop.rows("taken")) == [("O-1", "A"), ("O-2", "A"), ("O-3", "A")]


class Routed(TypedDict, total=False):
    """A state that a tool's Command writes to."""

    messages: list[AnyMessage]
    owner: str
    visited: str
    done_steps: DoneSteps


def owning(colour: Colour) -> BaseTool:
    """Return a tool that answers by a Command."""
    ledger = colour.shop.ledger

    def moved(order_id: str, runtime: ToolRuntime) -> Command[Any]:
        message = ToolMessage("yours", tool_call_id=runtime.tool_call_id)
        return Command(update={"owner": order_id, "messages": [message]}, goto="after")

    @ledger.transactional(key=("order_id",), operation="own")
    def own(session: Session, /, order_id: str, runtime: ToolRuntime) -> Command[Any]:
        """Take an order over."""
        session.execute(TAKE, {"order_id": order_id, "sku": "-"})
        return moved(order_id, runtime)

    @ledger.transactional(key=("order_id",), operation="own")
    async def aown(session: AsyncSession, /, order_id: str, runtime: ToolRuntime) -> Command[Any]:
        """Take an order over."""
        await session.execute(TAKE, {"order_id": order_id, "sku": "-"})
        return moved(order_id, runtime)

    return tool("own")(own if colour.name == "sync" else aown)


def owning_graph(colour: Colour, node: ToolNode) -> Any:
    """Build a graph whose next node the Command names."""
    builder = StateGraph(Routed)
    builder.add_node("tools", node)
    builder.add_node("after", lambda state: {"visited": "yes"})
    builder.add_edge(START, "tools")
    return builder.compile(checkpointer=colour.saver)


def owns(call_id: str) -> Any:
    """Return an input that asks for the tool."""
    return {"messages": [calling(("own", {"order_id": "O-1"}), ids=[call_id])]}


async def test_a_command_is_replayed_whole(colour: Colour) -> None:
    """Update and goto of a recorded Command are the new call's; its message answers that call."""
    node = IdempotentToolNode([owning(colour)], ledger=colour.shop.ledger)
    graph = owning_graph(colour, node)
    for name in ("one", "two"):
        told = await colour.run(graph, owns(name), thread=name)
        assert (told["owner"], told["visited"]) == ("O-1", "yes")
        assert [message.tool_call_id for message in told["messages"]] == [name]
    assert colour.shop.rows("taken") == [("O-1", "-")]


async def test_in_a_plain_toolnode_a_command_answers_its_own_call_only(colour: Colour) -> None:
    """Without our node nobody knows which call is new: LangGraph refuses, the effect is one."""
    graph = owning_graph(colour, ToolNode([owning(colour)]))
    for thread in ("t", "u"):
        told = await colour.run(graph, owns("one"), thread)
        assert (told["owner"], told["visited"]) == ("O-1", "yes")
    with pytest.raises(ValueError, match="matching ToolMessage"):
        await colour.run(graph, owns("two"), thread="v")
    assert colour.shop.rows("taken") == [("O-1", "-")]


@pytest.mark.parametrize("inner_saver", [None, False], ids=["inherited", "off"])
@pytest.mark.parametrize("outer", ["react", "create_agent"])
async def test_case_33_a_sub_agent_whose_inner_ids_are_new(
    colour: Colour, outer: str, inner_saver: Any
) -> None:
    """The sub-agent takes, then the tool asks a person: resumed under new ids, one effect."""
    needs_config(colour)
    ids: list[str] = []

    def asks(_messages: Any) -> AIMessage:
        ids.append(f"call_{len(ids)}")
        return calling(TAKE_ONE, NOTIFY_ONE, ids=[ids[-1], f"{ids[-1]}-n"])

    tools = colour.shop.tools(colour=colour.name)
    inner = create_react_agent(
        ScriptedChatModel([asks, "inner done"]), tools, ledger=colour.shop.ledger,
        checkpointer=inner_saver,
    )  # fmt: skip

    @tool("delegate")
    def delegate(order_id: str) -> str:
        """Let another agent do it."""
        result = inner.invoke(HELLO)
        return f"{result['messages'][-1].text}, {interrupt('well?')}"

    @tool("delegate")
    async def adelegate(order_id: str) -> str:
        """Let another agent do it."""
        result = await inner.ainvoke(HELLO)
        return f"{result['messages'][-1].text}, {interrupt('well?')}"

    delegating = delegate if colour.name == "sync" else adelegate
    graph = _outer_agent(outer, colour, delegating)
    await colour.run(graph, HELLO)
    told = await colour.run(graph, Command(resume="well"))
    answer = next(m for m in told["messages"] if isinstance(m, ToolMessage))
    assert answer.text == "inner done, well"
    assert colour.shop.rows("taken") == [("O-1", "A")]
    assert colour.shop.rows("notified") == [("O-1",)]
    if inner_saver is False:
        assert len(ids) == 2  # the inner model was asked anew, and numbered anew


def _outer_agent(outer: str, colour: Colour, delegate: BaseTool) -> Any:
    ledger: Ledger = colour.shop.ledger
    model = ScriptedChatModel([calling(("delegate", {"order_id": "O-1"})), "done"])
    if outer == "react":
        return create_react_agent(model, [delegate], ledger=ledger, checkpointer=colour.saver)
    middleware = [IdempotencyMiddleware(ledger)]
    return create_agent(model, [delegate], middleware=middleware, checkpointer=colour.saver)


async def test_a_subgraph_as_a_node_is_enough(colour: Colour) -> None:
    """A graph within a graph: the outer thread is known, a failure after it repeats nothing."""
    needs_config(colour)
    take, failures = colour.take(scope="thread"), [KeyError("dies"), None]

    async def inside(state: Any, config: RunnableConfig) -> Any:
        await done(take(order_id="O-1", sku="A"))
        if error := failures.pop(0):
            raise error
        return {"messages": []}

    builder = StateGraph(MessagesState)
    builder.add_node("inside", colour.node(inside))
    builder.add_edge(START, "inside")
    graph = graph_of(colour, ("sub", builder.compile()))
    with pytest.raises(KeyError):
        await colour.run(graph, HELLO)
    await colour.run(graph, None)
    assert colour.shop.rows("taken") == [("O-1", "A")]
    assert [effect.scope for effect in colour.shop.ledger.effects()] == ["thread:t"]


async def test_inner_calls_are_not_taken_for_the_outer_one(colour: Colour) -> None:
    """PER_CALL in a sub-agent: its calls have ids of their own, not the delegating call's."""
    taking = tool("take")(colour.take(key=PER_CALL))
    model = ScriptedChatModel([calling(TAKE_ONE, TAKE_ONE, ids=["in-1", "in-2"]), "inner done"])
    inner = create_react_agent(model, [taking], ledger=colour.shop.ledger)

    @tool("delegate")
    def delegate(order_id: str) -> str:
        """Let another agent do it."""
        return str(inner.invoke(HELLO)["messages"][-1].text)

    @tool("delegate")
    async def adelegate(order_id: str) -> str:
        """Let another agent do it."""
        return str((await inner.ainvoke(HELLO))["messages"][-1].text)

    delegating = delegate if colour.name == "sync" else adelegate
    await colour.run(_outer_agent("react", colour, delegating), HELLO)
    ids = sorted(str(effect.origin.tool_call_id) for effect in colour.shop.ledger.effects())
    assert ids == ["in-1", "in-2"]


@pytest.mark.parametrize("mode", ["values", "updates", "messages", "custom", "debug"])
async def test_streams_of_our_node_are_toolnodes(colour: Colour, mode: str) -> None:
    """Every stream mode gives what it gives with a plain ToolNode."""

    @tool
    def talk(runtime: ToolRuntime) -> str:
        """Say something on the way."""
        runtime.stream_writer("on my way")
        return "said"

    nodes = (ToolNode([talk]), IdempotentToolNode([talk], ledger=colour.shop.ledger))
    theirs, ours = [
        await _streamed(colour, graph_of(colour, ("tools", node)), mode, f"{number}")
        for number, node in enumerate(nodes)
    ]
    assert theirs
    assert [_shown(chunk) for chunk in ours] == [_shown(chunk) for chunk in theirs]


async def _streamed(colour: Colour, graph: Any, mode: str, thread: str) -> list[Any]:
    given: Any = {"messages": [calling(("talk", {}))]}
    if colour.name == "sync":
        return list(graph.stream(given, on(thread), stream_mode=mode))
    return [chunk async for chunk in graph.astream(given, on(thread), stream_mode=mode)]


def _shown(chunk: Any) -> Any:
    """Leave out what is new in each run: ids, times, configs."""
    if isinstance(chunk, dict):
        same = {"messages", "tools", "type", "name", "payload", "result", "next", "step", "values"}
        return {key: _shown(value) for key, value in chunk.items() if key in same}
    if isinstance(chunk, (list, tuple)):
        return [_shown(item) for item in chunk]
    content = getattr(chunk, "content", None)
    return chunk if content is None else (chunk.type, content)
