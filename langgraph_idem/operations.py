"""A decorated function, understood: what it takes, how its effects are keyed, what is seen."""

from __future__ import annotations

import contextlib
import inspect
import json
import types
import typing
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from langgraph_idem import advice, keys
from langgraph_idem.decisions import Call
from langgraph_idem.effects import BY_A_PERSON, Effect, Kind, State
from langgraph_idem.errors import ConfigurationError, InvalidArguments, MissingKey
from langgraph_idem.keys import GLOBAL, PER_CALL
from langgraph_idem.sql.sites import Takes

if TYPE_CHECKING:
    from langgraph_idem.ports import CallContext, Host

KeySpec = tuple[str, ...] | Callable[..., Any] | Any
"""Argument names, a callable over the arguments (and the context), or PER_CALL."""
ScopeSpec = str | Callable[..., Any]
"""``"global"``, ``"thread"``, or a callable over the arguments (and the context)."""

_FIRST: Final[Mapping[str, tuple[Takes, bool]]] = {
    "Session": (Takes.SESSION, False),
    "Connection": (Takes.CONNECTION, False),
    "AsyncSession": (Takes.SESSION, True),
    "AsyncConnection": (Takes.CONNECTION, True),
}
"""What the annotation of the first parameter means: what is given, and in which colour."""


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

    @property
    def visible(self) -> list[str]:
        """Names of the parameters that the model (or the caller) fills in."""
        return [name for name in self.signature.parameters if name not in self.injected]

    @property
    def returns(self) -> Any:
        """The return annotation, as the codec needs it."""
        return self.annotations.get("return", inspect.Signature.empty)


@dataclass(frozen=True)
class Operation:
    """A kind of effect.

    Attributes:
        name: Stable across refactorings: it is part of every key.
        kind: Transactional, remote or staged.
        shape: The function's signature.
        key: How its effects are keyed.
        scope: Whose they are.
        ignore: Arguments that do not matter for the fingerprint.
        lease_seconds: How long a claim is presumed alive (remote only).

    """

    name: str
    kind: Kind
    shape: Shape
    key: KeySpec
    scope: ScopeSpec = GLOBAL
    ignore: frozenset[str] = frozenset()
    lease_seconds: float | None = None

    def call(
        self, bound: inspect.BoundArguments, context: CallContext, *, keep_arguments: bool
    ) -> Call:
        """Make the request that one call of the function stands for.

        Raises:
            MissingKey: The arguments or the context do not make up a key.
            InvalidArguments: The arguments have no canonical form.

        """
        canonical = keys.canonical_json(self._that_matter(bound))
        scope, key = self._scope(bound, context), self._key(bound, context)
        keys.check_size(scope, self.name, key)
        return Call(
            scope=scope,
            operation=self.name,
            key=key,
            kind=self.kind,
            fingerprint=keys.fingerprint(canonical),
            arguments=canonical if keep_arguments else None,
            attempt_id=uuid.uuid4().hex,
            origin=context.origin,
            lease_seconds=self.lease_seconds,
            told=self._told(bound) if self.kind is Kind.REMOTE else "{}",
        )

    def _told(self, bound: inspect.BoundArguments) -> str:
        """Write down what a look-up may want to know; what has no plain form is left out."""
        bound.apply_defaults()
        plain: dict[str, Any] = {}
        for name in self.shape.visible:
            with contextlib.suppress(InvalidArguments):
                plain |= json.loads(keys.canonical_json({name: bound.arguments[name]}))
        return json.dumps(plain)

    def shown(self, bound: inspect.BoundArguments) -> dict[str, Any]:
        """Return all that the caller gave, defaults included, as a person is to see it.

        What has no plain form is left out; it can only be an argument that does not matter.
        """
        bound.apply_defaults()
        plain: dict[str, Any] = {}
        for name in self.shape.visible:
            with contextlib.suppress(InvalidArguments, KeyError):
                plain |= json.loads(keys.canonical_json({name: bound.arguments[name]}))
        return plain

    def _that_matter(self, bound: inspect.BoundArguments) -> dict[str, Any]:
        """Leave out what is ignored, injected, or equal to its default.

        An argument at its default is left out so that a later release of the tool may add an
        optional parameter without making a stranger of every effect in flight.
        """
        parameters = self.shape.signature.parameters
        return {
            name: value
            for name, value in bound.arguments.items()
            if name not in self.ignore
            and name not in self.shape.injected
            and not _is_default(value, parameters[name].default)
        }

    def _key(self, bound: inspect.BoundArguments, context: CallContext) -> str:
        bound.apply_defaults()
        if self.key is PER_CALL:
            return keys.key_text(_per_call(context, self.name))
        if callable(self.key):
            return keys.key_text(_asked(self.key, bound.arguments, context))
        return keys.key_text(tuple(_part(self.name, name, bound.arguments) for name in self.key))

    def _scope(self, bound: inspect.BoundArguments, context: CallContext) -> str:
        if callable(self.scope):
            bound.apply_defaults()
            told = _asked(self.scope, bound.arguments, context)
            return keys.name_text("scope", told, keys.MAX_SCOPE)
        if self.scope != "thread":
            return self.scope
        if context.origin.thread_id is None:
            raise MissingKey(
                f"{self.name} has scope='thread', but is called outside of a LangGraph thread. "
                "Call it in a graph with a thread_id, or give it another scope.",
                operation=self.name,
            )
        return keys.name_text("scope", f"thread:{context.origin.thread_id}", keys.MAX_SCOPE)


def _is_default(value: Any, default: Any) -> bool:
    """Compare as the fingerprint does: ``1`` is ``1.0`` there, but not ``True``."""
    if default is inspect.Parameter.empty:
        return False
    try:
        return value is default or _canonical(value) == _canonical(default)
    except InvalidArguments:
        return False


def _canonical(value: Any) -> str:
    return keys.canonical_json({"": value})


def _part(operation: str, name: str, arguments: Mapping[str, Any]) -> Any:
    value = arguments[name]
    if value is None or (isinstance(value, str) and not value.strip()):
        raise MissingKey(
            f"{operation} is keyed by {name!r}, which is {value!r}: it names no effect. Give "
            f"{name!r} a value.",
            operation=operation,
        )
    return value


def _per_call(context: CallContext, operation: str) -> tuple[str, str, str]:
    origin = context.origin
    if origin.thread_id is None or origin.tool_call_id is None or origin.message_id is None:
        raise MissingKey(
            f"{operation} is keyed PER_CALL, which needs a tool call in a LangGraph thread: run "
            "it through IdempotentToolNode (or the middleware) in a graph with a checkpointer and "
            "a thread_id. Better: key it by an argument that names the effect.",
            operation=operation,
        )
    advice.per_call(operation, context.durability)
    return origin.thread_id, origin.message_id, origin.tool_call_id


def _asked(spec: Callable[..., Any], arguments: Mapping[str, Any], context: CallContext) -> Any:
    """Call a user's key or scope function with the arguments and, if it wants it, the context."""
    wants_context = len(inspect.signature(spec).parameters) > 1
    return spec(dict(arguments), context) if wants_context else spec(dict(arguments))


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


def check_key(key: KeySpec, shape: Shape, decorator: str) -> KeySpec:
    """Check a key against the function's parameters.

    Raises:
        ConfigurationError: It names no parameter, or one that the framework fills in.

    """
    if key is PER_CALL or (callable(key) and not isinstance(key, type)):
        return key
    names = (key,) if isinstance(key, str) else key
    if not isinstance(names, (tuple, list)) or not names:
        raise ConfigurationError(
            f"key={key!r} of {shape.name} is no key. Write @{decorator}(key=({_choice(shape)},)) "
            "with the arguments that name the effect, a callable over the arguments, or PER_CALL."
        )
    check_names("key", tuple(names), shape)
    return tuple(names)


def check_names(what: str, names: tuple[str, ...], shape: Shape) -> None:
    """Check that names are parameters which the model fills in.

    Raises:
        ConfigurationError: One is not.

    """
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    named = {n for n in shape.visible if shape.signature.parameters[n].kind not in kinds}
    for name in names:
        if name not in named:
            raise ConfigurationError(
                f"{what}= of {shape.name} names {name!r}, which is no argument of it. Its "
                f"arguments are: {', '.join(sorted(named)) or '(none)'}."
            )


def check_policy(refusals: Any, on_replay: Any, shape: Shape) -> None:
    """Check what would otherwise fail when it is needed: at the first refusal or replay.

    Raises:
        ConfigurationError: With what to write instead.

    """
    if not isinstance(refusals, tuple) or not all(
        isinstance(kind, type) and issubclass(kind, BaseException) for kind in refusals
    ):
        raise ConfigurationError(
            f"refusals= of {shape.name} is a tuple of exception classes, like (OutOfStock,); it "
            f"is {refusals!r}."
        )
    if not callable(on_replay) and on_replay not in {"return", "raise"}:
        raise ConfigurationError(
            f"on_replay= of {shape.name} is 'return', 'raise' or a callable that gets the "
            f"receipt; it is {on_replay!r}."
        )


def check_approval(approval: Any, shape: Shape) -> None:
    """Check what would otherwise let everything pass, or nothing.

    Raises:
        ConfigurationError: It is neither True, False nor a sync function.

    """
    if inspect.iscoroutinefunction(approval) or not (
        isinstance(approval, bool) or callable(approval)
    ):
        raise ConfigurationError(
            f"approval= of {shape.name} is True, False or a plain function (def) that gets the "
            f"arguments as a dict and returns whether a person is to be asked; it is {approval!r}."
        )


def _choice(shape: Shape) -> str:
    return repr(shape.visible[0]) if shape.visible else "'order_id'"


def operation_of(
    kind: Kind,
    shape: Shape,
    *,
    name: str | None,
    key: KeySpec,
    scope: ScopeSpec,
    ignore: tuple[str, ...],
    lease: float | None = None,
) -> Operation:
    """Make the operation that a decorator describes, or say what to write instead.

    Raises:
        ConfigurationError: A name, key or scope is of no use.

    """
    if not isinstance(ignore, tuple):
        raise ConfigurationError(
            f"ignore= of {shape.name} is a tuple of argument names, like ('memo',); it is "
            f"{ignore!r}."
        )
    check_names("ignore", ignore, shape)
    try:
        return Operation(
            name=keys.name_text("operation", name or shape.name, keys.MAX_OPERATION),
            kind=kind,
            shape=shape,
            key=check_key(key, shape, f"ledger.{kind}"),
            scope=scope if callable(scope) else keys.name_text("scope", scope, keys.MAX_SCOPE),
            ignore=frozenset(ignore),
            lease_seconds=lease,
        )
    except MissingKey as error:
        raise ConfigurationError(f"{shape.name}: {error}") from error


def seconds_of(what: str, value: timedelta | float | None, shape: Shape) -> float | None:
    """Turn a length of time into seconds; None stays None, 0 stays 0.

    Raises:
        ConfigurationError: It is negative or no length of time.

    """
    seconds: Any = value.total_seconds() if isinstance(value, timedelta) else value
    if seconds is None:
        return None
    is_number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if not is_number or not seconds >= 0:
        raise ConfigurationError(
            f"{what}= of {shape.name} is a timedelta or seconds, 0 or more, or None; it is "
            f"{value!r}."
        )
    return float(seconds)


def check_remote(on_unknown: Any, lookup: Any, classify: Any, shape: Shape) -> None:
    """Check what would otherwise fail when an outcome is unknown, which is too late.

    Raises:
        ConfigurationError: With what to write instead.

    """
    if on_unknown not in {"interrupt", "raise", "tell_model"}:
        raise ConfigurationError(
            f"on_unknown= of {shape.name} is 'interrupt', 'raise' or 'tell_model'; it is "
            f"{on_unknown!r}."
        )
    for name, function in (("lookup", lookup), ("classify", classify)):
        if function is not None and not callable(function):
            raise ConfigurationError(f"{name}= of {shape.name} is a function; it is {function!r}.")
    if inspect.iscoroutinefunction(lookup) and not shape.is_async:
        raise ConfigurationError(
            f"{shape.name} is sync, so its lookup= must be too: write `def "
            f"{lookup.__name__}(effect: Effect)`."
        )


def check_guard(kind: str) -> None:
    """Refuse kinds that a tool made elsewhere cannot be.

    Raises:
        ConfigurationError: With what to write instead.

    """
    if kind != Kind.REMOTE.value:
        raise ConfigurationError(
            f"ledger.guard(kind={kind!r}): a tool that was made elsewhere knows nothing of our "
            "transaction, so it can only be kind='remote'. For a transactional effect, write the "
            "tool yourself and decorate it with ledger.transactional."
        )


def outcome_of(said: State | str) -> State:
    """Read what a person said of an outcome.

    Raises:
        ConfigurationError: It is none of the words that a person may say.

    """
    words = sorted(str(state) for state in BY_A_PERSON)
    if str(said) not in words:
        raise ConfigurationError(
            f"An outcome is settled as {', '.join(words)}; {said!r} is none of them."
        )
    return State(str(said))


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


_SESSIONS: Final = {False: "Session", True: "AsyncSession"}
"""What ``do`` gets where its parameter has no annotation."""
