"""An encrypted memory works like any other, and its folder reveals nothing without the key."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from memory_samples import NOW, message

from memory_agent.embedders import Embedder
from memory_agent.erasure.logs import INTENT_FILE
from memory_agent.erasure.request import Selection
from memory_agent.errors import (
    EncryptionKeyMissingError,
    MemoryAgentError,
    SettingsError,
    StoreEncryptedError,
    StoreNotEncryptedError,
)
from memory_agent.learning import load_learner
from memory_agent.memory import Memory
from memory_agent.records.embedded import Embedding
from memory_agent.settings import StoreSettings
from memory_agent.storage.environment import UserKey
from memory_agent.storage.folders import user_folder
from memory_agent.storage.store import Store
from relay import Journal
from relay.config import EncryptionSettings, journal_folder
from relay.crypto import KeyRing
from sona import checkpoint

GRAPH = StoreSettings(exact_search_limit=20)
WORDS = {
    "text": "zanzibarquokka",
    "title": "ytterbiumtitle",
    "tag": "xylophonetag",
    "session": "session-of-the-wombat",
    "run": "run-of-the-wombat",
    "event": "event-of-the-wombat",
    "event type": "chat.user_msg",
    "metadata": "wombatmetadata",
}


def opened(folder: Path, embedder: Embedder | None = None, keys: Path | None = None) -> Memory:
    encryption = None if keys is None else EncryptionSettings(keys_folder=str(keys))
    return Memory.open(folder, embedder=embedder, store_settings=GRAPH, encryption_settings=encryption)


def fill(memory: Memory) -> dict[str, bytes]:
    """Store memories, a run that used them, a lesson and a pending erasure; return bytes to search for in files."""
    for number in range(30):
        memory.remember(f"{WORDS['text']} number {number} is a small marsupial", session_id=WORDS["session"], now=NOW)
    record = memory.remember(
        f"the {WORDS['text']} sleeps in the cellar",
        title=WORDS["title"],
        tags=[WORDS["tag"]],
        metadata={"k": WORDS["metadata"]},
        session_id=WORDS["session"],
        now=NOW,
    )
    long = memory.remember(f"{WORDS['text']} " + "dug one burrow after the other below the old fence " * 60, now=NOW)
    memory.ingest([message(1, f"where is the {WORDS['text']}?", event_id=WORDS["event"], session_id=WORDS["session"])])
    for number in range(4):
        at = NOW + timedelta(minutes=number)
        memory.runs.begin(f"find the {WORDS['text']} {number}", f"{WORDS['run']}-{number}", WORDS["session"], now=at)
        memory.runs.step(f"{WORDS['run']}-{number}", "looked", [record.id], now=at)
        memory.runs.end(f"{WORDS['run']}-{number}", "completed", f"found the {WORDS['text']}", now=at)
        memory.recall(f"where does the {WORDS['text']} sleep?", now=at)
    assert memory.sona.consolidate(NOW + timedelta(hours=1))
    memory.erasure.begin(memory.erasure.plan(Selection(ids=(record.id,)), NOW))
    (known,) = memory.get([record.id], with_embedding=True)
    assert known is not None and known.embedding is not None  # noqa: PT018
    vector = np.array(known.embedding, dtype=np.float32)
    marks = {name: word.encode() for name, word in WORDS.items()}
    marks |= {"id": record.id.encode(), "stem": WORDS["text"][:-1].encode(), "float16": vector.astype("<f2").tobytes()}
    marks |= {"float32": vector.tobytes(), "int8": _int8(vector)}
    with memory._archive.store.snapshot() as snapshot:
        row = snapshot.row_of_id(long.id)
        assert row is not None
        passages, words = snapshot.passages(row), snapshot.words(row)
    assert passages is not None
    assert words is not None
    last = passages[1][-1]
    return marks | {
        "passage": last.astype("<f2").tobytes(),
        "passage as int8": _int8(last),
        "words": words.bits[:4].tobytes(),
        "spans": passages[0].astype("<i4").tobytes(),
    }


def _int8(vector: Embedding) -> bytes:
    return np.rint(vector / np.abs(vector).max() * np.float32(127)).astype(np.int8).tobytes()


def found(folder: Path, marks: Mapping[str, bytes]) -> dict[str, set[str]]:
    """Return the marks found in each file."""
    contents = {file.name: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    held = {name: {mark for mark, data in marks.items() if data in content} for name, content in contents.items()}
    return {name: names for name, names in held.items() if names}


def learnt_in(store: Store) -> bytes:
    """Return bytes from the middle of a store's saved learner file."""
    learner = load_learner(store)
    assert learner is not None
    data = checkpoint.to_bytes(learner)
    return data[len(data) // 2 :][:64]


def test_no_file_contains_plain_text_while_open_or_closed(tmp_path: Path, embedder: Embedder) -> None:
    with opened(tmp_path / "alice", embedder, tmp_path / "keys") as memory:
        marks = fill(memory)
        assert found(tmp_path / "alice", marks) == {}
        names = {file.name for file in (tmp_path / "alice").rglob("*")}
    assert found(tmp_path / "alice", marks) == {}
    names |= {file.name for file in (tmp_path / "alice").rglob("*")}
    expected = {"data.mdb", "columns.arrays", "graph.arrays", "sona.state", INTENT_FILE}
    assert names >= expected


def test_without_encryption_the_files_contain_every_mark(tmp_path: Path, embedder: Embedder) -> None:
    """Confirms that the test above searches for the right bytes."""
    with opened(tmp_path / "alice", embedder) as memory:
        marks = fill(memory)
        held = found(tmp_path / "alice", marks)
    with Store.open(tmp_path / "alice", GRAPH) as store:
        assert learnt_in(store) in (tmp_path / "alice" / "sona.state").read_bytes()
    held |= {f"closed {name}": marks for name, marks in found(tmp_path / "alice", marks).items()}
    assert set().union(*held.values()) >= marks.keys() - {"float32"}
    assert {"closed data.mdb", "closed columns.arrays", INTENT_FILE} <= held.keys()


def test_it_answers_like_a_plain_memory(tmp_path: Path, embedder: Embedder) -> None:
    answers = []
    for name, keys in (("plain", None), ("encrypted", tmp_path / "keys")):
        with opened(tmp_path / name, embedder, keys) as memory:
            memory.ingest([message(number) for number in range(60)], seqs=list(range(1, 61)))
        with opened(tmp_path / name, embedder, keys) as memory:
            asked = [memory.recall(text, 8, now=NOW) for text in ("auth race", "hiking in June", "database backup")]
            answers.append([(one.record.id, round(one.score, 5)) for result in asked for one in result.memories])
            memory.care.rebuild()
            assert memory.care.compact().bytes_after > 0
            assert memory.ingest([message(number) for number in range(60)]).duplicates == 60
    assert answers[0] == answers[1]


def test_the_learner_and_a_pending_erasure_survive_reopening(tmp_path: Path, embedder: Embedder) -> None:
    with opened(tmp_path / "alice", embedder, tmp_path / "keys") as memory:
        record_id = fill(memory)["id"].decode()
    with Store.open(tmp_path / "alice", GRAPH, key=UserKey(KeyRing(tmp_path / "keys"), "alice")) as store:
        state = tmp_path / "alice" / "sona.state"
        assert learnt_in(store) is not None
        assert learnt_in(store) not in state.read_bytes()
        state.write_bytes(bytes([state.read_bytes()[0] ^ 1]) + state.read_bytes()[1:])
        assert load_learner(store) is None
        assert not state.exists()
    assert (tmp_path / "alice" / INTENT_FILE).exists()
    with opened(tmp_path / "alice", embedder, tmp_path / "keys") as memory:
        assert memory.get([record_id]) == []  # the erasure was completed


def test_a_destroyed_key_ends_every_call_permanently(tmp_path: Path, embedder: Embedder) -> None:
    memory = opened(tmp_path / "alice", embedder, tmp_path / "keys")
    marks = fill(memory)
    KeyRing(tmp_path / "keys").destroy("alice")
    calls = (
        lambda: memory.recall("where does it sleep?"),
        lambda: memory.remember("more"),
        lambda: memory.get(["an id"]),
        memory.stats,
        lambda: memory.sona.consolidate(NOW + timedelta(days=1)),
    )
    for call in calls:
        with pytest.raises(EncryptionKeyMissingError, match="alice"):
            call()
    memory.close()
    with pytest.raises(EncryptionKeyMissingError):
        opened(tmp_path / "alice", embedder, tmp_path / "keys")
    assert not KeyRing(tmp_path / "keys").has("alice")
    assert found(tmp_path / "alice", marks) == {}


def test_plain_and_encrypted_folders_are_never_confused(tmp_path: Path) -> None:
    opened(tmp_path / "plain").close()
    opened(tmp_path / "encrypted", keys=tmp_path / "keys").close()
    before = {file: file.read_bytes() for file in tmp_path.rglob("*.mdb") if file.name == "data.mdb"}
    with pytest.raises(StoreEncryptedError):
        opened(tmp_path / "encrypted")
    with pytest.raises(StoreNotEncryptedError):
        opened(tmp_path / "plain", keys=tmp_path / "keys")
    assert {file: file.read_bytes() for file in before} == before
    assert KeyRing(tmp_path / "keys").users() == ["encrypted"]


def test_a_users_key_does_not_open_another_users_memory(tmp_path: Path) -> None:
    for name in ("alice", "bob"):
        opened(tmp_path / name, keys=tmp_path / "keys").close()
    (tmp_path / "bob").rename(tmp_path / "was-bob")
    (tmp_path / "alice").rename(tmp_path / "bob")
    with pytest.raises(EncryptionKeyMissingError):
        opened(tmp_path / "bob", keys=tmp_path / "keys")


def test_an_open_memory_continues_when_the_key_folder_returns(tmp_path: Path) -> None:
    keys, away = tmp_path / "keys", tmp_path / "away"
    with opened(tmp_path / "alice", keys=keys) as memory:
        kept = memory.remember("before", now=NOW).id
        keys.rename(away)
        with pytest.raises(EncryptionKeyMissingError):
            memory.remember("meanwhile", now=NOW)
        away.rename(keys)
        memory.remember("after", now=NOW)
        assert len(memory.get([kept])) == 1
        assert memory.stats().memories == 2


def test_no_key_is_made_while_the_key_folder_is_missing(tmp_path: Path) -> None:
    keys, away, data = tmp_path / "keys", tmp_path / "away", tmp_path / "data"
    Journal.open(journal_folder(data), keys=KeyRing(keys)).close()
    opened(user_folder(data, "alice"), keys=keys).close()
    keys.rename(away)
    with pytest.raises(EncryptionKeyMissingError, match="keys of this data folder"):
        opened(user_folder(data, "carol"), keys=keys)
    assert not keys.exists()
    away.rename(keys)
    opened(user_folder(data, "carol"), keys=keys).close()
    assert KeyRing(keys).users() == ["alice", "carol", "system"]


@pytest.mark.parametrize("folder", ["alice", "users/alice"])
def test_keys_are_not_stored_in_the_folder_that_they_encrypt(tmp_path: Path, folder: str) -> None:
    with pytest.raises(SettingsError, match=r"encryption\.keys_folder"):
        opened(tmp_path / folder, keys=tmp_path / folder.removesuffix("users/alice") / "keys")


def test_a_damaged_key_file_is_an_error_of_the_store(tmp_path: Path) -> None:
    opened(tmp_path / "alice", keys=tmp_path / "keys").close()
    next((tmp_path / "keys").iterdir()).write_bytes(b"{}")
    with pytest.raises(MemoryAgentError, match="damaged"):
        opened(tmp_path / "alice", keys=tmp_path / "keys")
