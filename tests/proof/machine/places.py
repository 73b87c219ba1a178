"""Where a round takes place: a database that can be struck, a provider, and a folder of notes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit, urlunsplit

from tests.proof.machine.wires import Wire
from tests.support import databases

DISK = "64m"
"""How large the small disks are. PostgreSQL fills eight megabytes with an empty database, and as
much with the checkpoints of a round."""
ROOM = 4 << 20
"""Bytes that must be left when nothing fills the disk."""


@dataclass(frozen=True)
class Place:
    """What a worker needs to know, and what the checker reads.

    Attributes:
        kind: Of the effects.
        url: The database, through a wire that is cut.
        direct: The same database, by a way that is not.
        checkpoints: LangGraph's, through the wire; a file where LangGraph has no saver for it.
        provider: The port of the wire to the provider; 0: there is none.
        folder: Of the answers, on a disk that never fills.
        broken: Which guarantee is taken out of the library, for tests of the machine itself.

    """

    kind: str
    url: str
    direct: str
    checkpoints: str
    provider: int
    folder: Path
    broken: str | None = None

    @property
    def book(self) -> Path:
        """The provider's own file."""
        return self.folder / "provider.jsonl"


class Database(Protocol):
    """A kind of database, and what can be done to it."""

    @property
    def disk(self) -> SmallDisk | None:
        """The disk that can be filled, if there is one."""

    @property
    def wire(self) -> Wire | None:
        """The way to it that can be cut, if it is a server."""

    async def restart(self) -> None:
        """Let it crash, and start it again."""

    def fresh(self, folder: Path) -> contextlib.AbstractContextManager[tuple[str, str, str]]:
        """Make an empty database: its URL, the direct one, and that of the checkpoints."""


class SmallDisk:
    """A file system in memory, small enough to be full in no time.

    Args:
        owner: Who may write there; None: whoever made it.

    """

    def __init__(self, owner: str | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="idem-disk-"))
        mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(self.folder)]
        subprocess.run(mount, check=True, capture_output=True)
        if owner:
            shutil.chown(self.folder, owner, owner)

    def fill(self) -> None:
        """Leave not one byte free."""
        with contextlib.suppress(OSError), (self.folder / "filler").open("ab") as filler:
            for size in (1 << 20, 1 << 12):
                with contextlib.suppress(OSError):
                    while os.write(filler.fileno(), bytes(size)):
                        pass

    def free(self) -> None:
        """Give the space back.

        Raises:
            RuntimeError: The disk is full by itself, so that nothing could be said of what happens.

        """
        (self.folder / "filler").unlink(missing_ok=True)
        if shutil.disk_usage(self.folder).free < ROOM:
            raise RuntimeError(f"the small disk of {DISK} is too small for a round")

    def remove(self) -> None:
        """Unmount it."""
        subprocess.run(["umount", "-l", str(self.folder)], check=False, capture_output=True)
        with contextlib.suppress(OSError):
            self.folder.rmdir()


@contextlib.contextmanager
def _small_disk(owner: str | None = None) -> Iterator[SmallDisk | None]:
    """Mount a small disk, where this user may."""
    try:
        disk = SmallDisk(owner)
    except (OSError, subprocess.CalledProcessError):
        yield None
        return
    try:
        yield disk
    finally:
        disk.remove()


class Sqlite:
    """Files on the small disk."""

    wire: Wire | None = None

    def __init__(self, disk: SmallDisk | None) -> None:
        self.disk = disk

    async def restart(self) -> None:
        """There is no server."""
        raise NotImplementedError

    @contextlib.contextmanager
    def fresh(self, folder: Path) -> Iterator[tuple[str, str, str]]:
        """Make two files: SQLite locks them whole, and a checkpoint must not wait for the shop."""
        home = self.disk.folder / folder.name if self.disk else folder / "files"
        home.mkdir()
        url = f"sqlite:///{home / 'shop.db'}"
        yield url, url, f"sqlite:///{home / 'checkpoints.db'}"
        shutil.rmtree(home)


class _Crashing:
    """A server behind a wire."""

    disk: SmallDisk | None = None

    def __init__(self, url: str) -> None:
        self.url = url
        self.wire = Wire(urlsplit(url).port or 0)

    def through_wire(self, url: str) -> str:
        """Return the URL of the same database behind the wire."""
        parts = urlsplit(url)
        place = (parts.netloc.rpartition(":")[0]) + f":{self.wire.port}"
        return urlunsplit(parts._replace(netloc=place))


class Postgres(_Crashing):
    """A PostgreSQL that is stopped in a moment, and started again."""

    def __init__(self, server: databases.ThrowAwayPostgres, disk: SmallDisk | None) -> None:
        super().__init__(server.url)
        self._server, self.disk = server, disk
        if disk:
            self._run(f"create tablespace small location '{disk.folder}'")

    async def restart(self) -> None:
        """Stop it as a crash would, and start it: it recovers from its log."""
        await asyncio.to_thread(self._server.stop, "immediate")
        await asyncio.to_thread(self._server.start)

    @contextlib.contextmanager
    def fresh(self, folder: Path) -> Iterator[tuple[str, str, str]]:
        """Make a database on the small disk."""
        place = "tablespace small" if self.disk else ""
        self._run(f'create database "{folder.name}" template template0 {place}')
        url = urlunsplit(urlsplit(self.url)._replace(path=f"/{folder.name}"))
        yield self.through_wire(url), url, self.through_wire(url)
        self._run(f'drop database "{folder.name}" with (force)')

    def _run(self, sql: str) -> None:
        import psycopg

        address = urlunsplit(urlsplit(self.url)._replace(scheme="postgresql"))
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute(sql)


class MariaDB(_Crashing):
    """A MariaDB that is killed, and started again."""

    def __init__(self, server: databases.ThrowAwayMariaDB, disk: SmallDisk | None) -> None:
        super().__init__(server.url)
        self._server, self.disk = server, disk

    async def restart(self) -> None:
        """Kill it, and start it: it recovers from its log."""
        pid = int((self._server._folder / "pid").read_text())
        os.kill(pid, signal.SIGKILL)
        assert self._server._server is not None
        await asyncio.to_thread(self._server._server.wait)
        await asyncio.to_thread(self._server.start)

    @contextlib.contextmanager
    def fresh(self, folder: Path) -> Iterator[tuple[str, str, str]]:
        """Make a database, and a file for the checkpoints."""
        with databases.fresh_mariadb_database(self.url) as url:
            if self.disk:
                self._move(urlsplit(url).path.strip("/"), self.disk)
            yield self.through_wire(url), url, f"sqlite:///{folder / 'checkpoints.db'}"

    def _move(self, name: str, disk: SmallDisk) -> None:
        """Put an empty database on the small disk: its folder becomes a link."""
        home = self._server._folder / "data" / name
        there = Path(shutil.move(home, disk.folder / name))
        for moved in (there, *there.iterdir()):
            os.chown(moved, disk.folder.stat().st_uid, disk.folder.stat().st_gid)
        home.symlink_to(there, target_is_directory=True)


@contextlib.asynccontextmanager
async def database(name: str) -> AsyncIterator[Database]:
    """Start a database of a kind, and its wire.

    Raises:
        ServerMissingError: It cannot run here; the text says what to install.

    """
    with contextlib.ExitStack() as stack:
        made: Sqlite | Postgres | MariaDB
        if name == "sqlite":
            made = Sqlite(stack.enter_context(_small_disk()))
        elif name == "postgresql":
            server = databases.ThrowAwayPostgres()
            disk = stack.enter_context(_small_disk(server._user))
            made = Postgres(stack.enter_context(server), disk)
        else:
            maria = databases.ThrowAwayMariaDB()
            disk = stack.enter_context(_small_disk(maria._user))
            made = MariaDB(stack.enter_context(maria), disk)
        if made.wire is not None:
            await made.wire.open()
        try:
            yield made
        finally:
            if made.wire is not None:
                await made.wire.close()
