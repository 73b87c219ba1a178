"""What the protocols need from the world outside, and the way to run them without a loop."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from langgraph_idem.effects import Origin
from langgraph_idem.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from contextlib import AbstractAsyncContextManager
    from datetime import datetime

    from sqlalchemy import Connection

    from langgraph_idem.codec import Codec
    from langgraph_idem.decisions import Call, Seen, Word
    from langgraph_idem.effects import Effect, EffectRecord, Receipt
    from langgraph_idem.events import Event

T = TypeVar("T")


class Transaction(Protocol):
    """An open transaction on the ledger's database. Left without a commit, it rolls back."""

    async def sql(self, work: Callable[[Connection], T]) -> T:
        """Run the ledger's own SQL in it; its failures come back as ``LedgerError``."""
        ...

    async def tool(self) -> Any:
        """Run the user's function in it and return what the function returns."""
        ...

    async def commit(self) -> None:
        """Make everything that was done in it last."""
        ...


class Site(Protocol):
    """Where one call runs: blocking in a thread, or awaiting on an event loop."""

    def transaction(self, *, writes: bool = True) -> AbstractAsyncContextManager[Transaction]:
        """Open a transaction.

        Args:
            writes: False: only statements that read will run in it, each of which may see a moment
                of its own; it takes no lock that could be waited for.

        """
        ...

    async def call(self, effect: Effect) -> Any:
        """Run the user's remote function; no connection is held meanwhile."""
        ...

    async def lookup(self, effect: Effect) -> Any:
        """Ask the user's look-up whether the effect took hold."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait without holding anything."""
        ...

    def monotonic(self) -> float:
        """Return seconds on this machine's clock that only moves on; for time passed, no date."""
        ...

    async def shielded(self, work: Coroutine[Any, Any, T]) -> T:
        """Finish the work even if the caller is being cancelled, then let the cancel through."""
        ...


class Statements(Protocol):
    """The ledger's SQL, each a function of a connection; they are in ``sql/statements.py``."""

    @property
    def expects_replay(self) -> bool:
        """True if reading before claiming is likely to pay."""
        ...

    def claim(self, conn: Connection, call: Call) -> Seen | None:
        """Insert the claim; return None if it won, else the row that was there before."""
        ...

    def read(self, conn: Connection, scope: str, operation: str, key: str) -> Seen | None:
        """Read a row and the database's time."""
        ...

    def complete(self, conn: Connection, call: Call, result: str | None) -> bool:
        """Record success, if the claim is still this attempt's; tell whether it was."""
        ...

    def fail(self, conn: Connection, call: Call, reason: str) -> bool:
        """Record a final failure, if the claim is still this attempt's."""
        ...

    def lose(self, conn: Connection, call: Call, reason: str) -> bool:
        """Record that nobody can know, if the claim is still this attempt's."""
        ...

    def release(self, conn: Connection, call: Call) -> bool:
        """Undo the claim, if it is still this attempt's and nothing earlier may have happened."""
        ...

    def renew(self, conn: Connection, call: Call) -> bool:
        """Begin the lease anew, if the claim is still this attempt's."""
        ...

    def take_over(self, conn: Connection, call: Call, earlier: EffectRecord) -> bool:
        """Make this attempt the holder, if the row is still as it was found."""
        ...

    def testify(self, conn: Connection, call: Call, evidence: str) -> bool:
        """Leave a late answer with a row that another attempt holds or that is unknown."""
        ...

    def standing(self, conn: Connection, call: Call) -> Seen | None:
        """Read the row of a call's effect."""
        ...

    def resolve(self, conn: Connection, record: EffectRecord, word: Word) -> bool:
        """Record a person's word, if the row is still as that person saw it."""
        ...


class Observer(Protocol):
    """Is told what happened, after the fact."""

    def __call__(self, event: Event, /) -> None:
        """Take note of an event; an exception is logged and goes no further."""
        ...


@dataclass(frozen=True)
class CallContext:
    """What the host knows about the call that is running, and where receipts go.

    Attributes:
        origin: Thread, message and tool call.
        can_ask: True if the host can stop the run and ask a person.
        durability: LangGraph's durability mode of this run, None if not known.
        tenant: What ``scope=callable`` may use: the run's ``configurable`` values.
        receipts: Collects the receipts of the effects that ran within this call.

    """

    origin: Origin = Origin()
    can_ask: bool = False
    durability: str | None = None
    configurable: dict[str, Any] = field(default_factory=dict)
    receipts: list[Receipt] = field(default_factory=list)


@dataclass(frozen=True)
class Question:
    """What a person is asked about an effect.

    Attributes:
        id: Names this question alone: an answer must carry it, so that none can go astray.
        type: ``"idempotency_unknown_outcome"`` or ``"idempotency_approval"``.
        scope: Whose effect it is.
        operation: Name of the operation.
        key: The key, as the library shows it.
        fingerprint: Digest of the arguments the question is about.
        arguments: The arguments that matter, by name.
        description: The question in words.
        choices: What may be answered.
        since: When the attempt began whose outcome is unknown.
        origin: The call that the question came from.
        check: Raises ``ValueError`` if a result does not fit the tool's return type.

    """

    id: str
    type: str
    scope: str
    operation: str
    key: str
    fingerprint: str
    arguments: dict[str, Any]
    description: str
    choices: tuple[str, ...]
    since: datetime | None = None
    origin: Origin = Origin()
    check: Callable[[Any], None] | None = None


@dataclass(frozen=True)
class Answer:
    """What the person said.

    Attributes:
        choice: One of the question's choices.
        by: Who answered.
        note: Why.
        result: The result, where the answer is that the effect took hold.

    """

    choice: str
    by: str | None = None
    note: str | None = None
    result: Any = None


class Host(Protocol):
    """The agent framework that effects run in, as far as the ledger needs to know it."""

    def context(self) -> CallContext:
        """Tell what call is running; an empty context outside of any."""
        ...

    def is_injected(self, annotation: Any) -> bool:
        """Tell whether the framework fills a parameter in, unseen by the model."""
        ...

    def is_control_flow(self, error: BaseException) -> bool:
        """Tell whether an exception is the framework's own signal (an interrupt), no outcome."""
        ...

    def reports_error(self, result: Any) -> bool:
        """Tell whether a tool's result says, in the framework's way, that the tool failed."""
        ...

    def ask(self, question: Question) -> Answer:
        """Ask a person; the host may leave by an exception and come back with the answer later.

        Only an answer that carries the question's id is returned: LangGraph hands answers out by
        position, and the position may have shifted since they were given.
        """
        ...

    def answered(self) -> frozenset[str]:
        """Return the ids of the questions to which this call has been given an answer."""
        ...

    def guard(self, tool: Any, guard: ToolGuard) -> Any:
        """Wrap a tool of the framework's that cannot be decorated.

        Raises:
            ConfigurationError: It is no tool of this framework.

        """
        ...

    def codec(self, operation: str, annotation: Any) -> Codec | None:
        """Return a codec for the framework's own result types, None for all others."""
        ...


@dataclass(frozen=True)
class ToolGuard:
    """How a tool that cannot be decorated is to be guarded.

    Attributes:
        pass_key_as: Name of the tool's argument that takes the idempotency key; None: none does.
        decorate: Guards a function whose first parameter is an ``Effect``, given the names of
            the arguments that the model fills in.

    """

    pass_key_as: str | None
    decorate: Callable[[Callable[..., Any]], Callable[..., Any]]


class NoHost:
    """Scripts: nobody to ask, nothing injected."""

    def context(self) -> CallContext:
        """Return an empty context."""
        return CallContext()

    def is_injected(self, annotation: Any) -> bool:  # noqa: ARG002 - the port's signature
        """Nothing is injected."""
        return False

    def is_control_flow(self, error: BaseException) -> bool:  # noqa: ARG002 - the port's signature
        """Every exception is an outcome."""
        return False

    def reports_error(self, result: Any) -> bool:  # noqa: ARG002 - the port's signature
        """Every result is a success."""
        return False

    def ask(self, question: Question) -> Answer:
        """There is nobody to ask; the context says so before it comes to this."""
        raise NotImplementedError(question.description)

    def answered(self) -> frozenset[str]:
        """Nobody was asked."""
        return frozenset()

    def guard(self, tool: Any, guard: ToolGuard) -> Any:  # noqa: ARG002 - the port's signature
        """There are no tools without a framework."""
        raise ConfigurationError(
            f"ledger.guard() wraps tools of LangChain; this is {type(tool).__name__}. Decorate a "
            "function of yours with ledger.remote or ledger.transactional instead."
        )

    def codec(self, operation: str, annotation: Any) -> Codec | None:  # noqa: ARG002 - as above
        """Plain results only."""
        return None


def run_blocking(coroutine: Coroutine[Any, Any, T]) -> T:
    """Drive a coroutine whose awaits never suspend, because every port of it blocks."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        value: T = stop.value
        return value
    else:
        raise RuntimeError("A blocking site suspended; it must block instead.")
    finally:
        coroutine.close()
