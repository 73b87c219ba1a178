"""The two experiments: the same death, undone once by a look-up and once by a person."""

from __future__ import annotations

import os
import secrets
import shlex
import signal
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from langgraph.checkpoint.sqlite import SqliteSaver

from examples.refund_agent.provider import paid_charge, refunds_of
from examples.refund_agent.worker import CENTS
from langgraph_idem import EffectRecord, Ledger, RunStatus

if TYPE_CHECKING:
    from examples.refund_agent.provider import Provider


@dataclass(frozen=True)
class Run:
    """One refund, in files of its own.

    Attributes:
        name: What it is called in the acceptance table.
        folder: Where its files are.
        order: The order that is paid back. No two runs may share one: the idempotency key is made
            of it, and a provider remembers keys for longer than our files live.
        charge: Its charge, at the provider.
        provider: Who pays it back.
        looks_up: Whether the tool can ask the provider.

    """

    name: str
    folder: Path
    order: str
    charge: str
    provider: Provider
    looks_up: bool

    @property
    def ledger_url(self) -> str:
        """Where the effects are recorded."""
        return f"sqlite:///{self.folder / 'ledger.db'}"

    @property
    def environment(self) -> dict[str, str]:
        """How the run's processes are told where all is."""
        return {
            **os.environ,
            **self.provider.environment,
            "LANGGRAPH_IDEM_URL": self.ledger_url,
            "CHECKPOINTS": str(self.folder / "checkpoints.db"),
            "ORDER": self.order,
            "CHARGE": self.charge,
        }

    def worker(self, *, dies: bool = False) -> None:
        """Let a new worker process go on with the refund, and tell what it does."""
        options = [*(["--dies"] if dies else []), *(["--looks-up"] if self.looks_up else [])]
        command = [sys.executable, "-m", "examples.refund_agent.worker", *options]
        with subprocess.Popen(
            command, env=self.environment, stdout=subprocess.PIPE, text=True
        ) as worker:
            assert worker.stdout is not None
            for line in worker.stdout:
                tell(f"worker {worker.pid}", line.rstrip())
        expected = -signal.SIGKILL if dies else 0
        if worker.returncode != expected:
            sys.exit(f"The worker ended with {worker.returncode}, not with {expected}.")
        if dies:
            tell(f"worker {worker.pid}", "is dead (signal 9)")

    def person(self, *words: str, answers: str = "") -> None:
        """Let a person type a command, and show what it prints."""
        program = Path(sys.executable).with_name("langgraph-idem")
        if not program.exists():
            sys.exit("The command langgraph-idem is not installed: pip install -e .")
        tell("person", f"$ langgraph-idem {shlex.join(words)}")
        done = subprocess.run(
            [program, *words],
            env=self.environment,
            input=answers,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        print(textwrap.indent(done.stdout.replace("]: ", f"]: {answers}"), " " * 19), flush=True)
        if done.returncode != 0:
            sys.exit(f"langgraph-idem {words[0]} ended with {done.returncode}.")

    def facts(self) -> None:
        """Tell what the provider has, and what the ledger knows."""
        refunds = [f"{refund} over {cents} cents" for refund, cents in refunds_of(self.charge)]
        tell("provider", ", ".join(refunds) or "no refund")
        record = self.effect()
        state = f"{record.state}, attempt {record.attempts}" if record else "empty"
        tell("ledger", f"refund for {self.order}: {state}")

    def effect(self) -> EffectRecord | None:
        """Read the ledger's row."""
        with Ledger(self.ledger_url) as ledger:
            return ledger.effect("refund", self.order)

    def status(self) -> str:
        """Read how the run stands from its checkpoint, without any graph."""
        config = {"configurable": {"thread_id": self.order}}
        with SqliteSaver.from_conn_string(str(self.folder / "checkpoints.db")) as saver:
            saved = saver.get_tuple(config)  # type: ignore[arg-type]  # a plain dict is a config
        return str(saved.checkpoint["channel_values"].get("status")) if saved else "none"


def by_look_up(folder: Path, provider: Provider) -> Run:
    """Let a worker die; its successor asks the provider and finds the refund."""
    run = _begin("look-up", "1. The tool can ask the provider", folder, provider, looks_up=True)
    tell("", f"a new worker; it waits until the dead one's lease is over ({provider.lease:g} s)")
    run.worker()
    run.facts()
    return run


def by_a_person(folder: Path, provider: Provider) -> Run:
    """Let a worker die; nobody but a person can find out, and says so on the command line."""
    run = _begin("person", "2. The tool cannot ask anybody", folder, provider, looks_up=False)
    tell("", f"a new worker; it waits until the dead one's lease is over ({provider.lease:g} s)")
    run.worker()
    run.person("list")
    run.person("show", "refund", run.order)
    ((refund, cents), *_others) = refunds_of(run.charge) or [("", 0)]
    if not refund:
        sys.exit("The provider has no refund, although the worker died of its answer.")
    tell("person", f"looks into the provider's dashboard and sees {refund}\n")
    note = f"{refund} is in the dashboard"
    result = f'"refund {refund} over {cents} cents"'
    words = ("resolve", "refund", run.order, "succeeded", "--result", result, "--note", note)
    run.person(*words, answers="y\n")
    tell("", "a new worker")
    run.worker()
    run.facts()
    return run


def _begin(name: str, title: str, folder: Path, provider: Provider, *, looks_up: bool) -> Run:
    print(f"\n{title}\n{'-' * len(title)}")
    (folder / name).mkdir(parents=True)
    order, place = f"O-{secrets.token_hex(3)}", (folder / name).resolve()
    run = Run(name, place, order, paid_charge(), provider, looks_up)
    tell("customer", f"has paid 20.00 for {order} and wants 5.00 back")
    run.worker(dies=True)
    run.facts()
    return run


def acceptance(runs: list[Run]) -> bool:
    """Print the acceptance table: the provider's own word, the ledger, the checkpoint."""
    title = "Acceptance: what the provider, the ledger and the checkpoint hold"
    print(f"\n{title}\n{'-' * len(title)}")
    print(f"  {'settled by':<12} refunds  cents  ledger      by          run        verdict")
    verdicts = [_judged(run) for run in runs]
    return all(verdicts)


def _judged(run: Run) -> bool:
    refunds, record, status = refunds_of(run.charge), run.effect(), run.status()
    cents = sum(amount for _, amount in refunds)
    state = str(record.state) if record else "none"
    by = (record.resolved_by if record else None) or "-"
    once = len(refunds) == 1 and cents == CENTS
    right = once and state == "succeeded" and status == RunStatus.COMPLETED.value
    verdict = "ok" if right else "WRONG: not once" if not once else "WRONG: not completed"
    counted = f"{len(refunds):>7}  {cents:>5}"
    print(f"  {run.name:<12} {counted}  {state:<10}  {by:<10}  {status:<9}  {verdict}", flush=True)
    return right


def tell(who: str, what: str) -> None:
    """Print a line of the story."""
    print(f"  {who:<16} {what}", flush=True)
