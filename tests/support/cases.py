"""Small shared pieces of the field cases: a business, an unguarded twin of its tool, the seams."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import sqlalchemy as sa
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, ToolMessage
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from langgraph_idem import IdempotentToolNode, Ledger, create_react_agent
from langgraph_idem.testing import ScriptedChatModel

CONFIG: Final[Any] = {"configurable": {"thread_id": "thread-1"}}
HELLO: Final[Any] = {"messages": [("user", "pay O-1")]}
PAY: Final = sa.text("insert into payments (order_id, cents) values (:order_id, :cents)")
SEAMS: Final = ("tool_node", "idempotent_tool_node", "create_react_agent")
"""Where a guarded tool may run: a plain ToolNode (the decorator alone), our node, our agent."""

ALL_SEAMS: Final = (*SEAMS, "create_agent")
"""LangChain's agent too, with our middleware."""
TWINS: Final = ("unguarded", "guarded")
"""The test's own control, which goes wrong, and the library, which does not."""

Hook = Callable[[], Any]


def nothing() -> None:
    """Do nothing at this place."""


@dataclass(frozen=True)
class Business:
    """A business with one table, and the ledger in the same database.

    Attributes:
        url: Where both are.
        ledger: The ledger.

    """

    url: str
    ledger: Ledger

    @classmethod
    def at(cls, url: str, **options: Any) -> Business:
        """Open a business whose tables are there."""
        return cls(url, Ledger(url, **options))

    @classmethod
    def founded_at(cls, url: str, **options: Any) -> Business:
        """Make the tables, then open the business."""
        business = cls.at(url, **options)
        business.ledger.setup()
        with business.connected() as conn:
            conn.execute(sa.text("create table payments (order_id text, cents integer)"))
        return business

    @contextmanager
    def connected(self) -> Iterator[sa.Connection]:
        """Open a connection of the business's own; what was done is committed at the end."""
        engine = sa.create_engine(self.url, poolclass=sa.NullPool)
        with engine.begin() as conn:
            yield conn

    def pay(self, order_id: str, cents: int) -> None:
        """Pay without a guard: commit at once, as an ordinary tool does."""
        with self.connected() as conn:
            conn.execute(PAY, {"order_id": order_id, "cents": cents})

    @property
    def payments(self) -> list[tuple[str, int]]:
        """What was paid, in order."""
        with self.connected() as conn:
            found = conn.execute(sa.text("select order_id, cents from payments order by 1, 2"))
            return [(row.order_id, row.cents) for row in found]

    def forget(self) -> None:
        """Begin anew, after a control has gone wrong as it should."""
        with self.connected() as conn:
            conn.execute(sa.text("delete from payments"))
            conn.execute(sa.text("delete from idem_effects"))


@dataclass(frozen=True)
class Hooks:
    """What happens within the tool, besides paying; each may return an awaitable.

    Attributes:
        before: Before the payment is written.
        unpaid: After it is written; in the guarded tool, before it is committed.
        after: After it is committed, before the tool returns.
        entered: When the tool is entered; in the guarded tool, before the claim.

    """

    before: Hook = nothing
    unpaid: Hook = nothing
    after: Hook = nothing
    entered: Hook = nothing


def pay_tool(
    business: Business,
    hooks: Hooks = Hooks(),
    *,
    guarded: bool = True,
    colour: str = "sync",
    name: str = "pay",
    **options: Any,
) -> BaseTool:
    """Make the paying tool, guarded or not, in a colour.

    Args:
        business: Whose payments they are.
        hooks: What else happens.
        guarded: False: the unguarded twin, which commits by itself.
        colour: ``"sync"`` or ``"async"``.
        name: Name of the tool and of its operation.
        **options: Of ``ledger.transactional``; the key is the order by default.

    """
    sync, awaiting = (
        _around(_guarded(business, hooks, colour, options), hooks)
        if guarded
        else _plain(business, hooks)
    )
    return StructuredTool.from_function(
        func=sync if colour == "sync" else None,
        coroutine=awaiting if colour == "async" else None,
        name=name,
        description="Pay for an order.",
    )


def _plain(business: Business, hooks: Hooks) -> tuple[Callable[..., Any], Callable[..., Any]]:
    def pay(order_id: str, cents: int = 5) -> str:
        hooks.entered()
        hooks.before()
        business.pay(order_id, cents)
        hooks.unpaid()
        hooks.after()
        return f"paid {order_id}"

    async def apay(order_id: str, cents: int = 5) -> str:
        await awaited(hooks.entered())
        await awaited(hooks.before())
        business.pay(order_id, cents)
        await awaited(hooks.unpaid())
        await awaited(hooks.after())
        return f"paid {order_id}"

    return pay, apay


def _guarded(
    business: Business, hooks: Hooks, colour: str, options: dict[str, Any]
) -> Callable[..., Any]:
    guard: Any = business.ledger.transactional(
        **{"key": ("order_id",), "operation": "pay", **options}
    )

    def pay(session: Session, /, order_id: str, cents: int = 5) -> str:
        hooks.before()
        session.execute(PAY, {"order_id": order_id, "cents": cents})
        hooks.unpaid()
        return f"paid {order_id}"

    async def apay(session: AsyncSession, /, order_id: str, cents: int = 5) -> str:
        await awaited(hooks.before())
        await session.execute(PAY, {"order_id": order_id, "cents": cents})
        await awaited(hooks.unpaid())
        return f"paid {order_id}"

    made: Callable[..., Any] = guard(pay if colour == "sync" else apay)
    return made


def _around(
    guarded: Callable[..., Any], hooks: Hooks
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Let something happen before the claim, and between the commit and the tool's return."""

    @functools.wraps(guarded)
    def sync(**kwargs: Any) -> Any:
        hooks.entered()
        result = guarded(**kwargs)
        hooks.after()
        return result

    @functools.wraps(guarded)
    async def awaiting(**kwargs: Any) -> Any:
        await awaited(hooks.entered())
        result = await guarded(**kwargs)
        await awaited(hooks.after())
        return result

    return sync, awaiting


async def awaited(value: Any) -> Any:
    """Await what is awaitable."""
    return await value if inspect.isawaitable(value) else value


@dataclass
class Once:
    """Does something the first time only, or the first few times.

    Attributes:
        what: What is done.
        times: How often.

    """

    what: Hook
    times: int = 1
    calls: int = field(default=0)

    def __call__(self) -> Any:
        """Do it, if it is not over."""
        self.calls += 1
        return self.what() if self.calls <= self.times else None


def raises(error: BaseException) -> Hook:
    """Make a hook that raises."""

    def hook() -> None:
        raise error

    return hook


def asks(*calls: tuple[str, dict[str, Any]], ids: Sequence[str] | None = None) -> AIMessage:
    """Write the message of a model that asks for tool calls."""
    given = ids or [f"call_{i}" for i in range(len(calls))]
    return AIMessage(
        "",
        tool_calls=[
            {"name": name, "args": args, "id": call_id}
            for (name, args), call_id in zip(calls, given, strict=True)
        ],
    )


PAY_ONE: Final = ("pay", {"order_id": "O-1", "cents": 5})


def agent(
    seam: str,
    script: Sequence[Any] | BaseChatModel,
    tools: Sequence[BaseTool],
    business: Business,
    checkpointer: Any = None,
    **options: Any,
) -> Any:
    """Build the graph of a model and its tools at a seam.

    Args:
        seam: One of ``ALL_SEAMS``.
        script: What the model says, or the model.
        tools: Its tools.
        business: Whose ledger guards them.
        checkpointer: Where the run is kept.
        **options: Of the tool node or the agent.

    """
    model = script if isinstance(script, BaseChatModel) else ScriptedChatModel(script)
    if seam == "create_react_agent":
        return create_react_agent(
            model, tools, ledger=business.ledger, checkpointer=checkpointer, **options
        )
    if seam == "create_agent":
        return middle_agent(model, tools, business, checkpointer, **options)
    if seam == "tool_node":
        node = ToolNode(tools, **options)
    else:
        node = IdempotentToolNode(tools, ledger=business.ledger, **options)
    return looped(model, node).compile(checkpointer=checkpointer)


def middle_agent(
    model: BaseChatModel,
    tools: Sequence[BaseTool],
    business: Business,
    checkpointer: Any = None,
    *,
    middleware: Sequence[Any] = (),
    is_guarded: bool = True,
) -> Any:
    """Build LangChain's agent, with our middleware where it belongs, or without."""
    from langchain.agents import create_agent

    from langgraph_idem.tools.middleware import IdempotencyMiddleware

    ours = [IdempotencyMiddleware(business.ledger)] if is_guarded else []
    return create_agent(
        model, list(tools), middleware=[*middleware, *ours], checkpointer=checkpointer
    )


def looped(model: BaseChatModel, node: Any) -> StateGraph[Any, Any, Any, Any]:
    """Build the usual loop of a model node and a tool node."""

    def ask(state: MessagesState) -> dict[str, list[AnyMessage]]:
        return {"messages": [model.invoke(state["messages"])]}

    builder: StateGraph[Any, Any, Any, Any] = StateGraph(MessagesState)
    builder.add_node("model", ask)
    builder.add_node("tools", node)
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", tools_condition)
    builder.add_edge("tools", "model")
    return builder


async def run(colour: str, graph: Any, given: Any, config: Any = CONFIG, **options: Any) -> Any:
    """Run a graph in a colour."""
    if colour == "sync":
        return graph.invoke(given, config, **options)
    return await graph.ainvoke(given, config, **options)


def answers(messages: Sequence[BaseMessage]) -> list[ToolMessage]:
    """Pick the tools' answers out of a conversation."""
    return [message for message in messages if isinstance(message, ToolMessage)]


def assert_provider_valid(messages: Sequence[BaseMessage]) -> None:
    """Assert that each tool call is answered once, right after the message that asks for it."""
    waiting: list[Any] = []
    for message in messages:
        if isinstance(message, ToolMessage):
            assert message.tool_call_id in waiting, ("answers nothing", message, messages)
            waiting.remove(message.tool_call_id)
            continue
        assert not waiting, ("unanswered before the next message", waiting, messages)
        if isinstance(message, AIMessage):
            waiting = [call["id"] for call in message.tool_calls]
    assert not waiting, ("unanswered at the end", waiting, messages)
