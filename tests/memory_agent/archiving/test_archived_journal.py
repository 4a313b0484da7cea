"""Test the copy of the journal in the archive: what acks promise, restoration, takeover and erasure."""

from __future__ import annotations

import random
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from archives import FaultyFileSystem, files
from polling import wait_until

from memory_agent.archiving import archived_journal, restore_journal
from memory_agent.errors import ArchiveUnavailableError, InvalidInputError, SettingsError, StoreError
from memory_agent.settings import ArchiveSettings
from relay import (
    Broker,
    CopyUnavailableError,
    Event,
    EventLimits,
    Journal,
    JournalError,
    JournalSettings,
    JournalSupersededError,
    Publisher,
    PublisherSettings,
    RelayUnavailableError,
    event_from_mapping,
    journal_folder,
    read_event,
)
from relay.wire import Erasable

NOW = datetime(2026, 2, 16, 10, tzinfo=UTC)
SMALL = JournalSettings(map_size_bytes=32 << 20, disk_reserve_bytes=0, reserve_bytes=0)
FAULTY = ArchiveSettings(url="faulty://bucket", journal=True, timeout_s=5.0)


@pytest.fixture
def data_dir() -> Iterator[Path]:
    """A folder whose path leaves room for socket names (107 bytes in total)."""
    with tempfile.TemporaryDirectory(prefix="relay-test-") as folder:
        yield Path(folder) / "data"


def archived_in(folder: Path) -> ArchiveSettings:
    return ArchiveSettings(url=f"file://{folder}", journal=True)


def opened(folder: Path, archive: ArchiveSettings) -> Journal:
    return Journal.open(folder, SMALL, copy=archived_journal(archive))


def events(*numbers: int, user_id: str = "alice") -> list[Event]:
    return [event_from_mapping(mapping(number, user_id), EventLimits(), NOW) for number in numbers]


def mapping(number: int, user_id: str = "alice") -> dict[str, Any]:
    return {
        "event_id": f"e-{number}",
        "event_type": "user_input",
        "timestamp": "2026-02-16T10:00:00Z",
        "user_id": user_id,
        "payload": {"text": f"secret {number}"},
    }


def ids(journal: Journal) -> list[str]:
    return [read_event(entry.data).event_id for entry in journal.read(0, 1_000)]


def test_a_restored_journal_has_every_copied_event_and_recognises_repeats(tmp_path: Path) -> None:
    archive = archived_in(tmp_path / "archive")
    with opened(tmp_path / "one", archive) as journal:
        journal.flush_copy()
        journal.append(events(1, 2), NOW)
        journal.commit("indexer", 2)
        journal.append(events(3), NOW)
        journal.flush_copy()
        journal.append(events(4), NOW)  # not copied, so never acknowledged

        last_seq = restore_journal(archive, tmp_path / "two", SMALL)

    with opened(tmp_path / "two", archive) as restored:
        restored.flush_copy()
        assert ids(restored) == ["e-1", "e-2", "e-3"]
        assert [(one.seq, one.lag) for one in restored.consumers()] == [(2, 1)]
        assert restored.append(events(3, 4), NOW) == [(3, True), (last_seq + 1, False)]
        assert last_seq > 4, "the lost event's number is not assigned again"


def test_a_relay_that_was_cut_off_acknowledges_nothing_after_a_takeover(tmp_path: Path) -> None:
    archive = archived_in(tmp_path / "archive")
    with opened(tmp_path / "one", archive) as journal:
        journal.flush_copy()
        journal.append(events(1), NOW)
        journal.flush_copy()
        restore_journal(archive, tmp_path / "two", SMALL)
        journal.append(events(2), NOW)
        with pytest.raises(JournalSupersededError):
            journal.flush_copy()
        with pytest.raises(JournalSupersededError):
            journal.compact()

    with opened(tmp_path / "one", archive) as journal, pytest.raises(JournalSupersededError):
        journal.flush_copy()
    with opened(tmp_path / "two", archive) as journal:
        journal.flush_copy()
        assert ids(journal) == ["e-1"]


@pytest.mark.parametrize("url", ["file", "faulty"])
def test_a_relay_that_was_cut_off_for_long_acknowledges_nothing(tmp_path: Path, url: str) -> None:
    """Meanwhile the next relay has deleted the objects that it replaced."""
    archive = FAULTY if url == "faulty" else archived_in(tmp_path / "archive")
    with opened(tmp_path / "one", archive) as journal:
        journal.flush_copy()
        journal.append(events(1), NOW)
        journal.flush_copy()
        for name in ("two", "three"):
            restore_journal(archive, tmp_path / name, SMALL)
            with opened(tmp_path / name, archive) as following:
                following.flush_copy()
                following.append(events(2), NOW)
                following.flush_copy()
                following.compact()
        journal.append(events(3), NOW)
        with pytest.raises(JournalSupersededError):
            journal.flush_copy()


def test_a_new_folder_never_replaces_the_journal_in_the_archive(tmp_path: Path) -> None:
    archive = archived_in(tmp_path / "archive")
    with opened(tmp_path / "one", archive) as journal:
        journal.flush_copy()
    with opened(tmp_path / "new", archive) as journal:
        with pytest.raises(JournalSupersededError, match="--from-archive"):
            journal.flush_copy()
        with pytest.raises(CopyUnavailableError):
            journal.append(events(1), NOW)
    with pytest.raises(InvalidInputError):
        restore_journal(archive, tmp_path / "new", SMALL)


def test_a_reopened_journal_continues_its_copy(tmp_path: Path) -> None:
    archive = archived_in(tmp_path / "archive")
    for number in range(3):
        with opened(tmp_path / "one", archive) as journal:
            journal.flush_copy()
            journal.append(events(number), NOW)
            journal.flush_copy()
    for name in ("two", "three"):  # the second restoration takes over from a relay that never started
        restore_journal(archive, tmp_path / name, SMALL)
    with opened(tmp_path / "two", archive) as journal, pytest.raises(JournalSupersededError):
        journal.flush_copy()
    with opened(tmp_path / "three", archive) as journal:
        journal.flush_copy()
        assert ids(journal) == ["e-0", "e-1", "e-2"]


def test_after_compaction_nothing_erased_is_left_in_the_archive(tmp_path: Path) -> None:
    archive = archived_in(tmp_path / "archive")
    with opened(tmp_path / "one", archive) as journal:
        journal.flush_copy()
        journal.append(events(1, 2), NOW)
        journal.flush_copy()
        assert any(b"secret 1" in file.read_bytes() for file in files(tmp_path / "archive"))
        journal.erase_all(Erasable(user_id="alice", event_ids=frozenset({"e-1"})), NOW)
        journal.compact()
        assert not journal.uncompacted
        assert not any(b"secret 1" in file.read_bytes() for file in files(tmp_path / "archive"))
        assert any(b"secret 2" in file.read_bytes() for file in files(tmp_path / "archive"))


def test_an_erasure_is_not_complete_before_the_copy_is_renewed(tmp_path: Path) -> None:
    with opened(tmp_path / "one", FAULTY) as journal:
        journal.flush_copy()
        journal.append(events(1), NOW)
        journal.flush_copy()
        journal.erase_all(Erasable(user_id="alice", everything=True), NOW)
        FaultyFileSystem.faults.append("refused")
        with pytest.raises(CopyUnavailableError):
            journal.compact()
        assert journal.uncompacted == 1
        journal.compact()
        assert not journal.uncompacted


@pytest.mark.parametrize("fault", ["refused", "reply lost"])
def test_a_failed_copy_stops_intake_until_it_is_repeated(tmp_path: Path, fault: Any) -> None:
    with opened(tmp_path / "one", FAULTY) as journal:
        journal.flush_copy()
        journal.append(events(1), NOW)
        FaultyFileSystem.faults.append(fault)
        with pytest.raises(CopyUnavailableError):
            journal.flush_copy()
        with pytest.raises(CopyUnavailableError):
            journal.append(events(2), NOW)
        journal.flush_copy()
        journal.append(events(2), NOW)
        journal.flush_copy()
        restore_journal(FAULTY, tmp_path / "two", SMALL)
    with opened(tmp_path / "two", FAULTY) as restored:
        assert ids(restored) == ["e-1", "e-2"]


def test_only_one_of_two_machines_that_restore_at_once_can_continue(tmp_path: Path) -> None:
    archive = archived_in(tmp_path / "archive")
    with opened(tmp_path / "one", archive) as journal:
        journal.flush_copy()
        journal.append(events(1), NOW)
        journal.flush_copy()

    def take(name: str) -> None:
        with suppress(StoreError):
            restore_journal(archive, tmp_path / name, SMALL)

    threads = [threading.Thread(target=take, args=(name,)) for name in ("two", "three", "four")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    continued = []
    for name in ("two", "three", "four", "one"):
        if not (tmp_path / name).exists():
            continue
        with opened(tmp_path / name, archive) as journal, suppress(JournalSupersededError):
            journal.flush_copy()
            continued.append(name)
            assert ids(journal) == ["e-1"]
    assert len(continued) == 1


def test_a_relay_acknowledges_only_what_is_copied(data_dir: Path) -> None:
    acked: list[int] = []
    with Broker(data_dir, copy=archived_journal(FAULTY)) as broker:
        settings = PublisherSettings(ack_timeout_s=0.5, full_pause_s=0.05)
        with Publisher(
            broker.endpoints.ingest, settings=settings, on_progress=lambda progress: acked.append(progress.acked)
        ) as publisher:
            publisher.publish(mapping(1))
            publisher.flush()
            assert acked[-1] == 1
            FaultyFileSystem.faults += ["refused"] * 3
            publisher.publish(mapping(2))
            wait_until(lambda: len(FaultyFileSystem.faults) < 3)
            assert acked[-1] == 1
            report = publisher.flush()
            assert (report.acked + report.duplicates, report.pending) == (2, 0)
    restore_journal(FAULTY, data_dir / "elsewhere", JournalSettings())
    with Journal.open(data_dir / "elsewhere") as restored:
        assert ids(restored) == ["e-1", "e-2"]


def test_a_relay_stops_when_another_machine_has_taken_over(data_dir: Path) -> None:
    broker = Broker(data_dir, copy=archived_journal(FAULTY))
    stopped: list[BaseException] = []

    def run() -> None:
        try:
            broker.run()
        except JournalSupersededError as error:
            stopped.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    with Publisher(broker.endpoints.ingest) as publisher:
        publisher.publish(mapping(1))
        publisher.flush()
    restore_journal(FAULTY, data_dir / "elsewhere", JournalSettings())
    publisher = Publisher(broker.endpoints.ingest)
    publisher.publish(mapping(2))
    thread.join(20)
    assert stopped
    with pytest.raises(RelayUnavailableError):
        publisher.close(timeout_s=0.1)
    with Journal.open(data_dir / "elsewhere") as restored:
        assert ids(restored) == ["e-1"]


def test_the_copy_needs_an_archive() -> None:
    assert archived_journal(ArchiveSettings()) is None
    with pytest.raises(SettingsError, match=r"archive\.url"):
        archived_journal(ArchiveSettings(journal=True))
    assert journal_folder(Path("/data")).name == "journal"


@pytest.mark.parametrize("seed", [*range(8), 108, 126])
def test_whatever_fails_and_whoever_takes_over_nothing_acknowledged_is_lost(tmp_path: Path, seed: int) -> None:
    chosen = random.Random(seed)
    acked: set[str] = set()
    appended = 0
    folders = [tmp_path / "0"]
    journals = [opened(folders[0], FAULTY)]
    for _ in range(80):
        place = chosen.randrange(len(journals))  # earlier machines continue
        journal = journals[place]
        if chosen.random() < 0.25:
            FaultyFileSystem.faults[:] = [chosen.choice(["refused", "reply lost", "none"]) for _ in range(2)]
        with suppress(JournalError, ArchiveUnavailableError, StoreError):
            match chosen.choice(["append", "append", "append", "compact", "reopen", "take over"]):
                case "append":
                    appended += 1
                    journal.flush_copy()
                    journal.append(events(appended), NOW)
                    journal.flush_copy()
                    acked |= set(ids(journal))
                case "compact":
                    journal.compact()
                case "reopen":
                    journal.close()
                    journals[place] = opened(folders[place], FAULTY)
                case "take over":
                    folder = tmp_path / str(len(folders))
                    restore_journal(FAULTY, folder, SMALL)
                    folders.append(folder)
                    journals.append(opened(folder, FAULTY))
    for journal in journals:
        journal.close()
    FaultyFileSystem.faults.clear()
    if not acked:  # another relay took over before anything was copied
        return
    restore_journal(FAULTY, tmp_path / "last", SMALL)
    with opened(tmp_path / "last", FAULTY) as journal:
        assert acked <= set(ids(journal))
        assert len(ids(journal)) == len(set(ids(journal)))


@pytest.mark.parametrize("seed", range(3))
def test_a_takeover_at_any_moment_keeps_what_the_busy_relay_acknowledges(tmp_path: Path, seed: int) -> None:
    archive = archived_in(tmp_path / "archive")
    acked: list[int] = []
    journal = opened(tmp_path / "one", archive)

    def work() -> None:
        chosen = random.Random(seed)
        with suppress(JournalSupersededError):
            for number in range(10_000):
                journal.append(events(number), NOW)
                journal.flush_copy()
                acked.append(number)
                if chosen.random() < 0.3:
                    journal.compact()

    journal.flush_copy()
    thread = threading.Thread(target=work)
    thread.start()
    wait_until(lambda: len(acked) > 20 + seed)
    deadline_s = time.monotonic() + 60
    while not (tmp_path / "two").exists():
        assert time.monotonic() < deadline_s
        with suppress(StoreError):
            restore_journal(archive, tmp_path / "two", SMALL)
    thread.join(60)
    assert not thread.is_alive()
    journal.close()
    with opened(tmp_path / "two", archive) as restored:
        restored.flush_copy()
        assert {f"e-{number}" for number in acked} <= set(ids(restored))
