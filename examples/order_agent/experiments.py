"""The experiments: start a worker, perhaps see it die, start another, read the disk."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

from examples.order_agent.evidence import Evidence
from examples.order_agent.stores import Stores

NewStores = Callable[[str], Stores]


@dataclass(frozen=True)
class Shown:
    """What is shown: with the library or without, and with which model."""

    unsafe: bool = False
    model: str | None = None


@dataclass(frozen=True)
class Run:
    """One run of the order, in databases of its own."""

    name: str
    stores: Stores
    shown: Shown

    def worker(self, dies_when: str | None = None) -> None:
        """Let a new worker process go on with the order, and tell what it does."""
        command = self._command("worker")
        command += ["--dies-when", dies_when] if dies_when else []
        command += ["--model", self.shown.model] if self.shown.model else []
        with subprocess.Popen(
            command, env=self.stores.environment, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                _tell(f"worker {process.pid}", line.rstrip())
        _check_ending(process, must_die=dies_when is not None)

    def evidence(self) -> Evidence:
        """Let a new process read what is on disk, and tell it."""
        found = self.read()
        facts, ledger = found.in_words()
        _tell("on disk", facts)
        if not self.shown.unsafe:
            _tell("", ledger)
        return found

    def read(self) -> Evidence:
        """Let a new process read what is on disk."""
        done = subprocess.run(
            self._command("evidence"),
            env=self.stores.environment,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        return Evidence(**json.loads(done.stdout))

    def _command(self, module: str) -> list[str]:
        unsafe = ["--unsafe"] if self.shown.unsafe else []
        return [sys.executable, "-m", f"examples.order_agent.{module}", *unsafe]


def experiments(new_stores: NewStores, shown: Shown) -> list[Run]:
    """Carry out the experiments.

    Returns:
        The runs, for the acceptance table.

    """
    normal = _begin("normal", "Normal run", new_stores, shown)
    normal.worker()
    normal.evidence()

    title = "Experiment 1: killed after the deduction's commit, before any checkpoint of it"
    unrecorded = _begin("killed-unrecorded", title, new_stores, shown)
    _die_and_come_back(unrecorded, "unrecorded")

    title = "Experiment 2: killed after the deduction was checkpointed"
    checkpointed = _begin("killed-checkpointed", title, new_stores, shown)
    _die_and_come_back(checkpointed, "checkpointed")

    if not shown.unsafe:
        _headline("Experiment 3: recover again what is completed")
        _recover_again(checkpointed)
    return [normal, unrecorded, checkpointed]


def _begin(name: str, title: str, new_stores: NewStores, shown: Shown) -> Run:
    _headline(title)
    run = Run(name, new_stores(name), shown)
    run.stores.open_shop()
    return run


def _die_and_come_back(run: Run, moment: str) -> None:
    run.worker(dies_when=moment)
    run.evidence()
    run.worker()
    run.evidence()


def _recover_again(run: Run) -> None:
    before = run.evidence()
    run.worker()
    after = run.evidence()
    if before != after:
        sys.exit(f"Recovering a completed run changed the disk: {before} -> {after}")
    _tell("", "not a row and not a checkpoint is new")


def acceptance(runs: list[Run]) -> bool:
    """Print the acceptance table from what is on disk, and tell whether it holds."""
    _headline("Experiment 4: the acceptance table, read from disk by new processes")
    print(f"  {'run':<20} stock  notifications  effects done  checkpoint  verdict")
    verdicts = [_judge(run, run.read()) for run in runs]
    print()
    return all(verdict == "ok" for verdict in verdicts)


def _judge(run: Run, found: Evidence) -> str:
    verdict = _verdict(run, found)
    done = sum(effect.endswith("succeeded") for effect in found.effects)
    numbers = (
        f"{found.stock:>5}  {found.notifications:>13}  {'-' if run.shown.unsafe else done:>12}"
    )
    print(f"  {run.name:<20} {numbers}  {found.status or 'none':<10}  {verdict}", flush=True)
    return verdict


def _verdict(run: Run, found: Evidence) -> str:
    if found.stock < 9:
        return "WRONG: deducted more than once"
    if found.notifications > 1:
        return "WRONG: notified more than once"
    done = ["deduct_inventory succeeded", "notify_shipped succeeded"]
    in_ledger = run.shown.unsafe or list(found.effects) == done
    complete = found.stock == 9 and found.notifications == 1 and in_ledger
    return "ok" if complete and found.status == "COMPLETED" else "WRONG: not completed"


def _check_ending(worker: subprocess.Popen[str], *, must_die: bool) -> None:
    expected = -signal.SIGKILL if must_die else 0
    if worker.returncode != expected:
        sys.exit(f"The worker ended with {worker.returncode}, not with {expected}.")
    if must_die:
        _tell(f"worker {worker.pid}", "is dead (signal 9)")


def _headline(title: str) -> None:
    print(f"\n{title}\n{'-' * len(title)}")


def _tell(who: str, what: str) -> None:
    print(f"  {who:<14} {what}", flush=True)
