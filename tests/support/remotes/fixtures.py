"""Fixtures: real remotes, started once per test run, empty and without faults for each test.

Where a server is missing the test is skipped with the command that installs it; in CI it fails.
"""

import contextlib
import os
from collections.abc import Iterator
from typing import NoReturn

import pytest

from tests.support.remotes import aws as aws_server
from tests.support.remotes import jetstream as jetstream_server
from tests.support.remotes import maildev as maildev_server
from tests.support.remotes import stripes
from tests.support.remotes.aws import AwsRemote
from tests.support.remotes.installed import NotInstalledError
from tests.support.remotes.jetstream import JetStreamRemote
from tests.support.remotes.maildev import MailRemote
from tests.support.remotes.proxies import FaultyProxy, http_proxy, tcp_proxy
from tests.support.remotes.stripes import StripeRemote

__all__ = [
    "aws",
    "aws_proxy",
    "aws_proxy_once",
    "aws_server_once",
    "jetstream",
    "jetstream_proxy",
    "jetstream_proxy_once",
    "jetstream_server_once",
    "localstripe",
    "localstripe_proxy",
    "localstripe_proxy_once",
    "localstripe_server_once",
    "mailbox",
    "mailbox_proxy",
    "mailbox_proxy_once",
    "mailbox_server_once",
    "stripe_mock",
    "stripe_mock_proxy",
    "stripe_mock_proxy_once",
    "stripe_mock_server_once",
]

_WRITES = "POST "


@contextlib.contextmanager
def _installed() -> Iterator[None]:
    try:
        yield
    except NotInstalledError as error:
        _missing(str(error))


def _missing(why: str) -> NoReturn:
    if os.environ.get("CI"):
        pytest.fail(why)
    pytest.skip(why)


@pytest.fixture(scope="session")
def stripe_mock_server_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StripeRemote]:
    """stripe-stateful-mock, for the whole run."""
    folder = tmp_path_factory.mktemp("stripe-mock")
    with _installed(), stripes.stripe_stateful_mock(folder) as remote:
        yield remote


@pytest.fixture(scope="session")
def stripe_mock_proxy_once(
    stripe_mock_server_once: StripeRemote, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[FaultyProxy]:
    """A mitmproxy in front of stripe-stateful-mock, for the whole run."""
    folder = tmp_path_factory.mktemp("stripe-mock-proxy")
    with _installed(), http_proxy(stripe_mock_server_once.port, folder, matching=_WRITES) as proxy:
        yield proxy


@pytest.fixture
def stripe_mock(stripe_mock_server_once: StripeRemote) -> StripeRemote:
    """A Stripe that honours idempotency keys, empty."""
    stripe_mock_server_once.reset()
    return stripe_mock_server_once


@pytest.fixture
def stripe_mock_proxy(
    stripe_mock: StripeRemote, stripe_mock_proxy_once: FaultyProxy
) -> Iterator[FaultyProxy]:
    """The way to `stripe_mock`; its faults strike POST only, so look-ups get through."""
    yield from _cleared(stripe_mock_proxy_once)


@pytest.fixture(scope="session")
def localstripe_server_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StripeRemote]:
    """localstripe, for the whole run."""
    folder = tmp_path_factory.mktemp("localstripe")
    with _installed(), stripes.localstripe(folder) as remote:
        yield remote


@pytest.fixture(scope="session")
def localstripe_proxy_once(
    localstripe_server_once: StripeRemote, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[FaultyProxy]:
    """A mitmproxy in front of localstripe, for the whole run."""
    folder = tmp_path_factory.mktemp("localstripe-proxy")
    with _installed(), http_proxy(localstripe_server_once.port, folder, matching=_WRITES) as proxy:
        yield proxy


@pytest.fixture
def localstripe(localstripe_server_once: StripeRemote) -> StripeRemote:
    """A Stripe that ignores idempotency keys, empty."""
    localstripe_server_once.reset()
    return localstripe_server_once


@pytest.fixture
def localstripe_proxy(
    localstripe: StripeRemote, localstripe_proxy_once: FaultyProxy
) -> Iterator[FaultyProxy]:
    """The way to `localstripe`; its faults strike POST only, so look-ups get through."""
    yield from _cleared(localstripe_proxy_once)


@pytest.fixture(scope="session")
def aws_server_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AwsRemote]:
    """A moto server, for the whole run."""
    folder = tmp_path_factory.mktemp("moto")
    with _installed(), aws_server.moto_server(folder) as remote:
        yield remote


@pytest.fixture(scope="session")
def aws_proxy_once(
    aws_server_once: AwsRemote, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[FaultyProxy]:
    """A mitmproxy in front of moto's server, for the whole run."""
    folder = tmp_path_factory.mktemp("moto-proxy")
    with _installed(), http_proxy(aws_server_once.port, folder, matching="") as proxy:
        yield proxy


@pytest.fixture
def aws(aws_server_once: AwsRemote) -> AwsRemote:
    """DynamoDB, SQS and so on, empty."""
    aws_server_once.reset()
    return aws_server_once


@pytest.fixture
def aws_proxy(aws: AwsRemote, aws_proxy_once: FaultyProxy) -> Iterator[FaultyProxy]:
    """The way to `aws`; name the operation, as in ``matching="PutItem"``, for all are POST."""
    yield from _cleared(aws_proxy_once)


@pytest.fixture(scope="session")
def jetstream_server_once(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[JetStreamRemote]:
    """A NATS server with JetStream, for the whole run."""
    folder = tmp_path_factory.mktemp("nats")
    with _installed(), jetstream_server.nats_server(folder) as remote:
        yield remote


@pytest.fixture(scope="session")
def jetstream_proxy_once(
    jetstream_server_once: JetStreamRemote, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[FaultyProxy]:
    """Our TCP proxy in front of NATS, for the whole run."""
    with tcp_proxy(
        jetstream_server_once.port,
        tmp_path_factory.mktemp("nats-proxy"),
        scheme="nats",
        matching=jetstream_server.PUBLISH,
        answered=jetstream_server.ACKNOWLEDGED,
    ) as proxy:
        yield proxy


@pytest.fixture
def jetstream(jetstream_server_once: JetStreamRemote) -> JetStreamRemote:
    """JetStream without streams."""
    jetstream_server_once.reset()
    return jetstream_server_once


@pytest.fixture
def jetstream_proxy(
    jetstream: JetStreamRemote, jetstream_proxy_once: FaultyProxy
) -> Iterator[FaultyProxy]:
    """The way to `jetstream`; name the subject, as in ``matching="PUB orders."``."""
    yield from _cleared(jetstream_proxy_once)


@pytest.fixture(scope="session")
def mailbox_server_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MailRemote]:
    """MailDev, for the whole run."""
    folder = tmp_path_factory.mktemp("maildev")
    with _installed(), maildev_server.maildev(folder) as remote:
        yield remote


@pytest.fixture(scope="session")
def mailbox_proxy_once(
    mailbox_server_once: MailRemote, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[FaultyProxy]:
    """Our TCP proxy in front of MailDev's SMTP, for the whole run."""
    with tcp_proxy(
        mailbox_server_once.port,
        tmp_path_factory.mktemp("maildev-proxy"),
        scheme="smtp",
        matching=maildev_server.END_OF_MAIL,
        answered=maildev_server.ACCEPTED,
    ) as proxy:
        yield proxy


@pytest.fixture
def mailbox(mailbox_server_once: MailRemote) -> MailRemote:
    """An SMTP server with an empty mailbox."""
    mailbox_server_once.reset()
    return mailbox_server_once


@pytest.fixture
def mailbox_proxy(mailbox: MailRemote, mailbox_proxy_once: FaultyProxy) -> Iterator[FaultyProxy]:
    """The SMTP way to `mailbox`; its faults strike the end of a mail's text and its last 250."""
    yield from _cleared(mailbox_proxy_once)


def _cleared(proxy: FaultyProxy) -> Iterator[FaultyProxy]:
    proxy.clear()
    yield proxy
    proxy.clear()  # ends what still hangs
