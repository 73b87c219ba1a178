"""A guarded function: from the call that was made to the result that is handed over."""

from __future__ import annotations

import functools
import hashlib
import json
import typing
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from langgraph_idem import protocols
from langgraph_idem.codec import CODEC_VERSION
from langgraph_idem.decisions import Word
from langgraph_idem.effects import BY_A_PERSON, EffectRecord, Receipt, State
from langgraph_idem.errors import (
    AlreadyDone,
    ApprovalRejected,
    ConfigurationError,
    EffectBusy,
    ErrorReported,
    LedgerError,
    OutcomeUnknown,
    RecordedFailure,
    TransitionForbidden,
)
from langgraph_idem.ports import Question, run_blocking
from langgraph_idem.remote import RemoteRules, remote
from langgraph_idem.resolving import resolve
from langgraph_idem.sql.sites import Body

if TYPE_CHECKING:
    import inspect

    from langgraph_idem.decisions import Call, Seen
    from langgraph_idem.effects import Effect
    from langgraph_idem.operations import Operation
    from langgraph_idem.ports import CallContext, Host, Site
    from langgraph_idem.sql.sites import Sites

OnReplay = Literal["return", "raise"] | Callable[[Receipt], Any]
Approval = bool | Callable[[dict[str, Any]], bool]
OnUnknown = Literal["interrupt", "raise", "tell_model"]

UNKNOWN_OUTCOME: Final = "idempotency_unknown_outcome"
"""Type of the question about an outcome that nobody at hand can know."""

APPROVAL: Final = "idempotency_approval"
"""Type of the question whether an effect may be brought about."""
APPROVE: Final = "approve"
REJECT: Final = "reject"
UNNAMED: Final = "(a person who gave no name)"
_PAIR: Final = 2

_OUTCOMES: Final[dict[type[Exception], State]] = {
    RecordedFailure: State.FAILED,
    OutcomeUnknown: State.UNKNOWN,
    EffectBusy: State.CLAIMED,
}


@dataclass(frozen=True)
class Guarded:
    """A guarded function as the ledger keeps it.

    Attributes:
        operation: What kind of effect it brings about.
        rules: How to carry it out.
        sites: Where its calls run, and the database they are recorded in.
        host: Returns the framework it runs in.
        on_replay: What a caller gets who comes after the effect.
        on_unknown: What happens when nobody at hand can know.
        lookup: Asks the provider (remote effects only).
        approval: Whether a person is asked beforehand: always, or as a function of the arguments.
        keep_arguments: Whether the arguments are kept beside their fingerprint.

    """

    operation: Operation
    rules: protocols.Rules
    sites: Sites
    host: Callable[[], Host]
    on_replay: OnReplay = "return"
    on_unknown: OnUnknown = "interrupt"
    lookup: Callable[[Effect], Any] | None = None
    approval: Approval = False
    keep_arguments: bool = True

    def wrapped(self) -> Callable[..., Any]:
        """Make the function that callers see: without its first parameter, in its own colour."""
        shape = self.operation.shape

        @functools.wraps(shape.function)
        def blocking(*args: Any, **kwargs: Any) -> Any:
            bound, body = self._bound(args, kwargs)
            return run_blocking(self._carried_out(self.sites.blocking(body), bound))

        @functools.wraps(shape.function)
        async def awaiting(*args: Any, **kwargs: Any) -> Any:
            bound, body = self._bound(args, kwargs)
            return await self._carried_out(self.sites.awaiting(body), bound)

        wrapper: Any = awaiting if shape.is_async else blocking
        wrapper.__signature__ = shape.signature
        wrapper.__annotations__ = dict(shape.annotations)
        wrapper.__idempotent__ = self
        del wrapper.__wrapped__  # or inspect would find the hidden parameter again
        guarded: Callable[..., Any] = wrapper
        return guarded

    def look(self, call: Call) -> Seen | None:
        """Return what the ledger holds about a call, without doing anything."""
        return run_blocking(self._looked(self.sites.blocking(self._no_body()), call))

    async def alook(self, call: Call) -> Seen | None:
        """Return what the ledger holds about a call, without doing anything."""
        return await self._looked(self.sites.awaiting(self._no_body()), call)

    def _no_body(self) -> Body:
        return Body(self.operation.shape.function, self.operation.shape.takes)

    async def _looked(self, site: Site, call: Call) -> Seen | None:
        standing = self.rules.statements.standing
        return await protocols.own_work(site, lambda conn: standing(conn, call), keep=False)

    def _bound(self, args: Any, kwargs: Any) -> tuple[inspect.BoundArguments, Body]:
        shape = self.operation.shape
        bound = shape.bound(args, kwargs)
        return bound, Body(shape.function, shape.takes, args, kwargs, self.lookup)

    async def _carried_out(self, site: Site, bound: inspect.BoundArguments) -> Any:
        context = self.host().context()
        call = self.operation.call(bound, context, keep_arguments=self.keep_arguments)
        if self._needs_approval(bound):
            call = replace(call, needs_approval=True)
        try:
            done = await self._permitted(site, call, context, bound)
        except (RecordedFailure, OutcomeUnknown, EffectBusy) as error:
            context.receipts.append(_receipt(call, _OUTCOMES[type(error)], replayed=True))
            raise
        except ErrorReported as error:
            return error.result
        return self._delivered(call, context, done)

    async def _permitted(
        self, site: Site, call: Call, context: CallContext, bound: inspect.BoundArguments
    ) -> protocols.Done:
        """Carry it out; ask a person only where it would begin, which the ledger alone can tell."""
        try:
            return await self._done(site, call, context)
        except protocols.ApprovalNeeded:
            approved = self._approved(call, context, bound)
        return await self._done(site, approved, context)

    def _needs_approval(self, bound: inspect.BoundArguments) -> bool:
        if callable(self.approval):
            bound.apply_defaults()
            return bool(self.approval(dict(bound.arguments)))
        return self.approval

    def _approved(self, call: Call, context: CallContext, bound: inspect.BoundArguments) -> Call:
        """Ask a person, while nothing is claimed and no transaction is open.

        The question is about this key and these arguments; the answer is recorded with the claim,
        in the transaction of the effect.
        """
        if not context.can_ask:
            raise ConfigurationError(
                f"{call.operation} needs a person's approval, but there is nobody to ask: run it "
                "in a graph with a checkpointer and a thread_id. Nothing was done."
            )
        answer = self.host().ask(_approval_question(call, self.operation.shown(bound)))
        if answer.choice != APPROVE:
            raise ApprovalRejected(
                f"{call.operation} for {call.key} was rejected by {answer.by or 'a person'}.",
                operation=call.operation,
                key=call.key,
                by=answer.by,
                note=answer.note,
            )
        return replace(
            call,
            needs_approval=False,
            approved_by=answer.by or UNNAMED,
            approval_note=answer.note,
        )

    async def _done(self, site: Site, call: Call, context: CallContext) -> protocols.Done:
        """Carry the effect out; where nobody can know, ask a person if one can be asked."""
        asks = self.on_unknown == "interrupt" and context.can_ask
        if asks and (answered := self.host().answered()):
            await self._heed(site, call, answered)
        while True:
            try:
                if isinstance(self.rules, RemoteRules):
                    return await remote(site, call, self.rules)
                return await protocols.transactional(site, call, self.rules)
            except OutcomeUnknown as error:
                error.tell_model = self.on_unknown == "tell_model"
                if not asks or error.record is None:
                    raise
                await self._ask(site, call, error.record)

    async def _heed(self, site: Site, call: Call, answered: frozenset[str]) -> None:
        """Record an answer that came with the resume before anything is sent once more.

        It is about the effect as it stands: after another sending it would be about the past.
        """
        seen = await self._looked(site, call)
        if seen is None or seen.record.fingerprint != call.fingerprint:
            return
        if seen.record.state is State.UNKNOWN and question_id(seen.record) in answered:
            await self._ask(site, call, seen.record)

    async def _ask(self, site: Site, call: Call, record: EffectRecord) -> None:
        """Ask a person and record the answer; the row is then read again.

        The host leaves by an interrupt the first time. Should somebody else have settled the
        effect meanwhile, that stands.
        """
        answer = self.host().ask(replace(_question(call, record), check=self._check_result))
        text = None if answer.result is None else _json(answer.result)
        word = Word(State(answer.choice), text, answer.by, answer.note)
        try:
            await resolve(site, self.rules, record, word)
        except TransitionForbidden:
            return

    def _check_result(self, result: Any) -> None:
        try:
            self.rules.codec.decode(_json(result), CODEC_VERSION)
        except (LedgerError, TypeError) as error:
            returns = self.operation.shape.returns
            raise ValueError(
                f"{result!r} is no result of {self.operation.name}, which returns {returns!r}."
            ) from error

    def _delivered(self, call: Call, context: CallContext, done: protocols.Done) -> Any:
        """Hand the result and its receipt over, by the replay policy."""
        record, value = done.record, done.value
        if record is not None and record.result is None:
            value = self._in_place_of_result(record)
        receipt = _receipt(
            call, State.SUCCEEDED, replayed=record is not None, result=value, record=record
        )
        context.receipts.append(receipt)
        if record is None or self.on_replay == "return":
            return value
        if callable(self.on_replay):
            return self.on_replay(receipt)
        raise AlreadyDone(f"{call.operation} for {call.key} was done before.", receipt=receipt)

    def _in_place_of_result(self, record: EffectRecord) -> Any:
        """Return what stands for a result that was not kept: nothing, or words and nothing.

        A tool of content and artifact must return a pair, or its replay would fail for ever.
        """
        returns = self.operation.shape.returns
        if typing.get_origin(returns) is not tuple or len(typing.get_args(returns)) != _PAIR:
            return None
        return f"{record.operation} for {record.key} took hold; its result was not kept.", None


def _receipt(
    call: Call,
    outcome: State,
    *,
    replayed: bool,
    result: Any = None,
    record: EffectRecord | None = None,
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


def _question(call: Call, record: EffectRecord) -> Question:
    return Question(
        id=question_id(record),
        type=UNKNOWN_OUTCOME,
        scope=call.scope,
        operation=call.operation,
        key=call.key,
        fingerprint=call.fingerprint,
        arguments=json.loads(call.arguments) if call.arguments else {},
        description=(
            f"It is unknown whether {call.operation} for {call.key} took hold "
            f"({record.reason or 'the attempt ended without a word'}). Find out at the provider, "
            "then answer: succeeded (it happened), failed (it did not, and shall not), or released "
            "(it did not, and may be tried again)."
        ),
        choices=tuple(sorted(str(state) for state in BY_A_PERSON)),
        since=record.began_at,
        origin=call.origin,
    )


def _approval_question(call: Call, arguments: dict[str, Any]) -> Question:
    about = json.dumps([APPROVAL, call.scope, call.operation, call.key, call.fingerprint])
    return Question(
        id=hashlib.sha256(about.encode()).hexdigest()[:16],
        type=APPROVAL,
        scope=call.scope,
        operation=call.operation,
        key=call.key,
        fingerprint=call.fingerprint,
        arguments=arguments,
        description=f"May {call.operation} for {call.key} be done with these arguments?",
        choices=(APPROVE, REJECT),
        origin=call.origin,
    )


def _json(result: Any) -> str:
    return json.dumps(result, ensure_ascii=False, allow_nan=False)


def question_id(record: EffectRecord) -> str:
    """Name the question about one effect, so that no answer can go astray.

    What a person found out holds until the effect is sent again; attempts that merely look up
    come and go meanwhile.
    """
    sent = record.sent_at.isoformat(timespec="microseconds")
    about = json.dumps([record.scope, record.operation, record.key, sent])
    return hashlib.sha256(about.encode()).hexdigest()[:16]


def guarded_in(tool: object) -> Guarded | None:
    """Return how the function of a tool is guarded; None if it is not."""
    for name in ("func", "coroutine"):
        guarded = getattr(getattr(tool, name, None), "__idempotent__", None)
        if isinstance(guarded, Guarded):
            return guarded
    return None
