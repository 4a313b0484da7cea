"""Test one user's lane under faults: no event is lost or skipped, order is kept, memory is bounded."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_agent.daemon import lane as lane_module
from memory_agent.daemon.hosts import Hosts
from memory_agent.daemon.lane import Budget, Lane, Pending
from memory_agent.errors import (
    EncryptionKeyMissingError,
    HostDiedError,
    InvalidInputError,
    StoreDamagedError,
    StoreFullError,
    UnavailableError,
)
from memory_agent.records.memories import IngestReport, RejectedEvent
from memory_agent.settings import DaemonSettings
from memory_agent.verbs.protocol import IngestBatch
from tests.memory_agent.at_home import AtHome

EVENT = b"x" * 100
SETTINGS = DaemonSettings()
_HICCUPS = {
    "full": StoreFullError("users/a", 1),
    "damaged": StoreDamagedError("users/a: a checksum"),
    "died": HostDiedError("user-a"),
    "bug": RuntimeError("unforeseen"),
}


class World(AtHome):
    """A journal and a memory whose faults depend on the event's number."""

    def __init__(self, journal: Sequence[int], *, rejects: set[int] = frozenset(), crashes: set[int] = frozenset(),
                 poisons: set[int] = frozenset(), hiccups: Sequence[str] = (),
                 locked: bool = False) -> None:  # fmt: skip
        self.locked = locked
        self.journal = list(journal)
        self.rejects, self.crashes, self.poisons = rejects, crashes, poisons
        self.hiccups = list(hiccups)
        self.handled: list[int] = []
        self.set_aside: dict[int, str] = {}
        self.largest_batch = 0
        self.backlog_reads = 0
        self.announced: list[tuple[int, ...]] = []
        self.delivered: list[tuple[int, ...]] = []
        self.erased: set[int] = set()
        self.gone: set[int] = set()

    async def ingest(self, user_id: str, batch: IngestBatch) -> IngestReport:
        await asyncio.sleep(0)
        seqs = [seq for seq, _ in batch.events]
        ahead = [seq for seq, _ in batch.ahead]
        self.largest_batch = max(self.largest_batch, len(seqs), len(ahead))
        self.delivered.append(tuple(seqs))
        self.announced += [tuple(ahead)] if ahead else []
        if self.hiccups:
            raise _HICCUPS[self.hiccups.pop()]
        if self.locked:
            raise EncryptionKeyMissingError("alice", "/keys")
        if self.crashes & {*seqs, *ahead}:
            raise HostDiedError("user-a")
        if self.poisons & set(seqs):
            raise InvalidInputError("payload", "poison")
        rejected = [
            RejectedEvent(position=place, event_id=str(seq), reason="no")
            for place, seq in enumerate(seqs)
            if seq in self.rejects
        ]
        self.handled += [seq for seq in seqs if seq not in self.rejects]
        return IngestReport(kept=len(seqs) - len(rejected), rejected=tuple(rejected))

    async def wake(self, user_id: str, deadline_ms: float) -> None:
        await asyncio.sleep(0)

    async def backlog(self, user_id: str, after_seq: int) -> Sequence[Pending]:
        await asyncio.sleep(0)
        self.backlog_reads += 1
        return [Pending(seq, EVENT) for seq in self.journal if seq > after_seq][:7]

    async def content(self, seq: int) -> Pending | None:
        return None if seq in self.gone else Pending(seq, EVENT)

    def is_erased(self, seq: int) -> bool:
        return seq in self.erased

    async def quarantine(self, user_id: str, event: Pending, code: str, reason: str) -> None:
        await asyncio.sleep(0)
        self.set_aside[event.seq] = code

    def report(self, user_id: str, report: IngestReport, batch: Sequence[Pending], took_ms: float) -> None:
        pass


def run_lane(world: World, settings: DaemonSettings, *, room_bytes: int = 1 << 20, late: Sequence[int] = ()) -> None:
    """Offer the whole journal, as the dispatcher would; return when nothing is pending."""

    async def scenario() -> None:
        lane = Lane("alice", cast(Hosts, world), world, Budget(room_bytes), settings)
        for seq in world.journal:
            lane.offer(Pending(seq, EVENT))
            if seq % 5 == 0:
                await asyncio.sleep(0)
            offered = set(world.journal[: world.journal.index(seq) + 1])
            unhandled = offered - set(world.handled) - set(world.set_aside) - world.gone
            assert not unhandled or (lane.oldest_pending or 0) <= min(unhandled)
        for seq in late:
            lane.offer(Pending(seq, EVENT, late=True))
        async with asyncio.timeout(60):
            while lane.oldest_pending is not None:
                await asyncio.sleep(0)
        await lane.close()

    asyncio.run(scenario())


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_module, "_FIRST_PAUSE_S", 0.0)
    monkeypatch.setattr(lane_module, "_LONGEST_PAUSE_S", 0.0)


seqs = st.integers(1, 60)


@given(
    journal=st.sets(seqs, min_size=1).map(sorted),
    rejects=st.sets(seqs, max_size=4),
    crashes=st.sets(seqs, max_size=3),
    poisons=st.sets(seqs, max_size=3),
    hiccups=st.lists(st.sampled_from(["full", "died"]), max_size=2),
    room_bytes=st.integers(0, 3_000),
    lane_events=st.integers(1, 20),
    tolerance=st.integers(1, 3),
)
def test_every_event_is_handled_once_in_order_or_quarantined(
    journal: list[int],
    rejects: set[int],
    crashes: set[int],
    poisons: set[int],
    hiccups: list[str],
    room_bytes: int,
    lane_events: int,
    tolerance: int,
) -> None:
    died = ["died"] * min(hiccups.count("died"), tolerance - 1)  # more crashes would quarantine the event
    hiccups = [hiccup for hiccup in hiccups if hiccup != "died"] + died
    world = World(journal, rejects=rejects, crashes=crashes, poisons=poisons, hiccups=hiccups)
    settings = DaemonSettings(lane_events=lane_events, batch_events=4, crashes_before_quarantine=tolerance)
    run_lane(world, settings, room_bytes=room_bytes)
    bad = (rejects | crashes | poisons) & set(journal)
    assert world.handled == [seq for seq in journal if seq not in bad]
    assert set(world.set_aside) == bad
    assert world.largest_batch <= 4


def test_a_full_lane_reads_the_rest_from_the_journal() -> None:
    world = World(range(1, 101))
    run_lane(world, DaemonSettings(lane_events=3))
    assert world.handled == list(range(1, 101))
    assert world.backlog_reads > 0


def test_the_next_batch_is_announced_once_it_is_complete() -> None:
    world = World(range(1, 19))
    run_lane_through(world, settings=DaemonSettings(batch_events=5))
    assert world.announced == [(6, 7, 8, 9, 10), (11, 12, 13, 14, 15)]
    assert world.delivered == [(1, 2, 3, 4, 5), *world.announced, (16, 17, 18)]


def test_a_backlog_is_read_early_enough_to_announce_its_batches() -> None:
    world = World(range(1, 81))
    run_lane_through(world, settings=DaemonSettings(batch_events=4, lane_events=12))
    assert world.handled == list(range(1, 81))
    assert world.announced == world.delivered[1:]
    assert world.largest_batch == 4


def test_a_batch_that_reaches_its_byte_limit_is_announced() -> None:
    world = World(range(1, 26))
    run_lane_through(world, settings=DaemonSettings(batch_bytes=1024))
    assert world.announced == [tuple(range(11, 21))]
    assert world.delivered == [tuple(range(1, 11)), tuple(range(11, 21)), tuple(range(21, 26))]


def test_erased_and_late_events_are_not_announced() -> None:
    world = World(range(1, 21))
    world.erased = {8}
    run_lane_through(world, late=range(30, 45), settings=DaemonSettings(batch_events=5))
    assert world.announced == [(11, 12, 13, 14, 15), (16, 17, 18, 19, 20)]
    assert sorted(world.handled) == [*range(1, 8), *range(9, 21), *range(30, 45)]


def test_a_crash_caused_by_an_announced_event_does_not_count_against_the_current_batch() -> None:
    world = World(range(1, 13), crashes={5})
    run_lane_through(world, settings=DaemonSettings(batch_events=4, crashes_before_quarantine=1))
    assert world.set_aside == {5: "host_died"}
    assert world.handled == [1, 2, 3, 4, 6, 7, 8, 9, 10, 11, 12]


def test_an_unexpected_error_does_not_end_a_lane() -> None:
    world = World([1, 2, 3], hiccups=["bug"])
    run_lane(world, DaemonSettings())
    assert world.handled == [1, 2, 3]


def test_the_reason_for_quarantine_is_the_error() -> None:
    world = World([1, 2, 3, 4], rejects={1}, crashes={2}, poisons={3})
    run_lane(world, DaemonSettings())
    assert world.set_aside == {1: "unhandled_event", 2: "host_died", 3: "invalid_input"}


def test_no_event_is_lost_when_a_host_is_killed_from_outside() -> None:
    world = World(range(1, 30), hiccups=["died", "died"])
    run_lane(world, DaemonSettings(batch_events=5))
    assert world.handled == list(range(1, 30))
    assert world.set_aside == {}


def test_late_events_are_handled_besides_the_ordered_ones() -> None:
    world = World(range(10, 20))
    run_lane(world, DaemonSettings(), late=[3, 5], room_bytes=500)
    assert Counter(world.handled) == Counter([3, 5, *range(10, 20)])


def test_a_lane_waits_for_an_unavailable_relay() -> None:
    class Flaky(World):
        async def quarantine(self, user_id: str, event: Pending, code: str, reason: str) -> None:
            if not self.set_aside and not getattr(self, "failed", False):
                self.failed = True
                raise UnavailableError("relay: away")
            await super().quarantine(user_id, event, code, reason)

    world = Flaky([1], rejects={1})
    run_lane(world, DaemonSettings())
    assert world.set_aside == {1: "unhandled_event"}


def test_a_damaged_store_sends_nothing_to_quarantine() -> None:
    """The fault is in the store, not in the events, so events wait until the store is repaired."""
    world = World([1, 2, 3], hiccups=["damaged"] * 5)
    run_lane(world, DaemonSettings())
    assert world.handled == [1, 2, 3]
    assert world.set_aside == {}


def test_an_event_erased_while_waiting_is_dropped() -> None:
    world = World(range(1, 21))
    world.erased = {3, 4, 20}
    run_lane_through(world)
    assert world.handled == [seq for seq in range(1, 20) if seq not in world.erased]


def test_a_late_event_missing_from_the_journal_is_skipped() -> None:
    world = World([7])
    world.gone = {3}
    run_lane_through(world, late=[3, 5], room_bytes=0)
    assert sorted(world.handled) == [5, 7]


def test_waiting_events_are_read_again_after_an_erasure() -> None:
    """The erased numbers are unknown, because the erasure was repeated and its second run found nothing."""

    class Busy(World):
        under_way, goes_on = asyncio.Event(), asyncio.Event()

        async def ingest(self, user_id: str, batch: IngestBatch) -> IngestReport:
            self.under_way.set()
            await self.goes_on.wait()
            return await super().ingest(user_id, batch)

    async def scenario() -> None:
        lane = Lane("alice", cast(Hosts, world), world, budget, DaemonSettings(batch_events=2))
        for seq in world.journal:
            lane.offer(Pending(seq, EVENT))
        lane.offer(Pending(90, EVENT, late=True))
        await world.under_way.wait()  # the late event is being handled
        lane.offer(Pending(91, EVENT, late=True))
        world.gone = {3, 4, 9, 91}
        reading = asyncio.create_task(lane.read_again())
        world.goes_on.set()
        await reading
        async with asyncio.timeout(60):
            while lane.oldest_pending is not None:
                await asyncio.sleep(0)
        await lane.read_again()
        await lane.close()

    world, budget = Busy(range(1, 11)), Budget(1 << 20)
    asyncio.run(scenario())
    assert world.handled == [90, 1, 2, 5, 6, 7, 8, 10]
    assert budget.has_room(1 << 20), "all room is released exactly once"
    assert not budget.has_room((1 << 20) + 1)


def run_lane_through(
    world: World,
    *,
    late: Sequence[int] = (),
    room_bytes: int = 1 << 20,
    settings: DaemonSettings = SETTINGS,
) -> None:
    """Offer everything at once; return when nothing is pending."""

    async def scenario() -> None:
        lane = Lane("alice", cast(Hosts, world), world, Budget(room_bytes), settings)
        for seq in late:
            lane.offer(Pending(seq, EVENT, late=True))
        for seq in world.journal:
            lane.offer(Pending(seq, EVENT))
        async with asyncio.timeout(60):
            while lane.oldest_pending is not None:
                await asyncio.sleep(0)
            await lane.read_again()
        await lane.close()

    asyncio.run(scenario())


def test_late_events_beyond_the_lanes_limit_wait_in_the_journal() -> None:
    world = World(range(1, 4))
    late = range(100, 400)
    run_lane(world, DaemonSettings(lane_events=10, batch_events=4), late=late)
    assert [seq for seq in world.handled if seq >= 100] == list(late)


def test_nothing_is_quarantined_while_the_key_folder_is_missing() -> None:
    class Returning(World):
        """A journal that becomes readable again once the key folder is back."""

        async def content(self, seq: int) -> Pending | None:
            self.locked = False
            return await super().content(seq)

    world = Returning(range(1, 31), locked=True)
    run_lane(world, DaemonSettings(batch_events=8))
    assert world.handled == list(range(1, 31))
    assert world.set_aside == {}


def test_without_its_key_a_lane_drops_old_events_and_quarantines_new_ones() -> None:
    world = World(range(1, 31), locked=True)
    world.gone = set(range(1, 28))  # encrypted with the destroyed key
    run_lane(world, DaemonSettings(batch_events=8))
    assert world.handled == []
    assert world.set_aside == dict.fromkeys((28, 29, 30), EncryptionKeyMissingError.code)


class Away(World):
    """A memory on another node. Its archive answers once `archived` is set."""

    def __init__(self) -> None:
        super().__init__(range(1, 3))
        self.is_archiving, self.archived = asyncio.Event(), asyncio.Event()

    def is_away(self, user_id: str) -> bool:
        return True

    async def archive(self, user_id: str) -> None:
        self.is_archiving.set()
        await self.archived.wait()


def test_an_archive_that_answers_after_the_user_moved_saves_no_event_of_the_next_node() -> None:
    async def go() -> None:
        world = Away()
        lane = Lane("alice", cast(Hosts, world), world, Budget(1 << 20), SETTINGS)
        lane.offer(Pending(1, EVENT))
        await handled(world, 1)
        saving = asyncio.create_task(lane.save())
        await world.is_archiving.wait()
        lane.saved()  # the user falls asleep, and wakes on another node
        lane.offer(Pending(2, EVENT))
        await handled(world, 2)
        world.archived.set()
        await saving
        assert lane.oldest_unsaved == 2
        await lane.save()
        assert lane.oldest_unsaved is None
        await lane.close()

    async def handled(world: World, seq: int) -> None:
        async with asyncio.timeout(60):
            while world.handled[-1:] != [seq]:
                await asyncio.sleep(0)
            await asyncio.sleep(0)

    asyncio.run(go())
