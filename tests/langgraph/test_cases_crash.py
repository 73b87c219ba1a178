"""Field cases 1 to 9: crash and resume. Processes are killed for real."""

from __future__ import annotations

import functools
import operator
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Annotated, Any

import pytest
import sqlalchemy as sa
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, StateGraph
from sqlalchemy.orm import Session
from typing_extensions import TypedDict

from langgraph_idem import Effect, ResultNotStorable, SharedFileWarning, State
from tests.langgraph.crashing import apay_and_die, model, pay_and_die
from tests.langgraph.dying import was_killed
from tests.support.cases import (
    CONFIG,
    HELLO,
    PAY,
    PAY_ONE,
    SEAMS,
    TWINS,
    Business,
    Hook,
    Hooks,
    Once,
    agent,
    asks,
    pay_tool,
    raises,
    run,
)

ONCE = [("O-1", 5)]
TWICE = [("O-1", 5), ("O-1", 5)]
PAID = {"unguarded": TWICE, "guarded": ONCE}


@pytest.fixture
def business(sqlite_url: str) -> Iterator[Business]:
    """Open a fresh business."""
    founded = Business.founded_at(sqlite_url)
    yield founded
    founded.ledger.close()


def take_up(graph: Any) -> dict[str, Any]:
    """Resume; or, where no checkpoint was left, send the input again as a client would."""
    left = graph.get_state(CONFIG).metadata is not None
    ended: dict[str, Any] = graph.invoke(None if left else HELLO, CONFIG)
    return ended


def paid_by(
    business: Business, checkpoints: str, seam: str, *, guarded: bool, **program: Any
) -> list[tuple[str, int]]:
    """Let a process die after its effect, take its run up here, and tell what was paid."""
    arguments = {"saver": "ordinary", "durability": "sync", **program}
    dying = functools.partial(pay_and_die, guarded=guarded, **arguments)
    assert was_killed(dying, business.url, checkpoints, seam)
    assert business.payments == ONCE
    with SqliteSaver.from_conn_string(checkpoints) as saver:
        tools = [pay_tool(business, guarded=guarded)]
        ended = take_up(agent(seam, model(), tools, business, saver))
    assert ended["messages"][-1].content == "Paid."
    return business.payments


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize("seam", SEAMS)
def test_case_01_killed_between_effect_and_return(
    business: Business, checkpoints: str, seam: str, durability: str
) -> None:
    """A resume finds the effect that a killed tool had committed, in every durability.

    langgraph #7417.
    """
    if seam == "tool_node":
        control = f"{checkpoints}-control"
        assert paid_by(business, control, seam, guarded=False, durability=durability) == TWICE
        business.forget()
    assert paid_by(business, checkpoints, seam, guarded=True, durability=durability) == ONCE


@pytest.mark.parametrize("twin", TWINS)
async def test_case_01_killed_between_effect_and_return_async(
    business: Business, checkpoints: str, twin: str
) -> None:
    """An async tool's effect is found by the resume as well. langgraph #7417."""
    dying = functools.partial(
        apay_and_die, saver="ordinary", durability="sync", guarded=twin == "guarded"
    )
    assert was_killed(dying, business.url, checkpoints, "create_react_agent")
    assert business.payments == ONCE
    async with AsyncSqliteSaver.from_conn_string(checkpoints) as saver:
        tools = [pay_tool(business, guarded=twin == "guarded", colour="async")]
        graph = agent("create_react_agent", model(), tools, business, saver)
        await graph.ainvoke(None, CONFIG)
    assert business.payments == PAID[twin]
    await business.ledger.aclose()


@pytest.mark.parametrize("twin", TWINS)
def test_case_02_killed_while_the_result_is_being_stored(
    business: Business, checkpoints: str, twin: str
) -> None:
    """A tool that had returned, but whose result no checkpoint holds, is not run again.

    langgraph #8039; even durability "sync" puts the next checkpoint before the writes are stored.
    """
    paid = paid_by(
        business, checkpoints, "tool_node", guarded=twin == "guarded", saver="slow writes"
    )
    assert paid == PAID[twin]


@pytest.mark.parametrize("twin", TWINS)
def test_case_03_the_models_step_is_lost(business: Business, checkpoints: str, twin: str) -> None:
    """A business key holds though the model plans anew, under a new tool_call_id.

    langgraph #8764: durability "async" with a saver slower than the work.
    """
    program = {"saver": "slow", "durability": "async"}
    paid = paid_by(business, checkpoints, "tool_node", guarded=twin == "guarded", **program)
    assert paid == PAID[twin]
    if twin == "guarded":
        (effect,) = business.ledger.effects()
        with SqliteSaver.from_conn_string(checkpoints) as saver:
            stored = agent("tool_node", model(), [pay_tool(business)], business, saver)
            asking = stored.get_state(CONFIG).values["messages"][1]
        assert asking.tool_calls[0]["id"] != effect.origin.tool_call_id


def test_case_04_no_trace_of_the_run(business: Business, checkpoints: str) -> None:
    """The ledger can be asked for an effect of which no checkpoint knows: durability "exit"."""
    dying = functools.partial(pay_and_die, saver="ordinary", durability="exit", guarded=True)
    assert was_killed(dying, business.url, checkpoints, "tool_node")
    with SqliteSaver.from_conn_string(checkpoints) as saver:
        assert saver.get_tuple(CONFIG) is None
    found = business.ledger.effect("pay", "O-1")
    assert found is not None
    assert (found.state, found.result) == (State.SUCCEEDED, '"paid O-1"')
    assert business.ledger.effect("pay", "O-2") is None


class Branches(TypedDict, total=False):
    """The state of a graph of two branches."""

    done: Annotated[list[str], operator.add]
    note: str


def branched(business: Business, *, guarded: bool, colour: str) -> Any:
    """Build a graph of plain nodes: one pays, its sibling fails the first time."""
    pay: Any = pay_tool(business, guarded=guarded, colour=colour)
    fails = Once(raises(ConnectionError("the sibling's")))

    def paying(state: Branches) -> Branches:
        return {"done": [pay.func(order_id="O-1", cents=5)]}

    async def apaying(state: Branches) -> Branches:
        return {"done": [await pay.coroutine(order_id="O-1", cents=5)]}

    def failing(state: Branches) -> Branches:
        assert paid.wait(30)
        fails()
        return {"done": ["sibling"]}

    def planning(state: Branches) -> Branches:
        return {"done": []}

    paid = threading.Event()
    builder: StateGraph[Any, Any, Any, Any] = StateGraph(Branches)
    builder.add_node("plan", planning)
    builder.add_node("pay", paying if colour == "sync" else apaying)
    builder.add_node("sibling", failing)
    builder.add_edge(START, "plan")
    builder.add_edge("plan", "pay")
    builder.add_edge("plan", "sibling")
    return builder.compile(checkpointer=Noticing(paid))


class Noticing(InMemorySaver):
    """Tells when the paying node's writes are stored."""

    def __init__(self, stored: threading.Event) -> None:
        super().__init__()
        self.stored = stored

    def put_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        """Store, then tell."""
        super().put_writes(config, writes, task_id, task_path)
        if any("paid O-1" in value for _, value in writes if isinstance(value, list)):
            self.stored.set()

    async def aput_writes(self, config: Any, writes: Any, task_id: str, path: str = "") -> None:
        """Store, then tell."""
        self.put_writes(config, writes, task_id, path)


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("colour", ["sync", "async"])
async def test_case_05_invoked_again_with_the_input(
    business: Business, colour: str, twin: str
) -> None:
    """A client that sends the input again, instead of resuming, repeats no completed effect."""
    graph = branched(business, guarded=twin == "guarded", colour=colour)
    with pytest.raises(ConnectionError):
        await run(colour, graph, {"note": "1"})
    assert business.payments == ONCE
    assert "sibling" in (await run(colour, graph, {"note": "1"}))["done"]
    assert business.payments == PAID[twin]
    await business.ledger.aclose()


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("colour", ["sync", "async"])
async def test_case_06_state_updated_between_crash_and_resume(
    business: Business, colour: str, twin: str
) -> None:
    """The key holds no checkpoint id: an ``update_state`` in between makes no new effect."""
    graph = branched(business, guarded=twin == "guarded", colour=colour)
    with pytest.raises(ConnectionError):
        await run(colour, graph, {"note": "1"})
    graph.update_state(CONFIG, {"note": "by an operator"}, as_node="plan")
    assert "sibling" in (await run(colour, graph, None))["done"]
    assert business.payments == PAID[twin]
    await business.ledger.aclose()


def locks(business: Business, kind: str) -> BaseTool:
    """Make a tool whose artifact no checkpointer can store."""

    def unguarded(order_id: str, cents: int) -> tuple[str, Any]:
        """Pay."""
        business.pay(order_id, cents)
        return "paid", threading.Lock()

    @business.ledger.transactional(key=("order_id",))
    def transactional(session: Session, /, order_id: str, cents: int) -> tuple[str, Any]:
        """Pay."""
        session.execute(PAY, {"order_id": order_id, "cents": cents})
        return "paid", threading.Lock()

    @business.ledger.remote(key=("order_id",))
    def remote(effect: Effect, /, order_id: str, cents: int) -> tuple[str, Any]:
        """Pay."""
        business.pay(order_id, cents)
        return "paid", threading.Lock()

    kinds = {"unguarded": unguarded, "transactional": transactional, "remote": remote}
    return tool("pay", response_format="content_and_artifact")(kinds[kind])


@pytest.mark.parametrize(
    ("kind", "seam", "after_one", "after_two"),
    [
        ("unguarded", "tool_node", ONCE, TWICE),
        *(("transactional", seam, [], []) for seam in SEAMS),
        *(("remote", seam, ONCE, ONCE) for seam in SEAMS),
    ],
)
def test_case_07_the_result_cannot_be_stored(
    business: Business, checkpoints: str, seam: str, kind: str, after_one: Any, after_two: Any
) -> None:
    """What cannot be stored is refused before the commit; a remote success is kept all the same.

    langgraph #5054, langchain-mcp-adapters #295.
    """
    with SqliteSaver.from_conn_string(checkpoints) as saver:
        graph = agent(seam, model(), [locks(business, kind)], business, saver)
        _assert_not_storable(kind, lambda: graph.invoke(HELLO, CONFIG))
        assert business.payments == after_one
        if kind == "remote":
            assert graph.invoke(None, CONFIG)["messages"][-1].content == "Paid."
        else:
            _assert_not_storable(kind, lambda: graph.invoke(None, CONFIG))
    assert business.payments == after_two


def _assert_not_storable(kind: str, doing: Any) -> None:
    expected = TypeError if kind == "unguarded" else ResultNotStorable
    with pytest.raises(expected) as raised:
        doing()
    if isinstance(raised.value, ResultNotStorable):
        assert raised.value.effect_happened is (kind == "remote")


@pytest.mark.parametrize("twin", TWINS)
def test_case_08_the_checkpointers_connection_dies(
    postgresql_url: str, sqlite_url: str, twin: str
) -> None:
    """A run whose checkpointer lost its connection during the tool is resumed with one effect.

    langgraph #3716.
    """
    business = Business.founded_at(sqlite_url)
    cut = functools.partial(_cut_others, postgresql_url)
    with PostgresSaver.from_conn_string(_plain(postgresql_url)) as saver:
        saver.setup()
        tools = [pay_tool(business, Hooks(after=cut), guarded=twin == "guarded")]
        with pytest.raises(Exception, match=r"terminat|closed|consuming"):
            agent("tool_node", model(), tools, business, saver).invoke(
                HELLO, CONFIG, durability="sync"
            )
    assert business.payments == ONCE
    with PostgresSaver.from_conn_string(_plain(postgresql_url)) as saver:
        tools = [pay_tool(business, guarded=twin == "guarded")]
        agent("tool_node", model(), tools, business, saver).invoke(None, CONFIG)
    assert business.payments == PAID[twin]
    business.ledger.close()


@pytest.mark.parametrize("twin", TWINS)
async def test_case_08_the_checkpointers_connection_dies_async(
    postgresql_url: str, sqlite_url: str, twin: str
) -> None:
    """The async saver loses its connection in the same way. langgraph #3716."""
    business = Business.founded_at(sqlite_url)
    cut = functools.partial(_cut_others, postgresql_url)
    async with AsyncPostgresSaver.from_conn_string(_plain(postgresql_url)) as saver:
        await saver.setup()
        tools = [pay_tool(business, Hooks(after=cut), guarded=twin == "guarded", colour="async")]
        with pytest.raises(Exception, match=r"terminat|closed|consuming"):
            await agent("tool_node", model(), tools, business, saver).ainvoke(
                HELLO, CONFIG, durability="sync"
            )
    assert business.payments == ONCE
    async with AsyncPostgresSaver.from_conn_string(_plain(postgresql_url)) as saver:
        tools = [pay_tool(business, guarded=twin == "guarded", colour="async")]
        await agent("tool_node", model(), tools, business, saver).ainvoke(None, CONFIG)
    assert business.payments == PAID[twin]
    await business.ledger.aclose()


def _plain(url: str) -> str:
    """Write the URL as psycopg itself wants it."""
    return url.replace("postgresql+psycopg://", "postgresql://")


def _cut_others(url: str) -> None:
    engine = sa.create_engine(url)
    with engine.begin() as conn:
        conn.execute(
            sa.text(
                "select pg_terminate_backend(pid) from pg_stat_activity "
                "where datname = current_database() and pid <> pg_backend_pid()"
            )
        )
    engine.dispose()


class ImpatientSaver(SqliteSaver):
    """Waits for the tool to hold the file's lock, then tries in vain to write the model's step."""

    holding: threading.Event
    failed: threading.Event

    def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        """Write a checkpoint, if the lock can be had."""
        with self._too_late(is_late=metadata["step"] > 0):
            return super().put(config, checkpoint, metadata, new_versions)

    def put_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        """Write what a task did, if the lock can be had."""
        with self._too_late(is_late=True):
            super().put_writes(config, writes, task_id, task_path)

    @contextmanager
    def _too_late(self, *, is_late: bool) -> Iterator[None]:
        if is_late and not self.failed.is_set():
            assert self.holding.wait(30)
        try:
            yield
        except sqlite3.OperationalError:
            self.failed.set()
            raise


@contextmanager
def one_file(business: Business) -> Iterator[ImpatientSaver]:
    """Open a checkpointer in the business's own file; it waits for a lock 50 ms at most."""
    file = business.url.removeprefix("sqlite:///")
    with closing(sqlite3.connect(file, timeout=0.05, check_same_thread=False)) as conn:
        saver = ImpatientSaver(conn)
        saver.holding, saver.failed = threading.Event(), threading.Event()
        saver.setup()
        yield saver


@contextmanager
def busy_afterwards(business: Business) -> Iterator[Hook]:
    """Give a hook that begins another transaction, which holds the file's lock to the end."""
    with closing(
        sqlite3.connect(business.url.removeprefix("sqlite:///"), check_same_thread=False)
    ) as other:
        other.isolation_level = None
        yield lambda: other.execute("begin immediate")


def long_tool(business: Business, saver: ImpatientSaver, after: Hook, *, guarded: bool) -> BaseTool:
    """Make a tool whose transaction lasts until the saver has failed."""
    hooks = Hooks(saver.holding.set, lambda: saver.failed.wait(30), after)
    if guarded:
        return pay_tool(business, hooks)

    @tool
    def pay(order_id: str, cents: int) -> str:
        """Pay."""
        with business.connected() as conn:
            conn.execute(PAY, {"order_id": order_id, "cents": cents})
            hooks.before()
            hooks.unpaid()
        hooks.after()
        return "paid"

    return pay


@pytest.mark.parametrize("twin", TWINS)
def test_case_09_business_ledger_and_checkpointer_in_one_file(
    business: Business, twin: str
) -> None:
    """A saver that timed out behind the tool's transaction costs a retry, not a second effect.

    langgraph #8136. The tool's transaction holds the one write lock of the file, as long as the
    tool lasts. Under durability "async" the saver writes the model's step meanwhile: it gives up,
    the run fails, and if the file stays busy no checkpoint knows of the call. Two files, or short
    tools, avoid that; what is promised in any case is one effect when the run is tried again.
    """
    with one_file(business) as saver:
        with busy_afterwards(business) as busy:
            tools = [long_tool(business, saver, Once(busy), guarded=twin == "guarded")]
            graph = agent("tool_node", model(), tools, business, saver)
            with pytest.raises(sqlite3.OperationalError, match="locked"):
                graph.invoke(HELLO, CONFIG, durability="async")
        assert business.payments == ONCE
        assert graph.invoke(None, CONFIG)["messages"][-1].content == "Paid."
    assert business.payments == PAID[twin]


def test_case_09_short_transactions_share_a_file(business: Business) -> None:
    """Parallel tools and the checkpointer get along in one file while transactions are short.

    We warn all the same: nobody knows how long the next tool will take.
    """
    calls = [(PAY_ONE[0], {"order_id": f"O-{i}", "cents": 5}) for i in range(6)]
    file = business.url.removeprefix("sqlite:///")
    with SqliteSaver.from_conn_string(file) as saver:
        script = [asks(*calls), "Paid."]
        with pytest.warns(SharedFileWarning, match="a file of its own"):
            graph = agent("create_react_agent", script, [pay_tool(business)], business, saver)
        assert graph.invoke(HELLO, CONFIG)["messages"][-1].content == "Paid."
    assert business.payments == [(f"O-{i}", 5) for i in range(6)]
