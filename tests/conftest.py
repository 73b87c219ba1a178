"""Databases for every test: each gets a fresh one, on SQLite, PostgreSQL or MariaDB."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support import databases

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator


REMOTE_TESTS = Path(__file__).parent / "remote"
SERVER_FIXTURES = {"postgresql_server": "postgresql", "mariadb_server": "mariadb"}
SERVER_PARAMETERS = {
    **dict.fromkeys(("postgresql", "psycopg", "asyncpg"), "postgresql"),
    **dict.fromkeys(("mariadb", "mysql", "pymysql", "asyncmy"), "mariadb"),
}
"""What a parameter is called by which a fixture chooses a database, or its driver."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test that asks for a server is marked so, without anybody having to remember it."""
    for item in items:
        for name in _servers_of(item):
            item.add_marker(pytest.mark.server(name))
        if item.path.is_relative_to(REMOTE_TESTS):
            item.add_marker(pytest.mark.server("remotes"))


def _servers_of(item: pytest.Item) -> set[str]:
    """Name the servers of a test: by its fixtures, or by what a fixture of its will ask for."""
    fixtures = getattr(item, "fixturenames", ())
    found = {name for fixture, name in SERVER_FIXTURES.items() if fixture in fixtures}
    if "request" in fixtures and (parameters := getattr(item, "callspec", None)) is not None:
        words = parameters.id.split("-")
        found |= {SERVER_PARAMETERS[word] for word in words if word in SERVER_PARAMETERS}
    return found


NOT_APPLICABLE = "not applicable: "
"""How the reason of a skip begins that has nothing to do with what is installed."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI a test that needs a server never passes by being skipped for the want of it.

    An expected failure is no skip, and neither is a combination that does not exist.
    """
    report = yield
    is_excused = hasattr(report, "wasxfail") or NOT_APPLICABLE in str(report.longrepr)
    needs_server = item.get_closest_marker("server") is not None
    if report.skipped and databases.in_ci() and needs_server and not is_excused:
        report.outcome = "failed"
    return report


def _server(variable: str, kind: type[databases.Server]) -> Iterator[str]:
    if url := os.environ.get(variable):
        yield url
        return
    try:
        server = kind()
    except databases.ServerMissingError as missing:
        pytest.skip(str(missing))
    with server:
        yield server.url


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[str]:
    """URL of a PostgreSQL server: the one of IDEM_TEST_POSTGRES_URL, or a throw-away one."""
    yield from _server(databases.POSTGRES_URL, databases.ThrowAwayPostgres)


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[str]:
    """URL of a MariaDB server: the one of IDEM_TEST_MARIADB_URL, or a throw-away one."""
    yield from _server(databases.MARIADB_URL, databases.ThrowAwayMariaDB)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """URL of a fresh SQLite file."""
    return f"sqlite:///{tmp_path / 'shop.db'}"


@pytest.fixture
def postgresql_url(postgresql_server: str) -> Iterator[str]:
    """URL of a fresh PostgreSQL database."""
    with databases.fresh_postgres_database(postgresql_server) as url:
        yield url


@pytest.fixture
def mariadb_url(mariadb_server: str) -> Iterator[str]:
    """URL of a fresh MariaDB database."""
    with databases.fresh_mariadb_database(mariadb_server) as url:
        yield url


@pytest.fixture(
    params=[
        pytest.param("sqlite"),
        pytest.param("postgresql", marks=pytest.mark.server("postgresql")),
    ],
)
def database_url(request: pytest.FixtureRequest) -> str:
    """URL of a fresh database: each test that asks for it runs on SQLite and on PostgreSQL."""
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
def async_database_url(database_url: str) -> str:
    """URL of the same fresh database, for an AsyncEngine."""
    return databases.as_async(database_url)
