"""Test the journal on a real disk: order, repeats, users, consumers, the single writer, damage."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from relays import NOW, event

from relay import (
    Appended,
    CursorError,
    EntryDamagedError,
    Journal,
    JournalDamagedError,
    JournalError,
    JournalFullError,
    JournalInUseError,
    JournalSettings,
    QuarantineEntryError,
    read_event,
)
from relay.access import Origin
from relay.journal.entries import StoredEvent, dump_entry, load_event, number_key


def test_events_are_numbered_from_one_in_order(journal: Journal) -> None:
    assert journal.append([event(1), event(2)], NOW) == [Appended(1, False), Appended(2, False)]
    assert journal.append([event(3)], NOW) == [Appended(3, False)]
    assert [(entry.seq, read_event(entry.data)) for entry in journal.read(0, 10)] == [
        (number, event(number)) for number in (1, 2, 3)
    ]
    assert (journal.first_seq, journal.last_seq) == (1, 3)


def test_an_entry_has_the_time_at_which_the_relay_received_it(journal: Journal) -> None:
    journal.append([event(1)], NOW)
    assert [entry.received_ms for entry in journal.read(0, 1)] == [round(NOW.timestamp() * 1000)]


def test_a_repeat_gets_the_number_of_the_first(journal: Journal) -> None:
    assert journal.append([event(1), event(2), event(1)], NOW)[2] == Appended(1, True)
    assert journal.append([event(2), event(3)], NOW) == [Appended(2, True), Appended(3, False)]
    assert journal.stats().entries == 3


def test_equal_event_ids_of_two_users_are_different_events(journal: Journal) -> None:
    assert [one.duplicate for one in journal.append([event(1, "alice"), event(1, "bob")], NOW)] == [False, False]


def test_one_users_entries_are_read_alone_and_in_order(journal: Journal) -> None:
    journal.append([event(number, user) for number in range(9) for user in ("al", "alice", "bob")], NOW)
    found = journal.read(4, 3, user_id="alice")
    assert [(entry.seq, entry.user_id) for entry in found] == [(5, "alice"), (8, "alice"), (11, "alice")]
    assert journal.read(0, 10, user_id="nobody") == []


def test_a_batch_ends_at_its_limits_but_always_holds_an_entry(journal: Journal) -> None:
    journal.append([event(number, payload={"text": "x" * 1_000}) for number in range(5)], NOW)
    assert len(journal.read(0, 3)) == 3
    assert len(journal.read(0, 10, max_bytes=2_500)) == 2
    assert len(journal.read(0, 10, max_bytes=1)) == 1
    assert journal.read(0, 0) == []
    batch = journal.fetch(4, 10)
    assert ([entry.seq for entry in batch.entries], batch.first_seq, batch.last_seq) == ([5], 1, 5)


def test_reopening_keeps_everything(tmp_path: Path) -> None:
    with Journal.open(tmp_path) as journal:
        journal.append([event(1), event(2)], NOW)
        journal.commit("memory", 1)
        journal.quarantine(b"junk", "malformed_event", "event: is not JSON", "pub", NOW)
        before = journal.stats()
    with Journal.open(tmp_path) as journal:
        assert journal.stats() == before
        assert journal.append([event(2), event(3)], NOW) == [Appended(2, True), Appended(3, False)]


def test_a_cursor_never_goes_back_and_never_beyond_the_end(journal: Journal) -> None:
    journal.append([event(number) for number in range(5)], NOW)
    assert journal.cursor("memory") == 0
    assert journal.commit("memory", 3) == 3
    assert journal.commit("memory", 2) == 3
    with pytest.raises(CursorError, match="beyond"):
        journal.commit("memory", 6)
    assert journal.cursor("memory") == 3
    assert [(one.name, one.seq, one.lag) for one in journal.consumers()] == [("memory", 3, 2)]
    assert journal.remove_consumer("memory")
    assert not journal.remove_consumer("memory")


@pytest.mark.parametrize("name", ["", "a b", "../x", "x" * 129, "a\0"])
def test_an_unusable_consumer_name_is_refused(journal: Journal, name: str) -> None:
    for use in (lambda: journal.commit(name, 0), lambda: journal.cursor(name), lambda: journal.remove_consumer(name)):
        with pytest.raises(CursorError, match="consumer"):
            use()


def test_the_cursor_of_a_source_advances_with_its_events(journal: Journal) -> None:
    assert journal.source_cursor("table:t") is None
    journal.append([event(1)], NOW, source=("table:t", 41))
    assert journal.source_cursor("table:t") == 41


def test_a_second_writer_is_refused_and_readers_are_not(tmp_path: Path) -> None:
    with Journal.open(tmp_path) as journal:
        journal.append([event(1)], NOW)
        with pytest.raises(JournalInUseError, match=f"process {os.getpid()}"):
            Journal.open(tmp_path)
        program = (
            "import sys, pathlib; from relay import Journal;"
            "print(Journal.open(pathlib.Path(sys.argv[1]), readonly=True).last_seq)"
        )
        seen = subprocess.run(
            [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True
        )
        assert seen.stdout.strip() == "1"


def test_a_reader_does_not_create_a_missing_journal(tmp_path: Path) -> None:
    with pytest.raises(JournalError):
        Journal.open(tmp_path / "none", readonly=True)
    assert not (tmp_path / "none").exists()


def append_until_refused(journal: Journal) -> None:
    for number in range(1_000):
        journal.append([event(number, payload={"text": "x" * 4_000})], NOW)


def test_a_full_map_refuses_events_and_still_deletes_old_ones(tmp_path: Path) -> None:
    settings = JournalSettings(map_size_bytes=1 << 20, retention_bytes=100_000)
    with Journal.open(tmp_path, settings) as journal:
        with pytest.raises(JournalFullError) as raised:
            append_until_refused(journal)
        assert raised.value.retryable
        taken = journal.last_seq
        assert taken == len(journal.read(0, 10_000)) > 50
        journal.commit("memory", taken)
        assert journal.retain(NOW).deleted > 0
        assert journal.append([event(taken)], NOW) == [Appended(taken + 1, False)]


def flip_a_bit(folder: Path, text: bytes) -> None:
    """Flip a bit at the last occurrence of `text` in the file."""
    file = folder / "data.mdb"
    content = bytearray(file.read_bytes())
    place = content.rindex(text)
    content[place] ^= 1
    file.write_bytes(content)


def test_a_flipped_bit_is_noticed_and_can_be_set_aside(tmp_path: Path) -> None:
    with Journal.open(tmp_path) as journal:
        journal.append([event(1), event(2, payload={"text": "a needle"}), event(3)], NOW)
    flip_a_bit(tmp_path, b"needle")
    with Journal.open(tmp_path) as journal:
        assert [entry.seq for entry in journal.read(0, 10)] == [1]
        with pytest.raises(EntryDamagedError) as raised:
            journal.read(1, 10)
        assert raised.value.seq == 2
        journal.set_aside(2, NOW)
        assert [entry.seq for entry in journal.read(0, 10)] == [1, 3]
        assert [entry.seq for entry in journal.read(0, 10, user_id="alice")] == [1, 3]
        (aside,) = journal.quarantined()
        assert (aside.seq, aside.code, aside.source) == (2, "entry_damaged", "journal")
        assert b"oeedle" in aside.data


@pytest.mark.parametrize("kept_bytes", [100, 9_000, 20_000])
def test_a_truncated_file_is_refused(tmp_path: Path, kept_bytes: int) -> None:
    with Journal.open(tmp_path) as journal:
        journal.append([event(number, payload={"text": "x" * 1_000}) for number in range(100)], NOW)
    os.truncate(tmp_path / "data.mdb", kept_bytes)
    with pytest.raises(JournalDamagedError):
        Journal.open(tmp_path)


def test_a_file_that_is_not_a_journal_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data.mdb").write_bytes(b"this is not LMDB" * 4_096)
    with pytest.raises(JournalDamagedError):
        Journal.open(tmp_path)


def test_quarantine_entries_stay_until_dropped_or_released(journal: Journal) -> None:
    first = journal.quarantine(b"one", "malformed_event", "event: no", "pub", NOW)
    second = journal.quarantine(b"two", "unhandled", "no", "memory:alice", NOW, seq=7)
    entries = journal.quarantined()
    assert [(entry.id, entry.data, entry.seq, entry.quarantined_at) for entry in entries] == [
        (first, b"one", None, NOW),
        (second, b"two", 7, NOW),
    ]
    assert journal.quarantined(after=first) == entries[1:]
    assert journal.quarantined(limit=1) == entries[:1]
    assert journal.quarantined_entry(first) == entries[0]
    assert journal.release(first, event(1), Origin("local", True), NOW) == Appended(1, False)
    journal.drop(second)
    assert journal.quarantined() == []
    for gone in (lambda: journal.drop(second), lambda: journal.quarantined_entry(first)):
        with pytest.raises(QuarantineEntryError):
            gone()
    assert journal.stats().quarantined_bytes == 0


def test_the_same_bytes_from_the_same_source_are_quarantined_once(journal: Journal) -> None:
    first = journal.quarantine(b"junk", "malformed_event", "event: no", "pub", NOW)
    assert journal.quarantine(b"junk", "malformed_event", "event: no", "pub", NOW) == first
    assert journal.quarantine(b"junk", "malformed_event", "event: no", "elsewhere", NOW) != first
    seventh = journal.quarantine(b"event", "unhandled", "no", "memory:a", NOW, seq=7)
    assert journal.quarantine(b"event", "unhandled", "again", "memory:a", NOW, seq=7) == seventh
    assert journal.quarantine(b"event", "unhandled", "no", "memory:a", NOW, seq=8) != seventh
    journal.drop(first)
    assert journal.quarantine(b"junk", "malformed_event", "event: no", "pub", NOW) > first


def test_a_full_quarantine_refuses_junk_counts_it_and_keeps_events(tmp_path: Path) -> None:
    with Journal.open(tmp_path, JournalSettings(quarantine_max_entries=5, quarantine_max_bytes=1_000)) as journal:
        ids = [journal.quarantine(b"junk %d" % number, "c", "r", "pub", NOW) for number in range(8)]
        assert ids == [1, 2, 3, 4, 5, 0, 0, 0]
        assert journal.quarantine(b"event", "c", "r", "memory:a", NOW, seq=1) == 6
        assert journal.stats().quarantine_refused == 3
        journal.drop(1)
        journal.drop(2)
        assert journal.quarantine(b"x" * 1_000, "c", "r", "pub", NOW) == 0
        assert journal.quarantine(b"x" * 10, "c", "r", "pub", NOW) == 7


def test_a_child_made_by_fork_is_refused(journal: Journal) -> None:
    child = os.fork()
    if child == 0:
        try:
            journal.append([event(1)], NOW)
        except JournalError:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert journal.append([event(1)], NOW) == [Appended(1, False)]


def test_an_entry_names_its_key_and_an_old_one_has_none(journal: Journal) -> None:
    everybodys, alices = Origin("local", True), Origin("of-alice", False)
    journal.append([event(1), event(2)], NOW, origins=[everybodys, alices])
    journal.append([event(3)], NOW)
    entries = journal.read(0, 10)
    assert [entry.origin for entry in entries] == [everybodys, alices, None]
    assert [entry.is_vouched for entry in entries] == [True, False, False]


def test_an_entry_from_before_origins_were_kept_is_read() -> None:
    class Former(msgspec.Struct, array_like=True):
        received_ms: int
        user_id: str
        event_id: str
        event_type: str
        data: bytes

    key = number_key(7)
    stored = load_event(key, dump_entry(key, Former(1, "alice", "e", "a.b", b"\x80")))  # type: ignore[arg-type]
    assert stored == StoredEvent(1, "alice", "e", "a.b", b"\x80", None)
