"""The order of steps for effects that are somebody else's API: intent, call, outcome.

No transaction is common to both sides, so the ledger can be behind the world. It is never ahead
of it: nothing is recorded as done that was not answered, looked up, or vouched for by a person.
"""

from __future__ import annotations

import contextlib
import json
import logging
import random
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sqlalchemy.exc import TimeoutError as PoolTimeout

from langgraph_idem import effects, events
from langgraph_idem.codec import CODEC_VERSION
from langgraph_idem.decisions import Busy, Call, Execute, Seen, Verify, decide
from langgraph_idem.effects import ABSENT, DONT_KNOW, Effect, State, Verdict
from langgraph_idem.errors import LedgerError, OutcomeUnknown, ResultNotStorable
from langgraph_idem.protocols import (
    PAUSES,
    Done,
    Rules,
    own_work,
    persistently,
    settled,
    settled_before,
    unknown,
    words_of,
)
from langgraph_idem.sql.dialects import Fault, fault_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection

    from langgraph_idem.decisions import Decision
    from langgraph_idem.effects import EffectRecord
    from langgraph_idem.ports import Site

T = TypeVar("T")

_log = logging.getLogger("langgraph_idem")

FIRST_PAUSE: Final = 0.02
LONGEST_PAUSE: Final = 1.0
"""Seconds between two looks at an effect that somebody else is busy with."""

_MARGIN: Final = 0.1
_LONGEST_MARGIN: Final = timedelta(seconds=60)
"""How much earlier than told a provider's key memory is taken to end: a request takes time."""

_FRESH: Final = 0.1
"""The share of its lease that a claim may have lived through when the request leaves.

The rest is for the request's way: once the lease is over, "absent" is taken for proof that it
never arrived, so it must not leave at the lease's end.
"""

_RENEWALS: Final = 3
"""A lease that is over before its renewal has been committed is over before any answer, too."""


@dataclass(frozen=True)
class RemoteRules(Rules):
    """How one remote operation wants to be carried out.

    Attributes:
        classify: Tells what an exception of the tool says about the world.
        has_lookup: True if the provider can be asked.
        keeps_key: How long the provider remembers an idempotency key; None: it does not.
        wait_seconds: How long to wait for another attempt before ``EffectBusy``.

    """

    classify: Callable[[BaseException], Verdict] = lambda _error: Verdict.UNKNOWN
    has_lookup: bool = False
    keeps_key: timedelta | None = None
    wait_seconds: float = 0.0


@dataclass(frozen=True)
class Attempt:
    """One attempt that holds the claim.

    Attributes:
        call: The request; its attempt id is the fencing token.
        effect: What the tool and the look-up are given.
        is_clean: True if no earlier attempt can have reached the provider.

    """

    call: Call
    effect: Effect
    is_clean: bool


async def remote(site: Site, call: Call, rules: RemoteRules) -> Done:
    """Bring about an effect at a provider, at most once, and say so where nobody can know.

    The intent is committed, then the provider is called with no connection held, then the outcome
    is committed under the fencing token: two commits. If the answer is lost, the provider is
    asked, or sent the same key once more, within the same call.

    Raises:
        ArgumentsChanged, RecordedFailure: What the ledger held.
        EffectBusy: Another attempt is at it and was not done within the bound.
        OutcomeUnknown: It may have happened, and nothing at hand can tell.
        ResultNotStorable: It happened, but its result cannot be kept; the success is recorded.
        LedgerError: The database failed.
        Exception: Whatever the tool raised, if it says that nothing happened.

    """
    deadline = site.monotonic() + rules.wait_seconds
    pause, lost = FIRST_PAUSE, 0
    cause: Exception | None = None
    while True:
        claimed_at = site.monotonic()
        decision = await _claim(site, call, rules)
        if isinstance(decision, Busy) and site.monotonic() < deadline:
            await site.sleep(min(pause, max(0.0, deadline - site.monotonic())))
            pause = min(pause * 2, LONGEST_PAUSE)
            continue
        try:
            done = await _step(site, call, rules, decision, claimed_at)
        except _Lost as loss:
            lost, cause = lost + 1, loss.cause
            if loss.record.state is State.UNKNOWN and (lost > 1 or _is_final(loss.record, rules)):
                raise unknown(loss.record) from cause
            continue
        except OutcomeUnknown as error:
            raise error from cause
        if done is not None:
            return done


class _Lost(Exception):
    """Our own call ended without a result; the ledger may hold one, or knows that nobody knows."""

    def __init__(self, record: EffectRecord, cause: Exception) -> None:
        super().__init__()
        self.record = record
        self.cause = cause


def _is_final(record: EffectRecord, rules: RemoteRules) -> bool:
    """Tell whether an unknown outcome stays so, for want of anything that could tell."""
    return not _can_verify(record, record.claimed_at, rules)


async def _step(
    site: Site, call: Call, rules: RemoteRules, decision: Decision, claimed_at: float
) -> Done | None:
    """Act on a decision; None: the row moved on, look again."""
    match decision:
        case Execute():
            rules.tell(events.Claimed, call)
            attempt = Attempt(call, _effect(call, None), is_clean=True)
            return await _dispatch(site, attempt, rules, claimed_at)
        case Verify(seen):
            return await _verify(site, call, rules, seen)
        case _:
            return settled(decision, call, rules)


async def _claim(site: Site, call: Call, rules: RemoteRules) -> Decision:
    async def once(site: Site, call: Call, rules: Rules) -> Decision:
        if (known := await settled_before(site, call, rules)) is not None:
            return known
        async with site.transaction() as tx:
            seen = await tx.sql(lambda conn: rules.statements.claim(conn, call))
            decision = decide(seen, call)
            if seen is None and isinstance(decision, Execute):
                await tx.commit()
            return decision

    try:
        return await persistently(site, call, rules, once)
    except BaseException as error:
        if not isinstance(error, Exception):  # cancelled, maybe after the commit: nothing was sent
            with contextlib.suppress(LedgerError):
                undo = rules.statements.release
                await site.shielded(_changed(site, lambda conn: undo(conn, call)))
        raise


async def _verify(site: Site, call: Call, rules: RemoteRules, seen: Seen) -> Done | None:
    """Find out about an attempt that is gone.

    Late evidence first, then the look-up, then the same key again while the provider keeps it.
    """
    record = seen.record
    if record.state is State.UNKNOWN and not _can_verify(record, seen.now, rules):
        raise unknown(record)
    if not await _taken_over(site, call, rules, record):
        return None
    attempt = Attempt(call, _effect(call, record), is_clean=record.state is State.RELEASED)
    if attempt.is_clean:
        return await _send_again(site, attempt, rules)
    if record.evidence is not None:
        return await site.shielded(_proved(site, attempt, rules, record.evidence or None))
    answer = await _looked_up(site, attempt, rules)
    if isinstance(answer, effects.Found):
        return await site.shielded(_found(site, attempt, rules, answer))
    if answer is ABSENT and not _may_still_arrive(record, seen.now):
        return await _send_again(site, replace(attempt, is_clean=True), rules)
    if _key_is_kept(record, seen.now, rules):
        return await _send_again(site, attempt, rules)
    reason = record.reason or "the attempt that held it ended without a word"
    lost = await site.shielded(_lose(site, attempt, rules, reason))
    if lost.state is State.UNKNOWN:
        raise unknown(lost)
    return None


async def _taken_over(site: Site, call: Call, rules: RemoteRules, record: EffectRecord) -> bool:
    """Become the holder, if the row is still as it was found."""
    statements = rules.statements

    def take(conn: Connection) -> bool:
        if statements.take_over(conn, call, record):
            return True
        now = statements.standing(conn, call)  # ours already, if only a commit's answer was lost
        return (
            now is not None
            and now.record.state is State.CLAIMED
            and now.record.attempt_id == call.attempt_id
            and now.record.attempts == record.attempts + 1
        )

    return await _changed(site, take)


async def _send_again(site: Site, attempt: Attempt, rules: RemoteRules) -> Done | None:
    """Send once more, having made sure in the ledger that the claim is still ours."""
    renewed_at = site.monotonic()
    if not await _renewed(site, attempt, rules):
        return None
    return await _dispatch(site, attempt, rules, renewed_at)


async def _dispatch(
    site: Site, attempt: Attempt, rules: RemoteRules, claimed_at: float
) -> Done | None:
    """Call the provider and record what came of it."""
    if not await _is_still_held(site, attempt, rules, claimed_at):
        return None
    try:
        value = rules.checked(await site.call(attempt.effect))
    except BaseException as error:
        lost = await _after(site, attempt, rules, error)
        if lost is None or not isinstance(error, Exception) or rules.is_control_flow(error):
            raise
        raise _Lost(lost, error) from error
    return await site.shielded(_recorded(site, attempt, rules, value, events.Succeeded))


async def _after(
    site: Site, attempt: Attempt, rules: RemoteRules, error: BaseException
) -> EffectRecord | None:
    """Record an exception; a cancel is not replaced by a failure to do so."""
    verdict = _verdict(error, attempt, rules)
    try:
        return await site.shielded(_record_failure(site, attempt, rules, verdict, error))
    except LedgerError as failure:
        if isinstance(error, Exception):
            raise
        _log.warning("%s was not recorded: %s", words_of(error), failure)
        return None


async def _is_still_held(
    site: Site, attempt: Attempt, rules: RemoteRules, claimed_at: float
) -> bool:
    """See right before sending that the lease has only just begun, or begin it anew.

    It has not if this process was frozen in between; another attempt may hold the effect by now.
    """
    lease = attempt.call.lease_seconds
    for _ in range(_RENEWALS):
        if not lease or site.monotonic() - claimed_at < lease * _FRESH:
            break
        claimed_at = site.monotonic()
        if not await _renewed(site, attempt, rules):
            return False
    return True


def _verdict(error: BaseException, attempt: Attempt, rules: RemoteRules) -> Verdict:
    """Say what an exception means; what earlier attempts may have done is not undone by it."""
    if not attempt.is_clean:
        return Verdict.UNKNOWN
    if rules.is_control_flow(error):
        return Verdict.UNKNOWN if attempt.effect.key_was_taken else Verdict.NOT_SENT
    if not isinstance(error, Exception):
        return Verdict.UNKNOWN
    return Verdict.REFUSED if rules.refuses(error) else _classified(error, attempt, rules)


def _classified(error: Exception, attempt: Attempt, rules: RemoteRules) -> Verdict:
    """Ask the operation's rules; what they cannot say is unknown."""
    try:
        return Verdict(rules.classify(error))
    except Exception:  # noqa: BLE001 - a mistake in there must not cost the record
        _log.exception(
            "classify= of %s failed on %s: taken as unknown. Let it return a Verdict or None.",
            attempt.call.operation,
            words_of(error),
        )
        return Verdict.UNKNOWN


async def _record_failure(
    site: Site, attempt: Attempt, rules: RemoteRules, verdict: Verdict, error: BaseException
) -> EffectRecord | None:
    """Record what an exception means; return the row if the exception is not the whole answer."""
    reason, statements = words_of(error), rules.statements
    if verdict is Verdict.NOT_SENT:
        return await _closed(site, attempt, rules, statements.release, events.Released)
    if verdict is Verdict.REFUSED:

        def fail(conn: Connection, call: Call) -> bool:
            return statements.fail(conn, call, reason)

        return await _closed(site, attempt, rules, fail, events.Refused)
    return await _lose(site, attempt, rules, reason)


async def _closed(
    site: Site,
    attempt: Attempt,
    rules: RemoteRules,
    close: Callable[[Connection, Call], bool],
    event: type[events.Event],
) -> EffectRecord | None:
    """Record that this attempt did nothing; return the row if another one did, or holds it."""
    call = attempt.call

    def closed(conn: Connection) -> EffectRecord | None:
        close(conn, call)
        seen = rules.statements.standing(conn, call)
        if seen is None:
            return None
        is_ours = seen.record.attempt_id == call.attempt_id
        done = seen.record.state in {State.FAILED, State.RELEASED}
        return None if is_ours and done else seen.record

    record = await _outcome(site, closed)
    rules.tell(event, call)
    return record


async def _lose(site: Site, attempt: Attempt, rules: RemoteRules, reason: str) -> EffectRecord:
    """Record that nobody can know, and return the row as it is now."""
    call, statements = attempt.call, rules.statements

    def lose(conn: Connection) -> EffectRecord | None:
        if not statements.lose(conn, call, reason) and statements.claim(conn, call) is None:
            statements.lose(conn, call, reason)  # somebody deleted the row: what we know goes back
        seen = statements.standing(conn, call)
        return seen.record if seen else None

    record = await _outcome(site, lose)
    if record is None:
        raise LedgerError(f"The row of {call.operation} for {call.key} is gone from the ledger.")
    rules.tell(events.BecameUnknown, call)
    return record


async def _found(
    site: Site, attempt: Attempt, rules: RemoteRules, answer: effects.Found
) -> Done | None:
    """Record what a look-up found; many a provider can say no more than that it happened."""
    if answer.result is None:
        return await _proved(site, attempt, rules, None)
    return await _recorded(site, attempt, rules, answer.result, events.Verified)


async def _recorded(
    site: Site, attempt: Attempt, rules: RemoteRules, value: Any, event: type[events.Event]
) -> Done | None:
    """Record a success. A result that cannot be kept is no reason to lose the success."""
    try:
        text: str | None = rules.codec.encode(value)
    except ResultNotStorable as refusal:
        await _proved(site, attempt, rules, None, event)
        raise ResultNotStorable(
            f"{refusal} The effect took hold and is recorded, without its result.",
            operation=attempt.call.operation,
            effect_happened=True,
        ) from refusal
    done = await _proved(site, attempt, rules, text, event)
    return Done(value, done.record) if done is not None and done.record is None else done


async def _proved(
    site: Site,
    attempt: Attempt,
    rules: RemoteRules,
    text: str | None,
    event: type[events.Event] = events.Verified,
) -> Done | None:
    """Record a success under the fencing token.

    An attempt that has lost its claim meanwhile leaves its answer as evidence and looks again;
    what was recorded is the answer, not what this attempt has in its hands.
    """
    call, statements = attempt.call, rules.statements

    def prove(conn: Connection) -> bool:
        if statements.complete(conn, call, text):
            return True
        seen = statements.standing(conn, call)
        if seen is None:  # somebody deleted the row: claimed again, or it would be done again
            statements.claim(conn, call)
            return statements.complete(conn, call, text)
        if seen.record.state is State.SUCCEEDED and seen.record.attempt_id == call.attempt_id:
            return True  # only the answer to our commit was lost
        statements.testify(conn, call, text or "")
        return False

    if await _outcome(site, prove):
        rules.tell(event, call)
        return Done(None if text is None else rules.codec.decode(text, CODEC_VERSION))
    rules.tell(events.Fenced, call)
    return None


async def _looked_up(site: Site, attempt: Attempt, rules: RemoteRules) -> Any:
    """Ask the provider; its failures mean that it does not know."""
    if not rules.has_lookup:
        return DONT_KNOW
    name = attempt.call.operation
    try:
        answer = await site.lookup(attempt.effect)
    except BaseException as error:
        if not isinstance(error, Exception) or rules.is_control_flow(error):
            reason = f"{words_of(error)} during the look-up"
            with contextlib.suppress(LedgerError):
                await site.shielded(_lose(site, attempt, rules, reason))
            raise
        _log.warning("The look-up of %s failed: %s", name, words_of(error))
        return DONT_KNOW
    if answer is ABSENT or isinstance(answer, effects.Found):
        return answer
    if answer is not None and answer is not DONT_KNOW:
        _log.warning(
            "The look-up of %s answered %r: taken as DONT_KNOW. Answer Found(result), ABSENT or "
            "DONT_KNOW.",
            name,
            answer,
        )
    return DONT_KNOW


async def _renewed(site: Site, attempt: Attempt, rules: RemoteRules) -> bool:
    """Begin the lease anew, if the effect is still ours to send.

    It is not if a late answer has come meanwhile, or if the look-up took so long that the
    provider may have forgotten the key.
    """
    call, statements = attempt.call, rules.statements

    def renew(conn: Connection) -> bool:
        seen = statements.standing(conn, call)
        if seen is None or seen.record.evidence is not None:
            statements.lose(conn, call, "")
            return False
        if attempt.is_clean or _key_is_kept(seen.record, seen.now, rules):
            return statements.renew(conn, call)
        statements.lose(conn, call, seen.record.reason or "the provider no longer keeps the key")
        return False

    return await _changed(site, renew)


async def _changed(site: Site, change: Callable[[Connection], bool]) -> bool:
    """Commit one change of the ledger; tell whether the row was as expected."""
    return await own_work(site, change, keep=True)


async def _outcome(site: Site, work: Callable[[Connection], T]) -> T:
    """Commit an outcome. A lock in the way is waited for: what is recorded has happened."""
    for pause in PAUSES:
        try:
            return await own_work(site, work, keep=True)
        except LedgerError as error:
            if not _is_locked(error.__cause__):
                raise
        await site.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311 - jitter, no secret
    return await own_work(site, work, keep=True)


def _is_locked(cause: BaseException | None) -> bool:
    return isinstance(cause, PoolTimeout) or (cause is not None and fault_of(cause) is Fault.LOCKED)


def _effect(call: Call, record: EffectRecord | None) -> Effect:
    return Effect(
        scope=call.scope,
        operation=call.operation,
        key=call.key,
        attempt=record.attempts + 1 if record else 1,
        began_at=record.began_at if record else None,
        evidence=record.reason if record else None,
        arguments=json.loads(call.told),
    )


def _can_verify(record: EffectRecord, now: datetime, rules: RemoteRules) -> bool:
    return rules.has_lookup or record.evidence is not None or _key_is_kept(record, now, rules)


def _key_is_kept(record: EffectRecord, now: datetime, rules: RemoteRules) -> bool:
    """Tell whether the provider surely still remembers the key, counted from the first attempt."""
    if not rules.keeps_key:
        return False
    margin = min(rules.keeps_key * _MARGIN, _LONGEST_MARGIN)
    return now - record.began_at < rules.keeps_key - margin


def _may_still_arrive(record: EffectRecord, now: datetime) -> bool:
    """Tell whether the request that was lost may yet reach the provider.

    Within the lease of the attempt that sent it, "absent" is no proof.
    """
    if record.lease_seconds is None:
        return True
    return now < record.sent_at + timedelta(seconds=record.lease_seconds)
