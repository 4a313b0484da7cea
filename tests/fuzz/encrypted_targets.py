"""Fuzz targets for encrypted data: key files, credentials, caches and names under a user's key, and markers.

A fuzzer cannot reach the code behind a cipher. Each input is therefore read twice: unchanged, and encrypted with the
right key and a checksum, as a faulty version of this program could have written it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path

import lmdb
import msgspec
import pytest
from bus_targets import SETTINGS, scratch
from file_targets import ARRAYS, HEADER, INTENTS, Read, _in_file, _kept_file, _StoreOfNow, index_of, with_index
from target import OURS, Target, refused

from memory_agent.erasure import logs
from memory_agent.errors import IndexDamagedError, StoreDamagedError
from memory_agent.learning import learner
from memory_agent.settings import StoreSettings
from memory_agent.storage.array_file import read_arrays, write_arrays
from memory_agent.storage.derived import ColumnsHeader
from memory_agent.storage.environment import RECORDS_FOLDER, UserKey, open_environment, open_records, records_at
from memory_agent.storage.snapshot import FORMS
from relay import SYSTEM_USER, Credentials, Journal, Scope, create_key, read_mark
from relay.access import ensure_local_key, read_keys
from relay.access.key_file import keys_path
from relay.crypto import KeyRing, key_ring
from relay.crypto.encryption import TransactionCipher
from relay.disk import add_checksum, verify_checksum

KEY = b"\0" * 7 + b"\1"
ULID = b"01KCQ0ZD6Z9V2M3S7T8W5X4Y1A"
STORE = StoreSettings(map_size_bytes=1 << 22, reserve_bytes=64 << 10)


@cache
def ring() -> KeyRing:
    """Return a key ring with the keys of alice and of the system, created by the product's code."""
    keys = KeyRing(scratch() / "ring")
    for user_id in (SYSTEM_USER, "alice"):
        keys.cipher(user_id, "records", create=True)
    return keys


@cache
def user_key() -> UserKey:
    """Return alice's key."""
    return UserKey(ring(), "alice")


def key_path(folder: Path) -> Path:
    """Return the file of alice's key in a ring."""
    return KeyRing(folder)._path("alice")


def also(run: Read, *made: Callable[[bytes], bytes]) -> Callable[[bytes], None]:
    """Return a function that calls `run` first with its own input, and then with the result of each function in
    `made`.
    """

    def all_of(data: bytes) -> None:
        run(data)
        for make in made:
            run(make(data))

    return all_of


def _checksummed_file(data: bytes) -> None:
    """Check that a checksummed document with a flipped bit is refused, or read unchanged."""
    with suppress(ValueError):
        verify_checksum(data)
    place, content = int.from_bytes(data[:3], "big"), data[3:]
    kept = bytearray(add_checksum(content))
    assert verify_checksum(bytes(kept)) == content
    kept[place // 8 % len(kept)] ^= 1 << place % 8
    with suppress(ValueError):
        assert verify_checksum(bytes(kept)) == kept


def _key_file(folder: Path) -> None:
    keys = KeyRing(folder)
    secret = msgspec.json.decode(verify_checksum(key_path(ring().folder).read_bytes()))["key"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_ring, "_LOOK_S", 0.0)
        for ask in (partial(keys.cipher, "alice", "records"), partial(keys.fits, "alice", KEY), keys.users):
            assert secret not in _refusal(ask)


def _refusal(read: Callable[[], object]) -> str:
    """Return our error's message, or "" if there is no error."""
    try:
        read()
    except OURS as error:
        return str(error)
    return ""


def _token() -> bytes:
    return ensure_local_key(_people()).encode()


@cache
def _people() -> Path:
    folder = scratch() / "people"
    folder.mkdir()
    ensure_local_key(folder)
    create_key(folder, "bob", "bob", frozenset({Scope.RECALL, Scope.PUBLISH}))
    return folder


def _keys(folder: Path) -> None:
    refused(read_keys, folder)
    credentials = Credentials(folder)
    refused(credentials.of_token, _token())
    refused(credentials.of_curve, "x")


def _arrays(data: bytes) -> None:
    """Check that only the saved file is accepted: neither index nor content can be replaced under the same key."""
    path, cipher, saved = scratch() / "arrays-mutated", user_key().cipher("columns"), _array_file()
    for file in (data, with_index(saved, data), saved[:64] + data + saved[64 + len(data) :], data + saved[len(data) :]):
        path.write_bytes(file)
        refused(read_arrays, path, ColumnsHeader)
        with suppress(IndexDamagedError):
            header, arrays = read_arrays(path, ColumnsHeader, cipher)
            assert header == HEADER
            assert arrays["rows"].tolist() == ARRAYS["rows"].tolist()  # type: ignore[union-attr]


@cache
def _array_file() -> bytes:
    path = scratch() / "arrays-encrypted"
    write_arrays(path, HEADER, ARRAYS, user_key().cipher("columns"))
    return path.read_bytes()


def _learner(folder: Path) -> None:
    store = _StoreOfNow(folder)
    store.key = user_key()
    learner.load_learner(store)  # type: ignore[arg-type]


def _locked_learner(data: bytes) -> bytes:
    return user_key().cipher(learner._PURPOSE).seal(data, learner._ABOUT)


def _intent(folder: Path) -> None:
    refused(logs.read_intent, folder)
    refused(logs.read_intent, folder, user_key())


def _locked_intent(data: bytes) -> bytes:
    return add_checksum(user_key().cipher(logs._PURPOSE).seal(data, logs._ABOUT))


def _values(data: bytes) -> None:
    """Check that a name decrypts unchanged, a value decrypts only in its own place, and anything else is refused."""
    encrypted = TransactionCipher(user_key().cipher("records"), FORMS, StoreDamagedError)
    for database, form in FORMS.items():
        kept = encrypted.key(database, data)
        assert encrypted.plain_key(database, kept) == data
        refused(encrypted.plain_key, database, data)
        assert refused(encrypted.open, database, KEY, data) or not (form.is_sealed and data)
        refused(encrypted.seal, database, KEY, data)
        if form.is_sealed and not form.is_checked and data:
            closed = encrypted.seal(database, kept, data)
            assert encrypted.open(database, kept, closed) == data
            assert refused(encrypted.open, database, kept + b"x", closed)


def _record_marker(data: bytes) -> None:
    """Check that only the stored marker grants access, and that no key is created for a different marker."""
    folder = _records()
    with lmdb.open(str(folder / RECORDS_FOLDER), max_dbs=20, map_size=STORE.map_size_bytes) as engine:
        markers = engine.open_db(b"encryption")
        with engine.begin(write=True) as transaction:
            transaction.put(b"key", data, db=markers)
    before = ring().users()
    assert refused(_open_and_close, folder, None)
    assert refused(_open_and_close, folder, user_key()) or data == b"1" + user_key().cipher("records").key_id
    assert refused(_own_and_close, folder, user_key()) or data == b"1" + user_key().cipher("records").key_id
    environment = open_environment(folder / RECORDS_FOLDER, STORE.map_size_bytes, readonly=True)
    refused(ring().fits, "alice", environment.key_id())
    environment.close()
    assert ring().users() == before


def _open_and_close(folder: Path, key: UserKey | None) -> None:
    open_records(folder, STORE, key).close()


def _own_and_close(folder: Path, key: UserKey | None) -> None:
    records_at(folder / RECORDS_FOLDER, STORE, key).close()


@cache
def _records() -> Path:
    folder = scratch() / "marked"
    records_at(folder / RECORDS_FOLDER, STORE, user_key()).close()
    return folder


def _journal_marker(data: bytes) -> None:
    folder = _journal()
    with lmdb.open(str(folder), max_dbs=20, map_size=SETTINGS.map_size_bytes) as engine:
        counters = engine.open_db(b"counters")
        with engine.begin(write=True) as transaction:
            transaction.put(b"encrypted", data, db=counters)
    refused(read_mark, folder, SETTINGS)
    is_right = data == ring().cipher(SYSTEM_USER, "journal").key_id
    for keys, readonly in ((ring(), True), (ring(), False), (None, True), (None, False)):
        assert refused(_open_journal, folder, keys, readonly) or (keys is not None and is_right)


def _open_journal(folder: Path, keys: KeyRing | None, readonly: bool) -> None:
    Journal.open(folder, SETTINGS, keys=keys, readonly=readonly).close()


@cache
def _journal() -> Path:
    folder = scratch() / "journal-encrypted"
    Journal.open(folder, SETTINGS, keys=ring()).close()
    return folder


TARGETS = (
    Target("checksummed-file", _checksummed_file, (b"\0\0\7" + INTENTS[0], b"\1\0\3" + add_checksum(INTENTS[0]))),
    Target(
        "encryption-key",
        also(_in_file(key_path(Path()).name, _key_file), add_checksum),
        (
            key_path(ring().folder).read_bytes(),
            verify_checksum(key_path(ring().folder).read_bytes()),
            b"destroyed" + b"x" * 90,
        ),
        "json",
    ),
    Target(
        "checksummed-keys",
        also(_in_file("keys.json", _keys), add_checksum),
        (keys_path(_people()).read_bytes(), verify_checksum(keys_path(_people()).read_bytes())),
        "json",
    ),
    Target("encrypted-arrays", _arrays, (_array_file(), index_of(_array_file()))),
    Target(
        "encrypted-learner",
        also(_in_file("sona.state", _learner), _locked_learner),
        (_kept_file(), _locked_learner(_kept_file())),
        "msgpack",
    ),
    Target(
        "encrypted-intent",
        also(_in_file(logs.INTENT_FILE, _intent), add_checksum, _locked_intent),
        (*INTENTS, add_checksum(INTENTS[0]), _locked_intent(INTENTS[0])),
        "json",
    ),
    Target("encrypted-values", _values, (b"run-1", ULID, b"b" + KEY + ULID, b"b" + KEY + b"run-1", KEY)),
    Target(
        "record-marker", _record_marker, (b"1" + user_key().cipher("records").key_id, b"2" + bytes(8), b"1" + bytes(8))
    ),
    Target("journal-marker", _journal_marker, (ring().cipher(SYSTEM_USER, "journal").key_id, bytes(8))),
)
