"""Whose run or session it is, for events that conductors publish under `system`.

Every event of a real user teaches who owns its run and its session; the pairs are kept on disk, so a restart forgets
nothing. A run or session that two users claim belongs to nobody: guessing would show one user's work to another.
What this does not do: keep the events that wait for an owner (`dispatcher`).
"""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec

from memory_agent.storage.environment import Environment

SYSTEM_USER = "system"
_DATABASE = "owners"
_MAP_SIZE_BYTES = 1 << 30
_CONTESTED = b""
_LONGEST_ID_BYTES = 200  # LMDB's keys end at 511


class _Traces(msgspec.Struct):
    session_id: str | None = None
    actor_id: str | None = None
    payload: dict[str, Any] = {}


_decoder = msgspec.msgpack.Decoder(_Traces)


def ownership_keys(event: bytes) -> tuple[str, ...]:
    """Return what an encoded event says it belongs to, the most specific first: `run:…`, then `session:…`."""
    traces = _decoder.decode(event)
    keys = []
    run_id = traces.payload.get("run_id")
    if not isinstance(run_id, str) and traces.actor_id and traces.actor_id.startswith("conductor:"):
        run_id = traces.actor_id.removeprefix("conductor:")
    if isinstance(run_id, str) and run_id:
        keys.append(_key("run", run_id))
    if traces.session_id:
        keys.append(_key("session", traces.session_id))
    return tuple(keys)


def run_keys(run_id: str) -> tuple[str, ...]:
    """Return what events of a run say that they belong to."""
    return (_key("run", run_id),)


def _key(kind: str, id_: str) -> str:
    """Return the key of an id of any length. A long one is hashed, not cut: what is cut may be another's."""
    if len(id_.encode()) <= _LONGEST_ID_BYTES:
        return f"{kind}:{id_}"
    return f"{kind}#{blake2b(id_.encode(), digest_size=16).hexdigest()}"


class Owners:
    """A durable map from runs and sessions to users."""

    def __init__(self, path: Path) -> None:
        """Open the map in the folder `path`. Raises `StoreError`."""
        self._environment = Environment.open(path, _MAP_SIZE_BYTES, databases=(_DATABASE,))
        self._unsaved: dict[bytes, bytes] = {}

    def learn(self, keys: tuple[str, ...], user_id: str) -> bool:
        """Note that `keys` belong to `user_id`; True if that was news. Durable after `save`."""
        news = {}
        for key, known in self._known(keys):
            if known not in (user_id.encode(), _CONTESTED):
                news[key] = user_id.encode() if known is None else _CONTESTED
        self._unsaved.update(news)
        return bool(news)

    def owner(self, keys: tuple[str, ...]) -> str | None:
        """Return the one user that the most specific known key belongs to, or None."""
        for _, owner in self._known(keys):
            if owner is not None:
                return owner.decode() or None
        return None

    def save(self) -> None:
        """Make what was learnt durable. Raises `StoreError`."""
        if not self._unsaved:
            return
        with self._environment.write() as transaction:
            for key, value in self._unsaved.items():
                transaction.put(_DATABASE, key, value)
        self._unsaved.clear()

    def close(self) -> None:
        """Save and close. Raises `StoreError` when what was learnt could not be saved; it is closed all the same."""
        try:
            self.save()
        finally:
            self._environment.close()

    def _known(self, keys: tuple[str, ...]) -> list[tuple[bytes, bytes | None]]:
        encoded = [key.encode() for key in keys]
        with self._environment.read() as transaction:
            return [(key, self._unsaved.get(key, transaction.get(_DATABASE, key))) for key in encoded]
