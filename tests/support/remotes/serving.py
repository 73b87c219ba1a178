"""Server programs as children of the test run: on loopback, awaited by polling, ended for sure."""

import atexit
import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

LOOPBACK = "127.0.0.1"

# Below the range from which systems give out client ports, so that no connection takes ours between
# choosing and binding. Own randomness: a seeded run would choose alike in every xdist worker.
_PORTS = range(20_000, 32_000)
_chance = random.SystemRandom()


class ServerFailedError(RuntimeError):
    """A server program ended or did not answer in time; the message holds the end of its log."""


def free_port() -> int:
    """A loopback port that nobody listens on now.

    Returns:
        The port number.

    Raises:
        ServerFailedError: fifty tries found none.
    """
    for _ in range(50):
        port = _chance.choice(_PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((LOOPBACK, port))
            return port
    raise ServerFailedError("no free loopback port found in fifty tries")


def listens(port: int) -> bool:
    """Whether somebody accepts connections.

    Args:
        port: a loopback TCP port.

    Returns:
        True when a connection could be opened.
    """
    try:
        socket.create_connection((LOOPBACK, port), timeout=1).close()
    except OSError:
        return False
    return True


def until(holds: Callable[[], bool], *, timeout: float, what: str) -> None:
    """Polls until a condition holds.

    Args:
        holds: asked every 20 ms.
        timeout: seconds to wait at most.
        what: the condition in words, for the error.

    Raises:
        TimeoutError: it did not hold in time.
    """
    deadline = time.monotonic() + timeout
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout} s in vain for {what}")
        time.sleep(0.02)


class Program:
    """A server program: started, stopped or killed, and started again on the same port."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        log: Path,
        ready: Callable[[], bool],
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._argv = list(argv)
        self._log = log
        self._ready = ready
        self._env = {**os.environ, **(env or {})}
        self._child: subprocess.Popen[bytes] | None = None

    def start(self, *, timeout: float = 30) -> None:
        """Starts the program and waits until it answers.

        Args:
            timeout: seconds to wait at most.

        Raises:
            ServerFailedError: it ended, did not answer in time, or is running already.
        """
        if self._child is not None:
            raise ServerFailedError(f"{self._argv} is running already; stop it first")
        with self._log.open("ab") as log:
            self._child = subprocess.Popen(
                [*_leash(), *self._argv],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._env,
                start_new_session=True,
            )
        atexit.register(self.stop)
        self._await_answer(self._child, timeout)

    def stop(self) -> None:
        """Asks the program to end, kills it after five seconds, and returns when it is gone."""
        child, self._child = self._child, None
        atexit.unregister(self.stop)
        if child is None:
            return
        _signal_all(child, signal.SIGTERM)
        try:
            child.wait(timeout=5)
        except subprocess.TimeoutExpired:
            pass
        finally:
            _signal_all(child, signal.SIGKILL)  # also those of its children that outlived it
            child.wait()

    def kill(self) -> None:
        """Ends the program by SIGKILL: its connections break off and its port refuses at once."""
        if self._child is not None:
            _signal_all(self._child, signal.SIGKILL)
        self.stop()

    def _await_answer(self, child: subprocess.Popen[bytes], timeout: float) -> None:
        try:
            until(
                lambda: child.poll() is not None or self._ready(),
                timeout=timeout,
                what=self._argv[0],
            )
        except TimeoutError as error:
            self.stop()
            raise ServerFailedError(f"{error}\n{self._tail()}") from error
        if child.poll() is not None:
            self.stop()
            raise ServerFailedError(f"{self._argv} ended with {child.returncode}\n{self._tail()}")

    def _tail(self) -> str:
        return self._log.read_text(errors="replace")[-2000:]


def _leash() -> list[str]:
    """On Linux the kernel ends the program when the test run is killed and cannot clean up.

    The kernel looks at the thread that started it, so start servers from the main thread.
    """
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL", "--"] if setpriv else []


def _signal_all(child: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, number)
