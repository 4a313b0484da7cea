"""Test that files of an earlier version can be opened and give the same answers.

The fixture is a data folder, an encrypted data folder with its key ring, a backup, an export, exported learning, a
spool with unsent events and key files, created by `make.py` with that version's daemon, command line and Python
interface. `answers.json` contains that version's answers. Intended differences:

- fields listed in `questions.py`: `UNLIKE` (ids and times of the questions), `ADDED` (new since then);
- hybrid recalls have a different ranking (`differences_of_recalls`); recalls by words or vectors alone keep theirs;
- "two weeks ago" begins up to a day earlier: `_as_dated_before`; ages are rounded to the nearest week, month or year;
- the questions ask for memories of any relevance, because that version had no notion of relevance;
- answers are marked `PENDING` until word vectors are filled in;
- receipts word the exceptions differently, and list shared items: `_with_former_words`;
- the key `local` has all current scopes, and other keys keep the scopes that they had: `_with_former_scopes`;
- the former setting name `recall.alpha` is accepted (the question "more words"), with a warning on standard error;
- Python: `Memory.get(ids)` replaces `Memory.get(id)`; these tests use only calls that both versions have;
- vectors are float32 and scores are compared to 1e-4, because a different engine release may round differently.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from questions import (
    ANSWERS,
    ANY_RELEVANCE,
    LOGOUTS,
    NO_RUNS,
    PENDING,
    QUESTIONS,
    answers,
    comparable,
    differences,
    differences_of_recalls,
    same_order,
    unpack,
)

from memory_agent import Memory
from memory_agent.embedders import Embedder, open_embedder
from memory_agent.errors import ModelMissingError
from memory_agent.settings import EmbedderSettings
from relay import EncryptionSettings, Publisher, Scope, Subscriber
from tests.memory_agent.store_checks import verified

FORMER: dict[str, Any] = json.loads(ANSWERS.read_text(encoding="utf-8"))
AT = datetime(2026, 2, 16, 10, tzinfo=UTC)
SPOOLED = [f"spooled-{number}" for number in range(40)]


@pytest.fixture(scope="module")
def embedder() -> Iterator[Embedder]:
    try:
        opened = open_embedder(EmbedderSettings(scheme="float32", allow_download=False))
    except ModelMissingError:
        pytest.skip("no embedding model on this machine")
    yield opened
    opened.close()


@pytest.fixture
def root() -> Iterator[Path]:
    """The unpacked fixture, at a path short enough for socket names."""
    with tempfile.TemporaryDirectory(prefix="former-") as folder:
        unpack(Path(folder))
        yield Path(folder)


@pytest.fixture(scope="module")
def present(embedder: Embedder, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The answers of the current command line to all questions, in order, on one copy of the fixture."""
    folder = tmp_path_factory.mktemp("former")
    unpack(folder)
    return answers(folder, *ANY_RELEVANCE, own=NO_RUNS) | {
        "exported": read_lines(folder / "again.jsonl"),
        "export": read_lines(folder / "alice.jsonl"),
    }


@pytest.mark.parametrize("name", QUESTIONS)
def test_the_command_line_answers_as_the_former_version_did(name: str, present: dict[str, Any]) -> None:
    former, now = dict(FORMER[name]), dict(present[name])
    if QUESTIONS[name][0] == "recall":
        before, found = (_taken_memories(one) for one in (former, now))
        assert differences_of_recalls(before, found) == []
        assert same_order(before, found) or "--mode" not in QUESTIONS[name]
        now = _as_dated_before(former, now)
    if name == "keys":
        now = _with_former_scopes(now)
    if name == "erasure, dry run":
        now = _with_former_words(former, now)
    if name == "encrypted, without the keys":  # the error's advice has other words now
        message = former["answer"]["error"]["message"]
        assert now["answer"]["error"]["message"].startswith(message.partition("name the folder")[0])
        now["answer"]["error"]["message"] = message
    if name == "an unknown run":  # the error now names the argument instead of the request's field
        assert now["answer"]["error"]["message"] == former["answer"]["error"]["message"].replace("run: ", "RUN: ")
        now["answer"] = former["answer"]
    assert differences(former, now) == []


def _as_dated_before(former: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """Return a recall with the starts that its date ranges had before; each may have moved by less than a day."""
    if not isinstance(now["answer"], dict):
        return now
    dates = [dict(date) for date in now["answer"]["dates"]]
    for date, before in zip(dates, former["answer"]["dates"], strict=True):
        since, former_since = (datetime.fromisoformat(one["since"]) for one in (date, before))
        assert timedelta(0) <= former_since - since < timedelta(days=1)
        date["since"] = before["since"]
    return now | {"answer": now["answer"] | {"dates": dates}}


def _with_former_scopes(now: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to `keys list` with the former scopes of the key `local`."""
    local, *others = now["answer"]
    assert (local["id"], local["scopes"]) == ("local", sorted(scope.value for scope in Scope))
    known = [scope for scope in local["scopes"] if scope in ("admin", "publish", "recall")]
    return now | {"answer": [local | {"scopes": known}, *others]}


def _with_former_words(former: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """Return a receipt with the former wording of `not_covered`, without the later additions on exports and shared
    items.
    """
    *others, shared = (line for line in now["answer"]["not_covered"] if "/again.jsonl of " not in line)
    before = former["answer"]["not_covered"]
    assert len(others) == len(before)
    assert shared.startswith("items published")
    return now | {"answer": now["answer"] | {"not_covered": before}}


def _taken_memories(told: dict[str, Any]) -> list[Any]:
    """Remove the memories from an answer to a recall, and return them.

    For a block, these are its entries without ages.
    """
    answer = told["answer"]
    if isinstance(answer, dict):
        told["answer"] = {name: value for name, value in answer.items() if name != "memories"}
        return list(answer["memories"])
    head, *entries = re.split(r"^\d+\. ", answer.removesuffix("</recalled_memories>\n"), flags=re.MULTILINE)
    told["answer"] = head
    return [{"record": {"id": entry.partition(" · ")[2]}} for entry in entries]


def test_every_question_has_an_answer_of_the_former_version() -> None:
    assert list(FORMER) == [*QUESTIONS, "journal"]


def test_an_export_equals_the_former_versions_export(present: dict[str, Any]) -> None:
    former, exported = by_id(present["export"]), by_id(present["exported"])
    assert len(former) == FORMER["stats of alice"]["answer"]["memories"]
    assert differences(former, exported) == []


def test_python_recalls_the_same_and_continues(root: Path, embedder: Embedder) -> None:
    folder = root / "plain" / "users" / "alice"
    with Memory.open(folder, embedder=embedder) as memory:
        assert differences_of_recalls(FORMER["hybrid"]["answer"]["memories"], recalled(memory)) == []
        assert [run.id for run in memory.runs.list()] == [run["id"] for run in FORMER["runs of alice"]["answer"]]
        before = memory.stats()
        assert before.memories == FORMER["stats of alice"]["answer"]["memories"]
        record = memory.remember("The coffee machine needs descaling every month", tags=["kitchen"])
    with Memory.open(folder, embedder=embedder) as memory:
        assert memory.recall("coffee machine", top_k=1).memories[0].record.id == record.id
        assert memory.stats().memories == before.memories + 1


def test_an_id_of_a_former_run_is_used_again_and_what_follows_is_inferred(root: Path, embedder: Embedder) -> None:
    """Former runs do not change. The new events become a separate run, which is forgotten with its session."""
    folder, now = root / "plain" / "users" / "alice", datetime(2026, 11, 23, 10, tzinfo=UTC)

    def told(event_id: str, event_type: str, minute: int, session_id: str, **payload: Any) -> dict[str, Any]:
        at = (now + timedelta(minutes=minute)).isoformat()
        named = {"event_id": event_id, "event_type": event_type, "timestamp": at, "user_id": "alice"}
        return named | {"session_id": session_id, "payload": payload}

    events = [
        told("again", "conductor.run.started", 0, "s-again", run_id="pay-104", objective="Charge each order only once"),
        told(
            "again-end", "conductor.run.completed", 5, "s-again", run_id="pay-104", summary="Added an idempotency key"
        ),
    ]
    with Memory.open(folder, embedder=embedder) as memory:
        former = {run.id: run for run in memory.runs.list(limit=100)}
        assert not memory.ingest(events, now=now + timedelta(hours=1)).rejected
        memory.sona.consolidate(now + timedelta(hours=1))
    with Memory.open(folder, embedder=embedder) as memory:
        runs = {run.id: run for run in memory.runs.list(limit=100)}
        (new,) = runs.keys() - former.keys()
        assert new == "pay-104@2026-11-23T10:00:00Z"
        assert {run_id: runs[run_id] for run_id in former} == former
        memory.forget_session("s-again")
        assert {run.id: run for run in memory.runs.list(limit=100)} == former
        assert verified(memory._archive.store)


def test_python_opens_encrypted_folders_with_the_key_ring(root: Path, embedder: Embedder) -> None:
    keys = EncryptionSettings(keys_folder=str(root / "keys"))
    with Memory.open(root / "encrypted" / "users" / "erin", embedder=embedder, encryption_settings=keys) as memory:
        assert differences_of_recalls(FORMER["hybrid, encrypted"]["answer"]["memories"], recalled(memory)) == []


def test_a_publisher_sends_the_former_spool_to_a_relay_on_the_former_journal(root: Path) -> None:
    relay = subprocess.Popen(
        [sys.executable, "-m", "relay", "--data-dir", str(root / "plain")], stdout=subprocess.PIPE, text=True
    )
    try:
        assert relay.stdout is not None
        ready = json.loads(relay.stdout.readline())
        with Subscriber(ready["ingest"], ready["feed"], "memory") as subscriber:
            former, cursor = events_after(subscriber, 0), subscriber.cursor()
            with Publisher(ready["ingest"], spool=root / "spool") as publisher:
                report = publisher.flush()
            assert (report.pending, report.rejected) == (0, 0)
            new = events_after(subscriber, former[-1][0])
            quarantined = [entry.code for entry in subscriber.quarantined(0, 10)]
    finally:
        relay.send_signal(signal.SIGTERM)
        assert relay.wait(20) == 0
        assert relay.stdout is not None
        relay.stdout.close()
    assert former == FORMER["journal"]["events"]
    assert {"memory": cursor} == FORMER["journal"]["consumers"]
    assert [event_id for _, event_id in new] == SPOOLED
    assert quarantined == [entry["code"] for entry in FORMER["quarantine"]["answer"]]


def test_word_vectors_are_filled_in_and_nothing_else_changes(root: Path, embedder: Embedder) -> None:
    keys = EncryptionSettings(keys_folder=str(root / "keys"))
    for folder, settings in ((root / "plain/users/alice", None), (root / "encrypted/users/erin", keys)):
        with Memory.open(folder, embedder=embedder, encryption_settings=settings) as memory:
            before, records = memory.stats(), [record for _, record in memory._archive.store.scan()]
            assert len(records) > 1
            assert memory._archive.store.blob("centering") is not None
            assert (memory.fill_vectors(), memory.stats().waiting) == (before.memories, 0)
            assert memory.recall(LOGOUTS, now=AT, deadline_ms=60_000).degraded == ()
            assert [record for _, record in memory._archive.store.scan()] == records
            assert verified(memory._archive.store) == len(records) == memory._archive.view.word_bits.count
            assert memory._archive.store.blob("centering") is None  # ranking no longer reads the mean of queries


def events_after(subscriber: Subscriber, seq: int) -> list[list[Any]]:
    entries = subscriber.fetch(seq, 1_000).entries
    return [[entry.seq, msgspec.msgpack.decode(entry.data)["event_id"]] for entry in entries]


def recalled(memory: Memory) -> Any:
    result = memory.recall(LOGOUTS, now=AT, deadline_ms=60_000, min_relevance=0)
    assert result.degraded == (PENDING,)
    memories = comparable(msgspec.to_builtins(result.memories))
    for memory in memories:
        assert memory["record"].pop("embedding") is None  # the command line omits it
    return memories


def read_lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def by_id(lines: list[dict[str, Any]]) -> dict[str, Any]:
    return {line["record"]["id"]: line for line in lines if "record" in line}
