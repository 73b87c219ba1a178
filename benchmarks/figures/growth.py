"""What an effect costs when the ledger already holds many."""

from __future__ import annotations

import contextlib
import hashlib
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa

from benchmarks.measuring import blocking, compared, turn_by_turn
from benchmarks.shop import SKUS, shop

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.databases import Database
    from benchmarks.measuring import Figure, Size, Turn
    from benchmarks.shop import Shop

FLAT: Final = 1.2
CHUNK: Final = 500_000
FIRST: Final = 0.6
"""Part of the rows that is there before the others come in between, as they would in time."""
REPLAYED: Final = 200
"""Effects that are replayed in turn: no two in the same place of the index."""

_COLUMNS: Final = (
    "scope, operation, key, kind, state, fingerprint, attempt_id, attempts, began_at, claimed_at,"
    " sent_at, arguments, result, codec, settled_at"
)
_ROW: Final = (
    "'global', 'order', {key}, 'transactional', 'succeeded', {random} || {random}, {random}, 1,"
    " {now}, {now}, {now}, '{text}', '{text}', 1, {now}"
)
_TEXT: Final = '{"order_id":"order-123456","sku":42}'
# The n-th of so many keys, in order and evenly far apart: rows come in order, which is quick, and
# those that are measured later, whose keys are digests, fall anywhere in between.
_WORDS: Final = {
    "sqlite": {
        "key": "printf('%015x', n * {step} + {shift}) || lower(hex(randomblob(5)))",
        "random": "lower(hex(randomblob(16)))",
        "now": "strftime('%Y-%m-%d %H:%M:%f000', 'now')",
        "numbers": "(with recursive c(n) as (select {low} union all select n + 1 from c"
        " where n < {high}) select n from c)",
    },
    "postgresql": {
        "key": "lpad(to_hex(n * {step} + {shift}), 15, '0') || left(md5(n::text), 10)",
        "random": "md5(random()::text)",
        "now": "clock_timestamp()",
        "numbers": "generate_series({low}::bigint, {high}::bigint) as n",
    },
}
_KEYS: Final = 2**60


def ledger_rows(database: Database, size: Size) -> list[Figure]:
    """Effects and replays in ledgers of 10^3 rows and more, beside the smallest, in turns."""
    effects: dict[str, Turn] = {}
    replays: dict[str, Turn] = {}
    with contextlib.ExitStack() as stack:
        for rows in size.rows:
            here = stack.enter_context(shop(database, f"rows{rows}_"))
            _stock(database, here.ledger.tables.effects.name, rows)
            sell, held = _selling(here), min(REPLAYED, rows)
            for number in range(held):
                sell(number)
            effects[_name(rows)] = blocking(lambda number, sell=sell: sell(10**9 + number))  # type: ignore[misc]  # bound at once
            replays[_name(rows)] = blocking(
                lambda number, sell=sell, held=held: sell(number % held)  # type: ignore[misc]  # bound at once
            )
        return _figures(f"{database.where}, sync", effects, replays, size)


def _figures(
    where: str, effects: dict[str, Turn], replays: dict[str, Turn], size: Size
) -> list[Figure]:
    about: dict[str, Any] = {
        "baseline": _name(size.rows[0]),
        "targets": {_name(rows): FLAT for rows in size.rows[1:]},
    }
    return [
        *compared(*("effect, by rows in the ledger", where, turn_by_turn(effects, size)), **about),
        *compared(*("replay, by rows in the ledger", where, turn_by_turn(replays, size)), **about),
    ]


def _selling(here: Shop) -> Callable[[int], Any]:
    """Sell under keys that are neighbours in time, and so no neighbours in the index."""
    order = here.order()

    def sell(number: int) -> None:
        digest = hashlib.sha256(str(number).encode()).hexdigest()
        order(digest[:25], number % SKUS)

    return sell


def _stock(database: Database, table: str, rows: int) -> None:
    # Its settings are for filling only: a connection that nobody gets afterwards.
    engine = sa.create_engine(database.url, poolclass=sa.NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as conn:
        if conn.exec_driver_sql(f"select count(*) from {table}").scalar_one() == 0:  # noqa: S608 - our own words
            _fill(conn, table, rows)
    engine.dispose()


def _fill(conn: sa.Connection, table: str, rows: int) -> None:
    is_sqlite = conn.dialect.name == "sqlite"
    for setting in ("synchronous=OFF", "cache_size=-400000") if is_sqlite else ():
        conn.exec_driver_sql(f"PRAGMA {setting}")
    first = max(1, int(rows * FIRST))
    _insert(conn, table, first, shift=0)
    _insert(conn, table, rows - first, shift=1)
    if is_sqlite:
        conn.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
        return
    conn.exec_driver_sql(f"vacuum analyze {table}")
    with contextlib.suppress(sa.exc.ProgrammingError):  # for superusers
        conn.exec_driver_sql("checkpoint")


def _insert(conn: sa.Connection, table: str, rows: int, *, shift: int) -> None:
    words = _WORDS[conn.dialect.name]
    step = _KEYS // (rows + 1)
    key = words["key"].format(step=step, shift=shift)
    row = _ROW.format(key=key, random=words["random"], now=words["now"], text=_TEXT)
    for low in range(1, rows + 1, CHUNK):
        numbers = words["numbers"].format(low=low, high=min(low + CHUNK - 1, rows))
        conn.exec_driver_sql(f"insert into {table} ({_COLUMNS}) select {row} from {numbers}")  # noqa: S608 - our own words


def _name(rows: int) -> str:
    return f"{rows:,} rows"
