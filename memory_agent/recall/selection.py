"""The memories of an answer: one of each text, one of the former requests that ask the same, of one or two rankings.

Memories with one fingerprint (`storage/terms`) are folded into the best of them, their leader. Rejected by measurement
(decision 0016): folding by closeness, which folds "succeeded" with "failed".

Nothing resembles a query like the same request made before, and nothing answers it less. That it was asked, and how the
run went, is worth one place: of several such requests, the one whose run went best keeps it and the others are folded
into it, making room for answers. They return where there is nothing else to show.

A memory is such a request where its cosine with the query is at least `REQUEST_COSINE` (without vectors: the same
words), and it is the begin of a run with nothing but its objective, or a user's message without a telling word that
neither the query nor such a begin has. An informative message has such a word, so no answer is taken for a question.
(What the caller itself just wrote is no candidate at all: `search.OwnWords`.) Rejected (decision 0016): a lower score,
which depends on how many there are; the cosine alone, which takes answers for questions.

What a run then uses of an answer tells which ranking is better, the baseline or the learned one. Where both may rank,
their answers are interleaved by team draft (`sona/interleaving`); before, the baseline answers and is compared with the
other (`sona/comparison`). Who may rank is decided by `learning/learner`.

Shapes: n candidates, p leaders, m slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from memory_agent.recall.candidates import Candidates, best_first
from memory_agent.recall.search import IS_REQUEST, Search
from memory_agent.recall.stages import PastUse, qualities_of, shifts
from memory_agent.records.memories import MemoryRecord
from memory_agent.records.trajectories import Arm
from memory_agent.storage.column import Mask, Slots
from memory_agent.storage.snapshot import Snapshot
from memory_agent.storage.terms import STOP_WORDS, said_words
from sona.interleaving import team_draft

REQUEST_COSINE = 0.8
"""Cosine from which a request counts as the query in other words (decision 0017)."""
SAME_COSINE = 0.9
"""Cosine from which it counts as the same request; the run of a merely similar one may have succeeded elsewhere."""

_LONGER_CHARS = 60  # allowed beyond twice the query; longer texts are too different and are not examined
_UNINFORMATIVE = STOP_WORDS - {"no", "nor", "not"}
_MOST_FOLDED = 100


class Pick(Struct, frozen=True, gc=False):
    """The best candidate of a duplicate group, by its `place` among the candidates `found`.

    `copies` are the places of the others, `requests` those of former requests folded into it, with their copies. `arm`
    is the ranking that it comes from, None for the baseline alone, or for both; `shift` what the adapted query adds.
    `rank` is its rank in the learned ranking, from 1, where the baseline was compared with it, else 0.
    """

    found: Candidates
    place: int
    fingerprint: int
    copies: Sequence[int] = ()
    requests: tuple[int, ...] = ()
    arm: Arm | None = None
    shift: float = 0.0
    rank: int = 0

    @property
    def slot(self) -> int:
        """The slot of the memory."""
        return int(self.found.slots[self.place])

    @property
    def row(self) -> int:
        """The row of the memory."""
        return int(self.found.rows[self.place])

    @property
    def score(self) -> float:
        """The score that it is ranked by."""
        return float(self.found.total[self.place]) + self.shift

    @property
    def learned(self) -> float:
        """What learning added to its score."""
        return float(self.found.association[self.place]) + self.shift

    @property
    def folded(self) -> tuple[int, ...]:
        """The rows of duplicates and former requests folded into it, at most the best hundred."""
        return tuple(int(self.found.rows[place]) for place in (*self.copies, *self.requests)[:_MOST_FOLDED])


class Leaders:
    """The leaders of candidates, best first. Their `places` (p,) are positions among all candidates."""

    def __init__(self, found: Candidates, search: Search) -> None:
        order = best_first(found.total, found.rows, found.rows.size)
        fingerprints = search.view.fingerprints[found.slots[order]]
        first = np.sort(np.unique(fingerprints, return_index=True)[1])
        self.found = found
        self.places = order[first]
        self._fingerprints = fingerprints[first]
        self._copies: dict[int, list[int]] = {}
        if first.size < order.size:
            others = zip(np.delete(order, first).tolist(), np.delete(fingerprints, first).tolist(), strict=True)
            for place, fingerprint in others:
                self._copies.setdefault(fingerprint, []).append(place)

    def __len__(self) -> int:
        return self.places.size

    @property
    def slots(self) -> Slots:
        """The slots (p,) of the leaders."""
        return self.found.slots[self.places]

    def best(self, limit: int) -> list[Pick]:
        """Return the best `limit` leaders, with what is folded into them."""
        found = zip(self.places[:limit].tolist(), self._fingerprints[:limit].tolist(), strict=True)
        return [Pick(self.found, place, print_, self._copies.get(print_, ())) for place, print_ in found]


class FormerRequests:
    """The former requests that ask what a query asks, shared by two rankings, which may be interleaved."""

    def __init__(self, search: Search) -> None:
        """Find former requests; none where the filter selects users' messages alone, which are then all shown."""
        filter = search.query.filter
        self._search = search
        self._text = search.query.text
        self._disabled = filter is not None and filter.sources == ("user_input",)
        self._seen: set[int] = set()
        self._former: dict[int, MemoryRecord] = {}
        self._same: set[int] = set()
        self._kept: int | None = None

    @cached_property
    def _words(self) -> set[str]:
        """The telling words of the query and of the begins found so far."""
        return _informative(self._text)

    @cached_property
    def _known_words(self) -> set[str]:
        """All words of these."""
        return set(self._text.casefold().split())

    def among(self, slots: Slots) -> Mask:
        """Return which of `slots` (m,) are former requests, examining those that were not."""
        self._look_at(slots)
        if not self._former:
            return np.zeros(slots.shape, dtype=np.bool_)
        return np.isin(slots, list(self._former))

    def leave_enough(self, leaders: Leaders, wanted: int) -> bool:
        """Return whether there are `wanted` leaders, former requests beyond the first aside."""
        examined, surplus = self._examined(leaders, wanted)
        return examined - surplus >= wanted

    def fold(self, leaders: Leaders, least: int, most: int) -> list[Pick]:
        """Return at most `most` of the leaders, former requests folded, except those needed to have `least`."""
        examined, surplus = self._examined(leaders, most)
        spare = min(surplus, examined - least)
        best = leaders.best(examined)
        return best if spare <= 0 else self._folded(best, spare)

    def _examined(self, leaders: Leaders, wanted: int) -> tuple[int, int]:
        """Return how many of the leaders to look at for `wanted` answers, and the former requests beyond the first."""
        examined, surplus = min(wanted, len(leaders)), 0
        while not self._disabled and (more := self._surplus(leaders.slots[:examined])) > surplus:
            examined, surplus = min(wanted + more, len(leaders)), more
        return examined, surplus

    def _surplus(self, slots: Slots) -> int:
        """Return how many of `slots`, those of leaders, are former requests beyond the first."""
        return max(0, int(np.count_nonzero(self.among(slots))) - 1)

    def _look_at(self, slots: Slots) -> None:
        slots = slots[IS_REQUEST[self._search.view.sources[slots]]]
        new = [slot for slot in slots.tolist() if slot not in self._seen]
        if new and not self._disabled:
            self._examine(np.array(new, dtype=np.int64))
            self._seen.update(new)

    def _folded(self, leaders: Sequence[Pick], spare: int) -> list[Pick]:
        asking = {leader.slot: leader for leader in leaders if leader.slot in self._former}
        if self._kept not in asking:
            self._kept = max(asking, key=self._merit)
        folded = [leader for slot, leader in asking.items() if slot != self._kept][-spare:]
        kept = asking[self._kept]
        places = tuple(place for leader in folded for place in (leader.place, *leader.copies))
        left_out = {leader.place for leader in folded}
        others = (leader for leader in leaders if leader.place not in left_out)
        return [replace(leader, requests=places) if leader is kept else leader for leader in others]

    def _examine(self, slots: Slots) -> None:
        """Find the former requests among `slots`; begins first, since messages are recognised by their words."""
        records = self._requests(slots)
        if not records:
            return
        with self._search.store.snapshot() as snapshot:
            begins = {slot: one for slot, one in records.items() if is_bare_begin(snapshot, one)}
        self._former |= begins
        for record in begins.values():
            self._words |= _informative(record.text)
            self._known_words.update(record.text.casefold().split())
        messages = {slot: one for slot, one in records.items() if one.source == "user_input"}
        self._former |= {slot: one for slot, one in messages.items() if self._adds_nothing(one.text)}

    def _requests(self, slots: Slots) -> dict[int, MemoryRecord]:
        """Return those of `slots` that might be the query in other words, with their memories."""
        view, vector = self._search.view, self._search.vector
        if vector is not None:
            cosines = view.vectors.cosines(vector.raw, slots)
            self._same.update(slots[cosines >= SAME_COSINE].tolist())
            slots = slots[cosines >= REQUEST_COSINE]
        if not slots.size:
            return {}
        records = zip(slots.tolist(), self._search.store.records(view.rows[slots].tolist()), strict=True)
        most_chars = 2 * len(self._text) + _LONGER_CHARS
        near = {slot: one for slot, one in records if one is not None and len(one.text) <= most_chars}
        if vector is not None:
            return near
        said = said_words(self._text)
        return {slot: one for slot, one in near.items() if said_words(one.text) == said}

    def _adds_nothing(self, text: str) -> bool:
        words = text.casefold().split()
        is_near = 2 * sum(word in self._known_words for word in words) >= len(words)
        return is_near and _informative(text) <= self._words

    def _merit(self, slot: int) -> tuple[bool, bool, float, float, int]:
        """Return the sort key of a request: no numbers beyond the query's, the same request, its outcome, its time."""
        record = self._former[slot]
        others = _informative(record.text) - _informative(self._text)
        has_its_numbers = not any(any(map(str.isdigit, word)) for word in others)
        quality = float(np.nan_to_num(qualities_of(self._search.view, np.array([slot]))[0][0], nan=-1.0))
        time_s, row = record.timestamp.timestamp(), int(self._search.view.rows[slot])
        return has_its_numbers, slot in self._same, quality, time_s, row


def is_bare_begin(snapshot: Snapshot, record: MemoryRecord) -> bool:
    """Return whether a memory is the begin of a run and has nothing but the objective."""
    run = None if record.source == "user_input" else snapshot.run_of(record)
    if run is None or run.begin_row is None or run.begin_row != snapshot.row_of_id(record.id):
        return False
    begin = next(mark for mark in run.marks if mark.role == "begin")
    return begin.said_chars in (0, len(record.text))


def _informative(text: str) -> set[str]:
    return set(said_words(text)) - _UNINFORMATIVE


def shifted(picks: Sequence[Pick], search: Search, past_use: PastUse) -> list[Pick]:
    """Return the picks as the learned ranking has them: best first with what the adapted query adds to each."""
    gained = shifts(search.view.vectors.vectors(np.array([pick.slot for pick in picks], dtype=np.int64)), past_use)
    learned = [replace(pick, arm="learned", shift=shift) for pick, shift in zip(picks, gained.tolist(), strict=True)]
    return sorted(learned, key=lambda pick: -pick.score)


def interleave(baseline: Sequence[Pick], learned: Sequence[Pick], limit: int, key: str) -> list[Pick]:
    """Return at most `limit` picks of two rankings, without duplicates; `key` seeds the draft."""
    by_arm = {"baseline": _by_text(baseline), "learned": _by_text(learned)}
    drafted = team_draft(list(by_arm["baseline"]), list(by_arm["learned"]), limit, key)
    return [replace(by_arm[place.arm or "baseline"][place.item], arm=place.arm) for place in drafted]


def compared(baseline: Sequence[Pick], learned: Sequence[Pick]) -> list[Pick]:
    """Return the picks of the baseline with their ranks in the learned ranking; beyond its end all have the same."""
    ranks = {fingerprint: rank for rank, fingerprint in enumerate(_by_text(learned), 1)}
    beyond = max(len(baseline), len(learned)) + 1
    return [replace(pick, rank=ranks.get(pick.fingerprint, beyond)) for pick in baseline]


def _by_text(picks: Sequence[Pick]) -> dict[int, Pick]:
    return {pick.fingerprint: pick for pick in picks}
