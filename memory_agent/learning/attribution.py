"""Decides which memories a run used: those named by its events or by feedback, or inferred from its output. Pure.

No other memory is credited, even if it was shown (decision 0018). If at least four memories were shown and the run
names all of them, none is credited. If only two or three were shown and the run names all of them, each gets half the
credit, because answers are often this short: no other memory passes the relevance threshold.

Inference splits the output into statements. A word is weighted by its rarity in the user's store, in bits. The weight
is lower if several shown memories contain the word. It is 0 if the request contains the word, because outputs repeat
the request, and recalled memories resemble it. A memory's score for a statement is the weight of the words that both
contain, multiplied by the share of the statement's weight that these words make up. Since any of n statements may match
by chance, log2(n) bits are first subtracted from the weight. A statement is not attributed to a memory if the memory's
nearest sentence contains different numbers, or if only one of the two is negated.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import nlargest
from itertools import islice
from typing import NamedTuple, Protocol

from memory_agent.records.trajectories import Attribution
from memory_agent.storage.stored_runs import Mark, RecallNote, StoredUse

# The credit of a named memory, of an inferred memory, and of each memory in a short answer that a run names in full.
SAID, INFERRED, UNDIVIDED = 1.0, 0.5, 0.5
LEAST_LIST = 4  # if a run names all memories of an answer of at least this size, none is credited


def names_all(named: Iterable[int], count: int, note: RecallNote) -> bool:
    """Return whether a run named all memories of an answer.

    `count` is the number of memories that the run named, and `named` contains those that still exist.
    """
    shown = set(note.rows)
    return bool(shown) and count >= note.size and shown <= {note.shown_for(row) for row in named}


def names_list(named: Iterable[int], count: int, note: RecallNote) -> bool:
    """Return whether an answer has at least `LEAST_LIST` memories and a run named all of them (see `names_all`)."""
    return note.size >= LEAST_LIST and names_all(named, count, note)


def shown_row(row: int, notes: Iterable[RecallNote]) -> int:
    """Return the row that an answer showed for this memory: its own row or a duplicate's."""
    return next((shown for note in notes if (shown := note.shown_for(row)) is not None), row)


def used_memories(
    marks: Sequence[Mark], inferred: Iterable[tuple[int, str | None]], notes: Sequence[RecallNote]
) -> tuple[StoredUse, ...]:
    """Return the memories that a run used, by row. `marks` and `notes` (the run's recalls) are in chronological order.

    Feedback takes precedence over the run's own events, which take precedence over inference. No uses are inferred for
    a recall whose uses were stated.
    """
    said: dict[int, StoredUse] = {}
    judged: set[str | None] = set()
    for how in ("event", "feedback"):
        for mark in _naming(marks, how):
            about = [note for note in notes if note.recall_id in mark.recalls] or notes
            chosen = {
                row: StoredUse(row, how, credit, _recall_of(row, mark, about))
                for row, credit in _choice(mark, about).items()
            }
            judged |= {use.recall_id for use in chosen.values()}
            judged.update(mark.recalls if chosen and how == "feedback" else ())
            said |= chosen
    told = {row: StoredUse(row, "overlap", INFERRED, name) for row, name in inferred if name not in judged}
    found = told | said
    return tuple(found[row] for row in sorted(found))


def _naming(marks: Sequence[Mark], how: Attribution) -> list[Mark]:
    """Return the marks that name memories, but only the latest of several feedback marks on the same recalls."""
    is_feedback = how == "feedback"
    naming = [mark for mark in marks if mark.named and (mark.role == "feedback") == is_feedback]
    if not is_feedback:
        return naming
    latest: Mapping[tuple[str, ...], Mark] = {mark.recalls: mark for mark in naming}
    return list(latest.values())


def _choice(mark: Mark, about: Sequence[RecallNote]) -> dict[int, float]:
    whole = [note for note in about if names_all(mark.named, mark.named_count, note)]
    listed = {row for note in whole if note.size >= LEAST_LIST for row in note.rows}
    undivided = {row for note in whole if note.size > 1 for row in note.rows}
    named = dict.fromkeys(shown_row(row, about) for row in mark.named)
    return {row: UNDIVIDED if row in undivided else SAID for row in named if row not in listed}


def _recall_of(row: int, mark: Mark, about: Sequence[RecallNote]) -> str | None:
    """Return the latest recall that showed the memory before the event, or else the latest that showed it at all."""
    showing = [note for note in about if row in note.rows]
    before = [note for note in showing if note.at_us <= mark.at_us]
    return (before or showing)[-1].recall_id if showing else None


# Inferring uses from text: the run's output repeats a memory.

READ_CHARS = 100_000
MOST_STATEMENTS = 500

_LONGEST_WORD = 64  # characters; longer strings are digests and base64
_WORD = re.compile(r"[^\W_]+")
_NUMBER = re.compile(r"(?<!\w)\d+(?:[.,:]\d+)*")  # "30", "30s", not "v2"
_END = re.compile(r"[.!?;]+(?=\s|$)|[\n\r\u2028\u2029。！？；]+")
_MARKS = re.compile("[\u0300-\u036f]+")
_DENIAL = re.compile(r"\b(?:not|never|no|cannot|without|neither|nor|none|nothing|nobody)\b|n't\b")
_ENDINGS = ("ingly", "edly", "ings", "ing", "ies", "ied", "es", "ed", "s", "ly")
_SHORTEST_STEM = 3
_STOP_WORDS = """
    a about after all also am an and any are as at be because been before being but by can could did do does doing don
    for from had has have having he her here him his how i if in into is it its just ll me my no nor not now of off on
    once or our out over own re she should so some such t s than that the their them then there these they this those
    to too us ve was we were what when where which while who whom why will with would yes you your
"""
_REPORTING = """
    anything assist assistance complete completed done else everything fail failed feel finish finished free further
    glad ok okay please question questions ready report result results run step succeeded success successful
    successfully summary task tasks thank thanks welcome
"""


class Statement(NamedTuple):
    """One sentence or line. `words` maps stems to the words as written, without stop words."""

    words: dict[str, str]
    numbers: frozenset[str]
    denies: bool


def statements(text: str) -> list[Statement]:
    """Return the statements of `text` in order, at most 500 from its first 100,000 characters."""
    return list(islice(_statements(text[:READ_CHARS]), MOST_STATEMENTS))


def _statements(text: str) -> Iterator[Statement]:
    plain = _MARKS.sub("", unicodedata.normalize("NFKD", text)).casefold().replace("’", "'")
    for part in _END.split(plain):
        words = {stem(word): word for word in _WORD.findall(part) if len(word) <= _LONGEST_WORD}
        telling = {stem_: word for stem_, word in words.items() if stem_ not in STOP_STEMS}
        if words:
            numbers = frozenset(number.replace(",", "") for number in _NUMBER.findall(part))
            yield Statement(telling, numbers, _DENIAL.search(part) is not None)


def stem(word: str) -> str:
    """Return a lower-case `word` without its ending, but with at least three letters; numbers are unchanged."""
    if not word.isalpha():
        return word
    ending = next((end for end in _ENDINGS if word.endswith(end) and len(word) - len(end) >= _SHORTEST_STEM), "")
    bare = word.removesuffix(ending)
    if len(bare) > _SHORTEST_STEM and bare[-1] in "eyi":
        bare = bare[:-1]
    if len(bare) > _SHORTEST_STEM and bare[-1] == bare[-2]:
        bare = bare[:-1]
    return bare


STOP_STEMS = frozenset(stem(word) for word in (_STOP_WORDS + _REPORTING).split())


THRESHOLD = 4.0  # the minimum score (bits times share) of a memory that counts as used (decision 0018)

_MOST_TRIES = 8  # maximum number of statements checked for contradiction, best first; a check reads the whole memory


class ShownText(NamedTuple):
    """A memory in an answer: its row, and its text including the title."""

    row: int
    text: str


class Overlap(NamedTuple):
    """A memory's score for an output, and the words that it shares with the best-matching statement, rarest first."""

    row: int
    score: float
    words: tuple[str, ...] = ()


class WordCounts(Protocol):
    """Document frequencies in a user's memories."""

    @property
    def memories(self) -> int: ...

    def having(self, words: Sequence[str]) -> Mapping[str, int]:
        """Return, for each of `words` (folded), how many memories contain it in any inflection, omitting zeros."""
        ...


def overlaps(output: str, request: str, shown: Sequence[ShownText], store: WordCounts) -> list[Overlap]:
    return [found for found in weigh(output, request, shown, store) if found.score >= THRESHOLD]


def weigh(output: str, request: str, shown: Sequence[ShownText], store: WordCounts) -> list[Overlap]:
    """Return all memories that agree with `output` beyond chance, best first, including those below the threshold."""
    said = _without(statements(output), statements(request))
    memories = [_Memory(memory.row, statements(memory.text)) for memory in shown]
    scale = _Scale(said, memories, store)
    found = (scale.best(memory) for memory in memories)
    return sorted((overlap for overlap in found if overlap.score > 0), key=lambda one: (-one.score, one.row))


class _Memory:
    def __init__(self, row: int, sentences: list[Statement]) -> None:
        self.row = row
        self._sentences = sentences
        self.stems = frozenset(stem for sentence in sentences for stem in sentence.words)

    def contradicts(self, statement: Statement, bits: Mapping[str, float]) -> bool:
        """Return whether the memory's sentence nearest to `statement` differs from it in numbers or in negation."""
        nearest = max(self._sentences, key=lambda sentence: _total(bits, sentence.words.keys() & statement.words))
        ours, theirs = nearest.numbers, statement.numbers
        return bool(ours - theirs and theirs - ours) or nearest.denies != statement.denies


class _Scale:
    """Word weights for one output, by stem: `_rarity` in the store (bits), and `_telling` among the shown memories."""

    def __init__(self, said: list[Statement], memories: Sequence[_Memory], store: WordCounts) -> None:
        having = Counter(stem for memory in memories for stem in memory.stems)
        self._said = [statement for statement in said if not having.keys().isdisjoint(statement.words)]
        self._chances = math.log2(max(len(self._said), 1))
        self._rarity = _rarities({stem: word for one in self._said for stem, word in one.words.items()}, store)
        shares = {stem: _share(having[stem], len(memories)) for stem in self._rarity.keys() & having.keys()}
        self._telling = {stem: self._rarity[stem] * share for stem, share in shares.items()}

    def best(self, memory: _Memory) -> Overlap:
        """Return the overlap of `memory` with the best statement that it does not contradict, or 0 if there is none."""
        scored = ((self._score(memory, statement), -place) for place, statement in enumerate(self._said))
        for score, minus in nlargest(_MOST_TRIES, (pair for pair in scored if pair[0] > 0)):
            if not memory.contradicts(self._said[-minus], self._telling):
                return Overlap(memory.row, score, self._words(memory, self._said[-minus]))
        return Overlap(memory.row, 0.0)

    def _score(self, memory: _Memory, statement: Statement) -> float:
        agreed = _total(self._telling, memory.stems & statement.words.keys()) - self._chances
        return agreed * agreed / _total(self._rarity, statement.words) if agreed > 0 else 0.0

    def _words(self, memory: _Memory, statement: Statement) -> tuple[str, ...]:
        shared = [stem for stem in statement.words if self._telling.get(stem, 0.0) > 0 and stem in memory.stems]
        return tuple(statement.words[stem] for stem in sorted(shared, key=lambda stem: -self._telling[stem]))


def _without(said: list[Statement], request: list[Statement]) -> list[Statement]:
    """Return the statements `said` without the words and numbers of the request."""
    stems = {stem for statement in request for stem in statement.words}
    numbers = frozenset(number for statement in request for number in statement.numbers)
    return [
        Statement(
            {stem: word for stem, word in statement.words.items() if stem not in stems},
            statement.numbers - numbers,
            statement.denies,
        )
        for statement in said
    ]


def _rarities(words: Mapping[str, str], store: WordCounts) -> dict[str, float]:
    having = store.having(list(words.values())) if words else {}
    memories = store.memories
    return {stem: max(math.log2((memories + 1) / (having.get(word, 0) + 0.5)), 0.0) for stem, word in words.items()}


def _share(having: int, shown: int) -> float:
    """Return the weight of a word that `having` of `shown` memories contain: 1 if one does, 0 if all do."""
    return 1.0 if shown == 1 else 1.0 - math.log(having) / math.log(shown)


def _total(bits: Mapping[str, float], stems: Iterable[str]) -> float:
    return math.fsum(bits.get(stem, 0.0) for stem in stems)
