"""A store can be compacted while in use, and survives a kill at every step of a compaction."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from samples import SMALL, memory, unit_vectors
from store_checks import verified

from memory_agent.errors import FencedError
from memory_agent.storage.environment import own
from memory_agent.storage.snapshot import Snapshot
from memory_agent.storage.store import Store

SECRET = "the word xyzzyplugh must leave the file"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A store most of whose memories are deleted."""
    with Store.open(tmp_path / "user", SMALL) as store:
        vectors = unit_vectors(300, 1)
        with store.batch() as batch:
            for vector in vectors:
                batch.put(memory(SECRET), vector)
        with store.batch() as batch:
            for row in range(1, 290):
                batch.delete(row)
        store.forget_changes_through(store.state.last_change)
    return tmp_path / "user"


def contents(snapshot: Snapshot) -> object:
    return list(snapshot.scan()), [(rows.tolist(), vectors.tolist()) for rows, vectors in snapshot.scan_vectors()]


def test_a_compacted_store_is_smaller_equal_and_usable(folder: Path) -> None:
    with Store.open(folder, SMALL) as store:
        with store.snapshot() as snapshot:
            before = contents(snapshot)
        large, small = store.compact()
        assert small < large / 2
        with store.snapshot() as snapshot:
            assert contents(snapshot) == before
        with store.batch() as batch:
            batch.put(memory("after"), None)
        assert store.compact()[1] <= small + 8 * 4_096
        assert store.counts().memories == 12
    with Store.open(folder, SMALL) as store:
        assert verified(store) == 12
        assert not (folder / "records" / "compact").exists()


def test_deleted_bytes_have_left_the_file(folder: Path) -> None:
    with Store.open(folder, SMALL) as store:
        with store.batch() as batch:
            for row in range(290, 301):
                batch.delete(row)
        store.forget_changes_through(store.state.last_change)
        assert b"xyzzyplugh" in (folder / "records" / "data.mdb").read_bytes()
        store.compact()
    assert b"xyzzyplugh" not in (folder / "records" / "data.mdb").read_bytes()


def test_readers_and_writers_go_on_while_a_store_is_compacted(folder: Path) -> None:
    failures: list[BaseException] = []
    done = threading.Event()

    def read(store: Store) -> None:
        try:
            while not done.is_set():
                assert store.record(300) is not None
                assert store.counts().memories >= 11
        except BaseException as error:
            failures.append(error)

    def write(store: Store) -> None:
        try:
            while not done.is_set():
                with store.batch() as batch:
                    batch.put(memory("meanwhile"), None)
        except BaseException as error:
            failures.append(error)

    with Store.open(folder, SMALL) as store:
        threads = [threading.Thread(target=work, args=(store,)) for work in (read, read, write)]
        for thread in threads:
            thread.start()
        for _ in range(2):
            store.compact()
        done.set()
        for thread in threads:
            thread.join()
        count = store.counts().memories
    assert failures == []
    with Store.open(folder, SMALL) as store:
        assert verified(store) == count


def test_reads_that_overlap_without_a_pause_do_not_keep_compaction_off(folder: Path) -> None:
    """Each read ends only after a later read has begun or been rejected, so some read is always open."""
    entered, failures = [0], list[BaseException]()
    changed, done = threading.Condition(), threading.Event()

    def read(store: Store) -> None:
        try:
            while not done.is_set():
                with store.snapshot() as snapshot, changed:
                    entered[0] += 1
                    mine = entered[0]
                    changed.notify_all()
                    changed.wait_for(lambda mine=mine: entered[0] > mine or done.is_set(), 0.2)  # type: ignore[misc]
                    assert len(list(snapshot.scan())) == 11
        except BaseException as error:
            failures.append(error)

    with Store.open(folder, SMALL) as store:
        threads = [threading.Thread(target=read, args=(store,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        with changed:
            changed.wait_for(lambda: entered[0] > 5)
        try:
            large, small = store.compact()
        finally:
            done.set()
            for thread in threads:
                thread.join()
        assert small < large
    assert failures == []


def test_a_read_within_a_read_does_not_wait_for_the_swap_that_waits_for_it(folder: Path) -> None:
    with Store.open(folder, SMALL) as store:
        sizes: list[tuple[int, int]] = []
        compacting = threading.Thread(target=lambda: sizes.append(store.compact()))
        with store.snapshot() as snapshot:
            compacting.start()
            while store._environment._transactions._writer is None:
                pass
            assert store.record(300) is not None
            assert snapshot.record(300) is not None
            assert sizes == []
        compacting.join()
        assert len(sizes) == 1


def test_a_former_owner_cannot_overwrite_its_successors_writes(folder: Path) -> None:
    store = Store.open(folder, SMALL, role="host")
    lock = folder / "owner.lock"
    lock.rename(folder / "old.lock")  # a successor does this, and creates a new lock file
    successor = own(folder, "host", 0.1)
    content = (folder / "records" / "data.mdb").read_bytes()
    with pytest.raises(FencedError):
        store.compact()
    assert (folder / "records" / "data.mdb").read_bytes() == content
    successor.release()
    store.close()


_KILLED_AT_EVERY_STEP = """
import os, shutil, signal, sys
from pathlib import Path
sys.path[:0] = {here!r}, str(Path({here!r}).parent)
from samples import SMALL
from store_checks import verified
from memory_agent.storage.store import Store
from relay.disk import find_fault
source, scratch = Path(sys.argv[1]), Path(sys.argv[2])
WATCHED = ("open", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "shutil.rmtree")

def compact_and_die(step):
    store = Store.open(scratch, SMALL)
    count = [0]
    def hook(event, arguments):
        if event in WATCHED:
            count[0] += 1
            if count[0] == step:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(hook)
    store.compact()
    os._exit(0)

step = killed = 0
while True:
    step += 1
    shutil.rmtree(scratch, ignore_errors=True)
    shutil.copytree(source, scratch)
    pid = os.fork()
    if not pid:
        compact_and_die(step)
    status = os.waitpid(pid, 0)[1]
    assert find_fault(scratch / "records") is None, step
    with Store.open(scratch, SMALL) as store:
        assert verified(store) == 11, step
        store.compact()
        assert verified(store) == 11, step
    if not os.WIFSIGNALED(status):
        assert status == 0
        break
    killed += 1
print(killed)
"""


def test_a_compaction_killed_at_every_step_leaves_a_whole_store(folder: Path, tmp_path: Path) -> None:
    code = _KILLED_AT_EVERY_STEP.format(here=str(Path(__file__).parent))
    command = [sys.executable, "-c", code, str(folder), str(tmp_path / "scratch")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2_000:]
    assert int(done.stdout) >= 8
