"""Advice at run time: durability where ids are the key, and a file that is shared."""

from __future__ import annotations

import sqlite3
import threading
import warnings
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from langchain.agents import create_agent
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from sqlalchemy.orm import Session

from langgraph_idem import (
    PER_CALL,
    DurabilityWarning,
    IdempotencyMiddleware,
    IdempotencyWarning,
    IdempotentToolNode,
    Ledger,
    SharedFileWarning,
    advice,
    create_react_agent,
)
from langgraph_idem.testing import ScriptedChatModel
from tests.langgraph.shop import TAKE, TAKE_ONE, Shop, calling

THREAD: Any = {"configurable": {"thread_id": "t"}}
OTHER: Any = {"configurable": {"thread_id": "u"}}
HELLO: Any = {"messages": [("user", "order O-1")]}
ASKED: Any = {"messages": [calling(TAKE_ONE)]}
SEAMS = ("tool_node", "react", "create_agent")


@pytest.fixture(autouse=True)
def _nothing_was_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advice, "_told", set())


def take_by(ledger: Ledger, key: Any, operation: str = "take") -> BaseTool:
    """Return a tool that takes one from stock."""

    @tool
    @ledger.transactional(key=key, operation=operation)
    def take(session: Session, /, order_id: str, sku: str) -> str:
        """Take one from stock."""
        session.execute(TAKE, {"order_id": order_id, "sku": sku})
        return "taken"

    return take


def graph_at(seam: str, ledger: Ledger, taking: BaseTool, saver: Any) -> Any:
    """Build the graph of a seam."""
    model = ScriptedChatModel([calling(TAKE_ONE), "done"])
    if seam == "react":
        return create_react_agent(model, [taking], ledger=ledger, checkpointer=saver)
    if seam == "create_agent":
        middleware = [IdempotencyMiddleware(ledger)]
        return create_agent(model, [taking], middleware=middleware, checkpointer=saver)
    builder = StateGraph(MessagesState)
    builder.add_node("tools", IdempotentToolNode([taking], ledger=ledger))
    builder.add_edge(START, "tools")
    return builder.compile(checkpointer=saver)


def given_to(seam: str) -> Any:
    """Return an input after which the tool is called."""
    return ASKED if seam == "tool_node" else HELLO


class Durabilities:
    """A key that takes note of the durability that the call's context tells of."""

    def __init__(self) -> None:
        self.seen: list[str | None] = []

    def __call__(self, arguments: dict[str, Any], context: Any) -> Any:
        """Key by the order."""
        self.seen.append(context.durability)
        return arguments["order_id"], len(self.seen)


@pytest.mark.parametrize("seam", SEAMS)
@pytest.mark.parametrize("colour", ["sync", "async"])
async def test_the_durability_that_is_told_is_the_runs(ashop: Shop, seam: str, colour: str) -> None:
    """What invoke() was given counts; else LangGraph's default, and sync in our own agent."""
    key = Durabilities()
    graph = graph_at(seam, ashop.ledger, take_by(ashop.ledger, key), InMemorySaver())
    chosen: list[Any] = [{}, {"durability": "sync"}, {"durability": "exit"}]
    for number, options in enumerate(chosen):
        config: Any = {"configurable": {"thread_id": str(number)}}
        if colour == "sync":
            graph.invoke(given_to(seam), config, **options)
        else:
            await graph.ainvoke(given_to(seam), config, **options)
    assert key.seen == ["sync" if seam == "react" else "async", "sync", "exit"]


@pytest.mark.parametrize("seam", SEAMS)
def test_a_subgraph_has_its_parents_durability(shop: Shop, seam: str) -> None:
    """A graph within a graph is stored as the outer one is; one that keeps nothing never in time.

    LangGraph 1.2 cannot run an inner graph that keeps nothing under an outer durability="sync".
    """
    key = Durabilities()
    modes: list[tuple[Any, Any]] = [(None, "sync"), (False, None)]
    for saver, durability in modes:
        inner = graph_at(seam, shop.ledger, take_by(shop.ledger, key), saver)
        builder = StateGraph(MessagesState)
        builder.add_node("inner", inner)
        builder.add_edge(START, "inner")
        outer = builder.compile(checkpointer=InMemorySaver())
        outer.invoke(given_to(seam), THREAD, durability=durability)
    assert key.seen == ["sync", "async"]


def test_a_default_that_the_graph_was_given_counts(shop: Shop) -> None:
    """A compiled graph may carry its durability with it."""
    key = Durabilities()
    graph = graph_at("create_agent", shop.ledger, take_by(shop.ledger, key), InMemorySaver())
    durable = graph.with_config(configurable={"__pregel_durability": "sync"})
    durable.invoke(HELLO, THREAD)
    assert key.seen == ["sync"]


@pytest.mark.parametrize("seam", ["tool_node", "create_agent"])
@pytest.mark.parametrize("durability", ["async", "exit", None])
def test_per_call_warns_once_per_operation(shop: Shop, seam: str, durability: Any) -> None:
    """The words name the operation and the line to change; the same advice comes but once."""
    said: list[str] = []
    for operation in ("take", "take", "fetch"):
        taking = take_by(shop.ledger, PER_CALL, operation)
        graph = graph_at(seam, shop.ledger, taking, InMemorySaver())
        config: Any = {"configurable": {"thread_id": f"{len(said)}"}}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            graph.invoke(given_to(seam), config, durability=durability)
        said += [str(warning.message) for warning in caught]
        assert {warning.category for warning in caught} <= {DurabilityWarning}
    assert [words.partition(" ")[0] for words in said] == ["take", "fetch"]
    assert f'durability="{durability or "async"}"' in said[0]
    assert 'invoke(..., durability="sync")' in said[0]


@pytest.mark.parametrize("seam", SEAMS)
def test_per_call_does_not_warn_where_steps_are_stored(shop: Shop, seam: str) -> None:
    """Under durability="sync" ids are good keys. A warning would be an error here."""
    graph = graph_at(seam, shop.ledger, take_by(shop.ledger, PER_CALL), InMemorySaver())
    graph.invoke(given_to(seam), THREAD, durability="sync")
    assert shop.rows("taken") == [("O-1", "A")]


def test_per_call_warns_where_nothing_is_kept(shop: Shop) -> None:
    """A thread_id without a checkpointer remembers nothing: the model will number anew."""
    graph = graph_at("create_agent", shop.ledger, take_by(shop.ledger, PER_CALL), None)
    with pytest.warns(DurabilityWarning, match="keeps no checkpoints"):
        graph.invoke(HELLO, THREAD)


def test_business_keys_do_not_warn(shop: Shop) -> None:
    """A key of arguments holds under any durability."""
    graph = graph_at("create_agent", shop.ledger, take_by(shop.ledger, ("order_id",)), None)
    graph.invoke(HELLO, THREAD)
    assert shop.rows("taken") == [("O-1", "A")]


def test_as_an_error_the_advice_stops_the_call_each_time(shop: Shop) -> None:
    """Where warnings are errors nothing has happened when it is raised, and it comes again."""
    graph = graph_at("tool_node", shop.ledger, take_by(shop.ledger, PER_CALL), InMemorySaver())
    for thread in "ab":
        config: Any = {"configurable": {"thread_id": thread}}
        with pytest.raises(DurabilityWarning):
            graph.invoke(ASKED, config)
    assert shop.rows("taken") == []


@pytest.fixture
def shared(shop: Shop) -> Iterator[SqliteSaver]:
    """Open a checkpointer in the shop's own file, under another name of it."""
    file = Path(shop.url.removeprefix("sqlite:///"))
    other = file.with_name("link.db")
    other.symlink_to(file)
    with SqliteSaver.from_conn_string(str(other)) as saver:
        yield saver


def test_our_agent_warns_of_a_shared_file_when_it_is_made(shop: Shop, shared: SqliteSaver) -> None:
    """Before anything runs, with the file's name, and only once."""
    taking = take_by(shop.ledger, ("order_id",))
    with pytest.warns(SharedFileWarning, match=r"write to one SQLite file, .*shop\.db"):
        graph_at("react", shop.ledger, taking, shared)
    graph_at("react", shop.ledger, taking, shared)


@pytest.mark.parametrize("seam", ["tool_node", "create_agent"])
def test_a_shared_file_is_seen_at_the_first_call(
    shop: Shop, shared: SqliteSaver, seam: str
) -> None:
    """Node and middleware get to know the checkpointer when a tool is called."""
    graph = graph_at(seam, shop.ledger, take_by(shop.ledger, ("order_id",)), shared)
    with pytest.warns(SharedFileWarning):
        graph.invoke(given_to(seam), THREAD)
    graph.invoke(given_to(seam), OTHER)


@pytest.mark.parametrize("seam", SEAMS)
async def test_a_shared_file_is_seen_on_an_event_loop(
    ashop: Shop, seam: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An AsyncSqliteSaver is asked on its loop, at the first call."""
    file = Path(ashop.url.removeprefix("sqlite:///"))
    monkeypatch.chdir(file.parent)
    async with AsyncSqliteSaver.from_conn_string(file.name) as saver:
        graph = graph_at(seam, ashop.ledger, take_by(ashop.ledger, ("order_id",)), saver)
        with pytest.warns(SharedFileWarning):
            await graph.ainvoke(given_to(seam), THREAD)
    assert ashop.rows("taken") == [("O-1", "A")]


@pytest.mark.parametrize("seam", SEAMS)
async def test_files_of_their_own_are_well(
    ashop: Shop, saver: SqliteSaver, asaver: AsyncSqliteSaver, seam: str
) -> None:
    """Two files, no advice. A warning would be an error here."""
    taking = take_by(ashop.ledger, ("order_id",))
    graph_at(seam, ashop.ledger, taking, saver).invoke(given_to(seam), THREAD)
    await graph_at(seam, ashop.ledger, taking, asaver).ainvoke(given_to(seam), OTHER)
    assert ashop.rows("taken") == [("O-1", "A")]


def test_a_ledger_elsewhere_shares_no_file(postgresql_url: str, saver: SqliteSaver) -> None:
    """Only SQLite has a file to share."""
    with Ledger(postgresql_url) as ledger:
        assert ledger.sqlite_file is None
        graph_at("react", ledger, take_by(ledger, ("order_id",)), saver)


def test_all_advice_is_one_kind_of_warning() -> None:
    """A program can silence or raise all of it by one name."""
    assert issubclass(IdempotencyWarning, UserWarning)
    assert {DurabilityWarning, SharedFileWarning} <= {*IdempotencyWarning.__subclasses__()}


class OneFile(SqliteSaver):
    """A checkpointer that does not wait for the file, and tells that it was kept off."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        super().__init__(connection)
        self.kept_off = threading.Event()

    def put_writes(self, *args: Any, **kwargs: Any) -> None:
        """Store writes, or fail at once."""
        try:
            super().put_writes(*args, **kwargs)
        except sqlite3.OperationalError:
            self.kept_off.set()
            raise


@pytest.mark.parametrize(("twin", "payments"), [("unguarded", 2), ("guarded", 1)])
def test_case_09_one_file_for_both(shop: Shop, twin: str, payments: int) -> None:
    """LangGraph #8136: the checkpoint fails, the payment stands; asked again it is but one.

    While a tool's transaction is open, what a parallel call has done cannot be stored.
    """
    begun = threading.Event()
    engine = sa.create_engine(shop.url, poolclass=sa.NullPool)

    def pay_in(session: Session, order_id: str) -> str:
        session.execute(TAKE, {"order_id": order_id, "sku": "paid"})
        begun.set()
        assert saver.kept_off.wait(30)
        return "paid"

    @tool("pay")
    @shop.ledger.transactional(key=("order_id",), operation="pay")
    def guarded_pay(session: Session, /, order_id: str) -> str:
        """Pay."""
        return pay_in(session, order_id)

    @tool("pay")
    def unguarded_pay(order_id: str) -> str:
        """Pay."""
        with Session(engine) as session, session.begin():
            return pay_in(session, order_id)

    @tool
    def look() -> str:
        """Look at something, while the payment is under way."""
        assert begun.wait(30)
        return "seen"

    tools = [guarded_pay if twin == "guarded" else unguarded_pay, look]
    asked = calling(("pay", {"order_id": "O-1"}), ("look", {}))
    file = shop.url.removeprefix("sqlite:///")
    with closing(sqlite3.connect(file, check_same_thread=False, timeout=0)) as connection:
        saver = OneFile(connection)
        saver.setup()
        model = ScriptedChatModel([asked, "done"])
        with pytest.warns(SharedFileWarning):
            graph = create_react_agent(model, tools, ledger=shop.ledger, checkpointer=saver)
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            graph.invoke(HELLO, THREAD)
        assert shop.rows("taken") == [("O-1", "paid")]
        connection.execute("PRAGMA busy_timeout = 30000")
        graph.invoke(HELLO, OTHER)
    assert shop.rows("taken") == [("O-1", "paid")] * payments
