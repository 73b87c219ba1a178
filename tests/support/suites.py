"""Our ledger behind other projects' interfaces, so that their suites can judge it.

The adapters add no rule of their own: each question goes to the ledger's own statements and to
:func:`langgraph_idem.decisions.decide`, which are what guarded tools run.
"""

from __future__ import annotations

import asyncio
import base64
import json
import uuid
from typing import TYPE_CHECKING, Any, Final, TypeVar

from idemkit.core import state as idemkit
from justonce.stores import base as justonce

from langgraph_idem import protocols
from langgraph_idem.codec import PydanticCodec
from langgraph_idem.decisions import Call, Execute, decide, lease_end
from langgraph_idem.effects import EffectRecord, Kind, State
from langgraph_idem.keys import GLOBAL
from langgraph_idem.ports import run_blocking

if TYPE_CHECKING:
    from collections.abc import Callable

    import sqlalchemy as sa

    from langgraph_idem.ledger import Ledger

T = TypeVar("T")

OPERATION: Final = "theirs"
_JSON: Final = PydanticCodec(OPERATION, Any)


def _call(key: str, fingerprint: str, attempt_id: str, lease_seconds: float | None = None) -> Call:
    return Call(
        scope=GLOBAL,
        operation=OPERATION,
        key=key,
        kind=Kind.REMOTE,
        fingerprint=fingerprint,
        arguments=None,
        attempt_id=attempt_id,
        lease_seconds=lease_seconds,
    )


def _new_call(key: str, fingerprint: str, lease_seconds: float) -> Call:
    # Theirs go below zero to say "expired already"; ours end at once with 0.
    return _call(key, fingerprint, uuid.uuid4().hex, max(0.0, lease_seconds))


def _claimed(statements: Any, conn: sa.Connection, call: Call) -> EffectRecord | None:
    """Claim; return the record that stands in the way, or None if the effect may be done."""
    seen = statements.claim(conn, call)
    if seen is None or isinstance(decide(seen, call), Execute):
        return None
    found: EffectRecord = seen.record
    return found


# --- justonce -----------------------------------------------------------------------------------

_JUSTONCE_STATES: Final = {
    State.CLAIMED: justonce.State.IN_PROGRESS,
    State.SUCCEEDED: justonce.State.SUCCEEDED,
    State.FAILED: justonce.State.FAILED,
    State.UNKNOWN: justonce.State.UNKNOWN,
}


class JustonceStore:
    """justonce's ``Store`` over a ledger, on the blocking site.

    Their contract names no attempt, so an outcome is recorded for whichever attempt holds the key.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._statements = ledger._statements

    def claim(self, key: str, request_hash: str, ttl_seconds: float) -> justonce.Claim:
        """Claim; a lease that is over is no permission to do the effect again."""
        call = _new_call(key, request_hash, ttl_seconds)
        found = self._keep(lambda conn: _claimed(self._statements, conn, call))
        if found is None:
            return justonce.Claim(won=True)
        return justonce.Claim(won=False, record=_justonce_record(found))

    def complete(self, key: str, response: Any, *, retention_seconds: float | None = None) -> None:
        """Record a success; the ledger keeps it for ever."""
        text = _JSON.encode(response)
        self._settle(key, lambda conn, call: self._statements.complete(conn, call, text))

    def fail(self, key: str, *, terminal: bool, retention_seconds: float | None = None) -> None:
        """Record a refusal, or that nothing was sent."""
        if terminal:
            self._settle(key, lambda conn, call: self._statements.fail(conn, call, "refused"))
        else:
            self._settle(key, self._statements.release)

    def mark_unknown(self, key: str) -> None:
        """Record that nobody can know."""
        self._settle(key, lambda conn, call: self._statements.lose(conn, call, "lost"))

    def lookup(self, key: str) -> justonce.Record | None:
        """Read the record."""
        found = self._ledger.effect(OPERATION, key)
        return None if found is None else _justonce_record(found)

    def sweep(self, *, before: float) -> int:
        """Delete nothing: the ledger forgets no effect by itself."""
        return 0

    def unresolved(
        self, *, older_than: float | None = None, limit: int = 100
    ) -> list[justonce.Record]:
        """List what nobody knows."""
        found = self._ledger.effects(state=State.UNKNOWN, limit=limit)
        return [_justonce_record(record) for record in found]

    def _settle(self, key: str, work: Callable[[sa.Connection, Call], bool]) -> None:
        found = self._ledger.effect(OPERATION, key)
        assert found is not None
        call = _call(key, found.fingerprint, found.attempt_id)
        assert self._keep(lambda conn: work(conn, call)), "the claim was not ours any more"

    def _keep(self, work: Callable[[sa.Connection], T]) -> T:
        return run_blocking(protocols.own_work(self._ledger._blocking(), work, keep=True))


def _justonce_record(record: EffectRecord) -> justonce.Record:
    return justonce.Record(
        key=record.key,
        state=_JUSTONCE_STATES[record.state],
        request_hash=record.fingerprint,
        response=justonce.decode_response(record.result),
        attempts=record.attempts,
    )


# --- idemkit ----------------------------------------------------------------------------------


class IdemkitBackend:
    """idemkit's ``IdempotencyBackend`` over a ledger, on the awaiting site."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._statements = ledger._statements

    async def claim(
        self,
        effective_key: str,
        fingerprint: str,
        fingerprint_version: int,
        lease_ttl_seconds: float,
    ) -> idemkit.ClaimResult:
        """Claim; a lease that is over is no permission to do the effect again."""
        call = _new_call(effective_key, fingerprint, lease_ttl_seconds)
        found = await self._keep(lambda conn: _claimed(self._statements, conn, call))
        if found is None:
            ours = await self._standing(effective_key)
            types = idemkit.ClaimResultType
            return idemkit.ClaimResult(types.NEW_CLAIMED, ours, our_claim_token=call.attempt_id)
        return idemkit.ClaimResult(_idemkit_word(found), _idemkit_record(found))

    async def complete(
        self,
        effective_key: str,
        claim_token: str,
        response_status: int,
        response_headers: dict[str, str],
        response_body: bytes,
        expires_after_seconds: float,
    ) -> bool:
        """Record a success under the fencing token; the ledger keeps it for ever."""
        body = base64.b64encode(response_body).decode()
        text = _JSON.encode([response_status, response_headers, body])
        call = _call(effective_key, "", claim_token)
        return await self._keep(lambda conn: self._statements.complete(conn, call, text))

    async def release(self, effective_key: str, claim_token: str) -> bool:
        """Undo the claim under the fencing token."""
        call = _call(effective_key, "", claim_token)
        return await self._keep(lambda conn: self._statements.release(conn, call))

    async def renew(self, effective_key: str, claim_token: str, lease_ttl_seconds: float) -> bool:
        """Begin the lease anew under the fencing token; its length stays what it was."""
        call = _call(effective_key, "", claim_token)
        return await self._keep(lambda conn: self._statements.renew(conn, call))

    async def wait_for_completion(
        self, effective_key: str, timeout_seconds: float
    ) -> idemkit.StoredRecord | None:
        """Look until the result is there, as the loser of a race does."""
        end = asyncio.get_running_loop().time() + timeout_seconds
        while asyncio.get_running_loop().time() < end:
            record = await self._standing(effective_key)
            if record.state is idemkit.State.COMPLETED:
                return record
            await asyncio.sleep(0.02)
        return None

    async def _standing(self, key: str) -> idemkit.StoredRecord:
        found = await self._ledger.aeffect(OPERATION, key)
        assert found is not None
        return _idemkit_record(found)

    async def _keep(self, work: Callable[[sa.Connection], T]) -> T:
        return await protocols.own_work(self._ledger._awaiting(), work, keep=True)


def _idemkit_word(record: EffectRecord) -> idemkit.ClaimResultType:
    done = record.state is State.SUCCEEDED
    types = idemkit.ClaimResultType
    return types.ALREADY_COMPLETED if done else types.ALREADY_CLAIMED


def _idemkit_record(record: EffectRecord) -> idemkit.StoredRecord:
    status, headers, body = json.loads(record.result) if record.result else (None, {}, "")
    end = lease_end(record)
    done = record.state is State.SUCCEEDED
    return idemkit.StoredRecord(
        effective_key=record.key,
        state=idemkit.State.COMPLETED if done else idemkit.State.CLAIMED,
        fingerprint=record.fingerprint,
        fingerprint_version=1,
        claim_token=record.attempt_id,
        claimed_at=record.claimed_at.timestamp(),
        lease_until=end.timestamp() if end else float("inf"),
        response_status=status,
        response_headers=headers,
        response_body=base64.b64decode(body),
    )
