"""Who asks: the holder of a token or of a CURVE key, as the key file says now.

It is looked up for each request, so a key that is revoked, or was made a moment ago, counts at once, on connections
that stand too. A key file that is gone or damaged lets nobody in. What this does not do: change keys (`key_file`).
"""

from __future__ import annotations

import os
import threading
from hmac import compare_digest
from pathlib import Path
from typing import NamedTuple

import structlog

from relay.access.key_file import StoredKey, digest_of, keys_path, read_keys
from relay.access.principal import Principal
from relay.errors import KeyFileError, UnauthorizedError

log = structlog.get_logger()

_Version = tuple[int, int, int]


_HOW = "--key-file or MEMORY_AGENT_TOKEN; whoever owns the data folder makes one: memory-agent keys create"


class _Table(NamedTuple):
    version: _Version | None
    by_digest: dict[str, StoredKey]
    by_curve: dict[str, StoredKey]
    revoked: dict[str, str]
    """The names of revoked keys, by digest or CURVE public key."""


_NOBODY = _Table(None, {}, {}, {})


class Credentials:
    """The keys of one data folder. Any thread may ask."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._path = keys_path(data_dir)
        self._table = _NOBODY
        self._guard = threading.Lock()

    def of_token(self, token: bytes) -> Principal:
        """Return whose token this is. Raises `UnauthorizedError`."""
        if not token:
            raise UnauthorizedError(f"a token is missing: show a key with {_HOW}")
        digest = digest_of(token)
        table = self._current()
        key = table.by_digest.get(digest)
        if key is None or not compare_digest(key.token_sha256, digest):
            raise UnauthorizedError(_refused(table, digest, "token"))
        return key.principal

    def of_curve(self, public: str) -> Principal:
        """Return whose CURVE public key this is. Raises `UnauthorizedError`."""
        table = self._current()
        key = table.by_curve.get(public)
        if key is None:
            raise UnauthorizedError(_refused(table, public, "key"))
        return key.principal

    def knows_curve(self, public: str) -> bool:
        """Say whether a connection with this CURVE public key may stand."""
        return public in self._current().by_curve

    def _current(self) -> _Table:
        version = _version(self._path)
        if version != self._table.version or version is None:
            with self._guard:
                self._table = self._read(version)
        return self._table

    def _read(self, version: _Version | None) -> _Table:
        if version is None:
            return _NOBODY
        try:
            keys = read_keys(self._data_dir)
        except KeyFileError as error:
            if self._table.version != version:
                log.error("keys.unreadable", reason=str(error))
            return _Table(version, {}, {}, {})
        valid = [key for key in keys if key.revoked is None]
        return _Table(
            version,
            {key.token_sha256: key for key in valid if key.token_sha256},
            {key.curve_public: key for key in valid if key.curve_public},
            {key.token_sha256 or key.curve_public: key.id for key in keys if key.revoked is not None},
        )


def _refused(table: _Table, shown: str, what: str) -> str:
    """Say why: who shows what a revoked key was knows that key, so its name tells nothing new."""
    revoked = table.revoked.get(shown)
    why = f"the {what} is not known here" if revoked is None else f"the key {revoked} was revoked"
    return f"{why}: show another with {_HOW}"


def _version(path: Path) -> _Version | None:
    """Return what differs after the file was replaced; None where there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size
