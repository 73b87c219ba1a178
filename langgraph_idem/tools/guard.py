"""A tool that was made elsewhere, guarded: same name, description and arguments."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from langchain_core.tools import BaseTool, StructuredTool
from pydantic import BaseModel, create_model

from langgraph_idem.effects import Effect
from langgraph_idem.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from langgraph_idem.ports import ToolGuard


def guard_tool(tool: Any, guard: ToolGuard) -> BaseTool:
    """Wrap a BaseTool so that its effect is the ledger's business.

    The colour is kept: a tool that can run sync is guarded in both colours, an async-only one
    (as MCP tools are) in its own.

    Raises:
        ConfigurationError: It is no BaseTool, or ``pass_key_as`` names no argument of it.

    """
    if not isinstance(tool, BaseTool):
        raise ConfigurationError(
            f"ledger.guard() wraps a BaseTool; this is {type(tool).__name__}. Decorate functions "
            "of yours with ledger.remote or ledger.transactional instead."
        )
    shown = _shown_arguments(tool, guard.pass_key_as)
    is_async_only = isinstance(tool, StructuredTool) and tool.func is None
    return StructuredTool(
        name=tool.name,
        description=tool.description,
        args_schema=shown,
        return_direct=tool.return_direct,
        response_format=tool.response_format,
        handle_tool_error=tool.handle_tool_error,
        handle_validation_error=tool.handle_validation_error,
        tags=tool.tags,
        metadata=tool.metadata,
        func=None if is_async_only else guard.decorate(_blocking(tool, shown, guard.pass_key_as)),
        coroutine=guard.decorate(_awaiting(tool, shown, guard.pass_key_as)),
    )


def _shown_arguments(tool: BaseTool, hidden: str | None) -> type[BaseModel]:
    """Return the tool's arguments as a model, without the one that takes the key."""
    schema: Any = tool.get_input_schema()
    fields = schema.model_fields
    if hidden is None:
        return schema  # type: ignore[no-any-return]  # a tool of pydantic's v1 is not supported
    if hidden not in fields:
        raise ConfigurationError(
            f"pass_key_as={hidden!r}: {tool.name} has no such argument. Its arguments are: "
            f"{', '.join(sorted(fields)) or '(none)'}."
        )
    kept: dict[str, Any] = {
        name: (field.rebuild_annotation(), field)
        for name, field in fields.items()
        if name != hidden
    }
    return create_model(schema.__name__, **kept)


def _blocking(tool: BaseTool, shown: type[BaseModel], key_name: str | None) -> Callable[..., Any]:
    def call(effect: Effect, /, **arguments: Any) -> Any:
        return tool._run(**_with_key(arguments, effect, key_name), **_config_of(tool))  # noqa: SLF001 - run() would format the result

    return _shaped(call, tool, shown)


def _awaiting(tool: BaseTool, shown: type[BaseModel], key_name: str | None) -> Callable[..., Any]:
    async def call(effect: Effect, /, **arguments: Any) -> Any:
        arguments = _with_key(arguments, effect, key_name)
        return await tool._arun(**arguments, **_config_of(tool))  # noqa: SLF001 - as above

    return _shaped(call, tool, shown)


def _config_of(tool: BaseTool) -> dict[str, Any]:
    """Give a StructuredTool the config its ``_run`` insists on."""
    return {"config": {}} if isinstance(tool, StructuredTool) else {}


def _with_key(arguments: dict[str, Any], effect: Effect, name: str | None) -> dict[str, Any]:
    return arguments if name is None else {**arguments, name: effect.idempotency_key}


def _shaped(call: Callable[..., Any], tool: BaseTool, shown: type[BaseModel]) -> Callable[..., Any]:
    """Give the function the signature of the tool, so that it can be keyed by its arguments."""
    effect = inspect.Parameter("effect", inspect.Parameter.POSITIONAL_ONLY, annotation=Effect)
    parameters = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            annotation=field.rebuild_annotation(),
            default=inspect.Parameter.empty
            if field.is_required()
            else field.get_default(call_default_factory=True),
        )
        for name, field in shown.model_fields.items()
    ]
    returns = tuple[Any, Any] if tool.response_format == "content_and_artifact" else Any
    call.__name__ = tool.name
    call.__doc__ = tool.description
    call.__annotations__ = {p.name: p.annotation for p in (effect, *parameters)} | {
        "return": returns
    }
    call.__signature__ = inspect.Signature([effect, *parameters], return_annotation=returns)  # type: ignore[attr-defined]  # inspect reads it
    return call
