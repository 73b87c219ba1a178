"""What a worker does until it is killed: one function for each colour, run in a fork."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import itertools
import os
import re
import resource
import signal
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Final

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool

from langgraph_idem import (
    EffectBusy,
    Ledger,
    LedgerError,
    OutcomeUnknown,
    Recovery,
    RunStatus,
    arecover,
    create_react_agent,
    recover,
)
from langgraph_idem.testing import ScriptedChatModel
from tests.proof.machine import broken, clocks
from tests.proof.machine.journal import Journal
from tests.proof.machine.places import Place
from tests.proof.machine.plan import WAIT, Fate, Life
from tests.proof.machine.shop import Desk, charging, shipping
from tests.proof.machine.windows import WatchedSite, Window

AT_ONCE: Final = 3
"""Calls that an async worker has under way."""
PR_SET_PDEATHSIG: Final = 1
"""Of Linux's ``prctl``."""
PAUSE: Final = 0.1
"""Seconds before a clean worker asks again."""
WAITED_FOR: Final = (EffectBusy, LedgerError, OutcomeUnknown, sqlite3.OperationalError)
"""What may be over in a while: a lease, a lock; for agents the lock of their checkpoints."""
PATIENT: Final = 15.0
"""Seconds for which a clean worker asks again before it gives a key up."""


class Worker:
    """What both colours share."""

    def __init__(self, place: Place, life: Life, name: str) -> None:
        self.place, self.life = place, life
        self.journal = Journal(place.folder, name)
        self.window = Window(place.folder / f"window-{name}")
        self.ledger = Ledger(place.url, wait=WAIT)
        self.ledger._sites.around = lambda site: WatchedSite(site, self.window)
        self._is_patient = True
        self.desk = Desk(place.provider, self.journal, self.window.close)

    @property
    def is_clean(self) -> bool:
        """Tell whether it is one that comes when all is quiet, and asks until it is answered."""
        return self.life.number < 0

    @property
    def operation(self) -> str:
        """The operation of the effects, where there is only one."""
        return "ship" if self.place.kind == "transactional" else "charge"

    def tool(self) -> Callable[..., Any]:
        """Make the tool of this place."""
        if self.place.kind == "transactional":
            return shipping(self.ledger, self.life.colour)
        return charging(self.ledger, self.desk, self.place.kind, self.life.colour)

    def turns(self) -> Iterator[str]:
        """List what to work on: once, or for ever if death comes anyhow."""
        if self.life.fate is Fate.SPARED:
            return iter(self.life.keys)
        return itertools.cycle(self.life.keys)

    def is_patient(self, since: float) -> bool:
        """Tell whether to ask again for what was first asked for then; one stuck key is enough."""
        self._is_patient &= time.monotonic() - since < PATIENT
        return self._is_patient

    def needs_person(self, error: Exception) -> bool:
        """Tell whether nothing but a person can settle it."""
        return isinstance(error, OutcomeUnknown) and self.place.kind == "remote-neither"

    @contextlib.contextmanager
    def noted(self, *names: str) -> Iterator[Noted]:
        """Note what is asked for, and the error if one comes of it."""
        noted = Noted(self.is_clean)
        for name in names:
            self.journal.asked(name)
        try:
            with self.window.call():
                yield noted
        except Exception as error:  # noqa: BLE001 - whatever it is, the checker shall see it
            noted.is_over = not isinstance(error, WAITED_FOR) or self.needs_person(error)
            for name in names:
                self.journal.error(name, error)
            time.sleep(0.01)  # a server that is down should not be asked a thousand times

    def agent(self, saver: Any) -> Any:
        """Make an agent that ships and charges one order, both at once."""
        ship = tool("ship")(shipping(self.ledger, self.life.colour))
        charge = tool("charge")(charging(self.ledger, self.desk, "agent", self.life.colour))
        model = ScriptedChatModel([_reply] * 1000)
        return create_react_agent(model, [ship, charge], ledger=self.ledger, checkpointer=saver)

    def read(self, state: Any) -> bool:
        """Note what the model was told; tell whether the run is through."""
        messages = state.values.get("messages", ())
        for message in messages:
            found = re.search(r"number\D*(\d+)", str(message.content))
            if isinstance(message, ToolMessage) and message.status == "success" and found:
                self.journal.result(f"{message.name} {_order_of(messages)}", int(found[1]))
        return state.values.get("status") == RunStatus.COMPLETED and not state.next


class Noted:
    """How a call went.

    Args:
        may_wait: Whether the worker asks again where waiting may help.

    """

    def __init__(self, may_wait: bool) -> None:  # noqa: FBT001 - the only thing it is told
        self._may_wait = may_wait
        self._is_over = True

    @property
    def is_over(self) -> bool:
        """Tell whether there is nothing left to wait for, or nobody who would."""
        return self._is_over or not self._may_wait

    @is_over.setter
    def is_over(self, is_over: bool) -> None:
        self._is_over = is_over


def address_of(url: str) -> str:
    """Return a checkpointer's idea of a database URL."""
    return url.removeprefix("sqlite:///").replace("+psycopg", "")


def _order_of(messages: list[BaseMessage]) -> str:
    return str(messages[0].content).split()[-1]


def _reply(messages: list[BaseMessage]) -> AIMessage:
    """Ask for what has no result yet: so would a model."""
    done = {m.name for m in messages if isinstance(m, ToolMessage) and m.status == "success"}
    order, turn = _order_of(messages), sum(isinstance(m, AIMessage) for m in messages)
    calls = [
        {"name": name, "args": {"order_id": order}, "id": f"call_{turn}_{name}"}
        for name in ("ship", "charge")
        if name not in done
    ]
    return AIMessage("" if calls else f"{order} is through", tool_calls=calls)


# --- sync -----------------------------------------------------------------------------------------


def _sync(worker: Worker) -> None:
    with worker.ledger:
        call = _run if worker.place.kind == "agent" else _caller(worker)
        for order in worker.turns():
            began = time.monotonic()
            while not call(worker, order) and worker.is_patient(began):
                time.sleep(PAUSE)


def _caller(worker: Worker) -> Callable[[Worker, str], bool]:
    made = worker.tool()

    def call(worker: Worker, order: str) -> bool:
        name = f"{worker.operation} {order}"
        with worker.noted(name) as noted:
            worker.journal.result(name, made(order).number)
        return noted.is_over

    return call


def _run(worker: Worker, order: str) -> bool:
    config: RunnableConfig = {"configurable": {"thread_id": order}}
    with worker.noted(f"ship {order}", f"charge {order}") as noted, saver_of(worker.place) as saver:
        agent = worker.agent(saver)
        if recover(agent, config=config) is Recovery.NOTHING_TO_RECOVER:
            agent.invoke({"task": f"ship and charge {order}"}, config)
        noted.is_over = worker.read(agent.get_state(config))
    return noted.is_over


@contextlib.contextmanager
def saver_of(place: Place) -> Iterator[Any]:
    """Open LangGraph's checkpointer of a place."""
    from langgraph.checkpoint.postgres import PostgresSaver
    from langgraph.checkpoint.sqlite import SqliteSaver

    address = place.checkpoints
    kind: Any = SqliteSaver if address.startswith("sqlite") else PostgresSaver
    with kind.from_conn_string(address_of(address)) as saver:
        yield saver


# --- async ----------------------------------------------------------------------------------------


async def _async(worker: Worker) -> None:
    async with worker.ledger:
        call = _arun if worker.place.kind == "agent" else _acaller(worker)
        keys = worker.turns()

        async def in_turn() -> None:
            for order in keys:
                began = time.monotonic()
                while not await call(worker, order) and worker.is_patient(began):  # noqa: ASYNC110 - a database is polled
                    await asyncio.sleep(PAUSE)

        await asyncio.gather(*(in_turn() for _ in range(AT_ONCE)))


def _acaller(worker: Worker) -> Callable[[Worker, str], Awaitable[bool]]:
    made = worker.tool()

    async def call(worker: Worker, order: str) -> bool:
        name = f"{worker.operation} {order}"
        with worker.noted(name) as noted:
            worker.journal.result(name, (await made(order)).number)
        return noted.is_over

    return call


async def _arun(worker: Worker, order: str) -> bool:
    config: RunnableConfig = {"configurable": {"thread_id": order}}
    with worker.noted(f"ship {order}", f"charge {order}") as noted:
        async with _asaver(worker) as saver:
            agent = worker.agent(saver)
            if await arecover(agent, config=config) is Recovery.NOTHING_TO_RECOVER:
                await agent.ainvoke({"task": f"ship and charge {order}"}, config)
            noted.is_over = worker.read(await agent.aget_state(config))
    return noted.is_over


@contextlib.asynccontextmanager
async def _asaver(worker: Worker) -> AsyncIterator[Any]:
    from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

    address = worker.place.checkpoints
    kind: Any = AsyncSqliteSaver if address.startswith("sqlite") else AsyncPostgresSaver
    async with kind.from_conn_string(address_of(address)) as saver:
        yield saver


# --- the fork -------------------------------------------------------------------------------------


def work(place: Place, life: Life, name: str, is_ready: Any) -> None:
    """Live. It is told that the worker is ready once there is nothing left but to work."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # not to outlive the machine
    log = os.open(place.folder / f"log-{name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the forks' parent ignores it
    clocks.shift(place, life)
    broken.take_out(place.broken)
    if life.file_limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (life.file_limit, life.file_limit))
    worker = Worker(place, life, name)
    is_ready.send(True)  # noqa: FBT003 - any message
    is_ready.close()
    if life.colour == "async":
        asyncio.run(_async(worker))
    else:
        _sync(worker)
