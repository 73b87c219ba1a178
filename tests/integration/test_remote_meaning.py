"""What becomes of a remote effect: exceptions, leases, look-ups, keys, late answers, a person."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from typing import Any

import pytest
from langgraph.errors import GraphInterrupt
from langgraph.types import Interrupt
from pydantic import BaseModel

from langgraph_idem import (
    ABSENT,
    DONT_KNOW,
    ArgumentsChanged,
    ConfigurationError,
    Effect,
    EffectBusy,
    Found,
    Ledger,
    OutcomeUnknown,
    RecordedFailure,
    ResultNotStorable,
    TransitionForbidden,
    Verdict,
)
from langgraph_idem.effects import State
from tests.support.provider import Witness

DAY = 24 * 3600


@pytest.fixture
def witness(database_url: str) -> Witness:
    """A fresh ledger, and somebody to look at it."""
    return Witness(database_url)


@pytest.fixture
def ledger(witness: Witness) -> Iterator[Ledger]:
    """The ledger; losers do not wait."""
    with Ledger(witness.url, wait=0) as opened:
        yield opened


class Lost(Exception):
    """The answer did not come."""


class Shop:
    """A provider in this process: what it does next is told to it, and it counts."""

    def __init__(self, ledger: Ledger, **options: Any) -> None:
        self.sent: list[str] = []
        self.does: list[Callable[[Effect], Any]] = []
        self.asked = 0
        self.finds: Any = DONT_KNOW
        if "lookup" in options:
            options["lookup"] = self._find
        chosen = {"lease": 60.0, "on_unknown": "raise", **options}

        @ledger.remote(key=("order_id",), operation="ship", **chosen)
        def ship(effect: Effect, /, order_id: str, cents: int = 5) -> int:
            if self.does:
                return int(self.does.pop(0)(effect))
            return self.act(effect)

        self.ship: Callable[..., int] = ship

    def act(self, effect: Effect) -> int:
        """Take the request."""
        self.sent.append(effect.idempotency_key)
        return len(self.sent)

    def _find(self, effect: Effect) -> Any:
        self.asked += 1
        return self.finds(effect) if callable(self.finds) else self.finds


def raising(error: BaseException) -> Callable[[object], Any]:
    """Make a step, or a look-up, that fails."""

    def fail(_effect: object) -> None:
        raise error

    return fail


def _interrupted_after(effect: Effect) -> None:
    assert effect.idempotency_key
    raise GraphInterrupt((Interrupt("really?"),))


# --- what exceptions mean -------------------------------------------------------------------------


def test_not_sent_undoes_the_claim(ledger: Ledger, witness: Witness) -> None:
    """What did not leave leaves no trace, and the next call does it."""
    shop = Shop(ledger)
    shop.does = [raising(ConnectionRefusedError())]
    with pytest.raises(ConnectionRefusedError):
        shop.ship("O-1")
    assert witness.find("O-1") is None
    assert shop.ship("O-1") == 1
    assert witness.state("O-1") is State.SUCCEEDED


def test_refused_is_final(ledger: Ledger, witness: Witness) -> None:
    """A refusal is recorded, raised as it came, and told from the record ever after."""
    shop = Shop(ledger, classify=lambda _error: Verdict.REFUSED)
    shop.does = [raising(ValueError("no such charge"))]
    with pytest.raises(ValueError, match="no such charge"):
        shop.ship("O-1")
    with pytest.raises(RecordedFailure, match="no such charge"):
        shop.ship("O-1")
    assert (witness.state("O-1"), shop.sent) == (State.FAILED, [])


@pytest.mark.parametrize(
    "error", [Lost(), KeyboardInterrupt(), SystemExit(1), asyncio.CancelledError()]
)
def test_anything_else_is_unknown_and_never_sent_again(
    ledger: Ledger, witness: Witness, error: BaseException
) -> None:
    """A lost answer, Ctrl-C, the program's end: it may have happened, so it is not repeated."""
    shop = Shop(ledger)
    shop.does = [raising(error)]
    with pytest.raises((OutcomeUnknown, type(error))):
        shop.ship("O-1")
    assert witness.state("O-1") is State.UNKNOWN
    for _ in range(2):
        with pytest.raises(OutcomeUnknown):
            shop.ship("O-1")
        witness.age("O-1", DAY)
    assert shop.sent == []


def test_the_error_that_lost_it_is_the_cause(ledger: Ledger) -> None:
    """Whoever reads the traceback sees what happened, with a look-up that knows nothing too."""
    for number, options in enumerate(({}, {"lookup": True})):
        shop = Shop(ledger, **options)
        shop.does = [raising(Lost("read timed out"))]
        with pytest.raises(OutcomeUnknown) as unknown:
            shop.ship(f"O-{number}")
        assert isinstance(unknown.value.__cause__, Lost)
        assert unknown.value.record is not None
        assert unknown.value.record.reason == "Lost: read timed out"


@pytest.mark.parametrize("answer", ["nonsense", 7, raising(RuntimeError("a bug"))])
def test_a_classification_that_fails_is_unknown(
    ledger: Ledger, witness: Witness, answer: Any
) -> None:
    """A mistake in classify= costs neither the record nor the effect's safety."""
    shop = Shop(ledger, classify=lambda error: answer(error) if callable(answer) else answer)
    shop.does = [raising(Lost())]
    with pytest.raises(OutcomeUnknown):
        shop.ship("O-1")
    assert witness.state("O-1") is State.UNKNOWN


def test_a_classification_may_answer_in_words(ledger: Ledger, witness: Witness) -> None:
    """``"not_sent"`` is as good as the enum; None asks the defaults."""
    shop = Shop(ledger, classify=lambda _error: "not_sent")
    shop.does = [raising(Lost())]
    with pytest.raises(Lost):
        shop.ship("O-1")
    assert witness.find("O-1") is None
    shop = Shop(ledger, classify=lambda _error: None)
    shop.does = [raising(ConnectionRefusedError())]
    with pytest.raises(ConnectionRefusedError):
        shop.ship("O-1")
    assert witness.find("O-1") is None


def test_an_interrupt_before_the_key_was_taken_undoes_the_claim(
    ledger: Ledger, witness: Witness
) -> None:
    """The tool asks a person first and has sent nothing yet."""
    shop = Shop(ledger)
    shop.does = [raising(GraphInterrupt((Interrupt("really?"),)))]
    with pytest.raises(GraphInterrupt):
        shop.ship("O-1")
    assert witness.find("O-1") is None
    assert shop.ship("O-1") == 1


def test_an_interrupt_after_the_key_was_taken_is_unknown(ledger: Ledger, witness: Witness) -> None:
    """The key was handed out for sending: nobody can know whether it was sent."""
    shop = Shop(ledger)
    shop.does = [_interrupted_after]
    with pytest.raises(GraphInterrupt):
        shop.ship("O-1")
    assert witness.state("O-1") is State.UNKNOWN


@pytest.mark.parametrize("within", [True, False], ids=["timeout in the tool", "timeout around it"])
async def test_a_time_out_after_dispatch_is_written_down(witness: Witness, *, within: bool) -> None:
    """The outcome is recorded although the task is being cancelled; no connection leaks."""
    sent = []
    async with Ledger(witness.url) as ledger:

        @ledger.remote(key=("order_id",), operation="ship", on_unknown="raise")
        async def ship(effect: Effect, /, order_id: str) -> None:
            sent.append(effect.idempotency_key)
            await asyncio.wait_for(asyncio.sleep(60), 0.05 if within else None)

        with pytest.raises((OutcomeUnknown, asyncio.TimeoutError)):
            await asyncio.wait_for(ship("O-1"), None if within else 1.0)
        engine: Any = ledger._engines.awaiting()
        assert engine.pool.checkedout() == 0
        with pytest.raises(OutcomeUnknown):
            await ship("O-1")
    assert (len(sent), witness.state("O-1")) == (1, State.UNKNOWN)


@pytest.mark.parametrize(
    ("statement", "state"), [("lose", State.UNKNOWN), ("complete", State.SUCCEEDED)]
)
async def test_a_cancel_while_the_outcome_is_recorded(
    witness: Witness, statement: str, state: State
) -> None:
    """However often it is cancelled: what is known is written down before the cancel goes on."""
    async with Ledger(witness.url) as ledger:

        @ledger.remote(key=("order_id",), operation="ship")
        async def ship(effect: Effect, /, order_id: str) -> None:
            if state is State.UNKNOWN:
                raise asyncio.CancelledError

        record = getattr(ledger._statements, statement)

        def cancelled_meanwhile(*args: Any) -> Any:
            loop.call_soon_threadsafe(task.cancel)
            time.sleep(0.1)  # in the driver's thread, where there is one: the cancel comes first
            return record(*args)

        loop = asyncio.get_running_loop()
        setattr(ledger._statements, statement, cancelled_meanwhile)
        task: asyncio.Task[Any] = asyncio.ensure_future(ship("O-1"))
        with pytest.raises(asyncio.CancelledError):
            await task
    assert witness.state("O-1") is state


async def test_cancelled_before_anything_was_sent(witness: Witness) -> None:
    """A cancel right after the claim's commit takes the claim back: nothing is open."""
    async with Ledger(witness.url) as ledger:
        sent = []

        @ledger.remote(key=("order_id",), operation="ship")
        async def ship(effect: Effect, /, order_id: str) -> None:
            sent.append(order_id)

        claim = ledger._statements.claim

        def claim_and_cancel(conn: Any, call: Any) -> Any:
            loop.call_soon_threadsafe(task.cancel)
            return claim(conn, call)

        loop = asyncio.get_running_loop()
        ledger._statements.claim = claim_and_cancel  # type: ignore[method-assign]  # to be timely
        task: asyncio.Task[Any] = asyncio.ensure_future(ship("O-1"))
        with pytest.raises(asyncio.CancelledError):
            await task
    assert sent == []
    assert witness.find("O-1") is None


# --- leases ---------------------------------------------------------------------------------------


def _left_by_a_dead_attempt(shop: Shop, witness: Witness) -> None:
    """Leave a claim of an attempt that ended without a word."""
    shop.does = [raising(Lost())]
    with pytest.raises(OutcomeUnknown):
        shop.ship("O-1")
    with witness.engine.begin() as conn:
        conn.exec_driver_sql("update idem_effects set state = 'claimed', reason = null")


def test_a_claim_is_respected_while_its_lease_holds(ledger: Ledger, witness: Witness) -> None:
    """Busy, with the time at which asking again makes sense; after it, found out about."""
    shop = Shop(ledger, lookup=True)
    _left_by_a_dead_attempt(shop, witness)
    shop.finds, asked = Found(7), shop.asked
    with pytest.raises(EffectBusy) as busy:
        shop.ship("O-1")
    assert busy.value.retry_at is not None
    assert 50 < (busy.value.retry_at - datetime.now(timezone.utc)).total_seconds() < 70
    assert shop.asked == asked
    witness.age("O-1", 61)
    assert shop.ship("O-1") == 7
    assert shop.sent == []


def test_expiry_alone_never_permits_a_second_call(ledger: Ledger, witness: Witness) -> None:
    """Where nobody can tell, an expired claim becomes unknown; it is not done again."""
    shop = Shop(ledger)
    _left_by_a_dead_attempt(shop, witness)
    witness.age("O-1", DAY)
    with pytest.raises(OutcomeUnknown, match="resolve"):
        shop.ship("O-1")
    assert (shop.sent, witness.state("O-1")) == ([], State.UNKNOWN)


def test_a_lease_of_none_never_ends(ledger: Ledger, witness: Witness) -> None:
    """Busy for ever, and nobody knows when to ask again; a person can settle it."""
    shop = Shop(ledger, lease=None, lookup=True)
    _left_by_a_dead_attempt(shop, witness)
    shop.finds = Found(7)
    witness.age("O-1", 1000 * DAY)
    with pytest.raises(EffectBusy) as busy:
        shop.ship("O-1")
    assert busy.value.retry_at is None
    ledger.resolve("ship", "O-1", "succeeded", result=3, by="Ann")
    assert shop.ship("O-1") == 3


def test_a_lease_of_zero_presumes_nobody_alive(ledger: Ledger, witness: Witness) -> None:
    """A claim is found out about at once."""
    shop = Shop(ledger, lease=0, lookup=True)
    _left_by_a_dead_attempt(shop, witness)
    shop.finds = Found(7)
    assert shop.ship("O-1") == 7
    assert Shop(ledger, lease=0).ship("O-2") == 1


# --- the provider's memory ------------------------------------------------------------------------


def test_the_same_key_is_sent_again_while_it_is_kept(ledger: Ledger, witness: Witness) -> None:
    """A lost answer is made good within the same call, by the very same key."""
    shop = Shop(ledger, provider_keeps_key=DAY)

    def acts_and_loses(_effect: Effect) -> None:
        shop.sent.append("first")
        raise Lost

    shop.does = [acts_and_loses]
    assert shop.ship("O-1") == 2
    assert witness.record("O-1").attempts == 2


@pytest.mark.parametrize("kept", [None, 0, 3600])
def test_a_key_that_is_not_kept_is_never_sent_again(
    ledger: Ledger, witness: Witness, kept: float | None
) -> None:
    """No memory, or one that is over, counted from the first attempt."""
    shop = Shop(ledger, provider_keeps_key=kept)
    shop.does = [raising(Lost()), raising(Lost())]
    with pytest.raises(OutcomeUnknown):
        shop.ship("O-1")
    shop.does.clear()
    witness.age("O-1", 3600 - 59, "began_at")
    with pytest.raises(OutcomeUnknown):
        shop.ship("O-1")
    assert (shop.sent, witness.state("O-1")) == ([], State.UNKNOWN)


def test_a_slow_look_up_may_outlast_the_providers_memory(ledger: Ledger, witness: Witness) -> None:
    """The key's time is checked right before it is sent, not when it was first looked at."""
    shop = Shop(ledger, provider_keeps_key=DAY, lookup=True)

    def slow(_effect: Effect) -> Any:
        witness.age("O-1", DAY, "began_at")
        return DONT_KNOW

    shop.does, shop.finds = [raising(Lost())], slow
    with pytest.raises(OutcomeUnknown):
        shop.ship("O-1")
    assert (shop.sent, witness.state("O-1")) == ([], State.UNKNOWN)


def test_failing_twice_is_enough_for_one_call(ledger: Ledger) -> None:
    """The provider does not answer: the same key is sent once more, not for ever."""
    shop = Shop(ledger, provider_keeps_key=DAY)
    shop.does = [raising(Lost()), raising(Lost())]
    with pytest.raises(OutcomeUnknown):
        shop.ship("O-1")
    assert shop.does == []
    assert shop.ship("O-1") == 1


def test_a_second_sending_that_was_not_sent_does_not_undo_the_first(
    ledger: Ledger, witness: Witness
) -> None:
    """What an earlier attempt may have done is not undone by a later one's failure."""
    for verdict in (Verdict.NOT_SENT, Verdict.REFUSED):
        shop = Shop(ledger, provider_keeps_key=DAY, classify=_first_unknown_then(verdict))
        shop.does = [raising(Lost("first")), raising(Lost("second"))]
        with pytest.raises(OutcomeUnknown):
            shop.ship(f"O-{verdict}")
        assert witness.state(f"O-{verdict}") is State.UNKNOWN


def _first_unknown_then(verdict: Verdict) -> Callable[[BaseException], Verdict]:
    return lambda error: Verdict.UNKNOWN if str(error) == "first" else verdict


# --- look-ups -------------------------------------------------------------------------------------


def test_absent_is_no_proof_within_the_lease(ledger: Ledger, witness: Witness) -> None:
    """The request may still be on its way; once the lease is over it is not."""
    shop = Shop(ledger, lookup=True)
    shop.does, shop.finds = [raising(Lost())], ABSENT
    for _ in range(2):
        with pytest.raises(OutcomeUnknown):
            shop.ship("O-1")
    assert (shop.sent, witness.state("O-1")) == ([], State.UNKNOWN)
    witness.age("O-1", 61)
    assert shop.ship("O-1") == 1
    assert len(shop.sent) == 1


def test_looking_up_does_not_prolong_the_time_in_which_absent_is_no_proof(
    ledger: Ledger, witness: Witness
) -> None:
    """The lease of the attempt that sent counts, not that of those who merely asked since."""
    shop = Shop(ledger, lookup=True)
    shop.does, shop.finds = [raising(Lost())], DONT_KNOW
    with pytest.raises(OutcomeUnknown):
        shop.ship("O-1")
    witness.age("O-1", 61, "sent_at")
    with pytest.raises(OutcomeUnknown):
        shop.ship("O-1")
    shop.finds = ABSENT
    assert shop.ship("O-1") == 1


@pytest.mark.parametrize(
    "answer",
    [DONT_KNOW, None, True, "yes", Found, raising(RuntimeError("down"))],
)
def test_whatever_else_a_look_up_says_it_does_not_know(
    ledger: Ledger, witness: Witness, answer: Any
) -> None:
    """None, an answer of a wrong type, a failure: none of them is "absent"."""
    shop = Shop(ledger, lookup=True)
    is_step = callable(answer) and answer is not Found
    shop.finds = answer if is_step else (lambda _effect: answer)
    shop.does = [raising(Lost())]
    with pytest.raises(OutcomeUnknown):
        shop.ship("O-1")
    witness.age("O-1", DAY)
    with pytest.raises(OutcomeUnknown):
        shop.ship("O-1")
    assert (shop.sent, witness.state("O-1")) == ([], State.UNKNOWN)


def test_found_without_a_result_is_a_success_all_the_same(ledger: Ledger, witness: Witness) -> None:
    """Many a provider can say no more than that it happened."""
    shop = Shop(ledger, lookup=True)
    shop.does, shop.finds = [raising(Lost())], Found()
    for _ in range(2):
        answer: Any = shop.ship("O-1")
        assert answer is None
    assert (witness.state("O-1"), witness.record("O-1").result) == (State.SUCCEEDED, None)


def test_a_look_up_is_told_all_arguments(witness: Witness) -> None:
    """Defaults and ignored ones included, whether arguments are kept in the ledger or not."""
    told: list[Effect] = []

    def find(effect: Effect) -> Any:
        told.append(effect)
        return Found(1)

    with Ledger(witness.url, keep_arguments=False) as ledger:

        @ledger.remote(
            key=("order_id",),
            operation="ship",
            ignore=("memo",),
            lookup=find,
        )
        def ship(effect: Effect, /, order_id: str, memo: str, currency: str = "eur") -> int:
            raise Lost

        assert ship("O-1", "a memo") == 1
    assert told[0].arguments == {"order_id": "O-1", "memo": "a memo", "currency": "eur"}
    assert (told[0].attempt, told[0].evidence) == (2, "Lost")
    assert witness.record("O-1").arguments is None


async def test_an_async_tool_may_look_up_in_any_colour(witness: Witness) -> None:
    """A coroutine function, a plain function, a function that returns a coroutine."""

    async def find(_effect: Effect) -> Any:
        return Found(7)

    def unlike(effect: Effect) -> Any:
        return find(effect)

    async with Ledger(witness.url) as ledger:
        for number, lookup in enumerate((find, lambda _effect: Found(7), unlike)):

            @ledger.remote(key=("order_id",), operation="ship", lookup=lookup)
            async def ship(effect: Effect, /, order_id: str) -> int:
                raise Lost

            assert await ship(f"O-{number}") == 7


async def test_a_look_up_that_is_cancelled_holds_nobody_up(witness: Witness) -> None:
    """The claim that was taken over in order to look up goes back to unknown at once."""

    async def find(_effect: Effect) -> Any:
        await asyncio.sleep(60)

    async with Ledger(witness.url, wait=0) as ledger:

        @ledger.remote(key=("order_id",), operation="ship", lookup=find)
        async def ship(effect: Effect, /, order_id: str) -> int:
            raise Lost

        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(ship("O-1"), 1)
    assert witness.state("O-1") is State.UNKNOWN


# --- late answers ---------------------------------------------------------------------------------


def _slow(ledger: Ledger, meanwhile: Callable[[], Any], answer: Any = 41) -> Callable[[str], Any]:
    """Make the same operation's tool, whose call takes as long as something else does."""

    @ledger.remote(key=("order_id",), operation="ship", lease=60.0, on_unknown="raise")
    def ship(effect: Effect, /, order_id: str) -> int:
        meanwhile()
        if isinstance(answer, Exception):
            raise answer
        return int(answer)

    made: Callable[[str], Any] = ship
    return made


def test_a_late_answer_settles_what_nobody_settled(ledger: Ledger, witness: Witness) -> None:
    """Its lease ran out, another attempt found nothing out; then the answer came."""
    other = Shop(ledger)

    def overtaken() -> None:
        witness.age("O-1", 61)
        with pytest.raises(OutcomeUnknown):
            other.ship("O-1")

    assert _slow(ledger, overtaken)("O-1") == 41
    record = witness.record("O-1")
    assert (record.state, record.result, record.evidence) == (State.SUCCEEDED, "41", "41")


def test_a_late_answer_overtakes_a_persons_released(ledger: Ledger, witness: Witness) -> None:
    """A person said that it had not happened; the proof of the contrary is stronger."""

    def released() -> None:
        witness.age("O-1", 61)
        ledger.resolve("ship", "O-1", "released", by="Ann")

    assert _slow(ledger, released)("O-1") == 41
    assert witness.state("O-1") is State.SUCCEEDED


def test_a_late_answer_does_not_change_what_is_settled(ledger: Ledger, witness: Witness) -> None:
    """The completion is fenced, the recorded result is returned, the evidence is kept."""

    def settled() -> None:
        witness.age("O-1", 61)
        ledger.resolve("ship", "O-1", "succeeded", result=5, by="Ann")

    assert _slow(ledger, settled)("O-1") == 5
    record = witness.record("O-1")
    assert (record.result, record.evidence, record.resolved_by) == ("5", "41", "Ann")


def test_a_late_answer_outweighs_the_holders_refusal(ledger: Ledger, witness: Witness) -> None:
    """The first attempt's success came while the second was at it: no failure is recorded."""
    kept = 41

    def second() -> None:
        witness.age("O-1", 61)
        third = Shop(ledger, lookup=True, classify=lambda _error: Verdict.REFUSED)
        third.finds = ABSENT
        third.does = [testify]
        assert third.ship("O-1") == kept
        assert third.sent == []

    def testify(_effect: Effect) -> None:
        with witness.engine.begin() as conn:
            conn.exec_driver_sql(f"update idem_effects set evidence = '{kept}'")
        raise Lost

    assert _slow(ledger, second)("O-1") == kept
    assert (witness.state("O-1"), witness.record("O-1").result) == (State.SUCCEEDED, "41")


def test_a_row_that_somebody_deleted_is_not_done_again(ledger: Ledger, witness: Witness) -> None:
    """The answer came, the row was gone: the success is recorded all the same."""
    calls = []

    def deleted() -> None:
        calls.append("sent")
        with witness.engine.begin() as conn:
            conn.exec_driver_sql("delete from idem_effects")

    assert _slow(ledger, deleted)("O-1") == 41
    assert (calls, witness.state("O-1")) == (["sent"], State.SUCCEEDED)


# --- the call and its result ----------------------------------------------------------------------


def test_other_arguments_are_refused(ledger: Ledger) -> None:
    """The same key with other arguments is another wish: nothing is sent."""
    shop = Shop(ledger)
    assert shop.ship("O-1", cents=5) == 1
    with pytest.raises(ArgumentsChanged) as changed:
        shop.ship("O-1", cents=6)
    assert (changed.value.changed, len(shop.sent)) == (("cents",), 1)


def test_a_result_that_cannot_be_kept_does_not_cost_the_success(
    ledger: Ledger, witness: Witness
) -> None:
    """It happened: that is recorded, and said; a replay has no result to return."""
    sent = []

    @ledger.remote(key=("order_id",), operation="ship")
    def ship(effect: Effect, /, order_id: str) -> Any:
        sent.append(order_id)
        return object()

    with pytest.raises(ResultNotStorable, match="took hold and is recorded") as refused:
        ship("O-1")
    assert refused.value.effect_happened
    assert ship("O-1") is None
    assert (sent, witness.state("O-1")) == (["O-1"], State.SUCCEEDED)


def test_late_evidence_without_a_result_can_be_replayed(ledger: Ledger, witness: Witness) -> None:
    """A late answer that cannot be kept still proves that it happened."""

    class Shipped(BaseModel):
        number: int

    @ledger.remote(key=("order_id",), operation="ship", lease=60.0, on_unknown="raise")
    def ship(effect: Effect, /, order_id: str) -> Shipped:
        witness.age("O-1", 61)
        with pytest.raises(OutcomeUnknown):
            Shop(ledger).ship("O-1")
        return object()  # type: ignore[return-value]  # that is the mistake

    with pytest.raises(ResultNotStorable):
        ship("O-1")
    assert ship("O-1") is None
    assert witness.state("O-1") is State.SUCCEEDED


# --- losers wait ----------------------------------------------------------------------------------


def test_a_loser_waits_in_bounds_and_without_a_busy_loop(witness: Witness) -> None:
    """A second of waiting is a handful of looks, little work, and ends with EffectBusy."""
    looks = []
    with Ledger(witness.url, wait=0) as ledger:
        shop = Shop(ledger, wait=1.0)
        _left_by_a_dead_attempt(shop, witness)
        claim = ledger._statements.claim

        def counted(conn: Any, call: Any) -> Any:
            looks.append(call)
            return claim(conn, call)

        ledger._statements.claim = counted  # type: ignore[method-assign]  # to count
        began = time.monotonic()
        with pytest.raises(EffectBusy):
            shop.ship("O-1")
        took = time.monotonic() - began
    assert 1.0 <= took < 5.0
    assert len(looks) <= 10


# --- a person's word ------------------------------------------------------------------------------


def _unknown(shop: Shop) -> None:
    shop.does = [raising(Lost())]
    with pytest.raises(OutcomeUnknown):
        shop.ship("O-1")


def test_a_persons_succeeded(ledger: Ledger, witness: Witness) -> None:
    """It happened: replays return what the person said the result was; who and why is kept."""
    shop = Shop(ledger)
    _unknown(shop)
    record = ledger.resolve("ship", "O-1", "succeeded", result=9, by="Ann", note="saw it")
    assert (record.state, record.resolved_by, record.note) == (State.SUCCEEDED, "Ann", "saw it")
    assert (shop.ship("O-1"), shop.sent) == (9, [])


def test_a_persons_failed(ledger: Ledger) -> None:
    """It did not happen and shall not."""
    shop = Shop(ledger)
    _unknown(shop)
    ledger.resolve("ship", "O-1", State.FAILED, by="Ann")
    with pytest.raises(RecordedFailure):
        shop.ship("O-1")
    assert shop.sent == []


async def test_a_persons_released(witness: Witness) -> None:
    """It did not happen and may be done, with other arguments too; it is done once."""
    async with Ledger(witness.url, wait=0) as ledger:
        shop = Shop(ledger)
        _unknown(shop)
        await ledger.aresolve("ship", "O-1", "released", by="Ann")
        assert shop.ship("O-1", cents=6) == 1
        assert shop.ship("O-1", cents=6) == 1
        with pytest.raises(ArgumentsChanged):
            shop.ship("O-1", cents=5)
    assert len(shop.sent) == 1


def test_a_released_effect_that_was_refused_by_the_wire_stays_released(
    ledger: Ledger, witness: Witness
) -> None:
    """Nothing left this time either: the row and its story stay, and it may be tried again."""
    shop = Shop(ledger)
    _unknown(shop)
    ledger.resolve("ship", "O-1", "released")
    shop.does = [raising(ConnectionRefusedError())]
    with pytest.raises(ConnectionRefusedError):
        shop.ship("O-1")
    assert witness.state("O-1") is State.RELEASED
    assert shop.ship("O-1") == 1


@pytest.mark.parametrize("word", ["succeeded", "failed", "released"])
def test_what_a_person_may_not_settle(ledger: Ledger, witness: Witness, word: str) -> None:
    """Nothing that is settled, alive, released already, or that never was."""
    shop = Shop(ledger)
    with pytest.raises(TransitionForbidden, match="nothing was ever claimed"):
        ledger.resolve("ship", "O-9", word)
    _left_by_a_dead_attempt(shop, witness)
    with pytest.raises(TransitionForbidden, match="may be alive"):
        ledger.resolve("ship", "O-1", word)
    for state in ("succeeded", "failed", "released"):
        with witness.engine.begin() as conn:
            conn.exec_driver_sql(f"update idem_effects set state = '{state}'")
        before = witness.record("O-1")
        with pytest.raises(TransitionForbidden, match=state):
            ledger.resolve("ship", "O-1", word)
        assert witness.record("O-1") == before


def test_a_persons_word_cannot_be_anything(ledger: Ledger) -> None:
    """A mistyped word is refused before anything is read."""
    with pytest.raises(ConfigurationError, match="succeeded"):
        ledger.resolve("ship", "O-1", "done")


def test_a_person_cannot_deny_a_late_answer(ledger: Ledger, witness: Witness) -> None:
    """An expired claim with an answer of an earlier attempt can only be a success."""
    shop = Shop(ledger)
    _left_by_a_dead_attempt(shop, witness)
    witness.age("O-1", 61)
    with witness.engine.begin() as conn:
        conn.exec_driver_sql("update idem_effects set evidence = '41'")
    for word in ("failed", "released"):
        with pytest.raises(TransitionForbidden, match="happened"):
            ledger.resolve("ship", "O-1", word)
    ledger.resolve("ship", "O-1", "succeeded")
    assert (shop.ship("O-1"), shop.sent) == (41, [])
