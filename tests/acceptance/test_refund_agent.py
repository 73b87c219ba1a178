"""The refund agent as its readers run it; what it claims is read from its files."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.support.remotes import installed

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.server("remotes")


def demo(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the example as a person does, without a key of Stripe's."""
    kept = {name: value for name, value in os.environ.items() if name != "STRIPE_API_KEY"}
    return subprocess.run(
        [sys.executable, "-m", "examples.refund_agent", *arguments],
        cwd=ROOT,
        env=kept | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def effect(folder: Path, run: str) -> tuple[str, str | None, str | None]:
    """Read the run's effect past the library: state, who settled it, and the result."""
    engine = sa.create_engine(f"sqlite:///{folder / run / 'ledger.db'}")
    with engine.connect() as conn:
        ((state, by, result),) = conn.execute(
            sa.text("select state, resolved_by, result from idem_effects")
        )
    engine.dispose()
    return state, by, result


@pytest.fixture
def remotes() -> None:
    """Skip where the provider's server is not installed."""
    try:
        installed.node()
        installed.npm_file("stripe-stateful-mock")
    except installed.NotInstalledError as error:
        pytest.skip(str(error))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_after_the_provider_acted_there_is_one_refund(tmp_path: Path, remotes: None) -> None:
    """One refund whoever settles it: the look-up by itself, a person where nothing can tell."""
    done = demo("--directory", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr

    state, by, found = effect(tmp_path, "look-up")
    assert (state, by) == ("succeeded", None)
    state, by, told = effect(tmp_path, "person")
    assert state == "succeeded"
    assert by is not None
    # Both results name a refund that the provider listed.
    for result in (found, told):
        (refund,) = re.findall(r"re_\w+", str(result))
        assert f"provider         {refund} over 500 cents" in done.stdout

    assert done.stdout.count("SIGKILL now") == 2
    assert done.stdout.count("a question for a person") == 1
    again = demo("--directory", str(tmp_path))
    assert again.returncode == 1
    assert "holds earlier runs" in again.stderr


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"LANGGRAPH_IDEM_REMOTES": "/nowhere"}, "install.sh"),
        ({"PATH": "/nowhere"}, "node"),
        ({"STRIPE_API_KEY": "sk_live_1"}, "this moves money"),
    ],
)
def test_what_is_missing_is_said_in_words(environment: dict[str, str], words: str) -> None:
    """Without a provider the example says what to install, and never touches a live account."""
    done = demo(**environment)
    assert done.returncode == 1
    assert words in done.stderr
    assert "Traceback" not in done.stderr
