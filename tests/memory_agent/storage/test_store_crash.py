"""Acknowledged writes survive a killed writer and a full disk."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from samples import SMALL, memory, new_key, unit_vectors
from store_checks import verified

from memory_agent.errors import StoreFullError
from memory_agent.settings import StoreSettings
from memory_agent.storage import archive as archives
from memory_agent.storage.archive import Archive
from memory_agent.storage.derived import COLUMNS_FILE, GRAPH_FILE
from memory_agent.storage.store import Store

_WRITER = """
import sys
from pathlib import Path
sys.path.insert(0, {here!r})
from samples import SMALL, memory, new_key, unit_vectors
from memory_agent.storage.archive import Archive
key = new_key(Path({keys!r})) if {keys!r} else None
archive = Archive.open(Path({folder!r}), SMALL, role="host", key=key)
vectors = unit_vectors(5, seed=1)
while True:
    start = archive.store.state.cursor
    with archive.batch() as batch:
        for seq in range(start + 1, start + 6):
            batch.put(memory(f"event number {{seq}}", id=f"m-{{seq}}", event_id=f"e-{{seq}}"), vectors[seq % 5])
            batch.count("kept")
        batch.state.cursor = start + 5
    print(start + 5, flush=True)
    if start % 100 == 0:
        archive._save()
"""


def killed_after(folder: Path, keys: Path | None, acks: int) -> int:
    """Run a writer, kill it after `acks` acknowledgements, and return the last acknowledged number."""
    code = _WRITER.format(here=str(Path(__file__).parent), folder=str(folder), keys=str(keys or ""))
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        for _ in range(acks):
            assert writer.stdout.readline()
        writer.kill()
        rest = writer.stdout.read().split("\n")  # output written before the kill
    return max((int(line) for line in rest[:-1] if line), default=0)


@pytest.mark.slow
@pytest.mark.parametrize("is_encrypted", [False, True], ids=["plain", "encrypted"])
def test_every_acknowledged_batch_is_there_exactly_once_however_often_the_writer_is_killed(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, is_encrypted: bool
) -> None:
    seeded = random.Random(20260216)
    keys = tmp_path_factory.mktemp("keys") if is_encrypted else None
    for _ in range(6 if is_encrypted else 12):
        acked = killed_after(tmp_path, keys, acks=seeded.randrange(1, 40))
        with closing(Archive.open(tmp_path, SMALL, "library", keys and new_key(keys))) as archive:
            store, view = archive.store, archive.view
            assert store.state.cursor >= acked
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


def fill(writer: Store | Archive) -> None:
    for number in range(100_000):
        with writer.batch() as batch:
            batch.put(memory(os.urandom(400).hex(), event_id=f"e-{number}"), unit_vectors(1, seed=number)[0])


@pytest.mark.parametrize("reserve_bytes", [512 << 10, 0], ids=["with a reserve", "to the last byte"])
def test_a_full_disk_stops_intake_loses_nothing_and_still_deletes(small_disk: Path, reserve_bytes: int) -> None:
    settings = StoreSettings(map_size_bytes=64 << 20, reserve_bytes=reserve_bytes)
    with Store.open(small_disk / "user", settings) as store:
        with pytest.raises(StoreFullError):
            fill(store)
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
        fill(archive)
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
