"""Guarantees taken out of the library, one at a time, to see that the machine notices.

A name given to a worker (``--break NAME``, for the machine's own tests) replaces one function of
the library in that worker only.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from langgraph_idem import remote
from langgraph_idem.sql import sites
from langgraph_idem.sql.statements import LedgerStatements

BETWEEN: Final = 0.02
"""Seconds between two commits, so that some of twenty kills come just then."""


def _no_claim() -> None:
    """Nobody claims; whoever comes does it."""
    statements: Any = LedgerStatements
    statements.claim = lambda _self, _conn, _call: None
    statements.complete = lambda _self, _conn, _call, _result: True


def _result_alone() -> None:
    """The business rows are committed first, the result in a transaction of its own."""
    for kind in (sites.BlockingTransaction, sites.AwaitingTransaction):
        _commit_after_tool(kind)


def _commit_after_tool(kind: Any) -> None:
    original = kind.tool

    def apart(conn: Any) -> None:
        sites._commit(conn)
        time.sleep(BETWEEN)
        sites._begin(conn)

    async def tool(tx: Any) -> Any:
        value = await original(tx)
        if isinstance(tx, sites.BlockingTransaction):
            apart(tx.conn)
        else:
            await tx.conn.run_sync(apart)
        return value

    kind.tool = tool


def _unasked() -> None:
    """When a lease is over the effect is sent again, unasked."""

    async def verify(site: Any, call: Any, rules: Any, seen: Any) -> Any:
        if not await remote._taken_over(site, call, rules, seen.record):
            return None
        attempt = remote.Attempt(call, remote._effect(call, seen.record), is_clean=True)
        return await remote._send_again(site, attempt, rules)

    module: Any = remote
    module._verify = verify


def _forgotten() -> None:
    """What is lost is deleted, as if it had never been sent."""
    statements: Any = LedgerStatements
    statements.lose = lambda self, conn, call, _reason: self.release(conn, call)


BROKEN: Final[dict[str, Callable[[], None]]] = {
    "no-claim": _no_claim,
    "result-alone": _result_alone,
    "unasked": _unasked,
    "forgotten": _forgotten,
}


def take_out(name: str | None) -> None:
    """Take a guarantee out of the library in this process."""
    if name is not None:
        BROKEN[name]()
