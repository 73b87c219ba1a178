"""A TCP proxy that carries out the faults of `faults.py` for SMTP, NATS and whatever is not HTTP.

usage: python -m tests.support.remotes.tcp_faults PORT UPSTREAM_PORT FOLDER

A fault strikes a connection once the client has sent its `matching` bytes. mitmproxy's own TCP mode
waits for the remote to close when the client is gone, and so hung; here the connection is reset.
"""

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from tests.support.remotes.faults import Exchange, Fault, FaultPlan
from tests.support.remotes.serving import LOOPBACK

Forward = Callable[[bytes], Awaitable[None]]


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
        self._looked_for = ""
        self._struck: Fault | None = None

    async def outward(self, received: bytes) -> None:
        """Passes the client's bytes on, or keeps them from the remote.

        Args:
            received: what the client has just sent.
        """
        fault = self._strikes(received)
        if fault and fault.mode in ("drop_request", "hang_request"):
            await self._lose(fault, acted=False)
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

    def _strikes(self, received: bytes) -> Fault | None:
        current = self._plan.current()
        if current.id != self._looked_for:  # what was sent before the fault was set does not count
            self._looked_for, self._sent = current.id, ""
        self._sent += received.decode("latin-1")
        if self._struck is None:
            fault = self._plan.take(self._sent)
            self._struck = None if fault.mode == "ok" else fault
        return self._struck

    async def _lose(self, fault: Fault, *, acted: bool) -> None:
        self._plan.note(Exchange(fault.matching, fault.mode, acted=acted))
        if fault.mode.startswith("hang"):
            for seconds in self._plan.pauses(fault):
                await asyncio.sleep(seconds)
        for writer in (self._client, self._remote):
            writer.transport.abort()


async def _pump(
    reader: asyncio.StreamReader, forward: Forward, other: asyncio.StreamWriter
) -> None:
    with contextlib.suppress(ConnectionError):
        while received := await reader.read(65536):
            await forward(received)
    other.close()


async def _serve(port: int, upstream: int, plan: FaultPlan) -> None:
    async def connected(reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        try:
            answers, remote = await asyncio.open_connection(LOOPBACK, upstream)
        except ConnectionRefusedError:
            client.transport.abort()
            return
        wire = Wire(plan, client, remote)
        await asyncio.gather(
            _pump(reader, wire.outward, remote), _pump(answers, wire.inward, client)
        )

    server = await asyncio.start_server(connected, LOOPBACK, port)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), int(sys.argv[2]), FaultPlan(Path(sys.argv[3]))))
