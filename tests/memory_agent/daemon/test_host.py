"""Test one host process with several memories, without Ray: failing stores, many threads, isolation of users."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from served_host import absent_embedder

from memory_agent.daemon.host import MemoryHost
from memory_agent.embedders.remote import RemoteEmbedder
from memory_agent.errors import EncryptionKeyMissingError, HostDiedError, StoreDamagedError, StoreError
from memory_agent.records.memories import IngestReport, MemoryRecord, MemoryStats
from memory_agent.records.trajectories import Trajectory
from memory_agent.settings import Settings
from memory_agent.storage.folders import user_folder
from memory_agent.storage.store import Store
from memory_agent.verbs.params import NoParams, RememberParams, RunIdParams
from memory_agent.verbs.protocol import IngestBatch, decode_reply, encode
from relay import EncryptionSettings, EventLimits, encode_event, event_from_mapping
from relay.crypto import KeyRing

NOW = datetime(2026, 11, 21, tzinfo=UTC)


@pytest.fixture
def embedder(tmp_path: Path) -> Iterator[RemoteEmbedder]:
    """The client of an embedder that is not running, so that memories are stored without vectors."""
    with absent_embedder(tmp_path) as embedder:
        yield embedder


@pytest.fixture
def host(tmp_path: Path, embedder: RemoteEmbedder) -> Iterator[MemoryHost]:
    host = MemoryHost(tmp_path, Settings(), embedder)
    yield host
    host.close()


def stats(host: MemoryHost, user_id: str = "alice") -> MemoryStats:
    return decode_reply(host.call(user_id, "stats", encode(NoParams()), 5_000.0), MemoryStats)


def remember(host: MemoryHost, user_id: str = "alice") -> MemoryRecord:
    params = encode(RememberParams(text="the auth race needed a mutex"))
    return decode_reply(host.call(user_id, "remember", params, 5_000.0), MemoryRecord)


def ingest(host: MemoryHost, user_id: str) -> IngestReport:
    payload = {"text": "please fix the auth race"}
    event = {"event_id": "e", "event_type": "chat.user_msg", "user_id": user_id, "payload": payload}
    data = encode_event(event_from_mapping(event, EventLimits(), NOW))
    return decode_reply(host.ingest(user_id, encode(IngestBatch(events=((1, data),)))), IngestReport)


def test_a_failed_store_is_reopened_under_concurrent_requests(host: MemoryHost) -> None:
    """Regression: a late error closed the reopened store, and a store reopened too early was still locked."""
    remember(host)
    failures: list[str] = []
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            try:
                assert stats(host).memories == 1
            except StoreError as error:
                failures.append(str(error))

    with ThreadPoolExecutor(4) as threads:
        asking = [threads.submit(ask) for _ in range(4)]
        try:
            for _ in range(10):
                stats(host)
                host._forget_if_broken("alice", host._memories.get("alice"), StoreError("EIO"))
        finally:
            stop.set()
        for one in asking:
            one.result()
    assert all("closed" in failure for failure in failures)
    assert len(failures) <= 10 * 4  # each failure of the store fails at most one call per thread


def test_the_error_of_a_memory_that_was_replaced_leaves_the_new_one_open(host: MemoryHost) -> None:
    stats(host)
    old = host._memories["alice"]
    host._forget_if_broken("alice", old, StoreError("EIO"))
    stats(host)
    new = host._memories["alice"]
    host._forget_if_broken("alice", old, StoreError("is closed"))
    assert host._memories["alice"] is new
    assert new.stats().memories == 0


def test_a_folder_without_permission_is_a_retryable_error(host: MemoryHost, tmp_path: Path) -> None:
    """Regression: Ray reported the OSError as a dead host, and the lane quarantined the events."""
    folder = user_folder(tmp_path, "carl")
    folder.parent.mkdir(parents=True)
    folder.write_text("in the way")
    with pytest.raises(StoreError, match="File exists") as caught:
        ingest(host, "carl")
    assert caught.value.retryable
    folder.unlink()
    assert ingest(host, "carl").kept == 1


def test_a_vanished_folder_is_a_retryable_error(host: MemoryHost, tmp_path: Path) -> None:
    remember(host)
    shutil.rmtree(user_folder(tmp_path, "alice"))
    with pytest.raises(StoreError) as caught:
        ingest(host, "alice")
    assert caught.value.retryable
    assert ingest(host, "alice").kept == 1


def test_vectors_of_other_users_are_filled_in_when_one_memory_fails(host: MemoryHost) -> None:
    remember(host, "alice")
    remember(host, "bob")
    host._memories["alice"].close()
    filled: list[int | None] = []
    host._memories["bob"].fill_vectors = lambda limit=None: filled.append(limit) or 0  # type: ignore[method-assign]
    host.keep_up(NOW)
    assert not filled, "without a model"
    host.keep_up(NOW, fill_vectors=True)
    assert filled


def begin_run(host: MemoryHost, user_id: str, at: datetime) -> None:
    payload = {"run_id": "run-1", "objective": "fix the auth race"}
    event = {"event_id": "b", "event_type": "conductor.run.started", "user_id": user_id, "timestamp": at.isoformat()}
    data = encode_event(event_from_mapping(event | {"payload": payload}, EventLimits(), NOW))
    assert not decode_reply(host.ingest(user_id, encode(IngestBatch(events=((1, data),)))), IngestReport).rejected


def run_of(host: MemoryHost, user_id: str) -> Trajectory:
    return decode_reply(host.call(user_id, "run_get", encode(RunIdParams(run_id="run-1")), 5_000.0), Trajectory)


def test_runs_of_other_users_expire_when_one_memory_fails(host: MemoryHost) -> None:
    users = ("alice", "bob", "carol")
    for user_id in users:
        begin_run(host, user_id, NOW)
    host.keep_up(NOW)
    assert [run_of(host, user_id).state for user_id in users] == ["open"] * 3
    host._memories["alice"].close()
    host._memories["bob"].expire = lambda _: 1 / 0  # type: ignore[method-assign,assignment]
    host.keep_up(NOW + timedelta(days=3650))
    assert run_of(host, "carol").state == "expired"


def test_a_call_to_an_old_address_wakes_no_user(host: MemoryHost) -> None:
    """The user may have moved to another host, and the store's index here may be stale."""
    params = encode(NoParams())
    with pytest.raises(HostDiedError):
        decode_reply(host.call_awake("alice", "stats", params, 5_000.0), MemoryStats)
    remember(host)
    assert decode_reply(host.call_awake("alice", "stats", params, 5_000.0), MemoryStats).memories == 1
    host.sleep("alice")
    with pytest.raises(HostDiedError):
        decode_reply(host.call_awake("alice", "stats", params, 5_000.0), MemoryStats)


def test_a_user_with_damaged_pages_does_not_affect_the_others(
    tmp_path: Path, embedder: RemoteEmbedder, host: MemoryHost
) -> None:
    for user_id in ("alice", "bob"):
        with Store.open(user_folder(tmp_path, user_id)) as store, store.batch() as batch:
            for number in range(40):
                record = MemoryRecord(id=f"m{number}", text="t", source="user_input", kind="episode", timestamp=NOW)
                batch.put(record, None)
    file = user_folder(tmp_path, "alice") / "records" / "data.mdb"
    damaged = file.read_bytes()[: -6 * 4_096] + bytes(6 * 4_096)
    file.write_bytes(damaged)
    for _ in range(2):
        with pytest.raises(StoreDamagedError, match=r"nothing was changed.*restore"):
            stats(host, "alice")
        with pytest.raises(StoreDamagedError):
            ingest(host, "alice")
        assert stats(host, "bob").memories == 40
    assert file.read_bytes() == damaged


def test_a_destroyed_key_closes_only_that_user(tmp_path: Path, embedder: RemoteEmbedder) -> None:
    settings = Settings(encryption=EncryptionSettings(keys_folder=str(tmp_path / "keys")))
    host = MemoryHost(tmp_path / "data", settings, embedder)
    for user_id in ("alice", "bob", "carol"):
        remember(host, user_id)
    KeyRing(tmp_path / "keys").destroy("alice")
    KeyRing(tmp_path / "keys").destroy("bob")
    host.keep_up(NOW)
    assert list(host._memories) == ["carol"]  # idle users' memories are closed too
    for ask in (stats, ingest, remember):
        with pytest.raises(EncryptionKeyMissingError):
            ask(host, "alice")
    assert stats(host, "carol").memories == 1
    host.close()
    assert KeyRing(tmp_path / "keys").users() == ["carol", "system"]
