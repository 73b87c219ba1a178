"""moto's server: DynamoDB, SQS and the rest of AWS on loopback."""

import contextlib
import http.client
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.support.remotes.installed import program
from tests.support.remotes.serving import LOOPBACK, Program, free_port, listens

REGION = "us-east-1"
_WAITING = "ApproximateNumberOfMessages"
_IN_FLIGHT = "ApproximateNumberOfMessagesNotVisible"


@dataclass(frozen=True)
class AwsRemote:
    """A running moto server.

    Args:
        base_url: the ``endpoint_url`` of a boto3 client that means to bypass the proxy.
        port: on loopback.
        server: to stop it and start it again.
    """

    base_url: str
    port: int
    server: Program

    def client(self, service: str, *, endpoint_url: str | None = None, **config: Any) -> Any:
        """A boto3 client that tries once and waits ten seconds for an answer.

        Args:
            service: ``dynamodb``, ``sqs`` …
            endpoint_url: a proxy's URL; None means the server itself.
            config: more for ``botocore.config.Config``.

        Returns:
            The client (boto3 makes its classes when it runs; they have no static type).
        """
        import boto3
        from botocore.config import Config

        once: dict[str, Any] = {"retries": {"total_max_attempts": 1}, "read_timeout": 10}
        make: Any = boto3.client  # its stubs have an overload per service, and none for a str
        return make(
            service,
            endpoint_url=endpoint_url or self.base_url,
            region_name=REGION,
            aws_access_key_id="testing",
            aws_secret_access_key="testing",
            config=Config(**{**once, **config}),
        )

    def count(self, *, table: str = "", queue_url: str = "") -> int:
        """How many effects the remote itself has stored.

        Args:
            table: a DynamoDB table, whose items are counted.
            queue_url: an SQS queue, whose messages are counted, those in flight included.

        Returns:
            The number of items or messages.
        """
        if table:
            return int(self.client("dynamodb").scan(TableName=table, ConsistentRead=True)["Count"])
        name = queue_url.rsplit("/", 1)[-1]
        sqs = self.client("sqs")
        url = sqs.get_queue_url(QueueName=name)["QueueUrl"]
        found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=[_WAITING, _IN_FLIGHT])
        return sum(int(number) for number in found["Attributes"].values())

    def reset(self) -> None:
        """Empties the remote: tables, queues and all."""
        answer = httpx.post(f"{self.base_url}/moto-api/reset", trust_env=False)
        assert answer.status_code == http.client.OK, answer.text


@contextlib.contextmanager
def moto_server(folder: Path) -> Iterator[AwsRemote]:
    """Runs moto's server.

    Args:
        folder: for its log.

    Yields:
        The running remote.

    Raises:
        NotInstalledError: moto is missing.
    """
    port = free_port()
    argv = [program("moto_server"), "-H", LOOPBACK, "-p", str(port)]
    server = Program(argv, log=folder / "server.log", ready=lambda: listens(port))
    server.start()
    try:
        yield AwsRemote(f"http://{LOOPBACK}:{port}", port, server)
    finally:
        server.stop()
