"""Which of LangGraph's ids stay the same when a tool runs again? Measured, without our library.

``python -m examples.identity`` makes one tool run twice, once for each event that does so, and
shows what the tool was told the second time. Where a crash is needed, a real process is killed;
where it matters what had reached the disk by then, the checkpointer is made to wait, so that the
answer does not depend on luck.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import tempfile
import threading
import uuid
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, ToolRuntime, tools_condition
from langgraph.types import Command, RetryPolicy, interrupt

if TYPE_CHECKING:
    from collections.abc import Callable

CONFIG: Any = {"configurable": {"thread_id": "thread-1"}}
ASK: Any = {"messages": [HumanMessage("charge O-1", id="request-1")]}
NEVER = 600.0
"""Seconds: longer than any of these processes lives."""


@dataclass(frozen=True)
class Seen:
    """What a tool was told about its own call."""

    tool_call_id: str
    arguments: str
    task_id: str
    checkpoint_ns: str
    checkpoint_id: str
    node_attempt: int


@dataclass
class Place:
    """A folder in which one event is staged: the tool's effects and the checkpoints.

    Attributes:
        folder: Where.
        act: What the tool does after its effect, given how often it has run: raise, ask, die.
        meet: Something that the tool awaits before it goes on.

    """

    folder: Path
    act: Callable[[int], Any] = lambda _runs: None
    meet: Callable[[], Any] = lambda: None
    turn: threading.Lock = field(default_factory=threading.Lock)

    @property
    def checkpoints(self) -> str:
        """The checkpointer's file."""
        return str(self.folder / "checkpoints.db")

    @property
    def seen(self) -> list[Seen]:
        """What the tool was told, run by run: each line is an effect that cannot be undone."""
        lines = (self.folder / "effects").read_text().splitlines()
        return [Seen(**json.loads(line)) for line in lines]

    def note(self, seen: Seen) -> int:
        """Bring the effect about; return how often it has been."""
        with self.turn, (self.folder / "effects").open("a") as effects:
            effects.write(json.dumps(asdict(seen)) + "\n")
            effects.flush()
            os.fsync(effects.fileno())
        return len(self.seen)


def charging(place: Place) -> BaseTool:
    """Make the tool: it notes what it is told, and does what the event wants."""

    @tool
    def charge(order_id: str, runtime: ToolRuntime) -> str:
        """Charge an order."""
        place.meet()
        place.act(place.note(seen_in(runtime, order_id)))
        return f"charged {order_id}"

    return charge


def seen_in(runtime: Any, order_id: str) -> Seen:
    """Note what LangGraph tells a tool about its call."""
    info = runtime.execution_info
    return Seen(
        tool_call_id=str(runtime.tool_call_id),
        arguments=order_id,
        task_id=str(info.task_id),
        checkpoint_ns=str(info.checkpoint_ns),
        checkpoint_id=str(info.checkpoint_id),
        node_attempt=info.node_attempt,
    )


def plan(messages: list[BaseMessage], call_id: Callable[[], str]) -> AIMessage:
    """Stand for a model: it calls until the tool has succeeded, under an id of its own choice."""
    last = messages[-1]
    if isinstance(last, ToolMessage) and last.status != "error":
        return AIMessage("Charged.")
    request = next(m for m in reversed(messages) if isinstance(m, HumanMessage))
    order_id = str(request.content).removeprefix("charge ")
    call = {"name": "charge", "args": {"order_id": order_id}, "id": call_id()}
    return AIMessage("", tool_calls=[call])


def new_id() -> str:
    """Number a call as most providers do: at random."""
    return uuid.uuid4().hex


def agent(
    tools: list[BaseTool],
    saver: Any,
    *,
    call_id: Callable[[], str] = new_id,
    retry: RetryPolicy | None = None,
    handle: bool = False,
    model: Callable[[list[BaseMessage], Callable[[], str]], AIMessage] = plan,
    **options: Any,
) -> Any:
    """Build the usual loop out of LangGraph's own parts."""

    def thinks(state: MessagesState) -> dict[str, Any]:
        return {"messages": [model(list(state["messages"]), call_id)]}

    builder = StateGraph(MessagesState)
    builder.add_node("model", thinks)
    builder.add_node("tools", ToolNode(tools, handle_tool_errors=handle), retry_policy=retry)
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", tools_condition)
    builder.add_edge("tools", "model")
    return builder.compile(checkpointer=saver, **options)


def fail_once(runs: int) -> None:
    """Fail after the first effect, as if its answer had been lost."""
    if runs == 1:
        raise ConnectionError("the answer was lost")


def die_once(runs: int) -> None:
    """Die after the first effect, as the kernel's out-of-memory killer would have it."""
    if runs == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def retried(place: Place) -> None:
    """Let the node's retry policy run it again."""
    place.act = fail_once
    policy = RetryPolicy(initial_interval=0.01, jitter=False, retry_on=ConnectionError)
    with SqliteSaver.from_conn_string(place.checkpoints) as saver:
        agent([charging(place)], saver, retry=policy).invoke(ASK, CONFIG)


def retried_by_middleware(place: Place) -> None:
    """Let LangChain's ToolRetryMiddleware run it again."""
    from langchain.agents import create_agent
    from langchain.agents.middleware import ToolRetryMiddleware

    from langgraph_idem.testing import ScriptedChatModel

    place.act = fail_once
    model = ScriptedChatModel([lambda messages: plan(messages, new_id)] * 2)
    retry = ToolRetryMiddleware(initial_delay=0.01, jitter=False)
    with SqliteSaver.from_conn_string(place.checkpoints) as saver:
        made: Any = create_agent(model, [charging(place)], middleware=[retry], checkpointer=saver)
        made.invoke(ASK, CONFIG)


def asked(place: Place) -> None:
    """Let the tool ask a person after its effect, and the person answer."""
    place.act = lambda _runs: interrupt("Is this right?")
    with SqliteSaver.from_conn_string(place.checkpoints) as saver:
        made = agent([charging(place)], saver)
        made.invoke(ASK, CONFIG)
        made.invoke(Command(resume="yes"), CONFIG)


def beside_a_question(place: Place) -> None:
    """Let another call of the same message ask a person, while this one is through."""

    @tool
    def confirm() -> str:
        """Ask a person."""
        return str(interrupt("Is this right?"))

    def both(messages: list[BaseMessage], call_id: Callable[[], str]) -> AIMessage:
        planned = plan(messages, call_id)
        also = [{"name": "confirm", "args": {}, "id": call_id()}] if planned.tool_calls else []
        return AIMessage(planned.content, tool_calls=[*planned.tool_calls, *also])

    with SqliteSaver.from_conn_string(place.checkpoints) as saver:
        made = agent([charging(place), confirm], saver, model=both)
        made.invoke(ASK, CONFIG)
        made.invoke(Command(resume="yes"), CONFIG)


def resumed_twice(place: Place) -> None:
    """Let two workers resume one run at the same time."""
    place.meet = threading.Barrier(2, timeout=30).wait
    with SqliteSaver.from_conn_string(place.checkpoints) as saver:
        made = agent([charging(place)], saver, interrupt_before=["tools"])
        made.invoke(ASK, CONFIG)
        workers = [threading.Thread(target=made.invoke, args=(None, CONFIG)) for _ in range(2)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()


def travelled(place: Place, *, edited: bool) -> None:
    """Go back to before the tool ran, and run on from there; first, maybe, edit the arguments."""
    with SqliteSaver.from_conn_string(place.checkpoints) as saver:
        made = agent([charging(place)], saver)
        made.invoke(ASK, CONFIG)
        before = next(s for s in made.get_state_history(CONFIG) if s.next == ("tools",))
        config = before.config
        if edited:
            message = before.values["messages"][-1]
            calls = [{**message.tool_calls[0], "args": {"order_id": "O-2"}}]
            change = {"messages": [message.model_copy(update={"tool_calls": calls})]}
            config = made.update_state(config, change)
        made.invoke(None, config)


def planned_anew(place: Place) -> None:
    """Let the model read an error, and call again."""
    place.act = fail_once
    with SqliteSaver.from_conn_string(place.checkpoints) as saver:
        agent([charging(place)], saver, handle=True).invoke(ASK, CONFIG)


def sent_again(place: Place) -> None:
    """Let the client send the same message, with the same id, a second time."""
    with SqliteSaver.from_conn_string(place.checkpoints) as saver:
        made = agent([charging(place)], saver)
        made.invoke(ASK, CONFIG)
        made.invoke(ASK, CONFIG)


def numbered_anew(place: Place) -> None:
    """Let a provider number the calls of each turn from 0, and the person ask for another order."""
    with SqliteSaver.from_conn_string(place.checkpoints) as saver:
        made = agent([charging(place)], saver, call_id=lambda: "call_0")
        made.invoke(ASK, CONFIG)
        made.invoke({"messages": [HumanMessage("charge O-2")]}, CONFIG)


def within_another_agent(place: Place) -> None:
    """Let the tool belong to an agent that is itself a tool, and ask a person."""
    place.act = lambda _runs: interrupt("Is this right?")
    inner = agent([charging(place)], saver=False)

    @tool("charge")
    def clerk(order_id: str) -> str:
        """Have a clerk charge an order."""
        return str(inner.invoke({"messages": [HumanMessage(f"charge {order_id}")]})["messages"][-1])

    with SqliteSaver.from_conn_string(place.checkpoints) as saver:
        made = agent([clerk], saver)
        made.invoke(ASK, CONFIG)
        made.invoke(Command(resume="yes"), CONFIG)


class Waiting(SqliteSaver):
    """A checkpointer that is slower than the work: some writes never reach the disk.

    Attributes:
        lost: What is lost: ``"step"`` (the model's step), ``"checkpoint"`` (only the checkpoint
            after it), ``"result"`` (what the tool returned), or nothing.
        landed: Is set when the checkpoint before the tool is on disk.

    """

    lost: str
    landed: threading.Event

    def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        """Write a checkpoint, or never."""
        lost = {"step": 1, "checkpoint": 1, "result": 2}.get(self.lost)
        if metadata["step"] == lost:
            threading.Event().wait(NEVER)
        done = super().put(config, checkpoint, metadata, new_versions)
        if metadata["step"] == 1:
            self.landed.set()
        return done

    def put_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        """Write what a task did, or never."""
        messages = [m for _, value in writes if isinstance(value, list) for m in value]
        is_result = any(isinstance(message, ToolMessage) for message in messages)
        if self.lost == "step" or (self.lost == "result" and is_result):
            threading.Event().wait(NEVER)
        super().put_writes(config, writes, task_id, task_path)
        if self.lost == "checkpoint" and any(isinstance(m, AIMessage) for m in messages):
            self.landed.set()


def run_and_die(folder: Path, durability: str, lost: str) -> None:
    """Run the agent in this process, which does not survive it."""
    landed = threading.Event()
    place = Place(folder)
    in_model = lost == "result"
    if not in_model:
        place.act = die_once
    if durability == "async" and lost != "step":
        place.meet = lambda: landed.wait(30)

    def thinks(messages: list[BaseMessage], call_id: Callable[[], str]) -> AIMessage:
        if in_model and isinstance(messages[-1], ToolMessage):
            os.kill(os.getpid(), signal.SIGKILL)
        return plan(messages, call_id)

    with Waiting.from_conn_string(place.checkpoints) as saver:
        saver.lost, saver.landed = lost, landed  # type: ignore[attr-defined]  # it is ours
        agent([charging(place)], saver, model=thinks).invoke(ASK, CONFIG, durability=durability)


def killed(place: Place, *, durability: str, lost: str = "") -> None:
    """Kill the process, and go on in this one; where nothing can be resumed, ask again."""
    arguments = (place.folder, durability, lost)
    process = multiprocessing.get_context("spawn").Process(target=run_and_die, args=arguments)
    process.start()
    process.join(60)
    if process.exitcode != -signal.SIGKILL:
        raise RuntimeError(f"the process ended with {process.exitcode} and should have been killed")
    with SqliteSaver.from_conn_string(place.checkpoints) as saver:
        made = agent([charging(place)], saver)
        # Not `next`: it is empty where a step's result is on disk and its checkpoint is not.
        is_there = bool(made.get_state(CONFIG).tasks)
        made.invoke(None if is_there else ASK, CONFIG, durability=durability)


EVENTS: dict[str, Callable[[Place], None]] = {
    "the node's `RetryPolicy`": retried,
    "`ToolRetryMiddleware`": retried_by_middleware,
    "`interrupt()` in the tool, after the effect; resume": asked,
    "`interrupt()` in a sibling call (plain `ToolNode`); resume": beside_a_question,
    "two resumes at once": resumed_twice,
    'killed in the tool, `"sync"`': partial(killed, durability="sync"),
    'killed in the tool, `"async"`, checkpoint on disk': partial(killed, durability="async"),
    'killed in the tool, `"async"`, checkpoint not yet on disk': partial(
        killed, durability="async", lost="checkpoint"
    ),
    'killed in the tool, `"async"`, model\'s step not yet on disk': partial(
        killed, durability="async", lost="step"
    ),
    'killed in the next model call, `"async"`, result not yet on disk': partial(
        killed, durability="async", lost="result"
    ),
    'killed in the tool, `"exit"`; request sent again': partial(killed, durability="exit"),
    "time travel: `invoke(None, earlier_config)`": partial(travelled, edited=False),
    "fork with edited arguments": partial(travelled, edited=True),
    "the model reads an error and calls again": planned_anew,
    "the client sends the same message again": sent_again,
    "a sub-agent's tool asks a person; resume": within_another_agent,
    "next turn, *another* order, provider counts from `call_0`": numbered_anew,
}
"""Everything that makes a tool run again; the last one is another effect, and must run."""

IDS = ("tool_call_id", "arguments", "task_id", "checkpoint_ns", "checkpoint_id", "node_attempt")


def measured(event: Callable[[Place], None]) -> list[str]:
    """Stage an event; return for each id whether the tool saw the same one again, or a new one."""
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder))
        event(place)
        runs = place.seen
    if len(runs) != 2:
        raise RuntimeError(f"the tool ran {len(runs)} times and should have run twice")
    first, second = (asdict(seen) for seen in runs)
    return ["same" if first[name] == second[name] else "new" for name in IDS]


def main() -> None:
    """Measure and show the table, as Markdown."""
    print("|", " | ".join(["the tool runs again because of", *IDS]), "|")
    print("|", " | ".join(["---"] * (len(IDS) + 1)), "|")
    for name, event in EVENTS.items():
        try:
            ids = measured(event)
        except ModuleNotFoundError as missing:
            ids = [f"(needs {missing.name})"] * len(IDS)
        print("|", " | ".join([name, *ids]), "|", flush=True)


if __name__ == "__main__":
    main()
