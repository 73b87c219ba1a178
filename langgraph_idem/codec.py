"""A result to JSON text and back. Never pickle; always checked before anything commits."""

from __future__ import annotations

import inspect
from typing import Any, Final, Protocol

from pydantic import PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from langgraph_idem.errors import LedgerError, ResultNotStorable

CODEC_VERSION: Final = 1
"""Written beside every result. A later version must go on reading the earlier ones."""

_NOT_KEPT: Final = (
    *(PydanticSerializationError, ValueError, TypeError, RecursionError),
    *(PydanticUserError, NameError),  # the annotation has no schema, or names what is nowhere
)


class Codec(Protocol):
    """Turns one operation's results into text and back."""

    def encode(self, value: Any) -> str:
        """Return the result as JSON text.

        Raises:
            ResultNotStorable: Decoding the text would not give the same value back.

        """
        ...

    def decode(self, text: str, version: int) -> Any:
        """Return the result that the text holds.

        Raises:
            LedgerError: The text was written by a newer library or for another return type.

        """
        ...


class PydanticCodec:
    """Encodes by the tool's return annotation, and proves each result by reading it back."""

    def __init__(self, operation: str, annotation: Any) -> None:
        self._operation = operation
        self._annotation = Any if annotation is inspect.Signature.empty else annotation
        self._adapter: TypeAdapter[Any] | None = None

    def encode(self, value: Any) -> str:
        """Return the result as JSON text, having read it back and compared."""
        try:
            text = self._written(value, by_alias=False) or self._written(value, by_alias=True)
        except _NOT_KEPT as error:
            raise self._refusal(value, " ".join(str(error).split())[:300]) from error
        if text is None:
            raise self._refusal(value, "reading it back gives another value")
        return text

    def _written(self, value: Any, *, by_alias: bool) -> str | None:
        """Write the value; None if it does not read back as it was.

        Some models read only the aliases of their fields, others only the names.
        """
        adapter = self._ready()
        text = adapter.dump_json(value, warnings="error", by_alias=by_alias).decode()
        try:
            return text if adapter.validate_json(text) == value else None
        except ValidationError:
            if by_alias:
                raise
            return None

    def decode(self, text: str, version: int) -> Any:
        """Return the recorded result as the annotated type."""
        if version > CODEC_VERSION:
            raise LedgerError(
                f"The result of {self._operation} was written with encoding {version}; this "
                f"langgraph-idem reads up to {CODEC_VERSION}. Upgrade it on this machine."
            )
        try:
            return self._ready().validate_json(text)
        except ValueError as error:
            raise LedgerError(
                f"The recorded result of {self._operation} no longer fits the tool's return type "
                f"{_name(self._annotation)}. The effect took hold; let the type accept the old "
                f"form too. Recorded: {text[:200]}"
            ) from error

    def _ready(self) -> TypeAdapter[Any]:
        """Build the adapter on first use: the annotation may name what is defined later."""
        if self._adapter is None:
            self._adapter = TypeAdapter(self._annotation)
        return self._adapter

    def _refusal(self, value: Any, why: str) -> ResultNotStorable:
        return ResultNotStorable(
            f"The result of {self._operation} ({type(value).__name__}) cannot be kept: {why}. A "
            "replay must return the very same value: annotate the tool's return type "
            f"(it is {_name(self._annotation)}) with what it returns, and return plain values, "
            "pydantic models or dataclasses.",
            operation=self._operation,
        )


def _name(annotation: Any) -> str:
    return getattr(annotation, "__name__", None) or str(annotation)
