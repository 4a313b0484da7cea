"""Looks up the principal of a token or CURVE key in the key file.

The key is looked up for each request, so a revoked key is rejected at once, even on open connections. If the key file
is missing or unreadable, every key is unknown.
"""

from __future__ import annotations

import threading
from hmac import compare_digest
from pathlib import Path
from typing import NamedTuple

from relay.access.key_file import StoredKey, digest_of, keys_version, read_keys
from relay.access.principal import Principal
from relay.errors import KeyFileError, UnauthorizedError
from relay.log import log

PRESENTED_WITH = "--key-file or MEMORY_AGENT_TOKEN"
"""How to pass a key to a command. Error messages quote this text; the HTTP server substitutes its own."""
_HOW = f"{PRESENTED_WITH}; the owner of the data folder creates one with memory-agent keys create"


class _Table(NamedTuple):
    version: tuple[int, ...]
    by_digest: dict[str, StoredKey]
    by_curve: dict[str, StoredKey]
    revoked: dict[str, str]  # names of revoked keys, by token digest or public CURVE key


_NO_KEYS = _Table((), {}, {}, {})


class Credentials:
    """The keys of one data folder. Thread-safe."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._table = _NO_KEYS
        self._guard = threading.Lock()

    def of_token(self, token: bytes) -> Principal:
        """Return the principal of a token. Raises `UnauthorizedError`."""
        if not token:
            raise UnauthorizedError(f"the token is missing: pass a key with {_HOW}")
        digest = digest_of(token)
        table = self._current()
        key = table.by_digest.get(digest)
        if key is None or not compare_digest(key.token_sha256, digest):
            raise UnauthorizedError(_refused(table, digest, "token"))
        return key.principal

    def of_curve(self, public: str) -> Principal:
        """Return the principal of a public CURVE key. Raises `UnauthorizedError`."""
        table = self._current()
        key = table.by_curve.get(public)
        if key is None:
            raise UnauthorizedError(_refused(table, public, "key"))
        return key.principal

    def knows_curve(self, public: str) -> bool:
        return public in self._current().by_curve

    def _current(self) -> _Table:
        version = keys_version(self._data_dir)
        if version != self._table.version or not version:
            with self._guard:
                self._table = self._read(version)
        return self._table

    def _read(self, version: tuple[int, ...]) -> _Table:
        if not version:
            return _NO_KEYS
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
    revoked = table.revoked.get(shown)
    why = f"unknown {what}" if revoked is None else f"the key {revoked} was revoked"
    return f"{why}: use a valid key with {_HOW}"
