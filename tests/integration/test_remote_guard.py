"""Tools that were made elsewhere, guarded: each kind that LangChain knows, MCP's included."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
import sqlalchemy as sa
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import (
    BaseTool,
    InjectedToolCallId,
    StructuredTool,
    Tool,
    ToolException,
    tool,
)
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import InjectedState
from pydantic import BaseModel, Field, ValidationError, field_validator

from langgraph_idem import (
    ConfigurationError,
    Effect,
    IdempotentToolNode,
    Ledger,
    OutcomeUnknown,
    RecordedFailure,
)
from langgraph_idem.effects import State
from tests.support.provider import Witness

MCP_SERVER = '''
import sys
from mcp.server.fastmcp import FastMCP
server = FastMCP("mail")
@server.tool()
def send(to: str, invoice: str, idempotency_key: str, copies: int = 1) -> str:
    """Send an invoice."""
    with open(sys.argv[1], "a") as file:
        file.write(f"{to} {invoice} {copies} {idempotency_key}\\n")
    if to == "nobody":
        raise ValueError("no such person")
    return f"sent to {to}"
server.run()
'''


@pytest.fixture
def witness(sqlite_url: str) -> Witness:
    """A fresh ledger, and somebody to look at it."""
    return Witness(sqlite_url)


@pytest.fixture
def ledger(witness: Witness) -> Iterator[Ledger]:
    """The ledger."""
    with Ledger(witness.url, wait=0) as opened:
        yield opened


class Sent:
    """What a tool did."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def send(self, to: str, invoice: str, copies: int = 1) -> str:
        """Send an invoice."""
        self.calls.append((to, invoice, copies))
        return f"sent {len(self.calls)}"

    async def asend(self, to: str, invoice: str, copies: int = 1) -> str:
        """Send an invoice."""
        return self.send(to, invoice, copies)


GIVEN = {"to": "Ann", "invoice": "I-1"}
KEY: Any = {"key": ("to", "invoice"), "on_unknown": "raise"}


async def test_a_structured_tool_in_both_colours(ledger: Ledger) -> None:
    """One effect, whichever colour calls; the same name, description and arguments."""
    sent = Sent()
    made = StructuredTool.from_function(sent.send, name="send", description="Send an invoice.")
    safe = ledger.guard(made, **KEY)
    assert (safe.name, safe.description) == (made.name, made.description)
    assert safe.args == made.args
    assert [safe.invoke(GIVEN), await safe.ainvoke(GIVEN)] == ["sent 1", "sent 1"]
    assert sent.calls == [("Ann", "I-1", 1)]
    await ledger.aclose()


async def test_an_async_only_tool(ledger: Ledger) -> None:
    """It stays so: a sync call is refused before anything is claimed."""
    sent = Sent()
    safe = ledger.guard(StructuredTool.from_function(coroutine=sent.asend, name="send"), **KEY)
    with pytest.raises(NotImplementedError):
        safe.invoke(GIVEN)
    assert ledger.effects() == []
    assert [await safe.ainvoke(GIVEN) for _ in range(2)] == ["sent 1"] * 2
    await ledger.aclose()


class OwnRun(BaseTool):
    """A toolkit's tool."""

    name: str = "send"
    description: str = "Send an invoice."
    sent: Any = None

    def _run(self, to: str, invoice: str, copies: int = 2, run_manager: Any = None) -> str:
        return str(self.sent.send(to, invoice, copies))


async def test_a_subclass_with_its_own_run(ledger: Ledger) -> None:
    """Its arguments are read off ``_run``; defaults are its own."""
    sent = Sent()
    safe = ledger.guard(OwnRun(sent=sent), **KEY)
    assert [safe.invoke(GIVEN), await safe.ainvoke(GIVEN)] == ["sent 1", "sent 1"]
    assert sent.calls == [("Ann", "I-1", 2)]
    await ledger.aclose()


class WantsConfig(BaseTool):
    """A tool that asks for the config."""

    name: str = "send"
    description: str = "Send an invoice."
    seen: list[Any] = Field(default_factory=list)

    def _run(self, to: str, config: RunnableConfig) -> str:
        self.seen.append(config["configurable"]["tenant"])
        return to


def test_the_config_is_passed_through(ledger: Ledger) -> None:
    """To a ``_run`` that takes it, and to a function that does."""
    config: RunnableConfig = {"configurable": {"tenant": "T"}}
    own, seen = WantsConfig(), []

    def send(to: str, config: RunnableConfig) -> str:
        """Send."""
        seen.append(config["configurable"]["tenant"])
        return to

    assert ledger.guard(own, key=("to",)).invoke({"to": "Ann"}, config) == "Ann"
    made = StructuredTool.from_function(send, name="send2")
    assert ledger.guard(made, key=("to",)).invoke({"to": "Ann"}, config) == "Ann"
    assert (own.seen, seen) == (["T"], ["T"])


def test_a_tool_with_one_text(ledger: Ledger) -> None:
    """LangChain's plain ``Tool``: called by text or by name."""
    calls: list[str] = []

    def shout(text: str) -> str:
        calls.append(text)
        return f"{text}!"

    made = Tool("shout", shout, "Shout.")
    safe = ledger.guard(made, key=("tool_input",))
    assert [safe.invoke("a"), safe.invoke({"tool_input": "a"})] == ["a!", "a!"]
    assert calls == ["a"]


def test_the_key_is_passed_and_hidden(ledger: Ledger) -> None:
    """The model sees no such argument; the tool gets the effect's own key, the same each time."""
    keys = []

    class Arguments(BaseModel):
        to: str
        token: str = Field(description="idempotency key")
        copies: int = 1

        @field_validator("copies")
        @classmethod
        def _some(cls, copies: int) -> int:
            return copies

    def send(to: str, token: str, copies: int = 1) -> str:
        """Send."""
        keys.append(token)
        return to

    made = StructuredTool.from_function(send, name="send", args_schema=Arguments)
    safe = ledger.guard(made, key=("to",), pass_key_as="token")
    assert list(safe.args) == ["to", "copies"]
    assert safe.invoke({"to": "Ann", "token": "the model's own"}) == "Ann"
    assert keys == [Effect("global", "send", "Ann").idempotency_key]
    with pytest.raises(ValidationError):
        safe.invoke({"to": "Ann", "copies": "many"})
    with pytest.raises(ConfigurationError, match="Its arguments are"):
        ledger.guard(made, key=("to",), pass_key_as="nope")


def test_content_and_artifact(ledger: Ledger) -> None:
    """A replay has the same content and the same artifact."""

    @tool(response_format="content_and_artifact")
    def draw(name: str) -> tuple[str, dict[str, int]]:
        """Draw."""
        return f"drew {name}", {"size": 3}

    safe = ledger.guard(draw, key=("name",))
    call = {"name": "draw", "args": {"name": "a"}, "id": "1", "type": "tool_call"}
    for _ in range(2):
        message = safe.invoke(call)
        assert (message.content, message.artifact) == ("drew a", {"size": 3})


def test_injected_arguments_are_filled_in(ledger: Ledger) -> None:
    """State and call id reach the tool, and neither key nor fingerprint nor the model."""
    seen = []

    @tool
    def send(
        to: str,
        state: Annotated[dict[str, Any], InjectedState],
        call_id: Annotated[str, InjectedToolCallId],
    ) -> str:
        """Send."""
        seen.append((len(state["messages"]), call_id))
        return to

    safe = ledger.guard(send, key=("to",))
    assert list(safe.args) == ["to"]
    graph: Any = StateGraph(MessagesState)
    graph.add_node("tools", IdempotentToolNode([safe], ledger=ledger))
    graph.add_edge(START, "tools")
    for number in (1, 2):
        call = {"name": "send", "args": {"to": "Ann"}, "id": f"call-{number}"}
        done = graph.compile().invoke({"messages": [AIMessage("", tool_calls=[call])]})
        message = done["messages"][-1]
        assert isinstance(message, ToolMessage)
        assert message.additional_kwargs["idempotency"]["replayed"] is (number == 2)
    assert seen == [(1, "call-1")]


def test_a_tools_own_error_is_judged_before_it_is_worded(ledger: Ledger, witness: Witness) -> None:
    """``handle_tool_error`` makes text of an exception: the ledger has seen it before."""

    def fail(to: str) -> str:
        """Send."""
        raise ToolException("gone")

    made = StructuredTool.from_function(fail, name="send", handle_tool_error=True)
    with pytest.raises(OutcomeUnknown):
        ledger.guard(made, key=("to",), on_unknown="raise").invoke({"to": "Ann"})
    assert witness.state("Ann", "send") is State.UNKNOWN
    refused = ledger.guard(made, key=("to",), refusals=(ToolException,))
    assert refused.invoke({"to": "Bob"}) == "gone"
    with pytest.raises(RecordedFailure):
        refused.invoke({"to": "Bob"})


def test_a_ledger_of_one_colour_guards_in_that_one(witness: Witness) -> None:
    """A sync engine serves sync calls of a tool that has both; an async-only tool it refuses."""
    sent, ledger = Sent(), Ledger(witness.engine)
    safe = ledger.guard(StructuredTool.from_function(sent.send, name="send"), **KEY)
    assert safe.invoke(GIVEN) == "sent 1"
    with pytest.raises(ConfigurationError, match="sync Engine"):
        ledger.guard(StructuredTool.from_function(coroutine=sent.asend, name="send"), **KEY)
    assert isinstance(witness.engine, sa.Engine)


def test_a_json_schema_with_odd_names(ledger: Ledger) -> None:
    """Names that are no Python ones reach the tool; they count for the fingerprint."""
    seen: list[Any] = []

    def send(**given: Any) -> str:
        seen.append(given)
        return "ok"

    schema = {
        "type": "object",
        "title": "send",
        "properties": {"to": {"type": "string"}, "from-date": {"type": "string"}, "class": {}},
        "required": ["to"],
    }
    made = StructuredTool(name="send", description="Send.", args_schema=schema, func=send)
    safe = ledger.guard(made, key=("to",))
    assert safe.tool_call_schema["properties"] == schema["properties"]
    assert safe.invoke({"to": "Ann", "from-date": "x", "class": "y"}) == "ok"
    assert seen == [{"to": "Ann", "from-date": "x", "class": "y"}]
    record = ledger.effect("send", "Ann")
    assert record is not None
    assert "from-date" in (record.arguments or "")


async def test_a_real_mcp_server(ledger: Ledger, witness: Witness, tmp_path: Path) -> None:
    """A tool of an MCP server, over stdio: one effect, our key, hidden; its error is judged."""
    adapters = pytest.importorskip("langchain_mcp_adapters.client")
    (tmp_path / "server.py").write_text(MCP_SERVER)
    arguments = [str(tmp_path / "server.py"), str(tmp_path / "sent")]
    client = adapters.MultiServerMCPClient(
        {"mail": {"command": sys.executable, "args": arguments, "transport": "stdio"}}
    )
    (send,) = await client.get_tools()
    safe = ledger.guard(send, pass_key_as="idempotency_key", refusals=(ToolException,), **KEY)
    assert sorted(safe.tool_call_schema["properties"]) == ["copies", "invoice", "to"]
    first = await safe.ainvoke(GIVEN)
    assert await safe.ainvoke(GIVEN) == first
    key = Effect("global", "send", '["Ann","I-1"]').idempotency_key
    assert (tmp_path / "sent").read_text() == f"Ann I-1 1 {key}\n"
    record = ledger.effect("send", ("Ann", "I-1"))
    assert record is not None
    assert record.state is State.SUCCEEDED
    await ledger.aclose()
