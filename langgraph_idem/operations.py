"""A decorated function, understood: what it takes, how its effects are keyed, what is seen."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from langgraph_idem import advice, keys
from langgraph_idem.decisions import Call
from langgraph_idem.effects import Kind
from langgraph_idem.errors import ConfigurationError, InvalidArguments, MissingKey
from langgraph_idem.keys import GLOBAL, PER_CALL

if TYPE_CHECKING:
    from langgraph_idem.ports import CallContext
    from langgraph_idem.shapes import Shape

KeySpec = tuple[str, ...] | Callable[..., Any] | Any
"""Argument names, a callable over the arguments (and the context), or PER_CALL."""


ScopeSpec = str | Callable[..., Any]
"""``"global"``, ``"thread"``, or a callable over the arguments (and the context)."""


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
            attempt_id=os.urandom(16).hex(),
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
        if self.key is PER_CALL:
            return keys.key_text(_per_call(context, self.name))
        if callable(self.key):
            bound.apply_defaults()
            return keys.key_text(_asked(self.key, bound.arguments, context))
        return keys.key_text([self._part(name, bound) for name in self.key])

    def _part(self, name: str, bound: inspect.BoundArguments) -> Any:
        default = self.shape.signature.parameters[name].default
        value = bound.arguments.get(name, default)
        if value is None or (isinstance(value, str) and not value.strip()):
            raise MissingKey(
                f"{self.name} is keyed by {name!r}, which is {value!r}: it names no effect. Give "
                f"{name!r} a value.",
                operation=self.name,
            )
        return value

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
    parameters = inspect.signature(spec).parameters.values()
    wants_context = sum(one.default is one.empty for one in parameters) > 1
    return spec(dict(arguments), context) if wants_context else spec(dict(arguments))


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
