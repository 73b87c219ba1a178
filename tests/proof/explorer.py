"""Runs the real protocols through every schedule up to a bound.

The protocols are coroutines that await nothing but their ports. Here each port stops before it
acts, and the explorer chooses: who goes on, who dies there, which answer is lost, when a request
arrives, when time passes. What a port answered is written down, so that an actor can be brought
back to any earlier point by feeding it the same answers; two schedules that lead to the same
state are followed once. The SQL is the library's own, on SQLite; a transaction that writes keeps
every other one from beginning, as ``BEGIN IMMEDIATE`` does.

Two assumptions, which the documentation asks of users: a request that has not arrived after the
client's time-out never will, and that time-out is shorter than the lease. And one of the machine:
between the protocol's last look at the clock and the moment the request leaves, nobody is frozen.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from types import coroutine as generator_coroutine
from typing import Any, Final
from unittest import mock

from langgraph_idem.effects import ABSENT, DONT_KNOW, Found, State
from langgraph_idem.sql.statements import LedgerStatements
from tests.proof.explorer_world import (
    KEEPS_KEY,
    LEASE,
    STATEMENTS_MODULE,
    TRAVEL,
    Actor,
    Budget,
    Database,
    Dropped,
    Entry,
    Failure,
    Message,
    Names,
    World,
    failed,
)

Choice = tuple[str, str]
"""Who, and what it does: ``("a", "commit")``, ``("a", "dies before (commit)")``."""

_FAULTS: Final = {
    "begin": ("locked", "disconnected"),
    "commit": ("disconnected before", "disconnected after"),
    "tool": ("refused", "broken"),
    "answer": ("timed out", "not sent"),
    "lookup": ("timed out", "don't know"),
}
_FINE: Final = {
    "EffectBusy",
    "OutcomeUnknown",
    "RecordedFailure",
    "Refused",
    "NotSent",
    "Broken",
    "CancelledError",
    "TransitionForbidden",
}
"""How a call may end without a result. Not among them: errors of the library's own making."""
_UNREACHABLE: Final = "cannot be reached"
"""What a LedgerError says, if the fault was the database's."""


@generator_coroutine
def _stop(kind: str) -> Any:
    """Stop before a port acts; the explorer says how it goes on."""
    return (yield kind)


Protocol = Callable[["Site", str], Coroutine[Any, Any, Any]]


@dataclass(frozen=True)
class Scenario:
    """Who does what, with which provider, up to which bound.

    Attributes:
        name: What it is called in reports.
        actors: By name, what each of them runs.
        recovery: What a clean call runs at the end.
        provider: ``keys``, ``lookup``, ``neither``, or ``database`` for transactional effects.
        budget: How often what may happen.
        jumps: By how many seconds time may pass at once.
        looks_first: Whether the ledger expects replays, and so reads before it claims.

    """

    name: str
    actors: dict[str, Protocol]
    recovery: Protocol
    provider: str
    budget: Budget
    jumps: tuple[float, ...] = (LEASE,)
    looks_first: bool = False


class Violation(Exception):
    """A promise is broken; the text says which, and by what schedule."""

    def __init__(self, promise: str) -> None:
        super().__init__(promise)
        self.promise = promise
        self.schedule: list[Choice] = []

    def __str__(self) -> str:
        steps = "\n  ".join(f"{who}: {what}" for who, what in self.schedule)
        return f"{self.promise}\n  {steps}"


@dataclass
class Site:
    """The ports of one actor during one step."""

    scenario: Scenario
    database: Database
    world: World
    actor: Actor
    log: list[Entry] = field(default_factory=list)
    position: int = 0
    opened: int | None = None
    is_real: bool = False
    is_dead: bool = False
    shields: int = 0
    asleep_since: Any = None
    was_told: bool = False

    # --- the protocol's side

    @asynccontextmanager
    async def transaction(self, *, writes: bool = True) -> AsyncIterator[Site]:
        """Open a transaction, or only look."""
        if not writes:
            yield self
            return
        await self._port("begin")
        try:
            yield self
        finally:
            self._leave()
        if self.log[self.position - 1].kind == "commit":
            await self._port("after commit")

    async def sql(self, work: Callable[[Any], Any]) -> Any:
        """Run the ledger's SQL."""
        return await self._port("sql", work)

    async def tool(self) -> Any:
        """Write the business row."""
        return await self._port("tool")

    async def commit(self) -> None:
        """Commit."""
        await self._port("commit")

    async def call(self, effect: Any) -> Any:
        """Send the request, then wait for the answer."""
        if self.is_dead:
            raise Dropped
        if not self._repeated("send"):
            self._send(effect.idempotency_key)
        return await self._port("answer")

    async def lookup(self, effect: Any) -> Any:
        """Ask the provider."""
        return await self._port("lookup", effect.idempotency_key)

    async def look(self) -> bool:
        """Let a person find out, at the provider, whether it happened."""
        return bool(await self._port("look"))

    async def sleep(self, _seconds: float) -> None:
        """Sleep until something has changed."""
        self.asleep_since = (self.world.rows, self.world.clock)
        await self._port("sleep")

    def monotonic(self) -> float:
        """Return the time."""
        if not self._repeated("monotonic"):
            self.log.append(Entry("monotonic", self.world.clock))
            self.position += 1
        return float(self.log[self.position - 1].answer)

    async def shielded(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run to the end, then be cancelled."""
        if self.is_dead:
            work.close()
            raise Dropped
        self.shields += 1
        try:
            answer = await work
        finally:
            self.shields -= 1
        if self.scenario.budget.cancels and not self.shields:
            await self._port("end of shield")
        return answer

    # --- the explorer's side

    def _repeated(self, kind: str) -> bool:
        """Tell whether this is still the past; then it is passed."""
        if self.position >= len(self.log):
            return False
        assert self.log[self.position].kind == kind, "the protocol is not deterministic"
        self.position += 1
        return True

    async def _port(self, kind: str, what: Any = None) -> Any:
        if self.is_dead:
            raise Dropped
        if self._repeated(kind):
            return self._again(self.log[self.position - 1], what)
        how = await _stop(kind)
        entry = self._acted(kind, how, what)
        self.log.append(entry)
        self.position += 1
        return entry.give()

    def _again(self, entry: Entry, what: Any) -> Any:
        """Answer as before; in a transaction that is still open the SQL must run again."""
        if entry.kind == "begin" and self.position - 1 == self.actor.opened:
            self._begin()
        elif self.is_real and not isinstance(entry.answer, Failure):
            self.database.clock = entry.clock
            again = self._acted(entry.kind, "goes on", what)
            self.database.clock = self.world.clock
            assert again.answer == entry.answer, (again, entry)
        return entry.give()

    def _acted(self, kind: str, how: str, what: Any) -> Entry:
        if how == "cancelled":
            return failed(kind, how)
        act: Callable[[str, Any], Entry] = getattr(self, f"_at_{kind.replace(' ', '_')}")
        return act(how, what)

    def _at_begin(self, how: str, _what: Any) -> Entry:
        if how != "goes on":
            return failed("begin", how)
        self.opened = self.position
        self._begin()
        return Entry("begin")

    def _begin(self) -> None:
        self.is_real = True
        self.database.raw.execute("begin immediate")

    def _leave(self) -> None:
        if self.is_real:
            self.database.raw.execute("rollback")
            self.is_real, self.opened = False, None

    def _at_sql(self, _how: str, work: Any) -> Entry:
        try:
            return Entry("sql", work(self.database.conn), self.database.clock)
        except Exception as error:  # noqa: BLE001 - whatever it is, the protocol shall see it
            return Entry("sql", Failure(repr(error), error))

    def _at_tool(self, how: str, _what: Any) -> Entry:
        if how != "goes on":
            return failed("tool", how)
        written = self.database.raw.execute(
            "insert into business (doer) values (?) returning number", (self.actor.name,)
        )
        return Entry("tool", written.fetchone()[0])

    def _at_commit(self, how: str, _what: Any) -> Entry:
        if how == "disconnected before":
            self._leave()
            return failed("commit", "disconnected")
        self.database.raw.execute("commit")
        self.is_real, self.opened = False, None
        self.world = replace(self.world, **self.database.committed())
        if how == "dies after":
            self.is_dead = True
            raise Dropped
        if how == "goes on":
            return Entry("commit")
        return failed("commit", "cancelled" if how == "cancelled after" else "disconnected")

    def _send(self, key: str) -> None:
        number = sum(entry.kind == "send" for entry in self.log)
        message = Message(self.actor.name, number, key, self.world.clock)
        self.world = replace(self.world, flight=(*self.world.flight, message))
        self.log.append(Entry("send"))
        self.position += 1

    def _at_answer(self, how: str, _what: Any) -> Entry:
        mine = own_message(self.world, self.actor.name)
        if how == "goes on":
            assert mine is not None
            self._forget(mine)
            if isinstance(mine.answer, str):
                return failed("answer", mine.answer)
            self.was_told = True
            return Entry("answer", mine.answer)
        if how == "not sent" or (mine is not None and mine.answer is not None):
            self._forget(mine)
        return failed("answer", how)

    def _forget(self, message: Message | None) -> None:
        flight = tuple(other for other in self.world.flight if other != message)
        self.world = replace(self.world, flight=flight)

    def _at_lookup(self, how: str, key: Any) -> Entry:
        if how == "timed out":
            return failed("lookup", how)
        if how != "goes on":
            return Entry("lookup", DONT_KNOW)
        found = [number for known, _when, number in self.world.effects if known == key]
        return Entry("lookup", Found(found[0]) if found else ABSENT)

    def _at_look(self, _how: str, _what: Any) -> Entry:
        return Entry("look", bool(self.world.effects))

    def _at_after_commit(self, _how: str, _what: Any) -> Entry:
        return Entry("after commit")

    def _at_sleep(self, _how: str, _what: Any) -> Entry:
        return Entry("sleep")

    def _at_end_of_shield(self, _how: str, _what: Any) -> Entry:
        return Entry("end of shield")


def _settled_entries(site: Site) -> Iterator[Entry]:
    """Forget when the SQL of transactions that are over has run: it will not run again."""
    for number, entry in enumerate(site.log):
        is_over = site.opened is None or number < site.opened
        yield replace(entry, clock=0.0) if is_over and entry.clock else entry


def own_message(world: World, name: str) -> Message | None:
    """Return the message that an actor waits for: its last, unless it is lost."""
    mine = [message for message in world.flight if message.sender == name]
    return max(mine, key=lambda message: message.number, default=None)


class Explorer:
    """Explores one scenario.

    After :meth:`run`: ``states`` that were told apart, ``steps`` between them, ``schedules`` from
    the beginning to an end, ``ends``.
    """

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.states = self.steps = self.schedules = 0
        self._known: dict[World, int] = {}
        self._ends: set[World] = set()
        self._names = Names()
        self._protocols = {**scenario.actors, "recovery": scenario.recovery}

    @property
    def ends(self) -> int:
        """How many different ends were checked, each with clean calls after it."""
        return len(self._ends)

    def run(self) -> Explorer:
        """Go through every schedule.

        Raises:
            Violation: A promise is broken.

        """
        self.database = Database()
        try:
            with self._repeatable():
                world = World(
                    tuple(Actor(name) for name in self.scenario.actors), self.scenario.budget
                )
                for index in range(len(world.actors)):
                    world = self._advanced(world, index, None)
                self.schedules = self._explored(world)
        finally:
            self.database.close()
        self.states = len(self._known)
        return self

    @contextmanager
    def _repeatable(self) -> Iterator[None]:
        """Take out what differs between two runs of one schedule: random names, and a guess."""
        guess = property(lambda _: self.scenario.looks_first, lambda _self, _guess: None)
        with (
            mock.patch.object(STATEMENTS_MODULE, "uuid", self._names),
            mock.patch.object(LedgerStatements, "expects_replay", guess, create=True),
        ):
            yield

    def _explored(self, world: World) -> int:
        """Return the number of schedules from here to an end."""
        if (known := self._known.get(world)) is not None:
            return known
        self._check(world)
        count = 0
        if self._is_over(world):
            self._check_end(world)
            count = 1
        for choice, act in self._choices(world):
            with _reported(choice):
                self.steps += 1
                count += self._explored(act())
        self._known[world] = count
        return count

    # --- what can happen

    def _choices(self, world: World) -> Iterator[tuple[Choice, Callable[[], World]]]:
        inside = [actor for actor in world.actors if actor.opened is not None]
        for index, actor in enumerate(world.actors):
            if actor.status == "running" and (not inside or actor in inside):
                yield from self._steps_of(world, index, actor)
        if inside:  # nobody else can touch the database: what they do comes before or after
            return
        yield from self._of_the_network(world)
        if world.budget.jumps and not self._is_over(world):
            for seconds in self.scenario.jumps:
                yield ("time", f"{seconds:g} s pass"), _later(world, seconds)

    def _steps_of(
        self, world: World, index: int, actor: Actor
    ) -> Iterator[tuple[Choice, Callable[[], World]]]:
        def step(how: str, cost: str | None = None) -> tuple[Choice, Callable[[], World]]:
            says = actor.at if how == "goes on" else f"{how} ({actor.at})"
            paid = replace(world, budget=world.budget.without(cost)) if cost else world
            return (actor.name, says), lambda: self._advanced(paid, index, how)

        if _can_go_on(world, actor):
            yield step("goes on")
        if actor.at == "answer" and own_message(world, actor.name) is None:
            yield step("timed out")
        elif world.budget.faults and not _is_waiting_for_lock(world, actor):
            for fault in self._faults(world, actor):
                yield step(fault, "faults")
        if world.budget.crashes and actor.at != "look":
            yield step("dies before", "crashes")
            if actor.at == "commit":
                yield step("dies after", "crashes")
        if world.budget.cancels and actor.at != "look":
            yield from self._cancels(actor, step)

    def _faults(self, world: World, actor: Actor) -> Iterator[str]:
        for fault in _FAULTS.get(actor.at, ()):
            message = own_message(world, actor.name)
            arrived = message is not None and message.answer is not None
            if not (fault == "not sent" and arrived):
                yield fault

    def _cancels(self, actor: Actor, step: Any) -> Iterator[Any]:
        if _is_shielded(self, actor):
            return
        yield step("cancelled", "cancels")
        if actor.at == "commit":
            yield step("cancelled after", "cancels")

    def _of_the_network(self, world: World) -> Iterator[tuple[Choice, Callable[[], World]]]:
        for message in world.flight:
            if message.answer is None:
                who = f"{message.sender}'s request {message.number}"
                yield (who, "arrives"), self._arrival(world, message)
                if world.budget.faults:
                    paid = replace(world, budget=world.budget.without("faults"))
                    yield (who, "is refused"), _answered(paid, message, "refused")

    def _arrival(self, world: World, message: Message) -> Callable[[], World]:
        if self.scenario.provider == "keys":
            for key, when, number in world.effects:
                if key == message.key and world.clock - when < KEEPS_KEY:
                    return _answered(world, message, number)
        number = len(world.effects) + 1
        made = (*world.effects, (message.key, world.clock, number))
        return _answered(replace(world, effects=made), message, number)

    # --- one step of one actor

    def _advanced(self, world: World, index: int, how: str | None) -> World:
        """Let an actor pass the port where it stands; ``None``: let it come to its first one."""
        actor = world.actors[index]
        self.database.load(world)
        self._names.current = actor.name
        if how == "dies before":
            return _buried(world, index)
        site = Site(self.scenario, self.database, world, actor, list(actor.history))
        site.opened, site.was_told = actor.opened, actor.was_told
        running = self._protocols[actor.name](site, actor.name)
        try:
            at = running.send(None)
            if how is not None:
                at = running.send(how)
        except StopIteration as stop:
            return self._ended(site, index, ("value", stop.value, ""))
        except Dropped:
            return _buried(site.world, index)
        except AssertionError:
            raise
        except BaseException as error:  # noqa: BLE001 - it is how the call ended
            return self._ended(site, index, ("error", type(error).__name__, str(error)[:200]))
        changed = replace(
            actor,
            history=tuple(_settled_entries(site)),
            opened=site.opened,
            at=at,
            asleep_since=site.asleep_since,
            was_told=site.was_told,
        )
        self._dropped(site, running)
        return site.world.actor(index, changed)

    def _dropped(self, site: Site, running: Coroutine[Any, Any, Any]) -> None:
        """Drop the coroutine as a crash would: none of its clean-up gets through a port."""
        site.is_dead = True
        try:
            running.throw(Dropped())
        except Dropped:
            return
        raise AssertionError("the protocol went on after its actor was dead")

    def _ended(self, site: Site, index: int, outcome: tuple[Any, ...]) -> World:
        is_fine = outcome[-2] in _FINE or _UNREACHABLE in outcome[-1]
        if outcome[0] == "error" and not is_fine:
            raise Violation(f"{site.actor.name} ended by {outcome[1]}: {outcome[2]}")
        done = Actor(site.actor.name, "done", outcome=outcome[:2], was_told=site.was_told)
        return site.world.actor(index, done)

    # --- the promises

    def _is_over(self, world: World) -> bool:
        return all(actor.status != "running" or actor.at == "look" for actor in world.actors)

    def _happened(self, world: World) -> int:
        transactional = self.scenario.provider == "database"
        return len(world.business if transactional else world.effects)

    def _check(self, world: World) -> None:
        """Check what must hold at every moment."""
        happened, row = self._happened(world), world.row
        if happened > 1:
            raise Violation("the effect took hold twice")
        state = row["state"] if row else None
        if len(world.rows) > 1:
            raise Violation("there are two rows of one effect")
        if state == State.SUCCEEDED and not happened:
            raise Violation("a success is recorded that did not happen")
        if state == State.FAILED and happened:
            raise Violation("a failure is recorded, yet it happened")
        if self.scenario.provider == "database" and happened and state != State.SUCCEEDED:
            raise Violation("the business row is there without its record")
        for actor in world.actors:
            self._check_outcome(world, actor, row)

    def _check_outcome(self, world: World, actor: Actor, row: dict[str, Any] | None) -> None:
        if actor.status != "done":
            return
        if actor.outcome[0] == "value" and actor.name != "person":
            recorded = json.loads(row["result"]) if row and row["result"] else None
            if row is None or row["state"] != State.SUCCEEDED or recorded != actor.outcome[1]:
                raise Violation(f"{actor.name} returned {actor.outcome[1]}; recorded is {row}")
        if actor.outcome[1] in {"Refused", "RecordedFailure"} and self._happened(world):
            raise Violation(f"{actor.name} was told that it failed, yet it happened")
        is_kept = row and (row["state"] == State.SUCCEEDED or row["evidence"] is not None)
        if actor.was_told and not is_kept:
            raise Violation(f"the answer that {actor.name} got is not recorded")

    def _check_end(self, world: World) -> None:
        """Let a clean call come after everything, and check that nothing is stuck or lost."""
        bare = replace(
            world,
            actors=tuple(actor for actor in world.actors if actor.status == "done"),
            flight=(),
            budget=Budget(),
        )
        if bare in self._ends:
            return
        self._ends.add(bare)
        with _reported(("afterwards", "everything is at rest, the lease is over")):
            later = replace(bare, clock=bare.clock + 2 * LEASE)
            once = self._recovered(later)
            self._check_settled(once)
            again = self._recovered(once)
            if self._happened(again) != self._happened(once) or again.rows != once.rows:
                raise Violation("a second clean call changed something")

    def _recovered(self, world: World) -> World:
        world = replace(world, actors=(*world.actors, Actor("recovery")))
        index, how = len(world.actors) - 1, None
        while world.actors[index].status == "running":
            world = self._advanced(world, index, how)
            for message in world.flight:
                world = self._arrival(world, message)() if message.answer is None else world
            self._check(world)
            how = "goes on"
        return world

    def _check_settled(self, world: World) -> None:
        row = world.row
        state = row["state"] if row else None
        may_be_unknown = self.scenario.provider == "neither" or (
            self.scenario.provider == "keys" and world.clock >= KEEPS_KEY - 60
        )
        allowed = {State.SUCCEEDED.value, State.FAILED.value}
        if may_be_unknown and not any(actor.was_told for actor in world.actors):
            allowed.add(State.UNKNOWN.value)
        if state not in allowed:
            raise Violation(f"after a clean call the effect is still {state}")
        if state == State.SUCCEEDED and world.actors[-1].outcome[0] != "value":
            raise Violation(f"a clean call of a success ended by {world.actors[-1].outcome[1]}")


def _can_go_on(world: World, actor: Actor) -> bool:
    if actor.at == "begin":
        return not _is_waiting_for_lock(world, actor)
    if actor.at == "answer":
        message = own_message(world, actor.name)
        return message is not None and message.answer is not None
    if actor.at == "look":  # a careful person: only what is unknown, and when nothing is under way
        row = world.row
        return bool(row and row["state"] == State.UNKNOWN) and not world.flight
    if actor.at == "sleep":
        retried = any(isinstance(entry.answer, Failure) for entry in actor.history)
        return retried or actor.asleep_since != (world.rows, world.clock)
    return True


def _is_waiting_for_lock(world: World, actor: Actor) -> bool:
    others = (other for other in world.actors if other is not actor)
    return actor.at == "begin" and any(other.opened is not None for other in others)


def _is_shielded(explorer: Explorer, actor: Actor) -> bool:
    """Tell whether a cancel would have to wait; it then comes at the shield's end."""
    site = Site(explorer.scenario, explorer.database, World((), Budget()), actor)
    site.log = list(actor.history)
    quiet = replace(actor, opened=None)
    site.actor = quiet
    running = explorer._protocols[actor.name](site, actor.name)
    running.send(None)
    shields = site.shields
    explorer._dropped(site, running)
    return shields > 0


def _buried(world: World, index: int) -> World:
    name = world.actors[index].name
    waiting = tuple(m for m in world.flight if m.sender != name or m.answer is None)
    return world.actor(index, Actor(name, "dead"), flight=waiting)


def _answered(world: World, message: Message, answer: Any) -> Callable[[], World]:
    def act() -> World:
        others = tuple(other for other in world.flight if other != message)
        sender = next((a for a in world.actors if a.name == message.sender), None)
        waits = (
            sender is not None
            and sender.status == "running"
            and sender.at == "answer"
            and own_message(world, message.sender) == message
        )
        arrived = (replace(message, answer=answer),) if waits else ()
        return replace(world, flight=(*others, *arrived))

    return act


def _later(world: World, seconds: float) -> Callable[[], World]:
    clock = world.clock + seconds
    flight = tuple(m for m in world.flight if m.answer is not None or clock - m.sent_at < TRAVEL)
    return lambda: replace(world, clock=clock, flight=flight, budget=world.budget.without("jumps"))


@contextmanager
def _reported(choice: Choice) -> Iterator[None]:
    """Write the schedule into a violation on its way out."""
    try:
        yield
    except Violation as violation:
        violation.schedule.insert(0, choice)
        raise
