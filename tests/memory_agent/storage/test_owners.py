"""The owner of a run or session is learned once, stored durably, and never guessed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from memory_agent.care import check_owners
from memory_agent.errors import EncryptionKeyMissingError, StoreEncryptedError, StoreNotEncryptedError
from memory_agent.storage.environment import UserKey, open_environment
from memory_agent.storage.owners import PAIRS, Owners, encrypt_owners, is_named, keys_of, named_owner, ownership_keys
from relay import SYSTEM_USER
from relay.crypto import KeyRing


@pytest.fixture
def owners(tmp_path: Path) -> Iterator[Owners]:
    owners = Owners(tmp_path / "owners")
    yield owners
    owners.close()


def encoded(**fields: object) -> bytes:
    return msgspec.msgpack.encode({"event_id": "e", "event_type": "t", "user_id": "u", **fields})


def test_an_event_belongs_to_its_run_before_its_session() -> None:
    event = encoded(session_id="s-1", payload={"run_id": "run-7"})
    assert ownership_keys(event) == ("run:run-7", "session:s-1")


def test_a_conductor_names_its_run_in_its_actor_id() -> None:
    assert ownership_keys(encoded(actor_id="conductor:run_7")) == ("run:run_7",)
    assert ownership_keys(encoded(actor_id="worker:3")) == ()


def test_a_run_id_that_is_not_text_is_ignored() -> None:
    assert ownership_keys(encoded(payload={"run_id": 7})) == ()


def test_owners_survive_a_restart(tmp_path: Path) -> None:
    first = Owners(tmp_path / "owners")
    assert first.learn(("run:a", "session:s"), "alice")
    assert not first.learn(("run:a",), "alice")
    first.close()
    second = Owners(tmp_path / "owners")
    assert second.owner(("run:unknown", "session:s")) == "alice"
    second.close()


def test_a_session_claimed_by_two_users_has_no_owner(owners: Owners) -> None:
    owners.learn(("session:s",), "alice")
    owners.learn(("session:s",), "bob")
    assert owners.owner(("session:s",)) is None
    owners.learn(("session:s",), "alice")
    assert owners.owner(("session:s",)) is None


def test_a_contested_run_is_not_settled_by_its_session(owners: Owners) -> None:
    owners.learn(("run:a",), "alice")
    owners.learn(("run:a",), "bob")
    owners.learn(("session:s",), "bob")
    assert owners.owner(("run:a", "session:s")) is None


@pytest.mark.parametrize("run_id", ["r" * 10_000, "走" * 200])
def test_a_run_id_of_any_length_is_learnt_and_saved(owners: Owners, run_id: str) -> None:
    keys = ownership_keys(encoded(payload={"run_id": run_id}))
    assert owners.learn(keys, "alice")
    owners.save()
    assert owners.owner(keys) == "alice"


def test_long_run_ids_that_differ_only_at_the_end_are_two_runs(owners: Owners) -> None:
    alices, bobs = (ownership_keys(encoded(payload={"run_id": "r" * 300 + end})) for end in "ab")
    owners.learn(alices, "alice")
    assert owners.owner(bobs) is None


def test_a_full_map_drops_its_oldest_pairs(tmp_path: Path) -> None:
    """The map's 128 pages cannot hold all pairs; dropped pairs are learned again."""
    owners = Owners(tmp_path / "owners", limit=500, map_size_bytes=512 << 10)
    for number in range(5_000):
        assert owners.learn((f"run:{number:0100}",), "alice")
        if number % 50 == 49:
            owners.save()
    assert owners.owner((f"run:{4_999:0100}",)) == "alice"
    assert owners.owner((f"run:{4_500:0100}",)) == "alice"
    assert owners.owner((f"run:{4_499:0100}",)) is None
    assert owners.learn((f"run:{0:0100}",), "alice")
    owners.close()
    again = Owners(tmp_path / "owners", limit=500, map_size_bytes=512 << 10)
    assert again.owner((f"run:{0:0100}",)) == "alice"
    assert again.owner((f"run:{4_500:0100}",)) is None
    again.close()


def test_a_damaged_pair_has_no_owner_is_reported_and_is_removed_with_any_user(tmp_path: Path) -> None:
    folder = tmp_path / "owners"
    owners = Owners(folder)
    for number in range(6):
        owners.learn((f"run:{number}",), "alice" if number % 2 else "bob")
    owners.close()
    assert check_owners(folder).findings == ()
    flip(folder, b"run:1", b"alice", b"clice")
    assert [(found.place, found.count) for found in check_owners(folder).findings] == [("pairs", 1)]
    owners = Owners(folder)
    assert [owners.owner((f"run:{number}",)) for number in range(4)] == ["bob", None, "bob", "alice"]
    assert not owners.learn(("run:1",), "mallory")
    owners.forget("alice")
    assert owners.learn(("run:1",), "alice")
    assert owners.owner(("run:4",)) == "bob"
    owners.close()
    assert check_owners(folder).findings == ()


def flip(folder: Path, key: bytes, old: bytes, new: bytes) -> None:
    """Damage the content of a pair, but not its checksum."""
    environment = open_environment(folder, 1 << 20, databases=(PAIRS,))
    with environment.write() as transaction:
        value = transaction.get(PAIRS, key)
        assert value is not None
        assert old in value
        transaction.put(PAIRS, key, value.replace(old, new))
    environment.close()


def key_of_system(folder: Path) -> UserKey:
    return UserKey(KeyRing(folder / "keys"), SYSTEM_USER)


def test_an_encrypted_map_holds_no_run_and_no_session(tmp_path: Path) -> None:
    key = key_of_system(tmp_path)
    owners = Owners(tmp_path / "owners", key=key)
    owners.learn(("run:kakapo", "session:numbat"), "alice")
    owners.learn(("run:shared",), "alice")
    owners.learn(("run:shared",), "bob")
    owners.close()
    held = b"".join(file.read_bytes() for file in (tmp_path / "owners").iterdir())
    assert b"alice" in held
    for name in (b"kakapo", b"numbat", b"shared"):
        assert name not in held
    again = Owners(tmp_path / "owners", key=key)
    assert again.owner(("run:kakapo",)) == again.owner(("session:numbat",)) == "alice"
    assert again.owner(("run:shared",)) is None
    again.forget("alice")
    assert again.owner(("run:kakapo",)) is None
    again.close()
    with pytest.raises(StoreEncryptedError):
        Owners(tmp_path / "owners")
    (tmp_path / "keys").rename(tmp_path / "away")
    with pytest.raises(EncryptionKeyMissingError):
        Owners(tmp_path / "owners", key=key)


def test_a_plain_map_becomes_an_encrypted_one(tmp_path: Path) -> None:
    folder, key = tmp_path / "owners", key_of_system(tmp_path)
    assert not encrypt_owners(folder, key)
    owners = Owners(folder)
    for number in range(30):
        owners.learn((f"run:kakapo-{number}",), "alice")
        owners.save()
    owners.learn(("run:kakapo-0",), "bob")
    owners.close()
    with pytest.raises(StoreNotEncryptedError):
        Owners(folder, key=key)
    assert encrypt_owners(folder, key)
    assert not encrypt_owners(folder, key), "repeating it changes nothing"
    report = check_owners(folder, key)
    assert (report.entries, report.findings) == (30, ())
    assert b"kakapo" not in b"".join(file.read_bytes() for file in folder.rglob("*") if file.is_file())
    again = Owners(folder, key=key, limit=20)
    assert [again.owner((f"run:kakapo-{number}",)) for number in (0, 1, 29)] == [None, "alice", "alice"]
    again.learn(("run:new",), "bob")
    again.save()
    kept = [number for number in range(1, 30) if again.owner((f"run:kakapo-{number}",)) == "alice"]
    assert kept == list(range(11, 30)), "in the order in which they were learned"
    again.close()


def test_a_named_user_takes_precedence_over_the_owner_of_the_run(owners: Owners) -> None:
    owners.learn(("run:r",), "bob")
    naming = encoded(payload={"run_id": "r"}, extra={"on_behalf_of": "alice"})
    assert named_owner(naming) == "alice"
    assert owners.owner_of(naming) == "alice"
    assert owners.owner_of(encoded(payload={"run_id": "r"})) == "bob"
    assert owners.has("alice", naming, keys_of(None, ["r"]))
    assert not owners.has("alice", naming, keys_of("s", []))
    assert not owners.has("bob", naming)


@pytest.mark.parametrize("named", [None, "", 7, ["alice"]])
def test_an_invalid_name_names_no_user(named: object) -> None:
    assert named_owner(encoded(extra={"on_behalf_of": named})) is None


def test_without_a_map_a_named_user_is_recognised() -> None:
    """If no daemon ever ran in a folder, a user must still be erasable directly from the files."""
    naming = encoded(session_id="s", extra={"on_behalf_of": "alice"})
    assert is_named("alice", naming, keys_of("s", []))
    assert not is_named("alice", naming, keys_of("t", []))
    assert not is_named("bob", naming)
    assert not is_named("alice", encoded(session_id="s"))
