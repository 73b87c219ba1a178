"""DBOS: in a workflow a step, or a transaction of a datasource.

Either a workflow for each effect, as a tool call that is a workflow of its own; or one workflow for
many effects, of which each is timed by itself, so that the workflow costs them nothing.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from typing import TYPE_CHECKING

from dbos import DBOS, SetWorkflowID, SQLAlchemyDatasource

from benchmarks.measuring import blocking
from benchmarks.shop import SKUS, work

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from benchmarks.databases import Database
    from benchmarks.measuring import Turn
    from benchmarks.shop import Shop


@contextlib.contextmanager
def opened(database: Database, here: Shop, folder: Path) -> Iterator[dict[str, Turn]]:
    """Start DBOS with its own tables on the same kind of database, and the datasource on ours."""
    own = f"sqlite:///{folder}/dbos.db" if database.name == "SQLite" else database.url
    DBOS(
        config={
            "name": "benchmark",
            "system_database_url": own,
            "run_admin_server": False,
            "log_level": "ERROR",
        }
    )
    source = SQLAlchemyDatasource.create(database.url, engine=here.engine)

    @source.transaction
    def transaction(number: int) -> str:
        session = source.sql_session()
        return work(session, f"dbos-{number}", number % SKUS).model_dump_json()

    @DBOS.step()
    def step(number: int) -> None:
        here.bare(number)

    @DBOS.workflow()
    def with_transaction(number: int) -> None:
        transaction(number)

    @DBOS.workflow()
    def with_step(number: int) -> None:
        step(number)

    @DBOS.workflow()
    def many_transactions(calls: int) -> list[float]:
        return _timed(transaction, calls)

    @DBOS.workflow()
    def many_steps(calls: int) -> list[float]:
        return _timed(step, calls)

    DBOS.launch()
    try:
        yield {
            "DBOS, workflow + datasource transaction": blocking(_named("t", with_transaction)),
            "DBOS, workflow + step": blocking(_named("s", with_step)),
            "DBOS, datasource transaction within a workflow": _within("mt", many_transactions),
            "DBOS, step within a workflow": _within("ms", many_steps),
        }
    finally:
        DBOS.destroy(destroy_registry=True)


def _timed(call: Callable[[int], object], calls: int) -> list[float]:
    taken = []
    for number in range(calls):
        started = time.perf_counter()
        call(number)
        taken.append(time.perf_counter() - started)
    return taken


def _named(kind: str, workflow: Callable[[int], None]) -> Callable[[int], None]:
    def call(number: int) -> None:
        with SetWorkflowID(f"{kind}-{number}"):
            workflow(number)

    return call


def _within(kind: str, workflow: Callable[[int], list[float]]) -> Turn:
    turns = itertools.count()

    def turn(calls: int) -> list[float]:
        with SetWorkflowID(f"{kind}-{next(turns)}"):
            return workflow(calls)

    return turn
