"""The ledger's SQL, written once, for a plain ``Connection``.

Every statement is built when the ledger is made, so that an effect pays for none of it.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy import bindparam, func

from langgraph_idem.codec import CODEC_VERSION
from langgraph_idem.decisions import Seen
from langgraph_idem.effects import EffectRecord, Kind, Origin, State
from langgraph_idem.sql.dialects import arbitrated_insert
from langgraph_idem.sql.prepared import Prepared
from langgraph_idem.sql.schema import db_now

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from langgraph_idem.decisions import Call, Word
    from langgraph_idem.sql.schema import LedgerTables


class LedgerStatements:
    """The statements of one ledger on one kind of database."""

    def __init__(self, tables: LedgerTables, dialect: str, wait_seconds: float) -> None:
        effects = self._effects = tables.effects
        self._this_effect = sa.and_(
            effects.c.scope == bindparam("p_scope"),
            effects.c.operation == bindparam("p_operation"),
            effects.c.key == bindparam("p_key"),
        )
        self._mine = sa.and_(
            self._this_effect,
            effects.c.attempt_id == bindparam("p_attempt"),
            effects.c.state == State.CLAIMED.value,
        )
        # An attempt may come back to where it was, under the same id: having sent once more, or
        # having taken over to look. Only the number of attempts and the times tell.
        self._as_found = sa.and_(
            self._this_effect,
            effects.c.attempt_id == bindparam("p_attempt"),
            effects.c.state == bindparam("p_state"),
            effects.c.attempts == bindparam("p_attempts"),
            effects.c.claimed_at == bindparam("p_claimed_at", type_=effects.c.claimed_at.type),
        )
        self._claim = arbitrated_insert(effects, dialect, wait_seconds)
        self._read = sa.select(effects, db_now().label("now")).where(self._this_effect)
        self._settle = Prepared(
            sa.update(effects)
            .where(self._mine)
            .values(
                state=bindparam("v_state"),
                result=bindparam("v_result"),
                codec=bindparam("v_codec"),
                reason=bindparam("v_reason"),
                settled_at=db_now(),
            )
        )
        self._forget = sa.delete(effects).where(self._mine, effects.c.attempts == 1)
        self._release = (
            sa.update(effects)
            .where(self._mine, effects.c.evidence.is_(None))
            .values(state=State.RELEASED.value, settled_at=db_now())
        )
        self._renew = (
            sa.update(effects).where(self._mine).values(claimed_at=db_now(), sent_at=db_now())
        )
        self._lose = self._unless_told(effects, State.UNKNOWN)
        self._fail = self._unless_told(effects, State.FAILED)
        self._take = self._taking(effects)
        self._testify = self._testifying(effects)
        self._resolve = self._resolving(effects)

    def claim(self, conn: sa.Connection, call: Call) -> Seen | None:
        """Insert the claim; return None if it won, else the row that was there before.

        The insert alone decides the race. Should the row be gone again by the time we read it
        (its holder released it), the insert is tried once more.
        """
        values = _claim_values(call)
        while not self._claim(conn, values):
            found = self.read(conn, call.scope, call.operation, call.key)
            if found is not None:
                return found
        return None

    def read(self, conn: sa.Connection, scope: str, operation: str, key: str) -> Seen | None:
        """Read a row and the database's time."""
        where = {"p_scope": scope, "p_operation": operation, "p_key": key}
        row = conn.execute(self._read, where).mappings().first()
        return None if row is None else Seen(record_of(row), _now_of(row))

    def standing(self, conn: sa.Connection, call: Call) -> Seen | None:
        """Read the row of a call's effect."""
        return self.read(conn, call.scope, call.operation, call.key)

    def complete(self, conn: sa.Connection, call: Call, result: str | None) -> bool:
        """Record success under the fencing token; tell whether the claim was still ours."""
        codec = None if result is None else CODEC_VERSION
        return self._settled(conn, call, State.SUCCEEDED, result=result, codec=codec)

    def fail(self, conn: sa.Connection, call: Call, reason: str) -> bool:
        """Record a final failure; evidence of an earlier attempt makes it a success."""
        return _changed_one(conn, self._fail, {**_mine(call), "v_reason": reason})

    def lose(self, conn: sa.Connection, call: Call, reason: str) -> bool:
        """Record that nobody can know; evidence that came meanwhile makes it a success."""
        return _changed_one(conn, self._lose, {**_mine(call), "v_reason": reason})

    def release(self, conn: sa.Connection, call: Call) -> bool:
        """Undo a claim whose attempt did not reach the world.

        A first attempt leaves no trace; after earlier ones the row stays, for their story. Should
        one of them have left evidence meanwhile, that settles it.
        """
        mine = _mine(call)
        return (
            _changed_one(conn, self._forget, mine)
            or _changed_one(conn, self._release, mine)
            or self.lose(conn, call, "")
        )

    def renew(self, conn: sa.Connection, call: Call) -> bool:
        """Begin the lease anew right before sending again."""
        return _changed_one(conn, self._renew, _mine(call))

    def take_over(self, conn: sa.Connection, call: Call, earlier: EffectRecord) -> bool:
        """Become the holder, if the row is still as it was found."""
        values = {
            **_found(earlier),
            "v_attempt": call.attempt_id,
            "v_fingerprint": call.fingerprint,
            "v_arguments": call.arguments,
            "v_lease": call.lease_seconds,
            "v_approved_by": call.approved_by or earlier.approved_by,
            "v_approval_note": call.approval_note or earlier.approval_note,
        }
        return _changed_one(conn, self._take, values)

    def testify(self, conn: sa.Connection, call: Call, evidence: str) -> bool:
        """Leave a late answer with the row; where nobody settled the effect, it settles it.

        Empty evidence says that it happened, and that there is no result to keep.
        """
        values = {
            "v_evidence": evidence,
            "v_result": evidence or None,
            "v_codec": CODEC_VERSION if evidence else None,
        }
        return _changed_one(conn, self._testify, {**_this_effect(call), **values})

    def resolve(self, conn: sa.Connection, record: EffectRecord, word: Word) -> bool:
        """Record a person's word, if the row is still as that person saw it.

        It takes the row over: an attempt that wakes up later must not take the word for its own.
        """
        values = {
            "v_attempt": uuid.uuid4().hex,
            **_found(record),
            "v_state": word.outcome.value,
            "v_result": word.result,
            "v_codec": None if word.result is None else CODEC_VERSION,
            "v_by": word.by,
            "v_note": word.note,
        }
        return _changed_one(conn, self._resolve, values)

    def _settled(self, conn: sa.Connection, call: Call, state: State, **values: Any) -> bool:
        settled = {"v_state": state.value, "v_result": None, "v_codec": None, "v_reason": None}
        settled |= {f"v_{name}": value for name, value in values.items()}
        return self._settle(conn, {**_mine(call), **settled}).rowcount == 1

    def _unless_told(self, effects: sa.Table, state: State) -> sa.Update:
        """Settle a claim without success, unless an earlier attempt's late answer proves one."""
        told = effects.c.evidence.is_not(None)
        return (
            sa.update(effects)
            .where(self._mine)
            .values(
                state=sa.case((told, State.SUCCEEDED.value), else_=state.value),
                result=func.nullif(effects.c.evidence, ""),
                codec=sa.case((effects.c.evidence != "", CODEC_VERSION), else_=None),
                reason=sa.case((told, None), else_=bindparam("v_reason", type_=sa.Text)),
                settled_at=db_now(),
            )
        )

    def _taking(self, effects: sa.Table) -> sa.Update:
        return (
            sa.update(effects)
            .where(self._as_found)
            .values(
                state=State.CLAIMED.value,
                attempt_id=bindparam("v_attempt"),
                attempts=effects.c.attempts + 1,
                fingerprint=bindparam("v_fingerprint"),
                arguments=bindparam("v_arguments"),
                lease_seconds=bindparam("v_lease"),
                approved_by=bindparam("v_approved_by"),
                approval_note=bindparam("v_approval_note"),
                claimed_at=db_now(),
                settled_at=None,
            )
        )

    def _testifying(self, effects: sa.Table) -> sa.Update:
        open_ = effects.c.state.in_([State.UNKNOWN.value, State.RELEASED.value])
        result, codec = bindparam("v_result", type_=sa.Text), bindparam("v_codec", type_=sa.Integer)

        def if_open(then: Any, column: sa.Column[Any]) -> tuple[sa.Column[Any], Any]:
            return column, sa.case((open_, then), else_=column)

        return (
            sa.update(effects)
            .where(self._this_effect)
            .ordered_values(  # MySQL assigns from left to right: the state comes last
                (effects.c.evidence, bindparam("v_evidence")),
                if_open(result, effects.c.result),
                if_open(codec, effects.c.codec),
                if_open(db_now(), effects.c.settled_at),
                if_open(State.SUCCEEDED.value, effects.c.state),
            )
        )

    def _resolving(self, effects: sa.Table) -> sa.Update:
        return (
            sa.update(effects)
            .where(self._as_found)
            .values(
                attempt_id=bindparam("v_attempt"),
                state=bindparam("v_state"),
                result=bindparam("v_result"),
                codec=bindparam("v_codec"),
                resolved_by=bindparam("v_by"),
                note=bindparam("v_note"),
                settled_at=db_now(),
            )
        )


def _claim_values(call: Call) -> dict[str, Any]:
    return {
        "scope": call.scope,
        "operation": call.operation,
        "key": call.key,
        "kind": call.kind.value,
        "state": State.CLAIMED.value,
        "fingerprint": call.fingerprint,
        "attempt_id": call.attempt_id,
        "attempts": 1,
        "arguments": call.arguments,
        "thread_id": call.origin.thread_id,
        "message_id": call.origin.message_id,
        "tool_call_id": call.origin.tool_call_id,
        "lease_seconds": call.lease_seconds,
        "approved_by": call.approved_by,
        "approval_note": call.approval_note,
    }


def _this_effect(call: Call) -> dict[str, Any]:
    return {"p_scope": call.scope, "p_operation": call.operation, "p_key": call.key}


def _found(record: EffectRecord) -> dict[str, Any]:
    return {
        "p_scope": record.scope,
        "p_operation": record.operation,
        "p_key": record.key,
        "p_attempt": record.attempt_id,
        "p_state": record.state.value,
        "p_attempts": record.attempts,
        "p_claimed_at": record.claimed_at,
    }


def _mine(call: Call) -> dict[str, Any]:
    return {**_this_effect(call), "p_attempt": call.attempt_id}


def _changed_one(conn: sa.Connection, statement: sa.Update | sa.Delete, values: Any) -> bool:
    return conn.execute(statement, values).rowcount == 1


def _now_of(row: Mapping[Any, Any]) -> datetime:
    now: datetime = row["now"]
    return now


def record_of(row: Mapping[Any, Any]) -> EffectRecord:
    """Make the record of a row."""
    values = {str(name): value for name, value in row.items()}
    values.pop("now", None)
    origin = Origin(values.pop("thread_id"), values.pop("message_id"), values.pop("tool_call_id"))
    kind, state = Kind(values.pop("kind")), State(values.pop("state"))
    return EffectRecord(kind=kind, state=state, origin=origin, **values)
