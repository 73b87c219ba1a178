"""Throw-away database servers on loopback, and a fresh database for each test.

Also a program: ``python -m tests.support.databases run COMMAND...`` starts PostgreSQL (and
MariaDB, where it is installed), tells COMMAND through ``IDEM_TEST_POSTGRES_URL`` and
``IDEM_TEST_MARIADB_URL``, and stops both at the end. It imports nothing but the standard library,
so that it runs before anything is installed.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote, urlsplit, urlunsplit

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from typing_extensions import Self

POSTGRES_URL = "IDEM_TEST_POSTGRES_URL"
MARIADB_URL = "IDEM_TEST_MARIADB_URL"
START_TIMEOUT = 60.0
"""Seconds that a server may take to start: a laden machine needs more than one."""


class ServerMissingError(Exception):
    """A server cannot run here; the text says what to install or to set."""


class Server(Protocol):
    """A database server that can be stopped, started again, and asked for its URL."""

    url: str

    def start(self) -> None:
        """Start the server and wait until it answers."""

    def stop(self) -> None:
        """Stop the server and wait until it is gone."""

    def __enter__(self) -> Self:
        """Start the server."""

    def __exit__(self, *exc: object) -> None:
        """Stop the server and remove its files."""


def in_ci() -> bool:
    """Tell whether a missing server is a failure here rather than a reason to skip."""
    return bool(os.environ.get("IDEM_CI") or os.environ.get("CI"))


# --- PostgreSQL -----------------------------------------------------------------------------------


class ThrowAwayPostgres:
    """A PostgreSQL of Debian's binaries in a folder of its own, as an ordinary user."""

    def __init__(self) -> None:
        self._bin = _postgres_binaries()
        self._user = _ordinary_user("postgres")
        self._folder = _folder_of(self._user, "idem-pg-")
        self._port = free_port()
        self.url = f"postgresql+psycopg://postgres@127.0.0.1:{self._port}/postgres"
        self._initialise()

    def start(self) -> None:
        """Start the server and wait until it answers."""
        # fsync is for power cuts: a killed server loses nothing without it, and tests run faster.
        options = (
            f"-p {self._port} -k {self._folder} -c listen_addresses=127.0.0.1"
            " -c max_connections=200 -c fsync=off -c shared_buffers=64MB"
        )
        log = str(self._folder / "server.log")
        self._pg_ctl("start", "-t", str(int(START_TIMEOUT)), "-l", log, "-o", options)

    def stop(self, mode: str = "fast") -> None:
        """Stop the server and wait until it is gone.

        Args:
            mode: ``smart``, ``fast``, or ``immediate`` (as a crash: no clean shutdown, recovery at
                the next start).
        """
        self._pg_ctl("stop", "-m", mode)

    def __enter__(self) -> Self:
        """Start the server."""
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        """Stop the server and remove its files."""
        with contextlib.suppress(subprocess.CalledProcessError):  # a test may have stopped it
            self.stop("immediate")
        shutil.rmtree(self._folder, ignore_errors=True)

    def _initialise(self) -> None:
        pgdata = str(self._folder / "data")
        arguments = ["-D", pgdata, "-A", "trust", "-U", "postgres", "-E", "UTF8", "--no-sync"]
        _run_as(self._user, [str(self._bin / "initdb"), *arguments])

    def _pg_ctl(self, verb: str, *arguments: str) -> None:
        pgdata = str(self._folder / "data")
        _run_as(self._user, [str(self._bin / "pg_ctl"), "-D", pgdata, "-w", *arguments, verb])


def _postgres_binaries() -> Path:
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=_version_of)
    on_path = shutil.which("initdb")
    found = [*([Path(on_path).resolve().parent] if on_path else []), *debian]
    for folder in reversed(found):
        if (folder / "initdb").exists() and (folder / "pg_ctl").exists():
            return folder
    msg = f"no PostgreSQL: set {POSTGRES_URL} or install Debian's postgresql"
    raise ServerMissingError(msg)


def _version_of(folder: Path) -> float:
    try:
        return float(folder.parent.name)
    except ValueError:
        return 0.0


# --- MariaDB --------------------------------------------------------------------------------------


class ThrowAwayMariaDB:
    """A MariaDB of Debian's binaries in a folder of its own, as an ordinary user."""

    def __init__(self) -> None:
        for program in ("mariadbd", "mariadb-install-db", "mariadb-admin", "mariadb"):
            _require(program, f"no MariaDB: set {MARIADB_URL} or install Debian's mariadb-server")
        self._user = _ordinary_user("mysql")
        self._folder = _folder_of(self._user, "idem-my-")
        self._port = free_port()
        self._server: subprocess.Popen[bytes] | None = None
        self.url = f"mysql+pymysql://idem:idem@127.0.0.1:{self._port}/mysql"
        self._initialise()

    def start(self) -> None:
        """Start the server and wait until it answers."""
        with (self._folder / "server.log").open("ab") as log:
            self._server = subprocess.Popen(
                _as_user(self._user, self._command()),
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._wait_until_it_answers()

    def stop(self) -> None:
        """Stop the server and wait until it is gone."""
        _run_as(self._user, ["mariadb-admin", *self._client(), "shutdown"])
        if self._server is not None:
            self._server.wait(START_TIMEOUT)

    def __enter__(self) -> Self:
        """Start the server and make its one user."""
        self.start()
        sql = "create user idem@'%' identified by 'idem'; grant all on *.* to idem@'%'"
        _run_as(self._user, ["mariadb", *self._client(), "-e", sql])
        return self

    def __exit__(self, *exc: object) -> None:
        """Stop the server and remove its files."""
        with contextlib.suppress(subprocess.CalledProcessError):  # a test may have stopped it
            self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _initialise(self) -> None:
        options = [f"--datadir={self._folder}/data", "--auth-root-authentication-method=normal"]
        command = ["mariadb-install-db", "--no-defaults", *options, "--skip-test-db"]
        _run_as(self._user, command)

    def _command(self) -> list[str]:
        return [
            "mariadbd",
            "--no-defaults",
            f"--datadir={self._folder}/data",
            f"--socket={self._folder}/s.sock",
            f"--pid-file={self._folder}/pid",
            "--bind-address=127.0.0.1",
            f"--port={self._port}",
            "--innodb-buffer-pool-size=64M",
            "--innodb-flush-log-at-trx-commit=2",  # as fsync=off above
            "--character-set-server=utf8mb4",
            "--skip-name-resolve",
        ]

    def _client(self) -> list[str]:
        return ["--no-defaults", "-uroot", "-S", f"{self._folder}/s.sock"]

    def _wait_until_it_answers(self) -> None:
        ping = _as_user(self._user, ["mariadb-admin", *self._client(), "ping"])
        deadline = time.monotonic() + START_TIMEOUT
        while subprocess.run(ping, cwd="/", capture_output=True, check=False).returncode:
            if time.monotonic() > deadline:
                msg = (self._folder / "server.log").read_text(errors="replace")
                raise TimeoutError(msg)
            time.sleep(0.05)


# --- a database of one's own ----------------------------------------------------------------------


@contextlib.contextmanager
def fresh_postgres_database(server_url: str) -> Iterator[str]:
    """Make a database on a server, and drop it at the end, whoever is still connected.

    Args:
        server_url: SQLAlchemy URL of any database of the server, whose user may create databases.

    Yields:
        The SQLAlchemy URL of the new database (psycopg 3: the same for both colours).
    """
    import psycopg

    name = f"idem_{secrets.token_hex(6)}"
    libpq_url = urlunsplit(urlsplit(server_url)._replace(scheme="postgresql"))
    with psycopg.connect(libpq_url, autocommit=True) as connection:
        connection.execute(f'create database "{name}" template template0')
    try:
        yield _with_database(server_url, name, scheme="postgresql+psycopg")
    finally:
        with psycopg.connect(libpq_url, autocommit=True) as connection:
            connection.execute(f'drop database if exists "{name}" with (force)')


@contextlib.contextmanager
def fresh_mariadb_database(server_url: str) -> Iterator[str]:
    """Make a database on a MariaDB or MySQL server, and drop it at the end.

    Args:
        server_url: SQLAlchemy URL of any database of the server, whose user may create databases.

    Yields:
        The SQLAlchemy URL of the new database, for PyMySQL.
    """
    name = f"idem_{secrets.token_hex(6)}"
    _tell_mariadb(server_url, f"create database {name} character set utf8mb4")
    try:
        yield _with_database(server_url, name, scheme="mysql+pymysql")
    finally:
        _tell_mariadb(server_url, f"drop database if exists {name}")


def as_async(url: str) -> str:
    """Give the URL of the same database for the awaiting colour.

    Args:
        url: an SQLAlchemy URL as the fixtures give it.
    """
    blocking_to_awaiting = {
        "sqlite": "sqlite+aiosqlite",
        "postgresql+psycopg": "postgresql+psycopg",
        "mysql+pymysql": "mysql+asyncmy",
    }
    scheme, rest = url.split("://", 1)
    return f"{blocking_to_awaiting[scheme]}://{rest}"


def _with_database(url: str, name: str, *, scheme: str) -> str:
    return urlunsplit(urlsplit(url)._replace(scheme=scheme, path=f"/{name}"))


def _tell_mariadb(url: str, sql: str) -> None:
    import pymysql

    parts = urlsplit(url)
    connection: Any = pymysql.connect(
        host=parts.hostname or "127.0.0.1",
        port=parts.port or 3306,
        user=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
    )
    with connection, connection.cursor() as cursor:
        cursor.execute(sql)


# --- users, folders, ports ------------------------------------------------------------------------


def free_port() -> int:
    """Find a port on loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _ordinary_user(name: str) -> str | None:
    """Name the user to become, or None: database servers refuse to run as root."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam(name).pw_name
    except KeyError:
        msg = f"root may not run this server, and there is no user {name!r}"
        raise ServerMissingError(msg) from None


def _folder_of(user: str | None, prefix: str) -> Path:
    # Not pytest's tmp_path: a socket's path must be short, and another user must get in.
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    if user:
        shutil.chown(folder, user, pwd.getpwnam(user).pw_gid)
    return folder


def _as_user(user: str | None, command: Sequence[str]) -> list[str]:
    return ["runuser", "-u", user, "--", *command] if user else list(command)


def _run_as(user: str | None, command: Sequence[str]) -> None:
    # A server inherits its starter's output: a pipe would never be closed, hence a file.
    with tempfile.TemporaryFile() as output:
        done = subprocess.run(
            _as_user(user, command),
            cwd="/",  # the caller's folder may be closed to that user
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
        output.seek(0)
        said = output.read().decode(errors="replace")
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, list(command), said)


def _require(program: str, otherwise: str) -> None:
    if shutil.which(program) is None:
        raise ServerMissingError(otherwise)


# --- the program ----------------------------------------------------------------------------------


def run(command: Sequence[str]) -> int:
    """Run a command with every database server that this machine has.

    Args:
        command: the program and its arguments.

    Returns:
        The command's exit code.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the servers are stopped
    environment = dict(os.environ)
    with contextlib.ExitStack() as servers:
        for variable, kind in ((POSTGRES_URL, ThrowAwayPostgres), (MARIADB_URL, ThrowAwayMariaDB)):
            if not environment.get(variable):
                _serve(variable, kind, environment, servers)
        return _wait_for(subprocess.Popen(list(command), env=environment))


def _wait_for(child: subprocess.Popen[bytes]) -> int:
    try:
        return child.wait()
    finally:  # asked to end before the command has ended: it must not outlive its servers
        child.terminate()
        child.wait(START_TIMEOUT)


def _serve(
    variable: str,
    kind: type[Server],
    environment: dict[str, str],
    servers: contextlib.ExitStack,
) -> None:
    try:
        server = servers.enter_context(kind())
    except ServerMissingError as missing:
        sys.stderr.write(f"{missing}\n")
    else:
        environment[variable] = server.url
        sys.stderr.write(f"{variable}={server.url}\n")


if __name__ == "__main__":
    if sys.argv[1:2] != ["run"] or len(sys.argv) < 3:
        sys.exit("usage: python -m tests.support.databases run COMMAND [ARGUMENT...]")
    sys.exit(run(sys.argv[2:]))
