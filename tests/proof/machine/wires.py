"""A TCP proxy that cuts connections at the worst moments."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter

from tests.proof.machine.plan import PATIENCE, Cut
from tests.support.remotes.serving import free_port

_COMMITS = {Cut.COMMIT_DROPPED, Cut.COMMIT_UNANSWERED, Cut.COMMIT_LEFT}
_DROPPED = {Cut.COMMIT_DROPPED, Cut.REQUEST_DROPPED}
_LEFT = {Cut.COMMIT_LEFT}


class Wire:
    """Forwards connections to a port on loopback until it is told to cut some.

    Args:
        upstream: The server's port.

    """

    def __init__(self, upstream: int) -> None:
        self.upstream = upstream
        self._armed: list[Cut] = []
        self._open: set[_Connection] = set()
        self._running: set[asyncio.Task[None]] = set()
        self.port = free_port()
        self.cuts: Counter[str] = Counter()

    async def open(self) -> None:
        """Begin to listen."""
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self.port)

    async def refuse(self, seconds: float) -> None:
        """Take no connections for some seconds, as if nobody were there; cut those that are."""
        self.cuts[Cut.REFUSED.value] += 1
        self._server.close()
        self.cut_all(count=False)
        await asyncio.sleep(seconds)
        await self.open()

    async def close(self) -> None:
        """Cut everything and listen no more."""
        self._server.close()
        self.cut_all(count=False)
        for task in list(self._running):
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def arm(self, cut: Cut, times: int) -> None:
        """Cut the next connections on which the moment comes."""
        if cut is Cut.ALL:
            self.cut_all()
        else:
            self._armed += [cut] * times

    def heal(self) -> None:
        """Cut no more."""
        self._armed.clear()

    def cut_all(self, *, count: bool = True) -> None:
        """Reset every open connection."""
        if count:
            self.cuts[Cut.ALL.value] += len(self._open)
        for connection in list(self._open):
            connection.reset()

    def struck(self, sent: bytes) -> Cut | None:
        """Say what is to happen to what a client sends; each armed cut strikes once."""
        is_commit = b"COMMIT" in sent.upper()
        for cut in self._armed:
            if is_commit or cut not in _COMMITS:
                self._armed.remove(cut)
                self.cuts[cut.value] += 1
                return cut
        return None

    async def _connected(self, client: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        with contextlib.suppress(asyncio.CancelledError):  # asyncio would print it
            await self._forward(client, back)
        self._running.discard(task)

    async def _forward(self, client: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        try:
            server, on = await asyncio.open_connection("127.0.0.1", self.upstream)
        except OSError:  # the server is down: so is the wire
            back.transport.abort()
            return
        connection = _Connection(self, back, on)
        self._open.add(connection)
        try:
            await connection.run(client, server)
        finally:
            self._open.discard(connection)
            connection.reset()


class _Connection:
    """One client's connection, both ways."""

    def __init__(self, wire: Wire, back: asyncio.StreamWriter, on: asyncio.StreamWriter) -> None:
        self._wire, self._back, self._on = wire, back, on
        self._swallows = self._delays = False

    def reset(self) -> None:
        """Cut both ends off, as if a cable had been pulled."""
        self._back.transport.abort()
        self._on.transport.abort()

    async def run(self, client: asyncio.StreamReader, server: asyncio.StreamReader) -> None:
        """Forward until one side is gone or the cut comes."""
        ways = [asyncio.ensure_future(self._there(client)), asyncio.ensure_future(self._up(server))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _there(self, client: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError):
            while sent := await client.read(1 << 16):
                cut = self._wire.struck(sent)
                if cut in _DROPPED:
                    return
                self._on.write(sent)
                await self._on.drain()
                if cut in _LEFT:
                    return
                self._swallows |= cut in {Cut.COMMIT_UNANSWERED, Cut.ANSWER_SWALLOWED}
                self._delays |= cut is Cut.ANSWER_LATE

    async def _up(self, server: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError):
            while answered := await server.read(1 << 16):
                if self._swallows:
                    return
                if self._delays:
                    await asyncio.sleep(PATIENCE * 1.5)
                self._back.write(answered)
                await self._back.drain()
