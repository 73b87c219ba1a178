"""Where the runs keep their rows: files in a folder, or schemas of a PostgreSQL database.

Shop and ledger share a database, because they share a transaction. The checkpoints have a file
of their own: SQLite locks whole files, and a checkpoint must not wait for the shop.
"""

from __future__ import annotations

import dataclasses
import os
import secrets
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa

from examples.order_agent.shop import open_shop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@dataclasses.dataclass(frozen=True)
class Stores:
    """The two databases of one run, and what a person calls their place."""

    shop_url: str
    checkpoints_url: str
    place: str

    @property
    def environment(self) -> dict[str, str]:
        """The environment in which the run's processes find them."""
        return os.environ | {"SHOP_URL": self.shop_url, "CHECKPOINTS_URL": self.checkpoints_url}

    def open_shop(self) -> None:
        """Make the shop's tables and put ten units on the shelf."""
        engine = sa.create_engine(self.shop_url)
        open_shop(engine)
        engine.dispose()


@contextmanager
def in_folder(directory: Path | None) -> Iterator[Callable[[str], Stores]]:
    """Keep each run's files in a folder of its own.

    Args:
        directory: Where; it must hold no earlier runs. None: a temporary folder, gone afterwards.

    """
    if directory is not None:
        yield lambda name: _files(directory / name)
        return
    with tempfile.TemporaryDirectory(prefix="order-agent-") as temporary:
        yield lambda name: _files(Path(temporary) / name)


def _files(folder: Path) -> Stores:
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        sys.exit(f"{folder} is there already. Name another --directory, or remove it.")
    shop, checkpoints = folder.resolve() / "shop.db", folder.resolve() / "checkpoints.db"
    return Stores(f"sqlite:///{shop}", f"sqlite:///{checkpoints}", str(folder))


@contextmanager
def in_database(url: str, *, keep: bool) -> Iterator[Callable[[str], Stores]]:
    """Keep each run's tables in a PostgreSQL schema of its own.

    Args:
        url: A PostgreSQL URL whose user may create schemas.
        keep: Whether the schemas stay; otherwise those that were made here are dropped.

    """
    server = _reached(_checked(url))
    mark, made = secrets.token_hex(3), list[str]()

    def schema(name: str) -> Stores:
        full_name = f"order_agent_{mark}_{name.replace('-', '_')}"
        with server.connect() as conn:
            conn.execute(sa.schema.CreateSchema(full_name))
        made.append(full_name)
        there = server.url.update_query_dict({"options": f"-csearch_path={full_name}"})
        address = there.render_as_string(hide_password=False)
        return Stores(address, address, f"schema {full_name}")

    try:
        yield schema
    finally:
        with server.connect() as conn:
            for name in [] if keep else made:
                conn.execute(sa.schema.DropSchema(name, cascade=True))
        server.dispose()


def _reached(url: sa.URL) -> sa.Engine:
    try:
        engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
        engine.connect().close()
    except ImportError:
        sys.exit('--database-url needs a driver: pip install "langgraph-idem[postgres]"')
    except sa.exc.OperationalError as error:
        sys.exit(f"--database-url {url}: {error.orig}")
    return engine


def _checked(url: str) -> sa.URL:
    try:
        made = sa.make_url(url)
    except sa.exc.ArgumentError:
        sys.exit(f"--database-url {url}: no URL. Write postgresql://user:password@host/database")
    if made.get_backend_name() not in {"postgresql", "postgres"}:
        sys.exit("--database-url wants a PostgreSQL URL; for SQLite files use --directory.")
    return made.set(drivername="postgresql+psycopg")
