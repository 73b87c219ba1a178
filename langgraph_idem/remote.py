"""The order of steps for effects that are somebody else's API: intent, call, outcome.

No transaction is common to both sides, so the ledger can be behind the world. It is never ahead
of it: nothing is recorded as done that was not answered, looked up, or vouched for by a person.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from langgraph_idem import effects, events
from langgraph_idem.codec import CODEC_VERSION
from langgraph_idem.decisions import Busy, Call, Execute, Seen, Verify, decide
from langgraph_idem.effects import ABSENT, DONT_KNOW, Effect, State, Verdict
from langgraph_idem.errors import LedgerError, ResultNotStorable
from langgraph_idem.protocols import (
    Done,
    Rules,
    own_work,
    persistently,
    settled,
    unknown,
    words_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection

    from langgraph_idem.decisions import Decision
    from langgraph_idem.effects import EffectRecord
    from langgraph_idem.ports import Site

_log = logging.getLogger("langgraph_idem")

FIRST_PAUSE: Final = 0.02
LONGEST_PAUSE: Final = 1.0
"""Seconds between two looks at an effect that somebody else is busy with."""

_MARGIN: Final = 0.1
_LONGEST_MARGIN: Final = timedelta(seconds=60)
"""How much earlier than told a provider's key memory is taken to end: a request takes time."""


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
            lost += 1
            if loss.record.state is State.UNKNOWN and (lost > 1 or _is_final(loss.record, rules)):
                raise unknown(loss.record) from loss.cause
            continue
        if done is not None:
            return done


class _Lost(Exception):
    """Our own call ended and nobody knows how; that is recorded."""

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
        async with site.transaction() as tx:
            seen = await tx.sql(lambda conn: rules.statements.claim(conn, call))
            if seen is None:
                await tx.commit()
            return decide(seen, call)

    return await persistently(site, call, rules, once)


async def _verify(site: Site, call: Call, rules: RemoteRules, seen: Seen) -> Done | None:
    """Find out about an attempt that is gone.

    Late evidence first, then the look-up, then the same key again while the provider keeps it.
    """
    record, take_over = seen.record, rules.statements.take_over
    if record.state is State.UNKNOWN and not _can_verify(record, seen.now, rules):
        raise unknown(record)
    if not await _changed(site, lambda conn: take_over(conn, call, record)):
        return None
    attempt = Attempt(call, _effect(call, record), is_clean=record.state is State.RELEASED)
    if attempt.is_clean:
        return await _send_again(site, attempt, rules)
    if record.evidence is not None:
        return await _proved(site, attempt, rules, record.evidence)
    answer = await _looked_up(site, attempt, rules)
    if isinstance(answer, effects.Found):
        return await _recorded(site, attempt, rules, answer.result, events.Verified)
    if answer is ABSENT and not _may_still_arrive(record, seen.now):
        return await _send_again(site, replace(attempt, is_clean=True), rules)
    if _key_is_kept(record, seen.now, rules):
        return await _send_again(site, attempt, rules)
    reason = record.reason or "the attempt that held it ended without a word"
    lost = await _lose(site, attempt, rules, reason)
    if lost.state is State.UNKNOWN:
        raise unknown(lost)
    return None


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
        value = await site.call(attempt.effect)
    except BaseException as error:
        verdict = _verdict(error, attempt, rules)
        lost = await site.shielded(_record_failure(site, attempt, rules, verdict, error))
        if lost is None or not isinstance(error, Exception) or rules.is_control_flow(error):
            raise
        raise _Lost(lost, error) from error
    return await site.shielded(_recorded(site, attempt, rules, value, events.Succeeded))


async def _is_still_held(
    site: Site, attempt: Attempt, rules: RemoteRules, claimed_at: float
) -> bool:
    """See right before sending that the claim has not outlived its lease.

    It has if this process was frozen in between; another attempt may hold the effect by now.
    """
    lease = attempt.call.lease_seconds
    while lease and site.monotonic() - claimed_at >= lease:
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
    return Verdict.REFUSED if rules.refuses(error) else rules.classify(error)


async def _record_failure(
    site: Site, attempt: Attempt, rules: RemoteRules, verdict: Verdict, error: BaseException
) -> EffectRecord | None:
    """Record what an exception means; return the row if the outcome is unknown."""
    call, reason, statements = attempt.call, words_of(error), rules.statements
    if verdict is Verdict.NOT_SENT:
        await _changed(site, lambda conn: statements.release(conn, call))
        rules.tell(events.Released, call)
        return None
    if verdict is Verdict.REFUSED:
        await _changed(site, lambda conn: statements.fail(conn, call, reason))
        rules.tell(events.Refused, call)
        return None
    return await _lose(site, attempt, rules, reason)


async def _lose(site: Site, attempt: Attempt, rules: RemoteRules, reason: str) -> EffectRecord:
    """Record that nobody can know, and return the row as it is now."""
    call = attempt.call

    def lose(conn: Connection) -> EffectRecord | None:
        rules.statements.lose(conn, call, reason)
        seen = rules.statements.read(conn, call.scope, call.operation, call.key)
        return seen.record if seen else None

    record = await own_work(site, lose, keep=True)
    if record is None:
        raise LedgerError(f"The row of {call.operation} for {call.key} is gone from the ledger.")
    rules.tell(events.BecameUnknown, call)
    return record


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
    if await _changed(site, lambda conn: statements.complete(conn, call, text)):
        rules.tell(event, call)
        return Done(None if text is None else rules.codec.decode(text, CODEC_VERSION))
    evidence = "null" if text is None else text
    await _changed(site, lambda conn: statements.testify(conn, call, evidence))
    rules.tell(events.Fenced, call)
    return None


async def _looked_up(site: Site, attempt: Attempt, rules: RemoteRules) -> Any:
    """Ask the provider; its failures mean that it does not know."""
    if not rules.has_lookup:
        return DONT_KNOW
    try:
        answer = await site.lookup(attempt.effect)
    except Exception as error:
        if rules.is_control_flow(error):
            raise
        _log.warning("The look-up of %s failed: %s", attempt.call.operation, words_of(error))
        return DONT_KNOW
    if (
        answer is not None
        and answer not in (ABSENT, DONT_KNOW)
        and not isinstance(answer, effects.Found)
    ):
        _log.warning(
            "The look-up of %s answered %r: taken as DONT_KNOW. Answer Found(result), ABSENT or "
            "DONT_KNOW.",
            attempt.call.operation,
            answer,
        )
    return answer


async def _renewed(site: Site, attempt: Attempt, rules: RemoteRules) -> bool:
    call, renew = attempt.call, rules.statements.renew
    return await _changed(site, lambda conn: renew(conn, call))


async def _changed(site: Site, change: Callable[[Connection], bool]) -> bool:
    """Commit one change of the ledger; tell whether the row was as expected."""
    return await own_work(site, change, keep=True)


def _effect(call: Call, record: EffectRecord | None) -> Effect:
    return Effect(
        scope=call.scope,
        operation=call.operation,
        key=call.key,
        attempt=record.attempts + 1 if record else 1,
        began_at=record.began_at if record else None,
        evidence=record.reason if record else None,
        arguments=json.loads(call.arguments) if call.arguments else {},
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
