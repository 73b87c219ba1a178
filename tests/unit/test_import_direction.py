"""Imports inside of the package run one way; this test reads them and says which arrow is wrong."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = "langgraph_idem"
SOURCE = Path(__file__).parents[2] / PACKAGE

# From low to high: a module imports its own layer and lower ones. A new module or folder of the
# package is entered here, by its first name.
LAYERS = (
    {"errors", "effects", "events", "keys", "codec", "classify", "advice"},
    {"decisions"},
    {"ports"},
    {"sql"},
    {"protocols", "remote", "staged", "resolving"},
    {"shapes", "checks", "operations", "guarded", "decorators", "ledger"},
    {"tools", "react", "workers", "admin", "telemetry", "testing", "alembic"},
    {"cli", "web", "__main__"},
    {"__init__"},
)
# Arrows that point upwards all the same, each with its reason. They still may not close a circle.
ALSO_ALLOWED: set[tuple[str, str]] = set()
KNOW_LANGGRAPH = {"tools", "react", "testing", "__init__"}
LANGGRAPH = ("langchain", "langchain_core", "langgraph")
# What the core does not bring, and what must not be loaded before it is used.
ONLY_WHEN_USED = (
    "aiosqlite",
    "asyncmy",
    "asyncpg",
    "botocore",
    "celery",
    "httpx",
    "langchain",
    "langgraph.checkpoint.postgres",
    "langgraph.checkpoint.sqlite",
    "opentelemetry",
    "procrastinate",
    "prometheus_client",
    "psycopg",
    "psycopg_pool",
    "pymysql",
    "requests",
    "sqlalchemy.ext.asyncio",
    "stripe",
)


class When(Enum):
    """When an import statement takes effect."""

    LOADED = "the importer is loaded"
    CALLED = "a function of it is called"
    NEVER = "only type checkers read it"


@dataclass(frozen=True)
class Import:
    """Who imports whom, in which line, and when that happens."""

    importer: str
    imported: str
    line: int
    when: When

    def __str__(self) -> str:
        """Name the place as an editor opens it."""
        return f"{self.importer}:{self.line} imports {self.imported}"


# --- reading --------------------------------------------------------------------------------------


def modules_under(source: Path) -> dict[str, ast.Module]:
    """Parse every module of the package; names are full, a folder's own ends in ``__init__``."""
    trees = {}
    for path in sorted(source.rglob("*.py")):
        parts = (PACKAGE, *path.relative_to(source).with_suffix("").parts)
        trees[".".join(parts)] = ast.parse(path.read_text(encoding="utf-8"))
    return trees


def imports_of(trees: dict[str, ast.Module]) -> list[Import]:
    """List all imports of all modules, those in functions and under TYPE_CHECKING too."""
    found = [
        Import(module, _resolve(name, trees), node.lineno, when)
        for module, tree in trees.items()
        for node, when in _import_nodes(tree)
        for name in _names(node, module)
    ]
    return list(dict.fromkeys(found))  # several names of one module are one import


def _import_nodes(
    parent: ast.AST, when: When = When.LOADED
) -> Iterator[tuple[ast.Import | ast.ImportFrom, When]]:
    if isinstance(parent, ast.Import | ast.ImportFrom):
        yield parent, when
    if isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef) and when is When.LOADED:
        when = When.CALLED
    typing_only = parent.body if isinstance(parent, ast.If) and _is_type_checking(parent) else []
    for child in ast.iter_child_nodes(parent):
        yield from _import_nodes(child, When.NEVER if child in typing_only else when)


def _is_type_checking(condition: ast.If) -> bool:
    return ast.unparse(condition.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}


def _names(node: ast.Import | ast.ImportFrom, module: str) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    base = node.module or ""
    if node.level:  # relative to the package that the module is in
        package = module.split(".")[: -node.level]
        base = ".".join([*package, *([base] if base else [])])
    yield from (f"{base}.{alias.name}" for alias in node.names)


def _resolve(name: str, trees: dict[str, ast.Module]) -> str:
    """Turn ``package.module.Name`` into the module that is really meant."""
    if not _ours(name):
        return name
    parts = name.split(".")
    for length in (len(parts), len(parts) - 1):
        candidate = ".".join(parts[:length])
        if candidate in trees:
            return candidate
        if f"{candidate}.__init__" in trees:
            return f"{candidate}.__init__"
    return name


# --- judging --------------------------------------------------------------------------------------


def wrong_arrows(imports: list[Import]) -> list[str]:
    """Name every import inside of the package that points upwards, or to no layer at all."""
    return [str(found) for found in imports if _ours(found.imported) and not _allowed(found)]


def _ours(name: str) -> bool:
    return name.split(".", 1)[0] == PACKAGE


def _group(module: str) -> str:
    return module.split(".")[1]


def _allowed(found: Import) -> bool:
    arrow = _group(found.importer), _group(found.imported)
    if arrow in ALSO_ALLOWED:
        return True
    low, high = map(_layer, arrow)
    return low is not None and high is not None and high <= low


def _layer(group: str) -> int | None:
    return next((level for level, groups in enumerate(LAYERS) if group in groups), None)


def circle(imports: list[Import]) -> list[str]:
    """Name the modules of a circle, or nothing where there is none.

    A type that is only named closes no circle: nothing waits for it.
    """
    graph: TopologicalSorter[str] = TopologicalSorter()
    for found in imports:
        if _ours(found.imported) and found.when is not When.NEVER:
            graph.add(found.importer, found.imported)
    try:
        graph.prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def framework_outside_its_place(imports: list[Import]) -> list[str]:
    """Name every import of LangChain or LangGraph by a module that is to know neither."""
    return [
        str(found)
        for found in imports
        if _is_one_of(found.imported, LANGGRAPH) and _group(found.importer) not in KNOW_LANGGRAPH
    ]


# Modules that are themselves loaded only when asked for, and what they are there to adapt.
ADAPTERS = {f"{PACKAGE}.tools.middleware": ("langchain",)}


def loaded_too_early(imports: list[Import]) -> list[str]:
    """Name every driver and extra that is imported when its importer is loaded."""
    return [
        str(found)
        for found in imports
        if found.when is When.LOADED
        and _is_one_of(found.imported, ONLY_WHEN_USED)
        and not _is_one_of(found.imported, ADAPTERS.get(found.importer, ()))
    ]


def _is_one_of(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


# --- the package ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def imports() -> list[Import]:
    """Read the package's imports once."""
    return imports_of(modules_under(SOURCE))


def test_every_module_has_its_layer() -> None:
    """A new module must be put into the layer table before anybody imports it."""
    groups = {_group(module) for module in modules_under(SOURCE)}
    assert {group for group in groups if _layer(group) is None} == set()


def test_no_import_points_upwards(imports: list[Import]) -> None:
    """A lower layer never imports a higher one, not even inside a function or for a type."""
    assert wrong_arrows(imports) == []


def test_no_circle(imports: list[Import]) -> None:
    """No module needs itself, whichever way round, not even when a function is called."""
    assert circle(imports) == []


def test_langgraph_stays_in_its_place(imports: list[Import]) -> None:
    """Only what is about tools and graphs knows LangGraph: the ledger works without."""
    assert framework_outside_its_place(imports) == []


def test_drivers_and_extras_wait_until_used(imports: list[Import]) -> None:
    """No driver and no extra is imported at the top of a module."""
    assert loaded_too_early(imports) == []


def test_importing_the_package_loads_no_driver() -> None:
    """What the modules promise one by one holds for the whole, LangGraph's own imports included."""
    probe = "import sys, langgraph_idem; print(*sys.modules)"
    loaded = subprocess.check_output([sys.executable, "-c", probe], text=True, cwd=SOURCE.parent)
    drivers = {"aiosqlite", "asyncmy", "asyncpg", "psycopg", "pymysql", "sqlalchemy.ext.asyncio"}
    assert drivers & set(loaded.split()) == set()


# --- the check itself -----------------------------------------------------------------------------


def _imports_of_tree(source: Path, **modules: str) -> list[Import]:
    for dotted, text in modules.items():
        path = source / (dotted.replace("__in__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return imports_of(modules_under(source))


@pytest.mark.parametrize(
    "statement",
    [
        "import langgraph_idem.ledger",
        "from langgraph_idem import ledger",
        "from langgraph_idem.ledger import Ledger",
        "from . import ledger",
        "from .ledger import Ledger",
        "def later():\n    from langgraph_idem.ledger import Ledger",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .ledger import Ledger",
    ],
)
def test_the_check_sees_an_arrow_upwards(tmp_path: Path, statement: str) -> None:
    """However an import is written, the arrow is seen."""
    found = _imports_of_tree(tmp_path, keys=statement, ledger="class Ledger: ...")
    (arrow,) = wrong_arrows(found)
    assert arrow.endswith("imports langgraph_idem.ledger")


def test_the_check_sees_the_public_package_imported_from_within(tmp_path: Path) -> None:
    """A module that imports a public name from the top imports everything, itself included."""
    found = _imports_of_tree(
        tmp_path, __init__="from .ledger import Ledger", ledger="from langgraph_idem import Ledger"
    )
    assert wrong_arrows(found) == ["langgraph_idem.ledger:1 imports langgraph_idem.__init__"]


def test_the_check_resolves_relative_imports_in_a_folder(tmp_path: Path) -> None:
    """Dots are counted from the folder, and a folder's modules share its layer."""
    found = _imports_of_tree(
        tmp_path,
        sql__in____init__="",
        sql__in__sites="from . import schema\nfrom .. import tools\nfrom ..ports import Site",
        sql__in__schema="",
        tools__in____init__="",
        ports="class Site: ...",
    )
    assert wrong_arrows(found) == [
        "langgraph_idem.sql.sites:2 imports langgraph_idem.tools.__init__"
    ]


def test_the_check_sees_a_circle_within_a_layer(tmp_path: Path) -> None:
    """Two modules of one layer may know each other one way only."""
    found = _imports_of_tree(tmp_path, keys="from . import codec", codec="from . import keys")
    assert wrong_arrows(found) == []
    assert set(circle(found)) == {"langgraph_idem.keys", "langgraph_idem.codec"}


def test_the_check_sees_a_circle_hidden_in_a_function(tmp_path: Path) -> None:
    """An import that was moved into a function still closes the circle; a type's name does not."""
    hidden = "def later():\n    from . import keys"
    named = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from . import keys"
    assert circle(_imports_of_tree(tmp_path, keys="from . import codec", codec=hidden))
    assert not circle(_imports_of_tree(tmp_path, keys="from . import codec", codec=named))


def test_the_check_sees_langgraph_in_the_core(tmp_path: Path) -> None:
    """LangGraph in the core is seen; the package's own name, which begins alike, is not."""
    found = _imports_of_tree(
        tmp_path,
        ledger="from langgraph.types import interrupt\nfrom langgraph_idem import keys",
        keys="",
        tools="import langchain_core.tools",
    )
    assert framework_outside_its_place(found) == [
        "langgraph_idem.ledger:1 imports langgraph.types.interrupt"
    ]


def test_the_check_sees_a_driver_at_the_top_only(tmp_path: Path) -> None:
    """A driver may be imported in the function that uses it, and named for types."""
    found = _imports_of_tree(
        tmp_path,
        sql="""
from typing import TYPE_CHECKING
try:
    import psycopg
except ImportError:
    psycopg = None
if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine
else:
    import asyncpg
def connect():
    import aiosqlite
""",
    )
    assert loaded_too_early(found) == [
        "langgraph_idem.sql:4 imports psycopg",
        "langgraph_idem.sql:10 imports asyncpg",
    ]
