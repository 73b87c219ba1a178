"""The provider: Stripe's test mode where a key is given, else a server that speaks its API."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

try:
    import stripe
except ImportError:
    sys.exit('This example calls Stripe\'s API through its SDK: pip install "stripe>=12"')

if TYPE_CHECKING:
    from collections.abc import Iterator

INSTALL = "bash tests/support/remotes/install.sh"


@dataclass(frozen=True)
class Provider:
    """Where the provider is, and how patient its callers have to be.

    Attributes:
        name: What a person calls it.
        api_key: A key of Stripe's test mode.
        base_url: Another server than Stripe's own; empty: Stripe's.
        timeout: Seconds after which the client gives a request up.
        lease: Seconds for which an attempt is presumed alive: longer than ``timeout``, or a slow
            attempt would be taken for a dead one. Far shorter than the default of five minutes,
            so that nobody has to wait for the demonstration.

    """

    name: str
    api_key: str
    base_url: str
    timeout: float
    lease: float

    @property
    def environment(self) -> dict[str, str]:
        """How processes are told."""
        return {
            "STRIPE_API_KEY": self.api_key,
            "STRIPE_BASE_URL": self.base_url,
            "STRIPE_TIMEOUT": str(self.timeout),
            "REFUND_LEASE": str(self.lease),
        }


def client(*, dies_of_a_refund: bool = False) -> stripe.StripeClient:
    """Make a client as the environment says.

    Its own retries are off: the ledger decides whether a request is sent again.
    """
    base_url = os.environ.get("STRIPE_BASE_URL")
    http = Mortal if dies_of_a_refund else stripe.RequestsClient
    return stripe.StripeClient(
        os.environ["STRIPE_API_KEY"],
        max_network_retries=0,
        base_addresses={"api": base_url} if base_url else {},
        http_client=http(timeout=float(os.environ.get("STRIPE_TIMEOUT", "30"))),
    )


class Mortal(stripe.RequestsClient):
    """A connection in whose process the power fails when the provider has made a refund."""

    def request_with_retries(self, method: str, url: str, *args: Any, **kwargs: Any) -> Any:
        """Send a request, and perhaps die of the answer."""
        answer = super().request_with_retries(method, url, *args, **kwargs)
        _, status, _ = answer
        if method == "post" and url.endswith("/v1/refunds") and status == HTTPStatus.OK:
            print(
                "SIGKILL now: the provider has paid the money back, nothing is written down",
                flush=True,
            )
            os.kill(os.getpid(), signal.SIGKILL)
        return answer


@contextlib.contextmanager
def provider() -> Iterator[Provider]:
    """Find the provider: Stripe's test mode by ``STRIPE_API_KEY``, else the server on loopback."""
    key = os.environ.get("STRIPE_API_KEY")
    if key:
        if not key.startswith(("sk_test_", "rk_test_")):
            sys.exit("STRIPE_API_KEY is no key of the test mode (sk_test_...): this moves money.")
        yield Provider("Stripe's test mode", key, "", timeout=15, lease=20)
        return
    try:
        from tests.support.remotes.installed import NotInstalledError
        from tests.support.remotes.stripes import API_KEY, stripe_stateful_mock
    except ImportError as error:
        sys.exit(f"Run this in a clone of the repository: {error}")
    try:
        with tempfile.TemporaryDirectory() as log, stripe_stateful_mock(Path(log)) as remote:
            name = f"stripe-stateful-mock at {remote.base_url}"
            yield Provider(name, API_KEY, remote.base_url, timeout=1.5, lease=2)
    except NotInstalledError as error:
        sys.exit(
            f"{error}\nThe provider runs on node >= 20: {INSTALL} (needs npm), or {_OR_STRIPE}"
        )


_OR_STRIPE = "give a key of Stripe's test mode in STRIPE_API_KEY."


def paid_charge() -> str:
    """Let a customer pay 20.00, and return the charge's id."""
    charges = client().v1.charges
    return str(charges.create({"amount": 2000, "currency": "usd", "source": "tok_visa"}).id)


def refunds_of(charge: str) -> list[tuple[str, int]]:
    """Ask the provider which refunds there are of a charge: id and cents."""
    found = client().v1.refunds.list({"charge": charge, "limit": 100})
    return [(refund.id, refund.amount) for refund in found.auto_paging_iter()]
