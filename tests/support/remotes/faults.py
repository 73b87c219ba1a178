"""Faults on the way to a remote: ordered by a test, carried out by a proxy, through files.

Files, because the test, the process that it is going to kill, and the proxy are three processes.
This module uses the standard library alone: the proxies run in the servers' own environment.
"""

import contextlib
import json
import os
import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

Mode = Literal[
    "ok",
    "drop_request",  # the remote never sees it; the client's connection is closed
    "drop_response",  # the remote acted; the client's connection is closed without an answer
    "hang_request",  # the remote never sees it; the client waits
    "hang",  # the remote acted; the client waits
    "502",  # the remote acted; the client gets 502
    "502_unsent",  # the remote never sees it; the client gets 502
    "late",  # the client waits in vain, and the remote sees the request only after the fault's end
]


@dataclass(frozen=True)
class Fault:
    """What to do with the next exchanges.

    Args:
        mode: see `Mode`.
        times: how many exchanges it strikes; None means until another fault is set.
        matching: strikes only where this text occurs in "METHOD path x-amz-target" (HTTP), or in
            what the client has sent on the connection since the fault was set (TCP).
        answered: TCP only: the remote's bytes that are the answer; empty means whatever comes first
            after the request.
        seconds: end of a hang; setting another fault ends it earlier.
    """

    mode: Mode = "ok"
    times: int | None = None
    matching: str = ""
    answered: str = ""
    seconds: float = 60.0
    id: str = field(default_factory=lambda: uuid.uuid4().hex)


@dataclass(frozen=True)
class Exchange:
    """What the proxy did with one request.

    Args:
        what: "METHOD path x-amz-target" (HTTP) or the matched text (TCP).
        mode: the fault that struck, or "ok".
        acted: whether the remote has answered, and so has acted.
        status: the remote's own HTTP status; 0 where there is none.
    """

    what: str
    mode: Mode
    acted: bool
    status: int = 0


@dataclass(frozen=True)
class FaultControl:
    """The test's side: sets faults and reads what became of the requests; any process may hold it.

    Args:
        folder: shared with the proxy.
    """

    folder: Path

    def set(
        self,
        mode: Mode,
        *,
        times: int | None = 1,
        matching: str = "",
        answered: str = "",
        seconds: float = 60.0,
    ) -> None:
        """Orders a fault for the next exchanges; it replaces the last one and ends its hangs.

        Args:
            mode: see `Mode`.
            times: how many exchanges, or None for all until the next `set`.
            matching: see `Fault`.
            answered: see `Fault`.
            seconds: a hang's end.
        """
        fault = Fault(mode, times, matching, answered, seconds)
        draft = self.folder / f"fault.{fault.id}"
        draft.write_text(json.dumps(asdict(fault)))
        os.replace(draft, self.folder / "fault")  # noqa: PTH105 - the atomic form, by its known name

    def clear(self) -> None:
        """Lets everything through again and forgets the exchanges so far."""
        self.set("ok", times=None)
        with contextlib.suppress(FileNotFoundError):
            (self.folder / "exchanges").unlink()

    def exchanges(self) -> list[Exchange]:
        """What the proxy did since the last `clear`, oldest first.

        Returns:
            One entry per request that reached the proxy and has been dealt with.
        """
        try:
            lines = (self.folder / "exchanges").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [Exchange(**json.loads(line)) for line in lines]

    def wait_for(self, mode: Mode, *, timeout: float = 10.0) -> Exchange:
        """Waits until a fault has struck: the moment at which a test kills the client.

        Args:
            mode: the fault waited for; for "hang" the remote has acted when this returns.
            timeout: seconds to wait at most.

        Returns:
            The first exchange it struck.

        Raises:
            TimeoutError: it struck nothing in time.
        """
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            for exchange in self.exchanges():
                if exchange.mode == mode:
                    return exchange
            time.sleep(0.02)
        raise TimeoutError(f"no exchange met {mode!r} within {timeout} s: {self.exchanges()}")


class FaultPlan:
    """The proxy's side of a `FaultControl`: which fault strikes, and the journal.

    The count of strikes is kept here, so the file has one writer and needs no lock.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._struck: dict[str, int] = {}

    def current(self) -> Fault:
        """The fault that is set now.

        Returns:
            What the test wrote last, else a fault of mode "ok".
        """
        try:
            return Fault(**json.loads((self._folder / "fault").read_text()))
        except FileNotFoundError:
            return Fault(id="none")

    def take(self, what: str) -> Fault:
        """Decides about one exchange and counts it.

        Args:
            what: the exchange in words, see `Exchange`.

        Returns:
            The fault that strikes it; mode "ok" where none does.
        """
        fault = self.current()
        used = self._struck.get(fault.id, 0)
        over = fault.times is not None and used >= fault.times
        if fault.mode == "ok" or over or fault.matching not in what:
            return Fault()
        self._struck[fault.id] = used + 1
        return fault

    def pauses(self, fault: Fault) -> Iterator[float]:
        """How long a hang goes on.

        Args:
            fault: the one that hangs.

        Yields:
            Seconds to sleep before asking again, until its time is over or another fault is set.
        """
        end = time.monotonic() + fault.seconds
        while time.monotonic() < end and self.current().id == fault.id:
            yield 0.03

    def note(self, exchange: Exchange) -> None:
        """Writes one line of the journal.

        Args:
            exchange: what became of a request.
        """
        with (self._folder / "exchanges").open("a") as journal:
            journal.write(json.dumps(asdict(exchange)) + "\n")
