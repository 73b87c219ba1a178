"""Statements compiled once for each driver: an effect should cost what the database costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    import sqlalchemy as sa


class Prepared:
    """A statement whose text is made when a driver first runs it, and then only sent.

    SQLAlchemy's own cache of compiled statements still looks the statement up, sorts its
    parameters and asks their types each time, which takes longer than SQLite takes to run it. The
    parameters of these statements are texts and numbers, which every driver takes as they are.

    Args:
        statement: A Core statement; its parameters need no conversion.

    """

    def __init__(self, statement: sa.Executable) -> None:
        self._statement: Any = statement
        self._texts: dict[tuple[str, str], _Text] = {}

    def __call__(self, conn: sa.Connection, values: Mapping[str, Any]) -> sa.CursorResult[Any]:
        """Run it.

        Args:
            conn: Where.
            values: Its parameters by name.

        """
        driver = (conn.dialect.name, conn.dialect.driver)
        text = self._texts.get(driver)
        if text is None:
            text = self._texts[driver] = _Text(self._statement.compile(dialect=conn.dialect))
        return conn.exec_driver_sql(text.sql, text.parameters(values))


class _Text:
    """A statement in one driver's words."""

    def __init__(self, compiled: Any) -> None:
        self.sql: str = compiled.string
        self._constants: dict[str, Any] = {
            name: value for name, value in compiled.params.items() if value is not None
        }
        self._order: tuple[str, ...] | None = (
            tuple(compiled.positiontup) if compiled.positional else None
        )
        self._names = tuple(compiled.params)

    def parameters(self, values: Mapping[str, Any]) -> tuple[Any, ...] | dict[str, Any]:
        """Arrange the parameters as the driver wants them."""
        known = {**self._constants, **values}
        if self._order is None:
            return {name: known[name] for name in self._names}
        return tuple([known[name] for name in self._order])
