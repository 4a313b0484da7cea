"""Fuzz targets for whole folders: a store's columns, the map of owners, a restore, and retention.

Damaged caches are rebuilt and answer as before; damaged sources of truth are refused with a specific error.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from functools import cache, partial
from pathlib import Path

import msgspec
import numpy as np
from bus_targets import NOW, scratch
from encrypted_targets import STORE, ring, user_key
from file_targets import _in_file
from target import Target, refused

from memory_agent.care import MANIFEST_FILE, make_backup, restore_all, restore_user
from memory_agent.erasure.logs import note_erasure
from memory_agent.erasure.request import Intent
from memory_agent.erasure.retention import RetentionRules
from memory_agent.records.memories import MemoryRecord
from memory_agent.settings import Settings, load_settings
from memory_agent.signals import SignalTable
from memory_agent.storage import derived
from memory_agent.storage.environment import UserKey
from memory_agent.storage.folder_moves import finish_moves
from memory_agent.storage.folders import STAGE, user_folder
from memory_agent.storage.owners import ORDER, PAIRS, Owners, encode_owner, owner_keys
from memory_agent.storage.store import Store
from relay import EncryptionSettings
from relay.disk import add_checksum

RECORD = MemoryRecord(
    id="m-1", text="the mutex is missing", source="user_input", kind="episode", timestamp=NOW, tags=("a",)
)
OWNED = owner_keys("run-1", None)
EDITS = (b"\0", b"\1\0\0\x10\1", b"\2\0\0\x1c\xff\0\x10\0\x0d", b"\xf0\0\x20\5\x80")
MOVES = (b'[{"source":".restoring/users","target":"users"},{"source":"owners","target":"before/owners"}]',)
RULES = (
    b'[[retention.rules]]\nname = "chat"\nkinds = ["episode"]\nage_s = 86400\n'
    b'[[retention.rules]]\nname = "own"\nsources = ["user_input"]\nevents = ["chat.*"]\ntags = ["a"]\nage_s = 1e10\n'
    b'[[retention.rules]]\nname = "rest"\nsignals = ["chat"]\n',
    b'[retention]\ninterval_s = 5\nrules = [{name = "all", age_s = 0.5}]\n',
)


def _columns(key: UserKey | None, data: bytes) -> None:
    """Edit the file: each four-byte group encodes a position and a value; the first byte may also truncate the file.

    Changed bytes are detected, so queries get the right answers.
    """
    store = _store(key is not None)
    path = store.folder / derived.COLUMNS_FILE
    file = bytearray(_columns_file(key is not None))
    for at in range(1, len(data) - 3, 4):
        file[int.from_bytes(data[at : at + 3], "big") % len(file)] ^= data[at + 3]
    how = data[:1] or b"\0"
    path.write_bytes(file[: len(file) * how[0] // 252] if how[0] > 3 else file)
    refused(derived.read_columns, store.folder, STORE, derived.columns_cipher(key))
    columns = derived.load_columns(store, STORE)
    with store.snapshot() as snapshot:
        if not derived.follow(snapshot, columns):
            columns = derived.empty_columns(STORE)
            columns.apply(snapshot.contents())
    assert columns.view.rows[columns.view.words.scores(["mutex"]) > 0].tolist() == [1]


@cache
def _store(is_encrypted: bool) -> Store:
    store = Store.open(scratch() / f"store-{is_encrypted}", STORE, key=user_key() if is_encrypted else None)
    with store.batch() as batch:
        batch.set_stamp("s")
        batch.put(RECORD, np.asarray([1, 0, 0, 0], np.float32))
    columns = derived.empty_columns(STORE)
    columns.apply(batch.changes)
    derived.write(store, derived.capture(store, columns))
    return store


@cache
def _columns_file(is_encrypted: bool) -> bytes:
    return (_store(is_encrypted).folder / derived.COLUMNS_FILE).read_bytes()


@cache
def _owners(is_encrypted: bool) -> Owners:
    return Owners(
        scratch() / f"owners-{is_encrypted}",
        map_size_bytes=1 << 20,
        key=UserKey(ring(), "system") if is_encrypted else None,
    )


def _owner(data: bytes) -> None:
    """Check that a stored owner is a user or None. A new owner can be learned; forgetting it succeeds or is refused."""
    for is_encrypted in (False, True):
        owners = _owners(is_encrypted)
        kept = _kept_key(owners)
        for value in (data, encode_owner(kept, data)):
            owners._unsaved.clear()
            with owners._environment.write() as transaction:
                for database in (PAIRS, ORDER):
                    transaction.clear(database)
                transaction.put(PAIRS, kept, value)
                transaction.put(ORDER, data[:200] or b"\0", kept)
            owner = owners.owner(OWNED)
            assert owner is None or encode_owner(kept, owner.encode()) == value
            owners.learn(OWNED, "bob")
            refused(owners.forget, "bob")


def _kept_key(owners: Owners) -> bytes:
    return owners._known(OWNED)[0][0]


def _rules(folder: Path) -> None:
    settings = load_settings(folder / "s.toml", {})
    rules = RetentionRules(settings.retention, SignalTable.load(settings.ingest.signals))
    for at in (NOW, NOW.replace(year=9999), NOW.replace(year=1)):
        for metadata in ({}, {"event_type": "chat.user_msg"}):
            told = rules.expiry(msgspec.structs.replace(RECORD, timestamp=at, metadata=metadata))
            assert told is None or told[0] >= at
    assert rules.digest


def _restore(data: bytes) -> None:
    """Check that an invalid manifest is refused, and that nothing is restored."""
    backup, settings = _backup(), _encrypted_settings()
    (backup / MANIFEST_FILE).write_bytes(data)
    data_dir = scratch() / "restored"

    told = (settings, NOW, lambda *_: None)
    for read in (
        lambda: restore_all(backup, data_dir, *told, replace=False),
        lambda: restore_user(backup, data_dir, "alice", *told, replace=False),
    ):
        data_dir.mkdir()
        note_erasure(user_folder(data_dir, "alice"), "alice", Intent(started_at=NOW, record_ids=("gone",)), NOW)
        if refused(read):
            assert not (data_dir / "users" / "alice").exists()
        shutil.rmtree(data_dir)


def _moves(data: bytes) -> None:
    """Check that a move plan stays within its data folder, or is refused."""
    data_dir = scratch() / "moving" / "data"
    (data_dir / STAGE / "users").mkdir(parents=True)
    for plan in (data, add_checksum(data)):
        (data_dir / STAGE).mkdir(exist_ok=True)
        (data_dir / STAGE / "plan").write_bytes(plan)
        with suppress(OSError):  # not a valid file name
            refused(finish_moves, data_dir)
    assert [path.name for path in data_dir.parent.iterdir()] == ["data"]
    shutil.rmtree(data_dir.parent)


@cache
def _encrypted_settings() -> Settings:
    return Settings(encryption=EncryptionSettings(keys_folder=str(ring().folder)), store=STORE)


@cache
def _backup() -> Path:
    data_dir = scratch() / "backed-up"
    store = Store.open(user_folder(data_dir, "alice"), STORE, key=user_key())
    with store.batch() as batch:
        batch.set_stamp("s")
        batch.put(RECORD, np.asarray([1, 0, 0, 0], np.float32))
    store.close()
    Owners(data_dir / "owners", key=UserKey(ring(), "system")).close()
    make_backup(data_dir, scratch() / "backup", _encrypted_settings(), NOW, lambda *_: None)
    return scratch() / "backup"


def _manifest() -> tuple[bytes, ...]:
    """Return three manifests: the original, one with a repeated part, and one with a time without a zone."""
    written = (_backup() / MANIFEST_FILE).read_bytes()
    told = msgspec.json.decode(written)
    twice = {**told, "parts": told["parts"][:1] * 2, "left_out": ["bob"]}
    return written, msgspec.json.encode(twice), msgspec.json.encode({**told, "made_at": "2026-11-21T09:00:00"})


TARGETS = (
    Target("columns-file", partial(_columns, None), EDITS),
    Target("encrypted-columns", lambda data: _columns(user_key(), data), EDITS),
    Target("owner-pairs", _owner, (b"alice", b"", b"\0" * 8 + b"alice", b"\xff\xfe")),
    Target("retention-rules", _in_file("s.toml", _rules), RULES),
    Target("restored-backup", _restore, _manifest(), "json"),
    Target("moving-plan", _moves, MOVES, "json"),
)
