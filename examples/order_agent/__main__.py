"""The order agent is killed at the worst moments, and what is on disk is read back.

Each worker is a process of its own, and so is whoever reads the disk. Exit code 0: every run
left one deduction and one notification.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from examples.order_agent.agent import TASK, model_named
from examples.order_agent.experiments import Shown, acceptance, experiments
from examples.order_agent.stores import in_database, in_folder

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from examples.order_agent.experiments import NewStores


def main() -> int:
    """Run all experiments and judge them by what they left on disk."""
    options = _options()
    model_named(options.model)  # what is missing is said before anything starts
    print(f'The task: "{TASK}"')
    print("Stock is 10. Right is: stock 9, one notification, whatever is killed and whenever.")
    with _stores(options) as new_stores:
        runs = experiments(new_stores, Shown(unsafe=options.unsafe, model=options.model))
        holds = acceptance(runs)
    if options.directory or options.keep:
        print("Kept for a look:", *(f"\n  {run.stores.place}" for run in runs))
    return 0 if holds else 1


def _stores(options: argparse.Namespace) -> AbstractContextManager[NewStores]:
    if options.database_url:
        return in_database(options.database_url, keep=options.keep)
    return in_folder(options.directory)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.order_agent", description=__doc__)
    parser.add_argument("--unsafe", action="store_true", help="the same without langgraph-idem")
    parser.add_argument("--model", metavar="PROVIDER:NAME", help="a real model, through LangChain")
    parser.add_argument("--directory", type=Path, help="keep the SQLite files there")
    parser.add_argument("--database-url", metavar="URL", help="run on PostgreSQL instead")
    parser.add_argument("--keep", action="store_true", help="keep the PostgreSQL schemas")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
