"""Which effect a call means, and whether two calls ask for the same thing."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import json
import unicodedata
import uuid
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, SecretStr

from langgraph_idem import keys
from langgraph_idem.effects import Effect
from langgraph_idem.errors import InvalidArguments, MissingKey


class Colour(enum.Enum):
    """An enum of texts."""

    RED = "red"


class Level(enum.IntEnum):
    """An enum of numbers."""

    HIGH = 3


class Line(BaseModel):
    """A nested model that keeps what it does not know."""

    model_config = ConfigDict(extra="allow")

    sku: str
    units: int = 1


@dataclasses.dataclass
class Address:
    """A nested dataclass."""

    city: str
    lines: list[Line]


TEXTS = st.text(min_size=1, max_size=40).filter(
    lambda text: text.strip() and "\0" not in text and not _has_surrogate(text)
)


def _has_surrogate(text: str) -> bool:
    return any("\ud800" <= char <= "\udfff" for char in text)


def _nfc(parts: list[str]) -> list[str]:
    return [unicodedata.normalize("NFC", part) for part in parts]


# --- the key's text -------------------------------------------------------------------------------


@given(st.lists(TEXTS, min_size=1, max_size=4), st.lists(TEXTS, min_size=1, max_size=4))
def test_keys_meet_only_if_their_parts_do(one: list[str], other: list[str]) -> None:
    """key_text is injective over the NFC form of the parts."""
    same = _nfc(one) == _nfc(other)
    assert (keys.key_text(tuple(one)) == keys.key_text(tuple(other))) is same


@given(st.lists(st.sampled_from(['"', "[", "]", ",", ":", "\\", "a"]), min_size=1, max_size=8))
def test_no_parts_are_taken_for_others(letters: list[str]) -> None:
    """However the letters of JSON are cut into parts, no two cuts are one key."""
    cuts = {(text[:n], text[n:]) for text in ["".join(letters)] for n in range(1, len(text))}
    whole = {("".join(letters),)}
    written = [keys.key_text(parts) for parts in cuts | whole]
    assert len(set(written)) == len(written)


@given(st.lists(TEXTS, min_size=1, max_size=4))
def test_the_shown_key_names_the_effect(parts: list[str]) -> None:
    """What the library shows is what a person can paste back."""
    shown = keys.key_text(tuple(parts))
    assert keys.shown_key(tuple(parts)) == shown
    assert keys.shown_key(shown) == shown


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ("O-1", "O-1"),
        (("O-1",), "O-1"),
        (["O-1", "SKU"], '["O-1","SKU"]'),
        (("a:b", "c"), '["a:b","c"]'),
        ("[x", '["[x"]'),
        (7, "7"),
        (7.0, "7"),
        (-0.0, "0"),
        (2**64, "18446744073709551616"),
        (2**53 + 1, "9007199254740993"),
        (True, "true"),
        (Decimal("1.50"), "1.5"),
        (Decimal(12345678901234567890123456789012345), "12345678901234567890123456789012345"),
        (Colour.RED, "red"),
        (Level.HIGH, "3"),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (dt.date(2026, 11, 29), "2026-11-29"),
        (dt.datetime(2026, 11, 29, 12, tzinfo=dt.timezone.utc), "2026-11-29T12:00:00+00:00"),
        ("e\u0301", "\u00e9"),
        (" padded ", " padded "),
    ],
)
def test_text_of_a_key(parts: Any, text: str) -> None:
    """These texts are in ledgers already: a change would make strangers of all effects."""
    assert keys.key_text(parts) == text


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ("", "blank"),
        ("   ", "blank"),
        (("O-1", "\u3000"), "blank"),
        (None, "plain values"),
        ((), "no parts"),
        ([], "no parts"),
        (("O-1", None), "plain values"),
        (b"O-1", "plain values"),
        ({"a": 1}, "plain values"),
        ((("a", "b"), "c"), "plain values"),
        (object(), "plain values"),
        (float("nan"), "finite"),
        (float("inf"), "finite"),
        (Decimal("NaN"), "finite"),
        ("\ud800", "surrogate"),
        ("a\0b", "NUL"),
        ("x" * 513, "too long"),
        (("x" * 300, "y" * 300), "too long"),
    ],
)
def test_keys_that_name_no_effect(parts: Any, words: str) -> None:
    """What names nothing, or cannot be stored everywhere, is refused with the reason."""
    with pytest.raises(MissingKey, match=words):
        keys.key_text(parts)


def test_size_of_scope_operation_and_key_together() -> None:
    """Names that fit one by one but not the databases' index row are refused before any SQL."""
    keys.check_size("s" * 128, "o" * 128, "k" * 512)
    with pytest.raises(MissingKey, match="bytes"):
        keys.check_size("s" * 128, "o" * 128, "\U0001f9fe" * 540)


@pytest.mark.parametrize("value", ["", "  ", None, 7, "x" * 129, "\udc00", "a\0"])
def test_names_that_are_none(value: Any) -> None:
    """A scope or an operation's name is a text that is not blank, not long, and valid."""
    with pytest.raises(MissingKey):
        keys.name_text("scope", value, 128)


# --- the provider's key ---------------------------------------------------------------------------


@given(st.lists(TEXTS, min_size=3, max_size=3), st.lists(TEXTS, min_size=3, max_size=3))
def test_idempotency_keys_are_short_ascii_and_injective(one: list[str], other: list[str]) -> None:
    """At most 255 ASCII characters, and equal only for the same effect."""
    mine, theirs = keys.idempotency_key(*one), keys.idempotency_key(*other)
    assert mine.isascii()
    assert 1 <= len(mine) <= 255
    assert (mine == theirs) is (one == other)


def test_idempotency_key_of_the_longest_operation() -> None:
    """The longest operation still fits the shortest limit of providers."""
    assert len(keys.idempotency_key("global", "o" * keys.MAX_OPERATION, "k")) <= 255


def test_idempotency_keys_never_change() -> None:
    """Providers remember these texts: a new release must derive the very same."""
    derived = keys.idempotency_key("global", "refund", "O-1")
    assert derived == ("refund-5d210d34efbe34800c1844311fd43a805f5b0ecc0726019e00155ad33fdc74db")
    unicode = keys.idempotency_key("acme", "Überweisung", '["O-1","SKU"]')
    assert unicode == (
        "-berweisung-dce8230e4c3e0c547847536a88784850a2924eff8daee2ab020ad3fac077e2a4"
    )
    assert str(Effect("global", "refund", "O-1").idempotency_uuid) == (
        "43d34d6b-3e64-53be-953a-b1cc2f494b51"
    )


# --- the canonical form ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (1, "1"),
        (1.0, "1"),
        ("1", '"1"'),
        (True, "true"),
        (None, "null"),
        (0.1, "0.1"),
        (-0.0, "0"),
        (1e3, "1000"),
        (2**53 + 1, "9007199254740993"),
        (2**64, "18446744073709551616"),
        (-(2**64), "-18446744073709551616"),
        (Decimal("1.10"), '"1.1"'),
        (Decimal("1E+3"), '"1000"'),
        (Decimal("-0.00"), '"0"'),
        (Decimal("0E+3"), '"0"'),
        ("e\u0301", '"\u00e9"'),
        (Colour.RED, '"red"'),
        (Level.HIGH, "3"),
        (dt.date(2026, 1, 2), '"2026-01-02"'),
        (dt.time(1, 2), '"01:02:00"'),
        (dt.datetime(2026, 1, 2, 3), '"2026-01-02T03:00:00"'),  # noqa: DTZ001 - naive on purpose
        (
            dt.datetime(2026, 1, 2, 3, tzinfo=dt.timezone(dt.timedelta(hours=2))),
            '"2026-01-02T01:00:00+00:00"',
        ),
        (dt.timedelta(hours=1), '"PT1H"'),
        (uuid.UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
        (PurePosixPath("a/b"), '"a/b"'),
        (b"abc", '"abc"'),
        ((1, [2]), "[1,[2]]"),
        ({3, 1, 2}, "[1,2,3]"),
        (frozenset({"b", "a"}), '["a","b"]'),
        ({"b": 1, "a": {"d": 1, "c": 2}}, '{"a":{"c":2,"d":1},"b":1}'),
        (Line(sku="x", note="n"), '{"note":"n","sku":"x","units":1}'),  # type: ignore[call-arg]  # extra="allow"
        (
            Address("Rome", [Line(sku="x")]),
            '{"city":"Rome","lines":[{"sku":"x","units":1}]}',
        ),
    ],
)
def test_case_42_canonical_form(value: Any, written: str) -> None:
    """These forms are digested in ledgers already: what they are is fixed for version 1."""
    assert keys.canonical_json({"a": value}) == f'{{"a":{written}}}'


def test_fingerprints_never_change() -> None:
    """A digest in a ledger must be met by the next release's."""
    canonical = keys.canonical_json({"order_id": "O-1", "cents": 100, "lines": [Line(sku="x")]})
    assert keys.fingerprint(canonical) == (
        "v1:35b6a861ae1405b87695f46ae3cb50c4f9dbe0e4a4b1dd7e5cf11bb5776e1f16"
    )


NAMES = TEXTS.map(lambda text: unicodedata.normalize("NFC", text))
PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from("abcd"), PLAIN))
def test_order_of_arguments_does_not_matter(arguments: dict[str, Any]) -> None:
    """The same arguments in another order are written the same, and once more the same."""
    turned = dict(reversed(arguments.items()))
    canonical = keys.canonical_json(arguments)
    assert keys.canonical_json(turned) == canonical
    assert keys.canonical_json(json.loads(canonical)) == canonical


@given(st.integers(), st.integers())
def test_case_42_integers_of_any_size_stay_whole(one: int, other: int) -> None:
    """Order numbers beyond 2**53 are not rounded into each other."""
    same = keys.canonical_json({"a": one}) == keys.canonical_json({"a": other})
    assert same is (one == other)


@given(st.decimals(allow_nan=False, allow_infinity=False, places=3), st.integers(0, 40))
def test_decimals_are_compared_by_value(value: Decimal, zeros: int) -> None:
    """1.10 is 1.1; and no digit of a long decimal is lost, which the context's 28 would do."""
    long = Decimal(f"{value:f}" + "0" * zeros)
    assert keys.canonical_json({"a": long}) == keys.canonical_json({"a": value})
    another = Decimal(f"{value:f}" + "0" * zeros + "1")
    assert keys.canonical_json({"a": another}) != keys.canonical_json({"a": value})


class _Holder:
    pass


def _loop() -> list[Any]:
    loop: list[Any] = []
    loop.append(loop)
    return loop


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({1: "a"}, "write '1'"),
        ({None: "a"}, "no text"),
        ({"\u00e9": 1, "e\u0301": 2}, "twice"),
        (float("nan"), "finite"),
        (float("-inf"), "finite"),
        (Decimal("sNaN"), "finite"),
        ("\ud800", "surrogate"),
        ({"\udfff": 1}, "surrogate"),
        (_Holder(), "ignore="),
        (len, "ignore="),
        (b"\xff", "ignore="),
        (SecretStr("hidden"), "ignore="),
        (_loop(), "holds itself"),
    ],
)
def test_case_42_arguments_without_a_canonical_form(value: Any, words: str) -> None:
    """What two calls could not be compared by is refused, with what to do."""
    with pytest.raises(InvalidArguments, match=words):
        keys.canonical_json({"a": [value]})


def test_an_integer_of_thousands_of_digits() -> None:
    """Python writes no such number; the error is ours, and says so."""
    with pytest.raises(InvalidArguments, match="thousands of digits"):
        keys.canonical_json({"a": 10**5000})


def test_an_iterator_is_refused_unused() -> None:
    """A generator is not used up by looking at it: the tool would find it empty."""
    numbers = (n for n in (1, 2))
    with pytest.raises(InvalidArguments, match="ignore="):
        keys.canonical_json({"a": numbers})
    assert list(numbers) == [1, 2]


# --- what changed ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("earlier", "later", "names"),
    [
        ({"a": 1, "b": 2}, {"a": 1, "b": 2}, ()),
        ({"a": 1, "b": 2}, {"a": 2, "b": 3}, ("a", "b")),
        ({"a": 1}, {"b": 1}, ("a", "b")),
        ({"a": 1}, {"a": True}, ("a",)),
        ({"a": None}, {}, ("a",)),
        ({"a": {"x": [1]}}, {"a": {"x": [2]}}, ("a",)),
    ],
)
def test_names_of_what_changed(earlier: Any, later: Any, names: tuple[str, ...]) -> None:
    """The names of the arguments that differ, sorted; true is not 1."""
    written = keys.canonical_json(earlier), keys.canonical_json(later)
    assert keys.changed_names(*written) == names
    assert keys.changed_names(None, written[1]) == ()
    assert keys.changed_names(written[0], None) == ()


@given(
    st.dictionaries(st.sampled_from("abcd"), PLAIN), st.dictionaries(st.sampled_from("abcd"), PLAIN)
)
def test_something_changed_if_the_fingerprint_did(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    """Fingerprints differ exactly when an argument is named."""
    written = keys.canonical_json(one), keys.canonical_json(other)
    same = keys.fingerprint(written[0]) == keys.fingerprint(written[1])
    assert same is (keys.changed_names(*written) == ())
