"""One worker process: it goes on with the order, or begins with it, and may be told to die."""

from __future__ import annotations

import argparse
import os
from types import ModuleType
from typing import Any

from langchain_core.callbacks import BaseCallbackHandler

from examples.order_agent import agent as safe
from examples.order_agent.agent import THREAD, model_named
from examples.order_agent.checkpoints import MOMENTS, open_checkpoints
from examples.order_agent.tools import ledger


class Narrator(BaseCallbackHandler):
    """Says what the tools are asked and what they answer."""

    def on_tool_start(
        self, serialized: dict[str, Any], input_str: str, *, inputs: Any = None, **_: Any
    ) -> None:
        """Say what the model asks for."""
        arguments = ", ".join(f"{name}={value}" for name, value in (inputs or {}).items())
        print(f"{serialized['name']}({arguments})", flush=True)

    def on_tool_end(self, output: Any, **_: Any) -> None:
        """Say what the tool answers."""
        print(f"  -> {getattr(output, 'content', output)}", flush=True)


def variant(*, unsafe: bool) -> ModuleType:
    """Return the module that builds the agent: with the library or without it."""
    if not unsafe:
        return safe
    from examples.order_agent import unsafe as without

    return without


def run(dies_when: str | None = None, model: str | None = None, *, unsafe: bool = False) -> None:
    """Work on the order in the databases named by SHOP_URL and CHECKPOINTS_URL.

    Args:
        dies_when: A key of ``MOMENTS``: when to die; None: live.
        model: ``PROVIDER:NAME`` of a real model; None: the scripted one.
        unsafe: Whether to work without the library.

    """
    with open_checkpoints(os.environ["CHECKPOINTS_URL"], dies_when) as saver:
        chosen = variant(unsafe=unsafe)
        if chosen is safe:
            ledger.setup()
        agent = chosen.build_agent(saver, model_named(model))
        config = {"configurable": {"thread_id": THREAD}, "callbacks": [Narrator()]}
        chosen.work(agent, config)


def main() -> None:
    """Work on the order, as one process among others."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--dies-when", choices=MOMENTS)
    parser.add_argument("--model", metavar="PROVIDER:NAME")
    parser.add_argument("--unsafe", action="store_true")
    options = parser.parse_args()
    run(options.dies_when, options.model, unsafe=options.unsafe)


if __name__ == "__main__":
    main()
