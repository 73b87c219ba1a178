"""Programs for the field cases of several workers: each runs in a process of its own.

They stop where the test has to act, say so on their output, and go on at a line of input, or when
they are let go by SIGCONT.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from langgraph_idem import ABSENT, Effect, Found
from langgraph_idem.testing import crash
from tests.support.cases import CONFIG, PAY_ONE, Business, Hooks, agent, asks, pay_tool

SCRIPT = [asks(PAY_ONE), "Paid."]
LEASE = 1.0
"""Seconds: the lease of a claim that is left to end by itself."""


def meet(place: str) -> None:
    """Say where the program is, and wait until the test lets it go on."""
    sys.stdout.write(f"{place}\n")
    sys.stdout.flush()
    assert sys.stdin.readline() == "go\n"


def freeze(place: str) -> None:
    """Say where the program is, and be stopped there as by a debugger or a paused machine."""
    sys.stdout.write(f"{place}\n")
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGSTOP)


# --- two workers, one thread ----------------------------------------------------------------------


def resume(url: str, checkpoints: str, seam: str, colour: str, twin: str) -> str:
    """Resume the thread; the tool waits at its entrance for the other worker."""
    business = Business.at(url)
    hooks = Hooks(entered=lambda: meet("entered"))
    tools = [pay_tool(business, hooks, guarded=twin == "guarded", colour=colour)]

    def graph(saver: Any) -> Any:
        return agent(seam, SCRIPT, tools, business, saver)

    async def aresume() -> Any:
        async with AsyncSqliteSaver.from_conn_string(checkpoints) as saver:
            return await graph(saver).ainvoke(None, CONFIG)

    if colour == "async":
        ended = asyncio.run(aresume())
    else:
        with SqliteSaver.from_conn_string(checkpoints) as saver:
            ended = graph(saver).invoke(None, CONFIG)
    return str(ended["messages"][-1].content)


# --- a frozen worker ------------------------------------------------------------------------------


def refund_tool(
    business: Business, *, sent: Callable[[], None], colour: str, lease: float
) -> Callable[..., Any]:
    """Make a remote tool whose provider is a table, which can be asked."""

    def lookup(effect: Effect) -> Any:
        with business.connected() as conn:
            query = sa.text("select count(*) from payments where order_id = :it")
            found = conn.scalar(query, {"it": effect.arguments["order_id"]})
        return Found("found") if found else ABSENT

    guard: Any = business.ledger.remote(
        key=("order_id",), operation="refund", lookup=lookup, lease=lease, wait=60
    )

    def refund(effect: Effect, /, order_id: str) -> str:
        business.pay(order_id, 5)
        sent()
        return "refunded"

    async def arefund(effect: Effect, /, order_id: str) -> str:
        return refund(effect, order_id)

    made: Callable[..., Any] = guard(refund if colour == "sync" else arefund)
    return made


def freeze_after_sending(url: str, colour: str, twin: str) -> str:
    """Refund, frozen between the provider's answer and the record of it."""
    business = Business.at(url)

    def sent() -> None:
        freeze("frozen")

    if twin == "unguarded":
        business.pay("O-1", 5)
        sent()
        return "refunded"
    return called(refund_tool(business, sent=sent, colour=colour, lease=3600), colour)


def freeze_before_sending(url: str, colour: str) -> str:
    """Refund, frozen between the claim and the sending, until the lease is over."""
    business = Business.at(url)
    tool = refund_tool(business, sent=lambda: None, colour=colour, lease=LEASE)
    with crash(business.ledger, after="commit", by=lambda: freeze("frozen")):
        return called(tool, colour)


def called(tool: Callable[..., Any], colour: str) -> str:
    """Call a tool in its colour."""
    return str(tool(order_id="O-1") if colour == "sync" else asyncio.run(tool(order_id="O-1")))


# --- on the test's side ---------------------------------------------------------------------------


class Worker:
    """A process that runs one of these programs."""

    def __init__(self, program: Callable[..., str], arguments: Sequence[str]) -> None:
        command = [sys.executable, "-m", __name__, program.__name__, *arguments]
        self._running = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def said(self) -> str:
        """Wait for the next thing that it says."""
        assert self._running.stdout is not None
        return self._running.stdout.readline().rstrip("\n")

    def go(self) -> None:
        """Let it go on from where it waits for the test."""
        assert self._running.stdin is not None
        self._running.stdin.write("go\n")
        self._running.stdin.flush()

    def thaw(self) -> None:
        """Let it go on from where it is frozen."""
        self._running.send_signal(signal.SIGCONT)

    def end(self) -> None:
        """End it, wherever it is."""
        self._running.kill()
        self._running.communicate()


@contextmanager
def workers(
    program: Callable[..., str], *arguments: str, number: int = 1
) -> Iterator[list[Worker]]:
    """Start workers, and end them whatever happens."""
    started = [Worker(program, arguments) for _ in range(number)]
    try:
        yield started
    finally:
        for worker in started:
            worker.end()


if __name__ == "__main__":
    programs = (resume, freeze_after_sending, freeze_before_sending)
    wanted = {program.__name__: program for program in programs}[sys.argv[1]]
    sys.stdout.write(f"{wanted(*sys.argv[2:])}\n")
