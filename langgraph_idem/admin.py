"""What a person does with a ledger: look for what is open, settle it, make the tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import sqlalchemy as sa

from langgraph_idem import keys
from langgraph_idem.decisions import Seen
from langgraph_idem.effects import State
from langgraph_idem.errors import ConfigurationError, LedgerError
from langgraph_idem.ports import run_blocking
from langgraph_idem.protocols import own_work
from langgraph_idem.resolving import is_open, settle
from langgraph_idem.sql import migrations, queries
from langgraph_idem.sql.dialects import SUPPORTED
from langgraph_idem.sql.engines import Engines
from langgraph_idem.sql.schema import db_now, ledger_tables
from langgraph_idem.sql.sites import BlockingSite, Body, Takes
from langgraph_idem.sql.statements import LedgerStatements, record_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from typing_extensions import Self

    from langgraph_idem.decisions import Word
    from langgraph_idem.effects import EffectRecord

T = TypeVar("T")

WAIT_SECONDS: Final = 10.0
"""How long a question waits for a lock of the database."""

_NO_BODY: Final = Body(lambda _first: None, Takes.CONNECTION)


class LedgerAdmin:
    """A ledger as its operator sees it. It makes no tables, and no file, unless told to migrate.

    Args:
        url: The database URL.
        prefix: What the names of the ledger's tables begin with.
        schema: The database schema of the ledger's tables; None: the connection's own.

    Raises:
        ConfigurationError: The URL is of no use, or its driver is not installed.

    """

    def __init__(self, url: str, *, prefix: str = "idem_", schema: str | None = None) -> None:
        Engines(url, WAIT_SECONDS)  # refuses what is no URL of a ledger's database
        self._url = sa.make_url(url)
        self._tables = ledger_tables(prefix, schema)
        self._engines = Engines(_bind(self._url), WAIT_SECONDS)
        self._engines.check_colour(is_async=False)
        self._statements = LedgerStatements(self._tables, self._engines.dialect, WAIT_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._engines.blocking().dispose()

    def waiting(self, limit: int, **filters: Any) -> list[Seen]:
        """List what only a person can settle, or what nobody has taken up again; oldest first.

        That is what is unknown, and claims whose lease is over or has no end.

        Args:
            limit: At most so many.
            **filters: ``scope``, ``operation``, ``thread_id``; None: any.

        """

        def question(conn: sa.Connection) -> list[Seen]:
            found = [seen for seen in self._open_or_claimed(conn, filters) if is_open(seen)]
            return found[:limit]

        return self._asked(question)

    def effects(self, limit: int, **filters: Any) -> list[Seen]:
        """List effects in any state, the latest first.

        Args:
            limit: At most so many.
            **filters: ``scope``, ``operation``, ``thread_id``, ``state``; None: any.

        """

        def question(conn: sa.Connection) -> list[Seen]:
            now = _now(conn)
            found = queries.many(conn, self._tables, limit=limit, **filters)
            return [Seen(record, now) for record in found]

        return self._asked(question)

    def effect(self, scope: str, operation: str, key: str) -> Seen | None:
        """Look one effect up.

        Args:
            scope: Whose it is.
            operation: Its operation.
            key: Its key, as the library shows it.

        """
        return self._asked(lambda conn: self._statements.read(conn, scope, operation, key))

    def scopes_of(self, operation: str, key: str) -> list[str]:
        """List the scopes in which there is an effect of this operation and key."""
        found = self.effects(20, operation=operation, key=key)
        return sorted(seen.record.scope for seen in found)

    def resolve(self, seen: EffectRecord, word: Word) -> EffectRecord:
        """Settle an unknown outcome by a person's word.

        Args:
            seen: The row as that person saw it; if it has moved on, nothing is changed.
            word: What the person says.

        Returns:
            The row as it is then.

        Raises:
            TransitionForbidden: The state table does not allow it, or the row has moved on.

        """
        name = (seen.scope, seen.operation, seen.key)
        return run_blocking(settle(self._site(), self._statements, *name, word, seen))

    def migrate(self) -> tuple[int, int]:
        """Make the ledger's tables, or bring older ones up to date.

        Returns:
            The version they were at (0: there were none), and the one they are at.

        """

        def change(conn: sa.Connection) -> tuple[int, int]:
            before = migrations.current_version(conn, self._tables)
            migrations.migrate(conn, self._tables)
            return before, len(migrations.STEPS)

        return run_blocking(own_work(self._site(), change, keep=True))

    def _open_or_claimed(self, conn: sa.Connection, filters: dict[str, Any]) -> Iterator[Seen]:
        effects, now = self._tables.effects, _now(conn)
        fits = [effects.c[name] == value for name, value in filters.items() if value is not None]
        states = effects.c.state.in_([State.UNKNOWN.value, State.CLAIMED.value])
        query = sa.select(effects).where(states, *fits).order_by(effects.c.began_at)
        return (Seen(record_of(row), now) for row in conn.execute(query))

    def _asked(self, question: Callable[[sa.Connection], T]) -> T:
        self._check_file()

        def checked(conn: sa.Connection) -> T:
            self._check_version(conn)
            return question(conn)

        return run_blocking(own_work(self._site(), checked, keep=False))

    def _check_file(self) -> None:
        """Refuse a file that is not there: SQLite would make an empty one."""
        name = self._url.database or ""
        is_file = self._url.get_backend_name() == "sqlite" and not name.startswith("file:")
        if is_file and not Path(name).is_file():
            raise LedgerError(f"There is no file {name}. Is the path in the URL right?")

    def _check_version(self, conn: sa.Connection) -> None:
        found, known = migrations.current_version(conn, self._tables), len(migrations.STEPS)
        if found == known:
            return
        if found == 0:
            raise LedgerError(
                f"There is no ledger in this database: table {self._tables.schema.fullname} is not "
                "there, or tells no version. Are --prefix and --schema right? `langgraph-idem "
                "migrate` makes the tables."
            )
        if found > known:
            raise LedgerError(
                f"The ledger's tables are at version {found}; this langgraph-idem knows versions "
                f"up to {known}. Upgrade langgraph-idem on this machine."
            )
        raise LedgerError(
            f"The ledger's tables are at version {found}, this langgraph-idem needs {known}. Run "
            "`langgraph-idem migrate`."
        )

    def _site(self) -> BlockingSite:
        return BlockingSite(self._engines, _NO_BODY)


def ddl(dialect: str, *, prefix: str = "idem_", schema: str | None = None) -> list[str]:
    """Write the statements that make a ledger's tables, for those who run such things themselves.

    Args:
        dialect: ``sqlite``, ``postgresql``, ``mysql`` or ``mariadb``.
        prefix: What the names of the tables begin with.
        schema: The database schema they are in; None: the connection's own.

    Raises:
        ConfigurationError: The dialect is not supported.

    """
    if dialect not in SUPPORTED:
        raise ConfigurationError(
            f"{dialect} is not supported: a ledger needs SQLite, PostgreSQL, MariaDB or MySQL."
        )
    written: list[str] = []

    def write(statement: Any, *_args: Any, **_kwargs: Any) -> None:
        compiled = statement.compile(dialect=engine.dialect, compile_kwargs={"literal_binds": True})
        written.append(f"{str(compiled).strip()};")

    # Any statement before the schema version: whoever finds a version finds the tables as well.
    engine = sa.create_mock_engine(f"{dialect}://", write)
    tables = ledger_tables(prefix, schema)
    tables.metadata.create_all(engine, checkfirst=False)
    version = len(migrations.STEPS)
    write(sa.insert(tables.schema).values(version=version, applied_at=db_now()))
    return written


def result_text(operation: str, result: Any) -> str:
    """Write a result that a person gives as the ledger keeps it."""
    from langgraph_idem.codec import PydanticCodec

    return PydanticCodec(operation, Any).encode(result)


def key_of(words: tuple[str, ...]) -> str:
    """Turn the words that a person names a key by into its text: several words are several parts.

    Raises:
        MissingKey: They make no key.

    """
    return keys.shown_key(words[0] if len(words) == 1 else words)


def _bind(url: sa.URL) -> Any:
    """Look at a SQLite file without changing how it is journaled, as the ledger's engine would."""
    if url.get_backend_name() != "sqlite":
        return url
    address = url.set(drivername="sqlite+pysqlite")
    return sa.create_engine(address, connect_args={"timeout": WAIT_SECONDS})


def _now(conn: sa.Connection) -> Any:
    return conn.scalar(sa.select(db_now()))
