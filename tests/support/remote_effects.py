"""One tool for each real remote: how it acts, how it is looked up, what it remembers."""

from __future__ import annotations

import asyncio
import smtplib
import threading
from collections.abc import Callable
from email.message import EmailMessage
from pathlib import Path
from typing import Any, Final

import httpx

from langgraph_idem import ABSENT, Effect, EffectBusy, Found, Ledger, OutcomeUnknown
from tests.support import crash
from tests.support.remotes.faults import FaultControl
from tests.support.remotes.stripes import API_KEY

WAITS: Final = 0.7
"""Seconds that the clients wait for an answer."""
LEASE: Final = 3600.0
OPERATION: Final = "act"

Place = dict[str, Any]
"""Where a remote is: ``remote`` (its name below), ``url`` and ``port`` of the way to it, ``direct``
for look-ups, ``faults`` (the proxy's folder), and what else the remote needs."""


def _stripe(url: str) -> Any:
    import stripe

    return stripe.StripeClient(
        API_KEY,
        base_addresses={"api": url},
        max_network_retries=0,
        http_client=stripe.RequestsClient(timeout=WAITS),
    )


def _charge(at: Place, effect: Effect) -> str:
    given = {"email": "a@example.com", "metadata": {"operation": effect.idempotency_key}}
    made = _stripe(at["url"]).v1.customers.create(
        given, {"idempotency_key": effect.idempotency_key}
    )
    return str(made.id)


def _find_charge(at: Place, effect: Effect) -> Any:
    listed = _stripe(at["direct"]).v1.customers.list({"limit": 100})
    found = [c for c in listed.data if c.metadata["operation"] == effect.idempotency_key]
    return Found(str(found[0].id)) if found else ABSENT


def _aws(at: Place, service: str) -> Any:
    import boto3
    from botocore.config import Config

    make: Any = boto3.client
    return make(
        service,
        endpoint_url=at["url"],
        region_name="us-east-1",
        aws_access_key_id="testing",
        aws_secret_access_key="testing",
        config=Config(retries={"total_max_attempts": 1}, read_timeout=WAITS),
    )


def _put(at: Place, effect: Effect) -> str:
    _aws(at, "dynamodb").put_item(
        TableName="payments",
        Item={"operation": {"S": effect.idempotency_key}},
        ConditionExpression="attribute_not_exists(operation)",
    )
    return effect.idempotency_key


def _get(at: Place, effect: Effect) -> Any:
    key = {"operation": {"S": effect.idempotency_key}}
    found = _aws(at, "dynamodb").get_item(TableName="payments", Key=key, ConsistentRead=True)
    return Found(effect.idempotency_key) if "Item" in found else ABSENT


def _enqueue(at: Place, effect: Effect) -> str:
    sent = _aws(at, "sqs").send_message(
        QueueUrl=at["queue"],
        MessageBody="hello",
        MessageGroupId="g",
        MessageDeduplicationId=effect.idempotency_key[-100:],
    )
    return str(sent["MessageId"])


async def _with_stream(url: str, use: Callable[[Any], Any]) -> Any:
    import nats

    connection = await nats.connect(url, allow_reconnect=False, connect_timeout=5)
    try:
        return await use(connection.jetstream(timeout=WAITS))
    finally:
        await connection.close()


def _subject(effect: Effect) -> str:
    return f"orders.{effect.idempotency_uuid}"


def _publish(headers: Callable[[Effect], dict[str, str]]) -> Callable[[Place, Effect], str]:
    def publish(at: Place, effect: Effect) -> str:
        def use(stream: Any) -> Any:
            return stream.publish(_subject(effect), b"1", headers=headers(effect))

        return str(asyncio.run(_with_stream(at["url"], use)).stream)

    return publish


def _last(at: Place, effect: Effect) -> Any:
    from nats.js.errors import NotFoundError

    async def use(stream: Any) -> Any:
        try:
            await stream.get_last_msg("ORDERS", _subject(effect))
        except NotFoundError:
            return ABSENT
        return Found("ORDERS")

    return asyncio.run(_with_stream(at["direct"], use))


def _message_id(effect: Effect) -> str:
    return f"<{effect.idempotency_uuid}@example.com>"


def _mail(at: Place, effect: Effect) -> str:
    mail = EmailMessage()
    mail["From"], mail["To"], mail["Subject"] = "a@example.com", "b@example.com", "Your refund"
    mail["Message-ID"] = _message_id(effect)
    mail.set_content("It is on its way.")
    with smtplib.SMTP("127.0.0.1", at["port"], timeout=WAITS) as smtp:
        smtp.send_message(mail)
    return _message_id(effect)


def _find_mail(at: Place, effect: Effect) -> Any:
    query = {"headers.message-id": _message_id(effect)}
    found = httpx.get(f"{at['direct']}/api/email", params=query, trust_env=False)
    return Found(_message_id(effect)) if found.raise_for_status().json() else ABSENT


REMOTES: Final[dict[str, tuple[Callable[[Place, Effect], str], dict[str, Any]]]] = {
    "stripe that honours keys": (_charge, {"provider_keeps_key": 24 * 3600}),
    "stripe that ignores keys, looked up": (_charge, {"lookup": _find_charge}),
    "stripe that ignores keys, opaque": (_charge, {}),
    "dynamodb": (_put, {"lookup": _get}),
    "sqs fifo": (_enqueue, {"provider_keeps_key": 300}),
    "jetstream's window": (
        _publish(lambda effect: {"Nats-Msg-Id": effect.idempotency_key}),
        {"provider_keeps_key": 120},
    ),
    "jetstream's expected sequence": (
        _publish(lambda _effect: {"Nats-Expected-Last-Subject-Sequence": "0"}),
        {"lookup": _last},
    ),
    "mail": (_mail, {"lookup": _find_mail}),
}
"""How each acts, and what the ledger is told of it."""


def told(url: str, at: Place, key: str) -> str:
    """Call once; return the result, or the name of what kept it away."""
    act, able = REMOTES[at["remote"]]
    options: dict[str, Any] = {"lease": LEASE, "on_unknown": "raise", **able}
    if "lookup" in able:
        options["lookup"] = lambda effect: able["lookup"](at, effect)
    with Ledger(url, wait=0) as ledger:

        @ledger.remote(key=("key",), operation=OPERATION, **options)
        def tool(effect: Effect, /, key: str) -> str:
            return act(at, effect)

        try:
            return tool(key)
        except (OutcomeUnknown, EffectBusy) as error:
            return type(error).__name__


def die(url: str, racer: int, at: Place, key: str, place: int | None) -> str:
    """Call once in a process that is killed. A job of the racers.

    Args:
        url: The ledger's database.
        racer: Unused.
        at: The remote.
        key: Which effect.
        place: The boundary to die at; None: while the remote's answer is being waited for.

    """
    if place is not None:
        with crash.fused(crash.Fuse(place, crash.kill)):
            return told(url, at, key)

    def kill_when_struck() -> None:
        FaultControl(Path(at["faults"])).wait_for("hang")
        crash.kill()

    threading.Thread(target=kill_when_struck, daemon=True).start()
    return told(url, at, key)
