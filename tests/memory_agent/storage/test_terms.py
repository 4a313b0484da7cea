"""Words and stems match those of FTS5's tokenizers."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import pytest
from hammering import hammered
from hypothesis import example, given, settings
from hypothesis import strategies as st

from memory_agent.storage.languages import language_of
from memory_agent.storage.terms import (
    first_letter,
    first_said_word,
    fold,
    is_foreign,
    overlaps,
    pieces,
    query_words,
    said_words,
    stems,
    text_terms,
    text_words,
    word_terms,
    words_of,
)

LOCOMO = Path(__file__).parents[4] / "shared" / "data" / "locomo_dev.json"
KNOWN_STEMS = re.compile(r".*(bly|bli|logy|logies|logi|kked|kking)$")
"""Words that Snowball's and FTS5's Porter stemmers stem differently."""

ranges = [(0, 0x17F), (0x300, 0x331), (0x391, 0x3A1), (0x3A3, 0x3C9), (0x410, 0x44F), (0x5D0, 0x5EA), (0x1E02, 0x1EF9)]
characters = st.one_of(
    *(st.characters(min_codepoint=low, max_codepoint=high) for low, high in ranges),
    st.sampled_from("☀❤\u3000…“—"),
)
unspaced = st.sampled_from("東京都カメラーที่ประชุม한국어हिन्दीשָׁם \u3099")


def fts5_words(tokenizer: str, texts: Iterable[str]) -> list[list[str]]:
    """Return the words that FTS5 stores for each text."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute(f"CREATE VIRTUAL TABLE texts USING fts5 (text, tokenize='{tokenizer}')")
        connection.execute("CREATE VIRTUAL TABLE vocabulary USING fts5vocab (texts, instance)")
        found: list[list[str]] = []
        for row, text in enumerate(texts):
            connection.execute("INSERT INTO texts (rowid, text) VALUES (?, ?)", (row, text))
            found.append([])
        for row, word in connection.execute("SELECT doc, term FROM vocabulary ORDER BY doc, offset"):
            found[row].append(word)
        return found


@settings(deadline=None)
@given(text=st.text(characters))
@example("e\u0301te\u0301 \u0301x a_\u0301b \u0345y ΣΑΣ ſ ß İ ǅ Å K")
def test_words_are_split_and_folded_as_by_fts5(text: str) -> None:
    assert [text_words(text)] == fts5_words("unicode61 remove_diacritics 2", [text])


@settings(deadline=None)
@given(text=st.text(characters | unspaced | st.characters()))
def test_pieces_and_folding_keep_every_word_apart(text: str) -> None:
    split = pieces(text)
    assert "".join(split) == text
    assert [fold(word) for word in words_of(split)] == text_words(text)
    assert all(first_letter(split[2 * number + 3]) for number in overlaps(split))
    assert all(text_words(word) == [word] for word in text_words(text))


@settings(deadline=None)
@given(text=st.text(characters | st.characters() | st.sampled_from("aeioyinglsd")))
@example("ies aed oing ys yes ayed sses sky")
def test_an_english_stem_begins_with_the_first_character_of_its_word(text: str) -> None:
    words = list(filter(str.isascii, text_words(text)))
    assert [stem[0] for stem in stems(words)] == [word[0] for word in words]


said = st.sampled_from(
    ["the", "An,", "Hello,", "ok", "so", "well", "...", "'Thanks'", "a", "fix", "(race)", "not", "Ste\u0301"]
)


@settings(deadline=None)
@given(text=st.lists(said | st.text(characters)).map(" ".join))
@example("")
@example("Hello, the ok")
def test_first_said_word_is_the_first_of_said_words(text: str) -> None:
    assert first_said_word(text) == said_words(text)[0]


@settings(deadline=None)
@given(text=st.text(characters | unspaced | st.characters()))
def test_each_word_of_a_query_is_one_word_of_the_index(text: str) -> None:
    assert all(len(text_words(word)) == 1 for word in query_words(text))


@pytest.mark.skipif(not LOCOMO.exists(), reason="requires shared/data/locomo_dev.json")
def test_real_words_have_the_stems_of_fts5() -> None:
    words = sorted(set(text_words(LOCOMO.read_text(encoding="utf-8"))))
    assert len(words) > 5_000
    expected = [found[0] for found in fts5_words("porter unicode61 remove_diacritics 2", words)]
    differing = [word for word, stem, said in zip(words, stems(words), expected, strict=True) if stem != said]
    assert [word for word in differing if not KNOWN_STEMS.match(word)] == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("東京タワー", ["東京", "京タ", "タワ", "ワー"]),
        ("2024年の東京, in Köln", ["2024", "年の", "の東", "東京", "in", "koln"]),
        ("猫", ["猫"]),
        ("회의는 월요일", ["회의", "의는", "월요", "요일"]),
        ("ที่บ้าน", ["ที่บ้", "บ้า", "าน"]),
        ("हिन्दी में", ["हिन्दी", "में"]),
        ("שָׁלוֹם عَرَبِي", ["שלום", "عربي"]),
        ("Привет, мир", ["привет", "мир"]),
    ],
)
def test_scripts_without_spaces_are_pairs_of_letters_and_signs_belong_to_theirs(text: str, words: list[str]) -> None:
    assert text_words(text) == words
    assert [fold(word) for word in query_words(text)] == [word for word in words if word not in ("in", "में")]


@pytest.mark.parametrize(
    ("text", "telling"),
    [
        ("¿Cómo se llama mi gata?", ["llama", "gata"]),
        ("Wo steht der Server für die Sicherungen?", ["steht", "server", "sicherungen"]),
        ("Quand se termine le contrat ?", ["termine", "contrat"]),
        ("Как зовут мою кошку?", ["зовут", "кошку"]),
        ("मेरी बिल्ली का नाम क्या है?", ["बिल्ली", "नाम"]),
        ("did Die Hard play in Los Angeles?", ["die", "hard", "play", "los", "angeles"]),
        ("cuando", ["cuando"]),
        (
            "サーバーの証明書はいつ失効しますか?",
            ["サー", "ーバ", "バー", "の証", "証明", "明書", "書は", "つ失", "失効", "効し"],
        ),
        ("测试服务器的证书", ["测试", "试服", "服务", "务器", "证书"]),
    ],
)
def test_stop_words_are_those_of_the_language(text: str, telling: list[str]) -> None:
    assert query_words(text) == telling


def test_a_query_is_foreign_only_if_its_stop_words_are() -> None:
    assert is_foreign("Wie heißt die Katze?")
    english = (
        "",
        "What is Ann's plan A?",
        "de la",
        "Как зовут кошку?",
        "who sang La Vie en rose in Los Angeles",
        "x" * 9,
    )
    assert [text for text in english if is_foreign(text)] == ["de la"]  # the only text detected as foreign


@pytest.mark.parametrize(
    ("language", "text", "said"),
    [
        ("de", "Die Ärztin hat mir neue Tabletten verschrieben", "Tablette"),
        ("fr", "Les clients en Norvège paient leurs factures", "facture"),
        ("it", "Le nostre clienti hanno pagato le fatture", "cliente fattura"),
        ("pl", "Klienci w tym kraju płacą za swoje faktury, które im przysłano", "faktura"),
        ("fi", "Minulla on kissa joka on mustavalkoinen, ja se on sairas", "kissat"),
        ("hu", "A szerver jelszava nem volt jó, és azt ki kell cserélni", "szerverek"),
        ("", "Врачи выписали новые таблетки", "врач таблетка"),
        ("", "Η γιατρός έγραψε νέα χάπια", "χάπι"),
        ("", "The nightly backups are copied", "copying backup"),
    ],
)
def test_other_forms_of_a_word_share_a_term_in_the_language_of_the_text(language: str, text: str, said: str) -> None:
    words = text_words(text)
    assert language_of(words) == language
    indexed = set(text_terms(words, language))
    for terms in word_terms(text_words(said)[:1], ["de", "es", *([language] if language else [])]):
        assert indexed.intersection(terms)
    for word, terms in zip(words, word_terms(words, [language] if language else []), strict=True):
        assert indexed.intersection(terms), word


def test_terms_of_a_language_equal_no_english_term() -> None:
    assert set(word_terms(["gift"], ["de"])[0]) == {"gift", "de:gift"}


def test_short_and_long_words_are_their_own_stem() -> None:
    assert stems(["as", "is", "running", "runnings" * 9]) == ["as", "is", "run", "runnings" * 9]


@pytest.mark.parametrize(("word", "language"), [("ανε", ""), ("ικων", ""), ("ـــ", ""), ("leri", "tr")])
def test_a_word_that_is_only_an_ending_is_its_own_stem(word: str, language: str) -> None:
    assert stems([word], language) == [word]


def test_stems_are_the_same_in_all_threads() -> None:
    words = ["relational", "running", "flies", "agreed", "müde", "abc"] * 50
    expected = stems(words)

    def read() -> None:
        assert stems(words) == expected

    with hammered(read):
        for _ in range(200):
            read()
