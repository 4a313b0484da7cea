"""Test the task that wakes streams: a stream is woken only by its own user's events."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from memory_agent.doors.http.streams import JournalWatch
from relay import AsyncSubscriber, Broker, Publisher

LONG_S = 60.0
_numbers = itertools.count()


def publish(broker: Broker, user_id: str, count: int = 1) -> None:
    with Publisher(broker.endpoints.ingest) as publisher:
        for _ in range(count):
            text = f"note {next(_numbers)}"  # an event with the same words would be a duplicate
            publisher.publish({"event_type": "user_input", "user_id": user_id, "payload": {"text": text}})
        assert not publisher.flush().pending


async def last_seq(broker: Broker) -> int:
    async with AsyncSubscriber(*broker.endpoints) as journal:
        return (await journal.fetch(0, 0)).last_seq


@asynccontextmanager
async def watching(broker: Broker) -> AsyncIterator[JournalWatch]:
    watch = JournalWatch(broker.endpoints)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(watch.run())
        yield watch
        running.cancel()


def waiting(watch: JournalWatch, user_id: str | None, after: int) -> asyncio.Task[None]:
    return asyncio.create_task(watch.wait(user_id, after, LONG_S))


async def begun(*tasks: asyncio.Task[None]) -> None:
    """Let the tasks run until they block."""
    await asyncio.sleep(0)
    assert not any(task.done() for task in tasks)


def test_events_of_other_users_wake_no_stream(broker: Broker) -> None:
    async def scenario() -> None:
        async with watching(broker) as watch:
            idle = [waiting(watch, f"user-{number}", 0) for number in range(20)]
            busy, anybody = waiting(watch, "bea", 0), waiting(watch, None, 0)
            await begun(*idle, busy, anybody)
            await asyncio.to_thread(publish, broker, "bea", 300)
            await asyncio.gather(busy, anybody)
            seen = waiting(watch, "bea", await last_seq(broker))  # the watch has to read all earlier entries
            await begun(seen)
            await asyncio.to_thread(publish, broker, "bea")
            await seen
            assert not any(task.done() for task in idle)
            await asyncio.to_thread(publish, broker, "user-7")
            await idle[7]
            assert [task.done() for task in idle].count(True) == 1
            for task in idle:
                task.cancel()

    asyncio.run(scenario())


def test_a_stream_behind_the_watch_reads_again_at_once(broker: Broker) -> None:
    """The entry arrived after the stream's last read; the watch read the entry while no stream of this user waited."""

    async def scenario() -> None:
        async with watching(broker) as watch:
            anybody = waiting(watch, None, 0)
            await begun(anybody)
            await asyncio.to_thread(publish, broker, "ann")
            await anybody
            busy = waiting(watch, "bea", 1)
            await begun(busy)
            async with asyncio.timeout(LONG_S / 2):
                await watch.wait("ann", 0, LONG_S)
            busy.cancel()

    asyncio.run(scenario())


def test_an_entry_before_the_wait_wakes_a_stream_that_has_read_less(broker: Broker) -> None:
    async def scenario() -> None:
        publish(broker, "ann", 3)
        async with watching(broker) as watch:
            await watch.wait("ann", 2, LONG_S)
            late = waiting(watch, "ann", 3)
            await begun(late)
            publish(broker, "ann")
            await late

    asyncio.run(scenario())


def test_a_wait_ends_at_its_timeout_and_leaves_nothing(broker: Broker) -> None:
    async def scenario() -> None:
        async with watching(broker) as watch:
            await watch.wait("ann", 0, 0.01)
            assert not watch._waiting
            other = waiting(watch, "ann", 0)
            await begun(other)
            other.cancel()
            await asyncio.wait((other,))
            assert not watch._waiting

    asyncio.run(scenario())


def test_a_relay_that_comes_back_is_watched_again() -> None:
    async def scenario(folder: Path) -> None:
        with Broker(folder) as broker:
            publish(broker, "ann")
            watch = JournalWatch(broker.endpoints)
            running = asyncio.create_task(watch.run())
            woken = waiting(watch, "ann", 1)
            await begun(woken)
        with Broker(folder) as broker:
            await asyncio.to_thread(publish, broker, "ann")
            await woken
        running.cancel()
        await asyncio.wait((running,))

    with tempfile.TemporaryDirectory(prefix="watch-") as folder:
        asyncio.run(scenario(Path(folder)))
