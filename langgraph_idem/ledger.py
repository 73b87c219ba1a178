"""The object that a user makes: it binds a database, and its decorators guard tools."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Concatenate, Final, Literal, ParamSpec, Protocol, TypeVar, overload

from langgraph_idem import keys, protocols
from langgraph_idem.codec import Codec, PydanticCodec
from langgraph_idem.effects import EffectRecord, Kind, Origin, Receipt, State
from langgraph_idem.errors import (
    AlreadyDone,
    ConfigurationError,
    EffectBusy,
    OutcomeUnknown,
    RecordedFailure,
)
from langgraph_idem.operations import Operation, check_key, check_names, check_policy, shape_of
from langgraph_idem.ports import CallContext, Host, NoHost, Observer, run_blocking
from langgraph_idem.sql import migrations, queries
from langgraph_idem.sql.engines import Engines
from langgraph_idem.sql.schema import ledger_tables
from langgraph_idem.sql.sites import AwaitingSite, BlockingSite, Body
from langgraph_idem.sql.statements import LedgerStatements

if TYPE_CHECKING:
    import inspect
    from collections.abc import Awaitable, Sequence
    from types import TracebackType

    import sqlalchemy as sa
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_sessionmaker
    from sqlalchemy.orm import Session, sessionmaker

    from langgraph_idem.decisions import Call
    from langgraph_idem.events import Event
    from langgraph_idem.operations import KeySpec, ScopeSpec
    from langgraph_idem.ports import Site

    Bind = str | sa.URL | sa.Engine | AsyncEngine | sessionmaker[Any] | async_sessionmaker[Any]

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

OnReplay = Literal["return", "raise"] | Callable[[Receipt], Any]

_log = logging.getLogger("langgraph_idem")
_installed: dict[str, Host] = {"host": NoHost()}
WAIT_SECONDS: Final = 30.0


def install_host(host: Host) -> None:
    """Say in which framework effects run from now on. ``langgraph_idem.tools`` does so."""
    _installed["host"] = host


class TransactionalDecorator(Protocol):
    """Hides the first parameter of a function, in either colour."""

    @overload
    def __call__(self, function: Callable[Concatenate[AsyncSession, P], Awaitable[R]], /) -> Callable[P, Awaitable[R]]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[AsyncConnection, P], Awaitable[R]], /) -> Callable[P, Awaitable[R]]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Session, P], R], /) -> Callable[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[sa.Connection, P], R], /) -> Callable[P, R]: ...


@dataclass(frozen=True)
class Guarded:
    """A guarded function as the ledger keeps it: the operation and how to carry it out."""

    operation: Operation
    rules: protocols.Rules
    on_replay: OnReplay


class Ledger:
    """Remembers which effects took hold, in the database where they take hold.

    Args:
        bind: A database URL (both colours, connects when first needed), or your own Engine,
            AsyncEngine, sessionmaker or async_sessionmaker, which is never closed here.
        prefix: What the names of the ledger's tables begin with.
        schema: The database schema of the ledger's tables; None: the connection's own.
        wait: Seconds that the loser of a race waits for the winner before ``EffectBusy``.
        keep_arguments: Whether the arguments that matter are kept beside the fingerprint, so that
            a person who settles an unknown outcome sees what it was about.
        observers: Called with every event, after the fact.

    Raises:
        ConfigurationError: The bind is of no use, or its database is not supported.

    """

    def __init__(
        self,
        bind: Bind,
        *,
        prefix: str = "idem_",
        schema: str | None = None,
        wait: float = WAIT_SECONDS,
        keep_arguments: bool = True,
        observers: Sequence[Observer] = (),
    ) -> None:
        self.tables = ledger_tables(prefix, schema)
        self._engines = Engines(bind, wait)
        self._statements = LedgerStatements(self.tables, self._engines.dialect, wait)
        self._keep_arguments = keep_arguments
        self._observers = tuple(observers)

    def setup(self) -> None:
        """Create the ledger's tables, or bring older ones up to date. Safe to call every time."""
        run_blocking(self._set_up(BlockingSite(self._engines, _NOTHING)))

    async def asetup(self) -> None:
        """Create the ledger's tables, or bring older ones up to date. Safe to call every time."""
        await self._set_up(AwaitingSite(self._engines, _NOTHING))

    def transactional(
        self,
        *,
        key: KeySpec,
        operation: str | None = None,
        scope: ScopeSpec = keys.GLOBAL,
        ignore: tuple[str, ...] = (),
        refusals: tuple[type[BaseException], ...] = (),
        on_replay: OnReplay = "return",
    ) -> TransactionalDecorator:
        """Guard a function that writes to the ledger's own database: exactly once.

        The function's first parameter, annotated as ``Session``, ``Connection``, ``AsyncSession``
        or ``AsyncConnection``, is given the transaction and hidden from callers and the model.

        Args:
            key: Which arguments name the effect: a tuple of their names, a callable over the
                arguments as a dict (and the call's context), or ``PER_CALL``.
            operation: Name of the kind of effect, stable for ever; default: the function's name.
            scope: Whose effect it is: ``"global"``, ``"thread"``, or a callable like ``key``.
            ignore: Arguments that may differ between two calls for the same effect.
            refusals: Exceptions by which the tool says no for good. They are recorded, and raised
                as ``RecordedFailure`` the next time. Any other exception rolls back and is forgotten.
            on_replay: ``"return"`` the recorded result, ``"raise"`` ``AlreadyDone``, or a callable
                that gets the receipt (with the result) and returns what to return instead.

        Raises:
            ConfigurationError: When decorating, with what to write instead.

        """

        def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
            shape = shape_of(function, self._host, "ledger.transactional")
            self._engines.check_colour(is_async=shape.is_async)
            check_names("ignore", ignore, shape)
            check_policy(refusals, on_replay, shape)
            name = keys.name_text("operation", operation or shape.name, keys.MAX_OPERATION)
            made = Operation(
                name=name,
                kind=Kind.TRANSACTIONAL,
                shape=shape,
                key=check_key(key, shape, "ledger.transactional"),
                scope=scope if callable(scope) else keys.name_text("scope", scope, keys.MAX_SCOPE),
                ignore=frozenset(ignore),
            )
            return self._wrapped(Guarded(made, self._rules(made, refusals), on_replay))

        return decorate  # type: ignore[return-value]  # one implementation of four overloads

    def effect(
        self, operation: str, key: object, *, scope: str = keys.GLOBAL
    ) -> EffectRecord | None:
        """Look one effect up.

        Args:
            operation: Its operation.
            key: Its key: a text as the library shows it, or a tuple of the parts.
            scope: Whose it is.

        Returns:
            The record, or None if no such effect was ever claimed.

        """
        text = keys.shown_key(key)
        return self._asked(lambda conn: queries.one(conn, self.tables, scope, operation, text))

    async def aeffect(
        self, operation: str, key: object, *, scope: str = keys.GLOBAL
    ) -> EffectRecord | None:
        """Look one effect up, as :meth:`effect` does."""
        text = keys.shown_key(key)
        return await self._aasked(
            lambda conn: queries.one(conn, self.tables, scope, operation, text)
        )

    def effects(self, **filters: Any) -> list[EffectRecord]:
        """List effects, the latest first.

        Args:
            **filters: ``scope``, ``operation``, ``state``, ``kind``, ``thread_id``: only these;
                ``limit``: at most so many (default 1000).

        """
        return self._asked(lambda conn: queries.many(conn, self.tables, **filters))

    async def aeffects(self, **filters: Any) -> list[EffectRecord]:
        """List effects, as :meth:`effects` does."""
        return await self._aasked(lambda conn: queries.many(conn, self.tables, **filters))

    def close(self) -> None:
        """Close the connections that were opened here; your own engine stays open."""
        self._engines.close()

    async def aclose(self) -> None:
        """Close the connections that were opened here, those of the running loop included."""
        await self._engines.aclose()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> Ledger:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    @property
    def _host(self) -> Host:
        return _installed["host"]

    def _rules(
        self, operation: Operation, refusals: tuple[type[BaseException], ...] = ()
    ) -> protocols.Rules:
        returns = operation.shape.returns
        codec: Codec | None = self._host.codec(operation.name, returns)
        return protocols.Rules(
            statements=self._statements,
            codec=codec or PydanticCodec(operation.name, returns),
            observe=self._observe,
            refusals=refusals,
            is_control_flow=self._host.is_control_flow,
        )

    def _wrapped(self, guarded: Guarded) -> Callable[..., Any]:
        """Make the function that callers see: without its first parameter, in its own colour."""
        shape = guarded.operation.shape

        @functools.wraps(shape.function)
        def blocking(*args: Any, **kwargs: Any) -> Any:
            bound, body = _bound(guarded, args, kwargs)
            return run_blocking(self._carried_out(guarded, BlockingSite(self._engines, body), bound))

        @functools.wraps(shape.function)
        async def awaiting(*args: Any, **kwargs: Any) -> Any:
            bound, body = _bound(guarded, args, kwargs)
            return await self._carried_out(guarded, AwaitingSite(self._engines, body), bound)

        wrapper: Any = awaiting if shape.is_async else blocking
        wrapper.__signature__ = shape.signature
        wrapper.__annotations__ = dict(shape.annotations)
        wrapper.__idempotent__ = guarded
        del wrapper.__wrapped__  # or inspect would find the hidden parameter again
        guarded_function: Callable[..., Any] = wrapper
        return guarded_function

    async def _carried_out(self, guarded: Guarded, site: Site, bound: inspect.BoundArguments) -> Any:
        context = self._host.context()
        call = guarded.operation.call(bound, context, keep_arguments=self._keep_arguments)
        try:
            done = await protocols.transactional(site, call, guarded.rules)
        except (RecordedFailure, OutcomeUnknown, EffectBusy) as error:
            context.receipts.append(_receipt(call, _OUTCOMES[type(error)], replayed=True))
            raise
        return _delivered(guarded, call, context, done)

    async def _set_up(self, site: Site) -> None:
        await protocols.own_work(
            site, lambda conn: migrations.migrate(conn, self.tables), keep=True
        )

    def _asked(self, question: Callable[[sa.Connection], T]) -> T:
        site = BlockingSite(self._engines, _NOTHING)
        return run_blocking(protocols.own_work(site, question, keep=False))

    async def _aasked(self, question: Callable[[sa.Connection], T]) -> T:
        site = AwaitingSite(self._engines, _NOTHING)
        return await protocols.own_work(site, question, keep=False)

    def _observe(self, event: Event) -> None:
        for observer in self._observers:
            try:
                observer(event)
            except Exception:
                _log.exception("An observer failed on %r; the effect is not affected.", event)


_NOTHING: Final[Any] = None
_OUTCOMES: Final[dict[type[Exception], State]] = {
    RecordedFailure: State.FAILED,
    OutcomeUnknown: State.UNKNOWN,
    EffectBusy: State.CLAIMED,
}


def _bound(guarded: Guarded, args: Any, kwargs: Any) -> tuple[inspect.BoundArguments, Body]:
    shape = guarded.operation.shape
    return shape.signature.bind(*args, **kwargs), Body(shape.function, shape.takes, args, kwargs)


def _receipt(
    call: Call, outcome: State, *, replayed: bool, result: Any = None, record: EffectRecord | None = None
) -> Receipt:
    return Receipt(
        operation=call.operation,
        key=call.key,
        scope=call.scope,
        outcome=outcome,
        replayed=replayed,
        result=result,
        relation=record.origin.relation_of(call.origin) if record else None,
        origin=record.origin if record else call.origin,
        settled_at=record.settled_at if record else None,
    )


def _delivered(guarded: Guarded, call: Call, context: CallContext, done: protocols.Done) -> Any:
    """Hand the result and its receipt over, by the replay policy."""
    record = done.record
    receipt = _receipt(
        call, State.SUCCEEDED, replayed=record is not None, result=done.value, record=record
    )
    context.receipts.append(receipt)
    if record is None or guarded.on_replay == "return":
        return done.value
    if callable(guarded.on_replay):
        return guarded.on_replay(receipt)
    raise AlreadyDone(f"{call.operation} for {call.key} was done before.", receipt=receipt)
