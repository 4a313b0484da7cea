"""Test an archive in a folder: damage, age, erasure, encryption, and a store that is slow or refuses requests."""

from __future__ import annotations

import shutil
import sys
import threading
from contextlib import closing
from pathlib import Path

import fsspec
import pytest
from archives import (
    FREQUENT,
    SIZE,
    USER,
    FaultyFileSystem,
    Owner,
    contents_of,
    faulty_objects,
    files,
    local_objects,
)
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
from memory_samples import NOW

from memory_agent.archiving import Limits, Objects, ObjectStore, UserArchive, restore
from memory_agent.archiving.restoration import restore_derived
from memory_agent.errors import (
    ArchiveDamagedError,
    ArchiveUnavailableError,
    FencedError,
    InvalidInputError,
    SettingsError,
)
from memory_agent.records.memories import MemoryRecord
from memory_agent.records.placement import Position
from memory_agent.settings import ArchiveSettings, StoreSettings
from memory_agent.storage.environment import RECORDS_FOLDER, UserKey
from memory_agent.storage.store import Store
from relay.crypto import KeyRing

MARK = b"a marked sentence that must not remain"
RARE = Limits(check_s=0.0)


def archived(folder: Path, limits: Limits = RARE) -> Path:
    """Return an archive with a snapshot, two increments, a second owner's base, and an increment after this base."""
    objects = local_objects(folder / "archive")
    with Owner(objects, folder / "a", 1, limits=limits) as owner:
        for number in range(3):
            owner.put("one", b"key", b"value %d" % number)
            owner.archive.flush()
    restored = restore(objects, USER, folder / "b" / "records")
    with Owner(objects, folder / "b", 2, restored, limits) as owner:
        owner.put("two", b"key", b"value 3")
        owner.archive.flush()
    return folder / "archive"


def names(archive: Path) -> list[str]:
    return [f"{int(path.parent.name)}/{int(path.stem.split('.')[0])}.{path.suffix[1:]}" for path in files(archive)]


def test_an_archive_consists_of_a_snapshot_increments_and_bases(tmp_path: Path) -> None:
    archive = archived(tmp_path)
    assert names(archive) == ["1/0.snapshot", "1/1.increment", "1/2.increment", "2/0.base", "2/1.increment"]
    restored = restore(local_objects(archive), USER, tmp_path / "c", Position(2, 1))
    assert restored is not None
    assert restored.position == Position(2, 1)
    assert contents_of(tmp_path / "c") == {
        "one": [(b"epoch", b"2"), (b"key", b"value 2")],
        "two": [(b"key", b"value 3")],
    }


def test_a_due_snapshot_replaces_everything_older(tmp_path: Path) -> None:
    archive = archived(tmp_path, Limits(increments=2, least_bytes=0, share=100.0, check_s=0.0))
    assert names(archive) == ["2/1.snapshot"]


def derived(objects: Objects, folder: Path) -> str | None:
    """Restore the newest state into `folder`, and return the content of its derived file."""
    restored = restore(objects, USER, folder / "records")
    assert restored is not None
    restore_derived(objects, restored, folder)
    file = folder / "columns.arrays"
    return file.read_text() if file.exists() else None


def test_a_state_is_restored_with_the_newest_derived_file_that_belongs_to_it(tmp_path: Path) -> None:
    objects = local_objects(tmp_path / "archive")
    with Owner(objects, tmp_path / "a", 1, limits=RARE) as former:
        former.archive.flush()
        assert derived(objects, tmp_path / "without") is None
        for number in range(2):
            former.write_columns(f"columns {number}")
            former.put("one", b"key", b"value %d" % number)
            former.archive.flush()
        former.put("one", b"key", b"value 2")
        former.archive.flush()
        assert derived(objects, tmp_path / "b") == "columns 1"
        restored = restore(objects, USER, tmp_path / "c" / "records")
        former.write_columns("columns of a late owner")
        former.put("one", b"key", b"a late value")
        former.archive.flush()
    with Owner(objects, tmp_path / "c", 2, restored, RARE) as owner:
        owner.archive.flush()
        assert derived(objects, tmp_path / "d") == "columns 1"
        owner.write_columns("columns 2")
        owner.archive.flush()
    assert derived(objects, tmp_path / "e") == "columns 2"


def test_a_snapshot_is_followed_by_the_derived_file(tmp_path: Path) -> None:
    objects = local_objects(tmp_path / "archive")
    with Owner(objects, tmp_path / "a", 1) as owner:
        owner.write_columns("columns")
        for number in range(FREQUENT.increments + 2):
            owner.put("one", b"key", b"%d" % number)
            owner.archive.flush()
    assert names(tmp_path / "archive") == ["1/5.arrays", "1/5.snapshot"]
    assert derived(objects, tmp_path / "b") == "columns"


def test_a_rejected_derived_file_does_not_delay_further_flushes(tmp_path: Path) -> None:
    with Owner(faulty_objects(), tmp_path / "a", 1) as owner:
        owner.write_columns("columns 0")
        FaultyFileSystem.faults[:] = ["none", "refused"]
        owner.archive.flush()
        FaultyFileSystem.faults[:] = ["refused"]
        owner.archive.flush()
        assert FaultyFileSystem.faults == ["refused"], "nothing was uploaded"
        FaultyFileSystem.faults.clear()
        assert derived(faulty_objects(), tmp_path / "b") is None
        owner.write_columns("columns 1")
        owner.archive.flush()
    assert derived(faulty_objects(), tmp_path / "c") == "columns 1"


def test_a_derived_file_that_arrives_late_does_not_stay_in_a_deleted_archive(tmp_path: Path) -> None:
    objects = ObjectStore.open(ArchiveSettings(url="faulty://bucket", timeout_s=1.0)).of_user(USER)
    with Owner(objects, tmp_path, 1) as owner:
        owner.archive.flush()
        owner.write_columns("words of a memory")
        FaultyFileSystem.blocked = late = threading.Event()
        owner.archive.flush()  # gives the upload up
        FaultyFileSystem.blocked = None
        home = faulty_objects()
        home.remove_before(2)
        late.set()
        assert objects.names(1) == home.names(1) == []  # `objects` waits for the upload


def test_a_user_without_archive_has_nothing_to_restore(tmp_path: Path) -> None:
    objects = local_objects(tmp_path / "archive")
    assert restore(objects, USER, tmp_path / "target") is None
    assert not (tmp_path / "target").exists()
    with pytest.raises(ArchiveDamagedError, match="must contain the state 1/0, but there is none"):
        restore(objects, USER, tmp_path / "target", Position(1, 0))


def test_the_remains_of_a_first_upload_are_no_archive(tmp_path: Path) -> None:
    folder = tmp_path / "archive" / "users" / USER / "0000000000000001"
    folder.mkdir(parents=True)
    (folder / "000000000000.snapshot.new").write_bytes(b"partial")
    assert restore(local_objects(tmp_path / "archive"), USER, tmp_path / "target") is None


def test_an_existing_folder_is_never_replaced(tmp_path: Path) -> None:
    objects = local_objects(archived(tmp_path))
    with pytest.raises(InvalidInputError):
        restore(objects, USER, tmp_path / "b" / "records")


@pytest.mark.parametrize("place", range(5))
def test_a_damaged_object_is_found(tmp_path: Path, place: int) -> None:
    archive = archived(tmp_path)
    path = files(archive)[place]
    content = path.read_bytes()
    for offset in {*range(0, min(len(content), 240), 7), len(content) // 2, len(content) - 1}:
        path.write_bytes(content[:offset] + bytes([content[offset] ^ 1]) + content[offset + 1 :])
        with pytest.raises(ArchiveDamagedError):
            restore(local_objects(archive), USER, tmp_path / "c")
    for length in (0, 10, len(content) - 1):
        path.write_bytes(content[:length])
        with pytest.raises(ArchiveDamagedError):
            restore(local_objects(archive), USER, tmp_path / "c")
    assert not [path for path in tmp_path.iterdir() if path.name.startswith((".c", "c"))]
    path.write_bytes(content)
    assert restore(local_objects(archive), USER, tmp_path / "c") is not None


@pytest.mark.parametrize("place", range(4))
def test_a_missing_object_is_found(tmp_path: Path, place: int) -> None:
    archive = archived(tmp_path)
    files(archive)[place].unlink()
    with pytest.raises(ArchiveDamagedError):
        restore(local_objects(archive), USER, tmp_path / "c")


def test_a_missing_last_object_is_found_by_the_required_position(tmp_path: Path) -> None:
    archive = archived(tmp_path)
    files(archive)[-1].unlink()
    with pytest.raises(ArchiveDamagedError, match="must contain the state 2/1, but the newest is 2/0"):
        restore(local_objects(archive), USER, tmp_path / "c", Position(2, 1))
    restored = restore(local_objects(archive), USER, tmp_path / "c")
    assert restored is not None
    assert restored.position == Position(2, 0)


def test_an_older_snapshot_is_never_accepted_silently(tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    with Owner(local_objects(archive), tmp_path / "a", 1) as owner:
        owner.archive.flush()
        shutil.copytree(archive, tmp_path / "older")
        owner.put("one", b"key", b"value")
        newest = owner.archive.renew()
    with pytest.raises(ArchiveDamagedError):
        restore(local_objects(tmp_path / "older"), USER, tmp_path / "c", newest)


@pytest.mark.parametrize(("source", "target"), [(1, 2), (1, 4), (4, 1)])
def test_an_object_in_the_place_of_another_is_found(tmp_path: Path, source: int, target: int) -> None:
    archive = archived(tmp_path)
    paths = files(archive)
    shutil.copyfile(paths[source], paths[target])
    with pytest.raises(ArchiveDamagedError, match="another user, position or kind"):
        restore(local_objects(archive), USER, tmp_path / "c")


def test_objects_of_another_user_are_not_restored(tmp_path: Path) -> None:
    archive = archived(tmp_path)
    (archive / "users" / USER).rename(archive / "users" / "bob")
    with pytest.raises(ArchiveDamagedError, match="another user"):
        restore(ObjectStore.open(ArchiveSettings(url=f"file://{archive}")).of_user("bob"), "bob", tmp_path / "c")


def test_an_object_of_another_history_does_not_follow(tmp_path: Path) -> None:
    archive, other = archived(tmp_path / "x"), archived(tmp_path / "y", RARE)
    with Owner(local_objects(tmp_path / "z"), tmp_path / "machine", 1, limits=RARE) as owner:
        for number in range(3):
            owner.put("two", b"key", b"value %d" % number)
            owner.archive.flush()
    shutil.copyfile(files(tmp_path / "z")[1], files(archive)[1])
    with pytest.raises(ArchiveDamagedError, match="does not follow"):
        restore(local_objects(archive), USER, tmp_path / "c")
    assert restore(local_objects(other), USER, tmp_path / "c") is not None


def test_an_earlier_owner_is_fenced_and_deletes_nothing(tmp_path: Path) -> None:
    objects = local_objects(tmp_path / "archive")
    with Owner(objects, tmp_path / "a", 1) as earlier:
        earlier.archive.flush()
        restored = restore(objects, USER, tmp_path / "b" / "records")
        with Owner(objects, tmp_path / "b", 2, restored) as owner:
            position = owner.archive.flush()
            earlier.put("one", b"key", b"late")
            with pytest.raises(FencedError):
                earlier.archive.renew()
            expected = owner.contents()
    found = restore(objects, USER, tmp_path / "c", position)
    assert found is not None
    assert found.position == position
    assert contents_of(tmp_path / "c") == expected


def test_an_epoch_is_used_once(tmp_path: Path) -> None:
    objects = local_objects(archived(tmp_path))
    with Owner(objects, tmp_path / "c", 2) as owner, pytest.raises(FencedError):
        owner.archive.flush()


@pytest.mark.parametrize("epoch", [1, 2])
def test_an_owner_whose_base_lost_its_chain_writes_a_snapshot(tmp_path: Path, epoch: int) -> None:
    archive = archived(tmp_path)
    restored = restore(local_objects(archive), USER, tmp_path / "c" / "records")
    with Owner(local_objects(archive), tmp_path / "c", 3, restored, RARE) as owner:
        owner.archive.flush()
        assert names(archive)[-2:] == ["3/0.base", "3/1.increment"]
        shutil.rmtree(archive / "users" / USER / f"{epoch:016}")  # a delayed earlier owner may still delete this folder
        owner.archive.flush()
        assert names(archive) == ["3/2.snapshot"]
        assert restore(local_objects(archive), USER, tmp_path / "d") is not None
        assert contents_of(tmp_path / "d") == owner.contents()


def test_an_interrupted_restoration_is_replaced(tmp_path: Path) -> None:
    archive = archived(tmp_path)
    (tmp_path / ".c.restoring" / "data.mdb").mkdir(parents=True)
    assert restore(local_objects(archive), USER, tmp_path / "c") is not None
    assert not (tmp_path / ".c.restoring").exists()


def test_after_a_renewal_nothing_that_was_deleted_is_left(tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    with Owner(local_objects(archive), tmp_path / "a", 1, limits=RARE) as owner:
        owner.put("one", MARK, MARK * 50)
        owner.archive.flush()
        owner.put("two", b"key", MARK)
        owner.archive.flush()
        interrupted = files(archive)[0].with_name("000000000009.increment.new")
        interrupted.write_bytes(MARK)
        with owner.environment.write() as transaction:
            transaction.delete("one", MARK)
            transaction.clear("two")
        owner.environment.compact()
        assert any(MARK in path.read_bytes() for path in files(archive))
        owner.archive.renew()
    assert names(archive) == ["1/2.snapshot"]
    assert not any(MARK in path.read_bytes() for path in files(tmp_path))


def test_a_renewal_fails_unless_everything_older_is_deleted(tmp_path: Path) -> None:
    with Owner(faulty_objects(), tmp_path / "a", 1) as owner:
        owner.archive.flush()
        FaultyFileSystem.faults[:] = ["none", "refused"]
        with pytest.raises(ArchiveUnavailableError):
            owner.archive.renew()
        owner.archive.flush()
    assert len(FaultyFileSystem.store) == 1


def test_the_archive_of_a_removed_user_is_empty(tmp_path: Path) -> None:
    archive = archived(tmp_path)
    with Owner(local_objects(archive), tmp_path / "c", 3) as owner:
        owner.archive.flush()
    local_objects(archive).remove_before(4)
    local_objects(archive).remove_before(4)
    assert files(archive) == []


def test_pending_changes_are_bounded_while_the_store_is_away(tmp_path: Path) -> None:
    with Owner(faulty_objects(), tmp_path / "a", 1) as owner:
        owner.archive.flush()
        for number in range(100):
            owner.put("one", b"%d" % number, bytes(300))
            FaultyFileSystem.faults[:] = ["refused"]
            with pytest.raises(ArchiveUnavailableError):
                owner.archive.flush()
            assert owner.archive._pending_bytes <= FREQUENT.pending_bytes
        FaultyFileSystem.faults.clear()
        owner.archive.flush()
        restore(faulty_objects(), USER, tmp_path / "c")
        assert contents_of(tmp_path / "c") == owner.contents()


def test_a_store_that_does_not_answer_delays_no_commit(tmp_path: Path) -> None:
    objects, going_on = faulty_objects(), threading.Event()
    with Owner(objects, tmp_path / "a", 1) as owner:
        owner.archive.flush()
        FaultyFileSystem.blocked, objects._timeout_s = going_on, 0.05
        for number in range(3):
            owner.put("one", b"%d" % number, b"value")
            with pytest.raises(ArchiveUnavailableError, match="did not answer"):
                owner.archive.flush()
        objects._timeout_s = 60.0
        going_on.set()
        owner.archive.flush()
        restore(faulty_objects(), USER, tmp_path / "c")
        assert contents_of(tmp_path / "c") == owner.contents()


def test_a_user_with_any_id_is_archived(tmp_path: Path) -> None:
    user_id = "Team:Bob+x@Example.org"
    store = ObjectStore.open(ArchiveSettings(url=f"file://{tmp_path}/archive"))
    writer = UserArchive(store.of_user(user_id), user_id, 1, tmp_path / "scratch")
    with closing(Store.open(tmp_path / "user", on_commit=writer.note)) as opened:
        writer.start(opened.copy)
        position = writer.flush()
    restored = restore(store.of_user(user_id), user_id, tmp_path / "c", position)
    assert restored is not None
    assert restored.position == position


def test_an_asynchronous_file_system_is_used_like_others(tmp_path: Path) -> None:
    files = AsyncFileSystemWrapper(FaultyFileSystem())
    objects = ObjectStore(files, "/bucket", 60.0, is_local=False).of_user(USER)
    with Owner(objects, tmp_path / "a", 1, limits=RARE) as owner:
        for number in range(3):
            owner.put("one", b"key", b"value %d" % number)
            position = owner.archive.flush()
        restored = restore(objects, USER, tmp_path / "c", position)
        assert restored is not None
        assert restored.increments == 2
        assert contents_of(tmp_path / "c") == owner.contents()
    with Owner(objects, tmp_path / "b", 2) as owner:
        owner.archive.flush()
        assert list(FaultyFileSystem.store) == ["/bucket/users/alice/0000000000000002/000000000000.snapshot"]
    objects.remove_before(3)
    assert FaultyFileSystem.store == {}


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(SettingsError, match=r"pip install fsspec"):
        ObjectStore.open(ArchiveSettings(url="file:///srv/archive"))


def test_an_interrupted_commit_leads_to_a_snapshot(tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    with Owner(local_objects(archive), tmp_path / "a", 1, limits=RARE) as owner:
        owner.archive.flush()
        owner.archive.note(None)
        owner.archive.flush()
    assert names(archive) == ["1/1.snapshot"]


def test_a_restored_store_continues_and_an_encrypted_one_stays_encrypted(tmp_path: Path) -> None:
    key, settings = UserKey(KeyRing(tmp_path / "keys"), USER), StoreSettings(map_size_bytes=SIZE, reserve_bytes=0)
    archive = tmp_path / "archive"

    def opened(folder: Path, epoch: int) -> Store:
        restored = restore(local_objects(archive), USER, folder / RECORDS_FOLDER)
        writer = UserArchive(local_objects(archive), USER, epoch, folder / "archiving")
        store = Store.open(folder, settings, key=key, on_commit=writer.note)
        writer.start(store.copy, restored)
        for number in range(2):
            with store.batch() as batch:
                batch.put(record(f"{MARK.decode()} {epoch}-{number}"), None)
            writer.flush()
        return store

    for epoch in (1, 2, 3):
        opened(tmp_path / f"machine-{epoch}", epoch).close()
    restore(local_objects(archive), USER, tmp_path / "last" / RECORDS_FOLDER)
    with closing(Store.open(tmp_path / "last", settings, key=key)) as store:
        texts = [found.text for _, found in store.scan()]
    assert texts == [f"{MARK.decode()} {epoch}-{number}" for epoch in (1, 2, 3) for number in range(2)]
    assert len(files(archive)) == 8  # a snapshot with the first batch, then increments and two bases
    assert not any(b"marked" in path.read_bytes() for path in files(archive))


def record(text: str) -> MemoryRecord:
    return MemoryRecord(id=text[-3:], text=text, source="worker_result", kind="finding", timestamp=NOW)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (ArchiveSettings(url="/srv/archive"), "must be a URL"),
        (ArchiveSettings(url="nothing://bucket"), "unknown protocol nothing"),
        (ArchiveSettings(url="ftp://user:secret@host/x"), "must not contain a password"),
        (ArchiveSettings(url="file:///srv/[x]"), "must not contain the characters"),
        (ArchiveSettings(url="missing://bucket"), "install missingfs"),
        (ArchiveSettings(url="file:///srv", options={"auto_mkdir": "secret", "use_listings_cache": 1}), "options"),
    ],
)
def test_an_unusable_url_is_named(settings: ArchiveSettings, message: str) -> None:
    fsspec.register_implementation(
        "missing", "missingfs.core.MissingFileSystem", clobber=True, errtxt="install missingfs"
    )
    with pytest.raises(SettingsError, match=message) as raised:
        ObjectStore.open(settings)
    assert "secret" not in str(raised.value)
