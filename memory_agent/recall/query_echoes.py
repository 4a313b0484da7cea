"""Former requests that ask what the query asks: one of them stands in the answer for all.

Nothing resembles a query like the same request made before, and nothing answers it less. That it was asked, and how
the run went, is worth one place; where more than one is found, the one whose run went best keeps its own, the others
are folded into it, and give room to what answers. They come back where there is nothing else to show.

A memory is a repeat where its cosine with the query is at least `LIKE_COSINE` (without vectors: it has the same words),
and it is the begin of a run that says nothing but its objective, or a user's message without a telling word that
neither the query nor such a begin has. A message that tells something has one, so no answer is taken for a question.
What this does not do: fold what is no request (`selection` has what says the very same); look a request's run up for
its answer, which ranks by itself. Rejected (decision 0021): a lower score, which depends on how many there are; the
cosine alone, which takes answers for questions.

Shapes: n candidates, p memories looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from memory_agent.recall.candidates import Candidates
from memory_agent.recall.interleaving import Pick
from memory_agent.recall.query import Query
from memory_agent.recall.query_vectors import QueryVector
from memory_agent.recall.selection import Leader
from memory_agent.records import MemoryRecord
from memory_agent.storage.archive import Archive
from memory_agent.storage.snapshot import Snapshot
from memory_agent.storage.terms import STOP_WORDS, said_words

LIKE_COSINE = 0.8
"""From there on a request is taken to be the query in other words (decision 0018)."""
SAME_COSINE = 0.9
"""From there on to be the same request; of one that is merely like it, the run may have gone well at something else."""

_REQUESTING = ("user_input", "conductor_plan")
_LONGER_CHARS = 60  # what a wording may add to twice the query; longer texts say more, and are not looked at
_MOST_TOLD = 20
_UNTOLD = STOP_WORDS - {"no", "nor", "not"}

Load = Callable[[Iterable[int]], dict[int, MemoryRecord]]


class QueryEchoes:
    """The repeats among the candidates of one recall, in whichever ranking they come."""

    def __init__(self, archive: Archive, query: Query, vector: QueryVector | None) -> None:
        """Who asks for users' messages and nothing else is shown all of them."""
        self._archive = archive
        self._text = query.text
        self._vector = vector
        self._is_off = query.filter is not None and query.filter.sources == ("user_input",)
        self._seen: set[int] = set()
        self._rows: set[int] = set()
        self._words: set[str] = set()
        self._plain: set[str] = set()
        self._same: set[int] = set()
        self._standing: int | None = None

    def surplus(self, found: Candidates, leaders: Sequence[Leader], records: Mapping[int, MemoryRecord]) -> int:
        """Return how many of the leaders among the candidates need not be in the answer.

        `records` by row has all leaders. Costs next to nothing where none can be a request.
        """
        if self._is_off:
            return 0
        led: list[int] = found.rows[[leader.place for leader in leaders]].tolist()
        new = [row for row in led if row not in self._seen]
        if new:
            self._look_at({row: records[row] for row in new if self._may_repeat(records[row])})
            self._seen.update(new)
        return max(0, sum(row in self._rows for row in led) - 1) if self._rows else 0

    def folded(
        self, found: Candidates, leaders: list[Leader], records: Mapping[int, MemoryRecord], top_k: int
    ) -> list[Leader]:
        """Return the leaders with all repeats in one of them, save those that are needed to fill an answer of `top_k`.

        Which one stands is decided once: two rankings that are interleave must not show two.
        """
        rows = found.rows
        surplus = self.surplus(found, leaders, records)
        spare = min(surplus, len(leaders) - top_k)
        if spare <= 0:
            return leaders
        repeating = [leader for leader in leaders if int(rows[leader.place]) in self._rows]
        by_row = {int(rows[leader.place]): leader for leader in repeating}
        if self._standing not in by_row:
            self._standing = max(by_row, key=lambda row: self._worth(row, records[row]))
        gone = [leader for leader in repeating if leader is not by_row[self._standing]][-spare:]
        places = [place for leader in gone for place in (leader.place, *leader.folded)]
        stands = msgspec.structs.replace(by_row[self._standing], repeats=tuple(places))
        left_out = {leader.place for leader in gone}
        return [
            stands if leader.place == stands.place else leader for leader in leaders if leader.place not in left_out
        ]

    def _may_repeat(self, record: MemoryRecord) -> bool:
        return record.source in _REQUESTING and len(record.text) <= 2 * len(self._text) + _LONGER_CHARS

    def _look_at(self, records: Mapping[int, MemoryRecord]) -> None:
        """Find the repeats among these; begins first, since messages are known by their words.

        Vectors are read of begins and of such messages alone as have half of their words from what is known.
        """
        begins = self._begins({row: record for row, record in records.items() if record.source != "user_input"})
        self._rows.update(begins)
        for text in [self._text] * (not self._words) + list(begins.values()):
            self._words |= _telling(text)
            self._plain.update(text.casefold().split())
        messages = {row: one for row, one in records.items() if one.source == "user_input" and self._is_near(one.text)}
        self._rows |= {row for row in self._alike(messages) if _telling(messages[row].text) <= self._words}

    def _begins(self, records: Mapping[int, MemoryRecord]) -> dict[int, str]:
        alike = self._alike(records)
        if not alike:
            return {}
        with self._archive.store.snapshot() as snapshot:
            return {row: records[row].text for row in alike if _is_bare_begin(snapshot, row, records[row])}

    def _is_near(self, text: str) -> bool:
        words = text.casefold().split()
        return 2 * sum(word in self._plain for word in words) >= len(words)

    def _alike(self, records: Mapping[int, MemoryRecord]) -> list[int]:
        rows = list(records)
        if not rows:
            return []
        vectors = self._archive.store.vectors(rows)
        if self._vector is not None and vectors.shape[1:] == self._vector.raw.shape:
            cosines = dict(zip(rows, (vectors @ self._vector.raw).tolist(), strict=True))
            self._same.update(row for row, cosine in cosines.items() if cosine >= SAME_COSINE)
            return [row for row, cosine in cosines.items() if cosine >= LIKE_COSINE]
        said = said_words(self._text)
        return [row for row in rows if said_words(records[row].text) == said]

    def _worth(self, row: int, record: MemoryRecord) -> tuple[bool, bool, float, float, int]:
        """What speaks for a repeat: no number that the query has not; being the same; how its run went; its time."""
        others = _telling(record.text) - _telling(self._text)
        has_its_numbers = not any(any(map(str.isdigit, word)) for word in others)
        quality = -1.0 if record.quality_score is None else record.quality_score
        return has_its_numbers, row in self._same, quality, record.timestamp.timestamp(), row


def account(pick: Pick, load: Load) -> dict[str, object] | None:
    """Say for an explanation what was folded into it and why; of many the best ranked, with how their runs went."""
    places = pick.choice.leader.repeats
    if not places:
        return None
    records = load(int(pick.scored.rows[place]) for place in places[:_MOST_TOLD]).values()
    return {
        "count": len(places),
        "because": "asks what the query asks",
        "least_cosine": LIKE_COSINE,
        "ids": [record.id for record in records],
        "qualities": [record.quality_score for record in records],
    }


def _is_bare_begin(snapshot: Snapshot, row: int, record: MemoryRecord) -> bool:
    """Whether a memory is what a run began with, and says nothing besides what was to be done."""
    run = None if record.run_id is None else snapshot.trajectory(record.run_id)
    if run is None or run.begin_row != row:
        return False
    begin = next(mark for mark in run.marks if mark.role == "begin")
    return begin.objective_chars in (0, len(record.text))


def _telling(text: str) -> set[str]:
    return set(said_words(text)) - _UNTOLD
