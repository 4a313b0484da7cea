"""Reactions of one user's memory to events: makes a query of an event, recalls, and renders the block.

A document's query is made without a language model: title, headings and the sentences nearest to the centroid of all
(extractive summarization; Radev et al. 2004, MEAD), those that changed since the last revision first, because a writer
who adds a section wants memories about that section. The work is bounded for any length: of a megabyte, some 50
sentences spread over the text are embedded.

Shapes: n sentences, d dimensions.
"""

from __future__ import annotations

import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import cached_property

import msgspec
import numpy as np
import numpy.typing as npt

from memory_agent.embedders.lazy_embedder import LazyEmbedder
from memory_agent.errors import InvalidInputError, ModelError
from memory_agent.recall.pipeline import RecallPipeline
from memory_agent.recall.query import Query, QueryDefaults, check_now, make_query
from memory_agent.records.arguments import RecallOptions
from memory_agent.records.embedded import Embedding
from memory_agent.records.memories import MemoryFilter, RecallResult
from memory_agent.settings import RecallSettings, TriggerSettings
from memory_agent.signals.payloads import roots
from memory_agent.signals.reader import EventReader, id_of, run_id_of
from memory_agent.storage.archive import InUse
from memory_agent.triggers.block import Block, QuotedMemory
from memory_agent.triggers.table import Trigger, TriggerTable
from relay import Event, read_event


class Triggers:
    """Reacts to events with blocks, for one user. Thread-safe."""

    def __init__(
        self,
        settings: TriggerSettings,
        recall: RecallSettings,
        reader: EventReader,
        pipeline: RecallPipeline,
        embedder: LazyEmbedder,
        stored_text: Callable[[str], str],
        in_use: InUse,
    ) -> None:
        """`stored_text` is that of `make_query`."""
        self._settings = settings
        self._recall = recall
        self._reader = reader
        self._pipeline = pipeline
        self._embedder = embedder
        self._stored_text = stored_text
        self._in_use = in_use
        self._revisions = Revisions()
        self._embedding = threading.Lock()

    def react(self, event: bytes, trigger: str, deadline_ms: float, *, now: datetime | None = None) -> Block | None:
        """Return the block that `trigger` prescribes for an encoded event; None for an event without usable text.

        The event need not have been ingested. The answer omits the event itself, its run and the latest events of its
        session. The recall counts for a run only if feedback or an event of the run names its id, since nobody may have
        read the block. Raises `InvalidInputError` for an unknown trigger.

        >>> record = memory.remember("The deploy to staging hangs while the VPN is off")
        >>> block = memory.triggers.react(encode_event(events[1]), "message", deadline_ms=1000.0)  # "The deploy hangs"
        >>> block.role, block.quotes == (record.id,), block.text.splitlines()[0]
        ('conductor', True, 'Relevant history')
        """
        began_s = time.monotonic()
        moment = check_now(now)
        row = self._table.rows.get(trigger)
        if row is None:
            raise InvalidInputError("trigger", f"there is no trigger {trigger}")
        cause = read_event(event)
        with self._in_use():
            text = self._text(cause, trigger, row)
            if not text:
                return None
            left_ms = deadline_ms - (time.monotonic() - began_s) * 1000
            query = self._query(text, cause, row, max(1.0, left_ms), moment)
            return _block(cause, trigger, row, query, self._pipeline.answer(query, moment))

    @cached_property
    def _table(self) -> TriggerTable:
        return TriggerTable.load(self._settings.table)

    def _text(self, cause: Event, trigger: str, row: Trigger) -> str:
        """Return the query's text, "" for noise."""
        title, parts = self._reader.words(cause)
        if not parts or row.query == "text":
            return "".join(parts[:1])[: self._recall.max_query_chars]
        document = self._table.document_of(cause, trigger) or ""
        return document_query(title, "\n\n".join(parts), document, self._revisions, self._vectors)

    def _query(self, text: str, cause: Event, row: Trigger, deadline_ms: float, now: datetime) -> Query:
        objects = roots(cause.payload)
        options: RecallOptions = {
            "profile": row.profile,
            "by_event": cause.event_id,
            "by_run": run_id_of(cause, objects),
            "by_session": id_of(cause, "session_id", objects),
            "context_tokens": row.max_tokens,
        }
        if row.runs is not None:
            options["runs"] = row.runs
        query = make_query(
            text,
            row.top_k,
            MemoryFilter(kinds=row.kinds) if row.kinds else None,
            None,
            deadline_ms,
            options,
            QueryDefaults(self._recall, now, self._stored_text),
        )
        return msgspec.structs.replace(query, by_trigger=True, context_heading=row.heading)

    def _vectors(self, texts: Sequence[str]) -> Embedding | None:
        """Return the vectors of a document's sentences; None without a model or while another document is embedded.

        So an embedder that hangs occupies one thread of the host at most.
        """
        if not self._embedding.acquire(blocking=False):
            return None
        try:
            return self._embedder.get(0.0).embed_texts(texts)
        except ModelError:
            return None
        finally:
            self._embedding.release()


def _block(cause: Event, trigger: str, row: Trigger, query: Query, result: RecallResult) -> Block:
    return Block(
        trigger=trigger,
        role=row.role,
        cause_event_id=cause.event_id,
        recall_id=result.recall_id,
        text=result.context or "",
        memories=tuple(
            QuotedMemory(id=found.record.id, score=found.score, relevance=found.relevance) for found in result.memories
        ),
        run_id=query.by_run,
        session_id=query.by_session,
        degraded=result.degraded,
        quotes=tuple(dict.fromkeys(_quotes(result))),
    )


def _quotes(result: RecallResult) -> Iterator[str]:
    """Yield the ids of all memories that the answer's block may quote or date."""
    for found in result.memories:
        yield found.record.id
        yield from (other.id for other in found.origins)
    for run in result.runs:
        yield from (line.record_id for line in (run.request, run.because, *run.steps) if line is not None)
    for step in (*result.shared_steps, *result.failed_steps):
        yield from step.record_ids


EmbedTexts = Callable[[Sequence[str]], Embedding | None]
"""Returns the vectors (n, d) of texts, None without a model."""
Hashes = npt.NDArray[np.int64]

_MOST_CHARS = 2_000_000
_MOST_SENTENCES = 20_000
_MOST_EMBEDDED = 48
_MOST_DOCUMENTS = 16
_HEADINGS = 6
_CHANGED = 4
_CENTRAL = 4
_LEAST_CHARS = 20
_SENTENCE_CHARS = 300
_HEADING_CHARS = 120
_QUERY_CHARS = 1_500
"""The model reads about this much of a query: 256 tokens of 4 to 6 characters."""
_HEADING = re.compile(r"^(?:#{1,6}\s+(?P<marked>.+?)\s*#*|(?P<underlined>[^\s].*)\n(?:={3,}|-{3,})\s*)$", re.MULTILINE)
_END = re.compile(r"(?<=[.!?…。！？])[\"')\]]*\s+|\n\s*\n|\n(?=\s*(?:[-*+]|\d+[.)])\s)|[。！？]")
_BULLET = re.compile(r"^\s*(?:[-*+]|\d+[.)])\s+")
_SPACE = re.compile(r"\s+")


class Revisions:
    """The sentences of the last revision of each document, for the 16 documents that changed last. Thread-safe.

    Keeps 8 bytes of hash per sentence, for at most 20,000 sentences of a document.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[str, Hashes] = OrderedDict()
        self._guard = threading.Lock()

    def changed(self, document: str, sentences: Sequence[str]) -> list[int]:
        """Return the positions of sentences that the last revision lacked, and store this one. The first has none."""
        hashes = np.array([hash(sentence) for sentence in sentences], dtype=np.int64)
        with self._guard:
            known = self._known.pop(document, None)
            self._known[document] = hashes
            while len(self._known) > _MOST_DOCUMENTS:
                self._known.popitem(last=False)
        return [] if known is None else np.flatnonzero(~np.isin(hashes, known)).tolist()


def document_query(title: str, text: str, document: str, revisions: Revisions, embed: EmbedTexts) -> str:
    """Return the query of a document's text, at most 1,500 characters; "" if the text has no usable sentence.

    `document` identifies it among `revisions`; with "" the whole text counts as unchanged. Without a model the first
    sentences replace the central ones.
    """
    text = text[:_MOST_CHARS]
    headings = _headings(text)
    sentences = split_sentences(_HEADING.sub("\n\n", text))
    changed = revisions.changed(document, sentences) if document else []
    looked_at = _looked_at(len(sentences), changed)
    vectors = embed([sentences[place] for place in looked_at]) if looked_at else None
    is_new = np.isin(looked_at, changed)
    places = [*_nearest(is_new, vectors, _CHANGED), *_nearest(np.ones_like(is_new), vectors, _CENTRAL)]
    chosen = [sentences[looked_at[place]] for place in dict.fromkeys(places)]
    return _joined([title.strip()[:_HEADING_CHARS], *headings, *chosen])


def split_sentences(text: str) -> list[str]:
    """Return the distinct sentences and list items of a text, at most 20,000, each on one line.

    Text without an end within 300 characters, such as code, is split there.
    """
    found: dict[str, None] = {}
    for part in _END.split(text):
        line = _SPACE.sub(" ", _BULLET.sub("", part)).strip()
        for start in range(0, len(line), _SENTENCE_CHARS):
            piece = line[start : start + _SENTENCE_CHARS]
            if len(piece) >= _LEAST_CHARS:
                found[piece] = None
        if len(found) >= _MOST_SENTENCES:
            break
    return list(found)[:_MOST_SENTENCES]


def _headings(text: str) -> list[str]:
    """Return the first headings of Markdown."""
    found = (match["marked"] or match["underlined"] for match in _HEADING.finditer(text))
    return [heading.strip()[:_HEADING_CHARS] for heading, _ in zip(found, range(_HEADINGS), strict=False)]


def _looked_at(sentences: int, changed: Sequence[int]) -> list[int]:
    """Return the positions of the sentences to embed, in order. At most two thirds of them are changed ones."""
    new = _spread(changed, 2 * _MOST_EMBEDDED // 3)
    rest = _spread(sorted(set(range(sentences)).difference(changed)), _MOST_EMBEDDED - len(new))
    return sorted([*new, *rest])


def _spread(places: Sequence[int], most: int) -> list[int]:
    if len(places) <= most:
        return list(places)
    return [places[round(place)] for place in np.linspace(0, len(places) - 1, most)]


def _nearest(mask: npt.NDArray[np.bool_], vectors: Embedding | None, most: int) -> list[int]:
    """Return the positions of the sentences in `mask` (n,) nearest to their centroid, nearest first."""
    places = np.flatnonzero(mask)
    if vectors is None or not places.size:
        return [int(place) for place in places[:most]]
    own = vectors[places]
    nearness = own @ own.mean(axis=0)
    return [int(place) for place in places[np.argsort(-nearness, kind="stable")[:most]]]


def _joined(parts: Sequence[str]) -> str:
    """Return the distinct parts, one per line, as many as fit."""
    lines: list[str] = []
    room = _QUERY_CHARS
    for part in dict.fromkeys(filter(None, parts)):
        if len(part) + 1 > room:
            break
        lines.append(part)
        room -= len(part) + 1
    return "\n".join(lines)
