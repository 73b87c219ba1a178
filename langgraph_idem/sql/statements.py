"""The ledger's SQL, written once, for a plain ``Connection``.

Every statement is built when the ledger is made, so that an effect pays for none of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy import bindparam, func

from langgraph_idem.codec import CODEC_VERSION
from langgraph_idem.decisions import Found
from langgraph_idem.effects import EffectRecord, Kind, Origin, State
from langgraph_idem.sql.dialects import arbitrated_insert
from langgraph_idem.sql.schema import db_now

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from langgraph_idem.decisions import Call
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
        self._claim = arbitrated_insert(effects, dialect, wait_seconds)
        self._read = sa.select(effects, db_now().label("now")).where(self._this_effect)
        self._settle = (
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
        self._release = sa.delete(effects).where(self._mine, effects.c.attempts == 1)
        self._lose = self._lost(effects)
        self._take = self._taking(effects)
        self._testify = self._testifying(effects)

    def claim(self, conn: sa.Connection, call: Call) -> Found | None:
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

    def read(self, conn: sa.Connection, scope: str, operation: str, key: str) -> Found | None:
        """Read a row and the database's time."""
        where = {"p_scope": scope, "p_operation": operation, "p_key": key}
        row = conn.execute(self._read, where).mappings().first()
        return None if row is None else Found(record_of(row), _now_of(row))

    def complete(self, conn: sa.Connection, call: Call, result: str | None) -> bool:
        """Record success under the fencing token; tell whether the claim was still ours."""
        codec = None if result is None else CODEC_VERSION
        return self._settled(conn, call, State.SUCCEEDED, result=result, codec=codec)

    def fail(self, conn: sa.Connection, call: Call, reason: str) -> bool:
        """Record a final failure under the fencing token."""
        return self._settled(conn, call, State.FAILED, reason=reason)

    def lose(self, conn: sa.Connection, call: Call, reason: str) -> bool:
        """Record that nobody can know; evidence that came meanwhile makes it a success."""
        return _changed_one(conn, self._lose, {**_mine(call), "v_reason": reason})

    def release(self, conn: sa.Connection, call: Call) -> bool:
        """Undo a first claim whose attempt did not reach the world."""
        return _changed_one(conn, self._release, _mine(call))

    def take_over(self, conn: sa.Connection, call: Call, earlier: EffectRecord) -> bool:
        """Become the holder, if the row is still as it was found."""
        values = {
            **_this_effect(call),
            "p_attempt": earlier.attempt_id,
            "p_state": earlier.state.value,
            "v_attempt": call.attempt_id,
            "v_lease": call.lease_seconds,
        }
        return _changed_one(conn, self._take, values)

    def testify(self, conn: sa.Connection, call: Call, evidence: str) -> bool:
        """Leave a late answer where nobody settled the effect; an unknown one it settles."""
        return _changed_one(conn, self._testify, {**_this_effect(call), "v_evidence": evidence})

    def _settled(self, conn: sa.Connection, call: Call, state: State, **values: Any) -> bool:
        settled = {"v_state": state.value, "v_result": None, "v_codec": None, "v_reason": None}
        settled |= {f"v_{name}": value for name, value in values.items()}
        return _changed_one(conn, self._settle, {**_mine(call), **settled})

    def _lost(self, effects: sa.Table) -> sa.Update:
        told = effects.c.evidence.is_not(None)
        return (
            sa.update(effects)
            .where(self._mine)
            .values(
                state=sa.case((told, State.SUCCEEDED.value), else_=State.UNKNOWN.value),
                result=effects.c.evidence,
                codec=sa.case((told, CODEC_VERSION), else_=None),
                reason=sa.case((told, None), else_=bindparam("v_reason", type_=sa.Text)),
                settled_at=db_now(),
            )
        )

    def _taking(self, effects: sa.Table) -> sa.Update:
        return (
            sa.update(effects)
            .where(
                self._this_effect,
                effects.c.attempt_id == bindparam("p_attempt"),
                effects.c.state == bindparam("p_state"),
            )
            .values(
                state=State.CLAIMED.value,
                attempt_id=bindparam("v_attempt"),
                attempts=effects.c.attempts + 1,
                lease_seconds=bindparam("v_lease"),
                claimed_at=db_now(),
                settled_at=None,
            )
        )

    def _testifying(self, effects: sa.Table) -> sa.Update:
        unknown = effects.c.state == State.UNKNOWN.value
        evidence = bindparam("v_evidence", type_=sa.Text)
        return (
            sa.update(effects)
            .where(
                self._this_effect,
                effects.c.state.in_([State.CLAIMED.value, State.UNKNOWN.value]),
            )
            .ordered_values(  # MySQL assigns from left to right: the state comes last
                (effects.c.evidence, evidence),
                (effects.c.result, sa.case((unknown, evidence), else_=effects.c.result)),
                (effects.c.codec, sa.case((unknown, CODEC_VERSION), else_=effects.c.codec)),
                (effects.c.settled_at, sa.case((unknown, db_now()), else_=effects.c.settled_at)),
                (effects.c.state, sa.case((unknown, State.SUCCEEDED.value), else_=effects.c.state)),
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
    }


def _this_effect(call: Call) -> dict[str, Any]:
    return {"p_scope": call.scope, "p_operation": call.operation, "p_key": call.key}


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


def count_by_state(effects: sa.Table) -> sa.Select[tuple[str, int]]:
    """Count the effects in each state."""
    return sa.select(effects.c.state, func.count()).group_by(effects.c.state)
