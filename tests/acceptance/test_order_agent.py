"""The order agent as its readers run it; what it claims is read from its databases."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from examples.order_agent.checkpoints import open_checkpoints
from examples.order_agent.stores import in_database
from langgraph_idem import RunStatus

ROOT = Path(__file__).parents[2]
ALREADY_DONE = "ALREADY_DONE: deducted, 9 left"
RUNS = ["normal", "killed-unrecorded", "killed-checkpointed"]


def demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the example as a person does."""
    command = [sys.executable, "-m", "examples.order_agent", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def rows(url: str, sql: str) -> list[Any]:
    """Ask a database."""
    engine = sa.create_engine(url)
    with engine.connect() as conn:
        found = [tuple(row) for row in conn.execute(sa.text(sql))]
    engine.dispose()
    return found


def checkpointed(url: str) -> dict[str, Any]:
    """Read the last checkpoint's channels, without any graph."""
    with open_checkpoints(url) as saver:
        saved = saver.get_tuple({"configurable": {"thread_id": "O-1001"}})
    assert saved is not None
    return saved.checkpoint["channel_values"]


def assert_processed_once(shop_url: str, checkpoints_url: str) -> None:
    """Check one deduction, one notification, two settled effects, a completed checkpoint."""
    assert rows(shop_url, "select sku, stock from products") == [("SKU-1", 9)]
    assert rows(shop_url, "select order_id from notifications") == [("O-1001",)]
    assert rows(shop_url, "select operation, state from idem_effects order by operation") == [
        ("deduct_inventory", "succeeded"),
        ("notify_shipped", "succeeded"),
    ]
    channels = checkpointed(checkpoints_url)
    assert channels["status"] == RunStatus.COMPLETED.value
    assert channels.get("next_step") is None


def deduction_answered(urls: tuple[str, str]) -> str:
    """Read what the deduction answered, as the checkpoint holds it."""
    messages = checkpointed(urls[1])["messages"]
    (answer,) = (m.content for m in messages if m.type == "tool" and m.name == "deduct_inventory")
    return str(answer)


def without_numbers(output: str) -> list[str]:
    """Blank out what differs between two runs: the processes' numbers."""
    return [re.sub(r"worker \d+ *", "worker ", line.rstrip()) for line in output.splitlines()]


def told_in_readme() -> list[str]:
    """Return the output that the README shows."""
    shown = (ROOT / "README.md").read_text().split("$ make demo\n", 1)[1].split("```", 1)[0]
    return without_numbers(shown)


def files(folder: Path, run: str) -> tuple[str, str]:
    """Name the databases of one run."""
    return f"sqlite:///{folder / run / 'shop.db'}", f"sqlite:///{folder / run / 'checkpoints.db'}"


@pytest.mark.slow
@pytest.mark.timeout(400)  # sixteen processes one after another, on a laden machine
def test_on_sqlite_each_order_is_processed_once(tmp_path: Path) -> None:
    """Killed or not, an order is processed once; what was done before is replayed, not repeated."""
    done = demo("--directory", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    for run in RUNS:
        assert_processed_once(*files(tmp_path, run))
    assert deduction_answered(files(tmp_path, "normal")) == "deducted, 9 left"
    assert deduction_answered(files(tmp_path, "killed-unrecorded")) == ALREADY_DONE
    assert without_numbers(done.stdout)[: len(told_in_readme())] == told_in_readme()


@pytest.mark.slow
@pytest.mark.timeout(400)  # sixteen processes one after another, on a laden machine
def test_without_the_library_the_killed_order_is_deducted_twice(tmp_path: Path) -> None:
    """The same crash without a ledger takes two units, and the program's exit code says so."""
    done = demo("--unsafe", "--directory", str(tmp_path))
    assert done.returncode == 1, done.stdout + done.stderr
    shop_url, _ = files(tmp_path, "killed-unrecorded")
    assert rows(shop_url, "select stock from products") == [(8,)]
    shop_url, _ = files(tmp_path, "normal")
    assert rows(shop_url, "select stock from products") == [(9,)]


@pytest.mark.slow
@pytest.mark.timeout(400)  # sixteen processes one after another, on a laden machine
@pytest.mark.server("postgresql")
def test_on_postgresql_each_order_is_processed_once(postgresql_url: str) -> None:
    """Shop, ledger and LangGraph's own checkpointer in PostgreSQL give the same."""
    done = demo("--database-url", postgresql_url, "--keep")
    assert done.returncode == 0, done.stdout + done.stderr
    schemas = schemas_of(postgresql_url)
    assert len(schemas) == len(RUNS)
    for schema in schemas:
        url = f"{postgresql_url}?options=-csearch_path%3D{schema}"
        assert_processed_once(url, url)


@pytest.mark.server("postgresql")
def test_only_its_own_schemas_are_dropped(postgresql_url: str) -> None:
    """The example cleans up after itself and leaves everything else in the database alone."""
    engine = sa.create_engine(postgresql_url)
    with engine.begin() as conn:
        conn.execute(sa.schema.CreateSchema("order_agent_of_somebody_else"))
    engine.dispose()
    with in_database(postgresql_url, keep=False) as new_stores:
        new_stores("normal").open_shop()
        assert len(schemas_of(postgresql_url)) == 2
    assert schemas_of(postgresql_url) == ["order_agent_of_somebody_else"]


def schemas_of(url: str) -> list[str]:
    """List the schemas that may be the example's."""
    sql = "select nspname from pg_namespace where nspname like 'order_agent%' order by 1"
    return [name for (name,) in rows(url, sql)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "nobody:nothing"], "--model nobody:nothing"),
        (["--database-url", "mysql://x/y"], "wants a PostgreSQL URL"),
        (["--database-url", "shop"], "Write postgresql://"),
        (["--database-url", "postgresql://me@127.0.0.1:1/x"], "127.0.0.1"),
    ],
)
def test_a_wrong_option_is_answered_in_words(arguments: list[str], words: str) -> None:
    """What the example cannot use is refused with what to write instead, and no traceback."""
    done = demo(*arguments)
    assert done.returncode == 1
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_folder_with_earlier_runs_is_left_alone(tmp_path: Path) -> None:
    """The example never writes into the files of an earlier run."""
    (tmp_path / "normal").mkdir()
    done = demo("--directory", str(tmp_path))
    assert done.returncode == 1
    assert "is there already" in done.stderr
