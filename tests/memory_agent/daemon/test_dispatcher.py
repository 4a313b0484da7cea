"""Test dispatching from the journal to users: limits of the cursor, events in memory, events without an owner."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from dispatching import Memories, dispatching
from polling import until

from memory_agent.daemon.dispatcher import Dispatcher, Parked, Parking
from memory_agent.daemon.hosts import Hosts
from memory_agent.errors import EncryptionKeyMissingError
from memory_agent.settings import DaemonSettings
from memory_agent.storage.owners import Owners
from memory_agent.triggers.block import RECALLED
from relay import (
    SYSTEM_USER,
    AsyncSubscriber,
    Batch,
    Broker,
    BrokerSettings,
    EncryptionSettings,
    JournalEntry,
    Publisher,
    RelaySettings,
    Subscriber,
)
from relay.crypto import KeyRing


class StalledReader(AsyncSubscriber):
    """Reads the journal up to a number and then stalls, as if a reply were late."""

    stalls_after = 1 << 62

    async def fetch(self, after: int, limit: int, *, max_bytes: int = 4 << 20, user_id: str | None = None) -> Batch:
        if user_id is None:
            if after >= self.stalls_after:
                await asyncio.Event().wait()
            limit = min(limit, self.stalls_after - after)
        return await super().fetch(after, limit, max_bytes=max_bytes, user_id=user_id)


def publish(broker: Broker, *user_ids: str, **fields: Any) -> None:
    with Publisher(broker.endpoints.ingest) as publisher:
        for number, user_id in enumerate(user_ids):
            publisher.publish({"event_type": "a.b", "user_id": user_id, "event_id": f"{user_id}-{number}", **fields})


@asynccontextmanager
async def running(
    broker: Broker, folder: Path, memories: Memories, settings: DaemonSettings, stalls_after: int = 1 << 62
) -> AsyncIterator[tuple[Dispatcher, AsyncSubscriber]]:
    journal = StalledReader(*broker.endpoints, "memory")
    journal.stalls_after = stalls_after
    async with dispatching(journal, folder, memories, settings) as dispatcher:
        yield dispatcher, journal


def test_the_cursor_stays_behind_unread_events_when_a_lane_reads_ahead(broker: Broker, tmp_path: Path) -> None:
    """Alice's lane has no room for event 2, and later reads events 2 and 4. Event 3, Bob's, has not been read yet."""
    publish(broker, "alice", "alice", "bob", "alice")
    memories = Memories(stuck=frozenset({4}))
    settings = DaemonSettings(lane_events=1, batch_events=1)

    async def go() -> int:
        async with running(broker, tmp_path, memories, settings, stalls_after=2) as (dispatcher, journal):
            await until(lambda: ("alice", 2) in memories.taken)
            await dispatcher.commit()
            assert dispatcher.lag() >= 0
            return await journal.cursor()

    assert asyncio.run(go()) == 2


def test_events_of_the_daemon_itself_never_reach_a_memory(broker: Broker, tmp_path: Path) -> None:
    with Publisher(broker.endpoints.ingest) as publisher:
        for number, event_type in enumerate(("a.b", RECALLED, "a.b", *[RECALLED] * 150, "a.b")):
            publisher.publish({"event_type": event_type, "user_id": "alice", "event_id": f"e-{number}"})
    memories = Memories()

    async def go() -> int:
        async with running(broker, tmp_path, memories, DaemonSettings(lane_events=1, batch_events=1)) as (one, journal):
            await one.wait({"alice": 154}, 20.0)
            await one.commit()
            return await journal.cursor()

    assert asyncio.run(go()) == 154
    assert memories.taken == [("alice", 1), ("alice", 3), ("alice", 154)]


def test_events_without_an_owner_are_read_no_faster_than_quarantined(broker: Broker, tmp_path: Path) -> None:
    publish(broker, *["system"] * 1_500, payload={"run_id": "nobody's"})
    settings = DaemonSettings(parked_events=10, owner_wait_s=3600.0)
    most = 0

    async def go() -> None:
        async with running(broker, tmp_path, Memories(), settings) as (dispatcher, _):
            route = dispatcher._route

            def watched(entry: Any) -> None:
                nonlocal most
                route(entry)
                most = max(most, len(dispatcher._parking))

            dispatcher._route = watched  # type: ignore[method-assign]
            await until(lambda: dispatcher.counts["quarantined"] == 1_490)

    asyncio.run(go())
    assert most <= 510  # the limit plus one fetch


def test_an_event_whose_owner_appears_in_time_is_not_quarantined(broker: Broker, tmp_path: Path) -> None:
    publish(broker, "system", "system", payload={"run_id": "r"})
    settings = DaemonSettings(owner_wait_s=0.2)

    async def go() -> None:
        async with running(broker, tmp_path, memories, settings) as (dispatcher, _):
            set_aside = dispatcher.quarantine

            async def claimed_meanwhile(user_id: str, event: Any, code: str, reason: str) -> None:
                if event.seq == 1:
                    publish(broker, "alice", payload={"run_id": "r"})
                    await until(lambda: ("alice", 2) in memories.taken)
                await set_aside(user_id, event, code, reason)

            dispatcher.quarantine = claimed_meanwhile  # type: ignore[method-assign]
            await until(lambda: ("alice", 2) in memories.taken and dispatcher.counts["quarantined"] >= 1)
            await dispatcher.wait({"system": 2}, 20.0)
            assert dispatcher.counts["quarantined"] == 1

    memories = Memories()
    asyncio.run(go())


def test_lanes_of_five_thousand_users_are_released_once_idle(broker: Broker, tmp_path: Path) -> None:
    users = [f"user-{number}" for number in range(5_000)]
    publish(broker, *users)

    async def go() -> None:
        async with running(broker, tmp_path, memories, DaemonSettings()) as (dispatcher, journal):
            await until(lambda: len(memories.taken) == 5_000, 60.0)
            await until(lambda: not dispatcher._lanes)
            await dispatcher.commit()
            assert await journal.cursor() == 5_000
            publish(broker, "user-7", event_type="a.c", event_id="again")
            await until(lambda: ("user-7", 5_001) in memories.taken)

    memories = Memories()
    asyncio.run(go())
    assert sorted(memories.taken, key=lambda taken: taken[1])[:5_000] == list(zip(users, range(1, 5_001), strict=True))


def test_unreadable_events_do_not_block_publishers(tmp_path: Path) -> None:
    """The cursor moves past events whose key was destroyed, even if no readable event follows them."""
    keys = KeyRing(tmp_path / "keys")
    settings = RelaySettings(
        encryption=EncryptionSettings(keys_folder=str(keys.folder)), broker=BrokerSettings(max_lag=7)
    )

    async def scenario() -> None:
        memories = Memories()
        async with running(broker, tmp_path, memories, DaemonSettings()) as (_, journal):
            await until(lambda: journal._known_seq >= 8)
            await asyncio.to_thread(publish, broker, "bob")
            await until(lambda: ("bob", 9) in memories.taken)

    with tempfile.TemporaryDirectory(prefix="dispatch-") as folder, Broker(Path(folder), settings) as broker:
        with Subscriber(*broker.endpoints, "memory") as consumer:
            consumer.cursor()
        publish(broker, *["alice"] * 8)
        keys.destroy("alice")
        asyncio.run(scenario())


class KeylessOwners(Owners):
    """A map of owners whose encryption key is missing."""

    def learn(self, keys: Sequence[str], user_id: str) -> bool:
        raise EncryptionKeyMissingError("system", "keys")


def test_a_failing_map_of_owners_ends_the_dispatcher(broker: Broker, tmp_path: Path) -> None:
    publish(broker, "alice", payload={"run_id": "r-1"}, session_id="s-1")

    async def go() -> None:
        journal = AsyncSubscriber(*broker.endpoints, "memory")
        owners = KeylessOwners(tmp_path / "owners")
        dispatcher = Dispatcher(journal, cast(Hosts, Memories()), owners, DaemonSettings())
        try:
            async with asyncio.timeout(20):
                await dispatcher.run()
        finally:
            await journal.close()
            owners.close()

    with pytest.raises(BaseExceptionGroup) as caught:
        asyncio.run(go())
    assert caught.group_contains(EncryptionKeyMissingError)


def parked(seq: int, *keys: str, until_s: float = 100.0) -> Parked:
    return Parked(JournalEntry(seq, SYSTEM_USER, "run.noted", b"event"), keys, until_s)


def test_an_event_is_claimed_once_by_any_of_its_keys_in_journal_order() -> None:
    parking = Parking(10)
    for event in (parked(3, "run:a"), parked(1, "run:a", "session:s"), parked(2, "run:b")):
        parking.park(event)
    assert [event.entry.seq for event in parking.claim(("run:a",))] == [1, 3]
    assert parking.claim(("session:s",)) == []
    assert parking.oldest() == 2


def test_an_expired_event_stays_until_it_is_removed() -> None:
    parking = Parking(10)
    parking.park(parked(1, until_s=5.0))
    parking.park(parked(2, until_s=50.0))
    assert [event.entry.seq for event in parking.expired(5.0)] == [1]
    assert len(parking) == 2
    parking.leave(1)
    parking.leave(1)
    assert len(parking) == 1


def test_the_oldest_above_the_limit_are_expired_first() -> None:
    parking = Parking(2)
    for seq in (1, 2, 3, 4):
        parking.park(parked(seq))
    assert [event.entry.seq for event in parking.expired(0.0)] == [1, 2]
