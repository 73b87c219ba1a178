"""Statements compiled once for each driver: an effect should cost what the database costs."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, TypeVar

import sqlalchemy as sa

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sqlalchemy.sql.compiler import SQLCompiler

    Convert = Callable[[Any], Any]

T = TypeVar("T")


class Prepared:
    """A statement whose text is made when a driver first runs it, and then only sent.

    SQLAlchemy's own execution looks the compiled statement up, makes a context and a result, and
    asks each parameter its type, every time: three times what SQLite takes to run the statement.

    Args:
        statement: A Core statement with named parameters, none of them expanding.

    """

    def __init__(self, statement: sa.Executable) -> None:
        self._statement: Any = statement
        self._texts: dict[tuple[str, str], _Text] = {}

    def first(self, conn: sa.Connection, values: Mapping[str, Any]) -> tuple[Any, ...] | None:
        """Run it and return its first row, None if there is none.

        Args:
            conn: Where.
            values: Its parameters by name.

        """
        text = self._text(conn)
        row = send(conn, text.sql, text.parameters(values), _first)
        return None if row is None else text.converted(row)

    def changes_one(self, conn: sa.Connection, values: Mapping[str, Any]) -> bool:
        """Run it and tell whether it changed exactly one row.

        Args:
            conn: Where.
            values: Its parameters by name.

        """
        text = self._text(conn)
        count = send(conn, text.sql, text.parameters(values), _count)
        return count == 1

    def _text(self, conn: sa.Connection) -> _Text:
        driver = (conn.dialect.name, conn.dialect.driver)
        text = self._texts.get(driver)
        if text is None:
            text = self._texts[driver] = _Text(self._statement, conn.dialect)
        return text


def send(
    conn: sa.Connection, sql: str, parameters: Any = (), take: Callable[[Any], T] | None = None
) -> T | None:
    """Run a finished statement on the driver's own cursor.

    What listens to the engine's statements, or wants them logged, still gets to see them all:
    then they go through SQLAlchemy.

    Args:
        conn: Where.
        sql: In the driver's words.
        parameters: As the driver wants them.
        take: Makes the answer of the cursor.

    Raises:
        sqlalchemy.exc.DBAPIError: As SQLAlchemy itself would raise it.

    """
    if _is_watched(conn):
        result = conn.exec_driver_sql(sql, parameters or None)
        return take(result) if take is not None else None
    cursor = conn.connection.cursor()
    try:
        cursor.execute(sql, parameters)
        answer = take(cursor) if take is not None else None
    except BaseException as error:  # noqa: BLE001 - a cancel, too, spoils the connection
        # Private, for want of a public way to have an error wrapped, and a dead connection and its
        # pool found out; the same in every SQLAlchemy from 1.4 on.
        conn._handle_dbapi_exception(error, sql, None, cursor, None)  # noqa: SLF001 - see above
    cursor.close()
    return answer


def _is_watched(conn: sa.Connection) -> bool:
    engine = conn.engine
    listeners = engine.dispatch
    return bool(
        listeners.before_cursor_execute
        or listeners.after_cursor_execute
        or engine.logger.isEnabledFor(logging.INFO)
    )


def _first(cursor: Any) -> Any:
    return cursor.fetchone()


def _count(cursor: Any) -> Any:
    return cursor.rowcount


class _Text:
    """A statement in one driver's words."""

    def __init__(self, statement: Any, dialect: sa.Dialect) -> None:
        compiled: SQLCompiler = statement.compile(dialect=dialect)
        self.sql: str = compiled.string
        self._constants = {
            name: parameter.effective_value
            for parameter, name in compiled.bind_names.items()
            if not parameter.required
        }
        self._order: tuple[str, ...] | None = (
            tuple(compiled.positiontup or ()) if compiled.positional else None
        )
        self._names = tuple(compiled.params)
        self._written = _written(compiled, dialect)
        self._read = _read(statement, dialect)

    def parameters(self, values: Mapping[str, Any]) -> tuple[Any, ...] | dict[str, Any]:
        """Arrange the parameters as the driver wants them."""
        known = {**self._constants, **values}
        for name, convert in self._written:
            known[name] = convert(known[name])
        if self._order is None:
            return {name: known[name] for name in self._names}
        return tuple([known[name] for name in self._order])

    def converted(self, row: Any) -> tuple[Any, ...]:
        """Turn the driver's values into Python's."""
        if not self._read:
            return tuple(row)
        values = [*row]
        for index, convert in self._read:
            values[index] = convert(values[index])
        return tuple(values)


def _written(compiled: SQLCompiler, dialect: sa.Dialect) -> tuple[tuple[str, Convert], ...]:
    """Find the parameters that a driver does not take as they are."""
    return tuple(
        (name, convert)
        for parameter, name in compiled.bind_names.items()
        if (convert := _of_ours(parameter.type, dialect).bind_processor(dialect)) is not None
    )


def _read(statement: Any, dialect: sa.Dialect) -> tuple[tuple[int, Convert], ...]:
    """Find the columns that a driver does not return as they are meant."""
    columns = getattr(statement, "exported_columns", ())  # of RETURNING, too
    return tuple(
        (index, convert)
        for index, column in enumerate(columns)
        if (convert := _of_ours(column.type, dialect).result_processor(dialect, None)) is not None
    )


def _of_ours(kind: sa.types.TypeEngine[Any], dialect: sa.Dialect) -> sa.types.TypeEngine[Any]:
    """Convert types of our own (instants); texts and numbers are to every driver what they are."""
    if isinstance(kind, sa.types.TypeDecorator):
        return kind.dialect_impl(dialect)
    return sa.types.NULLTYPE
