"""The ledger's tables in the user's own Alembic, as the how-to page says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
import sqlalchemy as sa

from langgraph_idem import Ledger
from langgraph_idem.admin import LedgerAdmin
from langgraph_idem.sql import migrations
from tests.support import shop as shops

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "how-to" / "databases.md"
SHOP: Final = """
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from langgraph_idem import Ledger

class Base(DeclarativeBase): ...

class Shipment(Base):
    __tablename__ = "shipments"
    number: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[str] = mapped_column(sa.String(600))
    note: Mapped[str | None] = mapped_column(sa.String(100))

engine = sa.create_engine({url!r}, poolclass=sa.NullPool)
ledger = Ledger({url!r}, {options})
"""


class Project:
    """A user's project with Alembic, whose ``env.py`` is the page's."""

    def __init__(self, folder: Path, url: str, options: str = "") -> None:
        self.folder = folder
        self.alembic("init", "migrations")
        env, self.version_row = re.findall(r"(?ms)^```py\n(.*?)^```", PAGE.read_text())
        (folder / "migrations" / "env.py").write_text(env)
        (folder / "shop.py").write_text(SHOP.format(url=url, options=options))

    def alembic(self, *words: str) -> str:
        """Run Alembic; it must succeed."""
        done = subprocess.run(
            [sys.executable, "-m", "alembic", *words],
            cwd=self.folder,
            env={"PYTHONPATH": f"{ROOT}:{self.folder}", "PATH": ""},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def revise(self) -> Path:
        """Generate a revision, and let it record the tables' version, as the page says."""
        self.alembic("revision", "--autogenerate", "-m", "the ledger")
        (revision,) = (self.folder / "migrations" / "versions").glob("*.py")
        text = revision.read_text()
        end = "    # ### end Alembic commands ###\n"
        revision.write_text(text.replace(end, end + self.version_row, 1))
        return revision


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def url(request: pytest.FixtureRequest) -> str:
    """URL of a fresh database, on each kind of server."""
    return str(request.getfixturevalue(f"{request.param}_url"))


def test_autogenerate_upgrade_and_go(url: str, tmp_path: Path) -> None:
    """A generated revision makes tables that a ledger takes without setup(); nothing differs."""
    project = Project(tmp_path, url)
    revision = project.revise()
    assert "langgraph_idem" not in revision.read_text().partition("def upgrade")[2]
    project.alembic("upgrade", "head")
    with Ledger(url) as ledger:
        tool = shops.tool(ledger, "session")
        shipped = tool("O-1")
        assert tool("O-1") == shipped
        assert [record.key for record in ledger.effects()] == ["O-1"]
    assert "No new upgrade operations detected" in project.alembic("check")
    with LedgerAdmin(url) as admin:
        assert [seen.record.key for seen in admin.effects(10)] == ["O-1"]
        assert admin.migrate() == (len(migrations.STEPS),) * 2
    assert "No new upgrade operations detected" in project.alembic("check")


def test_the_revision_makes_what_setup_makes(url: str, tmp_path: Path) -> None:
    """After setup() autogenerate finds nothing to do but the business's own tables."""
    with Ledger(url) as ledger:
        ledger.setup()
    project = Project(tmp_path, url)
    created = re.findall(r"op\.create_table\('(\w+)'", project.revise().read_text())
    assert created == ["shipments"]


def test_autogenerate_sees_what_is_missing(sqlite_url: str, tmp_path: Path) -> None:
    """The control: a column that is not there is seen as a difference."""
    project = Project(tmp_path, sqlite_url)
    project.revise()
    project.alembic("upgrade", "head")
    engine = sa.create_engine(sqlite_url, poolclass=sa.NullPool)
    with engine.begin() as conn:
        conn.exec_driver_sql("alter table idem_effects drop column note")
    with pytest.raises(AssertionError, match="add_column"):
        project.alembic("check")


def test_a_revision_of_another_prefix(postgresql_url: str, tmp_path: Path) -> None:
    """Tables of another name go the same way."""
    project = Project(tmp_path, postgresql_url, "prefix='books_'")
    project.version_row = project.version_row.replace("idem_schema", "books_schema")
    project.revise()
    project.alembic("upgrade", "head")
    with Ledger(postgresql_url, prefix="books_") as ledger:
        ledger.setup()
        shops.tool(ledger, "connection")("O-1")
        assert len(ledger.effects()) == 1
