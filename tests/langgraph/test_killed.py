"""Killed at every write that LangGraph makes, and within the tool: one effect, and the run ends."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from langgraph_idem import Recovery, RunStatus, State, arecover, recover
from tests.langgraph.dying import (
    CONFIG,
    TASK,
    Death,
    order_agent,
    run_async,
    run_dying_tool,
    run_sync,
    was_killed,
)
from tests.langgraph.shop import Shop

WRITES_AT_MOST = 40
ONCE = {"taken": [("O-1", "A")], "notified": [("O-1",)]}


class FirstStep(BaseCallbackHandler):
    """Notes what a resumed run starts with."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def on_chat_model_start(self, *args: Any, **kwargs: Any) -> None:
        """Note that the model was asked."""
        self.seen.append("waiting_model")

    def on_tool_start(self, *args: Any, **kwargs: Any) -> None:
        """Note that a tool was called."""
        self.seen.append("waiting_tool")

    @property
    def first(self) -> str | None:
        """What came first; None if nothing ran."""
        return self.seen[0] if self.seen else None


def _watched(watcher: FirstStep) -> Any:
    return {**CONFIG, "callbacks": [watcher]}


def _assert_done_once(shop: Shop, values: dict[str, Any], case: object) -> None:
    assert {table: shop.rows(table) for table in ONCE} == ONCE, case
    assert values["status"] is RunStatus.COMPLETED, case
    assert values["next_step"] is None, case
    done = {(step["operation"], step["outcome"]) for step in values["done_steps"]}
    assert done == {("take", "succeeded"), ("notify", "succeeded")}, case
    states = sorted((effect.operation, effect.state) for effect in shop.ledger.effects())
    assert states == [("notify", State.SUCCEEDED), ("take", State.SUCCEEDED)], case


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("way", ["plain resume", "recover"])
def test_killed_at_every_write_of_the_checkpointer(
    database_url: str, checkpoints: str, when: str, way: str
) -> None:
    """Wherever it is killed: next_step is what a resume does first, and all is done just once."""
    shop = Shop.founded_at(database_url)
    for at in range(1, WRITES_AT_MOST):
        case, file = (at, when), f"{checkpoints}-{at}"
        if not was_killed(run_sync, database_url, file, Death(at, when)):
            break
        with SqliteSaver.from_conn_string(file) as saver:
            agent = order_agent(shop, shop.tools(), saver)
            _assert_resumes(agent, way, case)
            _assert_done_once(shop, agent.get_state(CONFIG).values, case)
        shop.write("delete from taken")
        shop.write("delete from notified")
        shop.write("delete from idem_effects")
    else:
        pytest.fail("the run never came to its end")
    assert at > 8
    shop.ledger.close()


def _assert_resumes(agent: Any, way: str, case: object) -> None:
    found = agent.get_state(CONFIG)
    if found.metadata is None:  # killed before anything was written
        assert recover(agent, "O-1") is Recovery.NOTHING_TO_RECOVER, case
        agent.invoke(TASK, CONFIG)
        return
    watcher = FirstStep()
    if way == "recover":
        expected = Recovery.RECOVERED_FROM_CHECKPOINT if found.tasks else Recovery.ALREADY_COMPLETED
        assert recover(agent, config=_watched(watcher)) is expected, case
    else:
        agent.invoke(None, _watched(watcher))
    assert watcher.first == found.values["next_step"], case
    ends = RunStatus.COMPLETED if found.values["next_step"] is None else RunStatus.RUNNING
    assert found.values["status"] is ends, case


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
async def test_killed_at_every_write_of_the_checkpointer_async(
    async_database_url: str, database_url: str, checkpoints: str, when: str
) -> None:
    """The async agent keeps the same promise, by its own saver and its own tools."""
    shop = Shop.founded_at(database_url)
    for at in range(1, WRITES_AT_MOST):
        case, file = (at, when), f"{checkpoints}-{at}"
        if not was_killed(run_async, database_url, file, Death(at, when)):
            break
        async with AsyncSqliteSaver.from_conn_string(file) as saver:
            agent = order_agent(shop, shop.tools(colour="async"), saver)
            await _assert_resumes_async(agent, case)
            _assert_done_once(shop, (await agent.aget_state(CONFIG)).values, case)
        shop.write("delete from taken")
        shop.write("delete from notified")
        shop.write("delete from idem_effects")
    else:
        pytest.fail("the run never came to its end")
    assert at > 8
    await shop.ledger.aclose()


async def _assert_resumes_async(agent: Any, case: object) -> None:
    found = await agent.aget_state(CONFIG)
    if found.metadata is None:
        assert await arecover(agent, "O-1") is Recovery.NOTHING_TO_RECOVER, case
        await agent.ainvoke(TASK, CONFIG)
        return
    watcher = FirstStep()
    expected = Recovery.RECOVERED_FROM_CHECKPOINT if found.tasks else Recovery.ALREADY_COMPLETED
    assert await arecover(agent, config=_watched(watcher)) is expected, case
    assert watcher.first == found.values["next_step"], case


@pytest.mark.parametrize("way", ["plain resume", "recover"])
@pytest.mark.parametrize("place", ["before the effect", "before the commit", "after the commit"])
def test_killed_within_the_tool(database_url: str, checkpoints: str, place: str, way: str) -> None:
    """A tool killed before its effect, before or after its commit: one effect, the run ends."""
    shop = Shop.founded_at(database_url)
    assert was_killed(run_dying_tool, database_url, checkpoints, place)
    assert shop.rows("taken") == (ONCE["taken"] if place == "after the commit" else [])
    with SqliteSaver.from_conn_string(checkpoints) as saver:
        agent = order_agent(shop, shop.tools(), saver)
        found = agent.get_state(CONFIG)
        assert (found.values["status"], found.values["next_step"]) == (
            RunStatus.RUNNING,
            "waiting_tool",
        )
        if way == "recover":
            assert recover(agent, "O-1") is Recovery.RECOVERED_FROM_CHECKPOINT
        else:
            agent.invoke(None, CONFIG)
        _assert_done_once(shop, agent.get_state(CONFIG).values, place)
        assert recover(agent, "O-1") is Recovery.ALREADY_COMPLETED
        _assert_done_once(shop, agent.get_state(CONFIG).values, place)
    shop.ledger.close()
