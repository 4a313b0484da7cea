"""The store of shared items of a data folder that no daemon serves: opened by the first request that needs it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from memory_agent.embedders import Embedder
from memory_agent.embedders.lazy_embedder import LazyEmbedder
from memory_agent.errors import ModelError
from memory_agent.knowledge.nothing_shared import NothingFound, answer_without_store, creates_store
from memory_agent.knowledge.store import Knowledge
from memory_agent.records.shared_requests import AnyAsk, Caller, PendingItems, SearchItems
from memory_agent.settings import EmbedderSettings

OpenStore = Callable[[Embedder | None], Knowledge]
"""Opens the store, or creates it, with an embedder that stays the caller's."""


class KnowledgeOnFiles:
    """Satisfies `SharedStore`, for one thread. A request that only reads creates nothing."""

    def __init__(self, folder: Path, open_store: OpenStore, settings: EmbedderSettings) -> None:
        """`folder` is where the store lies, once something was published; `settings` are for its searches."""
        self._folder = folder
        self._open_store = open_store
        self._embedder = LazyEmbedder(None, settings)
        self._knowledge: Knowledge | None = None

    def ask(self, caller: Caller, ask: AnyAsk, timeout_s: float) -> Any:
        """Return the answer. Raises `InvalidInputError`, and what opening the store raises."""
        if not creates_store(ask) and not self._folder.exists():
            return answer_without_store(ask)
        return self._opened().ask(caller, ask, timeout_s)

    def begin_search(self, caller: Caller, ask: SearchItems, timeout_s: float) -> PendingItems:
        """Open the store and its model, which takes longer than an answer waits for shared items."""
        if not self._folder.exists():
            return NothingFound()
        with suppress(ModelError):
            self._embedder.get(timeout_s)
        return self._opened().begin_search(caller, ask, timeout_s)

    def close(self) -> None:
        """Remove what was taken away from the files, and close them."""
        if self._knowledge is not None:
            try:
                self._knowledge.expire()
            finally:
                self._knowledge.close()
        self._embedder.close()

    def _opened(self) -> Knowledge:
        if self._knowledge is None:
            self._knowledge = self._open_store(self._embedder.get(0) if self._embedder.is_open else None)
        return self._knowledge
