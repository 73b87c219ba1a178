"""The ledger's SQL, written once, for a plain ``Connection``.

Every statement is built when the ledger is made, so that an effect pays for none of it.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa
from sqlalchemy import bindparam, func

from langgraph_idem.codec import CODEC_VERSION
from langgraph_idem.decisions import Seen
from langgraph_idem.effects import EffectRecord, Kind, Origin, State
from langgraph_idem.errors import LedgerError
from langgraph_idem.sql.dialects import arbitrated_insert
from langgraph_idem.sql.prepared import Prepared
from langgraph_idem.sql.schema import COLUMNS, db_now

if TYPE_CHECKING:
    from collections.abc import Sequence

    from langgraph_idem.decisions import Call, Word
    from langgraph_idem.sql.schema import LedgerTables


_TRIES: Final = 10
"""How often in a row a claim may lose to a row that is gone when it is read."""


class LedgerStatements:
    """The statements of one ledger on one kind of database.

    Attributes:
        expects_replay: True if the last claim lost, so that the next one is likely to lose as well:
            a crashed run comes back with one replay after another. Reading first then spares it
            a losing insert and, on SQLite, the write lock. A wrong guess costs one read.

    """

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
        self.expects_replay = False
        self._insert = arbitrated_insert(effects, dialect, wait_seconds)
        self._read = Prepared(sa.select(effects, db_now()).where(self._this_effect))
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
        self._forget = Prepared(sa.delete(effects).where(self._mine, effects.c.attempts == 1))
        self._release = Prepared(
            sa.update(effects)
            .where(self._mine, effects.c.evidence.is_(None))
            .values(state=State.RELEASED.value, settled_at=db_now())
        )
        self._renew = Prepared(
            sa.update(effects).where(self._mine).values(claimed_at=db_now(), sent_at=db_now())
        )
        self._lose = Prepared(self._unless_told(effects, State.UNKNOWN))
        self._fail = Prepared(self._unless_told(effects, State.FAILED))
        self._take = Prepared(self._taking(effects))
        self._testify = Prepared(self._testifying(effects))
        self._resolve = Prepared(self._resolving(effects))

    def claim(self, conn: sa.Connection, call: Call) -> Seen | None:
        """Insert the claim; return None if it won, else the row that was there before.

        The insert alone decides the race. Should the row be gone again by the time we read it
        (its holder released it), the insert is tried once more.

        Raises:
            LedgerError: What the insert loses to cannot be read, time and again.

        """
        for _ in range(_TRIES):
            if self.insert(conn, call):
                self.expects_replay = False
                return None
            found = self.read(conn, call.scope, call.operation, call.key)
            if found is not None:
                self.expects_replay = True
                return found
        raise LedgerError(
            f"{call.operation} for {call.key} cannot be claimed, because of a row that cannot be "
            "read: the ledger's table compares keys otherwise than byte by byte, or keeps rows "
            "from this user. Nothing was done; ledger.setup() says what is wrong with it."
        )

    def insert(self, conn: sa.Connection, call: Call) -> bool:
        """Insert the claim; tell whether it won."""
        return self._insert(conn, _claim_values(call))

    def read(self, conn: sa.Connection, scope: str, operation: str, key: str) -> Seen | None:
        """Read a row and the database's time."""
        where = {"p_scope": scope, "p_operation": operation, "p_key": key}
        row = self._read.first(conn, where)
        return None if row is None else _seen(row)

    def standing(self, conn: sa.Connection, call: Call) -> Seen | None:
        """Read the row of a call's effect."""
        return self.read(conn, call.scope, call.operation, call.key)

    def complete(self, conn: sa.Connection, call: Call, result: str | None) -> bool:
        """Record success under the fencing token; tell whether the claim was still ours."""
        codec = None if result is None else CODEC_VERSION
        return self._settled(conn, call, State.SUCCEEDED, result=result, codec=codec)

    def fail(self, conn: sa.Connection, call: Call, reason: str) -> bool:
        """Record a final failure; evidence of an earlier attempt makes it a success."""
        return self._fail.changes_one(conn, {**_mine(call), "v_reason": reason})

    def lose(self, conn: sa.Connection, call: Call, reason: str) -> bool:
        """Record that nobody can know; evidence that came meanwhile makes it a success."""
        return self._lose.changes_one(conn, {**_mine(call), "v_reason": reason})

    def release(self, conn: sa.Connection, call: Call) -> bool:
        """Undo a claim whose attempt did not reach the world.

        A first attempt leaves no trace; after earlier ones the row stays, for their story. Should
        one of them have left evidence meanwhile, that settles it.
        """
        mine = _mine(call)
        return (
            self._forget.changes_one(conn, mine)
            or self._release.changes_one(conn, mine)
            or self.lose(conn, call, "")
        )

    def renew(self, conn: sa.Connection, call: Call) -> bool:
        """Begin the lease anew right before sending again."""
        return self._renew.changes_one(conn, _mine(call))

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
        return self._take.changes_one(conn, values)

    def testify(self, conn: sa.Connection, call: Call, evidence: str) -> bool:
        """Leave a late answer with the row; where nobody settled the effect, it settles it.

        Empty evidence says that it happened, and that there is no result to keep.
        """
        values = {
            "v_evidence": evidence,
            "v_result": evidence or None,
            "v_codec": CODEC_VERSION if evidence else None,
        }
        return self._testify.changes_one(conn, {**_this_effect(call), **values})

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
        return self._resolve.changes_one(conn, values)

    def _settled(self, conn: sa.Connection, call: Call, state: State, **values: Any) -> bool:
        settled = {"v_state": state.value, "v_result": None, "v_codec": None, "v_reason": None}
        settled |= {f"v_{name}": value for name, value in values.items()}
        return self._settle.changes_one(conn, {**_mine(call), **settled})

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
        is_unknown = effects.c.state == State.UNKNOWN.value
        open_ = sa.or_(is_unknown, effects.c.state == State.RELEASED.value)
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


def _seen(row: Sequence[Any]) -> Seen:
    """Make what was seen of a row whose last column is the database's time."""
    return Seen(record_of(row), row[-1])


def record_of(row: Sequence[Any]) -> EffectRecord:
    """Make the record of a row of all columns, in their order; the record's is the same."""
    values: list[Any] = [*row[: len(COLUMNS)]]
    values[_KIND], values[_STATE] = Kind(values[_KIND]), State(values[_STATE])
    values[_ORIGIN] = [Origin(*values[_ORIGIN])]
    return EffectRecord(*values)


_KIND: Final = COLUMNS.index("kind")
_STATE: Final = COLUMNS.index("state")
_ORIGIN: Final = slice(COLUMNS.index("thread_id"), COLUMNS.index("tool_call_id") + 1)
