"""Conformance suites for stores, by idemkit and justonce, over our ledger.

Both demand that the effect may be done again when a lease is over, and that records may expire. We
refuse that: the attempt that held the lease may have reached the world, and a record that is gone
is an effect that can be repeated. What is refused is listed here with its reason, and must fail.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from idemkit.conformance import BackendConformance, ConformanceReport
from justonce.conformance import StoreConformanceTests

from langgraph_idem import Ledger
from tests.support.databases import fresh_postgres_database
from tests.support.suites import IdemkitBackend, JustonceStore

if TYPE_CHECKING:
    from collections.abc import Iterator

RUNS_AGAIN = (
    "an expired lease is no permission to run again: the attempt may have reached the world. The "
    "ledger looks up, sends the same key while the provider keeps it, or asks a person"
)
EXPIRES = "a record does not expire: an effect that is forgotten can be repeated"


# --- justonce ------------------------------------------------------------------------------------

refused = pytest.mark.xfail(strict=True, raises=AssertionError, reason=RUNS_AGAIN)
never_swept = pytest.mark.xfail(strict=True, raises=AssertionError, reason=EXPIRES)


class TestJustonce(StoreConformanceTests):
    """justonce's contract of a store; three of its rules are refused."""

    _ledger: Ledger

    @pytest.fixture(autouse=True)
    def _make_ledger(self, database_url: str) -> Iterator[None]:
        with Ledger(database_url) as self._ledger:
            self._ledger.setup()
            yield

    def make_store(self) -> JustonceStore:
        """Hand the store over."""
        return JustonceStore(self._ledger)

    @refused
    def test_expired_claim_is_reclaimable(self) -> None:
        """Refused: the lease is over, so the effect may be done again."""
        super().test_expired_claim_is_reclaimable()

    @refused
    def test_expired_claim_is_reclaimable_by_the_same_request(self) -> None:
        """Refused: the lease is over, so the same request may do the effect again."""
        super().test_expired_claim_is_reclaimable_by_the_same_request()

    @never_swept
    def test_sweep_removes_terminal_records_past_their_retention(self) -> None:
        """Refused: a success is forgotten after a while."""
        super().test_sweep_removes_terminal_records_past_their_retention()


# --- idemkit -------------------------------------------------------------------------------------

VECTORS = (
    *("atomic-claim", "duplicate-claim", "conditional-complete", "fencing-wrong-token"),
    *("release-clears-claim", "lease-reclaim", "fenced-after-reclaim"),
    *("concurrent-claim-exactly-one", "in-flight-wait", "wait-timeout", "completed-ttl-expiry"),
    *("renew-extends-lease", "renew-fenced"),
)
REFUSED = {
    "lease-reclaim": RUNS_AGAIN,
    "fenced-after-reclaim": RUNS_AGAIN,  # its fencing part is fencing-wrong-token's
    "completed-ttl-expiry": EXPIRES,
}


@pytest.fixture(
    scope="module",
    params=["sqlite", pytest.param("postgresql", marks=pytest.mark.server("postgresql"))],
)
def report(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ConformanceReport]:
    """What idemkit says of our ledger."""
    if request.param == "sqlite":
        yield asyncio.run(_judged(f"sqlite:///{tmp_path_factory.mktemp('idemkit') / 'it.db'}"))
        return
    with fresh_postgres_database(request.getfixturevalue("postgresql_server")) as url:
        yield asyncio.run(_judged(url))


async def _judged(url: str) -> ConformanceReport:
    ledger = Ledger(url)
    try:
        await ledger.asetup()
        return await BackendConformance(IdemkitBackend(ledger)).run()
    finally:
        await ledger.aclose()


@pytest.mark.parametrize("vector", VECTORS)
def test_idemkit_vector(report: ConformanceReport, vector: str) -> None:
    """Each of idemkit's vectors passes, but for the refused ones, which must not."""
    (result,) = [result for result in report.results if result.vector_id == vector]
    if vector not in REFUSED:
        assert result.passed, result.error
        return
    assert not result.passed, f"passes now, though refused: {REFUSED[vector]}"
    assert result.error is not None
    assert result.error.startswith("assertion:"), result.error
    pytest.xfail(REFUSED[vector])


def test_idemkit_has_no_other_vectors(report: ConformanceReport) -> None:
    """A vector that idemkit adds is judged here, too, before it can be overlooked."""
    assert {result.vector_id for result in report.results} == set(VECTORS)
