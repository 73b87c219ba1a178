"""ScriptedChatModel: the same script gives the same run, in any process."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from langgraph_idem.testing import ScriptedChatModel
from tests.langgraph.shop import TAKE_ONE, calling, check_stock


def test_the_next_reply_is_read_off_the_conversation() -> None:
    """As many AIMessages as there are, so many replies were given, by whichever process."""
    script: list[Any] = [calling(TAKE_ONE), "Done."]
    said = ScriptedChatModel(script).invoke("take one")
    again = ScriptedChatModel(script).invoke("take one")
    assert said.tool_calls == again.tool_calls
    assert said.id != again.id
    fresh = ScriptedChatModel(script)
    assert fresh.invoke([HumanMessage("take one"), said]).content == "Done."
    assert script[0].id is None


def test_a_reply_may_look_at_the_messages() -> None:
    """A function of the messages is a reply, too; what was asked is kept for the test to see."""
    model = ScriptedChatModel([lambda messages: f"You said {messages[-1].text}."])
    assert model.invoke("hello").content == "You said hello."
    assert [[message.text for message in asked] for asked in model.seen] == [["hello"]]


def test_a_script_that_is_over_says_so() -> None:
    """One reply too few is an error that says what to add."""
    with pytest.raises(IndexError, match="has 1 replies"):
        ScriptedChatModel(["Hello."]).invoke([HumanMessage("a"), AIMessage("b")])


async def test_streams_add_up_to_the_reply() -> None:
    """Streamed in either colour, the chunks are the reply, tool calls included."""
    reply = calling(TAKE_ONE)
    reply.content = "Let me see.\nOne moment."
    model = ScriptedChatModel([reply])
    chunks = list(model.stream("take one"))
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    assert len(chunks) == 3
    assert (whole.content, whole.tool_calls) == (reply.content, reply.tool_calls)
    assert [chunk.content async for chunk in model.astream("take one")] == [
        chunk.content for chunk in chunks
    ]
    assert (await model.ainvoke("take one")).tool_calls == reply.tool_calls


def test_bound_tools_are_kept() -> None:
    """``bind_tools`` notes what a provider would be told, and the bound model still plays."""
    model = ScriptedChatModel(["Hello."])
    assert model.bind_tools([check_stock]).invoke("hi").content == "Hello."
    assert [known["function"]["name"] for known in model.bound_tools] == ["check_stock"]
