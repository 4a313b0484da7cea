"""Test an encrypted journal: no plain text is on the disk, and a missing key does not block other users."""

from __future__ import annotations

import base64
import subprocess
import sys
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

import lmdb
import msgspec
import pytest
from relays import NOW, entries, event, later, wait_until

from relay import (
    Broker,
    EncryptionKeyMissingError,
    EncryptionMismatchError,
    EncryptionSettings,
    EntryDamagedError,
    Erasable,
    Event,
    Journal,
    JournalSettings,
    KeysUnavailableError,
    Publisher,
    RelaySettings,
    Subscriber,
    encrypt_journal,
    read_event,
    read_mark,
)
from relay.crypto import KeyRing
from relay.disk import Findings
from relay.journal import Suspect, check_journal
from relay.journal.entries import SealedEvent, dump_entry, load_event, number_key

TEXT, ID, TYPE = "zanzibarquokka", "kakapo-17", "numbat.seen"
GUESSED = b"no event, and short enough to guess"
SHORT = JournalSettings(repeat_horizon_s=100, retention_age_s=50, disk_reserve_bytes=0)


@pytest.fixture
def keys(tmp_path: Path) -> KeyRing:
    return KeyRing(tmp_path / "keys")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data" / "journal"


@pytest.fixture
def journal(folder: Path, keys: KeyRing) -> Iterator[Journal]:
    with Journal.open(folder, keys=keys) as journal:
        yield journal


def recognisable_event(number: int, user_id: str = "alice", **fields: Any) -> Event:
    """Return an event whose parts are recognisable in the bytes of a file."""
    payload = {"text": f"{TEXT} {number}" + "x" * 6_000 * (number % 2), "run_id": f"run-{ID}"}
    fields = {"event_id": f"{ID}-{number}", "event_type": TYPE, "session_id": f"s-{ID}", **fields}
    return event(number, user_id, payload=payload, **{"extra": {"k": TEXT}, **fields})


def fill(journal: Journal) -> None:
    """Add everything that a journal may contain: retained, deleted, erased and set-aside events, and quarantine
    entries.
    """
    journal.append([recognisable_event(number) for number in range(1, 9)], NOW)
    journal.append([recognisable_event(9, "bob"), recognisable_event(10, "system")], NOW, source=("table:t", 3))
    journal.commit("memory", 0)
    journal.quarantine(GUESSED, "malformed_event", f"{TEXT}: is wrong", f"publisher:{ID}", NOW)
    journal.quarantine(TEXT.encode(), "unhandled_event", TEXT, "memory:alice", NOW, seq=2)
    unread = f'{{"user_id": "alice", "event_type": " ", "x": "{TEXT}"}}'.encode()
    journal.append([], NOW, suspects=[Suspect(unread, "malformed_event", TEXT, f"publisher@bob/{ID}")])
    journal.append([], NOW, suspects=[Suspect(unread, "malformed_event", TEXT, "pub")])
    journal.discard(1, "reader", NOW)
    journal.erase(Erasable(user_id="alice", event_ids=frozenset({f"{ID}-3"})), NOW)
    journal.erase(Erasable(user_id="alice", session_ids=frozenset({"s-other"})), NOW)


def marks() -> set[bytes]:
    texts = {TEXT, ID, "kakapo", TYPE, "numbat", "malformed_event", "unhandled", "is wrong"}
    plain = {text.encode() for text in texts} | {GUESSED}
    source = blake2b(f"publisher:{ID}".encode(), digest_size=32).digest()
    digests = {blake2b(GUESSED, digest_size=16, key=source).digest(), blake2b(GUESSED, digest_size=16).digest()}
    return plain | {base64.b64encode(text)[:-4] for text in plain} | digests


def found_below(folder: Path) -> set[bytes]:
    held = b"\n".join(file.read_bytes() for file in folder.rglob("*") if file.is_file())
    return {mark for mark in marks() if mark in held}


def faults(folder: Path) -> list[object]:
    found = Findings()
    check_journal(folder, JournalSettings(), found, lambda *_: None)
    return list(found.listed())


def ids(journal: Journal, user_id: str | None = None) -> list[str]:
    return [read_event(entry.data).event_id for entry in journal.read(0, 1_000, user_id=user_id)]


def test_no_plain_text_is_on_the_disk(journal: Journal, folder: Path, tmp_path: Path) -> None:
    fill(journal)
    assert found_below(folder) == set()
    with Journal.open(tmp_path / "plain") as plain:
        fill(plain)
        assert found_below(tmp_path / "plain") >= {TEXT.encode(), ID.encode(), TYPE.encode(), GUESSED}
        assert ids(plain) == ids(journal)
        assert plain.quarantined() == journal.quarantined()
    journal.close()
    assert faults(folder) == []


def test_repeats_are_recognised(journal: Journal) -> None:
    fill(journal)
    again = [recognisable_event(number) for number in range(1, 9)]
    assert [one.duplicate for one in journal.append(again, NOW)] == [True] * 8
    before = journal.stats().quarantined
    journal.quarantine(GUESSED, "malformed_event", f"{TEXT}: is wrong", f"publisher:{ID}", NOW)
    assert journal.stats().quarantined == before


def test_events_without_their_key_are_skipped_and_others_are_read(journal: Journal, keys: KeyRing) -> None:
    fill(journal)
    assert keys.destroy("alice")
    assert ids(journal) == [f"{ID}-9", f"{ID}-10"]
    assert ids(journal, "alice") == []
    assert journal.stats().locked == 6 * 2
    assert [entry.seq for entry in journal.read(2, 1)] == [9], "a reader skips them in one step"
    codes = {entry.id: (entry.code, entry.data) for entry in journal.quarantined()}
    locked = (EncryptionKeyMissingError.code, b"")
    assert codes[2] == codes[4] == locked
    assert codes[1] == ("malformed_event", GUESSED), "it was nobody's"
    assert codes[3][0] == "malformed_event", "bob's publisher sent it"


def test_system_events_on_behalf_of_a_user_are_encrypted_with_that_users_key(journal: Journal, keys: KeyRing) -> None:
    events = [
        recognisable_event(1, "system", extra={"on_behalf_of": "alice"}),
        recognisable_event(2, "system", extra={"on_behalf_of": "bob"}),
    ]
    journal.append([*events, recognisable_event(3, "system")], NOW)
    assert ids(journal, "system") == [f"{ID}-1", f"{ID}-2", f"{ID}-3"]
    keys.destroy("alice")
    assert ids(journal, "system") == [f"{ID}-2", f"{ID}-3"]
    assert journal.append([*events], NOW)[0].duplicate
    assert journal.erase(Erasable(user_id="alice", system_seqs=frozenset({1})), NOW).seqs == [1]


def test_unreadable_entries_can_still_be_deleted_and_counted(folder: Path, keys: KeyRing) -> None:
    with Journal.open(folder, SHORT, keys=keys) as journal:
        fill(journal)
        keys.destroy("alice")
        erased = journal.erase_all(Erasable(user_id="alice", everything=True), NOW)
        assert (erased.seqs, erased.quarantined) == ([2, 4, 5, 6, 7, 8], 3)
        assert [entry.data for entry in journal.quarantined()] == [GUESSED]
        journal.append([recognisable_event(11), recognisable_event(12)], NOW)
        keys.destroy("alice")
        journal.remove_consumer("memory")
        journal.remove_consumer("reader")
        assert journal.retain(later(60)).deleted == 4
        assert journal.stats().event_bytes == 0
        journal.retain(later(200))
    assert faults(folder) == []


def test_a_returning_user_gets_a_new_key_that_cannot_read_old_events(journal: Journal, keys: KeyRing) -> None:
    fill(journal)
    keys.destroy("alice")
    assert not journal.append([recognisable_event(4)], NOW)[0].duplicate
    assert ids(journal, "alice") == [f"{ID}-4"]
    assert ids(journal)[-1] == f"{ID}-4"


def test_without_the_folder_of_keys_all_operations_fail_and_no_keys_are_created(
    journal: Journal, folder: Path, keys: KeyRing
) -> None:
    fill(journal)
    keys.folder.rename(away := keys.folder.with_name("away"))
    wanted = Erasable(user_id="alice", session_ids=frozenset({f"s-{ID}"}))
    actions: list[Callable[[], object]] = [
        lambda: journal.append([event(1, "carol")], NOW),
        lambda: journal.quarantine(b"x", "c", "r", "memory:carol", NOW),
        lambda: journal.read(0, 10),
        lambda: journal.erase(wanted, NOW),
    ]
    for act in actions:
        with pytest.raises(KeysUnavailableError):
            act()
    assert not keys.folder.exists()
    journal.close()
    with pytest.raises(EncryptionKeyMissingError):
        Journal.open(folder, keys=keys)
    other = KeyRing(keys.folder)
    other.cipher("system", "journal", create=True)
    with pytest.raises(EncryptionKeyMissingError):
        Journal.open(folder, keys=other)
    assert other.users() == ["system"]
    assert faults(folder) == [], "checksums need no key"
    with Journal.open(folder, keys=KeyRing(away)) as again:
        assert len(ids(again)) == 8


def test_plain_and_encrypted_journals_are_never_confused(tmp_path: Path, keys: KeyRing) -> None:
    plain, sealed = tmp_path / "plain", tmp_path / "sealed"
    with Journal.open(plain) as journal:
        journal.commit("reader", 0)
    assert read_mark(plain, JournalSettings()) == (True, None)
    with Journal.open(plain) as journal:
        journal.append([event(1)], NOW)
    Journal.open(sealed, keys=keys).close()
    assert read_mark(plain, JournalSettings()) == (False, None)
    assert read_mark(sealed, JournalSettings()).key_id is not None
    assert read_mark(tmp_path / "none", JournalSettings()) == (True, None)
    for readonly in (False, True):
        with pytest.raises(EncryptionMismatchError, match="memory-agent encrypt"):
            Journal.open(plain, keys=keys, readonly=readonly)
        with pytest.raises(EncryptionMismatchError, match=r"set encryption\.keys_folder"):
            Journal.open(sealed, readonly=readonly)
    with Journal.open(plain) as journal:
        assert ids(journal) == ["event-000001"]


def change(folder: Path, seq: int, value: bytes) -> None:
    with lmdb.open(str(folder), max_dbs=16) as engine, engine.begin(write=True) as transaction:
        transaction.put(number_key(seq), value, db=engine.open_db(b"events", transaction))


def kept(folder: Path, seq: int) -> SealedEvent:
    with lmdb.open(str(folder), max_dbs=16) as engine, engine.begin() as transaction:
        value = transaction.get(number_key(seq), db=engine.open_db(b"events", transaction))
    stored = load_event(number_key(seq), value)
    assert isinstance(stored, SealedEvent)
    return stored


@pytest.mark.parametrize("how", ["moved", "changed", "plain"])
def test_entries_forged_without_the_key_count_as_damaged(folder: Path, keys: KeyRing, how: str) -> None:
    with Journal.open(folder, keys=keys) as journal:
        journal.append([recognisable_event(1), recognisable_event(2), recognisable_event(3)], NOW)
    if how == "moved":
        forged: object = kept(folder, 3)
    elif how == "changed":
        fields = kept(folder, 2)
        forged = msgspec.structs.replace(fields, sealed=fields.sealed[:-1])
    else:
        with Journal.open(folder.with_name("other")) as other:
            other.append([event(1), event(2)], NOW)
        with lmdb.open(str(other._environment.path), max_dbs=16) as engine, engine.begin() as transaction:
            value = transaction.get(number_key(2), db=engine.open_db(b"events", transaction))
        forged = load_event(number_key(2), value)
    change(folder, 2, dump_entry(number_key(2), forged))  # type: ignore[arg-type]
    with Journal.open(folder, keys=keys) as journal:
        assert [entry.seq for entry in journal.read(0, 10)] == [1]
        with pytest.raises(EntryDamagedError):
            journal.read(1, 10)
        journal.set_aside(2, NOW)
        assert [entry.seq for entry in journal.read(0, 10)] == [1, 3]


def test_a_plain_journal_becomes_an_encrypted_one(folder: Path, keys: KeyRing) -> None:
    with Journal.open(folder) as plain:
        fill(plain)
        before = plain.read(0, 100), plain.quarantined(), plain.consumers(), plain.source_cursor("table:t")
        last_seq = plain.last_seq
    change(folder, 7, b"damaged")
    assert encrypt_journal(folder, JournalSettings(), keys, NOW) == 7
    assert encrypt_journal(folder, JournalSettings(), keys, NOW) == 7, "idempotent"
    assert found_below(folder) == set()
    assert faults(folder) == []
    with Journal.open(folder, keys=keys) as journal:
        after = journal.read(0, 100), journal.quarantined(), journal.consumers(), journal.source_cursor("table:t")
        assert [entry for entry in before[0] if entry.seq != 7] == after[0]
        assert before[1] == after[1][:-1]
        assert after[1][-1].seq == 7
        assert before[2:] == after[2:]
        assert journal.last_seq == last_seq
        again = [recognisable_event(number) for number in (1, 2, 3, 8)]
        assert [one.duplicate for one in journal.append(again, NOW)] == [True] * 4
        journal.quarantine(GUESSED, "malformed_event", f"{TEXT}: is wrong", f"publisher:{ID}", NOW)
        assert len(journal.quarantined()) == len(after[1])


DYING = """
import os, sys
from pathlib import Path
import relay.journal.encrypting, relay.disk.environment
from relay import JournalSettings
from relay.crypto import KeyRing
from relay.disk.files import LOCK_FILE
from relays import NOW

folder, keys, where = Path(sys.argv[1]), KeyRing(Path(sys.argv[2])), sys.argv[3]
replace = relay.disk.environment.replace_by_copy

def die(copy):
    if where == "between":
        (copy.parent / LOCK_FILE).unlink(missing_ok=True)
    if where == "after":
        replace(copy)
    os._exit(9)

if where == "copying":
    relay.journal.encrypting._Encrypted._quarantine = lambda self: os._exit(9)
relay.disk.environment.replace_by_copy = die
relay.journal.encrypting.encrypt_journal(folder, JournalSettings(), keys, NOW)
"""


@pytest.mark.parametrize("where", ["copying", "before", "between", "after"])
def test_a_killed_conversion_leaves_either_file_and_the_next_one_finishes_it(
    folder: Path, keys: KeyRing, where: str
) -> None:
    with Journal.open(folder) as plain:
        fill(plain)
        before = plain.read(0, 100)
    died = subprocess.run(
        [sys.executable, "-c", DYING, str(folder), str(keys.folder), where], cwd=Path(__file__).parent
    )
    assert died.returncode == 9
    is_done = read_mark(folder, JournalSettings()).key_id is not None
    assert is_done == (where == "after")
    with Journal.open(folder, keys=keys if is_done else None) as journal:
        assert journal.read(0, 100) == before
    assert encrypt_journal(folder, JournalSettings(), keys, NOW) == 8
    assert found_below(folder) == set()
    assert faults(folder) == []


def test_a_wrong_folder_of_keys_counts_as_missing(journal: Journal, keys: KeyRing) -> None:
    fill(journal)
    known = ids(journal)
    keys.folder.rename(away := keys.folder.with_name("away"))
    other = KeyRing(keys.folder)
    other.cipher("system", "journal", create=True)
    actions: list[Callable[[], object]] = [lambda: journal.append([event(1, "carol")], NOW), lambda: ids(journal)]
    for act in actions:
        with pytest.raises(KeysUnavailableError, match="does not contain the keys"):
            act()
    assert other.users() == ["system"]
    keys.folder.rename(keys.folder.with_name("other"))
    away.rename(keys.folder)
    assert ids(journal) == known


def test_writes_are_undone_when_the_keys_disappear_meanwhile(
    journal: Journal, keys: KeyRing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keys disappear between the first check and the last event; a key created meanwhile must not be used."""
    make = KeyRing._create

    def away_then_make(ring: KeyRing, user_id: str) -> None:
        keys.folder.rename(keys.folder.with_name("away"))
        make(ring, user_id)

    fill(journal)
    monkeypatch.setattr(KeyRing, "_create", away_then_make)
    last_seq = journal.last_seq
    with pytest.raises(KeysUnavailableError):
        journal.append([event(1, "carol")], NOW)
    assert journal.last_seq == last_seq
    assert keys.users() == ["carol"]


def test_a_relay_encrypts_and_refuses_events_while_the_keys_are_missing(data_dir: Path, keys: KeyRing) -> None:
    settings = RelaySettings(encryption=EncryptionSettings(keys_folder=str(keys.folder)))
    away = keys.folder.with_name("away")
    with (
        Broker(data_dir, settings) as broker,
        Publisher(broker.endpoints.ingest) as publisher,
        Subscriber(*broker.endpoints, "r") as subscriber,
    ):
        publisher.publish(recognisable_event(1))
        publisher.publish(recognisable_event(2, "bob"))
        publisher.flush()
        aside = subscriber.quarantine(b"x", "unhandled_event", TEXT, source="memory:alice", seq=1)
        keys.destroy("alice")
        assert entries(subscriber) == [(2, f"{ID}-2")]
        assert subscriber.stats().journal.locked > 0
        assert subscriber.quarantined_entry(aside).code == EncryptionKeyMissingError.code
        assert not subscriber.retry_quarantined(aside)
        subscriber.drop_quarantined(aside)
        assert subscriber.quarantined() == []
        assert found_below(data_dir) == set()
        keys.folder.rename(away)
        publisher.publish(recognisable_event(3, "bob"))
        wait_until(lambda: subscriber.stats().counts.get("refused_without_keys", 0) > 0)
        with pytest.raises(KeysUnavailableError):
            subscriber.fetch(0, 10)
        assert not keys.folder.exists()
        away.rename(keys.folder)
        assert publisher.flush().acked == 3
        assert entries(subscriber) == [(2, f"{ID}-2"), (3, f"{ID}-3")]
    assert keys.users() == ["bob", "system"]
