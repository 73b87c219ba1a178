"""DBOS: a workflow for each effect, and in it a step, or a transaction of a datasource."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from dbos import DBOS, SetWorkflowID, SQLAlchemyDatasource

from benchmarks.shop import SKUS, work

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from benchmarks.databases import Database
    from benchmarks.shop import Shop


@contextlib.contextmanager
def opened(
    database: Database, here: Shop, folder: Path
) -> Iterator[dict[str, Callable[[int], Any]]]:
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
    def order(order_id: str, sku: int) -> str:
        return work(source.sql_session(), order_id, sku).model_dump_json()

    @DBOS.step()
    def step(number: int) -> None:
        here.bare(number)

    @DBOS.workflow()
    def with_transaction(number: int) -> str:
        return str(order(f"dbos-{number}", number % SKUS))

    @DBOS.workflow()
    def with_step(number: int) -> None:
        step(number)

    def transaction(number: int) -> None:
        with SetWorkflowID(f"transaction-{number}"):
            with_transaction(number)

    def stepping(number: int) -> None:
        with SetWorkflowID(f"step-{number}"):
            with_step(number)

    DBOS.launch()
    try:
        yield {
            "DBOS, workflow + datasource transaction": transaction,
            "DBOS, workflow + step": stepping,
        }
    finally:
        DBOS.destroy(destroy_registry=True)
