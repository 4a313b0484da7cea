"""Missing vectors and word vectors are computed later: in old stores, after a model change, and after a crash."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from made_vectors import WAIT_S, MadeVectors
from store_checks import verified

from memory_agent import Memory
from memory_agent.errors import ModelError
from memory_agent.settings import DaemonSettings, EmbedderSettings, Reembed, Settings
from relay import EncryptionSettings

COUNT = 600  # more than two chunks
FACT = "the spare key lies below the blue flowerpot"
LONG = " ".join(f"w{number}" for number in range(1_200)) + " " + FACT


def remember(memory: Memory, count: int = COUNT) -> None:
    for number in range(count):
        memory.remember(f"note{number} about topic{number % 7} of place{number % 11}")
    memory.remember(LONG)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with all vectors, to copy."""
    folder = tmp_path_factory.mktemp("filled") / "a"
    with Memory.open(folder, embedder=MadeVectors()) as memory:
        remember(memory)
    return folder


def found(memory: Memory, query: str, mode: str = "vector") -> str:
    return memory.recall(query, 1, mode=mode).memories[0].record.text  # type: ignore[arg-type]


def assert_whole(memory: Memory, embedder: MadeVectors, count: int = COUNT) -> None:
    """Check that every memory has the embedder's vectors, in the store and in the columns."""
    view, store = memory._archive.view, memory._archive.store
    assert view.live == store.counts().memories == count + 1
    with store.snapshot() as snapshot:
        for row, record in snapshot.scan():
            made = embedder.begin_passages([record.text]).result()[0]
            vector, passages, words = snapshot.vector(row), snapshot.passages(row), snapshot.words(row)
            vectors = np.stack([vector, *(() if passages is None else passages[1])])  # type: ignore[list-item]
            assert np.allclose(vectors, made.vectors, atol=1e-3)
            assert words is not None
            slots = view.slots([row])
            bits, counts = view.word_bits.of(slots)
            assert bits.tobytes() == words.bits.tobytes() == made.word_bits.tobytes()
            assert (counts.tolist(), view.word_bits.lengths[slots].tolist()) == ([len(made.word_bits)], [made.length])
            assert np.allclose(view.vectors.cosines(vectors[-1], slots), (vectors @ vectors[-1]).max(), atol=1e-3)
    assert memory.stats().waiting == 0
    assert verified(memory._archive.store) == count + 1


def test_a_store_without_word_vectors_is_searchable_and_completed(tmp_path: Path) -> None:
    with Memory.open(tmp_path / "a", embedder=MadeVectors(words="")) as memory:
        remember(memory)
        assert (memory.stats().waiting, memory.recall("topic3").degraded) == (0, ())
        assert found(memory, FACT) != LONG
    embedder = MadeVectors()
    with Memory.open(tmp_path / "a", embedder=embedder) as memory:
        assert memory.recall("topic3").degraded == ("word_vectors_pending",)
        assert memory.fill_vectors(100) == 100
        stats = memory.stats()
        assert (stats.waiting, stats.without_vector) == (COUNT - 99, 0)
        assert memory.recall("topic3").degraded == ("word_vectors_pending",)
        assert memory.fill_vectors() == COUNT - 99
        assert memory.fill_vectors() == 0
        assert memory.recall("topic3").degraded == ()
        assert found(memory, FACT) == LONG
        assert_whole(memory, embedder)
        slots = np.flatnonzero(memory._archive.view.alive)
        assert memory._archive.view.word_bits.count == len(slots)
    with Memory.open(tmp_path / "a", embedder=embedder) as memory:  # the bits are read from the store
        assert_whole(memory, embedder)


def test_memories_stored_without_a_model_get_vectors_and_words_together(tmp_path: Path) -> None:
    with Memory.open(tmp_path / "a", settings=Settings(embedder=EmbedderSettings(folder="none"))) as memory:
        remember(memory, 20)
        assert memory.stats().waiting == memory.stats().without_vector == 21
        with pytest.raises(ModelError):
            memory.care.rebuild(vectors=True)
    embedder = MadeVectors()
    with Memory.open(tmp_path / "a", embedder=embedder) as memory:
        assert memory.fill_vectors() == 21
        assert_whole(memory, embedder, 20)


def test_a_model_of_other_dimensions_reembeds_everything_in_the_background(tmp_path: Path, filled: Path) -> None:
    shutil.copytree(filled, tmp_path / "a")
    embedder = MadeVectors(ndim=64, model="other")
    with Memory.open(tmp_path / "a", embedder=embedder) as memory:
        memory.remember("said under another model")
        assert memory.recall("topic3").degraded == ("model_changed",)
        assert memory.fill_vectors() == 0
        embedder.going_on.clear()
        assert memory.care.rebuild(vectors=True) == COUNT + 2
        assert memory.care.rebuild(vectors=True) == COUNT + 2
        stats = memory.stats()
        assert (stats.waiting, stats.memories) == (COUNT + 2, COUNT + 2)
        assert stats.model != embedder.info.stamp  # the old vectors stay until all new vectors are stored
        assert found(memory, "note17", "hybrid").startswith("note17 ")  # found by words
        memory.remember("said meanwhile")
        assert memory.recall("said meanwhile").degraded == ("model_changed",)
        assert found(memory, "said meanwhile") == "said meanwhile"
        embedder.going_on.set()
        thread = memory._vectors._fill_thread
        assert thread is not None
        thread.join(WAIT_S)
        assert (memory.stats().waiting, memory.stats().model) == (0, embedder.info.stamp)
        assert memory.care.rebuild(vectors=True) == 0
        assert memory.recall("topic3").degraded == ()
        assert found(memory, FACT) == LONG
        memory.forget([one.id for one in memory.get(_ids(memory)) if one.text.startswith("said")])
        assert_whole(memory, embedder)


@pytest.mark.parametrize("is_encrypted", [False, True], ids=["plain", "encrypted"])
def test_an_interrupted_fill_continues_and_no_memory_is_lost(tmp_path: Path, is_encrypted: bool) -> None:
    keys = {"encryption_settings": EncryptionSettings(keys_folder=str(tmp_path / "keys"))} if is_encrypted else {}
    with Memory.open(tmp_path / "a", embedder=MadeVectors(), **keys) as memory:  # type: ignore[arg-type]
        remember(memory)
    embedder = MadeVectors(ndim=64, model="other")
    memory = Memory.open(tmp_path / "a", embedder=embedder, **keys)  # type: ignore[arg-type]
    assert memory._vectors.begin_reembedding() == COUNT + 1
    assert memory.fill_vectors(300) == 300
    memory.abandon()
    with Memory.open(tmp_path / "a", embedder=embedder, **keys) as memory:  # type: ignore[arg-type]
        assert memory.stats().waiting == COUNT - 299
        assert memory.recall("topic3").degraded == ("model_changed",)
        assert memory.care.rebuild(vectors=True) == COUNT - 299
        thread = memory._vectors._fill_thread
        assert thread is not None
        thread.join(WAIT_S)
        assert_whole(memory, embedder)


@pytest.mark.parametrize(
    ("reembed", "former", "present", "begins"),
    [
        ("local", "none", "none", True),
        ("local", "none", "api/chars-1500", False),
        ("local", "api/chars-1500", "none", False),
        ("always", "none", "api/chars-1500", True),
        ("never", "none", "none", False),
    ],
)
def test_upkeep_replaces_the_vectors_of_another_model_if_the_settings_permit_it(
    reembed: Reembed, former: str, present: str, begins: bool, tmp_path: Path
) -> None:
    with Memory.open(tmp_path / "a", embedder=MadeVectors(runtime=former)) as memory:
        remember(memory, 30)
    embedder, chosen = MadeVectors(model="other", runtime=present), Settings(daemon=DaemonSettings(reembed=reembed))
    with Memory.open(tmp_path / "a", embedder=embedder, settings=chosen) as memory:
        assert memory.fill_vectors() == 0  # only a daemon re-embeds automatically
    with Memory.open(tmp_path / "a", embedder=embedder, settings=chosen, role="host") as memory:
        assert memory.fill_vectors(10) == (10 if begins else 0)
        assert memory.fill_vectors() == (21 if begins else 0)
        assert memory.fill_vectors() == 0
        assert (memory.stats().model == embedder.info.stamp) == begins
        assert embedder.texts == (31 if begins else 0)
        if begins:
            assert_whole(memory, embedder, 30)


def test_closing_stops_the_background_thread(tmp_path: Path, filled: Path) -> None:
    shutil.copytree(filled, tmp_path / "a")
    embedder = MadeVectors(model="other")
    embedder.going_on.clear()
    memory = Memory.open(tmp_path / "a", embedder=embedder)
    memory.care.rebuild(vectors=True)
    thread = memory._vectors._fill_thread
    assert thread is not None
    memory._vectors._is_closing = True
    embedder.going_on.set()
    memory.close()
    assert not thread.is_alive()
    with Memory.open(tmp_path / "a", embedder=embedder) as memory:
        assert 0 < memory.stats().waiting <= COUNT + 1
        memory.fill_vectors()
        assert_whole(memory, embedder)


def test_incompatible_word_vectors_are_remade_and_vectors_stay(tmp_path: Path) -> None:
    with Memory.open(tmp_path / "a", embedder=MadeVectors()) as memory:
        remember(memory, 30)
        changes = memory._archive.store.state.last_change
    embedder = MadeVectors(words="signs-2")
    with Memory.open(tmp_path / "a", embedder=embedder) as memory:
        assert memory.fill_vectors() == 31
        assert memory.stats().without_vector == 0
        assert memory._archive.view.count == 31  # no slot was replaced, because the vectors are the same
        assert memory._archive.store.state.last_change == changes + 31
        assert memory._archive.view.words_stamp == embedder.info.words_stamp
        assert_whole(memory, embedder, 30)


def test_an_embedder_without_word_vectors_keeps_existing_ones(tmp_path: Path) -> None:
    embedder = MadeVectors()
    with Memory.open(tmp_path / "a", embedder=embedder) as memory:
        remember(memory, 30)
    with Memory.open(tmp_path / "a", embedder=MadeVectors(words="")) as memory:
        memory.remember("without words")
        assert (memory.fill_vectors(), memory.stats().waiting) == (0, 1)
        assert memory._archive.view.word_bits.count == 31
    with Memory.open(tmp_path / "a", embedder=embedder) as memory:
        assert memory.fill_vectors() == 1
        assert memory.forget([one.id for one in memory.get(_ids(memory)) if one.text == "without words"]) == 1
        assert_whole(memory, embedder, 30)


def test_versions_that_would_drop_word_vectors_refuse_the_format(tmp_path: Path) -> None:
    with Memory.open(tmp_path / "a", embedder=MadeVectors(words="")) as memory:
        memory.remember("one")
        assert memory._archive.store.state.format == 1
    with Memory.open(tmp_path / "a", embedder=MadeVectors()) as memory:
        memory.fill_vectors()
        assert memory._archive.store.state.format == 2


def _ids(memory: Memory) -> list[str]:
    return [record.id for _, record in memory._archive.store.scan()]
