"""Test the archive in an object store: `s3fs` with a local S3 server that rejects or delays requests, or returns
outdated listings."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import TypeVar

import pytest
from archives import USER, Owner, contents_of
from s3_server import Fault, S3Server

from memory_agent.archiving import Objects, ObjectStore, archived_journal, restore, restore_journal
from memory_agent.errors import ArchiveDamagedError, ArchiveUnavailableError, StoreError
from memory_agent.settings import ArchiveSettings
from relay import (
    CopyUnavailableError,
    EventLimits,
    Journal,
    JournalSettings,
    JournalSupersededError,
    event_from_mapping,
    read_event,
)

NOW = datetime(2026, 2, 16, 10, tzinfo=UTC)
SMALL = JournalSettings(map_size_bytes=8 << 20, disk_reserve_bytes=0, reserve_bytes=0)
_numbers = count()
T = TypeVar("T")


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    made = S3Server()
    yield made
    made.close()


@pytest.fixture
def prefix() -> str:
    """A part of the bucket that no other test uses."""
    return f"test-{next(_numbers)}"


@pytest.fixture(scope="module")
def store(server: S3Server) -> ObjectStore:
    """One client shared by most tests, because creating a client takes 0.2 s of processor time."""
    return ObjectStore.open(server.settings("users"))


@pytest.fixture
def objects(store: ObjectStore, prefix: str) -> Objects:
    return store.of_user(prefix)


def until_available(work: Callable[[], T]) -> T:
    """Return the result of the first successful attempt, out of at most thirty."""
    for _ in range(29):
        with suppress(ArchiveUnavailableError, CopyUnavailableError):
            return work()
    return work()


def test_objects_are_written_listed_read_and_deleted(objects: Objects, tmp_path: Path) -> None:
    assert objects.epochs() == objects.names(7) == []
    (tmp_path / "file").write_bytes(b"f" * 100_000)
    objects.put(7, "000000000000.snapshot", tmp_path / "file")
    objects.put(7, "000000000001.increment", b"first")
    objects.put(7, "000000000001.increment", b"replaced")
    objects.put(12, "000000000000.base", b"b")
    assert objects.epochs() == [7, 12]
    assert objects.sizes(7) == {"000000000000.snapshot": 100_000, "000000000001.increment": 8}
    assert objects.get(7, ["000000000001.increment", "000000000000.snapshot"])[0] == b"replaced"
    assert objects.get_start(7, "000000000000.snapshot", 10) == b"f" * 10
    objects.get_file(7, "000000000000.snapshot", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == (tmp_path / "file").read_bytes()
    for missing in (lambda: objects.get(7, ["no"]), lambda: objects.get_start(7, "no", 1)):
        with pytest.raises(FileNotFoundError):
            missing()
    objects.remove(7, ["000000000000.snapshot"])
    assert objects.names(7) == ["000000000001.increment"]
    objects.remove_before(12)
    assert objects.epochs() == [12]
    objects.remove_before(12)


def test_only_one_of_many_callers_creates_an_object(server: S3Server, prefix: str) -> None:
    callers = [ObjectStore.open(server.settings(prefix)).of_user(USER) for _ in range(3)]
    created = []

    def create(number: int) -> None:
        if callers[number].create(3, "000000000000.base", b"%d" % number):
            created.append(number)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(len(callers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(created) == 1
    assert callers[0].get(3, ["000000000000.base"]) == [b"%d" % created[0]]


@pytest.mark.parametrize("fault", ["500", "lost"])
def test_an_operation_that_fails_can_be_repeated(server: S3Server, objects: Objects, fault: Fault) -> None:
    server.fail("PUT", fault)
    with pytest.raises(ArchiveUnavailableError, match="Try again"):
        objects.put(1, "000000000000.snapshot", b"content")
    objects.put(1, "000000000000.snapshot", b"content")
    server.fail("GET", "500")
    with pytest.raises(ArchiveUnavailableError, match="Try again"):
        objects.get(1, ["000000000000.snapshot"])
    assert objects.get(1, ["000000000000.snapshot"]) == [b"content"]
    server.fail("POST", "500")
    with pytest.raises(ArchiveUnavailableError):
        objects.remove(1, ["000000000000.snapshot"])
    objects.remove(1, ["000000000000.snapshot"])
    assert objects.names(1) == []


@pytest.mark.skipif(version("s3fs") < "2026.9", reason="earlier versions of s3fs do not repeat reads")
def test_the_client_retries_requests_to_an_overloaded_store(server: S3Server, objects: Objects) -> None:
    server.fail("PUT", "503", "503")
    objects.put(1, "000000000000.snapshot", b"content")
    server.fail("GET", "503")
    assert objects.names(1) == ["000000000000.snapshot"]


def test_a_store_that_rejects_or_ignores_requests_is_unavailable_until_it_recovers(
    server: S3Server, prefix: str
) -> None:
    objects = ObjectStore.open(server.settings(prefix, timeout_s=1.0)).of_user(USER)
    with server.held("PUT"), pytest.raises(ArchiveUnavailableError, match="did not answer"):
        objects.put(1, "000000000000.snapshot", b"content")
    until_available(lambda: objects.put(1, "000000000001.increment", b"next"))  # waits for the late request
    assert objects.names(1) == ["000000000000.snapshot", "000000000001.increment"]
    missing = server.settings("").url.rstrip("/") + "-not"
    elsewhere = ArchiveSettings(url=missing, options=server.settings("").options)
    with pytest.raises(ArchiveUnavailableError):
        ObjectStore.open(elsewhere).of_user(USER).put(1, "000000000000.snapshot", b"content")


def test_a_user_is_restored_despite_faults(server: S3Server, objects: Objects, tmp_path: Path) -> None:
    with Owner(objects, tmp_path / "one", 1) as owner:
        owner.archive.flush()
        faults: tuple[Fault, ...] = ("500", "503", "lost")
        for number, fault in enumerate(faults):
            owner.put("two", b"%d" % number, b"value")
            server.fail("PUT", fault)
            position = until_available(owner.archive.flush)
        expected = owner.contents()
    server.fail("GET", "503", "500")
    assert until_available(lambda: restore(objects, USER, tmp_path / "two", position)) is not None
    assert contents_of(tmp_path / "two") == expected


def test_a_listing_that_lacks_the_newest_objects_is_detected(
    server: S3Server, objects: Objects, tmp_path: Path
) -> None:
    with Owner(objects, tmp_path / "one", 1) as owner:
        owner.archive.flush()
        restore(objects, USER, tmp_path / "two")  # lists them
        owner.put("two", b"1", b"value")
        position = owner.archive.flush()
        expected = owner.contents()
    with server.outdated(), pytest.raises(ArchiveDamagedError):
        restore(objects, USER, tmp_path / "three", position)
    restore(objects, USER, tmp_path / "three", position)
    assert contents_of(tmp_path / "three") == expected


def opened(folder: Path, archive: ArchiveSettings) -> Journal:
    return Journal.open(folder, SMALL, copy=archived_journal(archive))


def append(journal: Journal, number: int) -> None:
    mapping = {"event_id": f"e-{number}", "event_type": "user_input", "user_id": USER, "payload": {"text": "lamp"}}
    journal.append([event_from_mapping(mapping, EventLimits(), NOW)], NOW)


def ids(journal: Journal) -> list[str]:
    return [read_event(entry.data).event_id for entry in journal.read(0, 1_000)]


@pytest.mark.parametrize("fault", ["500", "503", "lost"])
def test_the_journals_copy_recognises_its_own_repeated_object(
    server: S3Server, prefix: str, tmp_path: Path, fault: Fault
) -> None:
    archive = server.settings(prefix, journal=True)
    with opened(tmp_path / "one", archive) as journal:
        journal.flush_copy()
        append(journal, 1)
        server.fail("PUT", fault)
        until_available(journal.flush_copy)
        append(journal, 2)
        journal.flush_copy()
    restore_journal(archive, tmp_path / "two", SMALL)
    with opened(tmp_path / "two", archive) as journal:
        assert ids(journal) == ["e-1", "e-2"]


def test_a_takeover_with_an_outdated_listing_loses_nothing_and_has_one_winner(
    server: S3Server, prefix: str, tmp_path: Path
) -> None:
    archive = server.settings(prefix, journal=True)
    with opened(tmp_path / "one", archive) as journal:
        journal.flush_copy()
        for epoch in (objects := ObjectStore.open(archive).of_journal()).epochs():
            objects.names(epoch)
        append(journal, 1)
        journal.flush_copy()
        with server.outdated(), pytest.raises(StoreError):
            restore_journal(archive, tmp_path / "two", SMALL)
        append(journal, 2)
        journal.flush_copy()  # nobody has taken over
        restore_journal(archive, tmp_path / "two", SMALL)
        append(journal, 3)
        with pytest.raises(JournalSupersededError):
            journal.flush_copy()
    with opened(tmp_path / "two", archive) as journal:
        journal.flush_copy()
        assert ids(journal) == ["e-1", "e-2"]
