"""Languages in Latin script are recognised by their stop words. English text and code do not count as foreign."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from memory_agent.storage.languages import STEMMERS, language_of, stop_words_of
from memory_agent.storage.terms import stems, text_words

FACTS = Path(__file__).parents[3] / "ops" / "bench" / "languages.toml"


@pytest.mark.parametrize("language", ["en", "de", "fr", "es", "ru", "zh", "ja"])
def test_most_facts_and_questions_are_of_their_language(language: str) -> None:
    facts = tomllib.loads(FACTS.read_text(encoding="utf-8"))["fact"]
    texts = [text for fact in facts for text in fact[language]]
    found = [language_of(text_words(text)) for text in texts]
    expected = language if language in STEMMERS else ""
    assert found.count(expected) >= (0.8 if expected else 1) * len(texts)
    assert len(set(found) - {"", expected}) <= 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "John's ten-year-old son lives in Los Angeles",
        "import os\nimport sys\nos.environ['DE'] = sys.argv[1]\nfor e in range(9): print(e, se, os.sep)",
        "who sang La Vie en rose, and when did Die Hard come out?",
        "re.compile(r'\\A[\\w.@+-]+\\Z')",
        "Our plan for the son: les Misérables, then the café",
        "de",
    ],
)
def test_english_and_programs_are_not_foreign(text: str) -> None:
    assert language_of(text_words(text)) == ""


def test_only_the_first_words_count() -> None:
    assert language_of(["server"] * 200 + text_words("Wo ist der Server und was macht er")) == ""


def test_every_language_has_a_stemmer_and_keeps_its_negation() -> None:
    for language in STEMMERS:
        assert stems(["servers"], language)
    for text, negation in (("Das ist nicht der Server", "nicht"), ("Ce n'est pas le serveur de la maison", "pas")):
        assert negation not in stop_words_of(text_words(text))


def test_pairs_of_particles_are_stop_words() -> None:
    assert stop_words_of(["ます", "の証", "证书", "器的", "的证"]) & {"ます", "の証", "证书", "器的", "的证"} == {
        "ます",
        "器的",
        "的证",
    }
