"""Test retention by age and size: deletions are reported, and overtake the slowest consumer only if allowed to."""

from __future__ import annotations

from pathlib import Path

from relays import NOW, event, later

from relay import Appended, Journal, JournalSettings

DAY_S = 86_400.0


def fill(journal: Journal, count: int = 10) -> None:
    """Append `count` events of about 1 KB, one per hour."""
    for number in range(count):
        journal.append([event(number, payload={"text": "x" * 1_000})], later(number * 3_600))


def test_without_settings_nothing_is_ever_deleted(journal: Journal) -> None:
    fill(journal)
    assert journal.retain(later(1_000 * DAY_S)).deleted == 0


def test_entries_beyond_the_age_are_deleted(tmp_path: Path) -> None:
    with Journal.open(tmp_path, JournalSettings(retention_age_s=3_600)) as journal:
        fill(journal)
        report = journal.retain(later(9 * 3_600))
        assert (report.deleted, report.first_seq, report.held_by) == (8, 9, None)
        assert [entry.seq for entry in journal.read(0, 10)] == [9, 10]
        assert [entry.seq for entry in journal.read(0, 10, user_id="alice")] == [9, 10]


def test_the_oldest_entries_are_deleted_down_to_the_size(tmp_path: Path) -> None:
    with Journal.open(tmp_path, JournalSettings(retention_bytes=4_000)) as journal:
        fill(journal)
        report = journal.retain(NOW)
        assert report.deleted == 7
        assert report.deleted_bytes > 7_000
        assert journal.stats().event_bytes <= 4_000


def test_retention_stops_at_the_slowest_consumer_and_names_it(tmp_path: Path) -> None:
    with Journal.open(tmp_path, JournalSettings(retention_age_s=1)) as journal:
        fill(journal)
        journal.commit("fast", 9)
        journal.commit("slow", 3)
        report = journal.retain(later(DAY_S))
        assert (report.deleted, report.held_by, report.first_seq) == (3, "slow", 4)
        assert journal.retain(later(DAY_S)).held_by == "slow"
        journal.commit("slow", 10)
        report = journal.retain(later(DAY_S))
        assert (report.deleted, report.held_by) == (6, "fast")


def test_a_consumer_that_was_only_registered_holds_everything(tmp_path: Path) -> None:
    with Journal.open(tmp_path, JournalSettings(retention_age_s=1)) as journal:
        fill(journal)
        journal.commit("new", 0)
        assert journal.retain(later(DAY_S)).deleted == 0
        journal.remove_consumer("new")
        assert journal.retain(later(DAY_S)).deleted == 10


def test_retention_may_ignore_consumers_and_names_those_it_passed(tmp_path: Path) -> None:
    settings = JournalSettings(retention_age_s=1, retention_ignores_consumers=True)
    with Journal.open(tmp_path, settings) as journal:
        fill(journal)
        journal.commit("slow", 3)
        report = journal.retain(later(DAY_S))
        assert (report.deleted, report.held_by, report.passed) == (10, None, {"slow": 7})
        assert journal.fetch(journal.cursor("slow"), 10).first_seq == 11
        assert journal.retain(later(DAY_S)).passed == {}


def test_numbers_continue_after_everything_was_deleted(tmp_path: Path) -> None:
    with Journal.open(tmp_path, JournalSettings(retention_age_s=1)) as journal:
        fill(journal)
        journal.retain(later(DAY_S))
    with Journal.open(tmp_path) as journal:
        assert (journal.first_seq, journal.last_seq) == (11, 10)
        assert journal.append([event(99)], NOW) == [Appended(11, False)]


def test_a_repeat_of_a_deleted_event_is_recognised_until_the_horizon(tmp_path: Path) -> None:
    settings = JournalSettings(retention_age_s=60, repeat_horizon_s=DAY_S)
    with Journal.open(tmp_path, settings) as journal:
        journal.append([event(1)], NOW)
        assert journal.retain(later(3_600)).deleted == 1
        assert journal.append([event(1)], later(3_600)) == [Appended(1, True)]
        journal.retain(later(DAY_S - 1))
        assert journal.append([event(1)], later(DAY_S - 1)) == [Appended(1, True)]
        journal.retain(later(DAY_S))
        assert journal.append([event(1)], later(DAY_S)) == [Appended(2, False)]


def test_many_events_are_deleted_in_several_transactions(tmp_path: Path) -> None:
    with Journal.open(tmp_path, JournalSettings(retention_age_s=1, repeat_horizon_s=0)) as journal:
        journal.append([event(number) for number in range(2_500)], NOW)
        assert journal.retain(later(DAY_S)).deleted == 2_500
        stats = journal.stats()
        assert (stats.entries, stats.event_bytes, stats.first_seq) == (0, 0, 2_501)


def test_room_of_deleted_events_is_used_again(tmp_path: Path) -> None:
    settings = JournalSettings(map_size_bytes=4 << 20, retention_age_s=1, repeat_horizon_s=0)
    with Journal.open(tmp_path, settings) as journal:
        for turn in range(20):
            journal.append([event(turn * 100 + n, payload={"text": "x" * 5_000}) for n in range(100)], NOW)
            journal.retain(later(DAY_S))
        assert journal.last_seq == 2_000
