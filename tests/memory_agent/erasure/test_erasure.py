"""Erased memories leave no bytes in any file, even after a crash."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest
from forks import forking, serve
from memory_samples import START, message

from memory_agent.care import export_lines
from memory_agent.embedders import Embedder
from memory_agent.erasure.logs import (
    INTENT_FILE,
    fingerprint,
    note_erasure,
    note_reimported_ids,
    read_history,
    read_intent,
    write_intent,
)
from memory_agent.erasure.request import Intent, Selection
from memory_agent.errors import InvalidInputError, StoreError
from memory_agent.memory import Memory
from memory_agent.records.memories import Exclusion, MemoryFilter
from memory_agent.settings import EmbedderSettings, Settings, StoreSettings
from memory_agent.storage.archive import Archive

NOW = datetime(2026, 11, 21, 9, 0, tzinfo=UTC)
SECRET = "zanzibarquokka"
OTHER = "The deploy of the billing service failed because of a stale lock"
STEPS = ("write_intent", "forget", "save", "remove_set_aside", "compact", "close_intent")


def files_with(text: str, folder: Path) -> list[str]:
    """Return the files that contain the given text or its stem."""
    words = (text.encode(), text[:-1].encode(), text.encode("utf-16-le"))
    return sorted(
        str(file.relative_to(folder))
        for file in folder.rglob("*")
        if file.is_file() and any(word in file.read_bytes() for word in words)
    )


def fill(memory: Memory, others: int = 150) -> list[str]:
    """Store memories, some of them with secrets; then recall and update them, and use them in runs."""
    ids = []
    for number in range(others):
        memory.remember(f"{OTHER} {number}", session_id="plain")
        if number % 30 == 0:
            ids.append(memory.remember(f"the {SECRET} incident number {number}", title=SECRET, tags=[SECRET]).id)
    memory.ingest(
        [
            {
                "event_type": "user_input",
                "user_id": "alice",
                "event_id": f"e-{number}",
                "session_id": "s-1",
                "payload": {"text": f"investigate {SECRET} number {number} in the cellar"},
            }
            for number in range(3)
        ]
    )
    memory.runs.begin(f"find the {SECRET} in the log", "run-1", "s-1")
    found = memory.recall(SECRET, mode="lexical")
    memory.runs.step("run-1", f"looked at {SECRET} closely", [found.memories[0].record.id])
    memory.runs.end("run-1", "completed", f"found the {SECRET}")
    return ids


def vectors_of(text: str, memory: Memory) -> list[bytes]:
    """Return the stored vectors, additional passages and words of the memories that contain `text`."""
    traces = []
    with memory._archive.store.snapshot() as snapshot:
        for row, record in snapshot.scan():
            if text in record.text:
                vector, passages, words = snapshot.vector(row), snapshot.passages(row), snapshot.words(row)
                assert vector is not None
                assert words is not None
                further = [] if passages is None else list(passages[1])
                traces += [words.bits.tobytes(), *(one.astype("<f2").tobytes() for one in (vector, *further))]
    return traces


def content(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in folder.rglob("*") if file.is_file())


def erase_all(memory: Memory) -> int:
    by_session = memory.erasure.erase(session_id="s-1").memories
    left = [one.record.id for one in memory.recall(SECRET, 100, mode="lexical").memories if SECRET in one.record.text]
    return by_session + memory.erasure.erase(left).memories


def test_erased_text_is_in_no_byte_of_any_file(tmp_path: Path, embedder: Embedder) -> None:
    folder = tmp_path / "alice"
    with Memory.open(folder, embedder=embedder) as memory:
        fill(memory)
        memory.remember(f"{SECRET} " + "hid in one cupboard after the other of the old kitchen " * 60)
        memory._archive._save()
        (folder / "sona.damaged").write_bytes(SECRET.encode())
        assert {"records/data.mdb", "columns.arrays", "sona.damaged"} <= {*files_with(SECRET, folder)}
        traces = vectors_of(SECRET, memory)
        assert all(trace in content(folder) for trace in traces)
        assert erase_all(memory) >= 8
        assert files_with(SECRET, folder) == []
        assert not any(trace in content(folder) for trace in traces)
        assert memory.recall(SECRET, mode="lexical").memories == ()
        assert len(memory.recall("stale lock of the billing service", 5).memories) == 5
    assert files_with(SECRET, folder) == []
    with Memory.open(folder, embedder=embedder) as memory:
        assert memory.stats().memories == 150
        assert (
            memory.ingest(
                [
                    {
                        "event_type": "user_input",
                        "user_id": "alice",
                        "event_id": "e-1",
                        "payload": {"text": f"investigate {SECRET} number 1 in the cellar"},
                    }
                ]
            ).duplicates
            == 1
        )


def test_the_receipt_counts_and_hashes_without_text(tmp_path: Path, embedder: Embedder) -> None:
    with Memory.open(tmp_path / "alice", embedder=embedder) as memory:
        ids = [memory.remember(f"{SECRET} {number}").id for number in range(2)]
        planned = memory.erasure.erase(ids, dry_run=True)
        assert (planned.dry_run, planned.complete, planned.memories) == (True, False, 2)
        assert len(memory.get(ids[:1])) == 1
        receipt = memory.erasure.erase([*ids, "unknown"])
        assert (receipt.memories, receipt.complete, receipt.reason) == (2, True, None)
        assert receipt.ids_sha256 == sha256("".join(f"{one}\n" for one in sorted(ids)).encode()).hexdigest()
        assert not (tmp_path / "alice" / INTENT_FILE).exists()


def test_an_intent_with_a_flipped_bit_is_refused_and_erases_nothing_else(tmp_path: Path, embedder: Embedder) -> None:
    folder = tmp_path / "alice"
    with Memory.open(folder, embedder=embedder) as memory:
        kept = memory.remember(OTHER)
    ledger = folder / INTENT_FILE
    intent = write_intent(folder, Intent(started_at=datetime(2026, 2, 1, tzinfo=UTC), record_ids=(kept.id[:-1] + "~",)))
    whole = ledger.read_bytes()
    for place in range(len(whole)):
        for bit in (1, 0x80):
            ledger.write_bytes(whole[:place] + bytes([whole[place] ^ bit]) + whole[place + 1 :])
            with suppress(StoreError):
                assert read_intent(folder) == intent, place
    ledger.write_bytes(whole[:-20])
    with pytest.raises(StoreError, match=INTENT_FILE):
        Memory.open(folder, embedder=embedder)


def test_a_filter_selects_memories_to_erase(tmp_path: Path, embedder: Embedder) -> None:
    with Memory.open(tmp_path / "alice", embedder=embedder) as memory:
        kept = memory.remember("a finding that stays", kind="finding")
        memory.remember("an episode that goes", kind="episode")
        memory.remember("another episode that goes", kind="episode", tags=["x"])
        assert memory.erasure.erase(filter=MemoryFilter(kinds=("episode",), tags=("x",))).memories == 1
        assert memory.erasure.erase(filter={"kinds": ["episode"]}).memories == 1
        assert len(memory.get([kept.id])) == 1
        for nothing in ({}, {"filter": MemoryFilter()}, {"session_id": " "}, {"filter": {"min_score": 0.5}}):
            with pytest.raises(InvalidInputError):
                memory.erasure.erase(**nothing)  # type: ignore[arg-type]
        with pytest.raises(InvalidInputError, match="everything"):
            memory.erasure.erase(filter={"exclude": {}})


@pytest.mark.parametrize(
    ("scope", "erased"),
    [
        ({"session_id": "s-1"}, "a"),
        ({"channel_id": "shop"}, "ab"),
        ({"agent_id": "planner"}, "bc"),
        ({"in_channel": "shop"}, "abd"),  # a project's memories, and memories without a project
        ({"channel_id": "shop", "agent_id": "planner"}, "b"),
    ],
    ids=str,
)
def test_a_session_channel_agent_or_project_is_erased_with_a_receipt(
    tmp_path: Path, scope: dict[str, str], erased: str
) -> None:
    no_model = Settings(embedder=EmbedderSettings(folder="none", allow_download=False))
    with Memory.open(tmp_path / "alice", settings=no_model) as memory:
        memory.remember(SECRET, id="a", session_id="s-1", channel_id="shop")
        memory.remember(SECRET, id="b", channel_id="shop", agent_id="planner")
        memory.remember(SECRET, id="c", channel_id="web", agent_id="planner")
        memory.remember(SECRET, id="d")
        counted = memory.stats(scope).memories
        planned, receipt = memory.erasure.erase(filter=scope, dry_run=True), memory.erasure.erase(filter=scope)
        assert planned.memories == receipt.memories == counted == len(erased)
        assert receipt.ids_sha256 == sha256("".join(f"{one}\n" for one in erased).encode()).hexdigest()
        assert receipt.complete
        assert {record.id for record in memory.list().records} == set("abcd") - set(erased)


def test_memories_that_a_filter_excludes_are_not_erased(memory: Memory) -> None:
    events = [message(number, session_id=f"s-{number}") for number in range(6)]
    for number, event in enumerate(events):
        event["payload"] |= {"run_id": f"r-{number}"}
    ids = memory.ingest(events, now=NOW).record_ids
    kept = Exclusion(
        events=("event-0",), records=(ids[1],), sessions=("s-2",), runs=("r-3",), since=START + timedelta(minutes=5)
    )
    assert memory.erasure.erase(filter=MemoryFilter(exclude=kept)).memories == 1
    assert [record.id for record in memory.get(ids)] == [*ids[:4], ids[5]]


def test_a_memory_is_excluded_by_each_event_that_leads_to_it(tmp_path: Path, embedder: Embedder) -> None:
    said = {"event_type": "worker.task.progress", "user_id": "alice", "session_id": "s"}
    wanted = MemoryFilter(exclude=Exclusion(events=("repeat",)))
    with Memory.open(tmp_path / "alice", embedder=embedder) as memory:
        for event_id in ("first", "repeat"):
            memory.ingest([said | {"event_id": event_id, "payload": {"text": "indexing the repository"}}], now=NOW)
        (kept,) = memory.list().records
        gone = memory.remember("a note that goes")
        assert [record.id for record in memory.list(wanted).records] == [gone.id]
    lines = [*export_lines(tmp_path / "alice", "alice", StoreSettings(), quiet, filter=wanted)]
    assert [msgspec.json.decode(line)["record"]["id"] for line in lines[1:]] == [gone.id]
    with Memory.open(tmp_path / "alice", embedder=embedder) as memory:
        assert memory.erasure.erase(filter=wanted).memories == 1
        assert [record.id for record in memory.list().records] == [kept.id]


def quiet(*_: object) -> None:
    return None


@pytest.mark.parametrize(
    ("filter", "field"),
    [
        ({"exclude": {"sessions": [""]}}, "filter.exclude.sessions"),
        ({"exclude": {"records": ["", ""], "runs": ["r"]}}, "filter.exclude.records"),
        ({"session_id": "", "kinds": ["finding"]}, "filter.session_id"),
        ({"tags": ["", "deploy"]}, "filter.tags"),
        ({"since": datetime(2020, 1, 1)}, "filter.since"),  # noqa: DTZ001
        ({"exclude": {"since": datetime(2020, 1, 1)}}, "filter.exclude.since"),  # noqa: DTZ001
        ({"min_quality": 70}, "filter.min_quality"),
    ],
)
def test_an_invalid_filter_erases_nothing(memory: Memory, filter: dict[str, Any], field: str) -> None:
    memory.remember("Staging needs the VPN", tags=["deploy"], quality_score=1.0)
    with pytest.raises(InvalidInputError) as caught:
        memory.erasure.erase(filter=filter)
    assert caught.value.field == field
    assert memory.stats().memories == 1


def test_reads_and_writes_continue_while_the_file_is_replaced(tmp_path: Path, embedder: Embedder) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with Memory.open(tmp_path / "alice", embedder=embedder) as memory, ThreadPoolExecutor(3) as pool:
        doomed = [memory.remember(f"{SECRET} {number}").id for number in range(6)]
        writing = pool.submit(lambda: [memory.remember(f"{OTHER} {number}").id for number in range(60)])
        reading = pool.submit(lambda: [memory.recall("stale lock", mode="lexical").degraded for _ in range(60)])
        for one in doomed:
            assert memory.erasure.erase([one]).complete
        assert len(memory.get(writing.result())) == len(writing.result())
        assert len(reading.result()) == 60
    assert files_with(SECRET, tmp_path) == []


@pytest.fixture(scope="module")
def run_here() -> Iterator[Callable[..., int]]:
    """Return a function that runs `erase_until_killed` in another process, and returns the exit status."""
    with forking(__file__) as run:
        yield run


@pytest.mark.parametrize("step", STEPS)
def test_an_erasure_killed_at_any_step_is_completed_by_the_next_process(
    step: str, tmp_path: Path, embedder: Embedder, run_here: Callable[..., int]
) -> None:
    folder = tmp_path / "alice"
    with Memory.open(folder, embedder=embedder) as memory:
        ids = [memory.remember(f"{SECRET} {number}", session_id="s-1").id for number in range(3)]
        memory.remember(OTHER)
    assert run_here(folder, step, ids) == -signal.SIGKILL
    with Memory.open(folder, embedder=embedder) as memory:
        was_begun = step != "write_intent"
        assert memory.stats().memories == (1 if was_begun else 4)
        assert memory.erasure.erase(ids).complete
        assert memory.stats().memories == 1
    assert files_with(SECRET, folder) == []
    assert not (folder / INTENT_FILE).exists()


def erase_until_killed(folder: str, step: str, ids: list[str]) -> None:
    """Erase memories, and kill this process just before the given step."""

    from memory_agent.erasure import logs
    from memory_agent.erasure.forgetting import Forgetting
    from memory_agent.storage import archive
    from memory_agent.storage.store import Store

    def die(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    place: dict[str, tuple[object, str]] = {
        "write_intent": (logs, "write_intent"),
        "forget": (Forgetting, "memories"),
        "save": (archive.derived, "write"),
        "remove_set_aside": (archive.derived, "remove_set_aside"),
        "compact": (Store, "compact"),
        "close_intent": (logs, "close_intent"),
    }
    memory = Memory.open(Path(folder))
    setattr(*place[step], die)
    memory.erasure.erase(ids)


if __name__ == "__main__":
    serve(erase_until_killed)


def told(memory: Memory, count: int) -> list[str]:
    """Ingest events as if from a journal; return the ids of the memories."""
    for number in range(count):
        memory.ingest(
            [
                {
                    "event_type": "user_input",
                    "user_id": "alice",
                    "event_id": f"told-{number}",
                    "payload": {"text": f"{SECRET} number {number}"},
                }
            ]
        )
    return sorted(one.record.id for one in memory.recall(SECRET, count, mode="lexical").memories)


def test_an_erasure_leaves_the_journal_part_of_an_earlier_one_pending(tmp_path: Path, embedder: Embedder) -> None:
    with Memory.open(tmp_path, user_id="alice", embedder=embedder) as memory:
        one, other, plain = told(memory, 3)
        first = memory.erasure.begin(memory.erasure.plan(Selection(ids=(one,)), NOW))
        second = memory.erasure.begin(memory.erasure.plan(Selection(ids=(other,)), NOW))
        assert memory.erasure.carry_out(first, NOW).complete
        left = read_intent(tmp_path)
        assert left is not None
        assert (left.with_journal, left.event_ids) == (True, second.event_ids)
        assert memory.erasure.erase([plain]).complete  # an embedded memory has no journal
        left = read_intent(tmp_path)
        assert left is not None
        assert left.with_journal
        assert set(second.event_ids) < set(left.event_ids)
        assert memory.erasure.carry_out(left, NOW).complete
        assert read_intent(tmp_path) is None


def test_an_erasure_waiting_for_the_journal_is_one_line_of_history_however_often_the_store_is_opened(
    tmp_path: Path, embedder: Embedder
) -> None:
    with Memory.open(tmp_path, user_id="alice", embedder=embedder) as memory:
        memory.erasure.begin(memory.erasure.plan(Selection(ids=tuple(told(memory, 2))), NOW))
    for _ in range(3):
        with Memory.open(tmp_path, user_id="alice", embedder=embedder):
            assert [one.count for one in read_history(tmp_path, "alice").erasures] == [2]
    left = read_intent(tmp_path)
    assert left is not None
    with Memory.open(tmp_path, user_id="alice", embedder=embedder) as memory:
        assert memory.erasure.carry_out(left, NOW + timedelta(hours=1)).complete
        assert len(read_history(tmp_path, "alice").erasures) == 1
        assert memory.erasure.carry_out(memory.erasure.plan(Selection(session_id="s-9"), NOW), NOW).complete
        assert len(read_history(tmp_path, "alice").erasures) == 2


def test_reimported_memories_and_continued_sessions_are_recorded_again(tmp_path: Path) -> None:
    later, intent = NOW + timedelta(hours=1), Intent(started_at=NOW, record_ids=("one", "two"))
    for _ in range(2):
        note_erasure(tmp_path, "alice", intent, NOW, once=True)
    note_reimported_ids(tmp_path, "alice", ["two"], later)
    assert fingerprint("alice", "two") not in read_history(tmp_path, "alice").memories_in(later)
    note_erasure(tmp_path, "alice", intent, NOW, once=True)
    assert fingerprint("alice", "two") in read_history(tmp_path, "alice").memories_in(later)
    assert len(read_history(tmp_path, "alice").erasures) == 3
    session = Intent(started_at=NOW, session_id="s-1")
    for now in (NOW, NOW, later, later):
        note_erasure(tmp_path, "alice", session, now, once=True)
    assert [one.at for one in read_history(tmp_path, "alice").erasures[3:]] == [NOW, later]


def test_a_purge_waiting_for_disk_space_does_not_wait_for_the_journal_again(
    tmp_path: Path, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Memory.open(tmp_path, user_id="alice", embedder=embedder) as memory:
        intent = memory.erasure.begin(memory.erasure.plan(Selection(ids=tuple(told(memory, 1))), NOW))
        with monkeypatch.context() as full:
            full.setattr(Archive, "purge", fail_for_want_of_room)
            assert not memory.erasure.carry_out(intent, NOW).complete
        left = read_intent(tmp_path)
        assert left is not None
        assert not left.with_journal
    with Memory.open(tmp_path, user_id="alice", embedder=embedder):
        assert read_intent(tmp_path) is None


def test_an_equal_event_without_an_id_stays_forgotten(tmp_path: Path, embedder: Embedder) -> None:
    said = {"event_type": "user_input", "user_id": "alice", "payload": {"text": f"the {SECRET} has a new cellar"}}
    with Memory.open(tmp_path / "alice", embedder=embedder) as memory:
        ids = memory.ingest([said]).record_ids
        assert memory.erasure.erase(ids).memories == 1
        assert memory.ingest([said]).duplicates == 1
        assert memory.ingest([said | {"payload": {"text": f"the {SECRET} has a newer cellar"}}]).kept == 1
        assert memory.ingest([said | {"timestamp": NOW.isoformat()}], now=NOW).kept == 1
        assert memory.ingest([said | {"event_id": "of its own"}]).kept == 1


def fail_for_want_of_room(_: Archive) -> None:
    raise StoreError("no room")
