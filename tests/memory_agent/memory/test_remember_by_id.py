"""`remember` with an id replaces that memory everywhere and affects no other memories."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from memory_samples import NOW, message, texts
from store_checks import verified

from memory_agent.care import export_lines, import_lines
from memory_agent.embedders import Embedder
from memory_agent.erasure.logs import read_history, read_intent
from memory_agent.errors import StoreError
from memory_agent.layout import Layout
from memory_agent.memory import Memory
from memory_agent.records.memories import MemoryFilter, MemoryRecord
from memory_agent.settings import EmbedderSettings, Settings
from memory_agent.storage.archive import Archive
from relay import EncryptionSettings

LATER = NOW + timedelta(days=1)
VPN = "Staging needs the VPN"
LUNCH = "Lunch is served at noon in the canteen"


def none(*_: object) -> None:
    """No progress."""


def test_a_memory_is_replaced_entirely_but_keeps_its_time_and_usage(memory: Memory) -> None:
    memory.remember("Something else entirely", now=NOW)
    old = memory.remember(
        VPN,
        tags=["net"],
        title="VPN",
        session_id="s-1",
        phase="plan",
        type="note",
        channel_id="ops",
        metadata={"host": {"name": "staging"}},
        quality_score=0.5,
        id="vpn",
        now=NOW,
    )
    found = memory.recall("do I need the VPN?", top_k=1)
    memory.feedback(found.recall_id, ["vpn"], 1.0)
    new = memory.remember(LUNCH, "episode", metadata={"host": 7}, agent_id="cook", id="vpn", now=LATER)
    assert memory.get(["vpn"])[0] == new
    assert (new.timestamp, new.updated_at) == (NOW, LATER)
    assert (old.updated_at, old.utility.used) == (None, 0)
    assert (new.times_recalled, new.utility.used, new.utility.reward_sum) == (1, 1, 1.0)
    assert (new.tags, new.title, new.session_id, new.phase, new.type, new.channel_id) == (
        (),
        None,
        None,
        None,
        None,
        None,
    )
    assert memory.stats().memories == 2
    assert texts(memory.recall("VPN staging", mode="lexical")) == []
    assert texts(memory.recall("when do we eat?", top_k=1, mode="vector")) == [LUNCH]
    for gone in ({"tags": ["net"]}, {"phase": "plan"}, {"metadata": {"host.name": "staging"}}, {"session_id": "s-1"}):
        assert memory.list(gone).total == 0
    for held in ({"metadata": {"host": 7}}, {"agent_id": "cook"}, {"kinds": ["episode"]}):
        assert [one.id for one in memory.list(held).records] == ["vpn"]


def test_only_fields_are_replaced_if_the_text_is_unchanged(memory: Memory) -> None:
    memory.remember(VPN, id="vpn", now=NOW)
    before = memory._archive.store.vectors([1])
    memory.remember(VPN, id="vpn", phase="act", timestamp=NOW - timedelta(hours=1), now=LATER)
    [record] = memory.get(["vpn"])
    assert (record.phase, record.timestamp, record.updated_at) == ("act", NOW - timedelta(hours=1), LATER)
    assert (memory._archive.store.vectors([1]) == before).all()
    assert texts(memory.recall("is there a VPN?", filter={"phase": "act"})) == [VPN]


def test_an_identical_memory_changes_nothing(memory: Memory) -> None:
    fields: dict[str, Any] = {"tags": ["ops"], "metadata": {"host": "staging"}, "id": "vpn"}
    first = memory.remember(VPN, **fields, now=NOW)
    memory.recall("do I need the VPN?", top_k=1)
    again = memory.remember(VPN, **fields, now=LATER)
    assert again == msgspec.structs.replace(first, times_recalled=1, last_recalled_at=again.last_recalled_at)
    dated = memory.remember(VPN, **fields, timestamp=LATER, now=LATER)
    assert (dated.timestamp, dated.updated_at) == (LATER, LATER)
    assert memory.remember(VPN, **fields, timestamp=LATER, now=LATER + timedelta(hours=1)) == dated
    assert memory.remember(VPN, id="vpn", now=LATER).tags == ()


def test_calls_without_an_id_add_memories(memory: Memory) -> None:
    ids = {memory.remember(VPN, now=NOW).id for _ in range(3)}
    assert len(ids) == memory.stats().memories == 3


def test_a_replaced_memory_keeps_its_event_id(memory: Memory) -> None:
    [record_id] = memory.ingest([message(0)], now=NOW).record_ids
    event_id = memory.get([record_id])[0].event_id
    assert memory.remember(VPN, id=record_id, now=LATER).event_id == event_id
    assert memory.ingest([message(0)], now=LATER).duplicates == 1
    assert texts(memory.recall("VPN", mode="lexical")) == [VPN]
    memory.forget([record_id])
    assert memory.ingest([message(0)], now=LATER).duplicates == 1


def test_ids_are_separate_for_each_user(tmp_path: Path, embedder: Embedder) -> None:
    with (
        Memory.open(tmp_path / "alice", embedder=embedder) as alice,
        Memory.open(tmp_path / "bob", embedder=embedder) as bob,
    ):
        mine = alice.remember(VPN, id="shared", now=NOW)
        bob.remember(LUNCH, id="shared", now=NOW)
        bob.remember("Dinner", id=alice.remember("Mine alone", now=NOW).id, now=NOW)
        bob.forget(["shared"])
        assert alice.get(["shared"]) == [mine]
        assert sorted(one.text for one in alice.list().records) == ["Mine alone", VPN]
        assert [one.text for one in bob.list().records] == ["Dinner"]


def test_a_replaced_memory_waits_for_a_vector_without_a_model(tmp_path: Path, embedder: Embedder) -> None:
    with Memory.open(tmp_path / "alice", embedder=embedder) as memory:
        memory.remember(VPN, id="vpn", now=NOW)
        memory.remember(LUNCH, id="lunch", now=NOW)
    no_model = Settings(embedder=EmbedderSettings(folder="none", allow_download=False))
    with Memory.open(tmp_path / "alice", settings=no_model) as memory:
        memory.remember("The cat sleeps on the sofa", id="vpn", now=LATER)
        memory.remember(LUNCH, id="lunch", phase="act", now=LATER)  # the text is unchanged, so it keeps its vector
        assert memory.stats().without_vector == 1
        assert texts(memory.recall("cat sofa", mode="lexical")) == ["The cat sleeps on the sofa"]
    with Memory.open(tmp_path / "alice", embedder=embedder) as memory:
        assert memory.fill_vectors() == 1
        found = memory.recall("a sleeping animal", mode="vector", top_k=1).memories[0]
        assert found.record.id == "vpn"
        assert found.score is not None
        assert found.score > 0.2


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_a_replaced_memory_survives_reopening_rebuilding_and_an_export(
    tmp_path: Path, embedder: Embedder, is_encrypted: bool
) -> None:
    keys = EncryptionSettings(keys_folder=str(tmp_path / "keys")) if is_encrypted else None
    settings = Settings(encryption=keys) if keys else Settings()
    record: MemoryRecord | None = None
    for number in range(3):
        with Memory.open(tmp_path / "alice", embedder=embedder, settings=settings) as memory:
            if record is not None:
                assert memory.get(["vpn"]) == [record]
                memory.care.rebuild()
            record = memory.remember(f"{VPN} {number}", id="vpn", type="note", metadata={"n": number}, now=NOW)
            assert memory.list({"metadata": {"n": number}}).total == 1
            memory.care.compact()
            assert [one.id for one in memory.list({"type": "note"}).records] == ["vpn"]
    if not is_encrypted:
        lines = b"\n".join(export_lines(tmp_path / "alice", "alice", Settings().store, none)) + b"\n"
        archive = Archive.open(tmp_path / "bob", Settings().store, "library")
        assert import_lines(io.BytesIO(lines), archive, none).taken == 1
        archive.close()
        with Memory.open(tmp_path / "bob", embedder=embedder) as bob:
            assert bob.get(["vpn"]) == [record]


def test_an_erasure_leaves_nothing_of_the_former_text(tmp_path: Path, embedder: Embedder) -> None:
    with Memory.open(tmp_path / "alice", embedder=embedder) as memory:
        for number in range(50):
            memory.remember(f"{LUNCH} on day {number}", now=NOW)
        memory.remember("the zanzibarquokka is late", id="secret", tags=["xylotag"], phase="ytterphase", now=NOW)
        memory.remember("harmless", id="secret", now=NOW)
        other = memory.remember("another one", now=NOW)
        assert memory.erasure.erase([other.id]).complete
    for file in (tmp_path / "alice").rglob("*"):
        held = file.read_bytes() if file.is_file() else b""
        assert not any(word in held for word in (b"zanzibarquokka", b"xylotag", b"ytterphase")), file


def test_a_forgotten_id_may_return_and_the_history_records_it(memory: Memory) -> None:
    memory.remember(VPN, id="vpn", now=NOW)
    memory.forget(["vpn"])
    history = read_history(memory._archive.store.folder, "alice")
    assert len(history.memories_in(LATER)) == 1
    record = memory.remember(LUNCH, id="vpn", now=LATER)
    assert record.updated_at is None
    assert memory.get(["vpn"]) == [record]
    history = read_history(memory._archive.store.folder, "alice")
    assert history.memories_in(LATER + timedelta(seconds=1)) == frozenset()
    assert len(history.memories_in(NOW)) == 1  # a backup from that time contains the forgotten memory


def test_an_erasure_that_waits_for_the_journal_keeps_a_memory_stored_again(tmp_path: Path, embedder: Embedder) -> None:
    layout = Layout(tmp_path)
    layout.create()
    (tmp_path / "journal").mkdir(exist_ok=True)
    folder = tmp_path / "users" / "alice"
    with Memory.open(folder, embedder=embedder) as memory:
        memory.remember(VPN, id="vpn", now=NOW)
        memory.remember(LUNCH, id="lunch", now=NOW)
        assert not memory.erasure.erase(["vpn", "lunch"]).complete
        intent = read_intent(folder)
        assert intent is not None
        assert intent.record_ids == ("lunch", "vpn")
        memory.remember("Another one", id="vpn", now=LATER)
    with Memory.open(folder, embedder=embedder) as memory:  # this resumes the erasure
        assert [one.text for one in memory.list().records] == ["Another one"]
        assert read_intent(folder) is not None
        memory.forget(["vpn"])
        assert memory.stats().memories == 0


def test_recalls_and_readers_see_whole_memories_while_one_is_replaced(memory: Memory) -> None:
    words = ["apple", "banana", "cherry", "damson"]
    others = [memory.remember(f"The {word} is a fruit of the garden", now=NOW) for word in words]
    memory.remember("apple pie", id="pie", phase="apple", metadata={"fruit": "apple"}, now=NOW)
    done = threading.Event()
    wrong: list[object] = []

    def replace() -> None:
        for number in range(60):
            word = words[number % 4]
            memory.remember(f"{word} pie", id="pie", phase=word, metadata={"fruit": word}, now=NOW)

    def read() -> None:
        while not done.is_set():
            [pie] = memory.get(["pie"])
            if pie.text != f"{pie.phase} pie" or pie.metadata != {"fruit": pie.phase}:
                wrong.append(pie)
            found = memory.recall("pie", mode="hybrid", top_k=10, now=NOW)
            ids = [one.record.id for one in found.memories]
            if ids.count("pie") != 1 or found.degraded:
                wrong.append(ids)
            if memory.list(limit=10).total != len(others) + 1:
                wrong.append(memory.list().total)

    _together([read, read], replace, done)
    assert wrong == []


def test_remembering_and_forgetting_concurrently_leaves_a_consistent_store(memory: Memory) -> None:
    done = threading.Event()
    counts: list[int] = []

    def forget() -> None:
        while not done.is_set():
            counts.append(memory.forget(["vpn"]))

    def remember() -> None:
        for number in range(60):
            memory.remember(f"{VPN} {number}", id="vpn", metadata={"n": number}, now=NOW)

    _together([forget, forget], remember, done)
    last = memory.remember(f"{VPN} at last", id="vpn", now=LATER)
    assert memory.get(["vpn"]) == [last]
    assert [one.id for one in memory.list().records] == ["vpn"]
    assert memory.stats().without_vector == 0
    memory.forget(["vpn"])
    assert memory.list().total == memory.stats().memories == 0
    assert sum(counts) <= 60
    verified(memory._archive.store)


def test_a_replacement_that_cannot_be_stored_leaves_the_old_memory(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = memory.remember(VPN, id="vpn", now=NOW)

    def fail(*_: object, **__: object) -> None:
        raise StoreError("the disk is gone")

    monkeypatch.setattr("memory_agent.storage.batch.Batch.set_vector", fail)
    with pytest.raises(StoreError):
        memory.remember(LUNCH, id="vpn", now=LATER)
    monkeypatch.undo()
    with memory._archive.store.snapshot() as snapshot:
        assert snapshot.record(1) == record
    assert memory._archive.view.mask(MemoryFilter(kinds=("finding",))).sum() == 1  # type: ignore[union-attr]


def _together(others: list[Callable[[], None]], last: Callable[[], None], done: threading.Event) -> None:
    """Run functions in threads until all have ended; raise the first error."""
    failures: list[BaseException] = []

    def guarded(function: Callable[[], None]) -> None:
        try:
            function()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(one,)) for one in others]
    for thread in threads:
        thread.start()
    guarded(last)
    done.set()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
