"""The proxies that stand between a client and a remote, as objects of a test."""

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.remotes.faults import Exchange, FaultControl, Mode
from tests.support.remotes.installed import program
from tests.support.remotes.serving import LOOPBACK, Program, free_port, listens

_REPOSITORY = Path(__file__).parents[3]
_TCP_MODES: tuple[Mode, ...] = ("ok", "drop_request", "drop_response", "hang_request", "hang")


@dataclass(frozen=True)
class FaultyProxy:
    """A way to a remote on which the next exchanges can be lost.

    Args:
        url: what the client calls in place of the remote's own address.
        port: the proxy's port on loopback.
        faults: usable from any process: ``FaultControl(folder)`` with the same folder.
        server: to stop and start it again: a way that is down.
        modes: what this proxy can do.
        matching: struck exchanges contain this unless a test says otherwise; see `Fault`.
        answered: TCP only: the remote's answer contains this; see `Fault`.
    """

    url: str
    port: int
    faults: FaultControl
    server: Program
    modes: tuple[Mode, ...] = ()
    matching: str = ""
    answered: str = ""

    def set(
        self,
        mode: Mode,
        *,
        times: int | None = 1,
        matching: str | None = None,
        seconds: float = 60.0,
    ) -> None:
        """Orders a fault for the next exchanges.

        Args:
            mode: see `Mode`.
            times: how many exchanges, or None for all until the next `set`.
            matching: strikes only exchanges that contain this; see `Fault`.
            seconds: a hang's end.

        Raises:
            ValueError: the proxy speaks a protocol that has no such fault.
        """
        if self.modes and mode not in self.modes:
            raise ValueError(f"{mode!r} is not one of {self.modes}")
        chosen = self.matching if matching is None else matching
        self.faults.set(mode, times=times, matching=chosen, answered=self.answered, seconds=seconds)

    def clear(self) -> None:
        """Lets everything through again and forgets the exchanges so far."""
        self.faults.clear()

    def exchanges(self) -> list[Exchange]:
        """What the proxy did since the last `clear`.

        Returns:
            One entry per request, oldest first.
        """
        return self.faults.exchanges()

    def wait_for(self, mode: Mode, *, timeout: float = 10.0) -> Exchange:
        """Waits until a fault has struck: the moment at which a test kills the client.

        Args:
            mode: the fault waited for.
            timeout: seconds to wait at most.

        Returns:
            The first exchange it struck.
        """
        return self.faults.wait_for(mode, timeout=timeout)


@contextlib.contextmanager
def http_proxy(upstream: int, folder: Path, *, matching: str) -> Iterator[FaultyProxy]:
    """Runs mitmproxy in reverse mode in front of an HTTP remote.

    Args:
        upstream: the remote's port on loopback.
        folder: an empty folder for its files.
        matching: what a struck exchange contains unless a test says otherwise; see `Fault`.

    Yields:
        The proxy, listening.

    Raises:
        NotInstalledError: mitmproxy is missing.
    """
    port = free_port()
    argv = [program("mitmdump"), "--quiet", "--listen-host", LOOPBACK, "--listen-port", str(port)]
    argv += ["--mode", f"reverse:http://{LOOPBACK}:{upstream}"]
    argv += ["--scripts", str(Path(__file__).with_name("http_faults.py"))]
    # A remote puts its address into answers (a queue's URL): that must lead through the proxy too.
    argv += ["--set", "keep_host_header=true", "--set", f"confdir={folder / 'mitmproxy'}"]
    faults, server = FaultControl(folder), _program(argv, port, folder)
    proxy = FaultyProxy(f"http://{LOOPBACK}:{port}", port, faults, server, matching=matching)
    with _running(proxy):
        yield proxy


@contextlib.contextmanager
def tcp_proxy(
    upstream: int, folder: Path, *, scheme: str, matching: str, answered: str
) -> Iterator[FaultyProxy]:
    """Runs our TCP proxy in front of a remote that does not speak HTTP.

    Args:
        upstream: the remote's port on loopback.
        folder: an empty folder for its files.
        scheme: of the proxy's URL, such as ``nats``.
        matching: the client's bytes that are the effect's request, as latin-1 text.
        answered: the remote's bytes that are the answer, as latin-1 text.

    Yields:
        The proxy, listening.
    """
    port = free_port()
    argv = [sys.executable, "-m", "tests.support.remotes.tcp_faults"]
    argv += [str(port), str(upstream), str(folder)]
    url = f"{scheme}://{LOOPBACK}:{port}"
    faults, server = FaultControl(folder), _program(argv, port, folder)
    with _running(FaultyProxy(url, port, faults, server, _TCP_MODES, matching, answered)) as proxy:
        yield proxy


def _program(argv: list[str], port: int, folder: Path) -> Program:
    return Program(
        argv,
        log=folder / "proxy.log",
        ready=lambda: listens(port),
        env={"PYTHONPATH": str(_REPOSITORY), "FAULT_FOLDER": str(folder)},
    )


@contextlib.contextmanager
def _running(proxy: FaultyProxy) -> Iterator[FaultyProxy]:
    proxy.clear()
    proxy.server.start()
    try:
        yield proxy
    finally:
        proxy.clear()  # a hang must not outlive its test
        proxy.server.stop()
