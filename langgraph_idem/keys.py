"""Which effect a call means: scope, operation and key as text, and the arguments' fingerprint.

Two questions, kept apart. The *key* says which effect is meant. The *fingerprint* says whether
two calls that mean the same effect also ask for the same thing.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import hashlib
import json
import math
import unicodedata
import uuid
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any, Final

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from langgraph_idem.errors import InvalidArguments, MissingKey

MAX_SCOPE: Final = 128
MAX_OPERATION: Final = 128
MAX_KEY: Final = 512
"""Characters. Together they fit the shortest index of all databases (MySQL: 3072 bytes)."""

MAX_BYTES: Final = 2400
"""UTF-8 bytes of scope, operation and key together (PostgreSQL's index row: 2704 bytes)."""

GLOBAL: Final = "global"
"""The default scope."""

FINGERPRINT_VERSION: Final = "v1"


class _PerCall:
    """Key an effect by its tool call: thread, AIMessage and tool_call_id.

    Two calls are two effects even if they ask for the same thing, and only the very same call
    is recognised. Safe only under ``durability="sync"``: otherwise a crash can lose the model's
    step, the model plans anew under a new id, and the effect happens twice.
    """

    def __repr__(self) -> str:
        return "PER_CALL"


PER_CALL: Final = _PerCall()


def key_text(parts: object) -> str:
    """Join the parts of a key injectively into the text that the library shows.

    A single part is its own text; several are a JSON array, so that ``("a:b", "c")`` never
    meets ``("a", "b:c")``. Text is NFC-normalised (UAX #15): what Unicode defines as the same
    text is the same key. ``5`` and ``"5"`` are one key; should they ever mean two things, the
    fingerprints differ and the second call is refused, not silently answered.

    Args:
        parts: One plain value (str, int, float, bool, UUID, date, datetime, Decimal, Enum), or a
            tuple or list of them.

    Returns:
        Text of 1 to 512 characters.

    Raises:
        MissingKey: A part is empty, blank, None or no plain value, or the key is too long.

    """
    several = isinstance(parts, (tuple, list))
    texts = [_part_text(part) for part in parts] if several else [_part_text(parts)]  # type: ignore[attr-defined]  # narrowed by `several`
    if not texts:
        raise MissingKey("The key has no parts. Give at least one argument that names the effect.")
    if len(texts) == 1 and not texts[0].startswith("["):
        text = texts[0]
    else:
        text = json.dumps(texts, ensure_ascii=False, separators=(",", ":"))
    if len(text) > MAX_KEY:
        raise MissingKey(
            f"The key is too long: {len(text)} characters, at most {MAX_KEY}. Key the effect by an "
            "identifier (an order number), not by its content; or let the key be a digest of it."
        )
    return text


def shown_key(key: object) -> str:
    """Turn what a person or program names a key by into the key's text.

    Args:
        key: The text as the library shows it, or the parts as a tuple.

    """
    if isinstance(key, str) and key.startswith("[") and _is_shown_array(key):
        return key
    return key_text(key)


def _is_shown_array(text: str) -> bool:
    try:
        return key_text(json.loads(text)) == text
    except (ValueError, MissingKey):
        return False


def name_text(what: str, value: object, longest: int) -> str:
    """Check a scope or an operation's name and return it NFC-normalised.

    Raises:
        MissingKey: It is not a text, empty, blank or too long.

    """
    if not isinstance(value, str) or not value.strip():
        raise MissingKey(f"The {what} must be a text that is not blank; it is {value!r}.")
    text = _normal(value, f"the {what}", MissingKey)
    if len(text) > longest:
        raise MissingKey(f"The {what} is too long: {len(text)} characters, at most {longest}.")
    return text


def check_size(scope: str, operation: str, key: str) -> None:
    """Refuse names that together would not fit a database's index row.

    Raises:
        MissingKey: Together they are longer than 2400 bytes of UTF-8.

    """
    size = len(f"{scope}{operation}{key}".encode())
    if size > MAX_BYTES:
        raise MissingKey(
            f"Scope, operation and key are {size} bytes of UTF-8 together, at most {MAX_BYTES}. "
            "Use a shorter key."
        )


def idempotency_key(scope: str, operation: str, key: str) -> str:
    """Derive the idempotency key for a provider: ASCII, 1 to 255 characters, always the same.

    It starts with the operation, for the person who reads the provider's log.
    """
    digest = hashlib.sha256(_joined(scope, operation, key)).hexdigest()
    name = "".join(c if c.isascii() and (c.isalnum() or c in "_-.") else "-" for c in operation)
    return f"{name}-{digest}"


def _joined(*texts: str) -> bytes:
    return json.dumps(texts, ensure_ascii=False, separators=(",", ":")).encode()


def _part_text(part: object) -> str:
    value = part.value if isinstance(part, Enum) else part
    if isinstance(value, str):
        text = _normal(value, "a key part", MissingKey)
        if not text.strip():
            raise MissingKey(f"A part of the key is blank ({value!r}): it names no effect.")
        return text
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float, Decimal, uuid.UUID, dt.date, dt.datetime)):
        return str(_plain(value, MissingKey))
    raise MissingKey(
        f"A part of the key is {value!r}. A key is made of plain values (texts, numbers, UUIDs, "
        "dates); choose an argument that names the effect, or give key= a callable."
    )


_encoded: Final = json.JSONEncoder(
    sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False
).encode


def canonical_json(arguments: Mapping[str, Any]) -> str:
    """Write arguments so that what means the same is written the same.

    Keys are sorted; ``1`` and ``1.0`` are alike (as in RFC 8785), but integers of any size stay
    whole; ``-0.0`` is ``0``; text is NFC-normalised; aware datetimes are in UTC; models,
    dataclasses, enums, sets, dates, decimals and UUIDs become their plain values.

    Raises:
        InvalidArguments: NaN, infinity, a non-string key, a lone surrogate, or an object without
            a plain form.

    """
    try:
        return _encoded(_object(arguments.items(), InvalidArguments))
    except (ValueError, RecursionError) as error:
        raise InvalidArguments(
            f"The arguments have no canonical form: {error}. An object holds itself, is nested too "
            "deeply, or an integer has thousands of digits; pass something plainer, or leave the "
            "argument out with ignore=(...)."
        ) from error


def fingerprint(canonical: str) -> str:
    """Digest canonical JSON: ``"v1:"`` and 64 hexadecimal digits (SHA-256)."""
    return f"{FINGERPRINT_VERSION}:{hashlib.sha256(canonical.encode()).hexdigest()}"


def changed_names(earlier: str | None, later: str | None) -> tuple[str, ...]:
    """Name the arguments in which two canonical JSON objects differ, sorted."""
    if earlier is None or later is None:
        return ()
    before, now = json.loads(earlier), json.loads(later)
    return tuple(
        sorted(
            name
            for name in before.keys() | now.keys()
            if _written(before, name) != _written(now, name)
        )
    )


def _written(arguments: Mapping[str, Any], name: str) -> str | None:
    """Compare what is written: to Python ``1`` and ``true`` are equal."""
    return json.dumps(arguments[name], sort_keys=True) if name in arguments else None


Refusal = type[MissingKey] | type[InvalidArguments]


def _plain(value: Any, refusal: Refusal) -> Any:  # noqa: C901, PLR0912 - one line for each type
    """Reduce a value to what JSON has."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Enum):
        return _plain(value.value, refusal)
    if isinstance(value, str):
        return _normal(value, "a text", refusal)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return _number(value, refusal)
    if isinstance(value, Decimal):
        return _decimal(value, refusal)
    if isinstance(value, dt.datetime):
        aware = value.tzinfo is not None
        return (value.astimezone(dt.timezone.utc) if aware else value).isoformat()
    if isinstance(value, (dt.date, dt.time, uuid.UUID, PurePath)):
        return value.isoformat() if isinstance(value, (dt.date, dt.time)) else str(value)
    if isinstance(value, BaseModel):
        return _object(((name, getattr(value, name)) for name in _fields(value)), refusal)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return _object(((field.name, getattr(value, field.name)) for field in fields), refusal)
    if isinstance(value, Mapping):
        return _object(value.items(), refusal)
    if isinstance(value, (list, tuple)):
        return [_plain(item, refusal) for item in value]
    if isinstance(value, AbstractSet):
        items = [_plain(item, refusal) for item in value]
        return sorted(items, key=lambda item: json.dumps(item, sort_keys=True))
    return _foreign(value, refusal)


def _fields(model: BaseModel) -> list[str]:
    return [*type(model).model_fields, *(model.__pydantic_extra__ or {})]


def _object(items: Iterable[tuple[Any, Any]], refusal: Refusal) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for name, item in items:
        if not isinstance(name, str):
            raise refusal(
                f"The key {name!r} of a mapping is no text, and JSON has only texts for keys: "
                f"write {str(name)!r}."
            )
        key = _normal(name, "a key of a mapping", refusal)
        if key in plain:
            raise refusal(f"The key {name!r} is there twice, in two Unicode forms of one text.")
        plain[key] = _plain(item, refusal)
    return plain


def _normal(text: str, what: str, refusal: Refusal) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise refusal(
            f"{what.capitalize()} holds a lone surrogate ({text!r}): it is no valid Unicode. "
            "Decode the text properly where it comes from."
        ) from error
    if refusal is MissingKey and "\0" in text:
        raise refusal(f"{what.capitalize()} holds a NUL ({text!r}), which PostgreSQL cannot store.")
    return str(text) if text.isascii() else unicodedata.normalize("NFC", text)


def _number(value: float, refusal: Refusal) -> float | int:
    if not math.isfinite(value):
        raise refusal(f"{value!r} is no number that can be told from itself; give a finite one.")
    return int(value) if value.is_integer() else float(value)


def _decimal(value: Decimal, refusal: Refusal) -> str:
    if not value.is_finite():
        raise refusal(f"{value!r} is no number that can be told from itself; give a finite one.")
    # Not normalize(): that rounds to 28 digits, and two long order numbers would meet.
    plain = format(value, "f")
    if "." in plain:
        plain = plain.rstrip("0").rstrip(".")
    return "0" if plain == "-0" else plain


def _foreign(value: Any, refusal: Refusal) -> Any:
    """Let pydantic have a try at what is left: URLs, addresses, paths, timedeltas, bytes.

    It would use an iterator up before the tool sees it, and write every secret as asterisks.
    """
    if isinstance(value, Iterator) or hasattr(value, "get_secret_value"):
        raise _no_plain_form(value, refusal)
    try:
        return _plain(to_jsonable_python(value), refusal)
    except (ValueError, TypeError, RecursionError) as error:
        raise _no_plain_form(value, refusal) from error


def _no_plain_form(value: Any, refusal: Refusal) -> MissingKey | InvalidArguments:
    return refusal(
        f"{value!r} ({type(value).__name__}) has no plain form that two calls could be "
        "compared by. Pass plain values, pydantic models or dataclasses, or leave the "
        "argument out with ignore=(...)."
    )
