"""Former requests that ask what the query asks: one of them takes one place in the answer, for all.

Nothing resembles a query like the same request made before, and nothing answers it less. That it was asked, and how the
run went, is worth one place: of several, the one whose run went best keeps it and the others are folded into it, making
room for answers. They return where there is nothing else to show.

A memory is an echo where its cosine with the query is at least `LIKE_COSINE` (without vectors: the same words), and it
is the begin of a run that says nothing but its objective, or a user's message without a telling word that neither the
query nor such a begin has. A message that tells something has such a word, so no answer is taken for a question.
Rejected (decision 0021): a lower score, which depends on how many there are; the cosine alone, which takes answers for
questions.

Shapes: n candidates, p memories examined.
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
"""Cosine from which a request counts as the query in other words (decision 0018)."""
SAME_COSINE = 0.9
"""Cosine from which it counts as the same request; the run of a merely similar one may have succeeded elsewhere."""

_REQUESTING = ("user_input", "conductor_plan")
_LONGER_CHARS = 60  # allowed beyond twice the query; longer texts say more and are not examined
_MOST_LISTED = 20
_UNINFORMATIVE = STOP_WORDS - {"no", "nor", "not"}

Load = Callable[[Iterable[int]], dict[int, MemoryRecord]]


class QueryEchoes:
    """The echoes among the candidates of one recall, shared by both rankings."""

    def __init__(self, archive: Archive, query: Query, vector: QueryVector | None) -> None:
        """Find echoes of `query`; none where it asks for users' messages alone, which are then all shown."""
        self._archive = archive
        self._text = query.text
        self._vector = vector
        self._disabled = query.filter is not None and query.filter.sources == ("user_input",)
        self._seen: set[int] = set()
        self._rows: set[int] = set()
        self._words: set[str] = set()
        self._known_words: set[str] = set()
        self._same: set[int] = set()
        self._kept: int | None = None

    def surplus(self, found: Candidates, leaders: Sequence[Leader], records: Mapping[int, MemoryRecord]) -> int:
        """Return how many of the leaders are echoes beyond the first. `records` has all leaders, by row."""
        if self._disabled:
            return 0
        leading: list[int] = found.rows[[leader.place for leader in leaders]].tolist()
        new = [row for row in leading if row not in self._seen]
        if new:
            self._examine({row: records[row] for row in new if self._may_echo(records[row])})
            self._seen.update(new)
        return max(0, sum(row in self._rows for row in leading) - 1) if self._rows else 0

    def fold(
        self, found: Candidates, leaders: list[Leader], records: Mapping[int, MemoryRecord], top_k: int
    ) -> list[Leader]:
        """Return the leaders with echoes folded into one, except those needed to fill an answer of `top_k`.

        Which one is kept is decided once, since interleaved rankings must not show two.
        """
        rows = found.rows
        surplus = self.surplus(found, leaders, records)
        spare = min(surplus, len(leaders) - top_k)
        if spare <= 0:
            return leaders
        echoing = [leader for leader in leaders if int(rows[leader.place]) in self._rows]
        by_row = {int(rows[leader.place]): leader for leader in echoing}
        if self._kept not in by_row:
            self._kept = max(by_row, key=lambda row: self._merit(row, records[row]))
        folded = [leader for leader in echoing if leader is not by_row[self._kept]][-spare:]
        places = [place for leader in folded for place in (leader.place, *leader.folded)]
        kept = msgspec.structs.replace(by_row[self._kept], echoes=tuple(places))
        left_out = {leader.place for leader in folded}
        return [kept if leader.place == kept.place else leader for leader in leaders if leader.place not in left_out]

    def _may_echo(self, record: MemoryRecord) -> bool:
        return record.source in _REQUESTING and len(record.text) <= 2 * len(self._text) + _LONGER_CHARS

    def _examine(self, records: Mapping[int, MemoryRecord]) -> None:
        """Find the echoes among `records`; begins first, since messages are recognised by their words.

        Vectors are read only for begins and for messages with at least half of their words known.
        """
        begins = self._begins({row: record for row, record in records.items() if record.source != "user_input"})
        self._rows.update(begins)
        for text in [self._text] * (not self._words) + list(begins.values()):
            self._words |= _informative(text)
            self._known_words.update(text.casefold().split())
        messages = {row: one for row, one in records.items() if one.source == "user_input" and self._is_near(one.text)}
        self._rows |= {row for row in self._similar(messages) if _informative(messages[row].text) <= self._words}

    def _begins(self, records: Mapping[int, MemoryRecord]) -> dict[int, str]:
        similar = self._similar(records)
        if not similar:
            return {}
        with self._archive.store.snapshot() as snapshot:
            return {row: records[row].text for row in similar if _is_bare_begin(snapshot, row, records[row])}

    def _is_near(self, text: str) -> bool:
        words = text.casefold().split()
        return 2 * sum(word in self._known_words for word in words) >= len(words)

    def _similar(self, records: Mapping[int, MemoryRecord]) -> list[int]:
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

    def _merit(self, row: int, record: MemoryRecord) -> tuple[bool, bool, float, float, int]:
        """Return the sort key of an echo: no numbers beyond the query's, the same request, its outcome, its time."""
        others = _informative(record.text) - _informative(self._text)
        has_its_numbers = not any(any(map(str.isdigit, word)) for word in others)
        quality = -1.0 if record.quality_score is None else record.quality_score
        return has_its_numbers, row in self._same, quality, record.timestamp.timestamp(), row


def explain_echoes(pick: Pick, load: Load) -> dict[str, object] | None:
    """Return the explanation of the echoes folded into a pick, the best ranked 20 by id; None without any."""
    places = pick.choice.leader.echoes
    if not places:
        return None
    records = load(int(pick.scored.rows[place]) for place in places[:_MOST_LISTED]).values()
    return {
        "count": len(places),
        "because": "asks what the query asks",
        "least_cosine": LIKE_COSINE,
        "ids": [record.id for record in records],
        "qualities": [record.quality_score for record in records],
    }


def _is_bare_begin(snapshot: Snapshot, row: int, record: MemoryRecord) -> bool:
    """Whether a memory is the begin of a run and says nothing but the objective."""
    run = None if record.run_id is None else snapshot.trajectory(record.run_id)
    if run is None or run.begin_row != row:
        return False
    begin = next(mark for mark in run.marks if mark.role == "begin")
    return begin.objective_chars in (0, len(record.text))


def _informative(text: str) -> set[str]:
    return set(said_words(text)) - _UNINFORMATIVE
