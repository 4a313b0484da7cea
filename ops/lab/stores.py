"""The stores that every experiment starts with: each user's events, ingested once in this process.

Recalls and feedback change later rankings, so arms work only on copies (`copied`).
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memory_agent.embedders import Embedder, EmbedderInfo, PassageEmbedder, Pending, Settled
from memory_agent.embedders import Progress as EmbeddingProgress
from memory_agent.evaluation.runs import Progress, opener
from memory_agent.layout import Layout
from memory_agent.records.embedded import Embedded, EmbeddedQuery
from memory_agent.settings import Settings
from memory_agent.storage.folders import user_folder

Events = Sequence[Mapping[str, Any]]

_BATCH = 64


@dataclass(frozen=True)
class Stores:
    """The folder of the ingested stores, and each event's record id, by user."""

    folder: Path
    settings: Settings
    records: dict[str, dict[str, str]]


def ingest_all(
    events: Mapping[str, Events], settings: Settings, folder: Path, embedder: Embedder, progress: Progress
) -> Stores:
    """Ingest each user's events into a store under `folder`. Events that create no memory have no record id."""
    Layout(folder).create()
    total, done = sum(map(len, events.values())), 0
    records: dict[str, dict[str, str]] = {}
    for user_id, of_user in events.items():
        records[user_id] = {}
        with opener(settings, folder, embedder)(user_id) as memory:
            for start in range(0, len(of_user), _BATCH):
                report = memory.ingest(of_user[start : start + _BATCH])
                for record in memory.get(report.record_ids):
                    records[user_id][record.event_id or record.id] = record.id
                done += len(of_user[start : start + _BATCH])
                progress("ingest", done, total)
    return Stores(folder, settings, records)


@contextmanager
def copied(folder: Path, user_id: str) -> Iterator[Path]:
    """Yield a folder with a copy of one user's closed store; remove it afterwards."""
    with tempfile.TemporaryDirectory(prefix="memory-eval-") as name:
        shutil.copytree(user_folder(folder, user_id), user_folder(Path(name), user_id))
        yield Path(name)


class CachingEmbedder(PassageEmbedder):
    """Embeds each text once, and caches the embedding. Not thread-safe.

    Caching cuts the time to a third, since stores share texts.
    """

    def __init__(self, embedder: Embedder, known: Mapping[str, Embedded] | None = None) -> None:
        """Embed texts that are not in `known` with `embedder`, which the caller closes."""
        self._embedder = embedder
        self._found: dict[str, Embedded] = dict(known or {})

    @property
    def info(self) -> EmbedderInfo:
        """Like `Embedder.info`."""
        return self._embedder.info

    def begin_query_words(self, text: str, timeout_s: float | None = None) -> Pending[EmbeddedQuery]:
        """Embed a query with the wrapped embedder, which has its own cache."""
        return self._embedder.begin_query_words(text, timeout_s)

    def begin_passages(
        self, texts: Sequence[str], progress: EmbeddingProgress | None = None, timeout_s: float | None = None
    ) -> Pending[list[Embedded]]:
        """Return the embeddings of `texts`, embedding only those not cached."""
        new = [text for text in dict.fromkeys(texts) if text not in self._found]
        if new:
            self._found.update(zip(new, self._embedder.embed_passages(new, progress), strict=True))
        return Settled([self._found[text] for text in texts])

    def count_tokens(self, text: str, timeout_s: float | None = None) -> int:
        """Return the model's token count for `text`."""
        return self._embedder.count_tokens(text, timeout_s)

    def close(self) -> None:
        """Do nothing; the caller closes the wrapped embedder."""
