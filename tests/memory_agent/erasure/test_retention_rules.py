"""Test that memories expire and stores are scanned on time, and that expired memories are erased from every file."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from forks import forking, serve
from test_erasure import SECRET, files_with

from memory_agent.embedders import Embedder
from memory_agent.erasure import eraser
from memory_agent.erasure.logs import INTENT_FILE, read_intent
from memory_agent.erasure.retention import RETENTION_FILE, RetentionRules, is_due_while_closed
from memory_agent.errors import InvalidInputError, SettingsError
from memory_agent.memory import Memory
from memory_agent.settings import RetentionRule, RetentionSettings, load_settings
from memory_agent.signals import SignalTable
from memory_agent.storage.folders import user_folder

NOW = datetime(2026, 11, 22, 9, 0, tzinfo=UTC)
DAY_S = 86_400.0
DAY = timedelta(days=1)
PROGRESS = RetentionRule(name="progress", signals=("task-progress",), age_s=30 * DAY_S)
USUAL = RetentionSettings(rules=(PROGRESS,), interval_s=DAY_S)


def rules(*given: RetentionRule, interval_s: float = DAY_S) -> RetentionSettings:
    return RetentionSettings(rules=given, interval_s=interval_s)


def told(number: int, age: timedelta, event_type: str = "worker.task.progress", text: str = SECRET) -> dict[str, Any]:
    return {
        "event_id": f"told-{number}",
        "event_type": event_type,
        "user_id": "alice",
        "session_id": "s-1",
        "timestamp": NOW - age,
        "payload": {"text": f"{text} step {number} of the migration", "run_id": "run-1"},
    }


def opened(folder: Path, embedder: Embedder, settings: RetentionSettings | None = None, **more: Any) -> Memory:
    return Memory.open(folder, user_id="alice", embedder=embedder, retention_settings=settings, **{"now": NOW} | more)


def filled(folder: Path, embedder: Embedder, *events: dict[str, Any]) -> None:
    with opened(folder, embedder) as memory:
        assert memory.ingest(events, now=NOW).kept == len(events)


def ages_of(memory: Memory) -> list[int]:
    return sorted((NOW - record.timestamp).days for _, record in memory._archive.store.scan())


def test_expired_text_is_in_no_byte_of_any_file_after_opening(tmp_path: Path, embedder: Embedder) -> None:
    filled(tmp_path, embedder, told(1, 31 * DAY), told(2, 90 * DAY), told(3, 2 * DAY, text="harmless"))
    with opened(tmp_path, embedder, USUAL) as memory:
        assert ages_of(memory) == [2]
        assert files_with(SECRET, tmp_path) == []
        assert memory.recall(SECRET, mode="lexical").memories == ()
        assert memory.stats().expired == {"progress": 2}
        assert memory.ingest([told(1, 31 * DAY)], now=NOW).duplicates == 1
    assert not (tmp_path / INTENT_FILE).exists()


def test_nothing_expires_without_a_rule(tmp_path: Path, embedder: Embedder) -> None:
    filled(tmp_path, embedder, told(1, 4_000 * DAY))
    with opened(tmp_path, embedder) as memory:
        assert memory.erasure.age(NOW) == 0
        assert memory.erasure.erase_expired(now=NOW).memories == 0
        assert memory.stats().memories == 1
    assert not (tmp_path / RETENTION_FILE).exists()


def test_a_memory_expires_exactly_at_its_age(tmp_path: Path, embedder: Embedder) -> None:
    filled(tmp_path, embedder, told(1, 30 * DAY))
    just = timedelta(microseconds=1)
    with opened(tmp_path, embedder, USUAL, now=NOW - just) as memory:
        assert memory.erasure.erase_expired(now=NOW - just, dry_run=True).memories == 0
        assert memory.erasure.erase_expired(now=NOW, dry_run=True).memories == 1
        assert memory.erasure.age(NOW) == 1
        assert memory.stats().memories == 0


def test_age_counts_from_the_timestamp_and_not_from_ingestion(tmp_path: Path, embedder: Embedder) -> None:
    with opened(tmp_path, embedder, USUAL) as memory:
        memory.ingest([told(1, 40 * DAY)], now=NOW)
        assert memory.erasure.age(NOW) == 1


CASES = [
    (RetentionRule(name="x", kinds=("finding",), age_s=1.0), ["found"]),
    (RetentionRule(name="x", sources=("worker_result",), age_s=1.0), ["found", "progress"]),
    (RetentionRule(name="x", sources=("worker_result",), kinds=("episode",), age_s=1.0), ["progress"]),
    (RetentionRule(name="x", events=("worker.*",), age_s=1.0), ["found", "progress"]),
    (RetentionRule(name="x", events=("worker.task.progress",), age_s=1.0), ["progress"]),
    (RetentionRule(name="x", signals=("user-message", "report"), age_s=1.0), ["found", "said"]),
    (RetentionRule(name="x", signals=("report",), events=("chat.*",), age_s=1.0), []),
    (RetentionRule(name="x", tags=("draft", "scrap"), age_s=1.0), ["noted"]),
    (RetentionRule(name="x", events=("*",), age_s=1.0), ["found", "progress", "said"]),
    (RetentionRule(name="x", age_s=1.0), ["found", "noted", "progress", "said"]),
]


@pytest.mark.parametrize(("rule", "gone"), CASES)
def test_a_rule_matches_when_all_its_conditions_hold(
    rule: RetentionRule, gone: list[str], tmp_path: Path, embedder: Embedder
) -> None:
    with opened(tmp_path, embedder, rules(rule)) as memory:
        memory.remember("noted: the gateway wants a proxy", kind="pattern", tags=["draft"], now=NOW - DAY)
        memory.ingest(
            [
                told(1, DAY, "worker.task.progress", "progress"),
                told(2, DAY, "worker.report.received", "found"),
                told(3, DAY, "chat.user_msg", "said"),
            ],
            now=NOW,
        )
        planned = memory.erasure.erase_expired(now=NOW, dry_run=True)
        before = {record.id: record.text.split()[0].strip(":") for _, record in memory._archive.store.scan()}
        assert memory.erasure.erase_expired(now=NOW).ids_sha256 == planned.ids_sha256
        left = {record.id for _, record in memory._archive.store.scan()}
        assert sorted({text for id_, text in before.items() if id_ not in left}) == gone


def test_the_first_matching_rule_applies_and_one_without_age_never_expires(tmp_path: Path, embedder: Embedder) -> None:
    kept = RetentionRule(name="kept", events=("chat.*",))
    short = RetentionRule(name="short", signals=("task-progress",), age_s=DAY_S)
    rest = RetentionRule(name="rest", age_s=10 * DAY_S)
    events = [
        told(1, 5 * DAY),
        told(2, 50 * DAY, "chat.user_msg"),
        told(3, 5 * DAY, "conductor.worker.result"),
        told(4, 11 * DAY, "conductor.worker.result"),
    ]
    with opened(tmp_path, embedder, rules(kept, short, rest)) as memory:
        memory.ingest(events, now=NOW)
        receipt = memory.erasure.erase_expired(now=NOW)
        assert receipt.by_rule == {"short": 1, "rest": 1}
        assert ages_of(memory) == [5, 50]
        assert memory.stats().expired == {"short": 1, "rest": 1}


def test_a_dry_run_counts_by_rule_and_changes_nothing(tmp_path: Path, embedder: Embedder) -> None:
    filled(tmp_path, embedder, told(1, 31 * DAY), told(2, 90 * DAY), told(3, DAY))
    with opened(tmp_path, embedder, USUAL, now=NOW - 80 * DAY) as memory:
        before = files_and_bytes(tmp_path)
        planned = memory.erasure.erase_expired(now=NOW, dry_run=True)
        assert (planned.by_rule, planned.memories, planned.complete) == ({"progress": 2}, 2, False)
        assert files_and_bytes(tmp_path) == before
        assert memory.erasure.age(NOW) == 2  # the dry run did not count as a scan


def files_and_bytes(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.rglob("*") if file.is_file() and file.name != "lock.mdb"}


def test_selecting_expired_memories_excludes_other_selections(tmp_path: Path, embedder: Embedder) -> None:
    from memory_agent.erasure.request import Selection

    with pytest.raises(InvalidInputError):
        Selection(expired=True, session_id="s-1").check()
    Selection(expired=True).check()


def test_a_store_is_scanned_at_most_once_per_interval(tmp_path: Path, embedder: Embedder) -> None:
    with opened(tmp_path, embedder, USUAL) as memory:
        memory.ingest([told(1, 40 * DAY), told(2, 29.5 * DAY)], now=NOW)
        assert memory.erasure.age(NOW) == 1
        assert memory.erasure.age(NOW + 0.9 * DAY) == 0  # the second memory has expired by now
        assert memory.erasure.age(NOW + DAY) == 1
        memory.ingest([told(3, 60 * DAY)], now=NOW)
        assert memory.erasure.age(NOW - 5 * DAY) == 1  # the clock was reset


def test_a_store_with_more_expired_than_the_limit_is_due_at_once(tmp_path: Path, embedder: Embedder) -> None:
    with opened(tmp_path, embedder, USUAL) as memory:
        memory.ingest([told(number, 40 * DAY) for number in range(5)], now=NOW)
        assert [memory.erasure.age(NOW, 2) for _ in range(4)] == [2, 2, 1, 0]


def test_a_host_scans_a_large_memory_only_after_waking(
    tmp_path: Path, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eraser, "_EXPIRED_AT_OPENING", 2)
    monkeypatch.setattr(eraser, "_SCANNED_AT_OPENING", 4)
    filled(tmp_path, embedder, *(told(number, 40 * DAY) for number in range(5)))
    with opened(tmp_path, embedder, USUAL, role="host") as memory:
        assert memory.stats().memories == 5
        assert memory.erasure.age(NOW, 3) == 3
    with opened(tmp_path, embedder, rules(PROGRESS, interval_s=1.0), role="host") as memory:
        assert memory.stats().memories == 0


def due(folder: Path, days: float, settings: RetentionSettings = USUAL) -> bool:
    """Return whether a closed memory will be due for a scan after this many days."""
    return is_due_while_closed(
        folder, RetentionRules(settings, SignalTable.load()), settings.interval_s, NOW + days * DAY
    )


def test_a_closed_memory_is_due_when_something_expires(tmp_path: Path, embedder: Embedder) -> None:
    assert not due(tmp_path, 0)  # this user does not exist
    with opened(tmp_path, embedder, USUAL) as memory:
        memory.ingest([told(1, 20 * DAY), told(2, 10 * DAY)], now=NOW)
        memory.erasure.age(NOW)
    assert [due(tmp_path, days) for days in (0, 9.99, 10, 400)] == [False, False, True, True]
    with opened(tmp_path, embedder, USUAL, now=NOW + 10 * DAY) as memory:
        assert memory.stats().memories == 1
    assert [due(tmp_path, days) for days in (10, 19.99, 20)] == [False, False, True]
    with opened(tmp_path, embedder, USUAL, now=NOW + 21 * DAY) as memory:
        assert memory.stats().memories == 0
    assert not due(tmp_path, 4_000)


def test_changed_rules_and_other_writers_make_a_user_due(tmp_path: Path, embedder: Embedder) -> None:
    with opened(tmp_path, embedder, USUAL) as memory:
        memory.ingest([told(1, DAY)], now=NOW)
    assert not due(tmp_path, 0)
    longer = rules(msgspec.structs.replace(PROGRESS, age_s=60 * DAY_S))
    assert due(tmp_path, 0, longer)
    assert not due(tmp_path, 0, rules())
    with opened(tmp_path, embedder) as memory:  # this process has no rules and saves no schedule
        memory.ingest([told(2, 50 * DAY)], now=NOW)
    assert due(tmp_path, 0)
    with opened(tmp_path, embedder, USUAL) as memory:
        assert memory.stats().memories == 1
    assert not due(tmp_path, 0)
    (tmp_path / RETENTION_FILE).write_bytes(b"{")
    assert due(tmp_path, 0)


@pytest.fixture(scope="module")
def run_here() -> Iterator[Callable[..., int]]:
    """Return a function that runs `age_until_killed` in another process, and returns the exit status."""
    with forking(__file__) as run:
        yield run


def test_a_memory_is_due_after_its_process_was_killed(
    tmp_path: Path, embedder: Embedder, run_here: Callable[..., int]
) -> None:
    with opened(tmp_path, embedder, USUAL) as memory:
        memory.ingest([told(1, DAY)], now=NOW)
    assert not due(tmp_path, 0)
    run_here(tmp_path, "open")
    assert due(tmp_path, 0)


@pytest.mark.parametrize("step", ["write_intent", "first part", "second part", "purge", "close_intent"])
def test_an_interrupted_expiry_continues(
    step: str, tmp_path: Path, embedder: Embedder, run_here: Callable[..., int]
) -> None:
    filled(tmp_path, embedder, *(told(number, 40 * DAY) for number in range(6)), told(9, DAY, text="harmless"))
    assert run_here(tmp_path, step) == -signal.SIGKILL
    with opened(tmp_path, embedder, USUAL) as memory:
        assert ages_of(memory) == [1]
        assert memory.stats().expired == {"progress": 6}
    assert files_with(SECRET, tmp_path) == []
    assert not (tmp_path / INTENT_FILE).exists()


def test_in_a_daemons_folder_the_journal_part_stays_pending_and_is_reported(tmp_path: Path, embedder: Embedder) -> None:
    folder = user_folder(tmp_path, "alice")
    filled(folder, embedder, told(1, 40 * DAY))
    (tmp_path / "journal").mkdir()
    with opened(folder, embedder, USUAL) as memory:
        assert memory.stats().memories == 0
        left = read_intent(folder)
        assert left is not None
        assert (left.with_journal, left.event_ids, left.all_ids != ()) == (True, ("told-1",), True)
        other = memory.remember("by hand")
        receipt = memory.erasure.erase([other.id])
        assert not receipt.complete
        assert "journal" in (receipt.reason or "")
        assert memory.erasure.carry_out(left, NOW).by_rule == {"progress": 1}
    assert read_intent(folder) is None


def test_invalid_rules_are_reported_by_name() -> None:
    table = SignalTable.load()
    with pytest.raises(SettingsError, match="already the name of a rule"):
        RetentionRules(rules(PROGRESS, PROGRESS), table)
    with pytest.raises(SettingsError, match="no such signal: progres"):
        RetentionRules(rules(RetentionRule(name="x", signals=("progres",))), table)
    text = '[{name = "progress", kinds = ["episode"], age_s = 2592000}]'
    loaded = load_settings(None, {"MEMORY_AGENT_RETENTION__RULES": text}).retention
    assert loaded.rules == (RetentionRule(name="progress", kinds=("episode",), age_s=30 * DAY_S),)
    for wrong in ('[{name = "x", kinds = ["progress"]}]', '[{name = "X"}]', '[{name = "x", age_s = -1}]', "[{}]"):
        with pytest.raises(SettingsError):
            load_settings(None, {"MEMORY_AGENT_RETENTION__RULES": wrong})


def test_an_age_beyond_the_calendar_never_expires() -> None:
    from memory_agent.records.memories import MemoryRecord

    held = RetentionRules(rules(RetentionRule(name="x", age_s=1e10)), SignalTable.load())
    late = datetime(9990, 1, 1, tzinfo=UTC)
    record = MemoryRecord(id="1", text="x", source="user_input", kind="episode", timestamp=late)
    assert held.expiry(record) is None


def age_until_killed(folder: str, step: str) -> None:
    """Open with retention rules, and kill this process immediately before a step or after opening."""

    from memory_agent.erasure import eraser, forgetting
    from memory_agent.erasure.forgetting import Forgetting
    from memory_agent.storage.archive import Archive

    left = {"second part": 1}.get(step, 0)
    remove = Forgetting.remove

    def die(*_: object, **__: object) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)

    def die_later(*arguments: Any) -> int:
        nonlocal left
        left -= 1
        return remove(*arguments) if left >= 0 else die()

    forgetting._AT_ONCE = 3
    if step.endswith("part"):
        Forgetting.remove = die_later  # type: ignore[method-assign]
    elif step == "purge":
        Archive.purge = die  # type: ignore[method-assign]
    elif step != "open":
        setattr(eraser, step, die)
    Memory.open(Path(folder), user_id="alice", retention_settings=USUAL, now=NOW)
    die()


if __name__ == "__main__":
    serve(age_until_killed)
