"""A watch finds added, changed, renamed and removed documents, but no document that is still being written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from memory_agent.memory import Memory
from memory_agent.notes import DocumentWatch, StoredNotes, index_documents
from memory_agent.settings import EmbedderSettings, Settings
from tests.crash.disk import CannotMountError, small_disk

NOW = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Memory]:
    no_model = Settings(embedder=EmbedderSettings(folder="none", allow_download=False))
    with Memory.open(tmp_path / "alice", settings=no_model) as opened:
        yield opened


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    folder = tmp_path / "docs"
    (folder / "deep").mkdir(parents=True)
    (folder / "release.md").write_text("# Release\nTag, then push.")
    (folder / "deep" / "vpn.md").write_text("Staging needs the VPN.")
    return folder


def counts(memory: Memory, watch: DocumentWatch, root: Path) -> tuple[int, int, int, int] | None:
    """Poll and index changes; return counts of added, replaced, removed and bad notes, or None if nothing changed."""
    changed = watch.look()
    if not changed:
        return None
    stored: StoredNotes = index_documents(memory, root, NOW, lambda *_: None, changed)
    watch.settle(changed)
    return stored.added, stored.replaced, stored.removed, stored.bad


def texts(memory: Memory) -> set[str]:
    return {record.text for record in memory.list().records}


def test_changes_are_indexed_once_two_polls_agree(memory: Memory, docs: Path) -> None:
    watch = DocumentWatch(docs)
    assert counts(memory, watch, docs) == (2, 0, 0, 0)
    assert counts(memory, watch, docs) is None
    (docs / "release.md").write_text("# Release\nTag, test")
    assert counts(memory, watch, docs) is None
    (docs / "release.md").write_text("# Release\nTag, test, then push.\n# Who\nAnn does it.")
    assert counts(memory, watch, docs) is None  # still being written
    assert counts(memory, watch, docs) == (1, 1, 0, 0)
    (docs / "new.md").write_text("# New\nAdded later.")
    assert (counts(memory, watch, docs), counts(memory, watch, docs)) == (None, (1, 0, 0, 0))
    assert texts(memory) == {"Tag, test, then push.", "Ann does it.", "Staging needs the VPN.", "Added later."}


def test_a_removed_document_is_forgotten_and_a_renamed_one_follows(memory: Memory, docs: Path) -> None:
    watch = DocumentWatch(docs)
    counts(memory, watch, docs)
    (docs / "release.md").unlink()
    (docs / "deep" / "vpn.md").rename(docs / "network.md")
    assert (counts(memory, watch, docs), counts(memory, watch, docs)) == (None, (1, 0, 2, 0))
    (record,) = memory.list().records
    assert (record.text, record.metadata["file"]) == ("Staging needs the VPN.", str(docs / "network.md"))
    assert counts(memory, watch, docs) is None


def test_a_document_that_is_not_text_is_refused_once_and_its_sections_stay(memory: Memory, docs: Path) -> None:
    watch = DocumentWatch(docs)
    counts(memory, watch, docs)
    (docs / "release.md").write_bytes(b"# Release\n\x00\x01")
    (docs / "picture.png").write_bytes(b"\x00")
    assert (counts(memory, watch, docs), counts(memory, watch, docs)) == (None, (0, 0, 0, 1))
    assert counts(memory, watch, docs) is None
    assert "Tag, then push." in texts(memory)


def test_while_the_folder_is_gone_its_sections_stay(memory: Memory, docs: Path) -> None:
    watch = DocumentWatch(docs)
    counts(memory, watch, docs)
    away = docs.rename(docs.with_name("away"))
    assert [counts(memory, watch, docs) for _ in range(3)] == [None] * 3
    assert len(texts(memory)) == 2
    away.rename(docs)
    (docs / "release.md").unlink()
    assert (counts(memory, watch, docs), counts(memory, watch, docs)) == (None, (0, 0, 1, 0))


def test_a_document_whose_indexing_failed_is_returned_again(docs: Path) -> None:
    watch = DocumentWatch(docs)
    assert watch.look() == watch.look() != {}


def test_a_single_document_is_watched(memory: Memory, docs: Path) -> None:
    path = docs / "release.md"
    watch = DocumentWatch(path)
    assert counts(memory, watch, path) == (1, 0, 0, 0)
    os.utime(path, (1, 1))
    assert (counts(memory, watch, path), counts(memory, watch, path)) == (None, (0, 0, 0, 0))


def test_no_document_is_gone_while_its_disk_is_not_mounted(memory: Memory, tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    watch = DocumentWatch(folder)
    try:
        with small_disk(folder, 1 << 20):
            (folder / "release.md").write_text("Tag, then push.")
            assert counts(memory, watch, folder) == (1, 0, 0, 0)
    except CannotMountError as error:
        pytest.skip(str(error))
    assert list(folder.iterdir()) == []
    assert [counts(memory, watch, folder) for _ in range(3)] == [None] * 3
    (folder / "vpn.md").write_text("Staging needs the VPN.")
    assert [counts(memory, watch, folder) for _ in range(2)] == [None, (1, 0, 1, 0)]
