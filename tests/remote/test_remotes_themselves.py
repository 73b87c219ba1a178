"""What each remote does with a repeated key, and that each fault on the way to it is what it says.

The tests of remote effects rest on these facts, so they are shown without the library.
"""

import asyncio
import smtplib
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import botocore.exceptions
import nats
import nats.errors
import nats.js.errors
import pytest
import stripe

from tests.support.remotes.aws import AwsRemote
from tests.support.remotes.faults import Mode
from tests.support.remotes.jetstream import JetStreamRemote
from tests.support.remotes.maildev import MailRemote
from tests.support.remotes.proxies import FaultyProxy
from tests.support.remotes.serving import until
from tests.support.remotes.stripes import API_KEY, StripeRemote

CLIENT_WAITS = 1.0  # seconds, where a fault hangs: that lasts much longer
PATIENT = 20.0  # seconds, where an answer is due: a loaded machine is no fault

# fault -> how many effects the remote holds afterwards; the client learns nothing in either case
LOST: list[tuple[Mode, int]] = [
    ("drop_request", 0),
    ("drop_response", 1),
    ("hang_request", 0),
    ("hang", 1),
]


def stripe_client(url: str, *, waits: float = PATIENT, retries: int = 0) -> stripe.StripeClient:
    """The official SDK, told not to retry: its default of two retries would hide each fault."""
    return stripe.StripeClient(
        API_KEY,
        base_addresses={"api": url},
        max_network_retries=retries,
        http_client=stripe.RequestsClient(timeout=waits),
    )


def add_customer(
    url: str, *, key: str = "key-1", email: str = "a@example.com", waits: float = PATIENT
) -> stripe.Customer:
    """One effect at Stripe."""
    return stripe_client(url, waits=waits).v1.customers.create(
        {"email": email, "metadata": {"order": "A-1"}}, {"idempotency_key": key}
    )


class TestStripeThatHonoursKeys:
    """stripe-stateful-mock."""

    def test_a_repeated_key_is_one_object(self, stripe_mock: StripeRemote) -> None:
        """The second answer is the first one's replay, and says so in a header."""
        first = add_customer(stripe_mock.base_url)
        again = add_customer(stripe_mock.base_url)
        assert again.id == first.id
        assert again.last_response is not None
        assert again.last_response.headers["idempotent-replayed"] == "true"
        assert stripe_mock.count("customers") == 1

    def test_a_repeated_key_with_other_parameters_is_refused(
        self, stripe_mock: StripeRemote
    ) -> None:
        """IdempotencyError, status 400, and no second object."""
        add_customer(stripe_mock.base_url)
        with pytest.raises(stripe.IdempotencyError) as refused:
            add_customer(stripe_mock.base_url, email="b@example.com")
        assert refused.value.http_status == 400
        assert stripe_mock.count("customers") == 1

    def test_a_repeated_refund_moves_the_money_once(self, stripe_mock: StripeRemote) -> None:
        """Two partial refunds under one key: one refund, one amount."""
        client = stripe_client(stripe_mock.base_url)
        charge = client.v1.charges.create({"amount": 900, "currency": "eur", "source": "tok_visa"})
        for _ in range(2):
            client.v1.refunds.create(
                {"charge": charge.id, "amount": 300}, {"idempotency_key": "refund-A-1"}
            )
        assert stripe_mock.count("refunds", charge=charge.id) == 1
        assert client.v1.charges.retrieve(charge.id).amount_refunded == 300

    def test_an_object_can_be_looked_up_by_its_metadata(self, stripe_mock: StripeRemote) -> None:
        """What the client wrote into metadata is found again in the remote's list."""
        add_customer(stripe_mock.base_url)
        assert stripe_mock.count("customers", metadata_order="A-1") == 1
        assert stripe_mock.count("customers", metadata_order="A-2") == 0

    def test_reset_forgets_the_keys_too(self, stripe_mock: StripeRemote) -> None:
        """After a reset the same key makes a new object: no test inherits another one's memory."""
        first = add_customer(stripe_mock.base_url)
        stripe_mock.reset()
        assert add_customer(stripe_mock.base_url).id != first.id
        assert stripe_mock.count("customers") == 1

    def test_a_lost_answer_is_made_good_by_the_same_key(
        self, stripe_mock: StripeRemote, stripe_mock_proxy: FaultyProxy
    ) -> None:
        """Sent again with its key after the answer was lost: still one object."""
        stripe_mock_proxy.set("drop_response")
        with pytest.raises(stripe.APIConnectionError):
            add_customer(stripe_mock_proxy.url)
        add_customer(stripe_mock_proxy.url)
        assert stripe_mock.count("customers") == 1


class TestStripeThatIgnoresKeys:
    """localstripe."""

    def test_a_repeated_key_is_two_objects(self, localstripe: StripeRemote) -> None:
        """The key is accepted and ignored."""
        assert add_customer(localstripe.base_url).id != add_customer(localstripe.base_url).id
        assert localstripe.count("customers") == 2

    def test_a_lost_answer_is_made_worse_by_the_same_key(
        self, localstripe: StripeRemote, localstripe_proxy: FaultyProxy
    ) -> None:
        """Sent again after the answer was lost: two objects. Only a look-up could have told."""
        localstripe_proxy.set("drop_response")
        with pytest.raises(stripe.APIConnectionError):
            add_customer(localstripe_proxy.url)
        assert localstripe.count("customers", metadata_order="A-1") == 1
        add_customer(localstripe_proxy.url)
        assert localstripe.count("customers") == 2


class TestFaultsOverHttp:
    """mitmproxy between the SDK and both Stripes."""

    @pytest.fixture(params=["stripe_mock", "localstripe"])
    def way(self, request: pytest.FixtureRequest) -> tuple[StripeRemote, FaultyProxy]:
        """A remote and the way to it."""
        return (
            request.getfixturevalue(request.param),
            request.getfixturevalue(f"{request.param}_proxy"),
        )

    @pytest.mark.parametrize(("mode", "effects"), LOST)
    def test_the_client_cannot_tell_whether_the_remote_acted(
        self, way: tuple[StripeRemote, FaultyProxy], mode: Mode, effects: int
    ) -> None:
        """One exception type and no status, whether the remote holds one object or none."""
        remote, proxy = way
        proxy.set(mode)
        with pytest.raises(stripe.APIConnectionError) as lost:
            add_customer(proxy.url, waits=CLIENT_WAITS)
        proxy.wait_for(mode)
        assert lost.value.http_status is None
        assert (
            lost.value.should_retry
        )  # the SDK means: safe with a key. It says nothing of the effect
        assert remote.count("customers") == effects
        assert [exchange.acted for exchange in proxy.exchanges()] == [effects == 1]

    @pytest.mark.parametrize(("mode", "effects"), [("502_unsent", 0), ("502", 1)])
    def test_a_502_says_nothing_about_the_effect(
        self, way: tuple[StripeRemote, FaultyProxy], mode: Mode, effects: int
    ) -> None:
        """The same APIError, status 502, whether the remote holds one object or none."""
        remote, proxy = way
        proxy.set(mode)
        with pytest.raises(stripe.APIError) as answered:
            add_customer(proxy.url)
        assert answered.value.http_status == 502
        assert remote.count("customers") == effects

    def test_a_late_request_acts_after_the_client_gave_up(
        self, way: tuple[StripeRemote, FaultyProxy]
    ) -> None:
        """An honest "absent" can be overtaken: the request was still on its way."""
        remote, proxy = way
        proxy.set("late")
        with pytest.raises(stripe.APIConnectionError):
            add_customer(proxy.url, waits=CLIENT_WAITS)
        proxy.wait_for("late")
        assert remote.count("customers") == 0
        proxy.set("ok")
        until(lambda: remote.count("customers") == 1, timeout=10, what="the late request")

    def test_a_fault_strikes_as_often_as_ordered(
        self, way: tuple[StripeRemote, FaultyProxy]
    ) -> None:
        """Two faults ordered: the third exchange gets through."""
        remote, proxy = way
        proxy.set("drop_request", times=2)
        for _ in range(2):
            with pytest.raises(stripe.APIConnectionError):
                add_customer(proxy.url)
        add_customer(proxy.url)
        assert remote.count("customers") == 1

    def test_a_fault_leaves_look_ups_alone(self, way: tuple[StripeRemote, FaultyProxy]) -> None:
        """A GET passes and does not use up the fault ordered for the next POST."""
        remote, proxy = way
        proxy.set("drop_response")
        assert not stripe_client(proxy.url).v1.customers.list().data
        with pytest.raises(stripe.APIConnectionError):
            add_customer(proxy.url)
        assert remote.count("customers") == 1

    def test_a_fault_can_be_ordered_from_another_process(
        self, way: tuple[StripeRemote, FaultyProxy]
    ) -> None:
        """The folder is all that a second process needs."""
        remote, proxy = way
        order = (
            "import sys; from pathlib import Path\n"
            "from tests.support.remotes.faults import FaultControl\n"
            "FaultControl(Path(sys.argv[1])).set('drop_request', matching='POST ')"
        )
        root = Path(__file__).parents[2]
        subprocess.run(
            [sys.executable, "-c", order, str(proxy.faults.folder)], check=True, cwd=root
        )
        with pytest.raises(stripe.APIConnectionError):
            add_customer(proxy.url)
        assert remote.count("customers") == 0

    def test_a_client_killed_while_it_waits_leaves_its_effect(
        self, way: tuple[StripeRemote, FaultyProxy]
    ) -> None:
        """SIGKILL after the remote acted, before its answer: one object, and nobody knows it."""
        remote, proxy = way
        proxy.set("hang")
        call = (
            "import sys, httpx\n"
            "httpx.post(sys.argv[1] + '/v1/customers', auth=(sys.argv[2], ''),"
            " data={'email': 'a@example.com'}, timeout=60, trust_env=False)"
        )
        with subprocess.Popen([sys.executable, "-c", call, proxy.url, API_KEY]) as client:
            try:
                assert proxy.wait_for("hang").acted
            finally:
                client.kill()
        assert client.returncode == -9
        assert remote.count("customers") == 1

    def test_a_stopped_remote_refuses_and_comes_back(
        self, way: tuple[StripeRemote, FaultyProxy]
    ) -> None:
        """Connection refused: certainly no effect, and the same exception type as a lost answer."""
        remote, _ = way
        remote.server.stop()
        with pytest.raises(stripe.APIConnectionError):
            add_customer(remote.base_url)
        remote.server.start()
        assert remote.count("customers") == 0

    def test_a_refused_connection_may_be_the_sdks_second_attempt(
        self, way: tuple[StripeRemote, FaultyProxy]
    ) -> None:
        """With the SDK's retries on, "could not connect" does not mean that nothing was sent."""
        remote, proxy = way
        proxy.set("hang")
        retrying = stripe_client(proxy.url, waits=30, retries=1)
        with ThreadPoolExecutor(1) as thread:
            call = thread.submit(retrying.v1.customers.create, {"email": "a@example.com"})
            proxy.wait_for("hang")
            proxy.server.kill()  # breaks the first attempt off, and refuses the second
            error = call.exception(timeout=30)
        proxy.server.start()
        assert isinstance(error, stripe.APIConnectionError)
        assert "Connection refused" in str(error)
        assert remote.count("customers") == 1

    def test_a_refusal_passes_through_and_changes_nothing(
        self, way: tuple[StripeRemote, FaultyProxy]
    ) -> None:
        """A 4xx is the remote's own "no"."""
        remote, proxy = way
        with pytest.raises(stripe.InvalidRequestError) as refused:
            stripe_client(proxy.url).v1.refunds.create({"charge": "ch_nonexistent"})
        assert refused.value.http_status in (400, 404)
        assert remote.count("refunds") == 0


def make_table(aws: AwsRemote) -> None:
    """A DynamoDB table keyed by operation."""
    aws.client("dynamodb").create_table(
        TableName="payments",
        KeySchema=[{"AttributeName": "operation", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "operation", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )


def put_once(dynamodb: Any, operation: str = "pay-A-1") -> None:
    """The conditional put: the key is the item's own."""
    dynamodb.put_item(
        TableName="payments",
        Item={"operation": {"S": operation}},
        ConditionExpression="attribute_not_exists(operation)",
    )


def make_fifo(aws: AwsRemote) -> str:
    """A FIFO queue; returns its URL."""
    made = aws.client("sqs").create_queue(QueueName="out.fifo", Attributes={"FifoQueue": "true"})
    return str(made["QueueUrl"])


def send(sqs: Any, queue_url: str, key: str = "msg-A-1") -> str:
    """Sends with a deduplication id; returns the message's id."""
    sent = sqs.send_message(
        QueueUrl=queue_url, MessageBody="hello", MessageGroupId="g", MessageDeduplicationId=key
    )
    return str(sent["MessageId"])


class TestDynamoDB:
    """moto: the conditional put."""

    def test_a_conditional_put_holds_for_good(self, aws: AwsRemote) -> None:
        """The second put is refused with a code that means "already there"; one item."""
        make_table(aws)
        put_once(aws.client("dynamodb"))
        with pytest.raises(botocore.exceptions.ClientError) as refused:
            put_once(aws.client("dynamodb"))
        assert refused.value.response["Error"]["Code"] == "ConditionalCheckFailedException"
        assert aws.count(table="payments") == 1

    @pytest.mark.parametrize(("mode", "effects"), LOST)
    def test_the_client_cannot_tell_whether_the_remote_acted(
        self, aws: AwsRemote, aws_proxy: FaultyProxy, mode: Mode, effects: int
    ) -> None:
        """Both a lost request and a lost answer are an HTTPClientError without a response."""
        make_table(aws)
        aws_proxy.set(mode, matching="PutItem")
        client = aws.client("dynamodb", endpoint_url=aws_proxy.url, read_timeout=CLIENT_WAITS)
        with pytest.raises(botocore.exceptions.HTTPClientError):
            put_once(client)
        aws_proxy.wait_for(mode)
        assert aws.count(table="payments") == effects

    def test_a_502_is_a_client_error_with_a_status(
        self, aws: AwsRemote, aws_proxy: FaultyProxy
    ) -> None:
        """ClientError is no refusal by itself: its HTTP status must be read."""
        make_table(aws)
        aws_proxy.set("502", matching="PutItem")
        with pytest.raises(botocore.exceptions.ClientError) as answered:
            put_once(aws.client("dynamodb", endpoint_url=aws_proxy.url))
        assert answered.value.response["ResponseMetadata"]["HTTPStatusCode"] == 502
        assert aws.count(table="payments") == 1

    def test_the_sdks_own_retry_turns_a_success_into_a_refusal(
        self, aws: AwsRemote, aws_proxy: FaultyProxy
    ) -> None:
        """Answer lost, SDK sends again by itself: it reports "already there" for our own item."""
        make_table(aws)
        aws_proxy.set("drop_response", matching="PutItem")
        client = aws.client(
            "dynamodb", endpoint_url=aws_proxy.url, retries={"total_max_attempts": 2}
        )
        with pytest.raises(botocore.exceptions.ClientError) as refused:
            put_once(client)
        assert refused.value.response["Error"]["Code"] == "ConditionalCheckFailedException"
        assert aws.count(table="payments") == 1


class TestSqsFifo:
    """moto: a memory that ends."""

    def test_a_repeated_id_is_one_message_while_it_lies_there(self, aws: AwsRemote) -> None:
        """Sent twice under one deduplication id: one message."""
        queue_url = make_fifo(aws)
        for _ in range(2):
            send(aws.client("sqs"), queue_url)
        assert aws.count(queue_url=queue_url) == 1

    def test_the_memory_ends_when_the_message_is_deleted(self, aws: AwsRemote) -> None:
        """Delivered, deleted, sent again: delivered twice. The key alone no longer protects."""
        queue_url, sqs = make_fifo(aws), aws.client("sqs")
        delivered = []
        for _ in range(2):
            send(sqs, queue_url)
            (message,) = sqs.receive_message(QueueUrl=queue_url)["Messages"]
            delivered.append(message["MessageId"])
            sqs.delete_message(QueueUrl=queue_url, ReceiptHandle=message["ReceiptHandle"])
        assert len(set(delivered)) == 2

    @pytest.mark.parametrize(("mode", "effects"), LOST)
    def test_the_client_cannot_tell_whether_the_remote_acted(
        self, aws: AwsRemote, aws_proxy: FaultyProxy, mode: Mode, effects: int
    ) -> None:
        """The queue holds one message or none behind the same exception."""
        queue_url = make_fifo(aws)
        aws_proxy.set(mode, matching="SendMessage")
        client = aws.client("sqs", endpoint_url=aws_proxy.url, read_timeout=CLIENT_WAITS)
        with pytest.raises(botocore.exceptions.HTTPClientError):
            send(client, queue_url.replace(aws.base_url, aws_proxy.url))
        aws_proxy.wait_for(mode)
        assert aws.count(queue_url=queue_url) == effects


async def with_stream(url: str, act: Callable[[Any], Any], *, window: float = 120.0) -> list[Any]:
    """Connects to NATS without reconnecting, makes the stream, and publishes."""
    connection = await nats.connect(url, allow_reconnect=False, connect_timeout=5)
    try:
        stream = connection.jetstream(timeout=PATIENT)
        await stream.add_stream(name="ORDERS", subjects=["orders.>"], duplicate_window=window)
        return [await publish for publish in act(stream)]
    finally:
        await connection.close()


def publish_in_window(stream: Any, key: str = "pay-A-1", *, waits: float = PATIENT) -> Any:
    """Publishes with Nats-Msg-Id."""
    return stream.publish("orders.paid", b"1", timeout=waits, headers={"Nats-Msg-Id": key})


def publish_for_good(stream: Any) -> Any:
    """Publishes on a subject of its own, which must be empty."""
    headers = {"Nats-Expected-Last-Subject-Sequence": "0"}
    return stream.publish("orders.pay-A-1", b"1", headers=headers)


class TestJetStream:
    """A deduplication window, and the expected-sequence form that lasts."""

    async def test_a_repeated_id_is_one_message_inside_the_window(
        self, jetstream: JetStreamRemote
    ) -> None:
        """The second acknowledgement says duplicate."""
        first, again = await with_stream(
            jetstream.base_url, lambda s: [publish_in_window(s), publish_in_window(s)]
        )
        assert (first.duplicate, again.duplicate) == (None, True)
        assert jetstream.count("ORDERS") == 1

    async def test_the_window_ends(self, jetstream: JetStreamRemote) -> None:
        """Once the window is over, the same id is a second message."""
        connection = await nats.connect(jetstream.base_url)
        stream = connection.jetstream()
        await stream.add_stream(name="ORDERS", subjects=["orders.>"], duplicate_window=0.1)
        await publish_in_window(stream)

        async def forgotten() -> None:
            while (await publish_in_window(stream)).duplicate:
                pass  # each round waits for the server's answer

        await asyncio.wait_for(forgotten(), timeout=10)
        await connection.close()
        assert jetstream.count("ORDERS") == 2

    async def test_an_expected_sequence_of_zero_holds_for_good(
        self, jetstream: JetStreamRemote
    ) -> None:
        """On a subject per operation the second publish is refused, whatever the window."""
        with pytest.raises(nats.js.errors.BadRequestError) as refused:
            await with_stream(
                jetstream.base_url,
                lambda s: [publish_for_good(s), publish_for_good(s)],
                window=0.1,
            )
        assert refused.value.err_code == 10071
        assert jetstream.count("ORDERS") == 1

    @pytest.mark.parametrize(("mode", "effects"), LOST)
    async def test_the_client_cannot_tell_whether_the_remote_acted(
        self,
        jetstream: JetStreamRemote,
        jetstream_proxy: FaultyProxy,
        mode: Mode,
        effects: int,
    ) -> None:
        """The stream holds one message or none behind the same exception."""
        jetstream_proxy.set(mode, matching="PUB orders.")
        with pytest.raises(nats.errors.Error):
            await with_stream(
                jetstream_proxy.url, lambda s: [publish_in_window(s, waits=CLIENT_WAITS)]
            )
        jetstream_proxy.wait_for(mode)
        assert jetstream.count("ORDERS") == effects


def send_mail(port: int, message_id: str = "<A-1@example.com>", *, waits: float = PATIENT) -> None:
    """One mail over SMTP."""
    mail = EmailMessage()
    mail["From"], mail["To"], mail["Message-ID"] = "a@example.com", "b@example.com", message_id
    mail["Subject"] = "Your refund"
    mail.set_content("It is on its way.")
    with smtplib.SMTP("127.0.0.1", port, timeout=waits) as smtp:
        smtp.send_message(mail)


class TestMail:
    """MailDev: no keys, but a look-up by Message-ID."""

    def test_a_repeated_message_id_is_two_mails(self, mailbox: MailRemote) -> None:
        """SMTP knows no keys."""
        for _ in range(2):
            send_mail(mailbox.port)
        assert mailbox.count() == 2

    def test_a_mail_can_be_looked_up_by_its_message_id(self, mailbox: MailRemote) -> None:
        """The remote's own API finds it, and finds no other."""
        send_mail(mailbox.port)
        send_mail(mailbox.port, "<A-2@example.com>")
        assert mailbox.count("<A-1@example.com>") == 1
        assert mailbox.count("<A-3@example.com>") == 0

    @pytest.mark.parametrize(("mode", "effects"), LOST)
    def test_the_client_cannot_tell_whether_the_remote_acted(
        self, mailbox: MailRemote, mailbox_proxy: FaultyProxy, mode: Mode, effects: int
    ) -> None:
        """A lost end of text and a lost last 250 look alike; only the mailbox tells."""
        mailbox_proxy.set(mode)
        with pytest.raises((smtplib.SMTPServerDisconnected, OSError)):
            send_mail(mailbox_proxy.port, waits=CLIENT_WAITS)
        mailbox_proxy.wait_for(mode)
        assert mailbox.count("<A-1@example.com>") == effects

    def test_a_proxy_refuses_a_fault_it_cannot_carry_out(self, mailbox_proxy: FaultyProxy) -> None:
        """SMTP has no 502: a test that orders one learns it at once."""
        with pytest.raises(ValueError, match="not one of"):
            mailbox_proxy.set("502")


def test_the_remotes_listen_on_loopback_only(
    stripe_mock: StripeRemote,
    localstripe_proxy: FaultyProxy,
    aws: AwsRemote,
    jetstream: JetStreamRemote,
    mailbox_proxy: FaultyProxy,
    mailbox: MailRemote,
) -> None:
    """A test server is no business of the network's: bound to 127.0.0.1, not to every address."""
    servers = (stripe_mock, localstripe_proxy, aws, jetstream, mailbox_proxy, mailbox)
    for port in [server.port for server in servers]:
        for address in ("127.0.0.2", "::1"):
            with pytest.raises(OSError):
                socket.create_connection((address, port), timeout=1)
