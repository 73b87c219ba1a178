"""Questions that people and programs ask the ledger; they change nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from langgraph_idem.errors import ConfigurationError
from langgraph_idem.sql.statements import record_of

if TYPE_CHECKING:
    from langgraph_idem.effects import EffectRecord
    from langgraph_idem.sql.schema import LedgerTables

_FILTERS = ("scope", "operation", "key", "state", "kind", "thread_id")


def many(
    conn: sa.Connection, tables: LedgerTables, *, limit: int = 1000, **filters: Any
) -> list[EffectRecord]:
    """Return the records that fit all filters, the latest claim first.

    Raises:
        ConfigurationError: A filter that does not exist.

    """
    effects = tables.effects
    if unknown := filters.keys() - set(_FILTERS):
        raise ConfigurationError(
            f"Effects cannot be filtered by {', '.join(sorted(unknown))}; by {', '.join(_FILTERS)}."
        )
    fits = [effects.c[name] == str(value) for name, value in filters.items() if value is not None]
    query = sa.select(effects).where(*fits).order_by(effects.c.claimed_at.desc()).limit(limit)
    return [record_of(row) for row in conn.execute(query)]
