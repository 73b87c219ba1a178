"""Which databases a ledger takes, and what it says to the others. Nothing here connects."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker

from langgraph_idem.errors import ConfigurationError
from langgraph_idem.ledger import Ledger
from langgraph_idem.sql import engines


@pytest.mark.parametrize(
    "url",
    [
        "sqlite://",
        "sqlite:///",
        "sqlite:///:memory:",
        "sqlite:///file::memory:?cache=shared&uri=true",
        "sqlite:///file:idem?mode=memory&cache=shared&uri=true",
        "sqlite+aiosqlite://",
    ],
)
def test_memory_is_refused(url: str) -> None:
    """A ledger that dies with the process is none."""
    with pytest.raises(ConfigurationError, match="Name a file"):
        Ledger(url)


@pytest.mark.parametrize(
    ("bind", "words"),
    [
        ("shop.db", "is no database URL. Write one like sqlite:///shop.db"),
        ("", "is no database URL"),
        ("oracle://scott@127.0.0.1/x", "oracle is not supported: a ledger needs SQLite"),
        ("mssql://sa@127.0.0.1/x", "not supported"),
        (7, "this is int"),
        (None, "this is NoneType"),
        (sessionmaker(), "has no Engine as its bind"),
    ],
)
def test_binds_of_no_use(bind: Any, words: str) -> None:
    """What cannot be a ledger's database is refused when the ledger is made, in words."""
    with pytest.raises(ConfigurationError, match=words):
        Ledger(bind)


def test_a_sessionmaker_with_several_binds() -> None:
    """binds= would write some tables on connections outside of the ledger's transaction."""
    engine = sa.create_engine("sqlite:///never.db")
    table = sa.Table("t", sa.MetaData(), sa.Column("id", sa.Integer))
    with pytest.raises(ConfigurationError, match="binds="):
        Ledger(sessionmaker(engine, binds={table: engine}))


@pytest.mark.parametrize(
    ("url", "blocking", "awaiting"),
    [
        ("sqlite:///idem.db", "sqlite+pysqlite", "sqlite+aiosqlite"),
        ("sqlite+aiosqlite:///idem.db", "sqlite+pysqlite", "sqlite+aiosqlite"),
        ("sqlite:///file:idem.db?mode=rwc&uri=true", "sqlite+pysqlite", "sqlite+aiosqlite"),
        ("postgresql://127.0.0.1/x", "postgresql+psycopg", "postgresql+psycopg"),
        ("postgres://127.0.0.1/x", "postgresql+psycopg", "postgresql+psycopg"),
        ("postgresql+asyncpg://127.0.0.1/x", "postgresql+psycopg", "postgresql+asyncpg"),
        ("mysql://127.0.0.1/x", "mysql+pymysql", "mysql+asyncmy"),
        ("mariadb+pymysql://127.0.0.1/x", "mariadb+pymysql", "mariadb+asyncmy"),
    ],
)
def test_one_url_serves_both_colours(
    url: str, blocking: str, awaiting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A URL without a driver, or with either colour's, gets the right driver for each colour."""
    monkeypatch.setattr(engines, "_check_driver", lambda _driver: None)
    checked = engines._checked_url(url)
    for is_async, drivername in ((False, blocking), (True, awaiting)):
        options = engines._options(checked, 1.0, is_async=is_async)
        assert options["url"].drivername == drivername


def test_a_missing_driver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error holds the pip line that brings what is missing."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    ledger = Ledger("postgresql://127.0.0.1/x")
    with pytest.raises(ConfigurationError, match=r'pip install "langgraph-idem\[postgres\]"'):
        ledger.setup()


DRIVERS = ("aiosqlite", "asyncpg", "psycopg", "pymysql", "asyncmy")
EXTRAS = ("langchain", "celery", "procrastinate", "opentelemetry", "prometheus_client", "fastapi")


def test_importing_the_package_imports_no_driver_and_no_extra() -> None:
    """`import langgraph_idem` in a fresh interpreter brings no driver: they come when needed."""
    script = (
        "import sys, langgraph_idem, langgraph_idem.ledger\n"
        "langgraph_idem.ledger.Ledger('sqlite:///never.db')\n"
        f"print([name for name in {DRIVERS + EXTRAS!r} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
