"""Test the folder of encryption keys: each key is created once, and its destruction takes effect in all processes."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from relay import EncryptionSettings
from relay.crypto import KeyRing, key_ring, open_key_ring
from relay.errors import (
    EncryptionKeyMissingError,
    KeyFileError,
    MalformedEventError,
    RelaySettingsError,
    UndecipherableError,
)

MAKE = "import sys; from pathlib import Path; from relay.crypto import KeyRing\n"
MAKE += "print(KeyRing(Path(sys.argv[1])).cipher('alice', 'memory', create=True).key_id.hex())"


def test_a_key_is_created_once_and_is_private(tmp_path: Path) -> None:
    ring = KeyRing(tmp_path / "keys")
    sealed = ring.cipher("alice", "memory", create=True).seal(b"text", b"")
    assert KeyRing(tmp_path / "keys").cipher("alice", "memory").open(sealed, b"") == b"text"
    (file,) = ring.folder.iterdir()
    assert (file.stat().st_mode & 0o777, ring.folder.stat().st_mode & 0o777) == (0o600, 0o700)
    assert ring.users() == ["alice"]


def test_each_user_has_a_key_of_its_own(tmp_path: Path) -> None:
    ring = KeyRing(tmp_path)
    sealed = ring.cipher("alice", "memory", create=True).seal(b"text", b"")
    with pytest.raises(UndecipherableError):
        ring.cipher("Alice", "memory", create=True).open(sealed, b"")
    assert ring.users() == ["Alice", "alice"]


def test_no_key_is_created_unless_requested(tmp_path: Path) -> None:
    with pytest.raises(EncryptionKeyMissingError):
        KeyRing(tmp_path).cipher("alice", "memory")
    assert list(tmp_path.iterdir()) == []


def test_concurrent_creators_of_a_key_get_the_same_key(tmp_path: Path) -> None:
    processes = [
        subprocess.Popen([sys.executable, "-c", MAKE, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    with ThreadPoolExecutor(8) as pool:
        rings = [KeyRing(tmp_path) for _ in range(8)]
        ids = {cipher.key_id.hex() for cipher in pool.map(lambda r: r.cipher("alice", "memory", create=True), rings)}
    ids |= {process.communicate()[0].strip() for process in processes}
    assert len(ids) == 1
    assert len(list(tmp_path.iterdir())) == 1


def test_a_destroyed_key_is_gone_at_once_for_all_its_users(tmp_path: Path) -> None:
    ring, other = KeyRing(tmp_path), KeyRing(tmp_path)
    sealed = other.cipher("alice", "memory", create=True).seal(b"text", b"")
    (file,) = tmp_path.iterdir()
    before = file.read_bytes()
    with file.open("rb") as held:  # also for a process that has the file open
        assert ring.destroy("alice")
        assert held.read() != before
    with pytest.raises(EncryptionKeyMissingError, match="alice"):
        other.cipher("alice", "memory")
    with pytest.raises(UndecipherableError):
        other.cipher("alice", "memory", create=True).open(sealed, b"")
    assert not KeyRing(tmp_path).destroy("bob")


@pytest.mark.parametrize(
    "content", [b"", b"{}", b'{"user_id":"alice","created":"2026-01-01T00:00:00Z","key":"c2hvcnQ="}']
)
def test_a_damaged_key_file_is_named_and_its_content_is_not(tmp_path: Path, content: bytes) -> None:
    ring = KeyRing(tmp_path)
    ring.cipher("alice", "memory", create=True)
    (file,) = tmp_path.iterdir()
    file.write_bytes(content)
    with pytest.raises(KeyFileError, match=r"\.key: is damaged") as caught:
        KeyRing(tmp_path).cipher("alice", "memory")
    assert "c2hvcnQ" not in str(caught.value)


def test_no_flipped_bit_makes_another_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong key would make the user's events look as if their key had been destroyed."""
    monkeypatch.setattr("relay.crypto.key_ring._LOOK_S", 0.0)  # a damaged file is read again after a pause
    key_id = KeyRing(tmp_path).cipher("alice", "memory", create=True).key_id
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    for place in range(len(whole)):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with suppress(KeyFileError):
            assert KeyRing(tmp_path).cipher("alice", "memory").key_id == key_id, place


def test_an_invalid_user_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MalformedEventError):
        KeyRing(tmp_path).cipher("../alice", "memory", create=True)


def test_without_a_folder_nothing_is_encrypted(tmp_path: Path) -> None:
    assert open_key_ring(EncryptionSettings(), tmp_path) is None


def test_a_folder_of_keys_inside_the_data_folder_is_refused(tmp_path: Path) -> None:
    data, keys, door = tmp_path / "data", tmp_path / "keys", tmp_path / "door"
    ring = open_key_ring(EncryptionSettings(keys_folder=str(keys)), data)
    assert ring is not None
    assert ring.folder == keys
    (data / "inside").mkdir(parents=True)
    door.symlink_to(data / "inside")
    for folder in (data, data / "inside", door / "keys", data / "x" / ".." / "keys"):
        with pytest.raises(RelaySettingsError, match="is inside the data folder") as caught:
            open_key_ring(EncryptionSettings(keys_folder=str(folder)), data)
        assert caught.value.setting == "encryption.keys_folder"


def test_a_relative_folder_of_keys_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RelaySettingsError, match="absolute"):
        open_key_ring(EncryptionSettings(keys_folder="keys"), tmp_path)


def test_a_key_being_destroyed_reads_as_missing(tmp_path: Path) -> None:
    ring = KeyRing(tmp_path)
    ring.cipher("alice", "memory", create=True)
    (file,) = tmp_path.iterdir()
    file.write_bytes(bytes(100))  # overwritten, but not yet removed
    remover = threading.Timer(0.03, file.unlink)
    remover.start()
    with pytest.raises(EncryptionKeyMissingError):
        KeyRing(tmp_path).cipher("alice", "memory")
    remover.join()
    file.write_bytes(bytes(100))
    with pytest.raises(KeyFileError, match="is damaged"):
        KeyRing(tmp_path).cipher("alice", "memory")


KILLED = """
import os, signal, sys
from pathlib import Path
from relay.crypto import key_ring
key_ring._remove = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
key_ring.KeyRing(Path(sys.argv[1])).destroy("alice")
"""


def test_a_key_whose_destruction_was_interrupted_is_missing_and_not_damaged(tmp_path: Path) -> None:
    ring = KeyRing(tmp_path)
    before = ring.cipher("alice", "memory", create=True).key_id
    ring.cipher("bob", "memory", create=True)
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 2
    assert ring.users() == ["bob"]
    with pytest.raises(EncryptionKeyMissingError):
        ring.cipher("alice", "memory")
    assert len(list(tmp_path.iterdir())) == 1
    subprocess.run([sys.executable, "-c", KILLED.replace("alice", "bob"), str(tmp_path)], check=False)
    assert KeyRing(tmp_path).cipher("bob", "memory", create=True).key_id not in (before, None)
    assert ring.users() == ["bob"]


def test_a_ring_caches_a_bounded_number_of_ciphers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_ring, "_MOST_KEPT", 3)
    ring = KeyRing(tmp_path)
    made = [ring.cipher(f"user-{number}", "journal", create=True).key_id for number in range(8)]
    assert len(ring._ciphers) == 3
    assert [ring.cipher(f"user-{number}", "journal").key_id for number in range(8)] == made


def test_a_key_file_of_another_user_is_refused(tmp_path: Path) -> None:
    ring = KeyRing(tmp_path)
    ring.cipher("alice", "memory", create=True)
    (alices,) = tmp_path.iterdir()
    ring.cipher("bob", "memory", create=True)
    (bobs,) = set(tmp_path.iterdir()) - {alices}
    bobs.write_bytes(alices.read_bytes())
    with pytest.raises(KeyFileError, match="a different user"):
        KeyRing(tmp_path).cipher("bob", "memory")


def test_another_ring_mounted_meanwhile_creates_no_key(tmp_path: Path) -> None:
    folder, data_dir = tmp_path / "keys", tmp_path / "data"
    ring = KeyRing(folder, data_dir)
    ring.cipher("alice", "records", create=True)
    folder.rename(tmp_path / "away")
    KeyRing(folder).cipher("system", "journal", create=True)
    KeyRing(folder).cipher("bob", "journal", create=True)
    for user_id in ("alice", "bob", "carol"):
        with pytest.raises(EncryptionKeyMissingError, match="mounted"):
            ring.cipher(user_id, "records", create=True)
    assert KeyRing(folder).users() == ["bob", "system"]
    assert ring.is_away()


def test_concurrent_first_starts_of_a_data_folder_agree_on_one_ring(tmp_path: Path) -> None:
    rings = [KeyRing(tmp_path / "keys", tmp_path / "data") for _ in range(8)]
    with ThreadPoolExecutor(len(rings)) as pool:
        made = pool.map(
            lambda numbered: numbered[1].cipher(f"user-{numbered[0]}", "records", create=True), enumerate(rings)
        )
        assert len({cipher.key_id for cipher in made}) == len(rings)
    assert not any(ring.is_away() for ring in rings)
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["encryption"]
