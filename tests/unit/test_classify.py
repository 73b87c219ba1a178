"""What the exceptions of real client libraries say, each raised by the library itself."""

from __future__ import annotations

import asyncio
import contextlib
import json
import smtplib
import socket
import struct
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import boto3
import botocore.config
import httpx
import nats.errors
import nats.js.errors
import pytest
import requests
import stripe
import tenacity
import urllib3
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

from langgraph_idem.classify import classify
from langgraph_idem.effects import Verdict

# Stripe's client for httpx sets httpx up in a way that httpx has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

NOT_SENT, REFUSED, UNKNOWN = Verdict.NOT_SENT, Verdict.REFUSED, Verdict.UNKNOWN
WAITS = 0.4
"""Seconds that the clients wait for a connection or an answer."""

# --- clients --------------------------------------------------------------------------------------


def with_httpx(url: str) -> None:
    """One POST."""
    httpx.post(url, timeout=WAITS, trust_env=False).raise_for_status()


def with_async_httpx(url: str) -> None:
    """One POST on a loop."""

    async def post() -> None:
        async with httpx.AsyncClient(timeout=WAITS, trust_env=False) as client:
            (await client.post(url)).raise_for_status()

    asyncio.run(post())


def with_requests(url: str) -> None:
    """One POST."""
    requests.post(url, timeout=WAITS).raise_for_status()


def with_urllib3(url: str) -> None:
    """One POST, whose status urllib3 leaves to the caller."""
    with urllib3.PoolManager(retries=False, timeout=WAITS) as pool:
        pool.request("POST", url)


def with_urllib(url: str) -> None:
    """One POST by the standard library."""
    urllib.request.urlopen(url, b"a=b", timeout=WAITS).close()  # noqa: S310 - loopback


def with_stripe(url: str, retries: int = 0) -> None:
    """One customer."""
    stripe.StripeClient(
        "sk_test_1",
        base_addresses={"api": url},
        max_network_retries=retries,
        http_client=stripe.RequestsClient(timeout=WAITS),
    ).v1.customers.create({"email": "a@example.com"})


def with_async_stripe(url: str) -> None:
    """One customer, on a loop."""

    async def create() -> None:
        client = stripe.StripeClient(
            "sk_test_1",
            base_addresses={"api": url},
            max_network_retries=0,
            http_client=stripe.HTTPXClient(timeout=WAITS),
        )
        await client.v1.customers.create_async({"email": "a@example.com"})

    asyncio.run(create())


def with_botocore(url: str, attempts: int = 1) -> None:
    """One item."""
    config = botocore.config.Config(
        retries={"total_max_attempts": attempts}, read_timeout=WAITS, connect_timeout=WAITS
    )
    make: Any = boto3.client
    make(
        "dynamodb",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id="a",
        aws_secret_access_key="b",
        config=config,
    ).put_item(TableName="payments", Item={"operation": {"S": "x"}})


CLIENTS = {
    "httpx": with_httpx,
    "httpx async": with_async_httpx,
    "requests": with_requests,
    "urllib3": with_urllib3,
    "urllib": with_urllib,
    "stripe": with_stripe,
    "stripe async": with_async_stripe,
    "botocore": with_botocore,
}
EVERY_CLIENT = pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS.keys())


def said(act: Callable[[], object]) -> Verdict:
    """Classify what a call raises."""
    with pytest.raises(Exception) as raised:
        act()
    verdict = classify(raised.value)
    if isinstance(raised.value, urllib.error.HTTPError):
        raised.value.close()
    return verdict


# --- servers --------------------------------------------------------------------------------------


@pytest.fixture
def dead() -> str:
    """The address of a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


@contextlib.contextmanager
def _listening(serve: Callable[[socket.socket], None]) -> Iterator[str]:
    """A TCP server that does one thing with each connection."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(8)

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    serve(listener.accept()[0])

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(5)


def _reset(connection: socket.socket) -> None:
    """Read a request and cut the connection hard: the request has arrived."""
    connection.recv(65536)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


@pytest.fixture
def resetting() -> Iterator[str]:
    """A server that takes requests in and resets."""
    with _listening(_reset) as url:
        yield url


@pytest.fixture
def silent() -> Iterator[str]:
    """A server that takes requests in and never answers."""
    kept: list[socket.socket] = []
    with _listening(kept.append) as url:
        yield url
    for connection in kept:
        connection.close()


@pytest.fixture
def answering() -> Iterator[Callable[..., str]]:
    """Makes servers that answer every POST with one status."""
    servers = []

    def start(status: int, body: bytes = b"{}", **headers: str) -> str:
        class Answers(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("content-length", 0)))
                self.send_response(status)
                for name, value in {"content-length": str(len(body)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_args: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_address[1]}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def dies_after_first() -> Iterator[str]:
    """A server that takes one request in, resets it, and is gone for the second."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)

        def once() -> None:
            connection, _ = listener.accept()
            listener.close()
            _reset(connection)

        thread = threading.Thread(target=once, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    thread.join(5)


# --- the rules ------------------------------------------------------------------------------------


@EVERY_CLIENT
def test_a_refused_connection_was_not_sent(client: Callable[[str], None], dead: str) -> None:
    """Nobody listens: the world is unchanged, and it may be tried again."""
    assert said(lambda: client(dead)) is NOT_SENT


@EVERY_CLIENT
def test_a_name_that_does_not_resolve_was_not_sent(client: Callable[[str], None]) -> None:
    """There is nobody to send to."""
    assert said(lambda: client("http://nothing.invalid")) is NOT_SENT


@EVERY_CLIENT
def test_a_reset_is_unknown(client: Callable[[str], None], resetting: str) -> None:
    """The request arrived; what became of it nobody heard."""
    assert said(lambda: client(resetting)) is UNKNOWN


@EVERY_CLIENT
def test_a_read_time_out_is_unknown(client: Callable[[str], None], silent: str) -> None:
    """A time-out is not "no"."""
    assert said(lambda: client(silent)) is UNKNOWN


WITH_STATUS = pytest.mark.parametrize(
    "client", [with_httpx, with_async_httpx, with_requests, with_urllib, with_stripe, with_botocore]
)


@WITH_STATUS
@pytest.mark.parametrize(
    ("status", "verdict"),
    [
        *((status, REFUSED) for status in (400, 402, 404, 410, 422)),
        *((status, NOT_SENT) for status in (401, 403, 425, 429)),
        *((status, UNKNOWN) for status in (408, 409, 500, 502, 503, 504)),
    ],
)
def test_what_a_status_says(
    client: Callable[[str], None],
    status: int,
    verdict: Verdict,
    answering: Callable[..., str],
) -> None:
    """4xx is a no, but for those that turn away unread or hint at a twin; 5xx is no answer."""
    body = json.dumps({"error": {"type": "api_error", "message": "m"}}).encode()
    assert said(lambda: client(answering(status, body))) is verdict


@pytest.mark.parametrize(
    ("code", "verdict"),
    [
        ("ValidationException", REFUSED),
        ("ConditionalCheckFailedException", REFUSED),
        ("ThrottlingException", NOT_SENT),
        ("ProvisionedThroughputExceededException", NOT_SENT),
        ("IdempotentParameterMismatchException", UNKNOWN),
        ("TransactionInProgressException", UNKNOWN),
    ],
)
def test_what_amazons_codes_say(code: str, verdict: Verdict, answering: Callable[..., str]) -> None:
    """All of them are 400; throttling turned it away, a mismatch proves an earlier request."""
    body = json.dumps({"__type": f"com.amazonaws#{code}", "message": "m"}).encode()
    assert said(lambda: with_botocore(answering(400, body))) is verdict


@pytest.mark.parametrize(
    ("kind", "status", "verdict"),
    [
        ("idempotency_error", 400, UNKNOWN),
        ("invalid_request_error", 400, REFUSED),
        ("card_error", 402, REFUSED),
    ],
)
def test_what_stripes_errors_say(
    kind: str, status: int, verdict: Verdict, answering: Callable[..., str]
) -> None:
    """An idempotency error says that an earlier request took the key, not that nothing happened."""
    body = json.dumps({"error": {"type": kind, "message": "m"}}).encode()
    assert said(lambda: with_stripe(answering(status, body))) is verdict


def test_stripe_turns_requests_away_under_two_statuses(answering: Callable[..., str]) -> None:
    """A rate limit in a 400 is turned away unread like a 429."""
    body = json.dumps({"error": {"code": "rate_limit", "message": "m"}}).encode()
    assert said(lambda: with_stripe(answering(400, body))) is NOT_SENT


def _requests_that_retries(url: str) -> None:
    with requests.Session() as session:
        retries = Retry(2, allowed_methods=None, backoff_factor=0)
        session.mount("http://", HTTPAdapter(max_retries=retries))
        session.post(url, timeout=WAITS)


def _tenacious(url: str) -> None:
    tenacity.Retrying(stop=tenacity.stop_after_attempt(2), reraise=True)(with_httpx, url)


@pytest.mark.parametrize(
    "client",
    [
        lambda url: with_stripe(url, retries=1),
        lambda url: with_botocore(url, attempts=2),
        _requests_that_retries,
        _tenacious,
    ],
    ids=["stripe", "botocore", "requests", "tenacity"],
)
def test_a_refused_second_sending_is_unknown(
    client: Callable[[str], None], dies_after_first: str
) -> None:
    """The SDK sent twice by itself: that the second was refused says nothing about the first."""
    assert said(lambda: client(dies_after_first)) is UNKNOWN


def test_without_its_traceback_an_sdks_refusal_proves_nothing(dead: str) -> None:
    """Whether the SDK had sent before can only be seen where it was raised."""
    with pytest.raises(stripe.APIConnectionError) as raised:
        with_stripe(dead)
    assert classify(raised.value) is NOT_SENT
    assert classify(raised.value.with_traceback(None)) is UNKNOWN


def test_a_second_address_does_not_tell_about_the_first(resetting: str, dead: str) -> None:
    """A tool that falls back after a reset and is refused there has sent something, maybe."""

    def fall_back() -> None:
        try:
            with_httpx(resetting)
        except httpx.HTTPError:
            with_httpx(dead)

    assert said(fall_back) is UNKNOWN


def test_a_fall_back_that_was_refused_twice_was_not_sent(dead: str) -> None:
    """Nobody listened at either address."""

    def fall_back() -> None:
        try:
            with_httpx(dead)
        except httpx.HTTPError:
            with_httpx(dead)

    assert said(fall_back) is NOT_SENT


@pytest.mark.parametrize("client", [with_requests, with_urllib])
def test_a_redirect_that_leads_nowhere_is_unknown(
    client: Callable[[str], None], answering: Callable[..., str], dead: str
) -> None:
    """The POST was answered, by a redirect; only the page after it could not be had."""
    assert said(lambda: client(answering(303, location=dead))) is UNKNOWN


def test_httpx_says_no_before_it_sends() -> None:
    """A protocol it does not speak, a URL it cannot read, a pool that has no connection."""
    assert said(lambda: httpx.post("ftp://example.com")) is NOT_SENT
    assert said(lambda: httpx.post("http://[::1")) is NOT_SENT


def test_requests_says_no_before_it_sends() -> None:
    """A URL without a scheme, one it cannot read, a header that is none."""
    assert said(lambda: requests.post("x/y", timeout=1)) is NOT_SENT
    assert said(lambda: requests.post("http://[::1", timeout=1)) is NOT_SENT
    assert said(lambda: requests.post("http://a", headers={"a": "b\nc"}, timeout=1)) is NOT_SENT


def test_botocore_says_no_before_it_sends(dead: str) -> None:
    """Arguments that the operation does not have."""

    def wrong() -> None:
        make: Any = boto3.client
        client = make(
            "sqs",
            endpoint_url=dead,
            region_name="us-east-1",
            aws_access_key_id="a",
            aws_secret_access_key="b",
        )
        client.send_message(Nope=1)

    assert said(wrong) is NOT_SENT


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (smtplib.SMTPRecipientsRefused({"a@b": (550, b"no such user")}), REFUSED),
        (smtplib.SMTPRecipientsRefused({"a@b": (450, b"greylisted")}), NOT_SENT),
        (smtplib.SMTPRecipientsRefused({"a@b": (550, b""), "c@d": (451, b"")}), NOT_SENT),
        (smtplib.SMTPSenderRefused(553, b"no", "a@b"), REFUSED),
        (smtplib.SMTPDataError(554, b"spam"), REFUSED),
        (smtplib.SMTPDataError(451, b"later"), NOT_SENT),
        (smtplib.SMTPAuthenticationError(535, b"no"), NOT_SENT),
        (smtplib.SMTPServerDisconnected("Connection unexpectedly closed"), UNKNOWN),
        (nats.errors.NoServersError(), NOT_SENT),
        (nats.js.errors.NoStreamResponseError(), NOT_SENT),
        (nats.js.errors.BadRequestError(code=400, err_code=10071), UNKNOWN),
        (nats.errors.TimeoutError(), UNKNOWN),
    ],
)
def test_what_mail_servers_and_nats_say(error: Exception, verdict: Verdict) -> None:
    """A 5xx reply is final, a 4xx asks to come later; silence says nothing, "already there" too."""
    assert classify(error) is verdict


@pytest.mark.parametrize(
    "error",
    [
        ValueError("a mistake in the tool, after it had sent"),
        TimeoutError(),
        ConnectionResetError(),
        BrokenPipeError(),
        asyncio.TimeoutError(),
        OSError(113, "No route to host"),
        type("Odd", (Exception,), {"response": object()})(),
        type("Odd", (Exception,), {"status": "400"})(),
    ],
)
def test_whatever_is_not_listed_is_unknown(error: Exception) -> None:
    """The library guesses nothing."""
    assert classify(error) is UNKNOWN
