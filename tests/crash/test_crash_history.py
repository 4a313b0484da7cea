"""Test that the checker finds each kind of violation when it is planted in a sound history."""

from __future__ import annotations

from dataclasses import replace

import pytest

from .figures import Figures
from .history import Entry, History, Store, Stored, check, counted

USERS = ("alice", "bob")


def sound() -> History:
    """Twelve events from two publishers for two users, ingested and indexed; one event per user is forgotten."""
    journal = [
        Entry(seq, f"p{seq % 2}", seq, f"p{seq % 2}-{seq:04d}", USERS[seq // 2 % 2])
        for seq in range(1, 13)  # each publisher publishes for both users
    ]
    deleted = frozenset({journal[0].event_id, journal[2].event_id})
    kept = [entry for entry in journal if entry.event_id not in deleted]
    stores = {user: _store([entry for entry in kept if entry.user_id == user], user) for user in USERS}
    return History(
        acked={name: [entry.event_id for entry in journal if entry.publisher == name] for name in ("p0", "p1")},
        journal=journal,
        stores=stores,
        handled=12,
        deleted=deleted,
    )


def _store(entries: list[Entry], user_id: str) -> Store:
    memories = [Stored(user_id, entry.event_id, entry.user_id, entry.seq) for entry in entries]
    rows = frozenset(memory.row for memory in memories)
    return Store(memories, 12, rows, rows)


def with_store(history: History, user_id: str, memories: list[Stored]) -> History:
    assert history.stores is not None
    rows = frozenset(memory.row for memory in memories)
    return replace(history, stores={**history.stores, user_id: Store(memories, 12, rows, rows)})


def memories_of(history: History, user_id: str) -> list[Stored]:
    assert history.stores is not None
    return list(history.stores[user_id].memories)


def test_a_sound_history_has_no_findings() -> None:
    assert check(sound()) == []


def test_a_lost_event_is_found_in_the_journal_and_in_a_store() -> None:
    history = sound()
    journal = [entry for entry in history.journal if entry.seq != 12]
    assert "lost" in counted(check(replace(history, journal=journal)))
    fewer = memories_of(history, "bob")[:-1]
    assert counted(check(with_store(history, "bob", fewer))) == {"lost": 1}


def test_quarantined_events_are_not_lost() -> None:
    history = sound()
    journal = [entry for entry in history.journal if entry.seq != 12]
    fewer = [memory for memory in memories_of(history, "alice") if memory.row != 12]
    without = with_store(replace(history, journal=journal), "alice", fewer)
    assert counted(check(without)) == {"lost": 1}
    assert check(replace(without, quarantined=frozenset({"p0-0012"}))) == []


def test_a_doubled_event_is_found_in_the_journal_and_in_a_store() -> None:
    history = sound()
    again = history.journal[4]._replace(seq=13)
    assert counted(check(replace(history, journal=[*history.journal, again])))["doubled"] == 1
    memories = memories_of(history, "bob")
    twice = [*memories, memories[-1]._replace(row=99)]
    assert counted(check(with_store(history, "bob", twice))) == {"doubled": 1}


def test_swapped_events_are_found_in_the_journal_and_in_a_store() -> None:
    history = sound()
    journal = list(history.journal)
    journal[4], journal[6] = journal[6]._replace(seq=5), journal[4]._replace(seq=7)
    assert counted(check(replace(history, journal=journal, stores=None))) == {"swapped": 1}
    memories = memories_of(history, "bob")
    memories[0], memories[1] = memories[1], memories[0]
    assert counted(check(with_store(history, "bob", memories))) == {"swapped": 1}


def test_a_resurrected_memory_is_found_and_a_doubtful_deletion_is_not_a_violation() -> None:
    history = sound()
    forgotten = next(entry for entry in history.journal if entry.event_id in history.deleted)
    back = Stored(forgotten.user_id, forgotten.event_id, forgotten.user_id, forgotten.seq)
    resurrected = with_store(history, forgotten.user_id, [back, *memories_of(history, forgotten.user_id)])
    found = counted(check(resurrected))
    assert found["resurrected"] == 1
    doubtful = replace(resurrected, doubtful=history.deleted, deleted=history.deleted - {forgotten.event_id})
    assert "resurrected" not in counted(check(doubtful))


def test_a_memory_in_another_users_store_is_found() -> None:
    history = sound()
    stray = memories_of(history, "bob")[-1]
    mixed = with_store(history, "alice", [*memories_of(history, "alice"), stray._replace(user_id="alice")])
    assert "foreign" in counted(check(mixed))


def test_a_memory_that_was_never_published_is_found() -> None:
    history = sound()
    invented = Stored("alice", "invented", "alice", 50)
    assert counted(check(with_store(history, "alice", [*memories_of(history, "alice"), invented])))["foreign"] == 1


@pytest.mark.parametrize("side", ["in_vectors", "in_words"])
def test_an_index_that_holds_more_or_less_than_the_records_is_found(side: str) -> None:
    history = sound()
    assert history.stores is not None
    store = history.stores["alice"]
    for rows in (frozenset(list(store.in_words)[1:]), store.in_words | {77}):
        changed = replace(store, **{side: rows})
        assert counted(check(replace(history, stores={**history.stores, "alice": changed}))) == {"disagreeing": 1}


def test_an_ingested_event_is_due_even_before_the_cursor_was_written() -> None:
    history = replace(sound(), handled=0)
    fewer = with_store(history, "bob", memories_of(history, "bob")[:-1])
    assert check(fewer) == []
    assert counted(check(replace(fewer, taken_in=frozenset({"p1-0011", "p0-0010"})))) == {"lost": 1}


def test_the_table_of_faults_puts_kinds_side_by_side_and_sums_them() -> None:
    figures = Figures()
    figures.kills.update({"relay, at random": 1_200, "relay, at the N-th call": 3, "owner, at random": 4})
    figures.broken["lost"] = 1
    table = figures.table()
    assert "| kills | at random | at the N-th call |" in table
    assert "| relay | 1,200 | 3 |" in table
    assert "| owner | 4 |  |" in table
    assert "| in all 1,207 | 1,204 | 3 |" in table
    assert "| lost | 1 |" in table
    assert "faults" not in table
