"""What a database cannot promise is refused at set-up, in words: each case on the real database."""

from __future__ import annotations

import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import SingletonThreadPool, StaticPool

from langgraph_idem import ConfigurationError, Ledger, LedgerError
from langgraph_idem.cli import main
from langgraph_idem.sql.probes import mounts
from tests.support import databases
from tests.support import shop as shops
from tests.support.shop import Shop

NO_UNIQUE: Final = "no primary key or unique index over exactly scope, operation and key"


def refused(bind: Any, words: str, **options: Any) -> None:
    """Set up; it must be refused in these words."""
    with Ledger(bind, **options) as ledger, pytest.raises(ConfigurationError, match=words):
        ledger.setup()


@contextmanager
def engine_of(url: str, *statements: str, **options: Any) -> Iterator[sa.Engine]:
    """Open an engine of the user's, each connection of which has run some statements."""
    engine = sa.create_engine(url, **options)

    @event.listens_for(engine, "connect")
    def _set(connection: Any, _record: Any) -> None:
        with closing(connection.cursor()) as cursor:
            for statement in statements:
                cursor.execute(statement)

    yield engine
    engine.dispose()


def changed(url: str, *statements: str) -> None:
    """Change a ledger's database behind its back."""
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.begin() as conn:
        for statement in statements:
            conn.exec_driver_sql(statement)


def set_up(url: str) -> None:
    """Make a ledger's tables."""
    with Ledger(url) as ledger:
        ledger.setup()


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def ready(request: pytest.FixtureRequest) -> str:
    """URL of a database with a ledger's tables, on each kind of server."""
    url = str(request.getfixturevalue(f"{request.param}_url"))
    set_up(url)
    return url


# --- what is unique -------------------------------------------------------------------------------

_COPY: Final = (
    "create table other as select * from idem_effects",
    "drop table idem_effects",
    "alter table other rename to idem_effects",
)
"""A table of the same columns, without any constraint: as some tools copy databases."""


def copied(url: str) -> None:
    """Copy the table of effects as some tools copy databases: without its constraints."""
    changed(url, *_COPY)


def test_an_ordinary_database_is_taken_again_and_again(ready: str) -> None:
    """The control: nothing is refused, and the rehearsal leaves no effect behind."""
    with Ledger(ready) as ledger:
        ledger.setup()
        ledger.setup()
        assert ledger.effects() == []


async def test_an_ordinary_database_is_taken_by_an_async_engine(ready: str) -> None:
    """The control in the other colour."""
    async with Ledger(databases.as_async(ready)) as ledger:
        await ledger.asetup()
        assert await ledger.aeffects() == []


def test_no_primary_key(ready: str) -> None:
    """Without its key the table would let every racer win."""
    copied(ready)
    refused(ready, NO_UNIQUE)


async def test_no_primary_key_when_awaiting(ready: str) -> None:
    """Likewise in the other colour, by every driver."""
    copied(ready)
    async with Ledger(databases.as_async(ready)) as ledger:
        with pytest.raises(ConfigurationError, match=NO_UNIQUE):
            await ledger.asetup()


def test_no_primary_key_and_the_command_line(
    ready: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`langgraph-idem migrate` refuses what setup() refuses, in one line."""
    copied(ready)
    monkeypatch.setattr("sys.argv", ["langgraph-idem", "migrate", "--url", ready])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr()
    assert (ended.value.code, said.out) == (2, "")
    assert NO_UNIQUE in said.err
    assert len(said.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("unique", "words"),
    [
        ("scope, operation", "unique index twice over scope, operation, by which an effect"),
        ("scope, operation, {key}, kind", NO_UNIQUE),
    ],
)
def test_a_key_over_other_columns(ready: str, unique: str, words: str) -> None:
    """Fewer columns than a name has, or more: neither is what names an effect."""
    is_narrow = "kind" not in unique
    if not is_narrow:
        copied(ready)
    columns = unique.format(key="`key`" if ready.startswith("mysql") else '"key"')
    changed(ready, f"create unique index twice on idem_effects ({columns})")
    refused(ready, words)


def test_a_unique_index_in_the_place_of_the_primary_key(ready: str) -> None:
    """It decides as well as a primary key does, whatever the order of its columns: accepted."""
    copied(ready)
    quoted = "`key`" if ready.startswith("mysql") else '"key"'
    changed(ready, f"create unique index anew on idem_effects ({quoted}, operation, scope)")
    set_up(ready)


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_a_partial_unique_index(database: str, request: pytest.FixtureRequest) -> None:
    """It lets two of the rows win that it is not about."""
    url = str(request.getfixturevalue(f"{database}_url"))
    set_up(url)
    copied(url)
    columns = "scope, operation, key"
    changed(url, f"create unique index p on idem_effects ({columns}) where state = 'succeeded'")
    refused(url, rf"{NO_UNIQUE} \(p is partial\)")


def test_an_invalid_unique_index_on_postgresql(postgresql_url: str) -> None:
    """A concurrent build that failed leaves an index which promises nothing of older rows."""
    set_up(postgresql_url)
    copied(postgresql_url)
    row = (
        "insert into idem_effects (scope, operation, key, kind, state, fingerprint, attempt_id,"
        " attempts, began_at, claimed_at, sent_at) values ('global', 'ship', 'O-1',"
        " 'transactional', 'succeeded', 'x', 'x', 1, now(), now(), now())"
    )
    changed(postgresql_url, row, row)
    build = "create unique index concurrently late on idem_effects (scope, operation, key)"
    address = postgresql_url.replace("+psycopg", "")
    with (
        psycopg.connect(address, autocommit=True) as connection,
        pytest.raises(psycopg.errors.UniqueViolation),
    ):
        connection.execute(build)
    refused(postgresql_url, rf"{NO_UNIQUE} \(late is invalid")


def test_a_deferrable_constraint_on_postgresql(postgresql_url: str) -> None:
    """It decides when the transaction commits, which is after the tool has run."""
    set_up(postgresql_url)
    copied(postgresql_url)
    key = "unique (scope, operation, key) deferrable initially deferred"
    changed(postgresql_url, f"alter table idem_effects add constraint late {key}")
    refused(postgresql_url, rf"{NO_UNIQUE} \(late is deferrable")


def test_an_index_over_the_beginning_of_the_key_on_mariadb(mariadb_url: str) -> None:
    """Two long keys that begin alike would be one."""
    set_up(mariadb_url)
    copied(mariadb_url)
    changed(mariadb_url, "create unique index cut on idem_effects (scope, operation, `key`(20))")
    refused(mariadb_url, rf"{NO_UNIQUE} \(cut compares only the first 20 characters of key\)")


# --- what is taken for one ------------------------------------------------------------------------


def test_keys_that_fold_case_on_sqlite(sqlite_url: str) -> None:
    """A NOCASE column answers one effect with another one's result."""
    set_up(sqlite_url)
    file = sqlite_url.removeprefix("sqlite:///")
    with closing(sqlite3.connect(file)) as connection:
        (sql,) = connection.execute(
            "select sql from sqlite_master where name = 'idem_effects'"
        ).fetchone()
        connection.execute("drop table idem_effects")
        connection.execute(sql.replace("VARCHAR(512)", "VARCHAR(512) COLLATE NOCASE"))
        connection.commit()
    refused(sqlite_url, rf"{NO_UNIQUE} \(.* compares by NOCASE, not byte by byte\)")


@pytest.mark.parametrize(
    ("collation", "end"),
    [
        ("utf8mb4_general_ci", "A"),
        ("utf8mb4_bin", " "),  # ignores trailing blanks
    ],
)
def test_keys_that_fold_on_mariadb(mariadb_url: str, collation: str, end: str) -> None:
    """MariaDB's usual collations take other keys for the same."""
    set_up(mariadb_url)
    column = f"varchar(512) character set utf8mb4 collate {collation} not null"
    changed(mariadb_url, f"alter table idem_effects modify `key` {column}")
    refused(mariadb_url, f"takes two keys for one, which differ by '{end}' at the end")


def test_keys_that_fold_on_postgresql(postgresql_url: str) -> None:
    """So does a nondeterministic collation."""
    set_up(postgresql_url)
    changed(
        postgresql_url,
        "create collation folded (provider = icu, locale = 'und-u-ks-level2',"
        " deterministic = false)",
        "alter table idem_effects alter key type varchar(512) collate folded",
    )
    refused(postgresql_url, rf"{NO_UNIQUE} \(idem_effects_pkey does not compare byte by byte\)")


def test_keys_of_a_type_that_folds_case_on_postgresql(postgresql_url: str) -> None:
    """No catalogue of collations tells it: the rehearsal does."""
    set_up(postgresql_url)
    changed(
        postgresql_url,
        "create extension citext",
        "alter table idem_effects alter key type citext",
    )
    refused(postgresql_url, "takes two keys for one, which differ by 'A' at the end")


# --- what is kept ---------------------------------------------------------------------------------


def test_a_table_without_transactions_on_mariadb(mariadb_url: str) -> None:
    """MyISAM would keep the claim of an effect that was rolled back: the effect would be lost."""
    set_up(mariadb_url)
    changed(mariadb_url, "alter table idem_effects drop primary key, engine = MyISAM")
    refused(mariadb_url, "is stored by MyISAM, which has no transactions")


def test_a_table_that_a_crash_empties_on_postgresql(postgresql_url: str) -> None:
    """An unlogged table forgets every effect when the server dies."""
    set_up(postgresql_url)
    changed(postgresql_url, "alter table idem_effects set unlogged")
    refused(postgresql_url, "is UNLOGGED: after a crash of the server it would be empty")
    changed(postgresql_url, "alter table idem_effects set logged")
    set_up(postgresql_url)


def test_an_encoding_with_no_place_for_every_key(postgresql_server: str) -> None:
    """A LATIN1 database cannot write down what happened to a customer with another script."""
    name = "idem_in_latin1"
    engine = sa.create_engine(postgresql_server, isolation_level="AUTOCOMMIT")
    with engine.connect() as conn:
        conn.exec_driver_sql(f"drop database if exists {name}")
        made = f"create database {name} encoding 'LATIN1' locale 'C' template template0"
        conn.exec_driver_sql(made)
        try:
            url = urlunsplit(urlsplit(postgresql_server)._replace(path=f"/{name}"))
            refused(url, "encoded in LATIN1, which has no place for every key")
        finally:
            conn.exec_driver_sql(f"drop database {name} with (force)")
    engine.dispose()


def test_a_table_with_no_place_for_every_text(mariadb_url: str) -> None:
    """Neither can a table whose texts are latin1, which is the default of many a database."""
    set_up(mariadb_url)
    changed(mariadb_url, "alter table idem_effects modify result longtext character set latin1")
    refused(mariadb_url, "does not take an effect: .*Incorrect string value")


def test_a_database_with_another_default(mariadb_url: str) -> None:
    """The ledger's own tables have a place for every text, whatever the database's default is."""
    name = mariadb_url.rpartition("/")[2]
    changed(mariadb_url, f"alter database {name} character set latin1 collate latin1_swedish_ci")
    with Ledger(mariadb_url) as ledger:
        ledger.setup()
        assert ledger.once("ask", key="\N{RECEIPT}", do=lambda _session: "\N{RECEIPT} ж") == (
            ledger.effects()[0].key + " ж"
        )


@pytest.mark.parametrize("mode", ["off", "memory"])
def test_no_journal_on_sqlite(sqlite_url: str, mode: str) -> None:
    """Without one, a process killed inside a transaction leaves a damaged file."""
    with engine_of(sqlite_url, f"PRAGMA journal_mode={mode}") as engine:
        refused(engine, f"has journal_mode={mode.upper()}")


@pytest.mark.parametrize("mode", ["delete", "truncate", "persist", "wal"])
def test_every_journal_on_sqlite(sqlite_url: str, mode: str) -> None:
    """Each of the others brings a killed transaction back: the user's own choice is accepted."""
    with engine_of(sqlite_url, f"PRAGMA journal_mode={mode}") as engine:
        Ledger(engine).setup()


def test_no_write_ahead_log_though_asked_for(tmp_path: Path) -> None:
    """Where it has no shared memory SQLite answers with another journal."""
    url = f"sqlite:///file:{tmp_path}/shop.db?vfs=unix-dotfile&uri=true"
    refused(url, "answers DELETE")
    with engine_of(url) as engine:  # has not asked for it, and has locks
        Ledger(engine).setup()


async def test_no_write_ahead_log_though_asked_for_when_awaiting(tmp_path: Path) -> None:
    """Likewise in the other colour."""
    url = f"sqlite:///file:{tmp_path}/shop.db?vfs=unix-dotfile&uri=true"
    async with Ledger(url) as ledger:
        with pytest.raises(ConfigurationError, match="answers DELETE"):
            await ledger.asetup()


@pytest.mark.parametrize("opened", ["vfs=unix-none", "nolock=1", "immutable=1"])
def test_a_file_without_locks(tmp_path: Path, opened: str) -> None:
    """Nothing keeps two writers apart there, whoever made the engine."""
    url = f"sqlite:///file:{tmp_path}/shop.db?{opened}&uri=true"
    refused(url, f"{opened} opens the SQLite file without locks")
    with engine_of(url) as engine:
        refused(engine, f"{opened} opens the SQLite file without locks")
    set_up(f"sqlite:///file:{tmp_path}/shop.db?nolock=0&mode=rwc&uri=true")


def test_a_ledger_in_an_attached_file(tmp_path: Path) -> None:
    """With a write-ahead log SQLite does not commit two files as one; with a journal it does."""
    attach = f"ATTACH '{tmp_path}/ledger.db' AS books"
    url = f"sqlite:///{tmp_path}/shop.db"
    refused(url, "No database is attached to this SQLite connection as books", schema="books")
    changed(url, "PRAGMA journal_mode=delete")
    with engine_of(url, attach) as engine:
        Ledger(engine, schema="books").setup()
    for wal in ("PRAGMA main.journal_mode=wal", "PRAGMA books.journal_mode=wal"):
        with engine_of(url, attach, "PRAGMA main.journal_mode=delete", wal) as engine:
            refused(engine, "does not commit several files as one", schema="books")


# --- who sees and writes what ---------------------------------------------------------------------


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///file:idem?mode=memory&uri=true"])
@pytest.mark.parametrize("pool", [sa.QueuePool, sa.NullPool])
def test_memory_of_the_users_own(url: str, pool: type[sa.Pool]) -> None:
    """Each connection has a database of its own there, and none survives the process."""
    with engine_of(url, poolclass=pool) as engine:
        refused(engine, "is in memory: it forgets everything")


async def test_memory_of_the_users_own_when_awaiting() -> None:
    """Likewise in the other colour, whose pool may hold several."""
    engine = create_async_engine("sqlite+aiosqlite://", poolclass=sa.AsyncAdaptedQueuePool)
    with pytest.raises(ConfigurationError, match="is in memory"):
        await Ledger(engine).asetup()
    await engine.dispose()


@pytest.mark.parametrize("pool", [StaticPool, SingletonThreadPool])
def test_a_pool_that_shares_its_connection(sqlite_url: str, pool: type[sa.Pool]) -> None:
    """Two effects at once would be in one transaction."""
    with engine_of(sqlite_url, poolclass=pool) as engine:
        refused(engine, "hands the same connection to several")


def test_uncommitted_reads_on_mariadb(mariadb_url: str) -> None:
    """They would answer with a result that is rolled back afterwards."""
    with engine_of(mariadb_url, isolation_level="READ UNCOMMITTED") as engine:
        refused(engine, "reads uncommitted rows")
    with engine_of(mariadb_url, isolation_level="READ COMMITTED") as engine:
        Ledger(engine).setup()


def test_uncommitted_reads_on_postgresql(postgresql_url: str) -> None:
    """PostgreSQL never shows what is not committed, whatever the level is called: accepted."""
    with engine_of(postgresql_url, isolation_level="READ UNCOMMITTED") as engine:
        Ledger(engine).setup()


def test_silent_cutting_on_mariadb(mariadb_url: str) -> None:
    """Without strict mode a long key is cut without an error, and is another one."""
    with engine_of(mariadb_url, "set session sql_mode = ''") as engine:
        refused(engine, "sql_mode is not strict")


def test_an_old_sqlite(sqlite_url: str) -> None:
    """SQLite before 3.35 cannot tell a claim that it won."""
    engine = sa.create_engine(sqlite_url)

    @event.listens_for(engine, "connect")
    def _age(connection: Any, _record: Any) -> None:
        connection.create_function("sqlite_version", 0, lambda: "3.34.1")

    refused(engine, "linked to SQLite 3.34.1; a ledger needs 3.35.0")
    engine.dispose()


def _read_only_file(url: str) -> Iterator[Any]:
    file = url.removeprefix("sqlite:///")
    yield f"sqlite:///file:{file}?mode=ro&uri=true"


def _standby(url: str) -> Iterator[Any]:
    read_only = {"options": "-c default_transaction_read_only=on"}
    with engine_of(url, connect_args=read_only) as engine:
        yield engine


def _reader(url: str) -> Iterator[Any]:
    role = "idem_reader_" + url.rpartition("_")[2]
    changed(
        url,
        f"create role {role} login",
        f"grant select, insert on all tables in schema public to {role}",
    )
    yield urlunsplit(urlsplit(url)._replace(netloc=f"{role}@{urlsplit(url).netloc.split('@')[1]}"))
    changed(url, f"drop owned by {role}", f"drop role {role}")


@pytest.mark.parametrize(
    ("database", "bind", "words"),
    [
        ("sqlite", _read_only_file, "attempt to write a readonly database"),
        ("postgresql", _standby, "read-only transaction"),
        ("postgresql", _reader, "permission denied"),
    ],
)
def test_a_ledger_that_may_only_be_read(
    database: str,
    bind: Callable[[str], Iterator[Any]],
    words: str,
    request: pytest.FixtureRequest,
) -> None:
    """Tables that take no effect are found at set-up, even if it has nothing to make."""
    url = str(request.getfixturevalue(f"{database}_url"))
    set_up(url)
    with contextmanager(bind)(url) as only_read:
        refused(only_read, f"does not take an effect: .*{words}.*The database must be writable")


def test_a_trigger_that_keeps_changes_out(postgresql_url: str) -> None:
    """What else may stand in an effect's way is found by the rehearsal."""
    set_up(postgresql_url)
    changed(
        postgresql_url,
        "create function f() returns trigger language plpgsql as 'begin return null; end'",
        "create trigger frozen before update on idem_effects for each row execute procedure f()",
    )
    refused(postgresql_url, "did not change when an effect was completed")


def test_a_column_that_is_missing(ready: str) -> None:
    """A table that somebody has made smaller is refused by the name of what it lacks."""
    changed(ready, "alter table idem_effects drop column note")
    refused(ready, r"does not take an effect: .*note")


# --- where the file is ----------------------------------------------------------------------------

MOUNTINFO: Final = """\
30 27 0:39 / {home} rw,relatime - autofs systemd-1 rw
31 27 0:40 / {home} rw,relatime shared:3 - {kind} server:/export rw,vers=4.2
32 31 0:41 / {home}/local rw - tmpfs tmpfs rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
"""


@pytest.fixture
def mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Let the kernel's table of mounts say that a folder is of a kind."""

    def say(kind: str) -> Path:
        home = tmp_path / "on a share"
        (home / "local").mkdir(parents=True)
        table = tmp_path / "mountinfo"
        table.write_text(MOUNTINFO.format(home=str(home).replace(" ", "\\040"), kind=kind))
        monkeypatch.setattr(mounts, "_MOUNTS", table)
        return home

    return say


@pytest.mark.parametrize("kind", ["nfs4", "nfs", "cifs", "smb3", "fuse.sshfs", "ceph"])
def test_a_file_on_another_machine(mounted: Callable[[str], Path], kind: str) -> None:
    """SQLite's locks hold on one machine only."""
    home = mounted(kind)
    refused(f"sqlite:///{home}/shop.db", rf"is on a network file system \({kind}\)")
    (home / "local" / "link").symlink_to(home)
    refused(f"sqlite:///{home}/local/link/shop.db", rf"network file system \({kind}\)")


def test_a_file_on_a_mount_of_the_kernels_own(tmp_path: Path) -> None:
    """Likewise as the kernel itself tells it, of a mount that calls itself sshfs's."""
    served, home = tmp_path / "served", tmp_path / "on a share"
    for folder in (served, home):
        folder.mkdir()
    try:
        mount = ["bindfs", "-o", "subtype=sshfs", str(served), str(home)]
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("bindfs is not installed, or may not mount here")
    try:
        refused(f"sqlite:///{home}/shop.db", r"is on a network file system \(fuse\.sshfs\)")
    finally:
        subprocess.run(["umount", "-l", str(home)], check=True)


@pytest.mark.parametrize("kind", ["ext4", "overlay", "fuse.bindfs", "9p"])
def test_a_file_on_this_machine(mounted: Callable[[str], Path], kind: str) -> None:
    """What is local, or cannot be told, is accepted; the innermost mount counts."""
    set_up(f"sqlite:///{mounted(kind)}/shop.db")


def test_a_local_folder_inside_a_share(mounted: Callable[[str], Path]) -> None:
    """The innermost mount counts."""
    set_up(f"sqlite:///{mounted('nfs4')}/local/shop.db")


def test_where_nobody_tells_of_mounts(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the kernel's table nothing is refused for where it is."""
    monkeypatch.setattr(mounts, "_MOUNTS", Path("/nowhere/mountinfo"))
    set_up(sqlite_url)


# --- a refusal changes nothing --------------------------------------------------------------------


def test_what_was_refused_has_made_no_tables(sqlite_url: str) -> None:
    """A database that is refused for what it is gets no tables."""
    with engine_of(sqlite_url, "PRAGMA journal_mode=memory") as engine:
        refused(engine, "journal_mode")
        assert sa.inspect(engine).get_table_names() == []


def test_set_up_leaves_the_effects_as_they_are(ready: str) -> None:
    """The rehearsal touches no row but its own."""
    shop = Shop(ready)
    with Ledger(ready) as ledger:
        shops.tool(ledger, "session")("O-1")
        before = shop.see("O-1")
        ledger.setup()
        assert shop.see("O-1") == before
        assert len(ledger.effects()) == 1


def test_a_locked_database_is_not_called_unfit(sqlite_url: str) -> None:
    """That somebody holds the lock says nothing of the database: it is another error."""
    set_up(sqlite_url)
    engine = sa.create_engine(sqlite_url, poolclass=sa.NullPool)
    with engine.connect() as conn, Ledger(sqlite_url, wait=0.1) as ledger:
        conn.exec_driver_sql("begin immediate")
        with pytest.raises(LedgerError, match="is locked"):
            ledger.setup()
