"""Two servers that speak Stripe's API: one honours idempotency keys, one ignores them."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.support.remotes.installed import node, npm_file, program
from tests.support.remotes.serving import LOOPBACK, Program, free_port, listens

API_KEY = "sk_test_12345"


@dataclass(frozen=True)
class StripeRemote:
    """A server that speaks a part of Stripe's API.

    Args:
        base_url: without ``/v1``, as the SDK's ``base_addresses["api"]`` wants it.
        port: on loopback.
        server: to stop it and start it again.
        reset_path: of the request that empties it.
    """

    base_url: str
    port: int
    server: Program
    reset_path: str

    def items(self, collection: str, **equals: str) -> list[dict[str, Any]]:
        """What the remote has stored.

        Args:
            collection: ``refunds``, ``charges``, ``customers`` …
            equals: fields an item must have; ``metadata_order="A-1"`` looks into its metadata.

        Returns:
            The items, as in Stripe's API; every one up to a hundred.
        """
        answer = httpx.get(
            f"{self.base_url}/v1/{collection}",
            params={"limit": 100},
            auth=(API_KEY, ""),
            trust_env=False,
        )
        answer.raise_for_status()
        listed = answer.json()
        assert not listed["has_more"], "a test made more than a hundred objects"
        return [item for item in listed["data"] if _has(item, equals)]

    def count(self, collection: str, **equals: str) -> int:
        """How many effects the remote itself has stored.

        Args:
            collection: see `items`.
            equals: see `items`.

        Returns:
            The number of items.
        """
        return len(self.items(collection, **equals))

    def reset(self) -> None:
        """Empties the remote: objects, and remembered keys where it remembers any."""
        httpx.delete(self.base_url + self.reset_path, trust_env=False).raise_for_status()


@contextlib.contextmanager
def stripe_stateful_mock(folder: Path) -> Iterator[StripeRemote]:
    """Runs stripe-stateful-mock, which honours idempotency keys and refuses changed parameters.

    Args:
        folder: for its log.

    Yields:
        The running remote.

    Raises:
        NotInstalledError: node or the package is missing.
    """
    port = free_port()
    package = npm_file("stripe-stateful-mock")
    argv = [node(), str(Path(__file__).with_name("stripe_server.js")), package, str(port)]
    with _running(argv, port, folder, "/_fresh") as remote:
        yield remote


@contextlib.contextmanager
def localstripe(folder: Path) -> Iterator[StripeRemote]:
    """Runs localstripe, which ignores idempotency keys.

    Args:
        folder: for its log.

    Yields:
        The running remote.

    Raises:
        NotInstalledError: localstripe is missing.
    """
    port = free_port()
    program("localstripe")
    script = str(Path(__file__).with_name("localstripe_server.py"))
    argv = [program("python"), script, str(port)]
    with _running(argv, port, folder, "/_config/data") as remote:
        yield remote


@contextlib.contextmanager
def _running(argv: list[str], port: int, folder: Path, reset_path: str) -> Iterator[StripeRemote]:
    server = Program(argv, log=folder / "server.log", ready=lambda: listens(port))
    server.start()
    try:
        yield StripeRemote(f"http://{LOOPBACK}:{port}", port, server, reset_path)
    finally:
        server.stop()


def _has(item: dict[str, Any], equals: dict[str, str]) -> bool:
    def value(name: str) -> object:
        if name.startswith("metadata_"):
            return (item.get("metadata") or {}).get(name.removeprefix("metadata_"))
        return item.get(name)

    return all(value(name) == wanted for name, wanted in equals.items())
