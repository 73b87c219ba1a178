"""An effect: its states, the table of allowed transitions, the record and the receipt."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from langgraph_idem.keys import idempotency_key

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

_IDEMPOTENCY_KEYS: Final = uuid.UUID("7d1f3bd6-5c1d-5a0c-9a54-3c1f6c1f0b5e")
"""Namespace of the UUID form of idempotency keys. Never change it: providers remember keys."""


class _Text(str, Enum):
    """An enum whose members print and store as their value."""

    def __str__(self) -> str:
        return str(self.value)


class State(_Text):
    """Where an effect stands."""

    STAGED = "staged"
    CLAIMED = "claimed"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    UNKNOWN = "unknown"
    RELEASED = "released"


class Kind(_Text):
    """What sort of thing the tool does, and so which promise holds."""

    TRANSACTIONAL = "transactional"
    REMOTE = "remote"
    STAGED = "staged"


class Relation(_Text):
    """How a replayed call is related to the call that did the effect."""

    SAME_CALL = "same_call"
    SAME_THREAD = "same_thread"
    OTHER_THREAD = "other_thread"
    NOT_KNOWN = "not_known"


TRANSITIONS: Final[Mapping[State | None, frozenset[State]]] = MappingProxyType(
    {
        None: frozenset({State.CLAIMED, State.STAGED}),
        State.STAGED: frozenset({State.CLAIMED}),
        State.CLAIMED: frozenset(set(State) - {State.STAGED}),
        State.UNKNOWN: frozenset({State.SUCCEEDED, State.FAILED, State.RELEASED, State.CLAIMED}),
        State.RELEASED: frozenset({State.CLAIMED, State.SUCCEEDED}),
        State.SUCCEEDED: frozenset(),
        State.FAILED: frozenset(),
    }
)
"""From which state an effect may go to which. What is not listed is forbidden.

``CLAIMED -> CLAIMED`` and ``UNKNOWN -> CLAIMED`` are another attempt taking over in order to
verify: it looks up, or sends again while the provider keeps the key. ``RELEASED`` is a person's
word that it did not happen and may be tried again (``CLAIMED -> RELEASED``: that trial did not
reach the provider either); only a late proof of the contrary can overtake it.
"""

BY_A_PERSON: Final = frozenset({State.SUCCEEDED, State.FAILED, State.RELEASED})
"""What a person may say of an unknown outcome."""


def may_become(state: State | None, wanted: State) -> bool:
    """Tell whether the state table allows the step from ``state`` to ``wanted``."""
    return wanted in TRANSITIONS[state]


@dataclass(frozen=True)
class Origin:
    """The call that asked for an effect, as far as a graph (or nobody) told.

    Attributes:
        thread_id: LangGraph thread, None outside of one.
        message_id: Id of the AIMessage that holds the tool call.
        tool_call_id: Id of the tool call within that message.

    """

    thread_id: str | None = None
    message_id: str | None = None
    tool_call_id: str | None = None

    def relation_of(self, later: Origin) -> Relation:
        """Tell how a later call is related to this one, as far as the ids can tell.

        A resume, time travel and a fork leave both ids of a call as they were: they are the same
        call. An id of the call alone proves nothing, for some providers number anew each turn.
        """
        if self.thread_id is None or later.thread_id is None:
            return Relation.NOT_KNOWN
        if self.thread_id != later.thread_id:
            return Relation.OTHER_THREAD
        if None not in {self.message_id, self.tool_call_id} and self == later:
            return Relation.SAME_CALL
        return Relation.SAME_THREAD


@dataclass(frozen=True)
class EffectRecord:
    """One row of the ledger: an effect, however often it was tried.

    Attributes:
        scope: Whose effect it is; ``"global"`` by default.
        operation: Name of the kind of effect.
        key: Which effect of that operation, as canonical text.
        kind: Transactional, remote or staged.
        state: Where it stands.
        fingerprint: Versioned digest of the arguments that matter.
        attempt_id: The fencing token: id of the attempt that holds or settled it.
        attempts: How many attempts have held it.
        arguments: Canonical JSON of the arguments that matter, or None if they are not kept.
        result: The result as JSON text, None while there is none.
        codec: Version of the result's encoding, None while there is no result.
        reason: Why it failed or is unknown, in words.
        evidence: JSON text of a late answer by an attempt that had lost its claim.
        origin: The call that asked for it first.
        lease_seconds: How long the claim is presumed alive, None for ever.
        began_at: When the first attempt began (UTC, the database's clock).
        claimed_at: When the holding attempt began (UTC, the database's clock).
        sent_at: When an attempt last set out to do it, which is not when one merely looked up.
        settled_at: When it came to its state (UTC, the database's clock), None while claimed.
        resolved_by: The person who settled an unknown outcome.
        note: What that person wrote.
        approved_by: The person who approved it beforehand, None if nobody was asked.
        approval_note: What that person wrote.

    """

    scope: str
    operation: str
    key: str
    kind: Kind
    state: State
    fingerprint: str
    attempt_id: str
    attempts: int
    began_at: datetime
    claimed_at: datetime
    sent_at: datetime
    arguments: str | None = None
    result: str | None = None
    codec: int | None = None
    reason: str | None = None
    evidence: str | None = None
    origin: Origin = field(default_factory=Origin)
    lease_seconds: float | None = None
    settled_at: datetime | None = None
    resolved_by: str | None = None
    note: str | None = None
    approved_by: str | None = None
    approval_note: str | None = None


@dataclass(frozen=True)
class Effect:
    """What a remote tool is given: the effect it is about to bring about.

    Attributes:
        scope: Whose effect it is.
        operation: Name of the kind of effect.
        key: Which effect of that operation, as canonical text.
        attempt: Number of this attempt, from 1.
        began_at: When the first attempt began (UTC, the database's clock).
        evidence: What earlier attempts left, in words; None if there is nothing.
        arguments: All arguments that callers see, defaults included, as plain JSON values.

    """

    scope: str
    operation: str
    key: str
    attempt: int = 1
    began_at: datetime | None = None
    evidence: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    _taken: list[str] = field(default_factory=list, repr=False, compare=False)

    @property
    def idempotency_key(self) -> str:
        """The key to send to the provider: stable across attempts, processes and re-plans.

        At most 255 characters, ASCII. Take it right before you send: once it is taken, an
        interrupt raised by the tool no longer counts as "nothing was sent".
        """
        key = idempotency_key(self.scope, self.operation, self.key)
        self._taken.append(key)
        return key

    @property
    def idempotency_uuid(self) -> uuid.UUID:
        """The idempotency key as a UUID (version 5), for providers that insist on one."""
        return uuid.uuid5(_IDEMPOTENCY_KEYS, self.idempotency_key)

    @property
    def key_was_taken(self) -> bool:
        """True once the tool has asked for the idempotency key."""
        return bool(self._taken)


@dataclass(frozen=True)
class Found:
    """A look-up's answer: it took hold.

    Attributes:
        result: What the tool would have returned.

    """

    result: Any = None


class _Answer:
    """A look-up's answer without a result."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


ABSENT: Final = _Answer("ABSENT")
"""A look-up's answer: it did not take hold, and the provider would know if it had."""

DONT_KNOW: Final = _Answer("DONT_KNOW")
"""A look-up's answer: the provider cannot tell. ``None`` means the same."""


class Verdict(_Text):
    """What an exception of a remote tool says about the world."""

    NOT_SENT = "not_sent"
    """The request did not leave: the world is unchanged, and it may be tried again."""
    REFUSED = "refused"
    """The provider said no: the world is unchanged, for good."""
    UNKNOWN = "unknown"
    """It may or may not have happened."""


@dataclass(frozen=True)
class Receipt:
    """What a caller gets beside the result.

    Attributes:
        operation: Name of the operation.
        key: The key, as the library shows it.
        scope: Whose effect it is.
        outcome: ``succeeded``, ``failed``, ``unknown``, or ``claimed`` while in progress.
        replayed: True if the recorded result was returned and nothing was done.
        result: The result; not part of :meth:`as_dict`.
        relation: How this call is related to the one that did the effect (replays only).
        origin: The call that did the effect.
        settled_at: When it was settled (replays only; UTC, the database's clock).

    """

    operation: str
    key: str
    scope: str
    outcome: State
    replayed: bool
    result: Any = None
    relation: Relation | None = None
    origin: Origin = field(default_factory=Origin)
    settled_at: datetime | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the receipt as plain JSON values, for a message or a checkpoint."""
        told: dict[str, Any] = {
            "operation": self.operation,
            "key": self.key,
            "scope": self.scope,
            "outcome": str(self.outcome),
            "replayed": self.replayed,
        }
        if self.relation is not None:
            told["relation"] = str(self.relation)
        return told
