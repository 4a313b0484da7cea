"""Turns events into blocks: builds a query from an event, recalls, and renders the block."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import cached_property

import msgspec

from memory_agent.embedders import LazyEmbedder
from memory_agent.errors import InvalidInputError, ModelError
from memory_agent.recall.pipeline import RecallPipeline
from memory_agent.recall.query import Query, QueryDefaults, check_now, make_query
from memory_agent.records.arguments import RecallOptions
from memory_agent.records.embedded import Embedding
from memory_agent.records.memories import MemoryFilter, RecallResult
from memory_agent.settings import RecallSettings, TriggerSettings
from memory_agent.signals import EventReader, id_of, roots, run_id_of
from memory_agent.storage.archive import InUse
from memory_agent.triggers.block import Block, QuotedMemory
from memory_agent.triggers.document_query import Revisions, document_query
from memory_agent.triggers.table import Trigger, TriggerTable
from relay import Event, read_event


class Triggers:
    """Turns one user's events into blocks. Thread-safe."""

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
        """`stored_text` returns a text as it would be stored in an event."""
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
        """Return the block that `trigger` prescribes for an encoded event, or None for an event without usable text.

        The event need not be ingested yet. The answer omits the event itself, its run, and the latest events of its
        session. The recall is attributed to a run only if the recall's id appears in feedback or in an event of the
        run. Raises `InvalidInputError` for an unknown trigger.

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
        """Return the vectors of texts, or None if there is no model or another document is being embedded."""
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
    """Yield the ids of all memories whose text or time an answer's block may show."""
    for found in result.memories:
        yield found.record.id
        yield from (other.id for other in found.origins)
    for run in result.runs:
        yield from (line.record_id for line in (run.request, run.because, *run.steps) if line is not None)
    for step in (*result.shared_steps, *result.failed_steps):
        yield from step.record_ids
