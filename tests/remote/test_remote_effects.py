"""Every remote under every fault and every kill: never two effects, never a lie, never stuck."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from langgraph_idem import Ledger
from langgraph_idem.effects import State
from tests.support.provider import Witness
from tests.support.racers import Racers
from tests.support.remote_effects import LEASE, OPERATION, REMOTES, Place, told
from tests.support.remotes.faults import Mode
from tests.support.remotes.proxies import FaultyProxy
from tests.support.remotes.serving import until
from tests.support.remotes.stripes import StripeRemote

KEY = "A-1"
FAULTS: tuple[Mode, ...] = ("drop_response", "drop_request", "hang", "502", "late")
"""The answer swallowed, the request dropped, no answer in time, a gateway's error, a request that
arrives after the client gave up."""
KILLS = {"before the call": 8, "after the call": 9, "before the outcome is recorded": 14}
"""Boundaries of a fresh effect (see the crashes at every step)."""

Named = Callable[[str], Any]


@dataclass(frozen=True)
class Way:
    """A remote with the way to it."""

    at: Place
    proxy: FaultyProxy
    matching: str
    count: Callable[[], int]

    def strike(self, mode: Mode) -> None:
        """Order a fault for the next effect."""
        if self.proxy.modes and mode not in self.proxy.modes:
            pytest.skip(f"not applicable: no {mode} on this protocol")
        self.proxy.set(mode, matching=self.matching)


def _stripe(name: str) -> Callable[[Named], Way]:
    def way(fixture: Named) -> Way:
        remote: StripeRemote = fixture(name)
        proxy: FaultyProxy = fixture(f"{name}_proxy")
        at = {"url": proxy.url, "direct": remote.base_url}
        return Way(at, proxy, "POST ", lambda: remote.count("customers"))

    return way


def _dynamodb(fixture: Named) -> Way:
    aws, proxy = fixture("aws"), fixture("aws_proxy")
    aws.client("dynamodb").create_table(
        TableName="payments",
        KeySchema=[{"AttributeName": "operation", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "operation", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    return Way({"url": proxy.url}, proxy, "PutItem", lambda: aws.count(table="payments"))


def _sqs(fixture: Named) -> Way:
    aws, proxy = fixture("aws"), fixture("aws_proxy")
    made = aws.client("sqs").create_queue(QueueName="out.fifo", Attributes={"FifoQueue": "true"})
    queue = str(made["QueueUrl"])
    at = {"url": proxy.url, "queue": queue.replace(aws.base_url, proxy.url)}
    return Way(at, proxy, "SendMessage", lambda: aws.count(queue_url=queue))


def _jetstream(fixture: Named) -> Way:
    import asyncio

    import nats

    remote, proxy = fixture("jetstream"), fixture("jetstream_proxy")

    async def make_stream() -> None:
        connection = await nats.connect(remote.base_url)
        stream = connection.jetstream()
        await stream.add_stream(name="ORDERS", subjects=["orders.>"], duplicate_window=120)
        await connection.close()

    asyncio.run(make_stream())
    at = {"url": proxy.url, "direct": remote.base_url}
    return Way(at, proxy, "PUB orders.", lambda: remote.count("ORDERS"))


def _mail(fixture: Named) -> Way:
    remote, proxy = fixture("mailbox"), fixture("mailbox_proxy")
    at = {"port": proxy.port, "direct": remote.base_url}
    return Way(at, proxy, proxy.matching, remote.count)


WAYS: dict[str, Callable[[Named], Way]] = {
    "stripe that honours keys": _stripe("stripe_mock"),
    "stripe that ignores keys, looked up": _stripe("localstripe"),
    "stripe that ignores keys, opaque": _stripe("localstripe"),
    "dynamodb": _dynamodb,
    "sqs fifo": _sqs,
    "jetstream's window": _jetstream,
    "jetstream's expected sequence": _jetstream,
    "mail": _mail,
}


@pytest.fixture
def way(remote: str, request: pytest.FixtureRequest) -> Way:
    """A remote, empty, with a clear way to it."""
    made = WAYS[remote](request.getfixturevalue)
    made.at.update(remote=remote, faults=str(made.proxy.faults.folder))
    return made


@pytest.fixture
def witness(sqlite_url: str) -> Witness:
    """A fresh ledger, and somebody to look at it."""
    return Witness(sqlite_url)


@pytest.fixture(scope="session")
def racers() -> Iterator[Racers]:
    """Real processes."""
    with Racers() as started:
        yield started


EVERY_REMOTE = pytest.mark.parametrize("remote", REMOTES)


def _true(witness: Witness, way: Way) -> None:
    """Assert, in the remote's own data, that nothing happened twice and nothing is claimed."""
    count, state = way.count(), witness.state(KEY, OPERATION)
    assert count <= 1
    assert state is not State.FAILED
    assert state is not State.SUCCEEDED or count == 1


def _is_settled(witness: Witness, way: Way) -> None:
    """Call again until it is settled, by a person where only a person can know."""
    answer = ""
    for _ in range(3):
        if witness.state(KEY, OPERATION) in {State.CLAIMED, State.UNKNOWN}:
            witness.age(KEY, 2 * LEASE, operation=OPERATION)
        answer = told(witness.url, way.at, KEY)
        _true(witness, way)
    if answer == "OutcomeUnknown":
        assert REMOTES[way.at["remote"]][1] == {}, "only an opaque remote may need a person"
        word = "succeeded" if way.count() else "released"
        with Ledger(witness.url) as ledger:
            ledger.resolve(OPERATION, KEY, word, by="Ann")
        told(witness.url, way.at, KEY)
    assert (witness.state(KEY, OPERATION), way.count()) == (State.SUCCEEDED, 1)


@EVERY_REMOTE
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_on_the_way(way: Way, witness: Witness, fault: Mode) -> None:
    """Whatever the network does to one request: one effect in the end, and a ledger that knows."""
    way.strike(fault)
    told(witness.url, way.at, KEY)
    assert way.proxy.exchanges()[0].mode == fault, "the fault struck"
    way.proxy.set("ok", matching=way.matching)
    if fault == "late":
        until(lambda: any(e.acted for e in _late(way)), timeout=10, what="the late request")
    _true(witness, way)
    _is_settled(witness, way)


def _late(way: Way) -> list[Any]:
    return [exchange for exchange in way.proxy.exchanges() if exchange.mode == "late"]


@EVERY_REMOTE
@pytest.mark.parametrize("place", [*KILLS, "during the call"])
def test_a_killed_worker(way: Way, witness: Witness, racers: Racers, place: str) -> None:
    """Killed at any moment around the call: the next worker settles it, or a person does."""
    if place not in KILLS:
        way.strike("hang")
    what: dict[str, Any] = {"at": way.at, "key": KEY, "place": KILLS.get(place)}
    (finish,) = racers.run("tests.support.remote_effects:die", url=witness.url, **what)
    assert finish.killed_by == signal.SIGKILL, finish
    way.proxy.clear()
    assert witness.state(KEY, OPERATION) is State.CLAIMED
    assert way.count() == (0 if place == "before the call" else 1)
    assert told(witness.url, way.at, KEY) == "EffectBusy", "its lease holds"
    _true(witness, way)
    _is_settled(witness, way)
