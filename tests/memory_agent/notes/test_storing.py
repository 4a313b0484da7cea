"""Notes in a store are added, replaced, retained and forgotten as their files change; invalid notes are reported."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from memory_agent.memory import Memory
from memory_agent.notes import StoredNotes, has_notes, index_documents, read_plain, store_notes
from memory_agent.recall.context import context_block

NOW = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Memory]:
    with Memory.open(tmp_path / "alice") as opened:
        yield opened


def take(memory: Memory, data: bytes) -> tuple[tuple[int, int, int], list[tuple[str, str]]]:
    stored = store_notes(memory, read_plain(io.BytesIO(data), "notes.json"), "notes.json")
    counts = (stored.added, stored.replaced, stored.unchanged)
    return counts, [(bad.place, bad.reason) for bad in stored.bad_places]


def index(memory: Memory, root: Path) -> tuple[int, int, int, int]:
    stored = index_documents(memory, root, NOW, lambda *_: None)
    return stored.added, stored.replaced, stored.removed, stored.unchanged


@pytest.mark.parametrize(
    "data",
    [
        b'{"entries": [{"text": "Use uv here."}, {"text": "Staging needs the VPN"}]}',
        b'{\n  "version": 1,\n  "entries": [\n    {"text": "Use uv here."},\n{"text": "Staging needs the VPN"}\n]\n}',
        b'[{"content": "Use uv here."}, {"memory": "Staging needs the VPN"}]',
        b'\xef\xbb\xbf{"text": "Use uv here."}\r\n\r\n{"text": "Staging needs the VPN"}',
    ],
)
def test_plain_memories_in_any_form_are_stored_once(memory: Memory, data: bytes) -> None:
    assert has_notes(io.BytesIO(data))
    assert take(memory, data) == ((2, 0, 0), [])
    before = memory.list(limit=10)
    assert take(memory, data) == ((0, 0, 2), [])
    assert memory.list(limit=10) == before
    assert {record.text for record in before.records} == {"Use uv here.", "Staging needs the VPN"}


def test_the_fields_of_a_plain_memory_are_kept_and_unknown_ones_are_metadata(memory: Memory) -> None:
    data = (
        b'{"id": "vpn", "text": "Staging needs the VPN", "created_at": "2026-02-16T10:00:00Z", "tags": ["deploy"],'
        b' "kind": "pattern", "title": "VPN", "host": "staging", "metadata": {"by": "ann"}, "quality_score": 0.5}'
    )
    assert take(memory, data) == ((1, 0, 0), [])
    (record,) = memory.get(["vpn"])
    assert (record.kind, record.title, record.tags, record.quality_score) == ("pattern", "VPN", ("deploy",), 0.5)
    assert record.timestamp == datetime(2026, 2, 16, 10, tzinfo=UTC)
    assert (record.metadata["host"], record.metadata["by"]) == ("staging", "ann")
    assert take(memory, data.replace(b"needs the VPN", b"needs no VPN")) == ((0, 1, 0), [])
    assert memory.get(["vpn"])[0].text == "Staging needs no VPN"


def test_bad_entries_are_reported_and_the_rest_is_stored(memory: Memory) -> None:
    lines = [
        b'{"text": "The first good one"}',
        b"{broken",
        b'["a list"]',
        b'{"title": "no text"}',
        b'{"text": "bad kind", "kind": "hunch"}',
        b'{"text": "bad time", "timestamp": "yesterday"}',
        b'{"text": "future", "timestamp": "2999-01-01T00:00:00Z"}',
        b'{"text": "bad tags", "tags": "deploy"}',
        b'{"text": "bad metadata", "metadata": 1}',
        b'{"text": "bad title", "title": 1}',
        b'{"text": "bad id", "id": ["x"]}',
        b'{"text": "not UTF-8 \xff"}',
        b'{"text": "deep", "metadata": ' + b'{"a":' * 2_000 + b"1" + b"}" * 2_000 + b"}",
        b'{"text": "The last good one"}',
    ]
    counts, bad = take(memory, b"\n".join(lines))
    assert counts == (2, 0, 0)
    assert sorted(place for place, _ in bad) == sorted(f"line {number}" for number in range(2, 14))
    assert dict(bad)["line 5"].startswith("kind: must be one of")


def test_a_list_that_ends_early_is_stored_up_to_its_fault(memory: Memory) -> None:
    counts, bad = take(memory, b'{"entries": [{"text": "Use uv here."}, {"text": "Stag')
    assert (counts, bad) == ((1, 0, 0), [("", "ends early")])


def test_files_without_notes_are_recognised() -> None:
    for data in (b"", b"{}", b"a diary\n", b'{"memory_agent_export": 2, "user_id": "alice"}', b"\x00\x01", b"[1, 2]"):
        assert not has_notes(io.BytesIO(data))


def test_a_folder_of_documents_is_followed_as_it_changes(memory: Memory, tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    (docs / "deep").mkdir(parents=True)
    (docs / ".git").mkdir()
    (docs / ".git" / "x.md").write_text("# Hidden\nNever read.")
    (docs / "release.md").write_text("# Release\n## Steps\nTag, then push.\n## Who\nAnn does it.")
    (docs / "deep" / "vpn.markdown").write_text("Staging needs the VPN.")
    (docs / "picture.png").write_bytes(b"\x00\x01")
    elsewhere = tmp_path / "docs-too.md"
    elsewhere.write_text("# Else\nAnother document.")
    assert index(memory, elsewhere) == (1, 0, 0, 0)
    assert index(memory, docs) == (3, 0, 0, 0)
    before = memory.list(limit=10)
    assert index(memory, docs) == (0, 0, 0, 3)
    assert memory.list(limit=10) == before
    (docs / "release.md").write_text("Read this first.\n# Release\n## Steps\nTag, test, then push.\n")
    assert index(memory, docs) == (1, 1, 1, 1)
    (docs / "deep" / "vpn.markdown").unlink()
    assert index(memory, docs) == (0, 0, 1, 2)
    texts = {record.text for record in memory.list(limit=10).records}
    assert texts == {"Another document.", "Read this first.", "Tag, test, then push."}


def test_sections_of_an_unreadable_document_are_kept(memory: Memory, tmp_path: Path) -> None:
    path = tmp_path / "a.md"
    path.write_text("# A\nStaging needs the VPN.")
    assert index(memory, tmp_path / "a.md") == (1, 0, 0, 0)
    path.write_bytes(b"# A\n\xff\xfe")
    stored = index_documents(memory, path, NOW, lambda *_: None)
    assert (stored.removed, stored.bad, memory.stats().memories) == (0, 1, 1)
    path.write_bytes(b"# A\n\x00")
    stored = index_documents(memory, path, NOW, lambda *_: None)
    assert (stored.removed, stored.bad_places[0].reason) == (0, "is binary")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"%PDF-1.7\n1 0 obj\n<< /Type /Catalog >>\nendobj\n", "is a PDF document, not text; convert it to Markdown"),
        (b"{\\rtf1\\ansi Staging needs the VPN.}", "is an RTF document"),
        (b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR", "is an image"),
        (b"PK\x03\x04\x14\x00\x06\x00", "is an archive or an office document"),
        ("# A\nStaging needs the VPN.".encode("utf-16"), "is UTF-16 or UTF-32; convert it to UTF-8"),
        ("# A\nStaging needs the VPN.".encode("utf-16-le"), "is UTF-16 or UTF-32; convert it to UTF-8"),
        ("# A\nStaging needs the VPN.".encode("utf-16-be"), "is UTF-16 or UTF-32; convert it to UTF-8"),
        ("# A\nStaging needs the VPN.".encode("utf-32-be"), "is UTF-16 or UTF-32; convert it to UTF-8"),
        ("# Caf\u00e9\nOpen until nine.".encode("latin-1"), "is not valid UTF-8 at byte 5; convert it to UTF-8"),
        (b"# A\nstate \x01\x02\x05 of a machine", "is binary"),
        (b"text " * 100 + b"\x00", "is binary"),
    ],
)
def test_a_file_that_is_no_text_is_refused_whole(memory: Memory, tmp_path: Path, data: bytes, reason: str) -> None:
    path = tmp_path / "a.md"
    path.write_bytes(data)
    stored = index_documents(memory, path, NOW, lambda *_: None)
    assert (stored.added, stored.bad, memory.stats().memories) == (0, 1, 0)
    assert stored.bad_places[0].reason.startswith(reason)


@pytest.mark.parametrize(
    "text", ["# A\n\x1b[1mbold\x1b[0m of a terminal\f", "\ufeff# A\nbegins with a mark", "# \u4e2d\u6587\n\u6d4b\u8bd5"]
)
def test_unusual_texts_are_indexed(memory: Memory, tmp_path: Path, text: str) -> None:
    (tmp_path / "a.md").write_text(text, encoding="utf-8")
    assert index(memory, tmp_path / "a.md") == (1, 0, 0, 0)


def test_indexing_a_folder_keeps_sections_of_skipped_folders(memory: Memory, tmp_path: Path) -> None:
    (tmp_path / ".claude").mkdir()
    hidden = tmp_path / ".claude" / "CLAUDE.md"
    hidden.write_text("# Rules\n- Use uv here.")
    notes = tmp_path / "notes.txt"
    notes.write_text("Staging needs the VPN.")
    assert (index(memory, hidden), index(memory, notes)) == ((1, 0, 0, 0), (1, 0, 0, 0))
    assert index(memory, tmp_path) == (0, 0, 0, 0)
    hidden.unlink()
    assert index(memory, tmp_path) == (0, 0, 1, 0)


def test_a_document_with_a_future_time_gets_the_current_time(memory: Memory, tmp_path: Path) -> None:
    path = tmp_path / "a.md"
    path.write_text("Staging needs the VPN.")
    os.utime(path, (4_000_000_000, 4_000_000_000))
    assert index(memory, path) == (1, 0, 0, 0)
    assert memory.list().records[0].timestamp == NOW


def test_a_block_of_memories_in_a_document_is_left_out(memory: Memory, tmp_path: Path) -> None:
    memory.remember("A mutex per session fixed the race")
    block = context_block(memory.recall("why do two tabs race?", min_relevance=0))
    path = tmp_path / "log.md"
    path.write_text(f"# Log\nIt was asked.\n{block}\n")
    assert index(memory, path) == (1, 0, 0, 0)
    assert [record.text for record in memory.list().records if record.type] == ["It was asked."]


def test_a_report_lists_at_most_a_thousand_bad_places() -> None:
    stored = StoredNotes()
    data = b"{broken\n" * 1_500
    for one in read_plain(io.BytesIO(data), "x"):
        stored.reject(one)  # type: ignore[arg-type]
    assert (stored.bad, len(stored.bad_places)) == (1_500, 1_000)
