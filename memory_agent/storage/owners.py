"""Stores the owners of runs and sessions durably, to attribute the events that conductors publish as `system`.

The dispatcher decides which events establish an owner, since any user can name any run (decision 0008). A run or
session claimed by two users has no owner. A damaged pair has no owner.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from functools import partial
from hashlib import blake2b
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from memory_agent.errors import StoreDamagedError, StoreEncryptedError
from memory_agent.storage.environment import UserKey, compact, open_environment
from relay import (
    ON_BEHALF_OF,
    SYSTEM_USER,
    EventLimits,
    MalformedEventError,
    QuarantineEntry,
    decode_mapping,
    described,
    publisher_of,
)
from relay.crypto import Encryption, Form, Put, encrypt_in_place
from relay.disk import Environment, Transaction

PAIRS = "pairs"  # keys with their checksum and user
ORDER = "order"  # keys in the order in which they were learned
MAP_SIZE_BYTES = 2 << 30
NOBODY = b""
_CHECKSUM_BYTES = 8
_PURPOSE = "owners"
_AS_IT_IS = Form(None, is_sealed=False)


def encode_owner(key: bytes, user: bytes) -> bytes:
    return xxhash.xxh3_64_digest(key + b"\0" + user) + user


def decode_owner(key: bytes, value: bytes) -> bytes | None:
    """Return the user of a stored pair, or None if the pair is damaged."""
    user = value[_CHECKSUM_BYTES:]
    try:
        user.decode()
    except UnicodeDecodeError:
        return None
    return user if encode_owner(key, user) == value else None


def owners_encryption(key: UserKey | None) -> Encryption | None:
    """Return the encryption settings of the map, which is encrypted with the system's key. User ids remain readable."""
    return None if key is None else Encryption(key, _PURPOSE, dict.fromkeys((PAIRS, ORDER), _AS_IT_IS))


def kept_keys(plain: Iterable[bytes], key: UserKey | None) -> list[bytes]:
    """Return the stored form of run and session keys. Raises `EncryptionKeyMissingError`."""
    if key is None:
        return list(plain)
    cipher = key.cipher(_PURPOSE)
    return [cipher.fingerprint(one) for one in plain]


LIMIT = 500_000
_UNSAVED = 10_000
_NUMBER_BYTES = 8
_LONGEST_ID_BYTES = 200  # LMDB allows 511


class _Traces(msgspec.Struct):
    session_id: str | None = None
    actor_id: str | None = None
    payload: dict[str, Any] = {}


class _Naming(msgspec.Struct):
    extra: dict[str, Any] = {}


_naming_decoder = msgspec.msgpack.Decoder(described(_Naming))
_decoder = msgspec.msgpack.Decoder(described(_Traces))


def ownership_keys(event: bytes) -> tuple[str, ...]:
    """Return the keys of an encoded event's run (`run:…`) and session (`session:…`)."""
    traces = _decoder.decode(event)
    run_id = traces.payload.get("run_id")
    if not isinstance(run_id, str) and traces.actor_id and traces.actor_id.startswith("conductor:"):
        run_id = traces.actor_id.removeprefix("conductor:")
    return owner_keys(run_id if isinstance(run_id, str) else None, traces.session_id)


def owner_keys(run_id: str | None, session_id: str | None) -> tuple[str, ...]:
    named = (("run", run_id), ("session", session_id))
    return tuple(_key(kind, id_) for kind, id_ in named if id_)


def named_owner(event: bytes) -> str | None:
    """Return the owner named in an encoded `system` event (`on_behalf_of`), or None."""
    named = _naming_decoder.decode(event).extra.get(ON_BEHALF_OF)
    return named if isinstance(named, str) and named else None


def quarantined_traces(entry: QuarantineEntry) -> bytes | None:
    """Return an encoded event with only the run, session and owner that a quarantined `system` event names; None for
    any other entry.
    """
    if entry.seq is not None or publisher_of(entry.source).user_id is not None:
        return None
    try:
        told = decode_mapping(entry.data, EventLimits(max_bytes=len(entry.data)))
    except MalformedEventError:
        return None
    if not isinstance(told, dict) or told.get("user_id") != SYSTEM_USER:
        return None
    payload, named = told.get("payload"), told.get(ON_BEHALF_OF)
    run_id = payload.get("run_id") if isinstance(payload, dict) else None
    ids = {name: told[name] for name in ("session_id", "actor_id") if isinstance(told.get(name), str)}
    traces = ids | {
        "payload": {"run_id": run_id} if isinstance(run_id, str) else {},
        "extra": {ON_BEHALF_OF: named} if isinstance(named, str) else {},
    }
    try:
        return msgspec.msgpack.encode(traces)
    except UnicodeEncodeError:
        return None


def keys_of(session_id: str | None, run_ids: Iterable[str]) -> frozenset[str]:
    sessions = [] if session_id is None else [_key("session", session_id)]
    return frozenset([*sessions, *(_key("run", run_id) for run_id in run_ids)])


def is_named(user_id: str, event: bytes, among: frozenset[str] | None = None) -> bool:
    """Whether a `system` event names this user as its owner; `among` is as in `Owners.has`."""
    return _is_among(event, among) and named_owner(event) == user_id


def _is_among(event: bytes, among: frozenset[str] | None) -> bool:
    return among is None or not among.isdisjoint(ownership_keys(event))


def _key(kind: str, id_: str) -> str:
    """Return the key of an id. A long id is hashed, so that two ids never share a key."""
    if len(id_.encode()) <= _LONGEST_ID_BYTES:
        return f"{kind}:{id_}"
    return f"{kind}#{blake2b(id_.encode(), digest_size=16).hexdigest()}"


class Owners:
    """A durable map from runs and sessions to users."""

    def __init__(
        self, path: Path, limit: int = LIMIT, map_size_bytes: int = MAP_SIZE_BYTES, key: UserKey | None = None
    ) -> None:
        """Open the map in `path`, encrypted if there is a `key`. Raises `StoreError`."""
        self._environment = _open(path, map_size_bytes, key)
        self._key = key
        self._limit = limit
        self._unsaved: dict[bytes, bytes] = {}

    @property
    def is_crowded(self) -> bool:
        """Whether `save` must be called before more pairs are learned."""
        return len(self._unsaved) >= _UNSAVED

    def learn(self, keys: tuple[str, ...], user_id: str) -> bool:
        """Record `user_id` as the owner of `keys`; return whether any owner changed. Durable after `save`."""
        news = {}
        for key, known in self._known(keys):
            if known not in (user_id.encode(), NOBODY):
                news[key] = user_id.encode() if known is None else NOBODY
        self._unsaved.update(news)
        return bool(news)

    def owner(self, keys: tuple[str, ...]) -> str | None:
        for _, owner in self._known(keys):
            if owner is not None:
                return owner.decode() or None
        return None

    def owner_of(self, event: bytes) -> str | None:
        """Return the user named in a `system` event, else the owner of its run or session, else None."""
        return named_owner(event) or self.owner(ownership_keys(event))

    def has(self, user_id: str, event: bytes, among: frozenset[str] | None = None) -> bool:
        """Whether a `system` event belongs to this user and, if `among` is given, to one of these runs and sessions."""
        return _is_among(event, among) and self.owner_of(event) == user_id

    def forget(self, user_id: str) -> None:
        """Erase a user's runs and sessions, and all damaged pairs, from the file. Raises `StoreError`."""
        self.save()
        doomed = {key for key, owner in self._all() if owner in (user_id.encode(), None)}
        with self._environment.write() as transaction:
            for number in [number for number, key in transaction.scan(ORDER) if key in doomed]:
                transaction.delete(ORDER, number)
            for key in doomed:
                transaction.delete(PAIRS, key)
        compact(self._environment)

    def _all(self) -> list[tuple[bytes, bytes | None]]:
        with self._environment.read() as transaction:
            return [(key, decode_owner(key, value)) for key, value in transaction.scan(PAIRS)]

    def encrypt(self, key: UserKey) -> None:
        """Replace the plain map with an encrypted one, and close the plain map (`encrypt_in_place`)."""

        def open_copy(copy: Path) -> Environment:
            return _open(copy, self._environment.map_size_bytes, key)

        encrypt_in_place(self._environment, open_copy, partial(_encrypted_pairs, key=key))

    def save(self) -> None:
        """Make the learned pairs durable. Raises `StoreError`."""
        if not self._unsaved:
            return
        with self._environment.write() as transaction:
            self._forget_oldest(transaction)
            numbers = _numbers_after(transaction)
            for key, value in self._unsaved.items():
                if transaction.get(PAIRS, key) is None:
                    transaction.put(ORDER, next(numbers), key, append=True)
                transaction.put(PAIRS, key, encode_owner(key, value))
        self._unsaved.clear()

    def close(self) -> None:
        """Save and close. If saving fails, closes the map and raises `StoreError`."""
        try:
            self.save()
        finally:
            self._environment.close()

    def _forget_oldest(self, transaction: Transaction) -> None:
        """Drop the oldest pairs to make room for the unsaved ones. Assumes that each unsaved pair is new."""
        surplus = transaction.count(PAIRS) + len(self._unsaved) - self._limit
        if surplus <= 0:
            return
        oldest = [pair for pair, _ in zip(transaction.scan(ORDER), range(surplus), strict=False)]
        for number, key in oldest:
            transaction.delete(ORDER, number)
            transaction.delete(PAIRS, key)

    def _known(self, keys: tuple[str, ...]) -> list[tuple[bytes, bytes | None]]:
        encoded = kept_keys((key.encode() for key in keys), self._key)
        with self._environment.read() as transaction:
            return [(key, self._unsaved.get(key, _opened(key, transaction.get(PAIRS, key)))) for key in encoded]


def _opened(key: bytes, value: bytes | None) -> bytes | None:
    if value is None:
        return None
    user = decode_owner(key, value)
    return NOBODY if user is None else user


def encrypt_owners(path: Path, key: UserKey) -> bool:
    """Encrypt the closed map in `path` atomically; return False if there is no plain map. Raises `StoreError`."""
    if not path.exists():
        return False
    try:
        owners = Owners(path)
    except StoreEncryptedError:
        return False
    with closing(owners):
        owners.encrypt(key)
    return True


def _encrypted_pairs(transaction: Transaction, key: UserKey) -> Iterator[Put]:
    known = set()
    for number, plain in transaction.scan(ORDER):
        (kept,) = kept_keys([plain], key)
        yield ORDER, number, kept
        if kept not in known:
            known.add(kept)
            yield PAIRS, kept, encode_owner(kept, _opened(plain, transaction.get(PAIRS, plain)) or NOBODY)


def _open(path: Path, map_size_bytes: int, key: UserKey | None) -> Environment:
    return open_environment(path, map_size_bytes, (PAIRS, ORDER), encryption=owners_encryption(key))


def _numbers_after(transaction: Transaction) -> Iterator[bytes]:
    """Yield the numbers after the last stored one. Raises `StoreDamagedError`."""
    last = transaction.last_key(ORDER)
    if last is not None and (len(last) > _NUMBER_BYTES or last[:1] == b"\xff"):
        raise StoreDamagedError("map of owners: the last sequence number is invalid")
    first = int.from_bytes(last, "big") + 1 if last is not None else 1
    return (number.to_bytes(_NUMBER_BYTES, "big") for number in count(first))
