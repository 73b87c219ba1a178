"""A tool that was made elsewhere, guarded: same name, description and arguments."""

from __future__ import annotations

import inspect
import keyword
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from langchain_core.runnables.config import ensure_config
from langchain_core.tools import BaseTool, StructuredTool, Tool
from langchain_core.tools.base import _get_runnable_config_param
from pydantic import BaseModel, create_model

from langgraph_idem.effects import Effect
from langgraph_idem.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from langgraph_idem.ports import ToolGuard

_NEEDS_CONFIG: Final = (StructuredTool, Tool)
"""Their ``_run`` insists on a config, which it hands on to the function if that wants one."""


def guard_tool(tool: Any, guard: ToolGuard) -> BaseTool:
    """Wrap a BaseTool so that its effect is the ledger's business.

    The colour is kept: a tool that can run sync is guarded in both colours, an async-only one
    (as MCP tools are) in its own; a ledger that serves one colour guards in that one.

    Raises:
        ConfigurationError: It is no BaseTool, ``pass_key_as`` names no argument of it, or neither
            of its colours can be served.

    """
    if not isinstance(tool, BaseTool):
        raise ConfigurationError(
            f"ledger.guard() wraps a BaseTool; this is {type(tool).__name__}. Decorate functions "
            "of yours with ledger.remote or ledger.transactional instead."
        )
    arguments = _arguments(tool, guard.pass_key_as)
    colours = [_awaiting] if _is_async_only(tool) else [_blocking, _awaiting]
    guarded = _guarded(tool, guard, arguments, colours)
    return StructuredTool(
        name=tool.name,
        description=tool.description,
        args_schema=arguments.schema,
        return_direct=tool.return_direct,
        response_format=tool.response_format,
        handle_tool_error=tool.handle_tool_error,
        handle_validation_error=tool.handle_validation_error,
        verbose=tool.verbose,
        callbacks=tool.callbacks,
        tags=tool.tags,
        metadata=tool.metadata,
        extras=tool.extras,
        func=guarded.get(_blocking),
        coroutine=guarded.get(_awaiting),
    )


@dataclass(frozen=True)
class _Arguments:
    """A tool's arguments without the one that takes the key.

    Attributes:
        schema: What the model is shown.
        parameters: The same as a signature, so that an effect can be keyed by them.
        key_name: The hidden argument that takes the idempotency key, None if there is none.

    """

    schema: Any
    parameters: list[inspect.Parameter]
    key_name: str | None

    def named(self, single: tuple[Any, ...]) -> dict[str, Any]:
        """Name the one argument that LangChain may give as a bare text."""
        return {p.name: value for p, value in zip(self.parameters, single, strict=False)}


def _guarded(
    tool: BaseTool, guard: ToolGuard, arguments: _Arguments, colours: list[Callable[..., Any]]
) -> dict[Callable[..., Any], Any]:
    """Guard each colour that the ledger's engines can serve; one must be left."""
    guarded: dict[Callable[..., Any], Any] = {}
    refusal: ConfigurationError | None = None
    for colour in colours:
        call = _shaped(colour(tool, arguments), tool, arguments)
        try:
            guarded[colour] = guard.decorate(call)
        except ConfigurationError as error:
            refusal = error
    if not guarded and refusal is not None:
        raise refusal
    return guarded


def _is_async_only(tool: BaseTool) -> bool:
    return isinstance(tool, _NEEDS_CONFIG) and tool.func is None


def _arguments(tool: BaseTool, hidden: str | None) -> _Arguments:
    if isinstance(tool.args_schema, dict):
        return _of_json_schema(tool, tool.args_schema, hidden)
    if isinstance(tool, Tool) and tool.args_schema is None:  # LangChain's own name of its one text
        model: Any = create_model(f"{tool.name}Input", tool_input=(str, ...))
    else:
        model = tool.get_input_schema()
    if not issubclass(model, BaseModel):
        raise ConfigurationError(
            f"The arguments of {tool.name} are a model of pydantic's version 1, which cannot be "
            "guarded. Move the tool to pydantic 2."
        )
    return _of_model(tool, model, hidden)


def _of_model(tool: BaseTool, model: type[BaseModel], key_name: str | None) -> _Arguments:
    fields = model.model_fields
    _check_hidden(tool, key_name, fields)
    config = _get_runnable_config_param(tool._run)  # noqa: SLF001 - filled in by LangChain, yet in the schema
    hidden = {name for name in (key_name, config) if name in fields}
    is_single = len(fields) - len(hidden) == 1
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD if is_single else inspect.Parameter.KEYWORD_ONLY
    parameters = [
        inspect.Parameter(
            name,
            kind,
            annotation=field.rebuild_annotation(),
            default=inspect.Parameter.empty
            if field.is_required()
            else field.get_default(call_default_factory=True),
        )
        for name, field in fields.items()
        if name not in hidden
    ]
    return _Arguments(_without(model, hidden) if hidden else model, parameters, key_name)


def _without(model: type[BaseModel], hidden: set[str]) -> type[BaseModel]:
    """Make the same model without some fields; its own validators are left out."""
    kept: dict[str, Any] = {
        name: (field.rebuild_annotation(), field)
        for name, field in model.model_fields.items()
        if name not in hidden
    }
    config: Any = {**model.model_config, "title": model.__name__}
    make: Any = create_model
    made: type[BaseModel] = make(model.__name__, __config__=config, **kept)
    made.__doc__ = model.__doc__
    return made


def _of_json_schema(tool: BaseTool, schema: dict[str, Any], hidden: str | None) -> _Arguments:
    """Take a JSON schema as MCP tools have it: nobody validates by it on this side.

    Names that Python cannot have as parameters, and properties that the schema does not list, are
    passed on all the same; an effect cannot be keyed by them by name.
    """
    properties: Mapping[str, Any] = schema.get("properties", {})
    _check_hidden(tool, hidden, properties)
    required = set(schema.get("required", ()))
    parameters = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            annotation=Any,
            default=inspect.Parameter.empty if name in required else value.get("default"),
        )
        for name, value in properties.items()
        if name != hidden and name.isidentifier() and not keyword.iskeyword(name)
    ]
    rest = inspect.Parameter(_unused("more", properties), inspect.Parameter.VAR_KEYWORD)
    shown = {
        **schema,
        "properties": {name: value for name, value in properties.items() if name != hidden},
        "required": [name for name in schema.get("required", ()) if name != hidden],
    }
    return _Arguments(shown, [*parameters, rest.replace(annotation=Any)], hidden)


def _unused(name: str, names: Mapping[str, Any]) -> str:
    while name in names:
        name += "_"
    return name


def _check_hidden(tool: BaseTool, hidden: str | None, names: Mapping[str, Any]) -> None:
    if hidden is not None and hidden not in names:
        raise ConfigurationError(
            f"pass_key_as={hidden!r}: {tool.name} has no such argument. Its arguments are: "
            f"{', '.join(sorted(names)) or '(none)'}."
        )


def _blocking(tool: BaseTool, arguments: _Arguments) -> Callable[..., Any]:
    def call(effect: Effect, /, *single: Any, **given: Any) -> Any:
        given = arguments.named(single) | given
        args, kwargs = _inner(tool, tool._run, given, effect, arguments.key_name)  # noqa: SLF001 - run() would format the result
        return tool._run(*args, **kwargs)  # noqa: SLF001 - as above

    return call


def _awaiting(tool: BaseTool, arguments: _Arguments) -> Callable[..., Any]:
    async def call(effect: Effect, /, *single: Any, **given: Any) -> Any:
        given = arguments.named(single) | given
        args, kwargs = _inner(tool, tool._arun, given, effect, arguments.key_name)  # noqa: SLF001 - as above
        return await tool._arun(*args, **kwargs)  # noqa: SLF001 - as above

    return call


def _inner(
    tool: BaseTool,
    run: Callable[..., Any],
    arguments: dict[str, Any],
    effect: Effect,
    key_name: str | None,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Make what the tool's own ``_run`` is called with, as ``BaseTool.run`` does."""
    config = _config_of(tool, run)
    key = {} if key_name is None else {key_name: effect.idempotency_key}
    if isinstance(tool, Tool):
        return tuple((arguments | key).values()), config
    return (), {**arguments, **key, **config}


def _config_of(tool: BaseTool, run: Callable[..., Any]) -> dict[str, Any]:
    """Hand the running config on to a ``_run`` that takes one."""
    own = tool._run  # noqa: SLF001 - an _arun that is not overridden hands all to _run
    name = _get_runnable_config_param(run) or _get_runnable_config_param(own)
    return {} if name is None else {name: ensure_config()}


def _shaped(call: Callable[..., Any], tool: BaseTool, arguments: _Arguments) -> Callable[..., Any]:
    """Give the function the signature of the tool, so that it can be keyed by its arguments."""
    effect = inspect.Parameter("effect", inspect.Parameter.POSITIONAL_ONLY, annotation=Effect)
    if any(parameter.name == effect.name for parameter in arguments.parameters):
        effect = effect.replace(name="idempotent_effect")
    returns = tuple[Any, Any] if tool.response_format == "content_and_artifact" else Any
    parameters = [effect, *arguments.parameters]
    call.__name__ = tool.name
    call.__doc__ = tool.description
    call.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": returns}
    call.__signature__ = inspect.Signature(parameters, return_annotation=returns)  # type: ignore[attr-defined]  # inspect reads it
    return call
