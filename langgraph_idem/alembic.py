"""The ledger's tables among the user's own in Alembic: their types, written down for a revision.

It imports nothing of Alembic: ``env.py`` does.
"""

from __future__ import annotations

from typing import Any, Literal

from langgraph_idem.sql.schema import ExactText, UtcDateTime, exact_collation


def render_item(kind: str, item: Any, autogen_context: Any) -> str | Literal[False]:
    """Write a type of the ledger's columns as SQLAlchemy's own, so that a revision stands alone.

    Hand it to ``context.configure(render_item=render_item)`` in ``env.py``, beside
    ``target_metadata=[Base.metadata, ledger.tables.metadata]``.

    Args:
        kind: What is to be written, in Alembic's words; only ``"type"`` is looked at.
        item: The thing itself.
        autogen_context: Alembic's; told what the revision has to import.

    Returns:
        Python text, or False: not the ledger's, Alembic writes it as usual.

    """
    if kind != "type" or not isinstance(item, UtcDateTime | ExactText):
        return False
    autogen_context.imports.add("from sqlalchemy.dialects import mysql")
    if isinstance(item, UtcDateTime):
        finer = "mysql.DATETIME(fsp=6)"
        return f"sa.DateTime(timezone=True).with_variant({finer}, 'mysql', 'mariadb')"
    collation = exact_collation(autogen_context.dialect)
    return f"mysql.VARCHAR(length={item.length}, charset='utf8mb4', collation={collation!r})"
