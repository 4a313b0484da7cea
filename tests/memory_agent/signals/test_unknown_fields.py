"""An event without known fields is stored as readable text, never as a JSON dump."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from event_samples import kept, read
from hypothesis import given
from hypothesis import strategies as st
from memory_samples import open_without_model

from memory_agent.records.memories import MemoryRecord
from memory_agent.settings import Settings
from memory_agent.signals import Dropped
from memory_agent.signals.language import reads_as_language
from memory_agent.signals.payloads import read_unknown

SENTENCE = "The session map is guarded by a mutex now"
UUID = "550e8400-e29b-41d4-a716-446655440000"
BASE64 = "VGhlIHNlc3Npb24gbWFwIGlzIGd1YXJkZWQgYnkgYSBtdXRleCBub3cgYW5kIHRoZSB0ZXN0cyBwYXNz"
TRACE = 'Traceback (most recent call last):\n  File "/srv/app/auth.py", line 12, in refresh\n    lock of the map'
CODE = "def read(path):\n    with open(path) as file:\n        return file.read()"

LANGUAGE = [
    SENTENCE,
    "Fixed 3 of 12 tests in auth.py (see PR #42)",
    "2 failed, 3 passed in 0.12s",
    "I changed refresh() and load() so that both lock the map",
    "- the **map** is shared\n- `refresh` writes it",
    "Она не закрывает соединение",
    "La carte des sessions n'est pas protégée",
    "사용자 세션 맵을 잠갔습니다",
    "यह परीक्षण अब सफल है",
    "会话映射现在由互斥锁保护",
    "セッションの地図はロックで守られています",
    "แผนที่เซสชันถูกล็อกแล้ว",
    "修复了 auth 模块的竞争问题",
    "[1] The map is shared, says the first reference",
    "He said: the map is not locked, and 'nobody' reads it",
]
NO_LANGUAGE = [
    "",
    "   ",
    "done",
    "in progress",
    "12345",
    "1 22 333 4444 55555 a b c",
    "2026-02-16T10:00:00Z",
    UUID,
    f"{UUID} {UUID} {UUID}",
    BASE64,
    "\n".join([BASE64] * 5),
    "deadbeef cafebabe feedface",
    "de ad be ef ca fe",
    "sk-live-4f9a8b7c6d5e4f3a2b1c",
    "/srv/app/memory agent/auth module/session map.rs",
    "C:\\Program Files\\Session Map\\auth module.rs",
    "https://example.org/the/session/map?is=guarded&by=a",
    "https://example.org/a https://example.org/b https://example.org/c",
    "a=1 b=2 c=3 d=4",
    json.dumps({"summary": SENTENCE}),
    json.dumps({"summary": SENTENCE})[:-3],
    json.dumps([SENTENCE, SENTENCE])[:-3],
    json.dumps(json.dumps({"summary": SENTENCE})),
    f"Result: {json.dumps({'note': SENTENCE})}",
    "\n".join([json.dumps({"note": SENTENCE})] * 2),
    str({"note": SENTENCE}),
    f"<p>{SENTENCE}</p>",
    TRACE,
    CODE,
    "import os\nimport sys\nprint(sys.argv)",
    "if (a == b && c != d) { return false; }",
]


@pytest.mark.parametrize("text", LANGUAGE)
def test_sentences_of_any_language_read_as_language(text: str) -> None:
    assert reads_as_language(text)
    assert read_unknown({"strange": {"place": text}}) == text


@pytest.mark.parametrize("text", NO_LANGUAGE)
def test_labels_tokens_paths_numbers_code_and_dumps_do_not(text: str) -> None:
    assert not reads_as_language(text)


@pytest.mark.parametrize("text", [text for text in NO_LANGUAGE if not text.startswith(('{"', '["'))])
def test_payloads_without_language_make_no_memory(text: str) -> None:
    assert read("conductor.worker.result", {"blob": text, "id": UUID, "sizes": [1, 2]}) == Dropped("no_text")


@pytest.mark.parametrize(
    "name", ["result_summary", "resultSummary", "final-message", "FullText", "last_error", "my_result"]
)
def test_a_field_with_a_descriptive_name_is_read(name: str) -> None:
    longer = f"{SENTENCE}, which nobody had thought of before"
    assert kept("conductor.worker.result", {"note": longer, name: SENTENCE}).text == SENTENCE


def test_the_outermost_field_is_read_and_a_summary_is_preferred() -> None:
    inner = {"deep_summary": "This one lies deeper"}
    payload = {"a": inner, "worker_result": "Third", "exit_message": "Second", "result_summary": SENTENCE}
    assert kept("conductor.worker.result", payload).text == SENTENCE
    assert kept("conductor.worker.result", {"outcome": inner}).text == "This one lies deeper"
    assert kept("conductor.worker.result", {"payload": {"result_summary": SENTENCE}}).text == SENTENCE
    assert (
        kept("conductor.worker.result", {"result_summary": {"title": "Map", "details": SENTENCE}}).text
        == f"Map: {SENTENCE}"
    )
    assert kept("conductor.worker.result", {"result_summary": ["One thing", "Another"]}).text == "One thing\nAnother"


def test_a_descriptive_field_with_a_token_or_a_dump_is_skipped() -> None:
    for junk in (UUID, BASE64, 7, None, {"a": 1}, json.dumps({"a": SENTENCE})[:-1], ""):
        assert kept("conductor.worker.result", {"result_summary": junk, "note": SENTENCE}).text == SENTENCE


def test_one_word_is_enough_in_a_descriptive_field_only() -> None:
    assert kept("conductor.worker.result", {"exit_message": "Finished"}).text == "Finished"
    assert read("conductor.worker.result", {"state": "Finished"}) == Dropped("no_text")


def test_context_fields_are_not_text() -> None:
    assert read("conductor.worker.result", {"context": "alice"}) == Dropped("no_text")


def test_the_longest_text_that_reads_as_language_is_read() -> None:
    payload = {"note": "A short note here", "blob": BASE64 * 9, "inner": [{"remark": SENTENCE}], "trace": TRACE}
    assert kept("worker.task.completed", payload).text == SENTENCE


def test_json_in_a_field_is_decoded() -> None:
    payload = {"blob": json.dumps({"inner": json.dumps({"result_summary": SENTENCE, "code": 3})})}
    assert kept("conductor.worker.result", payload).text == SENTENCE


def test_known_fields_precede_unknown_ones() -> None:
    payload = {"description": "Known", "result_summary": SENTENCE}
    assert kept("conductor.worker.result", payload).text == "Known"
    assert kept("conductor.worker.result", {"output": "12 of 12", "result_summary": SENTENCE}).text == "12 of 12"


def test_a_known_field_without_letters_counts_as_empty() -> None:
    assert kept("conductor.worker.result", {"value": 12345, "result_summary": SENTENCE}).text == SENTENCE
    assert read("conductor.worker.result", {"value": 12345}) == Dropped("no_text")


def test_accompanying_fields_alone_make_no_memory() -> None:
    assert read("conductor.run.completed", {"goal": SENTENCE}) == Dropped("no_text")


def test_a_very_long_text_is_found_and_truncated() -> None:
    record = kept("conductor.worker.result", {"story": f"{SENTENCE}. " * 20_000})
    assert record.text.startswith(SENTENCE)
    assert len(record.text) == Settings().ingest.max_text_chars


@pytest.mark.parametrize("filler", ["\n", " \n", "\r\n", "x:", "at x:", "\nat x:x:", '"', "{ ", "a(", "; "])
def test_the_largest_event_is_read_in_linear_time(filler: str) -> None:
    text = "a" + filler * (10_000 // len(filler)) + "b"  # 10,000 empty lines once took 1.8 s
    started_s = time.process_time()
    for summary in (text, text.replace("a", "at a", 1)):
        read_unknown({f"field_{number}": summary for number in range(26)})
    assert time.process_time() - started_s < 5.0


def test_invalid_unicode_in_unknown_fields_is_skipped() -> None:
    assert kept("user_input", {"broken_summary": "a\ud800b", "note": SENTENCE}).text == SENTENCE


def test_secrets_in_unknown_fields_are_masked(tmp_path: Path) -> None:
    secret = "ghp_" + "a1B2" * 9
    payload = {"result_summary": f"The worker used the token {secret} to push the branch"}
    event = {"event_type": "conductor.worker.result", "timestamp": "2026-02-16T10:00:00Z", "user_id": "a"}
    with open_without_model(tmp_path / "a") as memory:
        shapes = (payload, {"blob": json.dumps(payload)}, {"notes": [{"remark": payload["result_summary"]}]})
        assert memory.ingest([event | {"payload": shape} for shape in shapes]).kept == len(shapes)
        [found] = memory.recall("worker used the token", mode="lexical").memories
        assert found.count == len(shapes)
        assert found.record.text.startswith("The worker used the token ")
        assert secret not in found.record.text


unquoted = st.characters(exclude_characters="\"'")
names = st.sampled_from(["result_summary", "blob", "note", "lastError", "payload", "data", "raw"]) | st.text(
    unquoted, max_size=8
)
words = st.sampled_from([SENTENCE, "Finished", "会话映射现在由互斥锁保护", UUID, ""]) | st.text(unquoted, max_size=30)
documents = st.dictionaries(names, words | st.integers() | st.lists(words, max_size=3), min_size=1, max_size=4)


@st.composite
def dumps(draw: st.DrawFn) -> str:
    """Draw JSON documents as text: complete, truncated, escaped, preceded by a few words, or one per line."""
    text = draw(st.sampled_from([json.dumps, str]))(draw(documents | st.lists(documents, min_size=1, max_size=3)))
    cut = draw(st.integers(0, 40))
    text = text[: max(len(text) - cut, len(text) // 2, 12)]
    form = draw(st.sampled_from(["{}", "{}\n{}", "Output of the run: {}", "  {}"]))
    return form.replace("{}", text)


payloads = st.recursive(
    dumps() | words | st.integers() | documents,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4),
    max_leaves=8,
)


@given(st.dictionaries(names, payloads, max_size=5))
def test_no_text_of_unknown_fields_is_a_json_dump(payload: dict[str, Any]) -> None:
    text = read_unknown(payload)
    assert not text.lstrip().startswith(('{"', "{'", "[{", '["{'))
    for quote in '"', "'":
        assert f"{quote}: " not in text
    assert '{"' not in text
    if text.strip()[:1] in ("{", "["):
        with pytest.raises(ValueError):
            json.loads(text)


@given(st.dictionaries(names, payloads, max_size=5))
def test_any_unknown_fields_become_a_memory_or_noise(payload: dict[str, Any]) -> None:
    record = read("conductor.worker.result", {f"x{name}": value for name, value in payload.items()})
    if isinstance(record, MemoryRecord):
        assert any(map(str.isalpha, record.text))
