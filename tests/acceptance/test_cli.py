"""The command line as an operator runs it: the installed program, real databases, no traceback."""

from __future__ import annotations

import getpass
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from langgraph_idem import Effect, Ledger, OutcomeUnknown

PROGRAM = Path(sys.executable).with_name("langgraph-idem")


@dataclass(frozen=True)
class Desk:
    """An operator's place: a ledger with open cases, and the program."""

    url: str
    ledger: Ledger
    calls: list[str]

    def refund(self, order_id: str) -> str:
        """Ask for a refund whose provider never answers."""
        calls = self.calls

        @self.ledger.remote(key=("order_id",), on_unknown="raise", operation="refund")
        def refund(effect: Effect, /, order_id: str) -> str:
            calls.append(effect.idempotency_key)
            raise TimeoutError("the answer\n\x1b[31mnever came")

        return refund(order_id)

    def lost(self, order_id: str) -> None:
        """Leave a refund whose outcome is unknown."""
        with pytest.raises(OutcomeUnknown):
            self.refund(order_id)

    def row(self, key: str) -> Any:
        """Read an effect's row past the library."""
        return rows(self.url, f"select * from idem_effects where key = '{key}'")[0]

    def run(self, *words: str, typed: str = "") -> subprocess.CompletedProcess[str]:
        """Run the program; ``typed`` is what the operator types."""
        return program(*words, typed=typed, LANGGRAPH_IDEM_URL=self.url)


def program(*words: str, typed: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the installed program."""
    assert PROGRAM.exists(), "install the package: pip install -e ."
    kept = {name: value for name, value in os.environ.items() if name != "LANGGRAPH_IDEM_URL"}
    done = subprocess.run(
        [PROGRAM, *words],
        env=kept | environment,
        input=typed,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr
    return done


def rows(url: str, sql: str) -> list[Any]:
    """Ask a database."""
    engine = sa.create_engine(url)
    with engine.connect() as conn:
        found = list(conn.execute(sa.text(sql)))
    engine.dispose()
    return found


@pytest.fixture
def desk(database_url: str) -> Iterator[Desk]:
    """A ledger on each database, without effects."""
    with Ledger(database_url) as ledger:
        ledger.setup()
        yield Desk(database_url, ledger, [])


@pytest.fixture
def sqlite_desk(sqlite_url: str) -> Iterator[Desk]:
    """A ledger in a file, for what is the same on every database."""
    with Ledger(sqlite_url) as ledger:
        ledger.setup()
        yield Desk(sqlite_url, ledger, [])


def test_from_list_to_show_to_resolve_to_the_next_call(desk: Desk) -> None:
    """What is listed can be shown and settled, and the next caller gets what the person said."""
    desk.lost("O-1")
    listed = desk.run("list")
    assert "refund" in listed.stdout
    assert "O-1" in listed.stdout
    assert "unknown" in listed.stdout

    shown = desk.run("show", "refund", "O-1").stdout
    assert desk.calls[0] in shown  # the key that the provider was sent
    assert 'order_id="O-1"' in shown

    words = ("resolve", "refund", "O-1", "succeeded", "--result", '"re_7"', "--note", "seen there")
    resolved = desk.run(*words, typed="y\n")
    assert resolved.returncode == 0, resolved.stderr
    row = desk.row("O-1")
    assert (row.state, row.result, row.note) == ("succeeded", '"re_7"', "seen there")
    assert row.resolved_by == getpass.getuser()
    assert row.settled_at is not None

    assert desk.refund("O-1") == "re_7"
    assert len(desk.calls) == 1
    assert "Nothing waits for a person" in desk.run("list").stdout


def test_without_a_yes_nothing_is_written(desk: Desk) -> None:
    """Answered no, or not answered at all, the row stays as it was, and the exit code says so."""
    desk.lost("O-1")
    before = desk.row("O-1")
    for typed in ("n\n", "\n", ""):
        done = desk.run("resolve", "refund", "O-1", "failed", typed=typed)
        assert done.returncode == 1
        assert "Nothing was changed" in done.stderr
        assert "shall not" in done.stderr  # what will follow was said before the question
    assert desk.row("O-1") == before


def test_what_is_settled_is_not_settled_again(desk: Desk) -> None:
    """The state table holds for persons too: the refusal names the state, and nothing changes."""
    desk.lost("O-1")
    assert desk.run("resolve", "refund", "O-1", "failed", "--yes", "--by", "Ann").returncode == 0
    before = desk.row("O-1")
    again = desk.run("resolve", "refund", "O-1", "succeeded", "--yes", "--by", "Ben")
    assert again.returncode == 1
    assert "is failed (by Ann)" in again.stderr
    assert desk.row("O-1") == before


def test_a_claim_whose_attempt_may_live_is_not_settled(desk: Desk) -> None:
    """Within the lease nobody may overrule an attempt; afterwards it waits for a person."""
    with desk.ledger:

        @desk.ledger.remote(key=("order_id",), operation="refund", lease=3600)
        def refund(effect: Effect, /, order_id: str) -> str:
            refused = desk.run("resolve", "refund", order_id, "failed", "--yes")
            assert refused.returncode == 1
            assert "may be alive until" in refused.stderr
            assert "Nothing waits for a person" in desk.run("list").stdout
            _let_the_lease_end(desk.url)
            assert "claimed, lease over" in desk.run("list").stdout
            return "re_1"

        assert refund("O-1") == "re_1"
    assert desk.row("O-1").state == "succeeded"


def _let_the_lease_end(url: str) -> None:
    engine = sa.create_engine(url)
    with engine.begin() as conn:
        conn.execute(sa.text("update idem_effects set lease_seconds = 0"))
    engine.dispose()


def test_key_parts_are_words_and_the_last_word_is_the_outcome(sqlite_desk: Desk) -> None:
    """A key that ends in an outcome's word is no outcome, and two words are no one word."""
    made: list[tuple[str, str]] = []

    @sqlite_desk.ledger.remote(key=("to", "what"), on_unknown="raise", scope=lambda _: "tenant 1")
    def mail(effect: Effect, /, to: str, what: str) -> str:
        made.append((to, what))
        raise TimeoutError

    with pytest.raises(OutcomeUnknown):
        mail("-a b", "failed")
    elsewhere = sqlite_desk.run("show", "mail", "--", "-a b", "failed")
    assert elsewhere.returncode == 1
    assert "--scope 'tenant 1'" in elsewhere.stderr

    words = ("--scope", "tenant 1", "--yes", "mail", "--", "-a b", "failed", "released")
    assert sqlite_desk.run("resolve", *words).returncode == 0
    assert rows(sqlite_desk.url, "select key, state from idem_effects") == [
        ('["-a b","failed"]', "released")
    ]


@pytest.mark.parametrize("order_id", ["it's 1", "-1", "$(touch here)", '["a", "b"]'])
def test_the_hint_of_the_error_is_a_command_that_works(sqlite_desk: Desk, order_id: str) -> None:
    """What OutcomeUnknown tells a person to type settles it, whatever its key looks like."""
    with pytest.raises(OutcomeUnknown) as raised:
        sqlite_desk.refund(order_id)
    (command,) = re.findall(r"settle it: (.*) \(or failed\)", str(raised.value))
    program_name, verb, *words = shlex.split(command)
    assert (program_name, verb, words[-1]) == ("langgraph-idem", "resolve", "succeeded")
    assert sqlite_desk.run(verb, "--yes", *words).returncode == 0
    assert rows(sqlite_desk.url, "select state from idem_effects") == [("succeeded",)]


def test_control_characters_do_not_reach_the_terminal(sqlite_desk: Desk) -> None:
    """Keys and reasons come from models and providers; they cannot move the operator's cursor."""
    sqlite_desk.lost("O-1")
    for words in (("list",), ("show", "refund", "O-1")):
        printed = sqlite_desk.run(*words).stdout
        assert "\x1b" not in printed
        assert "\\x1b[31mnever came" in printed


def test_json_is_for_programs(sqlite_desk: Desk) -> None:
    """With --json the output is JSON and nothing else."""
    sqlite_desk.lost("O-1")
    (listed,) = json.loads(sqlite_desk.run("list", "--json").stdout)
    assert listed["waits_for_a_person"] is True
    assert listed["arguments"] == {"order_id": "O-1"}
    assert listed["idempotency_key"] == sqlite_desk.calls[0]
    settled = json.loads(
        sqlite_desk.run("resolve", "refund", "O-1", "released", "--json", typed="y\n").stdout
    )
    assert settled["state"] == "released"
    assert json.loads(sqlite_desk.run("list", "--json").stdout) == []


def test_filters_and_limit(sqlite_desk: Desk) -> None:
    """Only what was asked for is listed, and a cut list says that it is cut."""
    for number in range(3):
        sqlite_desk.lost(f"O-{number}")
    few = sqlite_desk.run("list", "--limit", "2").stdout
    assert "O-0" in few  # the oldest first: it has waited longest
    assert "O-2" not in few
    assert "more than 2" in few
    assert "No effect is failed" in sqlite_desk.run("list", "--state", "failed").stdout
    other = sqlite_desk.run("list", "--operation", "mail").stdout
    assert "Nothing waits for a person among those you asked for" in other


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["show", "refund", "O-9"], 1, "There is no effect refund for O-9"),
        (["resolve", "refund", "O-1"], 2, "The last word is the outcome"),
        (["resolve", "refund", "failed"], 2, "Of which effect?"),
        (["resolve", "refund", "O-1", "succeeded", "--result", "re_7"], 2, "'\"re_7\"'"),
        (["resolve", "refund", "O-1", "succeeded", "--result", "NaN"], 2, "is JSON"),
        (["resolve", "refund", "O-1", "failed", "--result", "1"], 2, "has no result"),
        (["show", "refund", " "], 2, "blank"),
        (["list", "--prefix", "other_"], 1, "There is no ledger in this database"),
        (["list", "--url", "shop"], 2, "no database URL"),
        (["list", "--url", "oracle://x/y"], 2, "is not supported"),
        (["list", "--url", "sqlite:///not-there.db"], 1, "There is no file not-there.db"),
        (["list", "--url", "postgresql://me@127.0.0.1:1/x"], 1, "cannot be reached"),
    ],
)
def test_each_refusal_is_one_line_and_an_exit_code(
    sqlite_desk: Desk, words: list[str], code: int, said: str
) -> None:
    """1: refused, not found, or the database failed. 2: wrongly used. Nothing is written."""
    done = sqlite_desk.run(*words)
    assert done.returncode == code
    assert said in done.stderr
    assert sum(line.startswith("Error:") for line in done.stderr.splitlines()) == 1
    assert done.stdout == ""
    assert rows(sqlite_desk.url, "select * from idem_effects") == []
    assert not Path("not-there.db").exists()


def test_without_a_url_it_says_where_to_put_one() -> None:
    """The program guesses no database."""
    done = program("list")
    assert done.returncode == 2
    assert "LANGGRAPH_IDEM_URL" in done.stderr


def test_only_migrate_makes_tables(database_url: str) -> None:
    """Looking makes nothing; migrate makes the tables once and says what it did."""
    assert program("list", "--url", database_url).returncode == 1
    engine = sa.create_engine(database_url)
    assert sa.inspect(engine).get_table_names() == []
    engine.dispose()
    first = program("migrate", "--url", database_url)
    assert (first.returncode, "are made at version" in first.stdout) == (0, True)
    assert "already" in program("migrate", "--url", database_url).stdout
    assert "Nothing waits" in program("list", "--url", database_url).stdout


def test_looking_does_not_change_how_a_file_is_journaled(sqlite_url: str) -> None:
    """The database may be somebody else's: an operator's look leaves no trace in it."""
    assert program("migrate", "--url", sqlite_url).returncode == 0
    assert rows(sqlite_url, "pragma journal_mode") == [("delete",)]
    assert program("list", "--url", sqlite_url).returncode == 0
    assert rows(sqlite_url, "pragma journal_mode") == [("delete",)]


def test_the_printed_schema_is_the_one_that_migrate_makes(database_url: str) -> None:
    """Who runs the printed SQL has a ledger: nothing is left to migrate, and it works."""
    dialect = database_url.partition(":")[0].partition("+")[0]
    printed = program("schema", dialect).stdout
    engine = sa.create_engine(database_url)
    with engine.begin() as conn:
        for statement in filter(str.strip, printed.split(";\n")):
            conn.exec_driver_sql(statement)
    columns = {column["name"] for column in sa.inspect(engine).get_columns("idem_effects")}
    engine.dispose()
    with Ledger(database_url) as ledger:
        assert columns == {column.name for column in ledger.tables.effects.columns}
        Desk(database_url, ledger, []).lost("O-1")
    assert "already" in program("migrate", "--url", database_url).stdout
