"""A function, understood: what it takes first, which arguments the model fills in."""

from __future__ import annotations

import inspect
import types
import typing
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from langgraph_idem.effects import Effect
from langgraph_idem.errors import ConfigurationError
from langgraph_idem.sql.sites import Takes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from langgraph_idem.ports import Host

_FIRST: Final[Mapping[str, tuple[Takes, bool]]] = {
    "Session": (Takes.SESSION, False),
    "Connection": (Takes.CONNECTION, False),
    "AsyncSession": (Takes.SESSION, True),
    "AsyncConnection": (Takes.CONNECTION, True),
}
"""What the annotation of the first parameter means: what is given, and in which colour."""


_SESSIONS: Final = {False: "Session", True: "AsyncSession"}
"""What ``do`` gets where its parameter has no annotation."""


class _Names(NamedTuple):
    by_position: list[str]
    by_name: set[str]
    required: set[str]


@dataclass(frozen=True)
class Shape:
    """A function's signature, sorted into what the library, the framework and the model fill in."""

    function: Callable[..., Any]
    name: str
    is_async: bool
    takes: Takes
    first: str
    signature: inspect.Signature
    annotations: Mapping[str, Any]
    injected: frozenset[str]

    @cached_property
    def visible(self) -> tuple[str, ...]:
        """Names of the parameters that the model (or the caller) fills in."""
        return tuple(name for name in self.signature.parameters if name not in self.injected)

    @cached_property
    def _names(self) -> _Names | None:
        parameters = self.signature.parameters.values()
        if any(one.kind in {one.VAR_POSITIONAL, one.VAR_KEYWORD} for one in parameters):
            return None
        return _Names(
            by_position=[p.name for p in parameters if p.kind is not p.KEYWORD_ONLY],
            by_name={p.name for p in parameters if p.kind is not p.POSITIONAL_ONLY},
            required={p.name for p in parameters if p.default is p.empty},
        )

    def bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> inspect.BoundArguments:
        """Bind the arguments of one call; ``inspect`` does it, where it is not plain to see.

        Raises:
            TypeError: They do not fit the signature.

        """
        names = self._names
        if names is not None and len(args) <= len(names.by_position):
            given = dict(zip(names.by_position, args, strict=False))
            both = {**given, **kwargs}
            is_plain = len(both) == len(given) + len(kwargs) and kwargs.keys() <= names.by_name
            if is_plain and both.keys() >= names.required:
                return inspect.BoundArguments(self.signature, both)
        return self.signature.bind(*args, **kwargs)

    @property
    def returns(self) -> Any:
        """The return annotation, as the codec needs it."""
        return self.annotations.get("return", inspect.Signature.empty)


def shape_of(function: Callable[..., Any], host: Host, decorator: str) -> Shape:
    """Understand a function, or say what to write instead.

    Args:
        function: What was decorated.
        host: Tells which parameters the framework injects.
        decorator: The decorator's name, for the words of errors.

    Raises:
        ConfigurationError: It is no plain function, a generator, or lacks the first parameter.

    """
    _check_function(function, decorator)
    name = getattr(function, "__name__", type(function).__name__)
    annotations = _annotations(function)
    all_parameters = [*inspect.signature(function).parameters.values()]
    first, rest = (all_parameters[0], all_parameters[1:]) if all_parameters else (None, [])
    is_async = inspect.iscoroutinefunction(function)
    takes = _takes(first, annotations, name, decorator, is_async=is_async)
    assert first is not None  # noqa: S101 - _takes has refused it
    parameters = [p.replace(annotation=annotations.get(p.name, p.annotation)) for p in rest]
    return Shape(
        function=function,
        name=name,
        is_async=is_async,
        takes=takes,
        first=first.name,
        signature=inspect.Signature(
            parameters, return_annotation=annotations.get("return", inspect.Signature.empty)
        ),
        annotations={key: value for key, value in annotations.items() if key != first.name},
        injected=frozenset(p.name for p in parameters if host.is_injected(p.annotation)),
    )


def _check_function(function: Any, decorator: str) -> None:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigurationError(
            f"{function.__name__} is a generator. An effect has one result, recorded when it is "
            f"done: let the function return it, and decorate it with @{decorator}(...)."
        )
    if not inspect.isroutine(function):
        hint = (
            "put @tool above it, so that it decorates the result"
            if hasattr(function, "args_schema")
            else "give it a function (def or async def)"
        )
        raise ConfigurationError(
            f"@{decorator} decorates functions; this is {type(function).__name__}: {hint}."
        )


def _annotations(function: Callable[..., Any]) -> dict[str, Any]:
    """Resolve annotations one by one, so that one unknown name does not spoil the others."""
    unresolved: dict[str, Any] = getattr(function, "__annotations__", {})
    namespace = getattr(inspect.unwrap(function), "__globals__", {})
    return {name: _resolved(annotation, namespace) for name, annotation in unresolved.items()}


def _resolved(annotation: Any, namespace: dict[str, Any]) -> Any:
    """Resolve one annotation; what is imported for type checkers only stays as it is written."""
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    try:
        return typing.get_type_hints(holder, namespace, include_extras=True)["it"]
    except (NameError, TypeError, AttributeError):
        return annotation


def _takes(
    first: inspect.Parameter | None,
    annotations: Mapping[str, Any],
    name: str,
    decorator: str,
    *,
    is_async: bool,
) -> Takes:
    wanted = "AsyncSession" if is_async else "Session"
    remote = decorator == "ledger.remote"
    example = f"def {name}({'effect: Effect' if remote else f'session: {wanted}'}, /, ...)"
    if first is None:
        raise ConfigurationError(f"{name} takes nothing. Write: {example}")
    if first.kind not in {first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD}:
        raise ConfigurationError(
            f"The first parameter of {name} ({first.name!r}) is given by position. Write: {example}"
        )
    annotation = annotations.get(first.name)
    if remote:
        if _type_name(annotation) != Effect.__name__:
            raise ConfigurationError(
                f"The first parameter of {name} must be annotated as Effect: it holds the "
                f"idempotency key to send. Write: {example}"
            )
        return Takes.EFFECT
    takes, takes_async = _first_of(annotation) or (None, is_async)
    if takes is None:
        raise ConfigurationError(
            f"The first parameter of {name} ({first.name!r}) must be annotated as Session, "
            "Connection, AsyncSession or AsyncConnection of SQLAlchemy: it carries the transaction "
            f"that the effect and its record share. Write: {example}"
        )
    if takes_async != is_async:
        raise ConfigurationError(
            f"{name} is {'async' if is_async else 'sync'}, but its first parameter is "
            f"{_type_name(annotation)}. Write: {example}"
        )
    return takes


def _first_of(annotation: Any) -> tuple[Takes, bool] | None:
    """Recognise SQLAlchemy's classes and their subclasses, by name, without importing asyncio's."""
    classes = annotation.__mro__ if isinstance(annotation, type) else ()
    names = [kind.__name__ for kind in classes] or [_type_name(annotation)]
    return next((_FIRST[name] for name in names if name in _FIRST), None)


def _type_name(annotation: Any) -> str:
    if isinstance(annotation, str):
        return annotation.rpartition(".")[2].strip("'\"")
    return getattr(annotation, "__name__", str(annotation))


def function_of(
    do: Callable[[Any], Any], operation: str, names: tuple[str, ...], *, is_async: bool
) -> Callable[..., Any]:
    """Make a function of the decorators' form of one that takes only what it is given.

    Args:
        do: Brings the effect about.
        operation: What the function is called.
        names: Names of the arguments that enter the fingerprint; ``do`` does not get them.
        is_async: The colour wanted.

    Raises:
        ConfigurationError: ``do`` is no function of one argument, or of the other colour.

    """
    if not callable(do):
        raise ConfigurationError(f"do= of {operation} is a function; it is {do!r}.")
    if inspect.iscoroutinefunction(do) and not is_async:
        raise ConfigurationError(f"do= of {operation} is async: write `await ledger.aonce(...)`.")
    annotations = _annotations(do)
    given = next(iter(inspect.signature(do).parameters), None)
    first = annotations.get(given, _SESSIONS[is_async]) if given else _SESSIONS[is_async]

    def blocking(first: Any, /, **_: Any) -> Any:
        return do(first)

    async def awaiting(first: Any, /, **_: Any) -> Any:
        return await do(first)

    made: Any = awaiting if is_async else blocking
    made.__name__ = operation
    made.__annotations__ = {"first": first, "return": annotations.get("return", Any)}
    shown = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in names]
    given_first = inspect.Parameter("first", inspect.Parameter.POSITIONAL_ONLY, annotation=first)
    made.__signature__ = inspect.Signature([given_first, *shown])
    function: Callable[..., Any] = made
    return function
