"""What an effect costs when the ledger already holds many."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa

from benchmarks.measuring import blocking, compared, turn_by_turn
from benchmarks.shop import shop
from langgraph_idem import Ledger

if TYPE_CHECKING:
    from benchmarks.databases import Database
    from benchmarks.measuring import Figure, Size, Turn
    from benchmarks.shop import Shop

FLAT: Final = 1.2
CHUNK: Final = 100_000

_COLUMNS = (
    "scope, operation, key, kind, state, fingerprint, attempt_id, attempts, began_at, claimed_at,"
    " sent_at, arguments, result, codec, settled_at"
)
# The keys are digests or random: neighbours in time are no neighbours in the index.
_ROW = {
    "sqlite": (
        "'global', 'order', lower(hex(randomblob(12))), 'transactional', 'succeeded',"
        " lower(hex(randomblob(32))), lower(hex(randomblob(16))), 1, {now}, {now}, {now},"
        ' \'{{"order_id":"order-123456","sku":42}}\', \'{{"order_id":"order-123456","sku":42}}\','
        " 1, {now}"
    ),
    "postgresql": (
        "'global', 'order', md5(random()::text || n), 'transactional', 'succeeded',"
        " md5(random()::text) || md5(n::text), md5(n::text), 1, {now}, {now}, {now},"
        ' \'{{"order_id":"order-123456","sku":42}}\', \'{{"order_id":"order-123456","sku":42}}\','
        " 1, {now}"
    ),
}
_NOW = {"sqlite": "strftime('%Y-%m-%d %H:%M:%f000', 'now')", "postgresql": "clock_timestamp()"}
_NUMBERS = {
    "sqlite": "(with recursive c(n) as (select 1 union all select n + 1 from c where n < {rows})"
    " select n from c)",
    "postgresql": "generate_series(1, {rows}) as n",
}


def ledger_rows(database: Database, size: Size) -> list[Figure]:
    """Effects and replays in ledgers of 10^3 rows and more, beside the smallest, in turns."""
    effects: dict[str, Turn] = {}
    replays: dict[str, Turn] = {}
    for rows in size.rows:
        here = _shop_of(database, rows)
        guarded = here.guarded("g-")
        guarded(10**9)
        effects[_name(rows)] = blocking(guarded)
        replays[_name(rows)] = blocking(lambda _number, again=guarded: again(10**9))  # type: ignore[misc]  # bound at once
    about: Any = {"baseline": _name(size.rows[0])}
    targets = {_name(rows): FLAT for rows in size.rows[1:]}
    where = f"{database.name}, sync"
    return [
        *compared(
            *("effect, by rows in the ledger", where, turn_by_turn(effects, size)),
            **about,
            targets=targets,
        ),
        *compared(
            *("replay, by rows in the ledger", where, turn_by_turn(replays, size)),
            **about,
            targets=targets,
        ),
    ]


def _shop_of(database: Database, rows: int) -> Shop:
    here = replace(shop(database), ledger=Ledger(database.url, prefix=f"rows{rows}_"))
    here.ledger.setup()
    effects = here.ledger.tables.effects
    with here.engine.connect() as conn:
        held = conn.execute(sa.select(sa.func.count()).select_from(effects)).scalar_one()
    for done in range(held, rows, CHUNK):
        _fill(here, min(CHUNK, rows - done))
    if here.engine.dialect.name == "postgresql":
        with here.engine.execution_options(isolation_level="AUTOCOMMIT").connect() as conn:
            conn.exec_driver_sql(f"vacuum analyze {effects.name}")
    return here


def _fill(here: Shop, rows: int) -> None:
    dialect = here.engine.dialect.name
    row = _ROW[dialect].format(now=_NOW[dialect])
    numbers = _NUMBERS[dialect].format(rows=rows)
    table = here.ledger.tables.effects.name
    with here.engine.begin() as conn:
        conn.exec_driver_sql(f"insert into {table} ({_COLUMNS}) select {row} from {numbers}")  # noqa: S608 - our own words


def _name(rows: int) -> str:
    return f"{rows:,} rows"
