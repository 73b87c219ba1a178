"""What the tests' own databases promise."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import create_engine, text

from tests.support import databases

ROOT = Path(__file__).parents[2]
postgresql = pytest.mark.server("postgresql")


def _libpq(url: str) -> str:
    return url.replace("postgresql+psycopg://", "postgresql://")


def _names_of_databases(server_url: str) -> set[str]:
    with psycopg.connect(_libpq(server_url)) as connection:
        return {name for (name,) in connection.execute("select datname from pg_database")}


def test_a_database_is_fresh_and_writable(database_url: str) -> None:
    """A test starts without tables and may make its own."""
    engine = create_engine(database_url)
    with engine.begin() as connection:
        connection.execute(text("create table stock (sku text primary key)"))
        connection.execute(text("insert into stock values ('BK-1')"))
    with engine.connect() as connection:
        assert connection.execute(text("select sku from stock")).scalars().all() == ["BK-1"]
    engine.dispose()


def test_two_databases_do_not_see_each_other(postgresql_server: str) -> None:
    """Tests that run side by side on one server share no table."""
    with (
        databases.fresh_postgres_database(postgresql_server) as mine,
        databases.fresh_postgres_database(postgresql_server) as yours,
    ):
        with psycopg.connect(_libpq(mine)) as connection:
            connection.execute("create table stock (sku text)")
        with psycopg.connect(_libpq(yours)) as connection:
            seen = connection.execute("select to_regclass('stock')").fetchone()
    assert seen == (None,)


def test_a_database_is_dropped_though_somebody_is_still_connected(postgresql_server: str) -> None:
    """A worker that a test left behind keeps no database alive."""
    before = _names_of_databases(postgresql_server)
    with databases.fresh_postgres_database(postgresql_server) as url:
        left_behind = psycopg.connect(_libpq(url))
    assert _names_of_databases(postgresql_server) & {left_behind.info.dbname} == set()
    assert left_behind.info.dbname not in before
    left_behind.close()


@postgresql
def test_a_crashed_server_keeps_what_was_committed() -> None:
    """A throw-away server that is stopped as by a crash starts again with every committed row."""
    try:
        server = databases.ThrowAwayPostgres()
    except databases.ServerMissingError as missing:
        pytest.skip(str(missing))
    with server:
        with psycopg.connect(_libpq(server.url)) as connection:
            connection.execute("create table stock as select 9 as units")
        server.stop("immediate")
        server.start()
        with psycopg.connect(_libpq(server.url)) as connection:
            assert connection.execute("select units from stock").fetchall() == [(9,)]


SKIPS = """
import pytest

@pytest.mark.server("postgresql")
def test_of_a_server():
    pytest.skip("no PostgreSQL")
"""


@pytest.mark.parametrize(("ci", "summary"), [("", "1 skipped"), ("true", "1 failed")])
def test_in_ci_a_missing_server_is_a_failure(tmp_path: Path, ci: str, summary: str) -> None:
    """A test that needs a server is skipped on a developer's machine and fails in CI."""
    file = tmp_path / "test_skips.py"
    file.write_text(SKIPS, encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "tests.conftest",
        "-c",
        "pyproject.toml",
    ]
    environment = {**os.environ, "CI": ci, "IDEM_CI": ""}
    done = subprocess.run(
        [*command, f"--rootdir={tmp_path}", str(file)],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert summary in done.stdout, done.stdout + done.stderr


@postgresql
def test_the_servers_end_with_the_command() -> None:
    """`run` tells a command its servers, passes its exit code on, and leaves none running."""
    report = "import os, sys; print(os.environ['IDEM_TEST_POSTGRES_URL']); sys.exit(7)"
    command = [sys.executable, "-m", "tests.support.databases", "run", sys.executable, "-c", report]
    environment = {k: v for k, v in os.environ.items() if k != databases.POSTGRES_URL}
    done = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 7
    with pytest.raises(psycopg.OperationalError, match="refused"):
        psycopg.connect(_libpq(done.stdout.strip()))
