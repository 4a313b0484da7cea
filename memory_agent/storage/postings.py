"""Holds the words of one user's memories as numpy postings, and ranks memories by BM25 like FTS5's `bm25()`.

The base holds the postings of all terms in one array; postings added since the last merge are in one tail per term. A
base never changes and tails only grow, so a view needs no lock and no copy.

n = number of slots, t = terms, p = postings, w = words of a query, m = slots passed.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from memory_agent.errors import IndexDamagedError
from memory_agent.storage.column import Arrays, Column, LoadedArrays, Mask, Scores, Slots
from memory_agent.storage.languages import language_of
from memory_agent.storage.terms import LANGUAGE_MARKS, LONGEST_WORD, fold, text_terms, text_words, word_terms

_SATURATION, _LENGTH_SHARE = 1.2, 0.75  # k1 and b of BM25, as in FTS5
_LEAST_IDF = 1e-6  # IDF of terms in half of the memories or more
_COUNT_BITS = 16
_MOST_COUNT = (1 << _COUNT_BITS) - 1
_LEAST_MERGED = 65_536  # postings
_MERGED_SHARE = 1 / 8  # share of the base; a merge copies all of it: 40 ms for 4 million postings
_DEAD = -1

Lengths = npt.NDArray[np.int32]


class _Base(NamedTuple):
    """Postings by term, then slot: term i has positions `offsets[i]` to `offsets[i + 1]` (exclusive)."""

    offsets: npt.NDArray[np.int64]
    slots: npt.NDArray[np.uint32]
    counts: npt.NDArray[np.uint16]


_Tail = Mapping[int, "array[int]"]  # by term: slot << 16 | count, ascending
_Found = tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint16]]
"""The slots that contain a word (ascending, including dead slots), and the number of occurrences in each slot."""


class PostingsView:
    """The words of a `Postings`. `lengths` (n,) are word counts, negative for dead slots, which `total` omits."""

    def __init__(
        self,
        base: _Base,
        tail: _Tail,
        terms: Mapping[str, int],
        lengths: Lengths,
        live: int,
        total: int,
        has_dead: bool,
    ) -> None:
        self._base, self._tail, self._terms = base, tail, terms
        self.lengths, self._live, self.total = lengths, live, total
        self._has_dead = has_dead
        self._asked: tuple[tuple[str, ...], list[list[_Found]]] = ((), [])

    def scores(self, words: Sequence[str]) -> Scores:
        """Return BM25 scores (n,), or 0 for a memory that contains none of `words` (`terms.query_words`)."""
        slots: list[npt.NDArray[np.uint32]] = []
        counts: list[npt.NDArray[np.uint16]] = []
        sizes: list[int] = []
        for found in self._postings(words):
            size = 0
            for part in found:
                slots.append(part[0])
                counts.append(part[1])
                size += len(part[0])
            if size:
                sizes.append(size)
        if not sizes:
            return np.zeros(len(self.lengths))
        slot = np.concatenate(slots, dtype=np.int64)
        count = np.concatenate(counts, dtype=np.float32)
        norm = self._norms.take(slot)
        held: npt.ArrayLike = sizes
        if self._has_dead:
            held = np.add.reduceat(norm < np.inf, np.cumsum([0, *sizes[:-1]]), dtype=np.int64)
        norm += count
        count /= norm
        count *= self._idfs(held).astype(np.float32).repeat(sizes)
        return np.bincount(slot, count, minlength=len(self.lengths)).astype(np.float64, copy=False)

    def hits(self, words: Sequence[str], slots: Slots) -> Mask:
        """Return (w, m): whether each of `slots` contains each of `words`, in any inflection."""
        found = np.zeros((len(words), len(slots)), dtype=np.bool_)
        wanted = slots.astype(np.uint32)
        for has_word, postings in zip(found, self._postings(words), strict=True):
            for held, _ in postings:
                has_word |= held.take(held.searchsorted(wanted), mode="clip") == wanted
        found &= self.lengths[slots] > 0
        return found

    def having(self, words: Sequence[str]) -> dict[str, int]:
        """Return the number of memories that contain each of `words`, in any inflection."""
        return {
            word: sum(self._live_among(slots) for slots, _ in found)
            for word, found in zip(words, self._postings(words), strict=True)
        }

    def among(self, mask: Mask) -> PostingsView:
        """Return a view restricted to the live slots in `mask` (n,), with the counts of these slots only."""
        lengths = np.where(mask, self.lengths, np.int32(_DEAD))
        live = int(np.count_nonzero(lengths >= 0))
        total = int(lengths.sum(dtype=np.int64)) - _DEAD * (len(lengths) - live)
        return PostingsView(self._base, self._tail, self._terms, lengths, live, total, has_dead=True)

    def _live_among(self, slots: npt.NDArray[np.uint32]) -> int:
        return int(np.count_nonzero(self.lengths[slots] > 0)) if self._has_dead else len(slots)

    def _postings(self, words: Sequence[str]) -> list[list[_Found]]:
        """Return the postings of each word. Caches the last result, because a recall needs it three times."""
        words = tuple(words)
        asked, found = self._asked
        if asked != words:
            languages = [language for language, mark in LANGUAGE_MARKS.items() if mark in self._terms]
            terms = word_terms(list(map(fold, words)), languages)
            found = [[part for term in of_word for part in self._of_term(term)] for of_word in terms]
            self._asked = words, found
        return found

    def _of_term(self, name: str) -> Iterator[_Found]:
        term = self._terms.get(name)
        if term is None:
            return
        base = self._base
        if term + 1 < len(base.offsets):
            start, end = base.offsets[term : term + 2].tolist()
            if start < end:
                yield base.slots[start:end], base.counts[start:end]
        added = self._tail.get(term)
        if added is not None:
            added = added[:]  # copied in one atomic step of the interpreter, because the writer may be appending
            bound = len(self.lengths) << _COUNT_BITS
            end = len(added) if added and added[-1] < bound else bisect_left(added, bound)
            if end:
                packed = np.frombuffer(added, dtype=np.uint64, count=end)
                yield (packed >> _COUNT_BITS).astype(np.uint32), packed.astype(np.uint16)

    def _idfs(self, held: npt.ArrayLike) -> npt.NDArray[np.float64]:
        number = np.asarray(held, dtype=np.float64)
        idfs = np.log((self._live - number + 0.5) / (number + 0.5))
        idfs[idfs <= 0] = _LEAST_IDF
        idfs *= _SATURATION + 1
        return idfs

    @cached_property
    def _norms(self) -> npt.NDArray[np.float32]:
        """The length norms (n,) in BM25's denominator, infinite for dead slots."""
        mean = max(self.total, 1) / max(self._live, 1)
        norms = self.lengths.astype(np.float32)
        norms *= _SATURATION * _LENGTH_SHARE / mean
        norms += _SATURATION * (1 - _LENGTH_SHARE)
        if self._live < len(norms):
            norms[self.lengths == _DEAD] = np.inf
        return norms


class Postings:
    """Words by slot. A memory's title, text and tags are indexed as one text. One thread changes them; any thread may
    use `view`.
    """

    def __init__(self) -> None:
        self._base = _Base(np.zeros(1, np.int64), np.empty(0, np.uint32), np.empty(0, np.uint16))
        self._lengths = Column(np.empty(0, dtype=np.int32))
        self._terms: dict[str, int] = {}
        self._tail: defaultdict[int, array[int]] = _new_tail()
        self._tail_size = 0
        self._live, self._total = 0, 0
        self._has_dead = False

    @classmethod
    def from_arrays(cls, arrays: LoadedArrays) -> Self:
        """Restore the index from saved `arrays`, which may be memory-mapped. Raises `IndexDamagedError`."""
        match arrays:
            case {
                "offsets": np.ndarray() as offsets,
                "slots": np.ndarray() as slots,
                "counts": np.ndarray() as counts,
                "lengths": np.ndarray() as lengths,
                "vocabulary": np.ndarray() as vocabulary,
            }:
                base = _Base(offsets, slots, counts)
            case _:
                raise IndexDamagedError("words: an array is missing")
        postings = cls()
        try:
            words = vocabulary.tobytes().decode()
        except UnicodeDecodeError as error:
            raise IndexDamagedError("words: the vocabulary is not valid UTF-8") from error
        postings._terms = {stem: term for term, stem in enumerate(words.split("\n") if words else [])}
        if not _fit(base, lengths, len(postings._terms)):
            raise IndexDamagedError("words: the arrays are inconsistent")
        postings._base, postings._lengths = base, Column(lengths)
        postings._live = int(np.count_nonzero(lengths != _DEAD))
        postings._total = int(lengths.sum(where=lengths > 0, dtype=np.int64))
        return postings

    def append(self, texts: Sequence[Sequence[str]]) -> None:
        """Add slots, each with its texts (title, text, tags). Words longer than `LONGEST_WORD` are counted but not
        indexed.
        """
        terms, tail = self._terms, self._tail
        lengths = []
        for slot, parts in enumerate(texts, len(self._lengths)):
            words = text_words("\n".join(parts))
            lengths.append(len(words))
            language = language_of(words)
            counts = Counter(text_terms([word for word in words if len(word) <= LONGEST_WORD], language))
            if language:
                counts[LANGUAGE_MARKS[language]] = 1
            for name, count in counts.items():
                term = terms.setdefault(name, len(terms))
                tail[term].append(slot << _COUNT_BITS | min(count, _MOST_COUNT))
            self._tail_size += len(counts)
        self._lengths.append(lengths)
        self._live += len(lengths)
        self._total += sum(lengths)
        if self._tail_size > max(_LEAST_MERGED, len(self._base.slots) * _MERGED_SHARE):
            self._merge()

    def remove(self, slots: Slots) -> None:
        """Drop the words of `slots`; `keep` frees their memory. Idempotent."""
        slots = np.unique(slots)
        lengths = self._lengths.view()[slots]
        self._live -= int(np.count_nonzero(lengths != _DEAD))
        self._total -= int(lengths.sum(where=lengths > 0, dtype=np.int64))
        self._has_dead = self._has_dead or bool((lengths > 0).any())
        self._lengths.set(slots, _DEAD)

    def keep(self, slots: Slots) -> Self:
        """Return a new index of only these slots (ascending), renumbered from 0, and of only their words."""
        renumbered = np.full(len(self._lengths), -1, dtype=np.int64)
        renumbered[slots] = np.arange(len(slots))
        return self._renumbered(renumbered, self._lengths.view()[slots])

    def view(self) -> PostingsView:
        return PostingsView(
            self._base, self._tail, self._terms, self._lengths.view(), self._live, self._total, self._has_dead
        )

    def arrays(self) -> Arrays:
        """Return the content for `from_arrays`, without the words of removed slots."""
        if self._has_dead:
            return self._renumbered(np.arange(len(self._lengths)), self._lengths.view()).arrays()
        self._merge()
        return {
            **self._base._asdict(),
            "lengths": self._lengths.view(),
            "vocabulary": np.frombuffer("\n".join(self._terms).encode(), dtype=np.uint8),
        }

    def _merge(self) -> None:
        base, tail = self._base, self._tail
        if not tail:
            return
        terms = sorted(tail)
        sizes = [len(tail[term]) for term in terms]
        packed = np.frombuffer(b"".join([tail[term] for term in terms]), dtype=np.uint64)
        held = np.full(len(self._terms) + 1, len(base.slots), dtype=np.int64)
        held[: len(base.offsets)] = base.offsets
        places = np.repeat(held[1:][terms], sizes)
        added = np.zeros(len(self._terms) + 1, dtype=np.int64)
        added[1:][terms] = sizes
        self._base = _Base(
            held + np.cumsum(added),
            np.insert(base.slots, places, packed >> _COUNT_BITS),
            np.insert(base.counts, places, packed & _MOST_COUNT),
        )
        self._tail, self._tail_size = _new_tail(), 0

    def _renumbered(self, renumbered: Slots, lengths: Lengths) -> Self:
        """Return an index without dead postings, with the word counts `lengths`. `renumbered` (n,): new slots or -1."""
        self._merge()
        base = self._base
        slots = np.where(self._lengths.view() > 0, renumbered, -1)[base.slots]
        is_kept = slots >= 0
        kept_before = np.concatenate([[0], np.cumsum(is_kept)])
        sizes = np.diff(kept_before[base.offsets])
        is_used = sizes > 0
        kept = type(self)()
        kept._terms = {
            stem: term
            for term, stem in enumerate(stem for stem, used in zip(self._terms, is_used, strict=True) if used)
        }
        offsets = np.concatenate([[0], np.cumsum(sizes[is_used])])
        kept._base = _Base(offsets, slots[is_kept].astype(np.uint32), base.counts[is_kept])
        kept._lengths = Column(lengths)
        kept._live = int(np.count_nonzero(lengths != _DEAD))
        kept._total = int(lengths.sum(where=lengths > 0, dtype=np.int64))
        return kept


def _new_tail() -> defaultdict[int, array[int]]:
    return defaultdict(lambda: array("Q"))


def _fit(base: _Base, lengths: Lengths, terms: int) -> bool:
    is_typed = (
        base.offsets.dtype == np.int64
        and base.slots.dtype == np.uint32
        and base.counts.dtype == np.uint16
        and lengths.dtype == np.int32
    )
    return (
        is_typed
        and len(base.offsets) == terms + 1
        and base.offsets[0] == 0
        and base.offsets[-1] == len(base.slots) == len(base.counts)
        and bool((np.diff(base.offsets) > 0).all())
        and (not len(base.slots) or int(base.slots.max()) < len(lengths))
    )
