"""One worker process: it goes on with the refund, or begins with it, and may be told to die."""

from __future__ import annotations

import argparse
import os
from typing import Any

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage
from langgraph.checkpoint.sqlite import SqliteSaver

from examples.refund_agent.provider import client
from examples.refund_agent.tools import refund_tool
from langgraph_idem import Ledger, Recovery, create_react_agent, recover
from langgraph_idem.testing import ScriptedChatModel

CENTS = 500


class Narrator(BaseCallbackHandler):
    """Says what the tool is asked and what it answers."""

    def on_tool_start(
        self, serialized: dict[str, Any], input_str: str, *, inputs: Any = None, **_: Any
    ) -> None:
        """Say what the model asks for."""
        arguments = ", ".join(f"{name}={value}" for name, value in (inputs or {}).items())
        print(f"{serialized['name']}({arguments})", flush=True)

    def on_tool_end(self, output: Any, **_: Any) -> None:
        """Say what the tool answers."""
        print(f"  -> {getattr(output, 'content', output)}", flush=True)


def scripted_model(order: str, charge: str) -> ScriptedChatModel:
    """Return a model without a model: one call, then a word to the customer."""
    call = {"order_id": order, "charge": charge, "cents": CENTS}
    return ScriptedChatModel(
        [
            AIMessage("", tool_calls=[{"name": "refund", "args": call, "id": "call_refund"}]),
            AIMessage(f"Order {order}: 5.00 are paid back."),
        ]
    )


def run(*, looks_up: bool, dies: bool) -> None:
    """Go on with the refund where a dead process left it, or begin with it."""
    order, charge = os.environ["ORDER"], os.environ["CHARGE"]
    with (
        Ledger(os.environ["LANGGRAPH_IDEM_URL"]) as ledger,
        SqliteSaver.from_conn_string(os.environ["CHECKPOINTS"]) as saver,
    ):
        ledger.setup()
        tool = refund_tool(ledger, client(dies_of_a_refund=dies), looks_up=looks_up)
        model = scripted_model(order, charge)
        agent = create_react_agent(model, [tool], ledger=ledger, checkpointer=saver)
        config: Any = {"configurable": {"thread_id": order}, "callbacks": [Narrator()]}
        found = recover(agent, config=config)
        if found is Recovery.NOTHING_TO_RECOVER:
            agent.invoke({"task": f"refund 5.00 of order {order}"}, config)
        else:
            print(f"recover: {found.value}", flush=True)
        _tell_how_it_stands(agent.get_state(config))


def _tell_how_it_stands(state: Any) -> None:
    for asked in state.interrupts:
        print(f"a question for a person: {asked.value['description']}", flush=True)
    print(f"status: {state.values['status'].name}", flush=True)


def main() -> None:
    """Work on the refund, as one process among others."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--dies", action="store_true", help="die of the provider's answer")
    parser.add_argument("--looks-up", action="store_true", help="can ask the provider")
    options = parser.parse_args()
    run(looks_up=options.looks_up, dies=options.dies)


if __name__ == "__main__":
    main()
