"""What decorating says about a function that cannot be guarded, and what a call stands for."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from langchain_core.tools import tool
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

from langgraph_idem.effects import Origin
from langgraph_idem.errors import ConfigurationError, InvalidArguments, MissingKey
from langgraph_idem.keys import PER_CALL
from langgraph_idem.ledger import Ledger
from langgraph_idem.ports import CallContext


@pytest.fixture
def guard(tmp_path: Path) -> Any:
    """The decorator with a key, of a ledger that never connects."""
    ledger = Ledger(f"sqlite:///{tmp_path}/never.db")

    def guarded(function: Any, **options: Any) -> Any:
        return ledger.transactional(**{"key": ("order_id",), **options})(function)

    yield guarded
    assert not (tmp_path / "never.db").exists()


def plain(session: Session, /, order_id: str, cents: int = 1, memo: str = "") -> str:
    """Pay."""
    return order_id


# --- what cannot be guarded -----------------------------------------------------------------------


def nothing() -> None:
    """Be refused."""


def no_session(order_id: str) -> None:
    """Be refused."""


def unannotated(session, order_id: str) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001 - the point
    """Be refused."""


def keyword(*, session: Session, order_id: str) -> None:
    """Be refused."""


def wrong_colour(session: AsyncSession, order_id: str) -> None:
    """Be refused."""


def wrong_connection(conn: AsyncConnection, order_id: str) -> None:
    """Be refused."""


async def wrong_async(session: Session, order_id: str) -> None:
    """Be refused."""


async def wrong_async_connection(conn: sa.Connection, order_id: str) -> None:
    """Be refused."""


def generator(session: Session, order_id: str) -> Iterator[str]:
    """Be refused."""
    yield order_id


async def async_generator(session: AsyncSession, order_id: str) -> AsyncIterator[str]:
    """Be refused."""
    yield order_id


@tool
def below(order_id: str) -> str:
    """Be a tool already."""
    return order_id


class Called:
    """No function."""

    def __call__(self, session: Session, order_id: str) -> None:
        """Do nothing."""


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (nothing, "takes nothing. Write: def nothing\\(session: Session, /, ...\\)"),
        (no_session, "must be annotated as Session.*Write: def no_session\\(session: Session"),
        (unannotated, "must be annotated as Session"),
        (keyword, "given by position"),
        (wrong_colour, "is sync, but its first parameter is AsyncSession. Write: .*Session, /"),
        (wrong_connection, "is sync, but its first parameter is AsyncConnection"),
        (wrong_async, "is async, but its first parameter is Session. Write: .*AsyncSession, /"),
        (wrong_async_connection, "is async, but its first parameter is Connection"),
        (generator, "is a generator.*let the function return it"),
        (async_generator, "is a generator"),
        (below, "put @tool above it"),
        (Called(), "give it a function"),
        (42, "give it a function"),
    ],
)
def test_functions_that_cannot_be_guarded(guard: Any, function: Any, words: str) -> None:
    """What cannot work is refused when decorating, with what to write instead."""
    with pytest.raises(ConfigurationError, match=words):
        guard(function)


async def _async_policy(receipt: Any) -> Any:
    """Return what nobody would await."""


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"key": ("order",)}, "names 'order', which is no argument.*cents, memo, order_id"),
        ({"key": ("session",)}, "names 'session', which is no argument"),
        ({"key": ()}, "is no key"),
        ({"key": None}, "is no key"),
        ({"key": 7}, "is no key"),
        ({"key": str}, "is no key"),
        ({"ignore": ("notes",)}, "ignore= .*names 'notes'"),
        ({"refusals": ValueError}, "tuple of exception classes"),
        ({"refusals": [ValueError]}, "tuple of exception classes"),
        ({"refusals": (ValueError("x"),)}, "tuple of exception classes"),
        ({"on_replay": "rais"}, "'return', 'raise' or a plain function"),
        ({"on_replay": _async_policy}, "'return', 'raise' or a plain function"),
    ],
)
def test_options_that_cannot_work(guard: Any, options: dict[str, Any], words: str) -> None:
    """A typo is found when decorating, not at the first crash."""
    with pytest.raises(ConfigurationError, match=words):
        guard(plain, **options)


def test_arguments_that_cannot_be_keys(guard: Any) -> None:
    """What gathers several arguments names no effect."""

    def gathered(session: Session, /, *order_id: str, **more: str) -> None: ...

    for name in ("order_id", "more"):
        with pytest.raises(ConfigurationError, match="which is no argument"):
            guard(gathered, key=(name,))


# --- what is guarded ------------------------------------------------------------------------------


def test_the_function_that_callers_see(guard: Any) -> None:
    """Name, docstring and signature stay; the first parameter is hidden, from inspect too."""
    guarded = guard(plain)
    assert (guarded.__name__, guarded.__doc__) == ("plain", "Pay.")
    assert (
        str(inspect.signature(guarded)) == "(order_id: str, cents: int = 1, memo: str = '') -> str"
    )
    assert "session" not in guarded.__annotations__
    with pytest.raises(TypeError, match="order_id"):
        guarded()
    with pytest.raises(TypeError, match="session"):
        guarded("O-1", session=None)


def test_annotations_for_type_checkers_only(guard: Any) -> None:
    """One name that is not there when the program runs does not spoil the other annotations."""

    def careful(session: Any, /, order_id: Any, other: Any = None) -> Any:
        return 1

    careful.__annotations__ = {
        "session": "orm.Session",  # imported under TYPE_CHECKING: there is no `orm` here
        "order_id": "str",
        "other": "Unknown",
        "return": "int",
    }
    guarded = guard(careful)
    assert guarded.__annotations__["return"] is int
    assert guarded.__annotations__["order_id"] is str
    assert guarded.__annotations__["other"] == "Unknown"


# --- what a call stands for -----------------------------------------------------------------------


def _call(guarded: Any, *args: Any, context: CallContext | None = None, **kwargs: Any) -> Any:
    operation = guarded.__idempotent__.operation
    bound = operation.shape.signature.bind(*args, **kwargs)
    return operation.call(bound, context or CallContext(), keep_arguments=True)


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        (("O-1",), {}),
        ((), {"order_id": "O-1"}),
        (("O-1", 1), {}),
        (("O-1", 1.0), {}),
        (("O-1",), {"memo": "", "cents": 1}),
    ],
)
def test_defaults_do_not_matter(guard: Any, args: Any, kwargs: Any) -> None:
    """An argument at its default is the same as one left out: a new one may be added later."""
    call = _call(guard(plain), *args, **kwargs)
    assert call.arguments == '{"order_id":"O-1"}'
    assert call.fingerprint == _call(guard(plain), "O-1").fingerprint
    assert (call.key, call.scope, call.operation) == ("O-1", "global", "plain")


@pytest.mark.parametrize("cents", [2, True, "1", None, 1.5])
def test_other_values_than_the_default_matter(guard: Any, cents: Any) -> None:
    """True is not 1, "1" is not 1: only the default itself is left out."""
    assert _call(guard(plain), "O-1", cents).fingerprint != _call(guard(plain), "O-1").fingerprint


def test_ignored_arguments_do_not_matter(guard: Any) -> None:
    """ignore= leaves an argument out, even one that has no canonical form."""
    guarded = guard(plain, ignore=("memo",))
    assert _call(guarded, "O-1", memo=object()).fingerprint == _call(guarded, "O-1").fingerprint
    with pytest.raises(InvalidArguments):
        _call(guard(plain), "O-1", memo=object())


def test_keys_by_name_and_by_callable(guard: Any) -> None:
    """A key is made of arguments, defaults included, or by a callable over them and the context."""
    named = guard(plain, key=("order_id", "cents"))
    assert _call(named, "O-1").key == '["O-1","1"]'
    assert _call(guard(plain, key="order_id"), "O-1").key == "O-1"
    asked = guard(plain, key=lambda given: f"{given['order_id']}/{given['cents']}")
    assert _call(asked, "O-1").key == "O-1/1"
    context = CallContext(origin=Origin("t-1"))
    told = guard(plain, key=lambda given, context: (given["order_id"], context.origin.thread_id))
    assert _call(told, "O-1", context=context).key == '["O-1","t-1"]'


@pytest.mark.parametrize("order_id", [None, "", "  "])
def test_a_key_argument_without_a_value(guard: Any, order_id: Any) -> None:
    """The error names the argument: the model can give it a value."""
    with pytest.raises(MissingKey, match="'order_id'") as missing:
        _call(guard(plain), order_id)
    assert missing.value.operation == "plain"
    with pytest.raises(MissingKey):
        _call(guard(plain, key=lambda given: given["order_id"]), order_id)


def test_per_call_needs_a_tool_call(guard: Any) -> None:
    """PER_CALL outside of a tool call in a thread says what is missing."""
    guarded = guard(plain, key=PER_CALL)
    for origin in (Origin(), Origin("t"), Origin("t", "m"), Origin("t", None, "c")):
        with pytest.raises(MissingKey, match="PER_CALL"):
            _call(guarded, "O-1", context=CallContext(origin=origin))
    whole = CallContext(origin=Origin("t", "m", "c"), durability="sync")
    assert _call(guarded, "O-1", context=whole).key == '["t","m","c"]'


def test_scopes(guard: Any) -> None:
    """A scope is global, the thread's, a name, or what a callable says."""
    thread = CallContext(origin=Origin("t-1"))
    assert _call(guard(plain, scope="thread"), "O-1", context=thread).scope == "thread:t-1"
    with pytest.raises(MissingKey, match="scope='thread'"):
        _call(guard(plain, scope="thread"), "O-1")
    assert _call(guard(plain, scope="acme"), "O-1").scope == "acme"
    assert _call(guard(plain, scope=lambda given: given["order_id"]), "O-1").scope == "O-1"
    with pytest.raises(MissingKey, match="scope"):
        _call(guard(plain, scope=lambda given: None), "O-1")


def test_every_attempt_has_an_id_of_its_own(guard: Any) -> None:
    """The fencing token is random: two calls never share it."""
    ids = {_call(guard(plain), "O-1").attempt_id for _ in range(100)}
    assert len(ids) == 100


def test_a_default_of_a_key_function_is_its_own(tmp_path: Path) -> None:
    """A lambda's bound default is no request for the context: only bare parameters are filled."""
    ledger = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    ledger.setup()

    @ledger.transactional(key=lambda arguments, tenant="acme": (tenant, arguments["order_id"]))
    def ship(session: Session, /, order_id: str) -> str:
        return order_id

    ship("O-1")

    assert ledger.effect("ship", ("acme", "O-1")) is not None
    ledger.close()
