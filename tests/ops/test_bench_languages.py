"""Test the measurement of recall in other languages: the hand-written facts, and the reading of translated books."""

from __future__ import annotations

from pathlib import Path

import pytest

from memory_agent.embedders import open_embedder
from memory_agent.settings import Settings
from ops.bench import languages

PAGE = """<html><body><p class="title">Title</p><div class="para">{0}<a id="x"></a></div>
<div class="para">With a list <ul><li><div class="para">point</div></li></ul></div><p>{1}</p></body></html>"""
WORDS = {
    "en": "The backup runs every night at two o'clock. The administrator reads the report on the next morning.",
    "de": "Die Sicherung läuft jede Nacht um zwei Uhr. Der Verwalter liest den Bericht am nächsten Morgen.",
}


def test_facts_are_found_in_the_language_of_the_question() -> None:
    embedder = open_embedder(Settings().embedder)
    try:
        sets = {name: (asked, memories) for name, asked, memories in languages.sets_of_facts()}
        assert len(sets) == 7
        for name in ("facts, de", "facts, ru", "facts, zh"):
            hits = languages.measure(*sets[name], embedder, ("lexical",))
            assert sum(hits["lexical"]) >= len(hits["lexical"]) - 1
            assert sum(hits["kept"]) >= 0.75 * len(hits["kept"])
    finally:
        embedder.close()
    text = languages.page({"facts, de": {mode: [True, False] for mode in (*languages.MODES, "kept")}}, {})
    assert "| facts, de | 2 | 0.500 (0.00 to 1.00) |" in text


def test_a_paragraph_is_asked_for_by_one_of_its_sentences(tmp_path: Path) -> None:
    for book, folders in languages._BOOKS:
        for language, text in WORDS.items():
            folder = tmp_path / "usr/share/doc" / book / folders[language]
            folder.mkdir(parents=True)
            (folder / "page.html").write_text(PAGE.format(text, text.split(".")[0]), encoding="utf-8")
    books = languages.translations(tmp_path)
    assert {place[2] for place in books} == {0, 2}
    sets = {name: asked for name, asked, _ in languages.sets_of_books(books, ["en", "de"], 10)}
    assert list(sets) == ["en", "de", "de to en"]
    (first, _), (across, _) = sets["de"], sets["de to en"]
    assert {first.question, first.evidence} == {f"{part}." for part in WORDS["de"].removesuffix(".").split(". ")}
    assert (across.question, across.evidence) == (first.question, WORDS["en"])


def test_untranslated_paragraphs_are_left_out() -> None:
    assert languages._is_translated(WORDS["de"], WORDS["en"])
    assert not languages._is_translated(WORDS["en"], WORDS["en"])


def test_the_page_needs_the_books(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        languages.main(["--languages", "xx"])
    assert "invalid choice" in capsys.readouterr().err
