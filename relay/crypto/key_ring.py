"""The encryption keys of users: one file per user, mode 0600, in a folder separate from the data.

A key is 256 random bits, and is durable before its first use. The data folder and its backups contain no copy, so
`destroy` makes all data of the user unreadable. The data folder records the id of its ring's system key (`read_ring`),
so that no second ring is created when the ring's folder is not mounted.
"""

from __future__ import annotations

import base64
import fcntl
import os
import threading
import time
from collections import OrderedDict
from contextlib import suppress
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

import msgspec

from relay.config import EncryptionSettings
from relay.crypto.cipher import KEY_BYTES, Cipher, key_id
from relay.decoding import described
from relay.disk import add_checksum, flush, verify_checksum, write_once
from relay.errors import EncryptionKeyMissingError, KeyFileError, RelaySettingsError
from relay.validation import SYSTEM_USER, validate_user_id

_MARK_FILE = "encryption"  # the file in a data folder that identifies its ring
_SUFFIX = ".key"
_SETTING = "encryption.keys_folder"
_DESTROYED = b"destroyed"  # the start of an overwritten key file, which distinguishes it from a damaged one
_LOOKS, _LOOK_S = 10, 0.01
_MOST_KEPT = 1_000  # maximum number of cached ciphers, 7 KB each (measured); other users' key files are read again
_FileId = tuple[int, int]


class _KeyFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    user_id: str
    created: datetime
    key: str


class _RingMark(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    system_key_id: str


class KeyRing:
    """The keys in one folder. Threads and processes can share a ring; a destroyed key is immediately unusable in all of
    them.

    In the examples, `ring` is an empty `KeyRing(Path("ring"))`.
    """

    def __init__(self, folder: Path, data_dir: Path | None = None) -> None:
        """`data_dir`: the folder encrypted with these keys. If it is given, a key is created only if that folder does
        not record another ring.
        """
        self.folder = folder
        self._data_dir = data_dir
        self._guard = threading.Lock()
        self._ciphers: OrderedDict[tuple[str, str], tuple[_FileId, Cipher, str]] = OrderedDict()

    def cipher(self, user_id: str, purpose: str, *, create: bool = False) -> Cipher:
        """Return a user's cipher for a purpose. With `create`, create the user's key if it is missing.

        Checks the key file each time (2 us), so that no process keeps using a destroyed key. Raises
        `EncryptionKeyMissingError`, `KeyFileError` and `MalformedEventError`.

        >>> cipher = ring.cipher("alice", "journal", create=True)
        >>> cipher.open(cipher.seal(b"Staging needs the VPN", about=b"7"), about=b"7")
        b'Staging needs the VPN'
        """
        with self._guard:
            known = self._ciphers.get((user_id, purpose))
            if known is not None:
                self._ciphers.move_to_end((user_id, purpose))
        if known is not None and _file_id(known[2]) == known[0]:
            return known[1]
        path = str(self._path(user_id))
        if create:
            self.claim()
        while (read := self._try_read(path)) is None:
            if not create:
                self._forget(user_id)
                raise EncryptionKeyMissingError(user_id, str(self.folder))
            self._create(user_id)
        file_id, key = read
        cipher = Cipher(key, purpose)
        with self._guard:
            self._ciphers[user_id, purpose] = file_id, cipher, path
            if len(self._ciphers) > _MOST_KEPT:
                self._ciphers.popitem(last=False)
        return cipher

    def claim(self) -> None:
        """Make this the ring of its data folder, unless the folder already has one. Durable on return.

        Raises `EncryptionKeyMissingError` (for `system`) if the data folder has a different ring, and `KeyFileError`.

        >>> ring = KeyRing(Path("keys"), data_dir=Path("data"))
        >>> ring.claim()
        >>> ring.users()
        ['system']
        """
        if self._data_dir is None:
            return
        ring_id = read_ring(self._data_dir)
        if ring_id is None:
            if not self.has(SYSTEM_USER):
                self._create(SYSTEM_USER)
            read = self._try_read(str(self._path(SYSTEM_USER)))
            if read is not None:
                _write_ring(self._data_dir, key_id(read[1]))
            ring_id = read_ring(self._data_dir)
        if ring_id is None or not self.fits(SYSTEM_USER, ring_id):
            raise EncryptionKeyMissingError(SYSTEM_USER, str(self.folder))

    def is_away(self) -> bool:
        """Whether the data folder is encrypted with a different ring. Raises `KeyFileError`.

        >>> KeyRing(Path("keys"), Path("data")).claim()
        >>> KeyRing(Path("other-keys"), Path("data")).is_away()
        True
        """
        ring_id = None if self._data_dir is None else read_ring(self._data_dir)
        return ring_id is not None and not self.fits(SYSTEM_USER, ring_id)

    def has(self, user_id: str) -> bool:
        """Whether the user has a key.

        >>> cipher = ring.cipher("alice", "journal", create=True)
        >>> ring.has("alice"), ring.has("bob")
        (True, False)
        """
        return self._path(user_id).exists()

    def fits(self, user_id: str, wanted: bytes) -> bool:
        """Whether the user's key has this id (`Cipher.key_id`). Raises `KeyFileError`.

        >>> cipher = ring.cipher("alice", "journal", create=True)
        >>> ring.fits("alice", cipher.key_id), ring.fits("bob", cipher.key_id)
        (True, False)
        """
        read = self._try_read(str(self._path(user_id)))
        return read is not None and key_id(read[1]) == wanted

    def users(self) -> list[str]:
        """Return the users that have a key, sorted. Raises `KeyFileError`.

        >>> ciphers = [ring.cipher(user_id, "journal", create=True) for user_id in ("bob", "alice")]
        >>> ring.users()
        ['alice', 'bob']
        """
        return sorted(_decode(path).user_id for path in self.folder.glob(f"*{_SUFFIX}") if not _is_destroyed(path))

    def destroy(self, user_id: str) -> bool:
        """Overwrite and remove a user's key; return False if there was none. Durable on return.

        If the process is killed before the file is removed, the overwritten file remains, but is treated as missing.
        The key can be restored only from a copy of the folder. Old disk blocks may still contain its bytes. Raises
        `KeyFileError`.

        >>> cipher = ring.cipher("alice", "journal", create=True)
        >>> ring.destroy("alice"), ring.destroy("alice"), ring.has("alice")
        (True, False, False)
        """
        path = self._path(user_id)
        try:
            with path.open("r+b") as file:
                fcntl.flock(
                    file, fcntl.LOCK_EX
                )  # held until the file is removed, so that no process can remove a replacement of the file
                file.write(_DESTROYED + os.urandom(max(0, os.fstat(file.fileno()).st_size - len(_DESTROYED))))
                file.flush()
                os.fsync(file.fileno())
                _remove(path, file)
            flush(self.folder)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise KeyFileError(str(path), str(error.strerror)) from error
        finally:
            self._forget(user_id)
        return True

    def _create(self, user_id: str) -> None:
        """Create a key. If several threads or processes create it, the first one wins."""
        path = self._path(user_id)
        document = _KeyFile(
            user_id=user_id, created=datetime.now(UTC), key=base64.b64encode(os.urandom(KEY_BYTES)).decode()
        )
        try:
            if not self.folder.exists():
                self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                flush(self.folder.parent)
            write_once(path, add_checksum(msgspec.json.encode(document)))
        except OSError as error:
            raise KeyFileError(str(path), str(error.strerror)) from error

    def _try_read(self, path: str) -> tuple[_FileId, bytes] | None:
        """Return a key and the identity of its file, or None if the key is missing or being destroyed."""
        while (file_id := _file_id(path)) is not None:
            try:
                return file_id, self._read(Path(path))
            except KeyFileError:
                if _is_destroyed(Path(path)):
                    return None
                if _stays(path, file_id):
                    raise
        return None

    def _read(self, path: Path) -> bytes:
        document = _decode(path)
        try:
            key = base64.b64decode(document.key, validate=True)
        except ValueError as error:
            raise KeyFileError(str(path), "is damaged") from error
        if len(key) != KEY_BYTES:
            raise KeyFileError(str(path), "is damaged")
        if path.name != _file_name(document.user_id):
            raise KeyFileError(str(path), "contains the key of a different user")
        return key

    def _path(self, user_id: str) -> Path:
        return self.folder / _file_name(validate_user_id(user_id))

    def _forget(self, user_id: str) -> None:
        with self._guard:
            for cached in [cached for cached in self._ciphers if cached[0] == user_id]:
                del self._ciphers[cached]


def open_key_ring(settings: EncryptionSettings, data_dir: Path, *, is_shared: bool = True) -> KeyRing | None:
    """Return the ring in the configured keys folder, or None if no keys folder is set.

    `is_shared`: whether `data_dir` contains the data of many users. Raises `RelaySettingsError` if the path is relative
    or inside `data_dir`.

    >>> open_key_ring(EncryptionSettings(keys_folder="/srv/keys"), Path("/srv/memory")).folder
    PosixPath('/srv/keys')
    >>> open_key_ring(EncryptionSettings(), Path("/srv/memory")) is None
    True
    """
    if not settings.keys_folder:
        return None
    folder = Path(settings.keys_folder).expanduser()
    if not folder.is_absolute():
        raise RelaySettingsError(
            _SETTING, "must be an absolute path, because processes started in other folders use it too"
        )
    if folder.resolve().is_relative_to(data_dir.expanduser().resolve()):
        raise RelaySettingsError(_SETTING, f"{folder} is inside the data folder; choose a folder outside it")
    return KeyRing(folder, data_dir if is_shared else None)


def _file_name(user_id: str) -> str:
    return sha256(user_id.encode()).hexdigest()[:40] + _SUFFIX


def _decode(path: Path) -> _KeyFile:
    try:
        return msgspec.json.decode(verify_checksum(path.read_bytes()), type=described(_KeyFile))
    except OSError as error:
        raise KeyFileError(str(path), str(error.strerror)) from error
    except (msgspec.DecodeError, ValueError, RecursionError):
        raise KeyFileError(str(path), "is damaged") from None  # the decoder's message may contain part of the key


def _file_id(path: str) -> _FileId | None:
    """Return the identity of a file, or None if it does not exist. A replacement has a different identity."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise KeyFileError(path, str(error.strerror)) from error
    return status.st_ino, status.st_ctime_ns


def _is_destroyed(path: Path) -> bool:
    """Whether a key was overwritten. Removes the file if a crash left it behind."""
    try:
        with path.open("rb") as file:
            if file.read(len(_DESTROYED)) != _DESTROYED:
                return False
            with suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(path, file)
    except OSError:
        return False
    return True


def _remove(path: Path, file: BinaryIO) -> None:
    with suppress(FileNotFoundError):
        if os.stat(path).st_ino == os.fstat(file.fileno()).st_ino:
            path.unlink()


def _stays(path: str, file_id: _FileId) -> bool:
    """Whether an unreadable file stays unchanged for 0.1 s. If so, the file is damaged; otherwise, its key is being
    destroyed.
    """
    for _ in range(_LOOKS):
        if _file_id(path) != file_id:
            return False
        time.sleep(_LOOK_S)
    return True


def ring_file(data_dir: Path) -> Path:
    """Return the path of the file, in a data folder, that identifies the folder's ring. Include it in every backup.

    >>> ring_file(Path("data"))
    PosixPath('data/encryption')
    """
    return data_dir / _MARK_FILE


def read_ring(data_dir: Path) -> bytes | None:
    """Return the id of the system key in a data folder's ring, or None. Raises `KeyFileError`."""
    path = ring_file(data_dir)
    try:
        return bytes.fromhex(
            msgspec.json.decode(verify_checksum(path.read_bytes()), type=described(_RingMark)).system_key_id
        )
    except FileNotFoundError:
        return None
    except OSError as error:
        raise KeyFileError(str(path), str(error.strerror)) from error
    except (ValueError, RecursionError) as error:
        advice = "is damaged: restore the right keys folder, then remove this file; it is recreated"
        raise KeyFileError(str(path), advice) from error


def _write_ring(data_dir: Path, key_id: bytes) -> None:
    """Store the id of the system key in a data folder, unless the folder already has one. Durable. Raises
    `KeyFileError`.
    """
    path = ring_file(data_dir)
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_once(path, add_checksum(msgspec.json.encode(_RingMark(key_id.hex()))))
    except OSError as error:
        raise KeyFileError(str(path), str(error.strerror)) from error
