"""What can go wrong, sorted by what the caller does next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from datetime import datetime

    from langgraph_idem.effects import EffectRecord, Receipt


class IdempotencyError(Exception):
    """Root of all errors of this library.

    Attributes:
        code: A stable name for programs to match on; the words may change, the code does not.
        for_model: Words that may be shown to a chat model, or None where the error is not the
            model's business. They never read like success and never invite a repetition that
            could double an effect.

    """

    code: ClassVar[str] = "idempotency_error"

    def __init__(self, message: str, /, **fields: Any) -> None:
        super().__init__(message)
        for name, value in fields.items():
            setattr(self, name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        """Survive pickling (task queues, process pools) with every field."""
        return _rebuild, (type(self), str(self), dict(self.__dict__))

    @property
    def for_model(self) -> str | None:
        """Words for a chat model; None: do not show it, let the run fail."""
        return None


def _rebuild(kind: type[IdempotencyError], message: str, fields: dict[str, Any]) -> Any:
    return kind(message, **fields)


class ConfigurationError(IdempotencyError):
    """The code is wrong: fix it. Raised as early as it can be seen, mostly when decorating."""

    code = "configuration_error"


class InvalidCall(IdempotencyError):
    """The call is wrong: fix its arguments."""

    code = "invalid_call"
    operation: str = ""

    @property
    def for_model(self) -> str | None:
        """The message itself: it names the argument and what it must be."""
        return f"Nothing was done. {self}"


class MissingKey(InvalidCall):
    """An argument that makes up the key is empty, blank, None, over-long or not a plain value."""

    code = "missing_key"


class InvalidArguments(InvalidCall):
    """The arguments have no canonical form (NaN, non-string keys, lone surrogates, odd objects)."""

    code = "invalid_arguments"


class ArgumentsChanged(InvalidCall):
    """The same key was used before with other arguments.

    Attributes:
        operation: Name of the operation.
        key: The key, as the library shows it.
        changed: Names of the arguments that differ, where the ledger still knows them.

    """

    code = "arguments_changed"
    key: str
    changed: tuple[str, ...] = ()

    @property
    def for_model(self) -> str | None:
        """Say what differs, and that the first request stands."""
        fields = f" ({', '.join(self.changed)} differ)" if self.changed else ""
        return (
            f"Nothing was done. {self.operation} was already requested for {self.key} with other "
            f"arguments{fields}; the first request stands. Do not repeat it with new arguments: "
            "if a change is intended, tell the user that it needs a separate request."
        )


class ResultNotStorable(IdempotencyError):
    """A result cannot be kept so that a replay would return the same value.

    A transactional effect was rolled back. A remote effect happened and is recorded as
    succeeded, without its result. Annotate the tool's return type with what it returns, and
    return plain values, pydantic models or dataclasses.

    Attributes:
        operation: Name of the operation.
        effect_happened: False: rolled back; True: it happened (remote effects only).

    """

    code = "result_not_storable"
    operation: str
    effect_happened: bool = False


class EffectBusy(IdempotencyError):
    """Another attempt holds the effect (or the database's lock) and is not done: wait.

    Attributes:
        operation: Name of the operation.
        key: The key, as the library shows it.
        retry_at: When asking again makes sense (UTC), or None if that is not known.

    """

    code = "effect_busy"
    operation: str
    key: str
    retry_at: datetime | None = None


class OutcomeUnknown(IdempotencyError):
    """Nobody can know whether the effect happened: ask a person, never retry.

    Attributes:
        operation: Name of the operation.
        key: The key, as the library shows it.
        scope: Whose effect it is.
        since: When the attempt began whose outcome is unknown (UTC, the database's clock).
        record: The row of the ledger.
        tell_model: True if the operation's policy is to tell the model instead of stopping.

    """

    code = "outcome_unknown"
    operation: str
    key: str
    scope: str
    since: datetime | None = None
    record: EffectRecord | None = None
    tell_model: bool = False

    @property
    def for_model(self) -> str | None:
        """Say that it is unknown, and that it must not be repeated."""
        return (
            f"The outcome of {self.operation} for {self.key} is UNKNOWN: it may or may not have "
            "happened. It must not be repeated. A person has to find out; tell the user so."
        )


class RecordedFailure(IdempotencyError):
    """It failed before, for good: the world is unchanged and the failure is final.

    Attributes:
        operation: Name of the operation.
        key: The key, as the library shows it.
        reason: What was recorded, e.g. ``"OutOfStock: SKU-1"``.

    """

    code = "recorded_failure"
    operation: str
    key: str
    reason: str

    @property
    def for_model(self) -> str | None:
        """Say that it failed, and that the failure is final."""
        return (
            f"{self.operation} for {self.key} was refused earlier and that is final: "
            f"{self.reason}. It did not take effect."
        )


class AlreadyDone(IdempotencyError):
    """The effect took hold before, and its replay policy is ``on_replay="raise"``.

    Attributes:
        receipt: The receipt of the recorded effect, with its result.

    """

    code = "already_done"
    receipt: Receipt

    @property
    def for_model(self) -> str | None:
        """Say that it was done before and was not done again."""
        return f"{self} It was done before this call and was not done again."


class ApprovalRejected(IdempotencyError):
    """A person was asked and said no: nothing was done, nothing is recorded.

    Attributes:
        operation: Name of the operation.
        key: The key, as the library shows it.
        by: Who said no.
        note: Why.

    """

    code = "approval_rejected"
    operation: str
    key: str
    by: str | None = None
    note: str | None = None

    @property
    def for_model(self) -> str | None:
        """Say that a person said no, and why."""
        why = f" ({self.note})" if self.note else ""
        return (
            f"Nothing was done. A person rejected {self.operation} for {self.key}{why}. Do not "
            "call it again unless the user asks for it."
        )


class ErrorReported(Exception):
    """A tool returned its error instead of raising it: ``ToolMessage(status="error")``.

    It goes the way of the tool's exceptions: ``refusals=`` and ``classify=`` may name it. Nobody
    outside sees it; the caller gets the message that the tool returned.

    Attributes:
        result: What the tool returned.

    """

    def __init__(self, result: Any) -> None:
        super().__init__(str(getattr(result, "content", result)))
        self.result = result


class TransitionForbidden(IdempotencyError):
    """The state table does not allow this change: look at the record before deciding again.

    Attributes:
        operation: Name of the operation.
        key: The key, as the library shows it.
        state: The state that the effect is in.

    """

    code = "transition_forbidden"
    operation: str
    key: str
    state: str


class LedgerError(IdempotencyError):
    """The database failed; its own error is the ``__cause__``. Nothing is known to be recorded."""

    code = "ledger_error"
