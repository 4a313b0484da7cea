"""One user's memory from opening to closing: remember, get, forget, statistics, and ownership of the folder."""

from __future__ import annotations

import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import structlog
from memory_samples import NOW, START, SUBJECTS, message, texts

import memory_agent
from memory_agent.embedders import Embedder
from memory_agent.errors import InvalidInputError, StoreError, StoreOwnedElsewhereError
from memory_agent.memory import Memory
from memory_agent.settings import EmbedderSettings, IngestSettings, Settings


def test_a_memory_needs_only_a_folder(tmp_path: Path, model_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMORY_AGENT_MODEL_CACHE", str(model_cache))
    with memory_agent.Memory.open(str(tmp_path / "data" / "alice")) as memory:
        memory.ingest([message(0), message(3)], now=NOW)
        result = memory.recall("baking bread", top_k=1)
        assert texts(result) == [f"{SUBJECTS[3]}, part 3"]
        assert result.degraded == ()
        assert memory.user_id == "alice"


def test_a_memory_is_found_by_its_title_and_tags_in_vector_search(memory: Memory) -> None:
    for number in range(5):
        memory.remember(f"Agreed with the others, part {number}.", title=f"Meeting {number}")
    titled = memory.remember("Agreed with the others.", title="Firing the pottery kiln", tags=["olive wood"])
    assert (
        memory.recall("How hot does the ceramics oven get?", mode="vector", min_relevance=0).memories[0].record.id
        == titled.id
    )


def test_a_remembered_memory_keeps_all_its_fields(memory: Memory) -> None:
    record = memory.remember(
        "The staging database is read-only on Sundays",
        "pattern",
        "worker_result",
        ["ops", "ops", "db"],
        title="Staging",
        provenance="verified",
        metadata={"by": "bob", "n": [1, {"a": None}]},
        session_id="s-9",
        type="note",
        phase="rollout",
        run_id="run-3",
        channel_id="ops",
        agent_id="planner",
        timestamp=NOW - timedelta(days=3),
        quality_score=1,
        now=NOW,
    )
    assert memory.get([record.id]) == [record]
    assert (record.tags, record.timestamp, record.event_id) == (("ops", "db"), NOW - timedelta(days=3), None)
    assert (record.type, record.phase, record.run_id) == ("note", "rollout", "run-3")
    assert (record.channel_id, record.agent_id, record.quality_score) == ("ops", "planner", 1.0)
    assert record.updated_at is None
    assert texts(memory.recall("when can I not write to staging?", filter={"tags": ["db"]})) == [record.text]
    assert memory.stats().events_kept == 0


def test_a_cached_memory_keeps_the_provenance_of_its_original(memory: Memory, tmp_path: Path) -> None:
    record = memory.remember("The queue holds 100 jobs", provenance="cached:verified", id="queue", now=NOW)
    assert (record.provenance, record.cached_from, record.stated_provenance) == (
        "cached",
        "verified",
        "cached:verified",
    )
    found = memory.recall("how many jobs does the queue hold?", context_tokens=200)
    assert "provenance: cached:verified" in (found.context or "")
    memory.close()
    with Memory.open(tmp_path / "alice") as again:
        assert again.get(["queue"])[0].cached_from == "verified"
        again.remember("The queue holds 100 jobs", provenance="cached", id="queue")
        assert again.get(["queue"])[0].stated_provenance == "cached"
        for stated in ("cached:cached", "verified:cached", "cached:", "CACHED"):
            with pytest.raises(InvalidInputError, match="provenance: must be one of"):
                again.remember("x", provenance=stated)  # type: ignore[arg-type]


def test_stats_for_a_scope_count_the_memories_that_a_filter_finds(memory: Memory) -> None:
    for number, channel in enumerate(("shop", "shop", "web", None)):
        memory.remember(
            f"{SUBJECTS[number]}", ("finding", "episode")[number % 2], channel_id=channel, timestamp=START, now=NOW
        )
    memory.remember(SUBJECTS[5], channel_id="web", agent_id="planner", id="planned", timestamp=NOW, now=NOW)
    shop, project = memory.stats({"channel_id": "shop"}), memory.stats({"in_channel": "web"})
    assert (shop.memories, shop.by_kind, shop.oldest, shop.newest) == (2, {"episode": 1, "finding": 1}, START, START)
    assert (project.memories, project.newest) == (3, NOW)
    assert memory.stats({"agent_id": "planner", "exclude": {"records": ["planned"]}}).memories == 0
    whole = memory.stats()
    assert shop.disk_bytes == whole.disk_bytes > 0
    for one in (memory.stats({"kinds": ["finding", "episode"]}), memory.stats({})):
        assert one == whole


def test_stats_for_a_scope_count_memories_without_a_vector(tmp_path: Path, embedder: Embedder) -> None:
    no_model = Settings(embedder=EmbedderSettings(folder="none", allow_download=False))
    with Memory.open(tmp_path / "alice", settings=no_model) as memory:
        memory.remember(SUBJECTS[0], session_id="s-1")
        assert (memory.stats({"session_id": "s-1"}).without_vector, memory.stats().ndim) == (1, None)
    with Memory.open(tmp_path / "alice", embedder=embedder) as memory:
        memory.remember(SUBJECTS[1], session_id="s-2")
        first, second = (memory.stats({"session_id": session}) for session in ("s-1", "s-2"))
        assert [(one.memories, one.without_vector, one.waiting) for one in (first, second)] == [(1, 1, 1), (1, 0, 0)]
        assert second.ndim == embedder.info.ndim


def test_stats_report_when_the_store_was_created_and_its_columns_were_built(tmp_path: Path, embedder: Embedder) -> None:
    began = datetime.now(UTC) - timedelta(milliseconds=1)  # the store records its creation time in milliseconds
    with Memory.open(tmp_path / "alice", embedder=embedder) as memory:
        memory.remember(SUBJECTS[0])
        first = memory.stats()
    with Memory.open(tmp_path / "alice", embedder=embedder) as memory:
        again = memory.stats()
        memory.care.rebuild()
        rebuilt = memory.stats()
    assert first.created_at is not None
    assert first.rebuilt_at is not None
    assert rebuilt.rebuilt_at is not None
    assert (again.created_at, again.rebuilt_at) == (first.created_at, first.rebuilt_at)
    assert began <= first.created_at
    assert began <= first.rebuilt_at < rebuilt.rebuilt_at
    assert (rebuilt.created_at, rebuilt.schema_version) == (first.created_at, 2)


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"a": value}
    return value


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"text": " "}, "text"),
        ({"text": 3}, "text"),
        ({"text": "a\ud800"}, "text"),
        ({"text": "x" * (IngestSettings().max_text_chars + 1)}, "text"),
        ({"kind": "novel"}, "kind"),
        ({"source": "rumour"}, "source"),
        ({"provenance": "maybe"}, "provenance"),
        ({"tags": "ops"}, "tags"),
        ({"tags": [1]}, "tags"),
        ({"title": 3}, "title"),
        ({"title": "x" * 1_001}, "title"),
        ({"tags": ["x" * 201]}, "tags"),
        ({"tags": [str(number) for number in range(101)]}, "tags"),
        ({"session_id": "\ud800"}, "session_id"),
        ({"session_id": "x" * 201}, "session_id"),
        ({"metadata": {"a": object()}}, "metadata"),
        ({"metadata": {"a": 1 << 70}}, "metadata"),
        ({"metadata": [1]}, "metadata"),
        ({"metadata": {"a": float("nan")}}, "metadata.a"),
        ({"metadata": {"a": ["\ud800"]}}, "metadata.a[0]"),
        ({"metadata": {"a": list(range(10_001))}}, "metadata"),
        ({"metadata": nested(65)}, "metadata.a.a"),
        ({"metadata": nested(100_000)}, "metadata.a.a"),
        ({"id": ""}, "id"),
        ({"id": "\ud800"}, "id"),
        ({"id": "x" * 201}, "id"),
        ({"id": "a\0b"}, "id"),
        ({"id": 7}, "id"),
        ({"type": "\ud800"}, "type"),
        ({"phase": ["plan"]}, "phase"),
        ({"run_id": "x" * 100_000}, "run_id"),
        ({"channel_id": 7}, "channel_id"),
        ({"agent_id": "\x1b[31m"}, "agent_id"),
        ({"quality_score": float("nan")}, "quality_score"),
        ({"quality_score": True}, "quality_score"),
        ({"timestamp": "2026-02-16"}, "timestamp"),
        ({"timestamp": datetime(2026, 1, 1)}, "timestamp"),  # noqa: DTZ001
        ({"timestamp": datetime(1969, 1, 1, tzinfo=UTC)}, "timestamp"),
        ({"timestamp": datetime.max.replace(tzinfo=UTC)}, "timestamp"),
        ({"now": datetime(2026, 1, 1)}, "now"),  # noqa: DTZ001
    ],
)
def test_invalid_memories_are_refused_with_the_fields_name(
    memory: Memory, arguments: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidInputError) as caught:
        memory.remember(**({"text": "Something"} | arguments))
    assert caught.value.field.startswith(field)
    assert memory.stats().memories == 0


def test_a_value_that_json_cannot_hold_is_named_with_its_type(memory: Memory) -> None:
    with pytest.raises(InvalidInputError) as caught:
        memory.remember("Something", metadata={"a": [object()]})
    assert str(caught.value) == "metadata.a[0]: cannot be stored as JSON (object)"


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("topk", "topk: recall has no such option; did you mean top_k?"),
        ("reference", "reference: recall has no such option; did you mean reference_time?"),
        ("kinds", "kinds: recall has no such option; it is a field of the filter"),
        ("zzz", "zzz: recall has no such option"),
    ],
)
def test_an_unknown_option_of_recall_is_refused_with_a_suggestion(memory: Memory, option: str, message: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        memory.recall("Something", **{option: 1})  # type: ignore[arg-type]
    assert str(caught.value) == message


def test_feedback_on_an_unknown_recall_explains_the_possible_causes(memory: Memory) -> None:
    with pytest.raises(InvalidInputError) as caught:
        memory.feedback("01JM0000000000000000000000", quality=1.0)
    assert str(caught.value) == "recall_id: unknown recall or run: mistyped, or too old to be credited"


def test_forgotten_memories_leave_store_and_indexes_permanently(tmp_path: Path, embedder: Embedder) -> None:
    events = [message(number) for number in range(16)]
    with Memory.open(tmp_path / "a", embedder=embedder) as memory:
        memory.ingest(events, seqs=range(1, 17), now=NOW)
        gone = [found.record.id for found in memory.recall("sourdough", mode="lexical").memories]
        assert len(gone) == 2
        assert memory.forget([*gone, gone[0], "01JM0000000000000000000000", ""]) == 2
        assert memory.forget(gone) == 0
    for _ in range(2):
        with Memory.open(tmp_path / "a", embedder=embedder) as memory:
            assert memory.ingest(events, now=NOW).duplicates == 16
            assert memory.get(gone) == []
            assert memory.recall("sourdough", mode="lexical").memories == ()
            everything = memory.recall("sourdough", top_k=100, min_relevance=0)
            assert len(everything.memories) == memory.stats().memories == 14
            assert not {found.record.id for found in everything.memories} & {*gone}


@pytest.mark.parametrize("ids", ["01JM", [3], ["\ud800"]])
def test_invalid_ids_are_refused(memory: Memory, ids: Any) -> None:
    with pytest.raises(InvalidInputError, match="ids"):
        memory.forget(ids)


def test_the_statistics_add_up(memory: Memory) -> None:
    empty = memory.stats()
    assert (empty.memories, empty.oldest, empty.newest, empty.by_kind) == (0, None, None, {})
    memory.ingest([message(0), message(5), message(0), message(6, "no"), message(7, event_type="x.y")], now=NOW)
    memory.remember("Stated outright", now=NOW)
    stats = memory.stats()
    assert (stats.memories, stats.by_kind, stats.without_vector) == (3, {"episode": 2, "finding": 1}, 0)
    assert (stats.events_kept, stats.events_duplicate) == (2, 1)
    assert stats.events_dropped == {"not_high_signal": 1, "too_short": 1}
    assert (stats.oldest, stats.newest, stats.index) == (START, NOW, "exact")
    assert stats.model is not None
    assert "all-MiniLM-L6-v2" in stats.model
    assert stats.disk_bytes > 0


def test_the_statistics_are_the_same_after_a_rebuild(memory: Memory) -> None:
    memory.ingest([message(0), message(1)], now=NOW)
    memory._archive._start_rebuild(from_records=True)
    assert memory.stats().by_kind == {"episode": 2}


def test_an_empty_path_is_not_the_current_folder() -> None:
    with pytest.raises(InvalidInputError, match="path"):
        Memory.open("")


def test_a_folder_has_one_owner(tmp_path: Path, memory: Memory, embedder: Embedder) -> None:
    with pytest.raises(StoreOwnedElsewhereError):
        Memory.open(tmp_path / "alice", embedder=embedder)


def test_closing_is_idempotent_and_a_closed_memory_raises(tmp_path: Path, embedder: Embedder) -> None:
    memory = Memory.open(tmp_path / "a", embedder=embedder)
    memory.close()
    memory.close()
    memory.abandon()
    for use in (lambda: memory.recall("x"), lambda: memory.ingest([]), memory.stats, lambda: memory.forget([])):
        with pytest.raises(StoreError, match="closed"):
            use()
    assert embedder.embed_query("the caller's embedder is still open").shape == (384,)


class HeldEvent(dict[str, Any]):
    """An event that signals when it is read, and blocks until it is released."""

    def __init__(self, fields: dict[str, Any]) -> None:
        super().__init__(fields)
        self.reading, self.released = threading.Event(), threading.Event()

    def get(self, *arguments: Any) -> Any:
        self.reading.set()
        assert self.released.wait(30)
        return super().get(*arguments)


def use_until_refused(memory: Memory) -> None:
    for _ in range(100_000):
        memory.get(["01JM"])


def test_closing_waits_for_running_calls(tmp_path: Path, embedder: Embedder) -> None:
    memory = Memory.open(tmp_path / "a", embedder=embedder)
    event = HeldEvent(message(0))
    kept: list[int] = []
    ingesting = threading.Thread(target=lambda: kept.append(memory.ingest([event], now=NOW).kept))
    ingesting.start()
    assert event.reading.wait(30)
    closing = threading.Thread(target=memory.close)
    closing.start()
    with pytest.raises(StoreError, match="closed"):
        use_until_refused(memory)
    assert closing.is_alive()
    event.released.set()
    ingesting.join()
    closing.join()
    assert kept == [1]
    with Memory.open(tmp_path / "a", embedder=embedder) as again:
        assert again.stats().memories == 1


def test_an_abandoned_memory_loses_nothing_committed(tmp_path: Path, embedder: Embedder) -> None:
    memory = Memory.open(tmp_path / "a", embedder=embedder)
    memory.ingest([message(number) for number in range(8)], now=NOW)
    memory.abandon()
    with Memory.open(tmp_path / "a", embedder=embedder) as again:
        assert len(again.recall("sourdough", top_k=10, min_relevance=0).memories) == 8


def test_nothing_is_printed_unless_an_entry_point_asked_for_it(
    tmp_path: Path, embedder: Embedder, capfd: pytest.CaptureFixture[str]
) -> None:
    with Memory.open(tmp_path / "a", embedder=embedder) as memory:
        memory.ingest([message(0)], now=NOW)
        memory.recall("auth")
    assert capfd.readouterr() == ("", "")


def test_the_log_has_one_line_per_call_and_no_text_of_memories(memory: Memory) -> None:
    with structlog.testing.capture_logs() as lines:
        structlog.configure()
        memory.ingest([message(0, "a very secret text"), message(1, "hm")], now=NOW)
        memory.recall("secret question", top_k=1)
    assert [line["event"] for line in lines] == ["ingest.committed", "recall.answered"]
    assert lines[0]["kept"] == lines[0]["dropped"] == lines[1]["memories"] == 1
    assert "secret" not in str(lines)


def test_the_public_names_of_the_package_can_be_imported() -> None:
    assert all(getattr(memory_agent, name).__name__ == name for name in memory_agent.__all__)
    with pytest.raises(AttributeError, match="Nemory"):
        memory_agent.Nemory  # noqa: B018


@pytest.mark.parametrize("first", ["memory_agent.storage.vector_table", "memory_agent.embedders.minilm"])
def test_both_engines_work_in_one_process_in_either_import_order(first: str) -> None:
    program = f"import {first}, memory_agent.storage.vector_table, memory_agent.embedders.minilm; print('alive')"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout.strip()) == (0, "alive"), result.stderr


def test_the_limits_of_the_settings_apply(tmp_path: Path, embedder: Embedder) -> None:
    with Memory.open(tmp_path / "a", embedder=embedder, ingest_settings=IngestSettings(min_text_chars=30)) as memory:
        report = memory.ingest([message(0, "Less than thirty characters"), message(1)], now=NOW)
        assert (report.kept, report.dropped) == (1, {"too_short": 1})
