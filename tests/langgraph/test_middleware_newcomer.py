"""The newcomer's path: the program of the page, killed for real, without the lines and with."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from langgraph_idem import Ledger

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "create-agent.md"
SIGKILLED = -9

AROUND = '''
import os, signal, sys
from langchain_core.messages import AIMessage, ToolMessage
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph_idem.testing import ScriptedChatModel


class Saver(SqliteSaver):
    def put_writes(self, config, writes, *args, **kwargs):
        """Die when the tool's result is to be stored: its effect has happened."""
        for _, value in writes:
            if "die" in sys.argv and isinstance(value, list) and isinstance(value[0], ToolMessage):
                os.kill(os.getpid(), signal.SIGKILL)
        super().put_writes(config, writes, *args, **kwargs)


call = {"name": "deduct_inventory", "args": {"order_id": "O-1", "sku": "SKU-1"}, "id": "call_0"}
model = ScriptedChatModel([AIMessage("", tool_calls=[call]), "done"])
with Saver.from_conn_string("checkpoints.db") as opened:
    saver = Saver(opened.conn)
    exec(open("program.py").read())
    given = {"messages": [("user", "one")]} if "die" in sys.argv else None
    told = agent.invoke(given, {"configurable": {"thread_id": "t"}}, durability="sync")
    print(*[message.text for message in told["messages"]], sep="\\n")
'''


def blocks(language: str) -> list[str]:
    """Return the page's code blocks of one language."""
    pattern = rf"^```{language}\n(.*?)^```"
    return re.findall(pattern, PAGE.read_text(), re.MULTILINE | re.DOTALL)


def before() -> str:
    """Return the program as it was."""
    return blocks("python")[0]


def after() -> str:
    """Return the program that the page's diff makes of it."""
    (diff,) = blocks("diff")
    return "\n".join(line[1:] for line in diff.splitlines())


def run(folder: Path, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the program in a process of its own."""
    (folder / "program.py").write_text(program)
    command = [sys.executable, "-c", AROUND, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make a folder with a shop of ten units."""
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection, connection:
        connection.execute("CREATE TABLE products (sku TEXT PRIMARY KEY, stock INTEGER)")
        connection.execute("INSERT INTO products VALUES ('SKU-1', 10)")
    return tmp_path


def stock(folder: Path) -> int:
    """Read what is left."""
    with closing(sqlite3.connect(folder / "shop.db")) as connection:
        return int(connection.execute("SELECT stock FROM products").fetchone()[0])


def test_the_diff_only_adds_an_import_and_three_lines() -> None:
    """Nothing of the program is taken away or changed, but for blank lines."""
    (diff,) = blocks("diff")
    lines = diff.splitlines()
    kept = [line[1:] for line in lines if line.strip() and line[0] == " "]
    assert kept == [line for line in before().splitlines() if line]
    added = [line[1:].strip() for line in lines if line.startswith("+") and line.strip("+ ")]
    assert len(added) == 4
    assert added[0].startswith("from langgraph_idem import ")
    assert not [line for line in lines if line.startswith("-")]


def test_without_the_lines_a_crash_takes_two(folder: Path) -> None:
    """The control: killed after the effect and resumed, the program takes a second unit."""
    assert run(folder, before(), "die").returncode == SIGKILLED
    assert stock(folder) == 9
    assert run(folder, before()).returncode == 0
    assert stock(folder) == 8


def test_with_the_lines_a_crash_takes_one(folder: Path) -> None:
    """Killed after the effect and resumed, the program replays what the ledger recorded."""
    assert run(folder, after(), "die").returncode == SIGKILLED
    resumed = run(folder, after())
    assert resumed.returncode == 0, resumed.stderr
    assert "deducted one SKU-1 for O-1" in resumed.stdout
    assert stock(folder) == 9
    with Ledger(f"sqlite:///{folder / 'ledger.db'}") as ledger:
        assert [str(effect.state) for effect in ledger.effects()] == ["succeeded"]
