"""Highlights agree with the `snippet()` function of FTS5."""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from memory_agent.recall.highlights import highlight
from memory_agent.storage.terms import query_words, text_words

LOCOMO = Path(__file__).parents[4] / "shared" / "data" / "locomo_dev.json"
KNOWN_STEMS = re.compile(r"\w*(bly|ble|logy|logies|logical|kked)\b", re.IGNORECASE)
"""Words for which the Porter stemmers of Snowball and FTS5 differ."""

said = st.sampled_from(
    [
        *("run", "running", "race", "races", "Café", "cafe\u0301", "東京", "other", "words", "of", "no", "interest"),
        *(". And", ": so", ".\n\nThen", "... well", "a.b", "- ", ".", ":", "!", "☀", "**", "x" * 70),
    ]
)
texts = st.lists(said, max_size=90).map(" ".join)
short = st.lists(said, max_size=30).map(" ".join)
queries = st.lists(
    st.sampled_from(["run", "runs", "race", "café", "東京", "interest", "absent"]), min_size=1, max_size=6
)


def bare(text: str) -> str:
    """Remove the highlight marks and ellipses from a text."""
    return text.replace("*", "").replace("…", "")


def highlights(words: list[str], title: str, text: str, tags: tuple[str, ...]) -> tuple[str, ...]:
    found = highlight(words, title, text, tags)
    if found is not None and found.at:
        assert bare(text[found.at :]).startswith(bare(found.passage)), "it begins there"
    return () if found is None else (found.passage,)


def snippets(words: list[str], memories: list[tuple[str, str, str]]) -> list[tuple[str, ...]]:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute(
            "CREATE VIRTUAL TABLE words USING fts5 (title, text, tags, tokenize='porter unicode61 remove_diacritics 2')"
        )
        connection.executemany("INSERT INTO words VALUES (?, ?, ?)", memories)
        found = dict(
            connection.execute(
                "SELECT rowid, snippet(words, -1, '**', '**', '…', 24) FROM words WHERE words MATCH ?",
                (" OR ".join(f'"{word}"' for word in words),),
            )
        )
    return [(found[row],) if row in found else () for row in range(1, len(memories) + 1)]


@settings(deadline=None, max_examples=150)
@given(words=queries, title=short, text=texts, tags=st.lists(st.sampled_from(["run", "a race", "b"]), max_size=3))
@example(words=["run"], title="", text="run " * 60, tags=[])
@example(
    words=["race", "run"], title="race", text="other " * 20 + "x. " + "words " * 30 + "race. Run " * 3, tags=["run"]
)
def test_passages_are_those_of_fts5(words: list[str], title: str, text: str, tags: list[str]) -> None:
    words = list(dict.fromkeys(words))
    assert [highlights(words, title, text, tags)] == snippets(words, [(title, text, " ".join(tags))])


@pytest.mark.skipif(not LOCOMO.exists(), reason="the LoCoMo data is not available")
def test_passages_of_real_dialogues_are_those_of_fts5() -> None:
    dialogue = json.loads(LOCOMO.read_text(encoding="utf-8"))[0]
    sessions = [part for part in dialogue["conversation"].values() if isinstance(part, list)]
    turns = [(turn["speaker"], turn["text"], "") for part in sessions for turn in part]
    turns += [("", " ".join(turn["text"] for turn in part), "") for part in sessions]
    memories = [memory for memory in turns if not KNOWN_STEMS.search(memory[1])]
    assert len(memories) > 300
    for question in dialogue["qa"][::4]:
        words = query_words(KNOWN_STEMS.sub("", question["question"]))
        assert [highlights(words, title, text, ()) for title, text, _ in memories] == snippets(words, memories)


@pytest.mark.parametrize(
    "text",
    ["mutex. " * 14_000, "x" * 100_000, "mutex " + "e\u0301" * 49_000, "🤖 " * 49_999 + "mutex", "mutex\0" * 16_000],
    ids=["all hits", "one run", "marks", "emoji", "NUL"],
)
def test_a_text_of_100_000_characters_has_a_passage_of_24_words(text: str) -> None:
    found = highlights(["mutexes", "lock"], "", text, ())
    assert len(found) == ("mutex" in text)
    assert all(len(text_words(passage)) <= 24 and "**mutex**" in passage for passage in found)


def test_lone_surrogates_are_kept_as_they_are() -> None:
    assert highlights(["lock"], "\ud800", "a\ud800lock", ()) == ("a\ud800**lock**",)


def test_without_shared_words_there_is_no_passage() -> None:
    assert highlights(["lock"], "a", "b", ("c",)) == highlights([], "a", "b", ()) == ()


@pytest.mark.parametrize(
    ("query", "text", "passage"),
    [
        ("猫叫什么", "我的猫叫小白", "我的**猫叫**小白"),
        ("我的猫叫小白", "我的猫叫小白", "我的**猫叫小白**"),
        ("小白在家", "猫叫小白,小白不在", "猫叫**小白**,**小白**不在"),
        ("東京タワーはどこ?", "昨日は東京タワーへ行った", "昨日は**東京タワー**へ行った"),
        (
            "回议",
            "一二三四五六七八九十一二三四五六七八九十一二三回议室",
            "一二三四五六七八九十一二三四五六七八九十一二三**回议**…",
        ),
        ("दफ़्तर की मशीन", "दफ़्तर की कॉफ़ी मशीन", "**दफ़्तर** की कॉफ़ी **मशीन**"),
    ],
)
def test_pairs_of_letters_are_marked_as_one(query: str, text: str, passage: str) -> None:
    (found,) = highlights(query_words(query), "", text, ())
    assert found == passage


@pytest.mark.parametrize(
    ("query", "text", "passage"),
    [
        ("таблетка врача", "Врачи выписали таблетки", "**Врачи** выписали **таблетки**"),
        (
            "Was kosten die Häuser in Köln?",
            "Das Haus ist in Köln und war teuer",
            "Das **Haus** ist in **Köln** und war teuer",
        ),
        ("houses in Köln", "Das Haus ist in Köln und war teuer", "Das Haus ist in **Köln** und war teuer"),
    ],
)
def test_other_forms_of_a_word_are_marked_in_the_language_of_the_text(query: str, text: str, passage: str) -> None:
    assert highlights(query_words(query), "", text, ()) == (passage,)
