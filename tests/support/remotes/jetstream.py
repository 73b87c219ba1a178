"""A NATS server with JetStream."""

import asyncio
import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.support.remotes.installed import program
from tests.support.remotes.serving import LOOPBACK, Program, free_port

# The proxy's marks: a publish with headers or without, and the stream's acknowledgement of it.
PUBLISH = "PUB "
ACKNOWLEDGED = '"stream"'


@dataclass(frozen=True)
class JetStreamRemote:
    """A running NATS server that keeps streams.

    Args:
        base_url: for ``nats.connect`` where the proxy is not meant.
        port: on loopback.
        monitor_url: the server's own HTTP monitoring.
        server: to stop it and start it again.
    """

    base_url: str
    port: int
    monitor_url: str
    server: Program

    def count(self, stream: str) -> int:
        """How many messages the remote itself has stored.

        Args:
            stream: the stream's name.

        Returns:
            The number of messages, from the server's monitoring; 0 where the stream is missing.
        """
        return self._messages().get(stream, 0)

    def reset(self) -> None:
        """Deletes every stream."""
        with ThreadPoolExecutor(1) as thread:  # callable from inside a running event loop
            thread.submit(asyncio.run, self._delete(list(self._messages()))).result(timeout=30)

    def _messages(self) -> dict[str, int]:
        answer = httpx.get(f"{self.monitor_url}/jsz", params={"streams": "true"}, trust_env=False)
        answer.raise_for_status()
        return {
            stream["name"]: int(stream["state"]["messages"])
            for account in answer.json().get("account_details", [])
            for stream in account.get("stream_detail", [])
        }

    async def _delete(self, streams: list[str]) -> None:
        import nats

        connection = await nats.connect(self.base_url)
        try:
            for stream in streams:
                await connection.jetstream().delete_stream(stream)
        finally:
            await connection.close()


@contextlib.contextmanager
def nats_server(folder: Path) -> Iterator[JetStreamRemote]:
    """Runs a NATS server with JetStream.

    Args:
        folder: for its log and its store.

    Yields:
        The running remote.

    Raises:
        NotInstalledError: nats-server is missing.
    """
    port, monitor = free_port(), free_port()
    monitor_url = f"http://{LOOPBACK}:{monitor}"
    argv = [program("nats-server"), "-a", LOOPBACK, "-p", str(port), "-m", str(monitor)]
    argv += ["-js", "-sd", str(folder / "store")]
    server = Program(argv, log=folder / "server.log", ready=lambda: _healthy(monitor_url))
    server.start()
    try:
        yield JetStreamRemote(f"nats://{LOOPBACK}:{port}", port, monitor_url, server)
    finally:
        server.stop()


def _healthy(monitor_url: str) -> bool:
    """The port opens before JetStream is up; only this says that streams can be made."""
    try:
        return httpx.get(f"{monitor_url}/healthz", trust_env=False).is_success
    except httpx.TransportError:
        return False
