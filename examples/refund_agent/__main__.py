"""Run the experiments: ``python -m examples.refund_agent``."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from examples.refund_agent.provider import provider


def main() -> int:
    """Kill a refund agent at the worst moment, twice, and judge by the provider's own books."""
    parser = argparse.ArgumentParser(prog="python -m examples.refund_agent", description=__doc__)
    parser.add_argument("--directory", type=Path, help="keep the SQLite files there")
    chosen = parser.parse_args().directory
    with tempfile.TemporaryDirectory(prefix="refund-agent-") as temporary:
        return _run(chosen or Path(temporary))


def _run(folder: Path) -> int:
    if any((folder / name).exists() for name in ("look-up", "person")):
        sys.exit(f"{folder} holds earlier runs. Name another --directory, or remove them.")
    with provider() as found:
        os.environ.update(found.environment)
        from examples.refund_agent.experiments import acceptance, by_a_person, by_look_up

        print(f"The provider: {found.name}")
        print("Right is: one refund of 5.00 at the provider, whoever dies and whenever.")
        print(
            f"An attempt is presumed alive for {found.lease:g} s, because the client gives up "
            f"after {found.timeout:g} s\n(by default five minutes: nobody should wait that long "
            "for a demonstration)."
        )
        runs = [by_look_up(folder, found), by_a_person(folder, found)]
        return 0 if acceptance(runs) else 1


if __name__ == "__main__":
    sys.exit(main())
