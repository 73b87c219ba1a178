"""Ledgers of every released version are brought to today's, and lose nothing."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest
import sqlalchemy as sa

from langgraph_idem import Ledger, LedgerError
from langgraph_idem.admin import LedgerAdmin, ddl
from langgraph_idem.effects import State
from langgraph_idem.sql import migrations
from langgraph_idem.sql.schema import ledger_tables
from tests.support import shop as shops
from tests.support.racers import Racers

RELEASED: Final = Path(__file__).parents[1] / "released"
"""What each version of the tables was made by, as it was released: never changed afterwards."""
VERSIONS: Final = tuple(range(1, len(migrations.STEPS) + 1))
DIALECTS: Final = ("sqlite", "postgresql", "mariadb", "mysql")

_WHEN: Final = dt.datetime(2026, 11, 1, 12, 30, 59, 123456, tzinfo=dt.timezone.utc)
_COMMON: Final[dict[str, Any]] = {
    "scope": "global",
    "operation": "ship",
    "kind": "transactional",
    "attempts": 1,
    "began_at": _WHEN,
    "claimed_at": _WHEN,
    "sent_at": _WHEN,
}
# Written down as version 1 wrote them. Fingerprints are of {"order_id": <the key>}.
ROWS: Final[dict[int, list[dict[str, Any]]]] = {
    1: [
        {
            **_COMMON,
            "key": "O-1",
            "state": "succeeded",
            "fingerprint": "v1:ac86000e4b24f46755d9f366ffdcb875d03de2908a7cd245d00094dddae38e19",
            "attempt_id": "233688c174f6d6783c7235f856416f4f",
            "arguments": '{"order_id":"O-1"}',
            "result": '{"order_id":"O-1","number":77}',
            "codec": 1,
            "settled_at": _WHEN,
        },
        {
            **_COMMON,
            "key": "O-2 \N{RECEIPT}",
            "kind": "remote",
            "state": "unknown",
            "fingerprint": "v1:0",
            "attempt_id": "0",
            "reason": "TimeoutError",
            "lease_seconds": 300.5,
            "thread_id": "thread-1",
        },
    ],
}


def statements(version: int, dialect: str) -> list[str]:
    """Read what made the tables of a version."""
    text = (RELEASED / str(version) / f"{dialect}.sql").read_text(encoding="utf-8")
    return [statement for statement in text.split(";\n") if statement.strip()]


def released(url: str, version: int) -> sa.Engine:
    """Make the tables of a released version, with its rows."""
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    dialect = "mariadb" if engine.dialect.name == "mysql" else engine.dialect.name
    with engine.begin() as conn:
        for statement in statements(version, dialect):
            conn.exec_driver_sql(statement)
        table = sa.Table("idem_effects", sa.MetaData(), autoload_with=conn)
        for row in ROWS[version]:
            conn.execute(sa.insert(table).values(_stored(row, dialect)))
    return engine


def _stored(row: dict[str, Any], dialect: str) -> dict[str, Any]:
    if dialect == "postgresql":
        return row
    naive = {name: when.replace(tzinfo=None) for name, when in row.items() if when is _WHEN}
    return {**row, **naive}


def contents(engine: sa.Engine) -> list[dict[str, Any]]:
    """Read every effect, whatever columns there are."""
    with engine.connect() as conn:
        table = sa.Table("idem_effects", sa.MetaData(), autoload_with=conn)
        return [dict(row) for row in conn.execute(sa.select(table).order_by("key")).mappings()]


def shape(engine: sa.Engine) -> Any:
    """Describe the tables as the database has them."""
    inspector = sa.inspect(engine)
    return {
        table: (
            [
                (column["name"], str(column["type"]), column["nullable"])
                for column in inspector.get_columns(table)
            ],
            inspector.get_pk_constraint(table)["constrained_columns"],
            inspector.get_unique_constraints(table),
            inspector.get_indexes(table),
        )
        for table in ("idem_effects", "idem_schema")
    }


def by_setup(url: str) -> None:
    """Migrate as a program does that starts."""
    with Ledger(url) as ledger:
        ledger.setup()


def by_the_command(url: str) -> None:
    """Migrate as `langgraph-idem migrate` does."""
    with LedgerAdmin(url) as admin:
        admin.migrate()


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def url(request: pytest.FixtureRequest) -> str:
    """URL of a fresh database, on each kind of server."""
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_todays_tables_are_those_of_the_newest_version(dialect: str) -> None:
    """Who changes the tables adds a step, and a folder of what it makes: versions never change."""
    today = [" ".join(f"{statement}".rstrip(";").split()) for statement in ddl(dialect)]
    kept = [" ".join(statement.split()) for statement in statements(VERSIONS[-1], dialect)]
    assert today == kept


def test_every_version_is_kept() -> None:
    """There is a folder for each version, of each dialect, and its rows."""
    kept = {
        int(folder.name): sorted(file.stem for file in folder.iterdir())
        for folder in RELEASED.iterdir()
    }
    assert kept == {version: sorted(DIALECTS) for version in VERSIONS}
    assert set(ROWS) == set(VERSIONS)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("migrate", [by_setup, by_the_command])
def test_a_released_ledger_keeps_its_effects(
    url: str, version: int, migrate: Callable[[str], None]
) -> None:
    """Brought to today's version, a ledger has all its effects, and the tables of a fresh one."""
    engine = released(url, version)
    before = contents(engine)
    assert len(before) == len(ROWS[version])
    migrate(url)
    after = contents(engine)
    assert [
        {name: row[name] for name in old} for old, row in zip(before, after, strict=True)
    ] == before
    with engine.begin() as conn:
        assert conn.scalar(sa.text("select max(version) from idem_schema")) == VERSIONS[-1]
        migrated = shape(engine)
        for table in ("idem_effects", "idem_schema"):
            conn.exec_driver_sql(f"drop table {table}")
    by_setup(url)
    assert migrated == shape(engine)


@pytest.mark.parametrize("version", VERSIONS)
def test_effects_of_a_released_ledger_are_replayed(url: str, version: int) -> None:
    """What an earlier version recorded is answered from, and what it left open can be settled."""
    engine = released(url, version)
    shops.metadata.create_all(engine)
    with Ledger(url) as ledger:
        ledger.setup()
        assert shops.tool(ledger, "session")("O-1").number == 77
        (open_one,) = ledger.effects(state=State.UNKNOWN)
        assert (open_one.claimed_at, open_one.lease_seconds) == (_WHEN, 300.5)
        ledger.resolve("ship", open_one.key, "failed", note="not in the provider's list")
        settled = ledger.effect("ship", open_one.key)
        assert settled is not None
        assert settled.state is State.FAILED
    with engine.connect() as conn:
        assert conn.scalar(sa.text("select count(*) from shipments")) == 0


@pytest.mark.parametrize("version", [0, *VERSIONS])
def test_set_up_at_once_from_several_processes(url: str, version: int, racers: Racers) -> None:
    """Processes that start at once all succeed, whatever they find; each step is taken once."""
    engine = released(url, version) if version else sa.create_engine(url, poolclass=sa.NullPool)
    for told in racers.run("set_up", copies=6, url=url):
        assert told.result is None
    with engine.connect() as conn:
        found = conn.scalars(sa.text("select version from idem_schema order by version"))
        assert list(found) == list(VERSIONS)
    assert len(contents(engine)) == (len(ROWS[version]) if version else 0)


# --- a version to come ----------------------------------------------------------------------------


@pytest.fixture
def next_version(monkeypatch: pytest.MonkeyPatch) -> int:
    """A library whose tables have one more column."""

    def add_a_column(conn: sa.Connection, tables: Any) -> None:
        conn.exec_driver_sql(f"alter table {tables.effects.fullname} add column extra integer")

    monkeypatch.setattr(migrations, "STEPS", (*migrations.STEPS, add_a_column))
    return len(migrations.STEPS)


@pytest.mark.parametrize("migrate", [by_setup, by_the_command])
def test_a_step_is_taken_once(url: str, next_version: int, migrate: Callable[[str], None]) -> None:
    """A step changes tables that are full, once, though eight start at once and one later."""
    engine = released(url, VERSIONS[-1])
    before = contents(engine)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(migrate, [url] * 8, timeout=100))
    migrate(url)
    assert contents(engine) == [{**row, "extra": None} for row in before]
    with engine.connect() as conn:
        found = conn.scalars(sa.text("select version from idem_schema order by version"))
        assert list(found) == [VERSIONS[-1], next_version]


def test_a_step_that_fails_changes_nothing(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that ends in an error is undone and not recorded, and is taken again."""

    def fail(conn: sa.Connection, tables: Any) -> None:
        if conn.dialect.name != "mysql":  # whose DDL commits by itself
            conn.exec_driver_sql(f"alter table {tables.effects.fullname} add column extra integer")
        raise OSError("no space left on device")

    engine = released(url, VERSIONS[-1])
    before = contents(engine)
    monkeypatch.setattr(migrations, "STEPS", (*migrations.STEPS, fail))
    for _ in range(2):
        with pytest.raises(OSError, match="no space"):
            by_setup(url)
    with engine.connect() as conn:
        assert conn.scalar(sa.text("select max(version) from idem_schema")) == VERSIONS[-1]
    assert contents(engine) == before


def test_a_migration_that_does_not_end_on_mariadb(
    mariadb_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who does not get the lock changes nothing, and says why."""
    monkeypatch.setattr(migrations, "_LOCK_SECONDS", 1)
    engine = sa.create_engine(mariadb_url, poolclass=sa.NullPool)
    with engine.connect() as conn:
        # Not the library's own name: other tests migrate on this server meanwhile.
        monkeypatch.setattr(migrations, "_NAMED_LOCK", "a lock of this test")
        assert conn.scalar(sa.select(sa.func.get_lock("a lock of this test", 5))) == 1
        with pytest.raises(LedgerError, match="has not ended within 1 s"):
            by_setup(mariadb_url)
    assert sa.inspect(engine).get_table_names() == []
    by_setup(mariadb_url)


def test_who_waited_for_a_migration_sees_what_it_did_on_mariadb(
    mariadb_url: str, next_version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command looks at the version before it waits; afterwards it looks again."""
    engine = released(mariadb_url, VERSIONS[-1])
    monkeypatch.setattr(migrations, "_NAMED_LOCK", "another lock of this test")
    lock = sa.literal("another lock of this test")
    with engine.connect() as first, ThreadPoolExecutor(1) as pool:
        first.execute(sa.select(sa.func.get_lock(lock, 5)))
        second = pool.submit(by_the_command, mariadb_url)
        _until(
            engine,
            "select count(*) from information_schema.processlist"
            " where db = database() and state = 'User lock'",
        )
        migrations.STEPS[-1](first, ledger_tables())
        row = f"insert into idem_schema values ({next_version}, utc_timestamp(6))"
        first.exec_driver_sql(row)
        first.commit()
        first.execute(sa.select(sa.func.release_lock(lock)))
        second.result(60)
    assert "extra" in contents(engine)[0]


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_who_waited_for_a_migration_sees_what_it_did_on_postgresql(
    postgresql_url: str, level: Any
) -> None:
    """Whatever level the user's engine has, who waited for another's set-up finds it done."""
    engine = sa.create_engine(postgresql_url, poolclass=sa.NullPool)
    theirs = sa.create_engine(postgresql_url, isolation_level=level)
    with engine.connect() as first, ThreadPoolExecutor(1) as pool:
        first.execute(sa.select(sa.func.pg_advisory_xact_lock(migrations._ADVISORY_LOCK)))
        second = pool.submit(Ledger(theirs).setup)
        _until(engine, "select count(*) from pg_locks where locktype = 'advisory' and not granted")
        for statement in statements(VERSIONS[-1], "postgresql"):
            first.exec_driver_sql(statement)
        first.commit()
        second.result(60)
    theirs.dispose()
    with engine.connect() as conn:
        assert conn.scalars(sa.text("select version from idem_schema")).all() == [VERSIONS[-1]]


def _until(engine: sa.Engine, somebody_waits: str) -> None:
    deadline = time.monotonic() + 30
    with engine.connect() as conn:
        while not conn.scalar(sa.text(somebody_waits)):
            assert time.monotonic() < deadline, "nobody waits for the lock"
            time.sleep(0.01)
