"""The encryption keys of users: one file each, in a folder apart from the data, 0600.

A key is 256 random bits, made when its user first stores something, and on the disk before anything is encrypted with
it. It is nowhere else: not in the data folder, not in backups. Without it nothing of its user can be read, and that is
what `destroy` is for. A file is named by the digest of the user id, which may hold what a file name may not.
What this does not do: encrypt (`cipher`). Rejected: one master key that wraps the users' keys; it adds a secret whose
loss loses everything, and copies of wrapped keys outlive the destruction of a user's key.
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

from relay.cipher import KEY_BYTES, Cipher, key_id
from relay.config import EncryptionSettings
from relay.durable import flush, write_once
from relay.errors import EncryptionKeyMissingError, KeyFileError, RelaySettingsError
from relay.ring_mark import note_ring, read_ring
from relay.sealed import sealed, unsealed
from relay.validation import SYSTEM_USER, validate_user_id

_SUFFIX = ".key"
_SETTING = "encryption.keys_folder"
_DESTROYED = b"destroyed"  # what a key is overwritten with begins so: who finds it knows that it is not damaged
_LOOKS, _LOOK_S = 10, 0.01
_MOST_KEPT = 1_000  # ciphers, 7 KB each (measured); to make one anew costs a read of its file
_Sign = tuple[int, int]


class _KeyFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    user_id: str
    created: datetime
    key: str


class KeyRing:
    """The keys in one folder. Threads and processes share it; a key that was destroyed is gone for all at once."""

    def __init__(self, folder: Path, data_dir: Path | None = None) -> None:
        """`data_dir`: whose keys these are; keys are made in the one ring that is its own, and in no other."""
        self.folder = folder
        self._data_dir = data_dir
        self._guard = threading.Lock()
        self._ciphers: OrderedDict[tuple[str, str], tuple[_Sign, Cipher, str]] = OrderedDict()

    def cipher(self, user_id: str, purpose: str, *, create: bool = False) -> Cipher:
        """Return what encrypts for a user and a purpose; `create` makes a key for a user without one.

        Asks the file system each time (2 us), so that no process goes on with a key that was destroyed.
        Raises `EncryptionKeyMissingError`, `KeyFileError`, `MalformedEventError`.
        """
        with self._guard:
            known = self._ciphers.get((user_id, purpose))
            if known is not None:
                self._ciphers.move_to_end((user_id, purpose))
        if known is not None and _sign(known[2]) == known[0]:
            return known[1]
        path = str(self._path(user_id))
        if create:
            self.claim()
        while (read := self._read_as_it_is(path)) is None:
            if not create:
                self._forget(user_id)
                raise EncryptionKeyMissingError(user_id, str(self.folder))
            self._create(user_id)
        sign, key = read
        cipher = Cipher(key, purpose)
        with self._guard:
            self._ciphers[user_id, purpose] = sign, cipher, path
            if len(self._ciphers) > _MOST_KEPT:
                self._ciphers.popitem(last=False)
        return cipher

    def claim(self) -> None:
        """See that this is the ring of its data folder; the first one that makes a key for it is. Durable on return.

        Raises `EncryptionKeyMissingError` for `system` where the ring is away or another one, `KeyFileError`.
        """
        if self._data_dir is None:
            return
        noted = read_ring(self._data_dir)
        if noted is None:
            if not self.has(SYSTEM_USER):
                self._create(SYSTEM_USER)
            read = self._read_as_it_is(str(self._path(SYSTEM_USER)))
            if read is not None:
                note_ring(self._data_dir, key_id(read[1]))
            noted = read_ring(self._data_dir)
        if noted is None or not self.fits(SYSTEM_USER, noted):
            raise EncryptionKeyMissingError(SYSTEM_USER, str(self.folder))

    def is_away(self) -> bool:
        """Say whether the data folder is encrypted with another ring than this. Raises `KeyFileError`."""
        noted = None if self._data_dir is None else read_ring(self._data_dir)
        return noted is not None and not self.fits(SYSTEM_USER, noted)

    def has(self, user_id: str) -> bool:
        """Say whether the user has a key."""
        return self._path(user_id).exists()

    def fits(self, user_id: str, wanted: bytes) -> bool:
        """Say whether the user's key is the one of this id (`Cipher.key_id`). Raises `KeyFileError`."""
        read = self._read_as_it_is(str(self._path(user_id)))
        return read is not None and key_id(read[1]) == wanted

    def users(self) -> list[str]:
        """Return who has a key, sorted. Raises `KeyFileError`."""
        return sorted(_decode(path).user_id for path in self.folder.glob(f"*{_SUFFIX}") if not _is_destroyed(path))

    def destroy(self, user_id: str) -> bool:
        """Overwrite and remove a user's key; False when there was none. Durable on return.

        Killed in between, it leaves a file that says so, which is as good as none and goes with its next reader.
        Nothing brings it back, except a copy of the folder. A disk that keeps former blocks may hold its bytes still.
        Raises `KeyFileError`.
        """
        path = self._path(user_id)
        try:
            with path.open("r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX)  # until it is removed, so that nobody removes what takes its place
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
        """Make a key; who is faster, in this process or another, makes it for all."""
        path = self._path(user_id)
        document = _KeyFile(
            user_id=user_id, created=datetime.now(UTC), key=base64.b64encode(os.urandom(KEY_BYTES)).decode()
        )
        try:
            if not self.folder.exists():
                self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                flush(self.folder.parent)
            write_once(path, sealed(msgspec.json.encode(document)))
        except OSError as error:
            raise KeyFileError(str(path), str(error.strerror)) from error

    def _read_as_it_is(self, path: str) -> tuple[_Sign, bytes] | None:
        """Return a key and the sign of its file; None where there is none, or it is just being destroyed."""
        while (sign := _sign(path)) is not None:
            try:
                return sign, self._read(Path(path))
            except KeyFileError:
                if _is_destroyed(Path(path)):
                    return None
                if _stays(path, sign):
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
            raise KeyFileError(str(path), "holds the key of another user")
        return key

    def _path(self, user_id: str) -> Path:
        return self.folder / _file_name(validate_user_id(user_id))

    def _forget(self, user_id: str) -> None:
        with self._guard:
            for known in [known for known in self._ciphers if known[0] == user_id]:
                del self._ciphers[known]


def open_key_ring(settings: EncryptionSettings, data_dir: Path, *, is_shared: bool = True) -> KeyRing | None:
    """Return the ring in the folder that the settings name, None where they name none: nothing is encrypted then.

    `is_shared`: many users' data lie in `data_dir`, which is encrypted with one ring; else it is one memory's folder.
    Raises `RelaySettingsError`: a key beside what it locks protects nothing, and goes with it into each copy.
    """
    if not settings.keys_folder:
        return None
    folder = Path(settings.keys_folder).expanduser()
    if not folder.is_absolute():
        raise RelaySettingsError(_SETTING, "must be an absolute path: processes started elsewhere read it too")
    if folder.resolve().is_relative_to(data_dir.expanduser().resolve()):
        raise RelaySettingsError(_SETTING, f"{folder} lies in the data folder; name one outside of it")
    return KeyRing(folder, data_dir if is_shared else None)


def _file_name(user_id: str) -> str:
    return sha256(user_id.encode()).hexdigest()[:40] + _SUFFIX


def _decode(path: Path) -> _KeyFile:
    try:
        return msgspec.json.decode(unsealed(path.read_bytes()), type=_KeyFile)
    except OSError as error:
        raise KeyFileError(str(path), str(error.strerror)) from error
    except (msgspec.DecodeError, ValueError, RecursionError):
        raise KeyFileError(str(path), "is damaged") from None  # what the decoder says may hold a part of the key


def _sign(path: str) -> _Sign | None:
    """What tells this file from one that takes its place."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise KeyFileError(path, str(error.strerror)) from error
    return status.st_ino, status.st_ctime_ns


def _is_destroyed(path: Path) -> bool:
    """Say whether a key was overwritten; what a crash kept from being removed is removed."""
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
    """Remove a file that is open and locked, unless another one took its place."""
    with suppress(FileNotFoundError):
        if os.stat(path).st_ino == os.fstat(file.fileno()).st_ino:
            path.unlink()


def _stays(path: str, sign: _Sign) -> bool:
    """Say whether a file that cannot be read is damaged, and not about to be gone."""
    for _ in range(_LOOKS):
        if _sign(path) != sign:
            return False
        time.sleep(_LOOK_S)
    return True
