"""The order of steps, once for both colours, as coroutines that await nothing but their ports."""

from __future__ import annotations

import random
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from langgraph_idem import events
from langgraph_idem.decisions import (
    Ask,
    Busy,
    Call,
    Changed,
    Decision,
    Execute,
    Failed,
    Replay,
    Verify,
    decide,
)
from langgraph_idem.effects import State
from langgraph_idem.errors import (
    ArgumentsChanged,
    EffectBusy,
    ErrorReported,
    IdempotencyError,
    LedgerError,
    OutcomeUnknown,
    RecordedFailure,
)
from langgraph_idem.keys import GLOBAL, changed_names
from langgraph_idem.sql.dialects import Fault
from langgraph_idem.sql.sites import AttemptLost

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from sqlalchemy import Connection

    from langgraph_idem.codec import Codec
    from langgraph_idem.effects import EffectRecord
    from langgraph_idem.ports import Site, Statements, Transaction

T = TypeVar("T")

PAUSES: Final = (0.01, 0.03, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0)
"""Seconds between the tries of an attempt that the database gave up on; jittered."""


@dataclass(frozen=True)
class Rules:
    """How one operation wants to be carried out.

    Attributes:
        statements: The ledger's SQL.
        codec: Turns the operation's results into text and back.
        observe: Is told what happens.
        refusals: Exceptions by which the tool says no for good; they are recorded.
        is_control_flow: Tells whether an exception is the framework's own signal.
        reports_error: Tells whether a result says, in the framework's way, that the tool failed.

    """

    statements: Statements
    codec: Codec
    observe: Callable[[events.Event], None]
    refusals: tuple[type[BaseException], ...] = ()
    is_control_flow: Callable[[BaseException], bool] = lambda _error: False
    reports_error: Callable[[Any], bool] = lambda _result: False

    def checked(self, result: Any) -> Any:
        """Return a result that is one; raise what only looks like it.

        Raises:
            ErrorReported: It is the tool's report of an error: no success to be recorded.

        """
        if self.reports_error(result):
            raise ErrorReported(result)
        return result

    def refuses(self, error: BaseException) -> bool:
        """Tell whether the tool said no: never by a signal or by an error of this library.

        ``refusals=(Exception,)`` must not turn a lost connection into a final failure.
        """
        ours = isinstance(error, (AttemptLost, IdempotencyError))
        return isinstance(error, self.refusals) and not ours and not self.is_control_flow(error)

    def tell(self, event: type[events.Event], call: Call) -> None:
        """Tell the observers what happened to the call's effect."""
        self.observe(event(call.scope, call.operation, call.key, call.attempt_id))


@dataclass(frozen=True)
class Done:
    """The effect has taken hold.

    Attributes:
        value: The result: the tool's own object, or the recorded one.
        record: The row as it was found; None if this call did the effect.

    """

    value: Any
    record: EffectRecord | None = None


class ApprovalNeeded(IdempotencyError):
    """A person has to approve it before it begins. It never leaves the library, which then asks."""


async def transactional(site: Site, call: Call, rules: Rules) -> Done:
    """Bring about an effect that writes to the database which holds the ledger.

    Claim, the tool's rows and the result are one commit: whatever dies, and wherever, there is
    all of it or nothing.

    Raises:
        ArgumentsChanged, RecordedFailure, EffectBusy, OutcomeUnknown: What the ledger held.
        ResultNotStorable: The result cannot be kept; all is rolled back.
        LedgerError: The database failed.
        Exception: Whatever the tool raised; all is rolled back.

    """
    return await persistently(site, call, rules, _transactional_once)


async def _transactional_once(site: Site, call: Call, rules: Rules) -> Done:
    if (known := await settled_before(site, call, rules)) is not None:
        return settled(known, call, rules)
    refusal: BaseException
    try:
        async with site.transaction() as tx:
            decision = await _claimed(tx, call, rules)
            if not isinstance(decision, Execute):
                return settled(decision, call, rules)
            value = rules.checked(await tx.tool())
            text = rules.codec.encode(value)
            await tx.sql(lambda conn: _must_be_ours(rules.statements.complete(conn, call, text)))
            await tx.commit()
    except BaseException as error:
        if not rules.refuses(error):
            raise
        refusal = error
    else:
        rules.tell(events.Succeeded, call)
        return Done(value)
    return await _refuse(site, call, rules, refusal)


async def settled_before(site: Site, call: Call, rules: Rules) -> Decision | None:
    """Look ahead of the claim for an effect that is settled, where the ledger expects to find one.

    What is settled stays so: no lock is needed to read it. Whatever else is there, or nothing, is
    for the claim to say.
    """
    if not rules.statements.expects_replay:
        return None
    async with site.transaction(writes=False) as tx:
        seen = await tx.sql(lambda conn: rules.statements.standing(conn, call))
    decision = decide(seen, call)
    return decision if isinstance(decision, (Replay, Failed)) else None


async def _claimed(tx: Transaction, call: Call, rules: Rules) -> Decision:
    """Claim the effect; one that a person has released is taken over in the same transaction."""
    decision = decide(await tx.sql(lambda conn: rules.statements.claim(conn, call)), call)
    if not isinstance(decision, Verify) or decision.found.record.state is not State.RELEASED:
        return decision
    released = decision.found.record
    if not await tx.sql(lambda conn: rules.statements.take_over(conn, call, released)):
        raise AttemptLost(Fault.CONTENTION, LedgerError("Somebody else took it over first."))
    return Execute()


async def _refuse(site: Site, call: Call, rules: Rules, refusal: BaseException) -> Done:
    """Record a business refusal, after what the tool wrote was rolled back, and raise it.

    Somebody else may have settled the effect since; then that is the answer.
    """
    async with site.transaction() as tx:
        decision = await _claimed(tx, call, rules)
        if not isinstance(decision, Execute):
            return settled(decision, call, rules)
        reason = words_of(refusal)
        await tx.sql(lambda conn: _must_be_ours(rules.statements.fail(conn, call, reason)))
        await tx.commit()
    rules.tell(events.Refused, call)
    raise refusal


async def persistently(
    site: Site,
    call: Call,
    rules: Rules,
    attempt: Callable[[Site, Call, Rules], Awaitable[T]],
) -> T:
    """Try again while the database asks for it, then say what was in the way.

    The attempt id stays the same: if a commit took place and only its answer was lost, the next
    try finds its own row and knows it.
    """
    for pause in (*PAUSES, None):
        try:
            return await attempt(site, call, rules)
        except AttemptLost as lost:
            if lost.fault is Fault.LOCKED or pause is None:
                raise _given_up(call, lost) from lost.cause
            rules.tell(events.Retried, call)
            await site.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311 - jitter, no secret
    raise AssertionError("unreachable: the last pause is None")  # pragma: no cover


async def own_work(site: Site, work: Callable[[Connection], T], *, keep: bool) -> T:
    """Do the ledger's own work, of no effect, in one transaction.

    Args:
        site: Where it runs.
        work: Its SQL; it may run again if the database asks for it.
        keep: False: it only reads, so that a question neither takes nor waits for a lock.

    Raises:
        LedgerError: The database cannot be reached, or somebody holds its lock.

    """
    for pause in (*PAUSES, None):
        try:
            async with site.transaction(writes=keep) as tx:
                answer = await tx.sql(work)
                if keep:
                    await tx.commit()
                return answer
        except AttemptLost as lost:
            if lost.fault is Fault.LOCKED or pause is None:
                raise LedgerError(
                    f"The ledger's database cannot be reached, or is locked: {lost}"
                ) from lost.cause
            await site.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311 - jitter, no secret
    raise AssertionError("unreachable: the last pause is None")  # pragma: no cover


def _given_up(call: Call, lost: AttemptLost) -> Exception:
    if lost.fault is Fault.DISCONNECTED:
        return LedgerError(
            f"The ledger's database cannot be reached ({call.operation} for {call.key}). It is "
            "safe to run this again: the ledger will tell whether the effect took hold. "
            f"The driver says: {lost}"
        )
    return EffectBusy(
        f"{call.operation} for {call.key} could not get its turn: another attempt, or another "
        "writer of the database, holds a lock. Nothing was done; wait, then run it again.",
        operation=call.operation,
        key=call.key,
    )


def _must_be_ours(is_ours: bool) -> None:  # noqa: FBT001 - reads as the sentence it is
    if not is_ours:
        raise LedgerError(
            "The claim is gone from the ledger before it was completed; everything was rolled "
            "back. Does something delete rows of the ledger, or did the tool?"
        )


def settled(decision: Decision, call: Call, rules: Rules) -> Done:
    """Answer a call whose effect was there before: the recorded result, or the error that fits."""
    match decision:
        case Replay(record, ours):
            rules.tell(events.Succeeded if ours else events.Replayed, call)
            return Done(recorded_value(record, rules.codec), None if ours else record)
        case _:
            raise refusal_of(decision, call)


def refusal_of(decision: Decision, call: Call) -> IdempotencyError:
    """Put into words why a call neither runs nor is answered with a recorded result."""
    match decision:
        case Ask():
            return ApprovalNeeded(
                f"{call.operation} for {call.key} needs a person's approval before it begins."
            )
        case Changed(record):
            return _changed(record, call)
        case Failed(record):
            return RecordedFailure(
                f"{call.operation} for {call.key} failed before, for good: {record.reason}",
                operation=call.operation,
                key=call.key,
                reason=record.reason,
            )
        case Busy(_, retry_at):
            return EffectBusy(
                f"{call.operation} for {call.key} is being done by another attempt. Wait, then "
                "run this again.",
                operation=call.operation,
                key=call.key,
                retry_at=retry_at,
            )
        case Verify(found):
            return unknown(found.record)
        case _:
            raise AssertionError(f"no answer to {decision!r}")


def recorded_value(record: EffectRecord, codec: Codec) -> Any:
    """Decode the recorded result; None if it was recorded without one."""
    if record.result is None:
        return None
    return codec.decode(record.result, record.codec or 0)


def shell_words(record: EffectRecord) -> str:
    """Name an effect so that a shell hands it to the command line whole."""
    scope = [] if record.scope == GLOBAL else [f"--scope={record.scope}"]
    words = [record.operation, record.key]
    # After two dashes, what begins with one is no option.
    dashes = ["--"] if any(word.startswith("-") for word in words) else []
    return shlex.join([*scope, *dashes, *words])


def unknown(record: EffectRecord) -> OutcomeUnknown:
    """Put an unknown outcome into words."""
    return OutcomeUnknown(
        f"The outcome of {record.operation} for {record.key} is unknown since "
        f"{record.claimed_at:%Y-%m-%d %H:%M:%S} UTC. Find out, then settle it: "
        f"langgraph-idem resolve {shell_words(record)} succeeded (or failed).",
        operation=record.operation,
        key=record.key,
        scope=record.scope,
        since=record.claimed_at,
        record=record,
    )


def _changed(record: EffectRecord, call: Call) -> ArgumentsChanged:
    changed = changed_names(record.arguments, call.arguments)
    fields = f" The arguments that differ: {', '.join(changed)}." if changed else ""
    return ArgumentsChanged(
        f"{call.operation} was called for {call.key} before, with other arguments.{fields} "
        "If it is another effect, its key must differ; if an argument does not matter, leave it "
        "out with ignore=(...).",
        operation=call.operation,
        key=call.key,
        changed=changed,
    )


def words_of(error: BaseException) -> str:
    """Write an exception down in a line: its type and message."""
    message = str(error)
    return f"{type(error).__name__}: {message}" if message else type(error).__name__
