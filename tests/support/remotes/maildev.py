"""MailDev: an SMTP server that keeps what it gets, with an HTTP API to look it up."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.support.remotes.installed import node, npm_file
from tests.support.remotes.serving import LOOPBACK, Program, free_port, listens

# The proxy's marks: the end of the mail's text, and the 250 that takes it over.
END_OF_MAIL = "\r\n.\r\n"
ACCEPTED = "250"


@dataclass(frozen=True)
class MailRemote:
    """A running MailDev.

    Args:
        base_url: of its HTTP API; look a mail up by ``GET /api/email?headers.message-id=<...>``.
        port: of SMTP, on loopback.
        server: to stop it and start it again.
    """

    base_url: str
    port: int
    server: Program

    def mails(self, message_id: str = "") -> list[dict[str, Any]]:
        """What the remote has accepted.

        Args:
            message_id: with its angle brackets; empty means every mail.

        Returns:
            The mails, as MailDev's API gives them.
        """
        query = {"headers.message-id": message_id} if message_id else {}
        answer = httpx.get(f"{self.base_url}/api/email", params=query, trust_env=False)
        answer.raise_for_status()
        return list(answer.json())

    def count(self, message_id: str = "") -> int:
        """How many effects the remote itself has stored.

        Args:
            message_id: with its angle brackets; empty means every mail.

        Returns:
            The number of mails.
        """
        return len(self.mails(message_id))

    def reset(self) -> None:
        """Deletes every mail."""
        httpx.delete(f"{self.base_url}/api/email/all", trust_env=False).raise_for_status()


@contextlib.contextmanager
def maildev(folder: Path) -> Iterator[MailRemote]:
    """Runs MailDev.

    Args:
        folder: for its log and its mails.

    Yields:
        The running remote.

    Raises:
        NotInstalledError: node or the package is missing.
    """
    port, web = free_port(), free_port()
    argv = [node(), npm_file("maildev/dist/bin/maildev.js")]
    argv += ["--smtp", str(port), "--ip", LOOPBACK, "--web", str(web), "--web-ip", LOOPBACK]
    # Its default is one fixed folder for all, which a neighbour's reset empties under our mails.
    argv += ["--mail-directory", str(folder / "mails")]
    ready = lambda: listens(port) and listens(web)  # noqa: E731 - two ports, one condition
    server = Program(argv, log=folder / "server.log", ready=ready)
    server.start()
    try:
        yield MailRemote(f"http://{LOOPBACK}:{web}", port, server)
    finally:
        server.stop()
