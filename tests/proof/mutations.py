"""Guarantees taken out of the code, one at a time; the tests named must then fail.

``python -m tests.proof.mutations`` tries them all, ``… fenc lease`` those whose names hold one of
the words. A copy of the project is changed, never the project itself.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

ROOT: Final = Path(__file__).parents[2]
COPIED: Final = ("langgraph_idem", "tests", "examples", "benchmarks", "docs", "pyproject.toml")
LONGEST: Final = 600
"""Seconds that the tests of one mutation may take; one that hangs them is found out as well."""


@dataclass(frozen=True)
class Mutation:
    """One guarantee, how it is taken out, and what notices.

    Attributes:
        name: The guarantee that is broken, in words.
        module: The file, below the package.
        before: Text that is there exactly once.
        after: What stands there instead.
        tests: What pytest is told to run.

    """

    name: str
    module: str
    before: str
    after: str
    tests: tuple[str, ...]

    @property
    def path(self) -> Path:
        """The file, below the project's root."""
        return Path("langgraph_idem") / self.module

    def source(self) -> str:
        """Return the file with the guarantee taken out.

        Raises:
            ValueError: The text to be changed is not there exactly once.

        """
        text = (ROOT / self.path).read_text(encoding="utf-8")
        if (count := text.count(self.before)) != 1:
            raise ValueError(f"{self.name}: {self.before!r} is {count} times in {self.path}.")
        return text.replace(self.before, self.after)


INSIDE: Final = "tests/protocols/test_inside_the_tool.py::"
CRASHES: Final = "tests/protocols/test_crash_at_every_step.py::"
LOST: Final = "tests/protocols/test_lost_answers.py::"
MEANING: Final = "tests/integration/test_remote_meaning.py::"
RACES: Final = "tests/integration/test_races.py::"
EXPLORER: Final = "tests/proof/test_explorer.py::test_no_schedule_breaks_a_promise"
TABLE: Final = "tests/proof/test_stateful.py::test_only_the_transitions_of_the_table_happen"

COMPLETION: Final = (
    "await tx.sql(lambda conn: _must_be_ours(rules.statements.complete(conn, call, text)))"
)

MUTATIONS: Final = (
    # --- one transaction
    Mutation(
        "the unique constraint decides nothing: a second claim takes the first one's row",
        "sql/dialects.py",
        "    insert = sqlite.insert(effects).values(values)\n"
        "    return insert.on_conflict_do_nothing()",
        '    insert = sqlite.insert(effects).values(values).prefix_with("OR REPLACE")\n'
        "    return insert",
        (f"{CRASHES}test_idempotent_replay",),
    ),
    Mutation(
        "the tables have no unique constraint",
        "sql/schema.py",
        'sa.Column("key", _identity(MAX_KEY), primary_key=True)',
        'sa.Column("key", _identity(MAX_KEY), nullable=False)',
        (f"{CRASHES}test_idempotent_replay",),
    ),
    Mutation(
        "the result is recorded after the commit",
        "protocols.py",
        f"""            {COMPLETION}
            await tx.commit()
    except""",
        """            await tx.commit()
        await own_work(site, lambda conn: rules.statements.complete(conn, call, text), keep=True)
    except""",
        (f"{CRASHES}test_crash_by_exception_at_every_boundary",),
    ),
    Mutation(
        "the tool may commit by itself",
        "sql/sites.py",
        "    conn.commit = lambda: None  # type: ignore[method-assign]  # see above\n",
        "    conn.commit = conn.commit  # type: ignore[method-assign]  # see above\n",
        (f"{INSIDE}test_commit_inside_the_tool_commits_nothing",),
    ),
    Mutation(
        "a tool that rolled back counts as done",
        "sql/sites.py",
        "    if now is None or now is not ours or not now.is_active:",
        "    if False:",
        (f"{INSIDE}test_rollback_inside_the_tool_is_refused",),
    ),
    Mutation(
        "SQLite's transactions begin without the write lock",
        "sql/sites.py",
        """    try:
        send(conn, "BEGIN IMMEDIATE")
""",
        """    try:
        send(conn, "BEGIN")
""",
        ("tests/integration/test_engines_of_the_user.py", f"{RACES}test_busy_is_no_outcome"),
    ),
    Mutation(
        "the result is encoded after the commit",
        "protocols.py",
        f"""            text = rules.codec.encode(value)
            {COMPLETION}
            await tx.commit()
""",
        """            await tx.sql(lambda conn: rules.statements.complete(conn, call, None))
            await tx.commit()
            rules.codec.encode(value)
""",
        (f"{INSIDE}test_result_that_cannot_be_kept_rolls_back",),
    ),
    Mutation(
        "a result is kept that reads back as another one",
        "codec.py",
        "return text if adapter.validate_json(text) == value else None",
        "return text",
        ("tests/unit/test_codec.py",),
    ),
    # --- whose effect it is
    Mutation(
        "anybody completes a claim: no fencing",
        "sql/statements.py",
        """            self._this_effect,
            effects.c.attempt_id == bindparam("p_attempt"),
            effects.c.state == State.CLAIMED.value,
""",
        """            self._this_effect,
            bindparam("p_attempt") == bindparam("p_attempt"),
            effects.c.state == State.CLAIMED.value,
""",
        (f"{INSIDE}test_fencing_token_decides_who_completes", TABLE),
    ),
    Mutation(
        "a claim that is gone goes unnoticed",
        "protocols.py",
        "    if not is_ours:\n",
        "    if False:\n",
        (f"{INSIDE}test_deleted_claim_is_noticed",),
    ),
    Mutation(
        "the attempt does not know its own row again",
        "decisions.py",
        "    if record.state is State.SUCCEEDED:\n"
        "        return Replay(record, ours=record.attempt_id == call.attempt_id)",
        "    if record.state is State.SUCCEEDED:\n        return Replay(record, ours=False)",
        (f"{LOST}test_commit_took_place_but_its_answer_was_lost",),
    ),
    Mutation(
        "the arguments are not compared",
        "decisions.py",
        "    if record.fingerprint != call.fingerprint:",
        "    if False:",
        (
            f"{INSIDE}test_changed_arguments_are_refused",
            f"{MEANING}test_other_arguments_are_refused",
        ),
    ),
    Mutation(
        "the key's parts run together",
        "keys.py",
        '        text = json.dumps(texts, ensure_ascii=False, separators=(",", ":"))\n'
        "    if len(text)",
        '        text = "".join(texts)\n    if len(text)',
        ("tests/unit/test_keys.py",),
    ),
    Mutation(
        "two forms of one text are two keys",
        "keys.py",
        'return str(text) if text.isascii() else unicodedata.normalize("NFC", text)',
        "return str(text)",
        ("tests/unit/test_keys.py",),
    ),
    Mutation(
        "tenants share their effects",
        "operations.py",
        '            return keys.name_text("scope", told, keys.MAX_SCOPE)',
        '            return "global"',
        ("tests/unit/test_operations.py",),
    ),
    # --- races and time
    Mutation(
        "contention is not tried again",
        "protocols.py",
        "            if lost.fault is Fault.LOCKED or pause is None:\n"
        "                raise _given_up",
        "            if True:\n                raise _given_up",
        (f"{LOST}test_commit_did_not_take_place",),
    ),
    Mutation(
        "leases are reckoned by this machine's clock",
        "decisions.py",
        "lease_holds(record, found.now)",
        "lease_holds(record, __import__('datetime').datetime.now(record.claimed_at.tzinfo))",
        (EXPLORER, f"{MEANING}test_a_claim_is_respected_while_its_lease_holds"),
    ),
    Mutation(
        "a lease that is over lets the effect run again",
        "decisions.py",
        "        return Busy(record, lease_end(record))\n    return Verify(found)",
        "        return Busy(record, lease_end(record))\n    return Execute()",
        (f"{MEANING}test_expiry_alone_never_permits_a_second_call",),
    ),
    Mutation(
        "what is looked at ahead of the claim need not be settled",
        "protocols.py",
        "    return decision if isinstance(decision, (Replay, Failed)) else None",
        "    return decision",
        (EXPLORER,),
    ),
    # --- remote effects
    Mutation(
        "the intent is not committed before the call",
        "remote.py",
        """            if seen is None and isinstance(decision, Execute):
                await tx.commit()
""",
        "",
        (f"{MEANING}test_anything_else_is_unknown_and_never_sent_again", EXPLORER),
    ),
    Mutation(
        '"absent" is believed while the request may still arrive',
        "remote.py",
        "    if answer is ABSENT and not _may_still_arrive(record, seen.now):",
        "    if answer is ABSENT:",
        (f"{MEANING}test_absent_is_no_proof_within_the_lease",),
    ),
    Mutation(
        "a look-up that fails says that nothing happened",
        "remote.py",
        '        _log.warning("The look-up of %s failed: %s", name, words_of(error))\n'
        "        return DONT_KNOW",
        '        _log.warning("The look-up of %s failed: %s", name, words_of(error))\n'
        "        return ABSENT",
        (f"{MEANING}test_whatever_else_a_look_up_says_it_does_not_know",),
    ),
    Mutation(
        "the key is sent again after the provider has forgotten it",
        "remote.py",
        "    return now - record.began_at < rules.keeps_key - margin",
        "    return True",
        (f"{MEANING}test_a_key_that_is_not_kept_is_never_sent_again", EXPLORER),
    ),
    Mutation(
        "a lost answer counts as a refusal",
        "remote.py",
        "    return await _lose(site, attempt, rules, reason)\n\n\nasync def _closed",
        "    return await _closed(site, attempt, rules, statements.release, events.Released)\n\n\n"
        "async def _closed",
        (f"{MEANING}test_anything_else_is_unknown_and_never_sent_again",),
    ),
    Mutation(
        "a cancel is not written down",
        "remote.py",
        "        return await site.shielded(_record_failure(site, attempt, rules, verdict, error))",
        "        return await _record_failure(site, attempt, rules, verdict, error)",
        (f"{MEANING}test_a_time_out_after_dispatch_is_written_down", MEANING.rstrip(":")),
    ),
    Mutation(
        "a second attempt's refusal undoes the first",
        "remote.py",
        "    if not attempt.is_clean:\n        return Verdict.UNKNOWN\n",
        "",
        (f"{MEANING}test_a_second_sending_that_was_not_sent_does_not_undo_the_first",),
    ),
    Mutation(
        "late answers are thrown away",
        "remote.py",
        '        statements.testify(conn, call, text or "")\n',
        "",
        (f"{MEANING}test_a_late_answer_settles_what_nobody_settled",),
    ),
    Mutation(
        "taking over does not compare what was seen",
        "sql/statements.py",
        """            effects.c.attempts == bindparam("p_attempts"),
            effects.c.claimed_at == bindparam("p_claimed_at", type_=effects.c.claimed_at.type),
""",
        "",
        (TABLE, EXPLORER),
    ),
    Mutation(
        "the request may leave at the end of its lease",
        "remote.py",
        "_FRESH: Final = 0.1",
        "_FRESH: Final = 1.0",
        (EXPLORER,),
    ),
    # --- in an agent
    Mutation(
        "the framework's own signal counts as an outcome",
        "tools/host.py",
        "return isinstance(error, GraphBubbleUp) or is_invalid_resume(error)",
        "return False",
        ("tests/langgraph/test_cases_interrupts.py",),
    ),
    Mutation(
        "an error that the tool reports is recorded as its success",
        "protocols.py",
        "        if self.reports_error(result):\n",
        "        if False:\n",
        ("tests/langgraph",),
    ),
    Mutation(
        "an approval holds for any arguments",
        "guarded.py",
        "[APPROVAL, call.scope, call.operation, call.key, call.fingerprint]",
        "[APPROVAL, call.scope, call.operation, call.key]",
        ("tests/langgraph/test_approval.py",),
    ),
    Mutation(
        "an approval is not asked for",
        "decisions.py",
        "        return Ask() if call.needs_approval else Execute()",
        "        return Execute()",
        ("tests/langgraph/test_approval.py",),
    ),
    Mutation(
        "a call's key leaves out the message it came from",
        "operations.py",
        "    return origin.thread_id, origin.message_id, origin.tool_call_id",
        '    return origin.thread_id, "", origin.tool_call_id',
        ("tests/langgraph/test_cases_identity.py",),
    ),
)


def mutations(words: list[str]) -> list[Mutation]:
    """Return those whose names hold one of the words; without words, all."""
    return [one for one in MUTATIONS if not words or any(word in one.name for word in words)]


def main() -> int:
    """Try mutations; tell which survived."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", help="try those whose names hold one of the words")
    chosen = mutations(parser.parse_args().words)
    survived = []
    with _copy() as copy, click.progressbar(chosen, label="Breaking guarantees") as bar:
        for one in bar:
            noticed = _noticed(one, copy)
            click.echo(f"\n{one.name}\n    {noticed or 'SURVIVED'}")
            survived += [] if noticed else [one.name]
    click.echo(f"{len(chosen)} broken, {len(survived)} survived.")
    return 1 if survived else 0


@contextmanager
def _copy() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="idem-mutations-") as folder:
        for name in COPIED:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, Path(folder) / name)
            else:
                shutil.copy(ROOT / name, folder)
        yield Path(folder)


def _noticed(mutation: Mutation, copy: Path) -> str:
    """Return the first test that fails; an empty text if all pass."""
    (copy / mutation.path).write_text(mutation.source(), encoding="utf-8")
    try:
        return _first_failure(mutation.tests, copy)
    finally:
        shutil.copy(ROOT / mutation.path, copy / mutation.path)


def _first_failure(tests: tuple[str, ...], copy: Path) -> str:
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider"]
    command += ["-m", "not server and not slow", *tests]
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        run = subprocess.run(
            command,
            cwd=copy,
            env=environment,
            capture_output=True,
            text=True,
            timeout=LONGEST,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "(the tests do not end)"
    lines = run.stdout.splitlines()
    said = [line for line in lines if line.startswith(("FAILED ", "ERROR "))]
    failed = [line.partition(" ")[2].partition(" - ")[0] for line in said]
    if not failed and run.returncode:
        raise RuntimeError(f"pytest could not run {' '.join(tests)}:\n{run.stdout}\n{run.stderr}")
    return failed[0].rpartition("::")[2] if failed else ""


if __name__ == "__main__":
    sys.exit(main())
