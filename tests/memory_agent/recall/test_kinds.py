"""A query for a command, a failure, a request or the end of a run finds memories of that kind."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from memory_samples import START, open_without_model

from memory_agent.embedders import Embedder
from memory_agent.memory import Memory
from memory_agent.recall.kinds import asked_kinds
from memory_agent.records.memories import RecallResult
from memory_agent.settings import RecallSettings
from memory_agent.storage.terms import fold

DAY = timedelta(days=1)
NOW = START + 10 * DAY

LOGIN = (
    "The login page stays blank in Safari; find out why",
    "python -m pytest tests/login",
    "Polyfilled it, all green",
)
EXPORT = ("Make the invoice export write UTF-8", "make check-export", "The patch is ready for review")
Run = tuple[str, str, str]


def session(number: int, run: Run) -> list[dict[str, Any]]:
    """Return the events published when a session of one run is imported: the first test fails, the second passes."""
    request, command, ending = run
    said = ("Let me look at the code first", "Now I see what happens there", "That is the place to change")
    steps: list[tuple[str, dict[str, Any]]] = [
        ("user_msg", {"text": request}),
        ("run.started", {"objective": request}),
        *(("assistant_msg", {"text": f"{text}, {number}"}) for text in said),
        ("command.completed", {"command": command, "output": f"E   assert {number} == 7", "exit_code": 1}),
        ("assistant_msg", {"text": f"I change it now, {number}"}),
        ("command.completed", {"command": f"git diff --stat {number}", "output": "1 file changed", "exit_code": 0}),
        ("run.completed", {"summary": ending}),
    ]
    return [
        {
            "event_id": f"{number}-{place}",
            "event_type": f"history.{name}",
            "timestamp": (START + number * DAY + place * timedelta(minutes=1)).isoformat(),
            "user_id": "alice",
            "session_id": f"s-{number}",
            "payload": payload | {"run_id": f"r-{number}"},
        }
        for place, (name, payload) in enumerate(steps)
    ]


EVENTS = [*session(0, LOGIN), *session(1, EXPORT)]


@pytest.fixture(scope="module")
def worked(tmp_path_factory: pytest.TempPathFactory, embedder: Embedder) -> Iterator[Memory]:
    """A memory that contains two sessions on successive days. Read-only."""
    with Memory.open(tmp_path_factory.mktemp("worked") / "u", embedder=embedder) as memory:
        memory.ingest(EVENTS, now=NOW)
        yield memory


def first(result: RecallResult) -> str:
    return result.memories[0].record.text


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("what did the run about the blank login page conclude?", LOGIN[2]),
        ("what did the run about the invoice export conclude?", EXPORT[2]),
        ("what failed in the work on the invoice export?", "check-export"),
        ("which command did I use for the blank login page?", "git diff --stat 0"),
        ("which command failed for the blank login page?", "tests/login"),
        ("what did I ask about invoices?", EXPORT[0]),
        ("what failed on 2026-02-01?", "tests/login"),
        ("what did I ask last?", EXPORT[0]),
        ("what did the last run conclude?", EXPORT[2]),
        ("which command did I use", "git diff --stat 1"),
        ("what failed?", "check-export"),
        ("Was ist zuletzt fehlgeschlagen?", "check-export"),
        ("Welchen Befehl habe ich zuletzt benutzt?", "git diff --stat 1"),
        ("Quelle était ma dernière demande ?", EXPORT[0]),
        ("¿Qué falló con la página login en Safari?", "tests/login"),
        ("Qual era il risultato del lavoro su login Safari?", LOGIN[2]),
        ("Какая была последняя команда?", "git diff --stat 1"),
        ("关于 invoice export 的结论是什么？", EXPORT[2]),
        ("Safari login で何が失敗しましたか", "tests/login"),
    ],
)
def test_a_query_for_a_kind_finds_it(worked: Memory, query: str, expected: str) -> None:
    assert expected in first(worked.recall(query, reference_time=NOW))


def test_the_last_is_the_newest_before_the_reference_time(worked: Memory) -> None:
    result = worked.recall("what did I ask last?", reference_time=START + DAY - timedelta(hours=1))
    assert first(result) == LOGIN[0]


def test_without_a_model_kinds_are_found_by_words(tmp_path: Path) -> None:
    with open_without_model(tmp_path / "u") as memory:
        memory.ingest(EVENTS, now=NOW)
        result = memory.recall("what did the run about the blank login page conclude?", reference_time=NOW)
        assert first(result) == LOGIN[2]
        assert first(memory.recall("what failed last?", reference_time=NOW)) == first(memory.recall("what failed?"))


def test_a_filter_restricts_the_memories_of_a_kind(worked: Memory) -> None:
    result = worked.recall("what did the run conclude?", filter={"run_id": "r-0"}, reference_time=NOW)
    assert first(result) == LOGIN[2]
    assert {found.record.run_id for found in result.memories} == {"r-0"}


def test_memories_of_other_kinds_remain_in_the_answer(worked: Memory) -> None:
    result = worked.recall("which command did I use for the blank login page?", 10, reference_time=NOW)
    assert LOGIN[0] in [found.record.text for found in result.memories]
    why = result.memories[0].explanation
    assert why["kinds"] == ["command"]
    assert why["kind"] >= RecallSettings().kind_weight
    parts = ("fused", "date_boost", "speaker", "context", "contiguity", "kind", "outcome", "learned")
    assert sum(why[part] for part in parts) == pytest.approx(result.memories[0].sona_score)


def test_the_last_message_ends_an_agents_session_without_runs(
    worked: Memory, embedder: Embedder, tmp_path: Path
) -> None:
    names = ("history.user_msg", "history.assistant_msg", "history.command.completed")
    events = [event for event in session(0, LOGIN) if event["event_type"] in names]
    for event in events:
        event["payload"].pop("run_id")
    with Memory.open(tmp_path / "u", embedder=embedder) as memory:
        memory.ingest([event for event in events if "git diff" not in str(event)], now=NOW)
        result = memory.recall("what did the session about the login page conclude?", reference_time=NOW)
    assert first(result) == "I change it now, 0"


def test_a_weight_of_zero_changes_nothing(tmp_path: Path, embedder: Embedder) -> None:
    with Memory.open(tmp_path / "u", embedder=embedder, recall_settings=RecallSettings(kind_weight=0.0)) as memory:
        memory.ingest(EVENTS, now=NOW)
        result = memory.recall("what did the run about the blank login page conclude?", reference_time=NOW)
    assert {found.explanation["kind"] for found in result.memories} == {0.0}
    assert first(result) != LOGIN[2]


@pytest.mark.parametrize(
    ("query", "kinds"),
    [
        ("which error did the tests give", "failure"),
        ("what went wrong yesterday?", "failure"),
        ("how did it end?", "end"),
        ("what was my request?", "request"),
        ("show the commands that failed", "command failure"),
        ("Worum habe ich dich gebeten?", "request"),
        ("Qu'est-ce qui a échoué hier ?", "failure"),
        ("Che cosa ho chiesto?", "request"),
        ("¿Qué comando usé?", "command"),
        ("Что упало вчера?", "failure"),
        ("用了哪个命令", "command"),
        ("結果は何でしたか", "end"),
    ],
)
def test_the_kinds_that_a_question_names(query: str, kinds: str) -> None:
    assert asked_kinds(fold(query)) == set(kinds.split())


@pytest.mark.parametrize(
    "query",
    [
        "AttributeError when the command failed",
        "Let me check which tests fail with this error",
        "Fix the error that the command gives",
        "what are the end-to-end tests for?",
        "where did they end up?",
        "when does Ann's new job begin?",
        "why is this? " + "The command failed with an error. " * 10,
    ],
)
def test_other_texts_with_words_of_kinds_ask_for_none(query: str) -> None:
    assert asked_kinds(fold(query)) == frozenset()
