"""Markdown is split at headings of any kind, but never within code; section ids survive changes elsewhere."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from memory_agent.notes import read_markdown, sections

NOW = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Only text.", [((), "Only text.", 1)]),
        (
            "# A\n\nOne.\n\n## B ##\nTwo.\n# C\nThree.",
            [(("A",), "One.", 1), (("A", "B"), "Two.", 5), (("C",), "Three.", 7)],
        ),
        ("A\n===\nOne.\n\nB\n---\nTwo.", [(("A",), "One.", 2), (("A", "B"), "Two.", 6)]),
        ("# A\n## B\n#### C\nDeep.\n### D\nNext.", [(("A", "B", "C"), "Deep.", 3), (("A", "B", "D"), "Next.", 5)]),
        ("# A\n```sh\n# no heading\n```\nEnd.", [(("A",), "```sh\n# no heading\n```\nEnd.", 1)]),
        ("# A\n~~~\n```\n# no heading\n~~~\n# B\nx", [(("A",), "~~~\n```\n# no heading\n~~~", 1), (("B",), "x", 6)]),
        ("---\ntitle: x\n---\n# A\nOne.", [(("A",), "One.", 4)]),
        ("# A\nOne.\n\n---\n\nTwo.", [(("A",), "One.\n\n---\n\nTwo.", 1)]),
        ("# A\n- one\n---\n", [(("A",), "- one\n---", 1)]),
        ("# A\n<!-- # hidden\n-->\n# B\nTwo.", [(("B",), "Two.", 4)]),
        ("#no heading\n#\nx", [((), "#no heading", 1), (("",), "x", 2)]),
        ("# A\n```\nnever closed\n# B", [(("A",), "```\nnever closed\n# B", 1)]),
        ("# C#\nx\n## D # #\ny", [(("C#",), "x", 1), (("C#", "D #"), "y", 3)]),
        ("# A\nOne.\n<!-- never closed\n# B\nTwo.", [(("A",), "One.", 1)]),
        ("", []),
        ("# A\n# B\n", []),
    ],
)
def test_sections(text: str, expected: list[tuple[tuple[str, ...], str, int]]) -> None:
    assert [tuple(section) for section in sections(text)] == expected
    assert [tuple(section) for section in sections(text.replace("\n", "\r\n"))] == [
        (headings, words.replace("\r", ""), line) for headings, words, line in expected
    ]


def test_a_section_is_a_memory_with_its_file_and_headings() -> None:
    (note,) = read_markdown(Path("/shop/docs/release.md"), "# Release\n## Steps\nTag, then push.", NOW)
    assert (note.text, note.title, note.timestamp) == ("Tag, then push.", "Release > Steps", NOW)
    assert note.metadata == {"file": "/shop/docs/release.md", "heading": "Release > Steps"}


def test_list_items_become_memories_only_in_the_memory_files_of_agents() -> None:
    text = "## Gemini Added Memories\n- Use uv here.\n- Staging needs the VPN:\n  - at noon, too\n\nAnd so on."
    items = [note.text for note in read_markdown(Path("GEMINI.md"), text, NOW)]
    assert items == ["Use uv here.", "Staging needs the VPN:\n  - at noon, too", "And so on."]
    (whole,) = read_markdown(Path("guide.md"), text, NOW)
    assert whole.text.startswith("- Use uv here.")


def test_a_long_section_is_cut_between_paragraphs_and_code_stays_whole() -> None:
    code = "```\n" + "\n\n".join(["line"] * 20) + "\n```"
    text = "# A\n" + "\n\n".join(["word " * 100] * 8) + "\n\n" + code
    notes = list(read_markdown(Path("a.md"), text, NOW))
    assert [len(note.text) > 900 for note in notes] == [True] * 4
    assert all(len(note.text) <= 1_600 for note in notes)
    assert code in notes[-1].text
    assert len({note.id for note in notes}) == 4


@pytest.mark.parametrize(
    "text",
    ["<!-- " * 400_000, "# " + " " * 2_000_000 + "x", "# A\n" + "- \n" * 500_000, "```\n" * 500_000, "\n" * 2_000_000],
)
def test_hostile_documents_take_linear_time(text: str) -> None:
    assert all(len(note.text) <= 13_600 for note in read_markdown(Path("a.md"), text, NOW))


def test_a_paragraph_that_is_too_long_is_cut() -> None:
    notes = list(read_markdown(Path("a.md"), "word " * 8_000, NOW))
    assert [len(note.text) for note in notes] == [12_000, 12_000, 12_000, 3_999]


def test_the_id_of_a_section_depends_on_its_headings_and_not_on_its_text() -> None:
    before = {note.title: note.id for note in read_markdown(Path("a.md"), "# A\nOne.\n# B\nTwo.", NOW)}
    after = {note.title: note.id for note in read_markdown(Path("a.md"), "New.\n# A\n\nOther.\n\n# B\nTwo.", NOW)}
    assert {title: after[title] for title in before} == before
    other = {note.id for note in read_markdown(Path("b.md"), "# A\nOne.\n# B\nTwo.", NOW)}
    assert other.isdisjoint(before.values())
    twice = list(read_markdown(Path("a.md"), "# A\nOne.\n# A\nTwo.", NOW))
    assert len({note.id for note in twice}) == 2
