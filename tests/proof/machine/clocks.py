"""Clocks that are wrong: a worker's own, and that of the machine on which SQLite lives."""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone
from typing import Any

import sqlalchemy as sa

from tests.proof.machine.journal import Shared
from tests.proof.machine.places import Place
from tests.proof.machine.plan import Life

_real_time, _real_time_ns = time.time, time.time_ns


def shift(place: Place, life: Life) -> None:
    """Put this worker's clock wrong; and that of SQLite, which is the machine's, for all alike."""
    time.time = lambda: _real_time() + life.clock
    time.time_ns = lambda: _real_time_ns() + int(life.clock * 1e9)
    if not place.direct.startswith("sqlite"):
        return
    machine = Shared(place.folder / "clock")

    def now(_format: str, _when: str) -> str:
        there = datetime.now(timezone.utc) + timedelta(seconds=machine.value)
        return there.strftime("%Y-%m-%d %H:%M:%S.%f")

    @sa.event.listens_for(sa.Engine, "connect")
    def _set(connection: Any, _record: Any) -> None:
        connection.create_function("strftime", 2, now)
