"""What README and docs show is run here, as its readers would run it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from langchain_core.messages import AIMessage
from langgraph.checkpoint.sqlite import SqliteSaver
from sybil.document import Document
from sybil.parsers.markdown import CodeBlockParser, PythonCodeBlockParser

from langgraph_idem import Ledger
from langgraph_idem.testing import ScriptedChatModel

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TUTORIAL = ROOT / "docs" / "tutorial" / "order-agent.md"


def run(command: str, folder: Path) -> list[str]:
    """Run a command as a shell would, with this Python, and return the lines that it shows."""
    program, *arguments = command.split()
    assert program.endswith("python"), command
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert done.returncode in {0, -9}, command
    return [*done.stdout.splitlines(), *(["Killed"] if done.returncode else [])]


def sessions(block: str) -> Iterator[tuple[str, list[str]]]:
    """Split a console block into commands and what each shows."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, *shown = part.rstrip("\n").splitlines()
        yield command, shown


def commands(page: Path) -> list[str]:
    """Return all commands that a page shows."""
    blocks = re.findall(r"^```console\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    return [command for block in blocks for command, _ in sessions(block)]


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """A folder with a shop of ten units, and the names that pages take for granted."""
    monkeypatch.chdir(tmp_path)
    engine = sa.create_engine("sqlite:///shop.db")
    with engine.begin() as conn:
        conn.execute(sa.text("CREATE TABLE products (sku TEXT PRIMARY KEY, stock INTEGER)"))
        conn.execute(sa.text("INSERT INTO products VALUES ('SKU-1', 10)"))
    engine.dispose()
    call = {"name": "deduct_inventory", "args": {"order_id": "O-1001", "sku": "SKU-1"}, "id": "1"}
    model = ScriptedChatModel([AIMessage("", tool_calls=[call]), AIMessage("done")])
    with SqliteSaver.from_conn_string("saver.db") as saver:
        yield {"model": model, "saver": saver}


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page != TUTORIAL], ids=lambda page: str(page.name)
)
def test_the_python_of_a_page_runs(page: Path, shop: dict[str, Any]) -> None:
    """Python shown in README and docs runs as it stands, from top to bottom."""
    document = Document.parse(str(page), PythonCodeBlockParser())
    document.namespace.update(shop)
    for example in document.examples():
        example.evaluate()
    for value in document.namespace.values():
        if isinstance(value, Ledger):
            value.close()


def test_the_lines_that_solve_it_deduct_once(shop: dict[str, Any]) -> None:
    """The README's own lines leave one deduction, recovered and called again as they may be."""
    document = Document.parse(str(ROOT / "README.md"), PythonCodeBlockParser())
    document.namespace.update(shop)
    for example in document.examples():
        example.evaluate()
    ledger, tool = document.namespace["ledger"], document.namespace["deduct_inventory"]
    tool.invoke({"order_id": "O-1001", "sku": "SKU-1"})
    ledger.close()
    engine = sa.create_engine("sqlite:///shop.db")
    with engine.connect() as conn:
        assert conn.scalar(sa.text("SELECT stock FROM products")) == 9
    engine.dispose()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_tutorial_works_as_it_says(tmp_path: Path) -> None:
    """Who writes the tutorial's files and types its commands sees what the tutorial shows."""

    def write(example: Any) -> None:
        (name,) = re.findall(r"\A# (\w+\.py)\n", example.parsed)
        (tmp_path / name).write_text(example.parsed)

    def type_in(example: Any) -> None:
        for command, shown in sessions(example.parsed):
            if not command.startswith("pip "):
                assert run(command, tmp_path) == shown, command

    parsers = [CodeBlockParser("python", write), CodeBlockParser("console", type_in)]
    examples = list(Document.parse(str(TUTORIAL), *parsers).examples())
    assert len(examples) > 8
    for example in examples:
        example.evaluate()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.name))
def test_commands_exist(page: Path) -> None:
    """Targets of make, extras of pip and modules of python that a page names are there."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    for command in commands(page):
        if target := re.fullmatch(r"make (\w+)", command):
            subprocess.run(["make", "-n", target[1]], cwd=ROOT, check=True, capture_output=True)
        if named := re.search(r"pip install .*\[(.*)\]", command):
            assert set(named[1].split(",")) <= extras.keys(), command
        if module := re.search(r"python -m (examples|tests)\.(\S+)", command):
            assert list(ROOT.glob(f"{module[1]}/{module[2].replace('.', '/')}*")), command
