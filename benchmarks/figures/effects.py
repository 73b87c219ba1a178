"""Transactional and remote effects, and replays, in both colours."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from benchmarks.measuring import awaiting, blocking, compared, in_turn, turn_by_turn
from benchmarks.shop import AsyncShop, shop
from langgraph_idem import Ledger

if TYPE_CHECKING:
    from benchmarks.databases import Database
    from benchmarks.measuring import Figure, Size

TRANSACTIONAL = {"guarded": 1.2, "guarded, Session": 1.2}
REPLAY = {"replay": 1.5}
REMOTE = {"guarded": 1.2}


def transactional(database: Database, size: Size) -> list[Figure]:
    """A transactional effect beside the bare transaction, and beside one written by hand.

    The bare one is measured twice: how far it is from itself is how well this can be measured.
    """
    with shop(database) as here:
        medians = turn_by_turn(
            {
                "bare": blocking(here.bare),
                "bare, again": blocking(here.bare),
                "by hand": blocking(here.by_hand),
                "guarded": blocking(here.guarded()),
                "bare, Session": blocking(here.bare_session),
                "guarded, Session": blocking(here.guarded_session()),
            },
            size,
        )
        sessions = {name: values for name, values in medians.items() if "Session" in name}
        plain = {name: values for name, values in medians.items() if "Session" not in name}
        about = ("transactional effect", f"{database.where}, sync")
        return [
            *compared(*about, plain, baseline="bare", targets=TRANSACTIONAL),
            *compared(*about, sessions, baseline="bare, Session", targets=TRANSACTIONAL),
        ]


def own_work(database: Database, size: Size) -> list[Figure]:
    """The same, but only what the calling thread works itself: no disk, no server, no waiting.

    This is what a busy machine cannot spoil, and what a larger one does not make cheaper.
    """
    with shop(database) as here:
        guarded, again = here.guarded("own-"), here.guarded("own-")
        again(-1)
        effects = turn_by_turn(
            {
                "bare": blocking(here.bare, time.thread_time),
                "by hand": blocking(lambda number: here.by_hand(number, "own"), time.thread_time),
                "guarded": blocking(guarded, time.thread_time),
            },
            size,
        )
        replays = turn_by_turn(
            {
                "one read": blocking(here.read("own-order--1"), time.thread_time),
                "replay": blocking(lambda _number: again(-1), time.thread_time),
            },
            size,
        )
        where = f"{database.where}, sync"
        return [
            *compared("own work of a transactional effect", where, effects, baseline="bare"),
            *compared("own work of a replay", where, replays, baseline="one read"),
        ]


def replay(database: Database, size: Size) -> list[Figure]:
    """A replay beside one read by primary key.

    And an effect and a replay taking turns, so that whoever expects more of the same is wrong each
    time, beside the bare transaction and the read.
    """
    with shop(database) as here:
        again, read, guarded = here.guarded(), here.read(_key()), here.guarded("turns-")
        again(0)
        replays = turn_by_turn(
            {"one read": blocking(read), "replay": blocking(lambda _number: again(0))}, size
        )
        turns = turn_by_turn(
            {
                "bare and read": blocking(in_turn(here.bare, read)),
                "guarded": blocking(in_turn(guarded, lambda _number: again(0))),
            },
            size,
        )
        where = f"{database.where}, sync"
        return [
            *compared("replay", where, replays, baseline="one read", targets=REPLAY),
            *compared("effect and replay in turn", where, turns, baseline="bare and read"),
        ]


def remote(database: Database, size: Size) -> list[Figure]:
    """A remote effect, whose provider takes no time, beside two bare commits."""
    with shop(database) as here:
        medians = turn_by_turn(
            {"two commits": blocking(here.two_commits), "guarded": blocking(here.remote())}, size
        )
        where = f"{database.where}, sync"
        return compared("remote effect", where, medians, baseline="two commits", targets=REMOTE)


def in_async(database: Database, size: Size) -> list[Figure]:
    """The same three on an event loop."""
    with shop(database):  # makes the tables
        pass
    loop = asyncio.new_event_loop()
    here = AsyncShop(database.async_engine(), Ledger(database.url))
    try:
        return _in_async(here, loop, f"{database.where}, async", size)
    finally:
        loop.run_until_complete(here.ledger.aclose())
        loop.run_until_complete(here.engine.dispose())
        loop.close()


def _in_async(
    here: AsyncShop, loop: asyncio.AbstractEventLoop, where: str, size: Size
) -> list[Figure]:
    guarded = here.guarded()
    effects = turn_by_turn(
        {"bare": awaiting(here.bare, loop), "guarded": awaiting(guarded, loop)}, size
    )

    async def again(_number: int) -> None:
        await guarded(0)

    replays = turn_by_turn(
        {"one read": awaiting(here.read(_key()), loop), "replay": awaiting(again, loop)}, size
    )
    remotes = turn_by_turn(
        {
            "two commits": awaiting(here.two_commits, loop),
            "guarded": awaiting(here.remote(), loop),
        },
        size,
    )
    return [
        *compared("transactional effect", where, effects, baseline="bare", targets=TRANSACTIONAL),
        *compared("replay", where, replays, baseline="one read", targets=REPLAY),
        *compared("remote effect", where, remotes, baseline="two commits", targets=REMOTE),
    ]


def _key() -> str:
    return "order-0"
