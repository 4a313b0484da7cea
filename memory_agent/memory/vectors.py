"""Embeds texts, decides which vectors the store accepts, and fills in missing vectors.

Texts are embedded outside any lock or transaction. Without a model, memories are stored without vectors, which are
filled in later.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

import msgspec

from memory_agent.embedders import EmbedderInfo, LazyEmbedder, Pending, comparable, comparable_words, is_of_server
from memory_agent.errors import InvalidInputError, MemoryAgentError, ModelError, ProviderInputError
from memory_agent.recall.query import Query
from memory_agent.records.embedded import Embedded, embedded_text, word_bytes
from memory_agent.settings import Reembed
from memory_agent.storage.archive import Archive
from memory_agent.storage.batch import Batch
from memory_agent.storage.codec import StoreState
from relay.locks import holding
from relay.log import log

_FILL_CHUNK = 256
_CATCH_UP_CHUNK, _CATCH_UP_S = 32, 2.0
_EMBED_TIMEOUT_S = 4.0  # shorter than a client's timeout, so that the client receives the acknowledgement

Progress = Callable[[int, int], None]
"""Called with (done, total)."""


class Vectors(msgspec.Struct, frozen=True):
    """The vectors of texts, by text, and the model that computed them. Empty if there is no model."""

    by_text: dict[str, Embedded] = {}
    info: EmbedderInfo | None = None

    def admitted(self, batch: Batch) -> dict[str, Embedded]:
        """Return the usable vectors of `by_text` if the store has the same model or no model yet, else an empty dict.

        If the model computes word vectors in a new way, this sets the store's words stamp, so that all memories wait
        for new word vectors.
        """
        if self.info is None:
            return {}
        stamp, words_stamp = self.info.stamp, self.info.words_stamp
        if batch.state.stamp is None:
            batch.set_stamp(stamp)
        if not comparable(batch.state.stamp or "", stamp):
            return {}
        if words_stamp:
            batch.set_words_stamp(_kept_stamp(batch.state.words_stamp, words_stamp))
        return self._sound(batch.state)

    def _sound(self, state: StoreState) -> dict[str, Embedded]:
        assert self.info is not None
        ndim = state.ndim or self.info.ndim
        width = (state.word_bytes or word_bytes(ndim)) if self.info.words_stamp else None
        sound = {text: found for text, found in self.by_text.items() if found.is_sound(ndim, width)}
        if len(sound) < len(self.by_text):
            log.error("embedder.unusable", texts=len(self.by_text) - len(sound), stamp=self.info.stamp)
        return sound


def _kept_stamp(known: str | None, words_stamp: str) -> str:
    """Return the words stamp for a store: `known` if it is comparable with `words_stamp`, else `words_stamp`."""
    return known if known is not None and comparable_words(known, words_stamp) else words_stamp


class PendingTexts:
    """Texts that are being embedded. Not thread-safe."""

    def __init__(self, texts: Iterable[str], embedder: LazyEmbedder, *, is_awaited: bool) -> None:
        """Begin to embed the distinct `texts`. With `is_awaited`, they precede bulk work and time out after 4 s."""
        self._texts = list(dict.fromkeys(texts))
        self._embedder = embedder
        self._is_awaited = is_awaited
        self._pending: Pending[list[Embedded]] | None = None
        if self._texts:
            timeout_s = _EMBED_TIMEOUT_S if is_awaited else None
            with suppress(ModelError):
                self._pending = embedder.get().begin_passages(self._texts, timeout_s=timeout_s)

    def result(self) -> Vectors:
        """Return the vectors, or none if there is no model, if an error occurs, or if the timeout expires."""
        if self._pending is None:
            return Vectors()
        try:
            found = self._pending.result()
            return Vectors(dict(zip(self._texts, found, strict=True)), self._embedder.get().info)
        except ProviderInputError:
            return self._in_halves()
        except ModelError:
            return Vectors()

    def _in_halves(self) -> Vectors:
        info, half = self._embedder.get().info, len(self._texts) // 2
        if not half:
            return Vectors({}, info)
        parts = (self._texts[:half], self._texts[half:])
        halves = [PendingTexts(part, self._embedder, is_awaited=self._is_awaited).result() for part in parts]
        if any(found.info is None for found in halves):
            return Vectors()
        return Vectors(halves[0].by_text | halves[1].by_text, info)


class MemoryVectors:
    """Embeds texts for one user, and fills in vectors missing from the store. Thread-safe."""

    def __init__(self, archive: Archive, embedder: LazyEmbedder, reembed: Reembed = "never") -> None:
        """`reembed` is as in `DaemonSettings`."""
        self._archive = archive
        self._embedder = embedder
        self._reembed = reembed
        self._filling = threading.RLock()
        self._fill_thread: threading.Thread | None = None
        self._is_closing = False

    def begin(self, texts: Iterable[str], *, is_awaited: bool = False) -> PendingTexts:
        return PendingTexts(texts, self._embedder, is_awaited=is_awaited)

    def embed(self, texts: Iterable[str], *, is_awaited: bool = False) -> Vectors:
        return self.begin(texts, is_awaited=is_awaited).result()

    def check_query(self, asked: Query) -> None:
        """Raise `InvalidInputError` if a recall has a vector that cannot be compared with the memories' vectors."""
        state = self._archive.store.state
        if asked.vector is None or state.stamp is None:
            return
        if not comparable(state.stamp, asked.vector_model):
            reason = f"is {asked.vector_model}; the vectors of the memories are from {state.stamp}"
            raise InvalidInputError("vector_model", reason)
        if len(asked.vector) != state.ndim:
            reason = f"must have {state.ndim} numbers, like the vectors of the memories, not {len(asked.vector)}"
            raise InvalidInputError("vector", reason)

    def fill(self, limit: int | None = None, progress: Progress | None = None) -> int:
        """Embed at most `limit` memories that lack a vector or word vectors; return how many.

        First starts replacing the vectors of a different model, if `reembed` permits it. Commits chunks of 256
        memories. Returns 0 if there is no model, if the model differs from the store's, or while another thread fills
        in vectors. Raises `ModelError` if a new model rejects more than a tenth of the texts.
        """
        self._embedder.look_again()
        with holding(self._filling, 0.0) as is_held:
            if is_held and self._may_reembed():
                self.begin_reembedding()
                log.info("vectors.replacing", memories=self._archive.store.counts().memories)
            return self._fill_all(limit, progress) if is_held else 0

    def fill_in_background(self) -> None:
        """Like `fill` without a limit, but in a thread. Does nothing while the thread runs."""
        if not self._is_closing and (self._fill_thread is None or not self._fill_thread.is_alive()):
            self._fill_thread = threading.Thread(target=self._fill_quietly, name="vectors-fill")
            self._fill_thread.start()

    def begin_reembedding(self) -> int:
        """Begin to replace the vectors if a different model computed them; return the number of memories to embed.

        `fill` then computes the new vectors, even after a crash, and replaces the old ones once all are computed.
        Durable on return. Raises `ModelError` if there is no model.
        """
        self._embedder.look_again()
        info = self._embedder.get().info
        with self._archive.batch() as batch:
            if batch.state.stamp in (None, info.stamp) or not batch.counts().vectors:
                batch.drop_next()
                batch.set_stamp(info.stamp)
                Vectors({}, info).admitted(batch)
            else:
                batch.begin_next(info.stamp, info.words_stamp)
        return self._archive.store.counts().waiting

    def close(self, *, catch_up: bool = False) -> None:
        """Stop the background thread. Idempotent. With `catch_up`, first embed memories without a vector, for about
        2 s.
        """
        if catch_up and self._embedder.is_open:
            self._catch_up()
        self._is_closing = True
        if self._fill_thread is not None:
            self._fill_thread.join()

    def _catch_up(self) -> None:
        store, until_s = self._archive.store, time.monotonic() + _CATCH_UP_S
        with suppress(MemoryAgentError):  # a store without its key must still close
            if store.counts().pending and (
                store.state.stamp is None or comparable(store.state.stamp, self._embedder.get().info.stamp)
            ):
                while self.fill(_CATCH_UP_CHUNK) and time.monotonic() < until_s:
                    pass

    def _may_reembed(self) -> bool:
        """Whether the vectors are from a model other than the embedder's and may be replaced automatically."""
        state = self._archive.store.state
        if self._reembed == "never" or state.stamp is None:
            return False
        try:
            present = self._embedder.get().info.stamp
        except ModelError:
            return False
        if comparable(state.stamp, present) or (state.next is not None and state.next.stamp == present):
            return False
        return self._reembed == "always" or not (is_of_server(state.stamp) or is_of_server(present))

    def _fill_quietly(self) -> None:
        with suppress(MemoryAgentError):  # the next upkeep retries, and reports an error of the store itself
            self.fill()

    def _fill_all(self, limit: int | None, progress: Progress | None) -> int:
        if self._archive.store.state.next is not None:
            return self._fill_next(limit, progress)
        makes_words = self._await_words()
        store, filled, last = self._archive.store, 0, 0
        total = store.counts().pending if limit is None else min(limit, store.counts().pending)
        while filled < total and not self._is_closing:
            rows = store.pending_rows(min(_FILL_CHUNK, total - filled), last)
            if not rows:
                break
            last = rows[-1]
            if not makes_words:  # without words, only memories that lack a vector can be completed
                rows = [row for row, vector in zip(rows, store.vectors(rows), strict=True) if not vector.any()]
            done = self._fill(rows) if rows else 0
            if done is None:
                break
            filled += done
            if progress is not None:
                progress(filled, total)
        return filled

    def _fill_next(self, limit: int | None, progress: Progress | None) -> int:
        """Embed memories with the model that replaces the current one; replace the vectors once all are embedded."""
        store, filled, last = self._archive.store, 0, 0
        most = store.state.next_row if limit is None else limit
        total = min(most, store.counts().waiting)
        while filled < most and not self._is_closing:
            with store.snapshot() as snapshot:
                rows = snapshot.rows_without_next(min(_FILL_CHUNK, most - filled), last)
            vectors = self.embed(embedded_text(one) for one in store.records(rows) if one is not None)
            if not rows or not self._put_next(rows, vectors):
                break
            last = rows[-1]
            filled += len(rows)
            if progress is not None:
                progress(filled, max(filled, total))
        with self._archive.batch() as batch:
            memories, replaces, of = batch.counts().memories, batch.adopt_next(), batch.state.next
        if replaces:
            log.info("vectors.replaced", stamp=store.state.stamp, memories=memories)
        elif of is not None and of.rejected:
            reason = f"{of.stamp} rejects {of.rejected} of {memories} texts, so the former vectors stay"
            if filled:
                log.warning("vectors.not_replaced", reason=reason)
            raise ModelError(f"{reason}; correct the embedder or choose another embedder, and repeat rebuild --vectors")
        return filled

    def _put_next(self, rows: Sequence[int], vectors: Vectors) -> bool:
        """Store vectors of the next model; return False if they are from another model."""
        with self._archive.batch() as batch:
            of = batch.state.next
            if vectors.info is None or of is None or of.stamp != vectors.info.stamp:
                return False
            width = word_bytes(vectors.info.ndim) if of.words_stamp else None
            for row in rows:
                record = batch.record(row)
                found = None if record is None else vectors.by_text.get(embedded_text(record))
                if record is not None:
                    is_usable = found is not None and found.is_sound(vectors.info.ndim, width)
                    batch.put_next(row, found if is_usable else None)
        return True

    def _await_words(self) -> bool:
        """Return whether the embedder computes word vectors; if so, mark the memories without them as waiting."""
        try:
            info = self._embedder.get().info
        except ModelError:
            return False
        known, stamp = self._archive.store.state.words_stamp, self._archive.store.state.stamp
        is_needed = info.words_stamp and stamp is not None and comparable(stamp, info.stamp)
        if is_needed and known != _kept_stamp(known, info.words_stamp):
            with self._archive.batch() as batch:
                Vectors({}, info).admitted(batch)
        return bool(info.words_stamp)

    def _fill(self, rows: Sequence[int]) -> int | None:
        """Embed the memories in `rows`; return how many were stored, or None if the store has vectors of a different
        model.
        """
        texts = [embedded_text(record) for record in self._archive.store.records(rows) if record is not None]
        vectors = self.embed(texts)
        if vectors.info is None or not comparable(
            self._archive.store.state.stamp or vectors.info.stamp, vectors.info.stamp
        ):
            return None
        with self._archive.batch() as batch:
            admitted = vectors.admitted(batch)
            found = {row: embedded_text(record) for row in rows if (record := batch.record(row))}
            present = [(row, text) for row, text in found.items() if text in admitted]
            for row, text in present:
                batch.set_vector(row, admitted[text])
        return len(present)
