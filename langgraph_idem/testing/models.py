"""A chat model that plays a script, the same one in every process."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import Field

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from langchain_core.callbacks import CallbackManagerForLLMRun
    from langchain_core.runnables import Runnable

    Reply = str | AIMessage | Callable[[list[BaseMessage]], str | AIMessage]


class ScriptedChatModel(BaseChatModel):
    """Answers from a script, for tests and demonstrations; no network, no key.

    Which reply comes next is read off the conversation: as many AIMessages as it holds, so many
    replies have been given. So a fresh process goes on where a dead one stopped, and a call that
    is repeated gets the same answer again.

    Attributes:
        script: The replies: a text, an AIMessage (with ``tool_calls`` or without), or a function
            of the messages that returns one of these.
        seen: The messages of every call, in this process.
        bound_tools: The tools that were bound, as the provider would be told of them.

    """

    script: list[Any]
    seen: list[list[BaseMessage]] = Field(default_factory=list)
    bound_tools: list[dict[str, Any]] = Field(default_factory=list)

    def __init__(self, script: Sequence[Reply], **fields: Any) -> None:
        super().__init__(**{**fields, "script": list(script)})

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Runnable[Any, AIMessage]:
        """Take note of the tools."""
        self.bound_tools[:] = [convert_to_openai_tool(tool) for tool in tools]
        return self.bind(tools=self.bound_tools, **kwargs)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,  # noqa: ARG002 - LangChain's signature
        run_manager: CallbackManagerForLLMRun | None = None,  # noqa: ARG002
        **kwargs: Any,  # noqa: ARG002
    ) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self._reply(messages))])

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,  # noqa: ARG002 - LangChain's signature
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,  # noqa: ARG002
    ) -> Iterator[ChatGenerationChunk]:
        for chunk in _chunks(self._reply(messages)):
            generation = ChatGenerationChunk(message=chunk)
            if run_manager is not None:
                run_manager.on_llm_new_token(str(chunk.content), chunk=generation)
            yield generation

    def _reply(self, messages: list[BaseMessage]) -> AIMessage:
        self.seen.append(list(messages))
        given = sum(isinstance(message, AIMessage) for message in messages)
        if given >= len(self.script):
            raise IndexError(
                f"The script has {len(self.script)} replies, and the conversation holds {given} "
                "already: add the reply that comes next to the script."
            )
        reply = self.script[given]
        reply = reply(messages) if callable(reply) else reply
        # A copy: LangChain gives the message an id, which must not stay in the script.
        return AIMessage(reply) if isinstance(reply, str) else reply.model_copy(deep=True)


def _chunks(message: AIMessage) -> Iterator[AIMessageChunk]:
    """Cut a reply into words, then its tool calls, each whole."""
    for word in str(message.content).splitlines(keepends=True):
        yield AIMessageChunk(content=word, id=message.id)
    calls = [
        tool_call_chunk(name=call["name"], args=json.dumps(call["args"]), id=call["id"], index=i)
        for i, call in enumerate(message.tool_calls)
    ]
    yield AIMessageChunk(content="", id=message.id, tool_call_chunks=calls, chunk_position="last")
