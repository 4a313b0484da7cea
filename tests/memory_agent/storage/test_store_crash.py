"""Acknowledged writes survive a killed writer and a full disk."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import IO

import numpy as np
import pytest
from forks import forking, kill_after, serve
from samples import SMALL, memory, new_key, unit_vectors
from store_checks import verified

from memory_agent.errors import StoreFullError
from memory_agent.settings import StoreSettings
from memory_agent.storage import archive as archives
from memory_agent.storage.archive import Archive
from memory_agent.storage.derived import COLUMNS_FILE, GRAPH_FILE
from memory_agent.storage.environment import UserKey
from memory_agent.storage.store import Store


def write(folder: Path, key: UserKey | None, acknowledged: IO[str]) -> None:
    """Store batches of five memories, and print the number of the last memory after each batch, until killed."""
    archive = Archive.open(folder, SMALL, role="host", key=key)
    vectors = unit_vectors(5, seed=1)
    while True:
        start = archive.store.state.cursor
        with archive.batch() as batch:
            for seq in range(start + 1, start + 6):
                batch.put(memory(f"event number {seq}", id=f"m-{seq}", event_id=f"e-{seq}"), vectors[seq % 5])
                batch.count("kept")
            batch.state.cursor = start + 5
        print(start + 5, file=acknowledged, flush=True)
        if start % 100 == 0:
            archive._save()


def kill_a_writer(folder: str, keys: str, acks: int, last: str) -> None:
    """Run a writer, kill it after `acks` acknowledgements, and write the last acknowledged number into `last`."""
    key = new_key(Path(keys)) if keys else None
    Path(last).write_text(kill_after(acks, lambda acknowledged: write(Path(folder), key, acknowledged))[-1])


@pytest.mark.slow
@pytest.mark.parametrize("is_encrypted", [False, True], ids=["plain", "encrypted"])
def test_every_acknowledged_batch_is_there_exactly_once_however_often_the_writer_is_killed(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, is_encrypted: bool
) -> None:
    seeded = random.Random(20260216)
    folder, last = tmp_path / "user", tmp_path / "last"
    keys = tmp_path_factory.mktemp("keys") if is_encrypted else None
    with forking(__file__) as run:
        for _ in range(6 if is_encrypted else 12):
            assert run(folder, keys or "", seeded.randrange(1, 40), last) == 0
            with closing(Archive.open(folder, SMALL, "library", keys and new_key(keys))) as archive:
                store, view = archive.store, archive.view
                assert store.state.cursor >= int(last.read_text())
                assert store.state.cursor % 5 == 0
                assert [record.event_id for _, record in store.scan()] == [
                    f"e-{seq}" for seq in range(1, store.state.cursor + 1)
                ]
                assert store.state.counters == {"kept": store.state.cursor}
                assert verified(store) == view.live == view.vectors.count == store.state.cursor
                assert np.count_nonzero(view.words.scores(["number"])) == store.state.cursor
                assert np.count_nonzero(view.words.scores([str(store.state.cursor)])) == min(store.state.cursor, 1)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 4 MB."""
    if os.geteuid():
        pytest.skip("mounting a small disk needs root")
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)], check=False)
    if mounted.returncode:
        pytest.skip("this machine does not allow mounting a tmpfs")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def fill(writer: Store | Archive, size: int) -> None:
    """Write batches of `size` memories until the disk is full."""
    vectors = unit_vectors(size, seed=1)
    for number in range(100_000):
        with writer.batch() as batch:
            for place, vector in enumerate(vectors):
                batch.put(memory(os.urandom(1_200).hex(), event_id=f"e-{number}-{place}"), vector)


@pytest.mark.parametrize("reserve_bytes", [512 << 10, 0], ids=["with a reserve", "to the last byte"])
def test_a_full_disk_stops_intake_loses_nothing_and_still_deletes(small_disk: Path, reserve_bytes: int) -> None:
    settings = StoreSettings(map_size_bytes=64 << 20, reserve_bytes=reserve_bytes)
    with Store.open(small_disk / "user", settings) as store:
        with pytest.raises(StoreFullError):
            fill(store, 10 if reserve_bytes else 1)
        stored = store.counts().memories
        assert stored > 500
        assert verified(store) == stored
        rows = [row for row, _ in store.scan()]
        for row in rows[:20]:
            with store.batch() as batch:
                assert batch.delete(row)
        assert store.counts().memories == stored - 20
    with Store.open(small_disk / "user", settings) as store:
        assert verified(store) == stored - 20


def test_columns_on_a_full_disk_do_not_take_the_store_down(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "_SAVED_AT_LEAST_EVERY", 100)
    settings = StoreSettings(map_size_bytes=64 << 20, reserve_bytes=512 << 10)
    archive = Archive.open(small_disk / "user", settings, "library")
    with pytest.raises(StoreFullError):
        fill(archive, 10)
    stored = archive.store.counts().memories
    assert verified(archive.store) == stored == archive.view.live
    with archive.batch() as batch:
        for row, _ in list(batch.scan())[: stored // 2]:
            batch.delete(row)
    archive.close()
    (small_disk / "user" / COLUMNS_FILE).unlink(missing_ok=True)
    with closing(Archive.open(small_disk / "user", settings, "library")) as archive:
        assert archive.settled_view().live == archive.store.counts().memories == stored - stored // 2


def test_columns_that_find_no_room_leave_the_old_file_and_no_half_of_a_new_one(small_disk: Path) -> None:
    settings = StoreSettings(map_size_bytes=64 << 20, reserve_bytes=64 << 10, exact_search_limit=10)
    archive = Archive.open(small_disk / "user", settings, "library")
    with archive.batch() as batch:
        for vector in unit_vectors(500, seed=1, ndim=384):
            batch.put(memory("a race"), vector)
    archive._save()
    saved = {name: (archive.store.folder / name).read_bytes() for name in (COLUMNS_FILE, GRAPH_FILE)}
    room = os.statvfs(small_disk).f_bavail * 4096
    (small_disk / "ballast").write_bytes(bytes(room - (100 << 10)))
    with archive.batch() as batch:
        batch.delete(1)
    with pytest.raises(OSError, match="No space left"):
        archive._save()
    with pytest.raises(OSError, match="No space left"):
        archive.purge()
    assert {name: (archive.store.folder / name).read_bytes() for name in saved} == saved
    assert not list(archive.store.folder.glob("*.new"))
    assert archive.view.live == archive.store.counts().memories == 499
    (small_disk / "ballast").unlink()
    archive.purge()
    archive.close()
    with closing(Archive.open(small_disk / "user", settings, "library")) as archive:
        assert archive.view.live == archive.view.count == 499


if __name__ == "__main__":
    serve(kill_a_writer)
