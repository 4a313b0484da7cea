"""Test the reactor with a real relay and delayed hosts: lowest priority, late causes dropped, pause for an erasure."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from polling import until

from memory_agent.daemon.hosts import Hosts
from memory_agent.daemon.reactor import Reactor
from memory_agent.errors import StoreError
from memory_agent.settings import TriggerSettings
from memory_agent.triggers.block import RECALLED, Block
from memory_agent.triggers.table import TriggerTable
from memory_agent.verbs.params import ReactParams
from memory_agent.verbs.protocol import decode, encode_fault, encode_result
from relay import Broker, Event, JournalEntry, Publisher, Subscriber, encode_event, read_event

PATIENCE_S = 30.0


class Memories:
    """Fake hosts that return empty blocks once `open` is set, and fail for the users in `failing`."""

    def __init__(self, failing: frozenset[str] = frozenset()) -> None:
        self.calls_under_way = 0
        self.asked: list[str] = []
        self.open = asyncio.Event()
        self._failing = failing

    async def call(self, user_id: str, method: str, params: bytes, deadline_ms: float, *_: object) -> bytes:
        assert method == "react"
        assert deadline_ms > 0
        cause = read_event(decode(params, ReactParams).event)
        self.asked.append(cause.event_id)
        self.calls_under_way += 1
        try:
            await self.open.wait()
        finally:
            self.calls_under_way -= 1
        if user_id in self._failing:
            return encode_fault(StoreError("damaged"))
        block = Block(trigger="message", role="conductor", cause_event_id=cause.event_id, recall_id="r", text="")
        return encode_result(block)


class World:
    """A reactor with its memories and its published blocks."""

    def __init__(self, broker: Broker, publisher: Publisher, memories: Memories) -> None:
        self.memories = memories
        self.waiting = self._seq = 0
        self.reactor = Reactor(
            cast(Hosts, memories), publisher, TriggerSettings(), TriggerTable.load(), 4, lambda: self.waiting
        )
        self._broker = broker
        self._publisher = publisher

    def notice(self, user_id: str, event_id: str, age_ms: float = 0.0) -> None:
        event = Event(
            event_id=event_id,
            event_type="user_input",
            timestamp=datetime.now(UTC),
            user_id=user_id,
            payload={"text": "why does the deploy hang?"},
        )
        self._seq += 1
        received_ms = round(time.time() * 1000 - age_ms)
        entry = JournalEntry(self._seq, user_id, event.event_type, encode_event(event), received_ms=received_ms)
        self.reactor.notice(user_id, entry)

    def published(self) -> list[str]:
        """Return the causes of the blocks, as recorded in the journal."""
        self._publisher.flush()
        with Subscriber(*self._broker.endpoints) as subscriber:
            entries = subscriber.fetch(0, 100).entries
        return [Block.of_event(entry.data).cause_event_id for entry in entries if entry.event_type == RECALLED]


@asynccontextmanager
async def running(broker: Broker, memories: Memories) -> AsyncIterator[World]:
    with Publisher(broker.endpoints.ingest) as publisher:
        here = World(broker, publisher, memories)
        task = asyncio.create_task(here.reactor.run())
        try:
            yield here
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


def check(
    broker: Broker, story: Callable[[World], Coroutine[Any, Any, None]], failing: frozenset[str] = frozenset()
) -> None:
    async def go() -> None:
        async with running(broker, Memories(failing)) as here:
            await story(here)

    asyncio.run(go())


def test_two_recalls_run_at_a_time_but_one_per_user(broker: Broker) -> None:
    async def story(here: World) -> None:
        for event_id, user_id in (("a-1", "alice"), ("a-2", "alice"), ("b-1", "bob"), ("c-1", "carol")):
            here.notice(user_id, event_id)
        await until(lambda: len(here.memories.asked) == 2)
        assert here.memories.asked == ["a-1", "b-1"]
        here.memories.open.set()
        await until(lambda: here.reactor.status().get("published") == 4)
        assert sorted(here.published()) == ["a-1", "a-2", "b-1", "c-1"]

    check(broker, story)


@pytest.mark.parametrize("busy", ["callers", "events"])
def test_nothing_starts_while_callers_or_events_wait(broker: Broker, busy: str) -> None:
    async def story(here: World) -> None:
        here.memories.open.set()
        here.memories.calls_under_way = 4 if busy == "callers" else 0
        here.waiting = 501 if busy == "events" else 0
        here.notice("alice", "a-1")
        await until(lambda: here.reactor.status()["waiting"] == 1)
        for _ in range(10):
            await asyncio.sleep(0)
        assert here.memories.asked == []
        here.waiting = here.memories.calls_under_way = 0
        await until(lambda: here.memories.asked == ["a-1"])

    check(broker, story)


def test_a_backlog_after_downtime_causes_no_recalls(broker: Broker) -> None:
    async def story(here: World) -> None:
        here.memories.open.set()
        for number in range(100):
            here.notice("alice", f"old-{number}", age_ms=60_000)
        here.notice("alice", "new")
        await until(lambda: here.reactor.status().get("published") == 1)
        assert here.memories.asked == ["new"]
        assert here.reactor.status()["late"] == 100

    check(broker, story)


def test_a_failing_memory_is_counted_and_does_not_delay_other_users(broker: Broker) -> None:
    async def story(here: World) -> None:
        here.memories.open.set()
        here.notice("alice", "a-1")
        here.notice("bob", "b-1")
        await until(lambda: here.reactor.status().get("published") == 1)
        assert here.reactor.status()["failed"] == 1
        assert here.published() == ["b-1"]

    check(broker, story, frozenset({"alice"}))


def test_an_erasure_cancels_the_users_recalls_and_no_others(broker: Broker) -> None:
    async def story(here: World) -> None:
        for event_id, user_id in (("a-1", "alice"), ("a-2", "alice"), ("b-1", "bob")):
            here.notice(user_id, event_id)
        await until(lambda: len(here.memories.asked) == 2)
        async with here.reactor.paused("alice"):
            here.notice("alice", "a-3")
            here.memories.open.set()
            await until(lambda: here.reactor.status().get("published") == 1)
            assert here.published() == ["b-1"]
        here.notice("alice", "a-4")
        await until(lambda: here.reactor.status().get("published") == 2)
        assert here.published() == ["b-1", "a-4"]

    check(broker, story)


def test_a_cause_read_twice_has_one_block(broker: Broker) -> None:
    async def story(here: World) -> None:
        here.memories.open.set()
        for _ in range(3):
            here.notice("alice", "a-1")
        await until(lambda: here.reactor.status().get("published") == 3)
        assert here.published() == ["a-1"]

    check(broker, story)
