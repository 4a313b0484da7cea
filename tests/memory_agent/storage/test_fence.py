from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from processes import owner
from samples import SMALL, memory

from memory_agent.errors import FencedError, StoreDamagedError, StoreOwnedElsewhereError
from memory_agent.storage.environment import own
from memory_agent.storage.store import Store
from relay.disk import Role


@pytest.mark.parametrize("is_encrypted", [False, True], ids=["plain", "encrypted"])
def test_a_host_that_lives_on_is_fenced_by_its_successor(tmp_path: Path, is_encrypted: bool) -> None:
    keys = tmp_path / "keys" if is_encrypted else None
    with owner(tmp_path, "host", keys) as former:
        assert former.greeting == "open 1"
        assert former.ask("write") == "written"
        with owner(tmp_path, "host", keys) as successor:
            assert successor.greeting == "open 2"
            assert former.ask("write") == "fenced"
            assert former.ask("write") == "fenced"
            assert successor.ask("write") == "written"
            assert successor.ask("count") == "2"


def test_a_fenced_owner_that_closes_does_not_take_the_lock_from_its_successor(tmp_path: Path) -> None:
    with owner(tmp_path, "host") as former, owner(tmp_path, "host") as successor:
        assert former.ask("close") == "closed"
        with pytest.raises(StoreOwnedElsewhereError) as caught:
            Store.open(tmp_path, SMALL, role="library")
        assert str(successor.pid) in caught.value.owner


def test_a_third_host_takes_over_from_the_second(tmp_path: Path) -> None:
    with owner(tmp_path, "host") as first, owner(tmp_path, "host") as second, owner(tmp_path, "host") as third:
        assert third.greeting == "open 3"
        assert [first.ask("write"), second.ask("write"), third.ask("write")] == ["fenced", "fenced", "written"]


def test_a_library_is_never_taken_over(tmp_path: Path) -> None:
    with owner(tmp_path, "library") as library, owner(tmp_path, "host") as host:
        assert host.greeting == "store_owned_elsewhere"
        assert library.ask("write") == "written"


@pytest.mark.parametrize("role", ["library", "host"])
def test_a_library_is_refused_at_once_with_the_owner_named(tmp_path: Path, role: str) -> None:
    with owner(tmp_path, role) as holder, pytest.raises(StoreOwnedElsewhereError) as caught:
        Store.open(tmp_path, SMALL, role="library")
    assert f"{role} process {holder.pid}" in str(caught.value)


def test_a_killed_owner_does_not_hinder_the_next(tmp_path: Path) -> None:
    with owner(tmp_path, "library") as killed:
        assert killed.ask("write") == "written"
        killed.kill()
        with Store.open(tmp_path, SMALL) as store:
            assert store.epoch == 2
            assert store.counts().memories == 1


@pytest.mark.parametrize("role", ["library", "host"])
def test_the_same_process_cannot_open_a_store_twice(tmp_path: Path, role: Role) -> None:
    with Store.open(tmp_path, SMALL, role), pytest.raises(StoreOwnedElsewhereError) as caught:
        Store.open(tmp_path, SMALL, role)
    assert str(os.getpid()) in caught.value.owner


def test_a_host_takes_over_within_one_process_after_the_other_released_the_folder(tmp_path: Path) -> None:
    with Store.open(tmp_path, SMALL, role="host"):
        pass
    with Store.open(tmp_path, SMALL, role="host") as store:
        assert store.epoch == 2


def test_the_fence_reports_both_epochs(tmp_path: Path) -> None:
    with Store.open(tmp_path, SMALL, role="host") as former, owner(tmp_path, "host"):
        with pytest.raises(FencedError) as caught, former.batch() as batch:
            batch.put(memory(), None)
        assert (caught.value.own_epoch, caught.value.current_epoch) == (1, 2)


def test_a_store_that_vanished_under_its_lock_file_is_damage_and_not_a_new_store(tmp_path: Path) -> None:
    with Store.open(tmp_path, SMALL) as store, store.batch() as batch:
        batch.put(memory(), None)
    os.truncate(tmp_path / "records" / "data.mdb", 0)
    with pytest.raises(StoreDamagedError):
        Store.open(tmp_path, SMALL)


def test_a_lock_file_with_anything_in_it_is_usable(tmp_path: Path) -> None:
    for content in (b"", b"{", b"\xff" * 5_000, b'{"role": "king", "pid": 1}'):
        (tmp_path / "owner.lock").write_bytes(content)
        own(tmp_path, "library").release()


def test_a_copied_folder_opens_without_its_owner(tmp_path: Path) -> None:
    with Store.open(tmp_path / "a", SMALL) as store:
        with store.batch() as batch:
            batch.put(memory(), None)
        shutil.copytree(tmp_path / "a", tmp_path / "b")
        with Store.open(tmp_path / "b", SMALL) as copy:
            assert copy.counts().memories == 1


def test_a_damaged_lock_file_does_not_block_opening(tmp_path: Path) -> None:
    with Store.open(tmp_path / "user"):
        pass
    (tmp_path / "user" / "owner.lock").write_bytes(b'{"role\xa2')
    with Store.open(tmp_path / "user") as store:
        assert store.counts().memories == 0
