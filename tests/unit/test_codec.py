"""A result to text and back: the very same value, or a refusal."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, SecretStr
from typing_extensions import TypedDict

from langgraph_idem.codec import CODEC_VERSION, PydanticCodec
from langgraph_idem.errors import LedgerError, ResultNotStorable


class Colour(enum.Enum):
    """An enum."""

    RED = "red"


class Item(BaseModel):
    """A model."""

    sku: str
    price: Decimal = Decimal(0)


class Gift(Item):
    """A model with a field that its parent's schema does not know."""

    wish: str = ""


class Aliased(BaseModel):
    """A model that is read by the aliases only."""

    order_id: str = Field(alias="orderId")


class WrittenOtherwise(BaseModel):
    """A model that is written under another name than it is read by."""

    order_id: str = Field(serialization_alias="orderId")


@dataclasses.dataclass
class Parcel:
    """A dataclass."""

    items: tuple[Item, ...]
    sent: dt.datetime


@dataclasses.dataclass
class Box(Parcel):
    """A subclass with no field more."""


class Point(NamedTuple):
    """A named tuple."""

    x: int
    y: int


class Row(TypedDict):
    """A typed dict."""

    sku: str


class Odd:
    """Nothing that pydantic knows."""


NOON = dt.datetime(2026, 11, 29, 12, tzinfo=dt.timezone.utc)


def _codec(annotation: Any) -> PydanticCodec:
    return PydanticCodec("ship", annotation)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (type(None), None),
        (Any, None),
        (Any, {"a": [1, 2.5, "x", True, None]}),
        (str, "NUL \0 and \U0001f9fe"),
        (int, 2**80),
        (float, 0.1),
        (bool, False),
        (bytes, b"abc"),
        (Decimal, Decimal("12345678901234567890123456789012345.10")),
        (dt.datetime, NOON),
        (dt.date, NOON.date()),
        (dt.timedelta, dt.timedelta(microseconds=1)),
        (UUID, UUID(int=5)),
        (Colour, Colour.RED),
        (tuple[str, int], ("a", 1)),
        (set[str], {"a", "b"}),
        (frozenset[int], frozenset({1})),
        (Point, Point(1, 2)),
        (Row, {"sku": "x"}),
        (Item, Item(sku="x", price=Decimal("1.50"))),
        (list[Item], [Item(sku="x")]),
        (Item | None, None),
        (Item | str, "x"),
        (dict[str, Item], {"a": Item(sku="x")}),
        (Parcel, Parcel((Item(sku="x"),), NOON)),
        (Aliased, Aliased(orderId="O-1")),
        (WrittenOtherwise, WrittenOtherwise(order_id="O-1")),
    ],
)
def test_results_come_back_as_they_were(annotation: Any, value: Any) -> None:
    """What is kept is read back by the annotation: equal, and of the same type."""
    text = _codec(annotation).encode(value)
    again = _codec(annotation).decode(text, CODEC_VERSION)
    assert again == value
    assert type(again) is type(value)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Item, Gift(sku="x", wish="a bow")),
        (list[Item], [Gift(sku="x", wish="a bow")]),
        (Parcel, Box((), NOON)),
        (Any, Item(sku="x")),
        (Any, ("a", 1)),
        (Any, {"a"}),
        (Any, NOON),
        (Any, Decimal("1.5")),
        (Any, b"abc"),
        (Any, {1: "a"}),
        (Any, {"deep": [("a",)]}),
        (Any, float("nan")),
        (float, float("nan")),
        (Any, float("inf")),
        (float | None, float("nan")),
        (Any, (n for n in (1, 2))),
        (Any, object()),
        (Odd, Odd()),
        (str, 1),
        (int, "1"),
        (Item, None),
        (SecretStr, SecretStr("hidden")),
        ("NotDefinedAnywhere", 1),
        (bytes, b"\xff"),
        (str, "\ud800"),
    ],
)
def test_results_that_would_come_back_otherwise(annotation: Any, value: Any) -> None:
    """What would be another value when it is replayed is refused, and the error says what to do."""
    with pytest.raises(ResultNotStorable, match="annotate the tool's return type") as refused:
        _codec(annotation).encode(value)
    assert refused.value.operation == "ship"
    assert refused.value.effect_happened is False


def test_a_value_that_holds_itself() -> None:
    """An endless value is refused like any other."""
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(ResultNotStorable):
        _codec(Any).encode(loop)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text("abc"), inner),
    max_leaves=10,
)


@given(JSON)
def test_plain_values_need_no_annotation(value: Any) -> None:
    """Any JSON value comes back equal without an annotation."""
    codec = _codec(Any)
    assert codec.decode(codec.encode(value), CODEC_VERSION) == value


def test_results_of_a_newer_library() -> None:
    """A result that a newer library wrote is not guessed at."""
    with pytest.raises(LedgerError, match="Upgrade"):
        _codec(Any).decode("1", CODEC_VERSION + 1)


def test_results_that_no_longer_fit() -> None:
    """A return type that changed is said, with what was recorded; the effect stands."""
    with pytest.raises(LedgerError, match=r"The effect took hold.*sku"):
        _codec(int).decode('{"sku":"x"}', CODEC_VERSION)


def test_texts_in_ledgers_are_still_read() -> None:
    """These were written by version 1: every later release must read them."""
    assert CODEC_VERSION == 1
    assert _codec(Item).decode('{"sku":"x","price":"1.50"}', 1) == Item(
        sku="x", price=Decimal("1.50")
    )
    assert _codec(tuple[str, int]).decode('["a",1]', 1) == ("a", 1)
