"""Bad input is counted and reported with its location, raises no error, and does not affect other input."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from memory_agent.sessions import json_stream
from memory_agent.sessions.importing import MOST_NAMED
from tests.memory_agent.sessions import samples
from tests.memory_agent.sessions.samples import PROMPT, read, said, write_document, write_lines


def places(counts: Any) -> list[tuple[str, str]]:
    return [(bad.place, bad.reason) for bad in counts.bad_places]


def test_bad_lines_are_reported_by_number_and_the_rest_is_read(tmp_path: Path) -> None:
    good = [json.dumps(line).encode() for line in samples.claude_session()]
    bad = [
        b"{broken",
        b"[1, 2]",
        b"\xff\xfe\x00 not text",
        b'{"type": "user", "uuid": "u", "message": {"content": 17}}',
        b'{"type": "assistant", "uuid": "u"}',
        b"[" * 100_000,
    ]
    path = tmp_path / "s.jsonl"
    path.write_bytes(b"\n".join([*good[:4], *bad, b"", *good[4:]]) + b"\n")
    events, counts = read(path)
    assert events == read(write_lines(tmp_path / "sound.jsonl", samples.claude_session()))[0]
    assert [place for place, _ in places(counts)] == [f"line {number}" for number in range(5, 11)]
    assert counts.bad == 6
    assert all(PROMPT not in reason for _, reason in places(counts))


def test_an_incomplete_last_line_is_reported_and_a_complete_one_without_newline_is_read(tmp_path: Path) -> None:
    whole = samples.claude_line(1, "user", PROMPT)
    path = tmp_path / "s.jsonl"
    path.write_text(json.dumps(whole))
    assert len(read(path)[0]) == 2
    path.write_text(json.dumps(whole) + "\n" + json.dumps(samples.claude_line(2, "user", "and then?"))[:-40])
    events, counts = read(path)
    assert (len(events), places(counts)) == (
        2,
        [("line 2", "is incomplete: it has no line ending and is not valid JSON")],
    )


def test_a_line_that_is_too_long_is_reported_and_the_next_one_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_stream.lines, "__defaults__", (0, 2_000))
    lines = [samples.claude_line(1, "user", "x" * 9_000), samples.claude_line(2, "user", PROMPT)]
    events, counts = read(write_lines(tmp_path / "s.jsonl", lines))
    assert said(events)[0] == ("user_msg", PROMPT)
    assert [place for place, _ in places(counts)] == ["line 1"]


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.jsonl", b"\x00\x01\x02" * 100, "binary"),
        ("b.jsonl", b"", "empty"),
        ("c.jsonl", b'{"some": "lines"}\n', "unknown format"),
        ("d.json", b'{"some": "document"}', "unknown format"),
        ("e.json", b"no JSON at all", "not JSON: ends early"),
        ("f.zip", b"PK\x03\x04 no archive", "damaged archive"),
        ("g.traj", b"[" * 100_000, "not JSON: ends early"),
    ],
)
def test_a_file_that_is_not_a_session_is_reported(tmp_path: Path, name: str, content: bytes, reason: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    events, counts = read(path)
    assert (events, places(counts)) == ([], [("", reason)])
    events, counts = read(tmp_path)
    assert (events, counts.bad, counts.skipped_files) == ([], 0, {reason: 1})


def test_an_archive_without_conversations_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "photos.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.txt", "text")
    assert places(read(path)[1]) == [("", "not a chat export")]


def test_a_document_that_ends_early_is_read_up_to_its_fault(tmp_path: Path) -> None:
    path = tmp_path / "conversations.json"
    export = json.dumps([*samples.chatgpt_export(), {"mapping": {}, "title": "more"}])
    path.write_text(export[:-12])
    events, counts = read(path)
    assert len(events) == 3
    assert places(counts) == [("", "ends early")]


def test_an_item_of_another_format_is_reported_and_the_next_one_read(tmp_path: Path) -> None:
    export = [{"mapping": {"a": {"message": 17}}}, *samples.chatgpt_export(), {"title": "no mapping"}]
    events, counts = read(write_document(tmp_path / "conversations.json", export))
    assert len(events) == 3
    assert [place for place, _ in places(counts)] == ["item 1", "item 3"]


def test_an_unknown_version_of_atif_is_reported_and_not_read(tmp_path: Path) -> None:
    events, counts = read(
        write_document(tmp_path / "t.json", samples.atif_trajectory() | {"schema_version": "ATIF-v2.0"})
    )
    assert (events, places(counts)) == ([], [("", "has a schema_version that is not ATIF-v1.x")])


def test_a_lone_surrogate_in_a_truncated_text_becomes_one_replacement_character(tmp_path: Path) -> None:
    line = json.dumps(samples.claude_line(1, "user", "CUT and a whole \U0001f600 and C:\\\\ud83d stay"))
    path = tmp_path / "s.jsonl"
    path.write_text(line.replace("CUT", "a cut \\ud83d") + "\n")
    events, counts = read(path)
    assert said(events)[0] == ("user_msg", "a cut \ufffd and a whole \U0001f600 and C:\\\\ud83d stay")
    assert counts.bad == 0


@pytest.mark.parametrize(
    "text",
    [
        "<issue>" * 300_000,
        "ISSUE:\n" + "\n" * 2_000_000,
        "<recalled_memories>\nRecords of past sessions" * 50_000,
        "<system-reminder>" * 200_000,
        "<hook_context>" * 200_000,
        "```bash\n" * 300_000,
        "Exit code: " * 200_000,
    ],
)
def test_hostile_texts_take_linear_time(tmp_path: Path, text: str) -> None:
    run = samples.mini_trajectory()
    run["messages"][1]["content"] = run["messages"][2]["content"] = text
    write_document(tmp_path / "shop-2.traj.json", run)
    write_lines(tmp_path / "s.jsonl", [samples.claude_line(1, "user", text), samples.claude_line(2, "user", PROMPT)])
    message = {"id": "m1", "type": "user", "content": text}
    write_lines(tmp_path / "session-1.jsonl", [samples.gemini_session()[0], message])
    call = samples.codex_session()[8]
    answer = samples.codex_line(9, "response_item", type="function_call_output", call_id="c", output=text)
    write_lines(tmp_path / "rollout-1.jsonl", [samples.codex_session()[0], call, answer])
    events, counts = read(tmp_path)
    assert counts.bad == 0
    assert ("user_msg", PROMPT) in said(events)


def test_unknown_types_of_lines_are_counted(tmp_path: Path) -> None:
    lines = [*samples.claude_session(), {"type": "hologram", "uuid": "u", "sessionId": "s-claude"}]
    assert read(write_lines(tmp_path / "s.jsonl", lines))[1].left["unknown type"] == 1


def test_a_bad_event_of_openhands_is_reported_by_its_file(tmp_path: Path) -> None:
    folder = samples.write_openhands(tmp_path)
    (folder / "c-17" / "events" / "event-00007-e7.json").write_text('{"id": "e7", "kind"')
    events, counts = read(folder)
    assert (len(events), places(counts)) == (5, [("event-00007-e7.json", "is not JSON")])


def test_many_bad_lines_are_counted_and_the_first_thousand_listed(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    head = json.dumps(samples.claude_line(1, "user", PROMPT))
    path.write_text(head + "\n" + "{broken\n" * (MOST_NAMED + 500))
    counts = read(path)[1]
    assert (counts.bad, len(counts.bad_places)) == (MOST_NAMED + 500, MOST_NAMED)


def test_invalid_times_are_replaced_by_the_modification_time_of_the_file(tmp_path: Path) -> None:
    lines = [samples.claude_line(1, "user", PROMPT, timestamp="the day before")]
    events, _ = read(write_lines(tmp_path / "s.jsonl", lines))
    assert events[0]["timestamp"].startswith("20")
