"""The promises of the core, once for each database and driver that is supported."""

from __future__ import annotations

import asyncio
import datetime as dt
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from langgraph_idem import (
    ArgumentsChanged,
    ConfigurationError,
    Effect,
    Found,
    Ledger,
    OutcomeUnknown,
    RecordedFailure,
    ResultNotStorable,
)
from langgraph_idem.effects import State
from tests.support import shop as shops
from tests.support.shop import Shop

DRIVERS: Final = {
    "sqlite": ("sqlite", "sqlite", False),
    "aiosqlite": ("sqlite", "sqlite+aiosqlite", True),
    "psycopg": ("postgresql", "postgresql+psycopg", False),
    "psycopg-async": ("postgresql", "postgresql+psycopg", True),
    "asyncpg": ("postgresql", "postgresql+asyncpg", True),
    "pymysql": ("mariadb", "mysql+pymysql", False),
    "asyncmy": ("mariadb", "mysql+asyncmy", True),
}
"""The database of each driver, its name in a URL, and whether it awaits."""


class OutOfStock(Exception):
    """Says no for good."""


class Unstorable:
    """What no ledger can keep."""


@dataclass
class Business:
    """A shop and its ledger over one driver; what it does is awaited where the driver awaits.

    Attributes:
        shop: The tables, and a witness of its own.
        url: How the ledger reaches them.
        is_async: Whether it awaits.
        ledger: The ledger.

    """

    shop: Shop
    url: str
    is_async: bool
    ledger: Ledger

    def engine(self, **options: Any) -> Any:
        """Make an engine of the user's over the driver."""
        return (create_async_engine if self.is_async else sa.create_engine)(self.url, **options)

    def tool(self, body: Callable[..., Any] = shops.ship, **options: Any) -> Callable[..., Any]:
        """Guard what writes through a connection: ``body(conn, order_id, **rest)``."""
        options = {"key": ("order_id",), "operation": "ship", **options}

        def tool(conn: sa.Connection, /, order_id: str, cents: int = 5) -> Any:
            return body(conn, order_id)

        async def atool(conn: AsyncConnection, /, order_id: str, cents: int = 5) -> Any:
            return await conn.run_sync(body, order_id)

        if returns := inspect.signature(body, eval_str=True).return_annotation:
            for each in (tool, atool):
                each.__annotations__["return"] = returns
        guard: Any = self.ledger.transactional(**options)
        made: Callable[..., Any] = guard(atool if self.is_async else tool)
        return made

    def remote(self, body: Callable[[Effect], str], **options: Any) -> Callable[..., Any]:
        """Guard what asks a provider."""

        def tool(effect: Effect, /, order_id: str) -> str:
            return body(effect)

        async def atool(effect: Effect, /, order_id: str) -> str:
            await asyncio.sleep(0)
            return body(effect)

        guard: Any = self.ledger.remote(key=("order_id",), operation="ask", **options)
        made: Callable[..., Any] = guard(atool if self.is_async else tool)
        return made

    async def ask(self, name: str, *args: Any, **options: Any) -> Any:
        """Call a method of the ledger, or its async twin."""
        return await told(
            getattr(self.ledger, f"a{name}" if self.is_async else name)(*args, **options)
        )

    async def at_once(self, tool: Callable[..., Any], order_id: str, copies: int) -> list[Any]:
        """Call a tool from several threads or tasks at once."""
        one = tool if self.is_async else lambda order: asyncio.to_thread(tool, order)
        return list(await asyncio.gather(*(one(order_id) for _ in range(copies))))


async def told(answer: Any) -> Any:
    """Wait for an answer where it has to be waited for."""
    return await answer if inspect.isawaitable(answer) else answer


@pytest.fixture(params=DRIVERS)
async def business(request: pytest.FixtureRequest) -> Any:
    """A fresh shop, over each driver."""
    database, scheme, is_async = DRIVERS[request.param]
    plain = str(request.getfixturevalue(f"{database}_url"))
    shop = Shop(plain)
    url = f"{scheme}://{plain.split('://', 1)[1]}"
    ledger = Ledger(url)
    yield Business(shop, url, is_async, ledger)
    await ledger.aclose()


async def test_an_effect_and_its_replay(business: Business) -> None:
    """An effect takes hold once, with its result; every further call gets that result."""
    takes = ["session", "connection"]
    tools = [f"async_{name}" if business.is_async else name for name in takes]
    first = await told(shops.tool(business.ledger, tools[0])("O-1"))
    for name in tools:
        assert await told(shops.tool(business.ledger, name)("O-1")) == first
    seen = business.shop.see("O-1")
    assert seen.is_whole()
    assert seen.numbers == [first.number]


async def test_arguments_that_changed(business: Business) -> None:
    """The same key with other arguments is refused by name; the first request stands."""
    tool = business.tool()
    await told(tool("O-1", cents=5))
    with pytest.raises(ArgumentsChanged) as refused:
        await told(tool("O-1", cents=6))
    assert refused.value.changed == ("cents",)
    assert business.shop.see("O-1").is_whole()


async def test_a_refusal_is_final(business: Business) -> None:
    """What the tool refuses is recorded without its rows, and never tried again."""
    calls: list[str] = []

    def refuse(conn: sa.Connection, order_id: str) -> None:
        calls.append(order_id)
        shops.ship(conn, order_id)
        raise OutOfStock(order_id)

    tool = business.tool(refuse, refusals=(OutOfStock,))
    with pytest.raises(OutOfStock):
        await told(tool("O-1"))
    with pytest.raises(RecordedFailure, match="OutOfStock: O-1"):
        await told(tool("O-1"))
    seen = business.shop.see("O-1")
    assert calls == ["O-1"]
    assert seen.numbers == []
    assert [record.state for record in seen.records] == [State.FAILED]


def stumbling() -> Callable[[sa.Connection, str], shops.Shipped]:
    """Make what a tool does that fails the first time, when its rows are written."""
    fails = iter([True, False])

    def stumble(conn: sa.Connection, order_id: str) -> shops.Shipped:
        shipped = shops.ship(conn, order_id)
        if next(fails):
            raise RuntimeError("no")
        return shipped

    return stumble


async def test_an_error_undoes_everything(business: Business) -> None:
    """Any other error leaves nothing behind, and the next call brings the effect about."""
    tool = business.tool(stumbling())
    with pytest.raises(RuntimeError, match="no"):
        await told(tool("O-1"))
    assert business.shop.see("O-1").is_nothing
    await told(tool("O-1"))
    assert business.shop.see("O-1").is_whole()


async def test_a_result_that_cannot_be_stored(business: Business) -> None:
    """An effect whose result cannot be kept is undone before the commit."""

    def ship(conn: sa.Connection, order_id: str) -> Any:
        shops.ship(conn, order_id)
        return Unstorable()

    with pytest.raises(ResultNotStorable) as refused:
        await told(business.tool(ship)("O-1"))
    assert refused.value.effect_happened is False
    assert business.shop.see("O-1").is_nothing


async def test_a_race(business: Business) -> None:
    """Of eight at once one brings the effect about, and all get its result."""
    shipped = await business.at_once(business.tool(), "O-1", 8)
    seen = business.shop.see("O-1")
    assert seen.is_whole()
    assert [each.number for each in shipped] == seen.numbers * 8


async def test_an_unknown_outcome_settled_by_a_person(business: Business) -> None:
    """A lost answer is unknown and never sent again; a person's word settles it for every call."""
    sent: list[str] = []

    def lose(effect: Effect) -> str:
        sent.append(effect.idempotency_key)
        raise TimeoutError

    tool = business.remote(lose, on_unknown="raise")
    for _ in range(2):
        with pytest.raises(OutcomeUnknown):
            await told(tool("O-1"))
    word = {"result": "asked", "by": "ann", "note": "seen in the provider's list"}
    settled = await business.ask("resolve", "ask", "O-1", "succeeded", **word)
    assert (settled.state, settled.resolved_by, settled.note) == (
        State.SUCCEEDED,
        "ann",
        "seen in the provider's list",
    )
    assert await told(tool("O-1")) == "asked"
    assert len(sent) == 1
    assert [record.state for record in business.shop.see("O-1", "ask").records] == [State.SUCCEEDED]


async def test_an_unknown_outcome_that_is_released(business: Business) -> None:
    """Released by a person's word, it is sent once more, as another attempt of the same effect."""
    answers: list[Any] = [TimeoutError(), "asked"]
    keys: list[str] = []

    def answer(effect: Effect) -> str:
        keys.append(effect.idempotency_key)
        told = answers.pop(0)
        if isinstance(told, Exception):
            raise told
        return str(told)

    tool = business.remote(answer, on_unknown="raise")
    with pytest.raises(OutcomeUnknown):
        await told(tool("O-1"))
    await business.ask("resolve", "ask", "O-1", "released")
    assert await told(tool("O-1")) == "asked"
    (record,) = business.shop.see("O-1", "ask").records
    assert (record.state, record.attempts) == (State.SUCCEEDED, 2)
    assert len(keys) == 2


async def test_an_unknown_outcome_that_is_looked_up(business: Business) -> None:
    """A look-up that finds it settles it, within the call that lost the answer or the next."""

    def lose(effect: Effect) -> str:
        raise TimeoutError

    tool = business.remote(lose, lookup=lambda effect: Found("asked"), on_unknown="raise")
    assert await told(tool("O-1")) == "asked"
    assert await told(tool("O-1")) == "asked"
    (record,) = business.shop.see("O-1", "ask").records
    assert record.state is State.SUCCEEDED


async def test_questions(business: Business) -> None:
    """effect() and effects() find records by key, scope, operation, state, thread; latest first."""
    book = business.tool(key=("order_id", "cents"), operation="book", scope=lambda _given: "acme")
    await told(book("O-1"))
    await told(business.tool()("O-1"))
    found = await business.ask("effect", "book", ("O-1", 5), scope="acme")
    assert (found.key, found.scope) == ('["O-1","5"]', "acme")
    assert await business.ask("effect", "book", found.key, scope="acme") == found
    assert await business.ask("effect", "book", ("O-1", 5)) is None
    assert await business.ask("effect", "ship", "O-2") is None
    assert await business.ask("effects", scope="acme", state=State.SUCCEEDED) == [found]
    assert await business.ask("effects", state=State.FAILED) == []
    assert await business.ask("effects", thread_id="thread-1") == []
    both = await business.ask("effects")
    assert [record.operation for record in both] == ["ship", "book"]
    assert await business.ask("effects", limit=1) == both[:1]
    with pytest.raises(ConfigurationError, match="operashun"):
        await business.ask("effects", operashun="book")


ODD_KEYS: Final = (
    *("ключ", "🧾" * 100, "a" * 512, "x'; drop table shipments; --", '%s {} \\ "', "a\tb\nc"),
    *("order", "Order", "ORDER", "order ", "órder"),
)


async def test_keys_of_any_script_and_length(business: Business) -> None:
    """What is allowed in a key is kept and told apart byte by byte, the longest included."""
    tool = business.tool()
    numbers = [(await told(tool(key))).number for key in ODD_KEYS]
    assert [(await told(tool(key))).number for key in ODD_KEYS] == numbers
    assert len(set(numbers)) == len(ODD_KEYS)
    for key in ODD_KEYS:
        assert (await business.ask("effect", "ship", key)).key == key
    assert business.shop.count() == len(ODD_KEYS)


async def test_times(business: Business) -> None:
    """Times are the database's, aware, and finer than a second: leases are reckoned from them."""
    tool = business.tool()
    for number in range(5):
        await told(tool(f"O-{number}"))
    records = await business.ask("effects")
    now = dt.datetime.now(dt.timezone.utc)  # the servers of these tests share this machine's clock
    for record in records:
        assert record.claimed_at.utcoffset() == dt.timedelta(0)
        assert record.began_at <= record.claimed_at <= record.settled_at
        assert abs(now - record.settled_at) < dt.timedelta(minutes=1)
    assert len({record.claimed_at for record in records}) > 1
    assert any(record.claimed_at.microsecond for record in records)


async def test_a_big_result(business: Business) -> None:
    """A result of megabytes comes back as it was, in whatever script it is."""
    big = {"text": "ж🧾\x7f\n" * 250_000, "list": list(range(1000))}

    def ship(conn: sa.Connection, order_id: str) -> dict[str, Any]:
        shops.ship(conn, order_id)
        return big

    tool = business.tool(ship)
    assert await told(tool("O-1")) == big
    assert await told(tool("O-1")) == big
    assert len(business.shop.see("O-1").numbers) == 1


async def test_several_ledgers_in_one_database(business: Business) -> None:
    """Ledgers with other prefixes know nothing of each other; setting up again changes nothing."""
    for prefix in ("one_", "two_"):
        ledger = Ledger(business.url, prefix=prefix)
        other = Business(business.shop, business.url, business.is_async, ledger)
        await other.ask("setup")
        await told(other.tool()("O-1"))
        await told(other.tool()("O-1"))
        await other.ask("setup")
        assert len(await other.ask("effects")) == 1
        await ledger.aclose()
    assert len(business.shop.see("O-1").numbers) == 2
    assert business.shop.see("O-1").records == []  # of the shop's own ledger


@pytest.mark.parametrize(
    "options", [{}, {"isolation_level": "AUTOCOMMIT"}, {"poolclass": sa.NullPool}]
)
async def test_an_engine_of_the_users(business: Business, options: dict[str, Any]) -> None:
    """Over the user's own engine, whatever its mode, claim and rows are one commit."""
    engine = business.engine(**options)
    theirs = Business(business.shop, business.url, business.is_async, Ledger(engine))
    tool = theirs.tool(stumbling())
    with pytest.raises(RuntimeError, match="no"):
        await told(tool("O-1"))
    assert business.shop.see("O-1").is_nothing
    assert await told(tool("O-1")) == await told(tool("O-1"))
    assert business.shop.see("O-1").is_whole()
    await told(engine.dispose())
