"""The object that a user makes: it binds a database, and its decorators guard tools."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar

from typing_extensions import Self

from langgraph_idem import checks, keys, operations, protocols, shapes
from langgraph_idem.classify import classify as classify_by_name
from langgraph_idem.codec import PydanticCodec
from langgraph_idem.decisions import Word
from langgraph_idem.effects import Effect, EffectRecord, Kind, State
from langgraph_idem.guarded import Approval, Guarded, OnReplay, OnUnknown
from langgraph_idem.ports import Host, NoHost, ToolGuard, run_blocking
from langgraph_idem.remote import RemoteRules
from langgraph_idem.resolving import settle
from langgraph_idem.sql import migrations, queries
from langgraph_idem.sql.engines import Engines
from langgraph_idem.sql.schema import ledger_tables
from langgraph_idem.sql.sites import Body, Sites, Takes
from langgraph_idem.sql.statements import LedgerStatements

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from types import TracebackType

    import sqlalchemy as sa
    from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker
    from sqlalchemy.orm import sessionmaker

    from langgraph_idem.decorators import RemoteDecorator, TransactionalDecorator
    from langgraph_idem.effects import Verdict
    from langgraph_idem.events import Event
    from langgraph_idem.operations import KeySpec, Operation, ScopeSpec
    from langgraph_idem.ports import Observer, Site

    Bind = str | sa.URL | sa.Engine | AsyncEngine | sessionmaker[Any] | async_sessionmaker[Any]

T = TypeVar("T")

_log = logging.getLogger("langgraph_idem")
_installed: dict[str, Host] = {"host": NoHost()}

WAIT_SECONDS: Final = 30.0
"""How long the loser of a race waits for the winner, unless told otherwise."""
LEASE: Final = timedelta(minutes=5)
"""How long a claim of a remote effect is presumed alive, unless told otherwise.

Longer than the usual time-outs of HTTP clients, so that a slow request is not taken for a lost one.
"""

_NO_BODY: Final = Body(lambda _first: None, Takes.CONNECTION)


def install_host(host: Host) -> None:
    """Say in which framework effects run from now on. ``langgraph_idem.tools`` does so."""
    _installed["host"] = host


def installed_host() -> Host:
    """Return the framework that effects run in."""
    return _installed["host"]


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
        self._sites = Sites(self._engines)
        self._statements = LedgerStatements(self.tables, self._engines.dialect, wait)
        self._wait = wait
        self._keep_arguments = keep_arguments
        self._observers = tuple(observers)

    @property
    def sqlite_file(self) -> str | None:
        """Path of the ledger's SQLite file; None if it is in another database."""
        return self._engines.sqlite_file

    def setup(self) -> None:
        """Create the ledger's tables, or bring older ones up to date. Safe to call every time."""
        run_blocking(protocols.own_work(self._blocking(), self._migrate, keep=True))

    async def asetup(self) -> None:
        """Create the ledger's tables, or bring older ones up to date. Safe to call every time."""
        await protocols.own_work(self._awaiting(), self._migrate, keep=True)

    def transactional(
        self,
        *,
        key: KeySpec,
        operation: str | None = None,
        scope: ScopeSpec = keys.GLOBAL,
        ignore: tuple[str, ...] = (),
        refusals: tuple[type[BaseException], ...] = (),
        on_replay: OnReplay = "return",
        approval: Approval = False,
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
                as ``RecordedFailure`` the next time. Any other exception rolls back and is
                forgotten.
            on_replay: ``"return"`` the recorded result, ``"raise"`` ``AlreadyDone``, or a callable
                that gets the receipt (with the result) and returns what to return instead.
            approval: True: a person is asked before the effect, through the graph; a callable
                over the arguments as a dict: asked where it returns True. The answer counts for
                this key and these arguments only.

        Raises:
            ConfigurationError: When decorating, with what to write instead.

        """

        def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
            shape = shapes.shape_of(function, installed_host(), "ledger.transactional")
            checks.check_policy(refusals, on_replay, shape)
            checks.check_approval(approval, shape)
            made = operations.operation_of(
                Kind.TRANSACTIONAL, shape, name=operation, key=key, scope=scope, ignore=ignore
            )
            rules = protocols.Rules(**self._common(made), refusals=refusals)
            return self._guarded(made, rules, on_replay=on_replay, approval=approval).wrapped()

        return decorate

    def remote(  # noqa: PLR0913 - each is a question that only the user can answer
        self,
        *,
        key: KeySpec,
        operation: str | None = None,
        scope: ScopeSpec = keys.GLOBAL,
        ignore: tuple[str, ...] = (),
        lookup: Callable[[Effect], Any] | None = None,
        provider_keeps_key: timedelta | float | None = None,
        lease: timedelta | float | None = LEASE,
        classify: Callable[[BaseException], Verdict | None] | None = None,
        refusals: tuple[type[BaseException], ...] = (),
        on_unknown: OnUnknown = "interrupt",
        on_replay: OnReplay = "return",
        approval: Approval = False,
        wait: float | None = None,
    ) -> RemoteDecorator:
        """Guard a function that calls somebody else's API: at most once, and never a guess.

        The function's first parameter is an ``Effect``, hidden from callers and the model: send
        its ``idempotency_key`` to the provider.

        Args:
            key: As in :meth:`transactional`.
            operation: As in :meth:`transactional`; it is part of the idempotency key.
            scope: As in :meth:`transactional`.
            ignore: As in :meth:`transactional`.
            lookup: Asks the provider whether the effect took hold: gets the ``Effect``, answers
                ``Found(result)``, ``ABSENT`` or ``DONT_KNOW``. What it raises means "don't know".
            provider_keeps_key: How long the provider remembers an idempotency key (timedelta or
                seconds), counted from the first attempt. None or 0: it does not, so that the key
                is never sent again.
            lease: How long an attempt is presumed alive (timedelta or seconds). Longer than your
                client's time-out, which must be under nine tenths of it. 0: not at all; None: for
                ever, until a person settles it.
            classify: Says what an exception means: ``Verdict.NOT_SENT``, ``REFUSED`` or
                ``UNKNOWN``; None: ask the defaults, which know httpx, requests, aiohttp, the
                Stripe SDK, botocore and smtplib.
            refusals: Exceptions of your own by which the provider says no for good.
            on_unknown: When nobody at hand can know: ``"interrupt"`` asks a person through the
                graph (raises where there is no checkpointer), ``"raise"`` raises
                ``OutcomeUnknown``, ``"tell_model"`` lets the tool node tell the model.
            on_replay: As in :meth:`transactional`.
            approval: As in :meth:`transactional`.
            wait: Seconds to wait for another attempt's result; default: the ledger's.

        Raises:
            ConfigurationError: When decorating, with what to write instead.

        """

        def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
            shape = shapes.shape_of(function, installed_host(), "ledger.remote")
            checks.check_policy(refusals, on_replay, shape)
            checks.check_approval(approval, shape)
            checks.check_remote(on_unknown, lookup, classify, shape)
            made = operations.operation_of(
                Kind.REMOTE,
                shape,
                name=operation,
                key=key,
                scope=scope,
                ignore=ignore,
                lease=checks.seconds_of("lease", lease, shape),
            )
            kept = checks.seconds_of("provider_keeps_key", provider_keeps_key, shape)
            rules = RemoteRules(
                **self._common(made),
                refusals=refusals,
                classify=_classified(classify),
                has_lookup=lookup is not None,
                keeps_key=None if kept is None else timedelta(seconds=kept),
                wait_seconds=self._wait if wait is None else wait,
            )
            return self._guarded(
                made,
                rules,
                on_replay=on_replay,
                on_unknown=on_unknown,
                lookup=lookup,
                approval=approval,
            ).wrapped()

        return decorate

    def once(
        self,
        operation: str,
        *,
        key: object,
        do: Callable[[Any], T],
        arguments: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> T:
        """Bring about one effect inside a larger function.

        Args:
            operation: Name of the kind of effect.
            key: Which effect of it: a plain value, or a tuple of them.
            do: Brings it about; gets a ``Session``, or, by the annotation of its parameter, a
                ``Connection`` or (for a remote effect) an ``Effect``.
            arguments: What a second call must ask for too, by name; part of the fingerprint.
            **options: As in :meth:`transactional` or :meth:`remote`.

        Returns:
            What ``do`` returned, or the recorded result.

        Raises:
            ConfigurationError: ``do`` is async: use :meth:`aonce`.

        """
        made: Callable[..., T] = self._once(operation, key, do, arguments, options, is_async=False)
        return made(**(arguments or {}))

    async def aonce(
        self,
        operation: str,
        *,
        key: object,
        do: Callable[[Any], Awaitable[T]],
        arguments: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> T:
        """Bring about one effect inside a larger function, as :meth:`once` does.

        ``do`` is async, or returns an awaitable; it gets an ``AsyncSession``, or, by the annotation
        of its parameter, an ``AsyncConnection`` or an ``Effect``.
        """
        made = self._once(operation, key, do, arguments, options, is_async=True)
        value: T = await made(**(arguments or {}))
        return value

    def _once(
        self,
        operation: str,
        key: object,
        do: Callable[[Any], Any],
        arguments: Mapping[str, Any] | None,
        options: dict[str, Any],
        *,
        is_async: bool,
    ) -> Callable[..., Any]:
        function = shapes.function_of(do, operation, tuple(arguments or ()), is_async=is_async)
        takes_effect = function.__annotations__["first"] is Effect
        decorator: Any = self.remote if takes_effect else self.transactional
        made: Callable[..., Any] = decorator(
            key=lambda _arguments: key, operation=operation, **options
        )(function)
        return made

    def guard(
        self, tool: Any, *, kind: str = "remote", pass_key_as: str | None = None, **options: Any
    ) -> Any:
        """Guard a tool that cannot be decorated: one from a toolkit, or an MCP server's.

        Args:
            tool: A LangChain ``BaseTool``.
            kind: ``"remote"``, the only kind that a tool made elsewhere can be: it does not know
                our transaction.
            pass_key_as: Name of the tool's argument that takes the idempotency key; it is hidden
                from the model.
            **options: As in :meth:`remote`.

        Returns:
            A tool of the same name, description and arguments.

        Raises:
            ConfigurationError: With what to write instead.

        """
        checks.check_guard(kind)
        return installed_host().guard(tool, ToolGuard(pass_key_as, self.remote(**options)))

    def effect(
        self, operation: str, key: object, *, scope: str = keys.GLOBAL
    ) -> EffectRecord | None:
        """Look one effect up.

        Args:
            operation: Its operation.
            key: Its key: a text as the library shows it, or a tuple of the parts.
            scope: Whose it is.

        Returns:
            The record, or None if there is no such effect.

        """
        return self._asked(self._reading(scope, operation, key))

    async def aeffect(
        self, operation: str, key: object, *, scope: str = keys.GLOBAL
    ) -> EffectRecord | None:
        """Look one effect up, as :meth:`effect` does."""
        return await self._aasked(self._reading(scope, operation, key))

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

    def resolve(
        self,
        operation: str,
        key: object,
        outcome: State | str,
        *,
        scope: str = keys.GLOBAL,
        result: Any = None,
        note: str | None = None,
        by: str | None = None,
    ) -> EffectRecord:
        """Settle an unknown outcome by a person's word; the next resume goes on from it.

        Args:
            operation: The effect's operation.
            key: Its key: a text as the library shows it, or a tuple of the parts.
            outcome: ``"succeeded"`` (it happened), ``"failed"`` (it did not, and shall not), or
                ``"released"`` (it did not, and may be tried again).
            scope: Whose effect it is.
            result: What the tool would have returned; replays return it.
            note: Why; kept with the effect.
            by: Who says so; kept with the effect.

        Returns:
            The record as it is now.

        Raises:
            TransitionForbidden: The effect is not unknown, or there is none.

        """
        text, word = keys.shown_key(key), _word(operation, outcome, result, note, by)
        return run_blocking(
            settle(self._blocking(), self._statements, scope, operation, text, word)
        )

    async def aresolve(
        self,
        operation: str,
        key: object,
        outcome: State | str,
        *,
        scope: str = keys.GLOBAL,
        result: Any = None,
        note: str | None = None,
        by: str | None = None,
    ) -> EffectRecord:
        """Settle an unknown outcome by a person's word, as :meth:`resolve` does."""
        text, word = keys.shown_key(key), _word(operation, outcome, result, note, by)
        return await settle(self._awaiting(), self._statements, scope, operation, text, word)

    def close(self) -> None:
        """Close the connections that were opened here; your own engine stays open."""
        self._engines.close()

    async def aclose(self) -> None:
        """Close the connections that were opened here, those of the running loop included."""
        await self._engines.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    def _common(self, operation: Operation) -> dict[str, Any]:
        """Return what the rules of every kind need."""
        host, returns = installed_host(), operation.shape.returns
        return {
            "statements": self._statements,
            "codec": host.codec(operation.name, returns) or PydanticCodec(operation.name, returns),
            "observe": self._observe,
            "is_control_flow": host.is_control_flow,
            "reports_error": host.reports_error,
        }

    def _guarded(self, operation: Operation, rules: protocols.Rules, **policy: Any) -> Guarded:
        self._engines.check_colour(is_async=operation.shape.is_async)
        return Guarded(
            operation=operation,
            rules=rules,
            sites=self._sites,
            host=installed_host,
            keep_arguments=self._keep_arguments,
            **policy,
        )

    def _blocking(self) -> Site:
        return self._sites.blocking(_NO_BODY)

    def _awaiting(self) -> Site:
        return self._sites.awaiting(_NO_BODY)

    def _migrate(self, conn: sa.Connection) -> None:
        migrations.migrate(conn, self.tables)

    def _reading(
        self, scope: str, operation: str, key: object
    ) -> Callable[[sa.Connection], EffectRecord | None]:
        text = keys.shown_key(key)

        def read(conn: sa.Connection) -> EffectRecord | None:
            seen = self._statements.read(conn, scope, operation, text)
            return seen.record if seen is not None else None

        return read

    def _asked(self, question: Callable[[sa.Connection], T]) -> T:
        return run_blocking(protocols.own_work(self._blocking(), question, keep=False))

    async def _aasked(self, question: Callable[[sa.Connection], T]) -> T:
        return await protocols.own_work(self._awaiting(), question, keep=False)

    def _observe(self, event: Event) -> None:
        for observer in self._observers:
            try:
                observer(event)
            except Exception:  # noqa: BLE001 - whatever an observer does, the effect stands
                _log.exception("An observer failed on %r; the effect is not affected.", event)


def _classified(
    own: Callable[[BaseException], Verdict | None] | None,
) -> Callable[[BaseException], Verdict]:
    """Ask the user's classification first, the defaults where it has no opinion."""
    if own is None:
        return classify_by_name
    return lambda error: own(error) or classify_by_name(error)


def _word(
    operation: str, outcome: State | str, result: Any, note: str | None, by: str | None
) -> Word:
    said = checks.outcome_of(outcome)
    text = None if result is None else PydanticCodec(operation, Any).encode(result)
    return Word(said, text, by, note)
