"""The unique index that decides every race."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from langgraph_idem.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import sqlalchemy as sa

_NAME: Final = ("scope", "operation", "key")
"""The columns that name an effect."""


@dataclass(frozen=True)
class UniqueIndex:
    """A unique index as the database has it.

    Attributes:
        name: Its name.
        columns: What it is over, in order; an expression is the empty text.
        flaw: Why it does not make its columns unique; None: it does.

    """

    name: str
    columns: tuple[str, ...]
    flaw: str | None = None


def gathered(
    rows: Iterable[sa.Row[Any]], flaw: Callable[[Sequence[sa.Row[Any]]], str | None]
) -> list[UniqueIndex]:
    """Make unique indexes of a catalogue that has a row for each of their columns.

    Args:
        rows: With a ``name`` and a ``column``, in the order of the columns.
        flaw: Says of the rows of one index why it does not make its columns unique.

    """
    found: dict[str, list[sa.Row[Any]]] = {}
    for row in rows:
        found.setdefault(row.name, []).append(row)
    return [
        UniqueIndex(name, tuple(row.column or "" for row in of_one), flaw(of_one))
        for name, of_one in found.items()
    ]


def check_uniqueness(effects: sa.Table, found: Sequence[UniqueIndex]) -> None:
    """Refuse a table whose unique indexes do not say what an effect is.

    Raises:
        ConfigurationError: The one that is needed is missing or flawed, or another one is narrower.

    """
    fitting = [index for index in found if set(index.columns) == set(_NAME)]
    if not any(index.flaw is None for index in fitting):
        raise ConfigurationError(_missing(effects, fitting))
    for index in found:
        if not set(index.columns) >= set(_NAME):
            raise ConfigurationError(_too_narrow(effects, index))


def _missing(effects: sa.Table, fitting: Sequence[UniqueIndex]) -> str:
    flaws = "".join(f" ({index.name} {index.flaw})" for index in fitting)
    return (
        f"Table {effects.fullname} has no primary key or unique index over exactly scope, "
        f"operation and key{flaws}. It alone decides who wins a race: without it two callers both "
        "bring the effect about. Add the primary key that `langgraph-idem schema` prints; rows "
        "that are there twice already have to be looked at first."
    )


def _too_narrow(effects: sa.Table, index: UniqueIndex) -> str:
    columns = ", ".join(column or "an expression" for column in index.columns)
    return (
        f"Table {effects.fullname} has a unique index {index.name} over {columns}, by which an "
        "effect would be refused because of another one that it has nothing to do with. Drop the "
        "index, or make it one that is not unique."
    )
