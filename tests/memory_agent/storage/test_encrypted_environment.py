"""An encrypted environment works like a plain one, but its file reveals nothing. Neither can be opened as the other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_agent.errors import (
    EncryptionKeyMissingError,
    InvalidInputError,
    StoreDamagedError,
    StoreEncryptedError,
    StoreNotEncryptedError,
)
from memory_agent.storage.codec import with_checksum
from memory_agent.storage.environment import STORE_ERRORS, UserKey, open_environment
from relay.crypto import NAMES, OURS, PLACES, ROWS, ROWS_OF_NAMES, SEAL_BYTES, Cipher, Encryption, KeyRing
from relay.crypto.encryption import TransactionCipher
from relay.disk import Environment

FORMS = {"rows": OURS, "checked": ROWS, "names": NAMES, "places": PLACES, "known": ROWS_OF_NAMES}
SIZE = 1 << 20
ULID = b"01KCQ0ZD6Z9V2M3S7T8W5X4Y1A"
CIPHER = Cipher(bytes(32), "test")


def encryption(folder: Path, user_id: str = "alice") -> Encryption:
    return Encryption(UserKey(KeyRing(folder / "keys"), user_id), "records", FORMS)


def opened(folder: Path, *, is_encrypted: bool = True, readonly: bool = False) -> Environment:
    with_key = encryption(folder) if is_encrypted else None
    return open_environment(folder / "env", SIZE, tuple(FORMS), readonly=readonly, encryption=with_key)


def fill(environment: Environment) -> None:
    with environment.write() as transaction:
        transaction.put("rows", bytes(8), b"MARKED text 0", append=True)
        transaction.append_all("rows", [(number.to_bytes(8, "big"), b"MARKED text %d" % number) for number in (1, 2)])
        transaction.put_all(
            "places", [(b"b" + bytes([*bytes(7), number]) + b"MARKED run %d" % number, b"") for number in range(3)]
        )
        transaction.put("names", b"MARKED name", b"MARKED value")
        transaction.put("names", ULID, b"MARKED note")
        transaction.put("known", b"MARKED event", b"\x07")


def test_entries_are_read_in_the_order_of_numbers_and_times(tmp_path: Path) -> None:
    environment = opened(tmp_path)
    fill(environment)
    environment.close()
    environment = opened(tmp_path, readonly=True)
    with environment.read() as transaction:
        assert transaction.get("rows", bytes(8)) == b"MARKED text 0"
        assert transaction.get("names", b"MARKED name") == b"MARKED value"
        assert transaction.get("names", b"another name") is None
        assert transaction.get("known", b"MARKED event") == b"\x07"
        assert dict(transaction.scan("names")) == {b"MARKED name": b"MARKED value", ULID: b"MARKED note"}
        after_first = transaction.scan("places", b"b" + (1).to_bytes(8, "big"), b"c")
        assert [key[9:] for key, _ in after_first] == [b"MARKED run 1", b"MARKED run 2"]
        assert transaction.last_key("rows") == (2).to_bytes(8, "big")
    environment.close()


def test_names_are_deleted_and_replaced_as_in_a_plain_environment(tmp_path: Path) -> None:
    environment = opened(tmp_path)
    fill(environment)
    with environment.write() as transaction:
        transaction.put("names", b"MARKED name", b"another", append=True)
        assert transaction.delete("names", ULID)
        assert not transaction.delete("names", b"another name")
    with environment.read() as transaction:
        assert list(transaction.scan("names")) == [(b"MARKED name", b"another")]
    environment.close()


def test_the_file_holds_nothing_of_it(tmp_path: Path) -> None:
    environment = opened(tmp_path)
    fill(environment)
    environment.close()
    content = (tmp_path / "env" / "data.mdb").read_bytes()
    assert b"MARKED" not in content
    assert ULID not in content
    assert ULID[:10] in content  # the time in the id stays readable


def test_it_stays_encrypted_when_it_is_compacted_and_opened_again(tmp_path: Path) -> None:
    environment = opened(tmp_path)
    fill(environment)
    environment.compact()
    with environment.read() as transaction:
        assert transaction.get("names", b"MARKED name") == b"MARKED value"
    environment.close()
    assert b"MARKED" not in (tmp_path / "env" / "data.mdb").read_bytes()
    with pytest.raises(StoreEncryptedError):
        opened(tmp_path, is_encrypted=False)


@pytest.mark.parametrize("readonly", [False, True])
def test_an_encrypted_one_is_not_opened_without_the_setting(tmp_path: Path, readonly: bool) -> None:
    opened(tmp_path).close()
    with pytest.raises(StoreEncryptedError, match=r"encryption\.keys_folder"):
        opened(tmp_path, is_encrypted=False, readonly=readonly)


@pytest.mark.parametrize("readonly", [False, True])
def test_a_plain_one_is_not_opened_with_a_key_nor_gets_one(tmp_path: Path, readonly: bool) -> None:
    environment = opened(tmp_path, is_encrypted=False)
    fill(environment)
    environment.close()
    with pytest.raises(StoreNotEncryptedError, match="memory-agent encrypt"):
        opened(tmp_path, readonly=readonly)
    assert not KeyRing(tmp_path / "keys").has("alice")


def test_a_destroyed_key_ends_its_use_at_the_next_transaction_and_no_new_one_is_made(tmp_path: Path) -> None:
    environment = opened(tmp_path)
    fill(environment)
    KeyRing(tmp_path / "keys").destroy("alice")  # a second key ring, as in another process
    with pytest.raises(EncryptionKeyMissingError), environment.read():
        pass
    environment.close()
    with pytest.raises(EncryptionKeyMissingError):
        opened(tmp_path)
    assert not KeyRing(tmp_path / "keys").has("alice")


def test_a_new_key_of_the_same_user_does_not_open_an_old_store(tmp_path: Path) -> None:
    opened(tmp_path).close()
    ring = KeyRing(tmp_path / "keys")
    ring.destroy("alice")
    ring.cipher("alice", "journal", create=True)
    with pytest.raises(EncryptionKeyMissingError):
        opened(tmp_path)


def test_a_new_key_of_the_same_user_ends_the_use_of_an_open_store(tmp_path: Path) -> None:
    environment = opened(tmp_path)
    fill(environment)
    ring = KeyRing(tmp_path / "keys")
    ring.destroy("alice")
    ring.cipher("alice", "journal", create=True)
    for begin in (environment.read, environment.write):
        with pytest.raises(EncryptionKeyMissingError), begin():
            pass
    environment.close()


def test_a_value_that_was_put_in_the_place_of_another_is_damage(tmp_path: Path) -> None:
    environment = opened(tmp_path)
    fill(environment)
    with environment.read() as transaction:
        first = dict(transaction.scan_stored("rows"))[bytes(8)]
    unlocked = TransactionCipher(CIPHER, FORMS, StoreDamagedError)
    with pytest.raises(StoreDamagedError):
        unlocked.open("rows", bytes(8), first)  # another key
    ours = encryption(tmp_path).begin(STORE_ERRORS)
    assert ours.open("rows", bytes(8), first) == b"MARKED text 0"
    for database, key in (("rows", b"\1" * 8), ("names", bytes(8))):
        with pytest.raises(StoreDamagedError):
            ours.open(database, key, first)
    environment.close()


def test_a_checksum_is_left_out_and_comes_back_and_a_wrong_one_is_not_made_right(tmp_path: Path) -> None:
    environment, key = opened(tmp_path), (7).to_bytes(8, "big")
    with environment.write() as transaction:
        transaction.put("checked", key, with_checksum(7, b"a vector"), append=True)
    with environment.read() as transaction:
        assert transaction.get("checked", key) == with_checksum(7, b"a vector")
        assert [len(value) for _, value in transaction.scan_stored("checked")] == [len(b"a vector") + SEAL_BYTES]
    with pytest.raises(StoreDamagedError), environment.write() as transaction:
        transaction.put("checked", key, with_checksum(8, b"another vector"))
    environment.close()


def test_a_raw_copy_needs_no_key_and_stays_encrypted(tmp_path: Path) -> None:
    environment = opened(tmp_path)
    fill(environment)
    environment.close()
    (tmp_path / "copy").mkdir()
    raw = open_environment(tmp_path / "env", SIZE, readonly=True)
    raw.copy(tmp_path / "copy")
    raw.close()
    copy = open_environment(tmp_path / "copy", SIZE, tuple(FORMS), readonly=True, encryption=encryption(tmp_path))
    with copy.read() as transaction:
        assert transaction.get("names", ULID) == b"MARKED note"
    copy.close()


@given(st.sampled_from(sorted(FORMS)), st.binary(min_size=1, max_size=128) | st.just(ULID))
def test_every_key_comes_back_and_equal_ones_are_equal(database: str, key: bytes) -> None:
    encrypted = TransactionCipher(CIPHER, FORMS, StoreDamagedError)
    kept = encrypted.key(database, key)
    assert encrypted.plain_key(database, kept) == key
    assert encrypted.key(database, key) == kept
    assert len(kept) <= len(key) + 16


def test_ulids_keep_their_order_by_the_millisecond() -> None:
    encrypted = TransactionCipher(CIPHER, FORMS, StoreDamagedError)
    ulids = [b"01KCQ0ZD%02dZ9V2M3S7T8W5X4Y1" % number for number in range(90)]
    assert sorted(ulids, key=lambda name: encrypted.key("names", name)) == ulids


def test_a_user_without_a_possible_key_is_named_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="user_id"):
        open_environment(tmp_path / "env", SIZE, tuple(FORMS), encryption=encryption(tmp_path, "no such user!"))


def test_without_the_package_everything_but_encryption_works() -> None:
    program = (
        "import sys; sys.modules['cryptography'] = None\n"
        "import memory_agent.cli.group, memory_agent.daemon.process, relay\n"
        "from pathlib import Path; from tempfile import mkdtemp\n"
        "try: relay.KeyRing(Path(mkdtemp())).cipher('alice', 'x', create=True)\n"
        "except relay.RelayError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert "pip install cryptography" in done.stdout
