"""Splitting a document gives the same members as `json`, for any chunk size and in bounded memory."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memory_agent.sessions import json_stream
from memory_agent.sessions.json_stream import NotJsonError, lines, members
from ops.process_memory import own_memory
from tests.memory_agent.sessions import samples
from tests.memory_agent.sessions.samples import read

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)


def expected(document: Any) -> list[tuple[str, int, Any]]:
    if isinstance(document, list):
        return [("", number, item) for number, item in enumerate(document, 1)]
    found: list[tuple[str, int, Any]] = []
    for name, value in document.items():
        if isinstance(value, list):
            found += [(name, number, item) for number, item in enumerate(value, 1)]
        else:
            found.append((name, 0, value))
    return found


@settings(deadline=None)
@given(
    document=st.lists(values, max_size=5) | st.dictionaries(st.text(), values, max_size=5),
    chunk=st.integers(1, 40),
    indent=st.none() | st.integers(0, 2),
    is_ascii=st.booleans(),
)
def test_members_equal_those_that_json_finds(document: Any, chunk: int, indent: int | None, is_ascii: bool) -> None:
    data = json.dumps(document, indent=indent, ensure_ascii=is_ascii).encode(errors="surrogatepass")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_stream, "_CHUNK_BYTES", chunk)
        found = [(name, number, json.loads(item or b"")) for name, number, item in members(io.BytesIO(data))]
    assert found == expected(document)


@settings(deadline=None)
@given(document=st.lists(values, min_size=1), cut=st.integers(1, 1_000))
def test_a_truncated_document_is_refused(document: Any, cut: int) -> None:
    data = json.dumps(document).encode()
    with pytest.raises(NotJsonError):
        list(members(io.BytesIO(data[: -min(cut, len(data))])))


@pytest.mark.parametrize("data", [b"17", b"", b'{"a": 1]', b'{"a" 1}', b"{1: 2}", b"[1] [2]", b'{"a": [1}', b'"text"'])
def test_invalid_documents_are_refused(data: bytes) -> None:
    with pytest.raises(NotJsonError):
        list(members(io.BytesIO(data)))


def test_an_item_that_is_too_long_is_none_and_the_next_one_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_stream, "_CHUNK_BYTES", 16)
    document = {"a": [["x"] * 100, [1]], "b": 2}
    found = list(members(io.BytesIO(json.dumps(document).encode()), longest=60))
    assert found == [("a", 1, None), ("a", 2, b"[1]"), ("b", 0, b"2")]


@settings(deadline=None)
@given(data=st.binary(max_size=200), longest=st.integers(1, 30))
def test_lines_have_their_numbers_and_end_offsets(data: bytes, longest: int) -> None:
    found = list(lines(io.BytesIO(data), 3, longest))
    expected_lines = data.split(b"\n")
    whole = [len(line) + 1 for line in expected_lines[:-1]]
    assert [line.end for line in found if line.is_whole] == [sum(whole[: place + 1]) for place in range(len(whole))]
    assert [line.number for line in found] == list(range(4, 4 + len(found)))


def test_a_large_session_and_a_large_export_are_read_in_bounded_memory(tmp_path: Path) -> None:
    turns = [samples.claude_line(number, "user", f"prompt {number} " + "word " * 2_000) for number in range(200)]
    path = tmp_path / "s.jsonl"
    block = "".join(json.dumps(turn) + "\n" for turn in turns)
    path.write_text(block * 15)
    (conversation,) = samples.chatgpt_export()
    conversation["mapping"]["a"]["message"]["content"]["parts"] = ["word " * 20_000]
    export = tmp_path / "conversations.json"
    export.write_text("[" + ",".join([json.dumps(conversation)] * 300) + "]")
    assert path.stat().st_size > 30e6
    assert export.stat().st_size > 30e6
    read(samples.write_lines(tmp_path / "first" / "s.jsonl", turns[:2]))  # imports all modules
    before = own_memory()
    count = 0
    most = before
    for source in (path, export):
        for _ in samples.stream(source):
            count += 1
            if count % 1_000 == 0:
                most = max(most, own_memory())
    assert count == 15 * 200 * 2 + 300 * 3
    assert most - before < 24e6
