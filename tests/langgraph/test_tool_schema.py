"""What a model sees of a guarded tool, and what a replay gives back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import pytest
from langchain_core.callbacks import CallbackManagerForToolRun
from langchain_core.messages import AnyMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, InjectedToolCallId, tool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import InjectedState, InjectedStore, ToolRuntime
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command
from pydantic import BaseModel, Field
from sqlalchemy import Connection
from sqlalchemy.orm import Session
from typing_extensions import TypedDict

from langgraph_idem import IdempotentToolNode, Ledger, ResultNotStorable
from tests.langgraph.shop import TAKE, Shop, calling

if TYPE_CHECKING:
    # As people write it, and as their linters ask them to: not there when the program runs.
    from sqlalchemy.ext.asyncio import AsyncSession


class Address(BaseModel):
    """Where to."""

    street: str
    city: str = "Berlin"


@dataclass
class Parcel:
    """What."""

    weight_g: int


class Shipped(BaseModel):
    """The result of shipping."""

    order_id: str
    to: Address
    parcels: list[Parcel]


@dataclass
class Paid:
    """The result of paying."""

    cents: int
    by: str


class State(TypedDict, total=False):
    """The state of a graph of one's own."""

    messages: Annotated[list[AnyMessage], add_messages]
    customer: str


def answers(ledger: Ledger, tools: list[BaseTool], *calls: Any) -> list[ToolMessage]:
    """Run calls through a tool node in a graph with a store, each as a turn of its own."""
    builder = StateGraph(State)
    builder.add_node("tools", IdempotentToolNode(tools, ledger=ledger))
    builder.add_edge(START, "tools")
    graph = builder.compile(store=InMemoryStore())
    asked = [calling(call, ids=[f"c{i}"]) for i, call in enumerate(calls)]
    given: list[Any] = [{"messages": [message], "customer": "Ada"} for message in asked]
    return [graph.invoke(state)["messages"][-1] for state in given]


def properties(made: BaseTool) -> dict[str, Any]:
    """Return what a provider is told of a tool's arguments."""
    parameters = convert_to_openai_tool(made)["function"]["parameters"]
    return dict(parameters["properties"])


def test_the_session_is_hidden_and_the_rest_is_kept(shop: Shop) -> None:
    """The model sees name, docstring and arguments as if no session were there."""

    @tool
    @shop.ledger.transactional(key=("order_id",))
    def take(session: Session, /, order_id: str, sku: str = "A") -> str:
        """Take one from stock."""
        return sku

    described = convert_to_openai_tool(take)["function"]
    assert (described["name"], described["description"]) == ("take", "Take one from stock.")
    assert described["parameters"]["required"] == ["order_id"]
    assert properties(take).keys() == {"order_id", "sku"}


def test_docstrings_of_arguments_reach_the_model(shop: Shop) -> None:
    """``parse_docstring=True`` works on a guarded function, the hidden parameter undocumented."""

    @tool(parse_docstring=True)
    @shop.ledger.transactional(key=("order_id",))
    def take(session: Session, /, order_id: str) -> str:  # noqa: D417 - the hidden one
        """Take one from stock.

        Args:
            order_id: The order, like O-1.
        """
        return order_id

    assert properties(take)["order_id"]["description"] == "The order, like O-1."


def test_an_args_schema_of_ones_own_is_kept(shop: Shop) -> None:
    """``args_schema`` describes and validates the arguments; the effect gets the valid ones."""

    class Wanted(BaseModel):
        order_id: str = Field(description="The order.", min_length=3)
        sku: str = "A"

    @tool(args_schema=Wanted)
    @shop.ledger.transactional(key=("order_id",))
    def take(session: Session, /, order_id: str, sku: str) -> str:
        """Take one from stock."""
        session.execute(TAKE, {"order_id": order_id, "sku": sku})
        return sku

    assert properties(take)["order_id"]["description"] == "The order."
    short, good = answers(
        shop.ledger, [take], ("take", {"order_id": "O"}), ("take", {"order_id": "O-1"})
    )
    assert (short.status, good.content) == ("error", "A")
    assert shop.rows("taken") == [("O-1", "A")]


def test_annotations_that_are_there_for_the_type_checker_only(shop: Shop) -> None:
    """A session imported under TYPE_CHECKING guards just as well, and stays hidden."""

    @tool
    @shop.ledger.transactional(key=("order_id",))
    async def take(session: AsyncSession, /, order_id: str, runtime: ToolRuntime) -> str:
        """Take one from stock."""
        return order_id

    assert properties(take).keys() == {"order_id"}


def test_what_langgraph_injects_arrives_and_enters_no_fingerprint(shop: Shop) -> None:
    """Runtime, state, store, call id, config: given to the tool, hidden, and free to change."""
    got: dict[str, Any] = {}

    @tool
    @shop.ledger.transactional(key=("order_id",))
    def take(
        session: Session,
        /,
        order_id: str,
        runtime: ToolRuntime[None, dict[str, Any]],
        state: Annotated[dict[str, Any], InjectedState],
        customer: Annotated[str, InjectedState("customer")],
        store: Annotated[BaseStore, InjectedStore()],
        call_id: Annotated[str, InjectedToolCallId],
        config: RunnableConfig,
        run_manager: CallbackManagerForToolRun | None = None,
    ) -> str:
        """Take one from stock."""
        got.update(
            runtime=runtime.tool_call_id,
            state=len(state["messages"]),
            customer=customer,
            store=type(store),
            call_id=call_id,
            config="configurable" in config,
        )
        return order_id

    assert properties(take).keys() == {"order_id"}
    call = ("take", {"order_id": "O-1"})
    first, again = answers(shop.ledger, [take], call, call)
    assert got == {
        "runtime": "c0",
        "state": 1,
        "customer": "Ada",
        "store": InMemoryStore,
        "call_id": "c0",
        "config": True,
    }
    assert (first.content, again.content) == ("O-1", "O-1")
    assert again.additional_kwargs["idempotency"]["replayed"] is True
    assert [effect.arguments for effect in shop.ledger.effects()] == ['{"order_id":"O-1"}']


def test_models_and_dataclasses_as_arguments_and_results(shop: Shop) -> None:
    """Pydantic models and dataclasses go in and come out, and a replay says the very same."""
    seen: list[Any] = []

    @tool
    @shop.ledger.transactional(key=("order_id",))
    def ship(conn: Connection, /, order_id: str, to: Address, parcels: list[Parcel]) -> Shipped:
        """Ship an order."""
        seen.append((to, parcels))
        return Shipped(order_id=order_id, to=to, parcels=parcels)

    @tool
    @shop.ledger.transactional(key=("order_id",))
    def pay(conn: Connection, /, order_id: str) -> Paid:
        """Pay an order."""
        return Paid(990, by=order_id)

    order = {"order_id": "O-1", "to": {"street": "Weg 1"}, "parcels": [{"weight_g": 5}]}
    paying = ("pay", {"order_id": "O-1"})
    told = answers(shop.ledger, [ship, pay], ("ship", order), ("ship", order), paying, paying)
    assert seen == [(Address(street="Weg 1"), [Parcel(5)])]
    assert told[0].content == told[1].content
    assert told[2].content == told[3].content == str(Paid(990, by="O-1"))
    assert [m.additional_kwargs["idempotency"]["replayed"] for m in told] == [False, True] * 2


def test_content_and_artifact_replays_as_the_pair_it_was(shop: Shop) -> None:
    """A replayed ``content_and_artifact`` result has its artifact, with its type."""

    @tool(response_format="content_and_artifact")
    @shop.ledger.transactional(key=("order_id",))
    def take(session: Session, /, order_id: str) -> tuple[str, Paid]:
        """Take one from stock."""
        return f"took for {order_id}", Paid(5, "card")

    call = ("take", {"order_id": "O-1"})
    first, again = answers(shop.ledger, [take], call, call)
    assert (first.content, first.artifact) == ("took for O-1", Paid(5, "card"))
    assert (again.content, again.artifact) == (first.content, first.artifact)


def test_a_result_that_would_replay_otherwise_rolls_back(shop: Shop) -> None:
    """A tuple without an annotation would come back as a list: refused, and nothing is written."""

    @tool(response_format="content_and_artifact")
    @shop.ledger.transactional(key=("order_id",))
    def take(session: Session, /, order_id: str) -> Any:
        """Take one from stock."""
        session.execute(TAKE, {"order_id": order_id, "sku": "A"})
        return "took", [1]

    with pytest.raises(ResultNotStorable, match="annotate"):
        answers(shop.ledger, [take], ("take", {"order_id": "O-1"}))
    assert shop.rows("taken") == []
    assert shop.ledger.effects() == []


def test_a_replayed_tool_message_answers_the_call_that_is_running(shop: Shop) -> None:
    """A recorded ToolMessage gets the current call's id: providers refuse an answer to another."""

    @tool
    @shop.ledger.transactional(key=("order_id",))
    def take(
        session: Session, /, order_id: str, call_id: Annotated[str, InjectedToolCallId]
    ) -> ToolMessage:
        """Take one from stock."""
        return ToolMessage("took", tool_call_id=call_id, artifact={"n": 1}, id="m")

    call = ("take", {"order_id": "O-1"})
    first, again = answers(shop.ledger, [take], call, call)
    assert (first.tool_call_id, again.tool_call_id) == ("c0", "c1")
    assert (again.content, again.artifact, again.id == "m") == ("took", {"n": 1}, False)


def test_a_replayed_command_updates_the_state_again(shop: Shop) -> None:
    """A recorded Command is the same update, its message an answer to the current call."""

    @tool
    @shop.ledger.transactional(key=("order_id",))
    def take(
        session: Session, /, order_id: str, call_id: Annotated[str, InjectedToolCallId]
    ) -> Command[str]:
        """Take one from stock."""
        told = ToolMessage("took", tool_call_id=call_id)
        return Command(update={"messages": [told], "customer": "Grace"})

    builder = StateGraph(State)
    builder.add_node("tools", IdempotentToolNode([take], ledger=shop.ledger))
    builder.add_edge(START, "tools")
    graph = builder.compile()
    call = ("take", {"order_id": "O-1"})
    for call_id in ("c0", "c1"):
        given: Any = {"messages": [calling(call, ids=[call_id])], "customer": "Ada"}
        state = graph.invoke(given)
        assert state["customer"] == "Grace"
        assert (state["messages"][-1].content, state["messages"][-1].tool_call_id) == (
            "took",
            call_id,
        )
    assert len(shop.ledger.effects()) == 1
