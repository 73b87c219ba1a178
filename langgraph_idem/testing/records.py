"""What a test says of the ledger's rows: an effect took hold once; an effect is this old."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa

from langgraph_idem import keys, protocols
from langgraph_idem.effects import State
from langgraph_idem.ports import run_blocking
from langgraph_idem.sql.statements import record_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from langgraph_idem.effects import EffectRecord
    from langgraph_idem.ledger import Ledger

_INSTANTS: Final = ("began_at", "claimed_at", "sent_at", "settled_at")
_SHOWN: Final = 20
"""How many rows of the ledger a failed assertion shows."""


def assert_effect_once(
    ledger: Ledger, operation: str, key: object, *, scope: str | None = None
) -> EffectRecord:
    """Assert that an effect took hold, and that the ledger holds no second one like it.

    The ledger can only tell what ran through it; look at your business's own rows as well.

    Args:
        ledger: The ledger.
        operation: The effect's operation.
        key: Its key: a text as the library shows it, or a tuple of the parts.
        scope: Whose it is; None: in any scope, but in one only.

    Returns:
        Its record.

    Raises:
        AssertionError: With what the ledger holds instead.

    """
    return _the_one(ledger.effects(operation=operation, limit=10**6), operation, key, scope)


async def aassert_effect_once(
    ledger: Ledger, operation: str, key: object, *, scope: str | None = None
) -> EffectRecord:
    """Assert that an effect took hold once, as :func:`assert_effect_once` does."""
    found = await ledger.aeffects(operation=operation, limit=10**6)
    return _the_one(found, operation, key, scope)


def _the_one(
    of_operation: Sequence[EffectRecord], operation: str, key: object, scope: str | None
) -> EffectRecord:
    text = keys.shown_key(key)
    found = [record for record in of_operation if record.key == text]
    found = [record for record in found if scope in {None, record.scope}]
    if len(found) == 1 and found[0].state is State.SUCCEEDED:
        return found[0]
    wanted = f"{operation} for {text}" + (f" in {scope}" if scope else "")
    if not found:
        held = _shown(of_operation) or f"no effect of {operation} at all"
        raise AssertionError(f"{wanted} did not take hold. The ledger holds: {held}.")
    if len(found) > 1:
        raise AssertionError(f"{wanted} is there {len(found)} times: {_shown(found)}.")
    raise AssertionError(f"{wanted} did not take hold: {_shown(found)}.")


def _shown(records: Sequence[EffectRecord]) -> str:
    shown = "; ".join(_line(record) for record in records[:_SHOWN])
    more = len(records) - _SHOWN
    return f"{shown}; and {more} more" if more > 0 else shown


def _line(record: EffectRecord) -> str:
    reason = f" ({record.reason})" if record.reason else ""
    tries = f", attempt {record.attempts}" if record.attempts > 1 else ""
    return f"{record.key} in {record.scope}: {record.state}{reason}{tries}"


def age(
    ledger: Ledger,
    operation: str,
    key: object,
    by: timedelta | float,
    *,
    scope: str = keys.GLOBAL,
) -> EffectRecord:
    """Make an effect older, as if that much time had passed: leases end, providers forget keys.

    The ledger goes by the database's clock, which no test can stop; so the effect is moved.

    Args:
        ledger: The ledger.
        operation: The effect's operation.
        key: Its key: a text as the library shows it, or a tuple of the parts.
        by: How much older (timedelta or seconds).
        scope: Whose it is.

    Returns:
        Its record as it is now.

    Raises:
        AssertionError: There is no such effect.

    """
    site = ledger._blocking()  # noqa: SLF001 - of this package
    work = _aging(ledger, operation, keys.shown_key(key), scope, by)
    return run_blocking(protocols.own_work(site, work, keep=True))


async def aage(
    ledger: Ledger,
    operation: str,
    key: object,
    by: timedelta | float,
    *,
    scope: str = keys.GLOBAL,
) -> EffectRecord:
    """Make an effect older, as :func:`age` does."""
    site = ledger._awaiting()  # noqa: SLF001 - of this package
    work = _aging(ledger, operation, keys.shown_key(key), scope, by)
    return await protocols.own_work(site, work, keep=True)


def _aging(
    ledger: Ledger, operation: str, key: str, scope: str, by: timedelta | float
) -> Callable[[sa.Connection], EffectRecord]:
    effects = ledger.tables.effects
    delta = by if isinstance(by, timedelta) else timedelta(seconds=by)
    name = {"scope": scope, "operation": operation, "key": key}

    def older(conn: sa.Connection) -> EffectRecord:
        seen = ledger._statements.read(conn, **name)  # noqa: SLF001 - of this package
        if seen is None:
            raise AssertionError(f"There is no effect {operation} for {key} in {scope} to age.")
        instants: dict[str, Any] = {each: getattr(seen.record, each) for each in _INSTANTS}
        moved = {each: when - delta for each, when in instants.items() if when is not None}
        this = [effects.c[column] == value for column, value in name.items()]
        conn.execute(sa.update(effects).where(*this).values(moved))
        return record_of(conn.execute(sa.select(effects).where(*this)).one())

    return older
