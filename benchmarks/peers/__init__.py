"""Other libraries at the same work, each behind one small adapter; those that are installed run.

``pip install -r benchmarks/peers.txt`` brings them, best into an environment of their own: it says
how. An adapter is a module of this package, named after the package on PyPI, with ``opened``: what
it yields are turns of the same order, under keys that never repeat.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import logging
import pkgutil
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.measuring import blocking, compared, turn_by_turn
from benchmarks.shop import shop

if TYPE_CHECKING:
    from benchmarks.databases import Database
    from benchmarks.measuring import Figure, Size, Turn

GROUP: Final = "beside other libraries"
BARE_OF: Final = {"agent-ledger, tx=": "bare, psycopg async"}
"""Who does not work through SQLAlchemy, and what the bare transaction is there."""


def beside_peers(database: Database, size: Size) -> list[Figure]:
    """Effects by this library and by every peer there is, beside the bare transaction."""
    logging.getLogger("dbos").setLevel(logging.ERROR)
    with ExitStack() as stack:
        here = stack.enter_context(shop(database))
        # Their own files go where ours is: the same disk.
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=_beside(database))))
        candidates: dict[str, Turn] = {
            "bare": blocking(here.bare),
            "langgraph-idem, transactional": blocking(here.guarded("peers-")),
            "by hand, the same transaction": blocking(lambda number: here.by_hand(number, "peers")),
        }
        for peer in installed():
            candidates |= stack.enter_context(peer.opened(database, here, folder))
        medians = turn_by_turn(candidates, replace(size, turns=(size.turns + 1) // 2))  # some: long
    figures = compared(GROUP, database.where, medians, baseline="bare")
    for name, bare in BARE_OF.items():
        if name in medians:
            beside = {bare: medians[bare], name: medians[name]}
            figures += compared(f"{GROUP}, {bare}", database.where, beside, baseline=bare)
    return figures


def installed() -> list[Any]:
    """Import the adapters whose libraries are here."""
    return [importlib.import_module(name) for name, package in _adapters() if _version(package)]


def missing() -> list[str]:
    """Name the libraries that are not here."""
    how = "pip install -r benchmarks/peers.txt"
    return [f"{package} ({how})" for _, package in _adapters() if not _version(package)]


def versions() -> dict[str, str]:
    """Tell which versions of them are here."""
    return {package: found for _, package in _adapters() if (found := _version(package))}


def _adapters() -> list[tuple[str, str]]:
    """Pair each module with its package; the module is not imported, since it imports that."""
    names = [module.name for module in pkgutil.iter_modules(__path__)]
    return [(f"{__name__}.{name}", name.strip("_").replace("_", "-")) for name in names]


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _beside(database: Database) -> Path:
    if database.name == "SQLite":
        return Path(database.url.removeprefix("sqlite:///")).parent
    return Path.cwd()
