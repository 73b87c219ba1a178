"""A TCP proxy that carries out the faults of `faults.py` for SMTP, NATS and whatever is not HTTP.

usage: python -m tests.support.remotes.tcp_faults PORT UPSTREAM_PORT FOLDER

A fault strikes a connection once the client has sent its `matching` bytes. mitmproxy's own TCP mode
waits for the remote to close when the client is gone, and so hung; here the connection is reset.
"""

import asyncio
import contextlib
import sys
from pathlib import Path

from tests.support.remotes.faults import Exchange, Fault, FaultPlan
from tests.support.remotes.serving import LOOPBACK


class Wire:
    """One client's connection, forwarded both ways until a fault strikes.

    Args:
        plan: says which fault strikes.
        client: the writer towards the client.
        remote: the writer towards the remote.
    """

    def __init__(
        self, plan: FaultPlan, client: asyncio.StreamWriter, remote: asyncio.StreamWriter
    ) -> None:
        self._plan = plan
        self._client = client
        self._remote = remote
        self._sent = ""
        self._struck: Fault | None = None

    async def outward(self, received: bytes) -> None:
        """Passes the client's bytes on, or keeps them from the remote.

        Args:
            received: what the client has just sent.
        """
        self._sent += received.decode("latin-1")
        if self._struck is None:
            self._take()
        if self._struck and self._struck.mode in ("drop_request", "hang_request"):
            await self._lose(self._struck, acted=False)
            return
        self._remote.write(received)
        await self._remote.drain()

    async def inward(self, received: bytes) -> None:
        """Passes the remote's bytes on, or keeps its answer from the client.

        Args:
            received: what the remote has just sent.
        """
        fault = self._struck
        if fault and fault.answered in received.decode("latin-1"):
            await self._lose(fault, acted=True)
            return
        self._client.write(received)
        await self._client.drain()

    def _take(self) -> None:
        fault = self._plan.take(self._sent)
        if fault.mode != "ok":
            self._struck = fault

    async def _lose(self, fault: Fault, *, acted: bool) -> None:
        self._plan.note(Exchange(fault.matching, fault.mode, acted=acted))
        if fault.mode.startswith("hang"):
            for seconds in self._plan.pauses(fault):
                await asyncio.sleep(seconds)
        for writer in (self._client, self._remote):
            writer.transport.abort()


async def _pump(reader: asyncio.StreamReader, wire_end: object) -> None:
    raise NotImplementedError
