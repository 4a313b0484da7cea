"""Several users' memories in one process: opened at their first request, closed when they sleep. Knows no Ray.

Requests and replies are bytes (`protocol`), so errors keep their type over any transport. A store that failed or was
fenced is closed at once; the next request opens and verifies it again. An I/O error is never worked around in place.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from memory_agent.embedders import Embedder
from memory_agent.errors import (
    EncryptionKeyMissingError,
    FencedError,
    HostDiedError,
    MemoryAgentError,
    StoreError,
    StoreFullError,
    UnavailableError,
    UnknownMethodError,
)
from memory_agent.knowledge import Knowledge
from memory_agent.memory import Memory
from memory_agent.records.memories import IngestReport
from memory_agent.records.shared_requests import NO_RIGHTS, Rights, SharedStore
from memory_agent.settings import Settings
from memory_agent.storage.folders import user_folder
from memory_agent.verbs.params import AGED_AT_ONCE
from memory_agent.verbs.protocol import IngestBatch, decode, encode_fault, encode_result
from memory_agent.verbs.table import BY_NAME
from relay import SHARED_USER
from relay.log import log

_FILL_CHUNK = 256
_MUST_NOT_WRITE = (FencedError, EncryptionKeyMissingError)


@dataclass
class _UserLock:
    """The lock of one user, kept while a thread holds it or waits for it."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    holders: int = 0


class MemoryHost:
    """The memories of this process. Every method may be called from several threads."""

    def __init__(
        self, data_dir: Path, settings: Settings, embedder: Embedder, shared: SharedStore | None = None
    ) -> None:
        """Serve users below `data_dir`. `embedder` and `shared`, what users share, stay the caller's to close."""
        self._data_dir = data_dir
        self._settings = settings
        self._embedder = embedder
        self._shared = shared
        self._memories: dict[str, Memory] = {}
        self._locks: defaultdict[str, _UserLock] = defaultdict(_UserLock)
        self._guard = threading.Lock()

    def call(self, user_id: str, method: str, params: bytes, deadline_ms: float, rights: Rights = NO_RIGHTS) -> bytes:
        """Answer one request of `user_id` with an encoded reply; an error is a fault in it."""
        started_s = time.monotonic()
        memory = None
        try:
            verb = BY_NAME.get(method)
            if verb is None or verb.answered_by != "memory":
                raise UnknownMethodError(method)
            decoded = decode(params, verb.params)
            memory = self._awake(user_id)
            remaining_ms = deadline_ms - (time.monotonic() - started_s) * 1000
            return encode_result(verb.answer(memory, decoded, remaining_ms, rights))
        except (MemoryAgentError, OSError) as error:
            return self._fault(user_id, memory, error)

    def call_awake(self, user_id: str, method: str, params: bytes, deadline_ms: float) -> bytes:
        """As `call`, for a caller that looked up the actor earlier; a fault if the user is not awake here any more.

        Only the daemon wakes a user: waking it here could open the store of a user who has moved.
        """
        if user_id not in self._memories:
            return encode_fault(HostDiedError(f"{user_id} is not awake here"))
        return self.call(user_id, method, params, deadline_ms)

    def ingest(self, user_id: str, batch: bytes) -> bytes:
        """Ingest journal entries; the reply carries an `IngestReport`. Durable on return."""
        memory = None
        try:
            entries = decode(batch, IngestBatch)
            memory = self._awake(user_id)
            return encode_result(self._ingest(memory, entries))
        except (MemoryAgentError, OSError) as error:
            return self._fault(user_id, memory, error)

    def fill_vectors(self) -> int:
        """Embed what was stored without a model, for every user awake; return how many.

        A failing store does not affect the others.
        """
        return sum(self._fill_vectors(memory) for memory in self._awake_memories())

    def keep_up(self, now: datetime) -> None:
        """Expire abandoned runs, forget expired memories and consolidate learning, for every user awake.

        A failure of any kind does not affect the other users.
        """
        for memory in self._awake_memories():
            try:
                memory.expire(now)
                memory.erasure.resume()
                memory.erasure.age(now, AGED_AT_ONCE)
                memory.sona.consolidate(now)
                self._report(memory, now)
            except MemoryAgentError as error:
                log.warning("memory.not_kept_up", user_id=memory.user_id, code=error.code)
                if isinstance(error, EncryptionKeyMissingError):
                    self._forget_if_broken(memory.user_id, memory, error)
            except Exception:
                log.exception("memory.upkeep_failed", user_id=memory.user_id)

    def sleep(self, user_id: str) -> None:
        """Commit, save the caches and close the memory of `user_id`."""
        with self._lock(user_id):
            memory = self._memories.pop(user_id, None)
            if memory is not None:
                memory.close()
                log.info("memory.slept", user_id=user_id)

    def close(self) -> None:
        """Put all users to sleep."""
        for user_id in list(self._memories):
            self.sleep(user_id)

    def _ingest(self, memory: Memory, batch: IngestBatch) -> IngestReport:
        events = [data for _, data in batch.events]
        seqs = [seq for seq, _ in batch.events]
        return memory.ingest_encoded(events, seqs=None if batch.replay else seqs, ahead=batch.ahead)

    def _report(self, memory: Memory, now: datetime) -> None:
        """Report what runs say of shared items; the store of these may be away for now."""
        with suppress(UnavailableError):
            memory.shared.report(now - timedelta(seconds=self._settings.shared.report_after_s))

    def _fill_vectors(self, memory: Memory) -> int:
        try:
            filled = memory.fill_vectors(_FILL_CHUNK)
            if filled == _FILL_CHUNK:  # there is more
                memory.fill_in_background()
            return filled
        except MemoryAgentError as error:
            log.warning("vectors.not_filled", user_id=memory.user_id, code=error.code)
            return 0

    def _awake(self, user_id: str) -> Memory:
        memory = self._memories.get(user_id)
        if memory is not None:
            return memory
        with self._lock(user_id):
            if user_id not in self._memories:
                self._memories[user_id] = self._wake(user_id)
            return self._memories[user_id]

    def _wake(self, user_id: str) -> Memory:
        started_s = time.monotonic()
        kind = Knowledge if user_id == SHARED_USER else Memory
        memory = kind.open(
            user_folder(self._data_dir, user_id),
            user_id=user_id,
            settings=self._settings,
            embedder=self._embedder,
            role="host",
            shared=self._shared,
        )
        log.info("memory.woken", user_id=user_id, took_ms=round((time.monotonic() - started_s) * 1000, 1))
        return memory

    def _awake_memories(self) -> list[Memory]:
        with self._guard:
            return list(self._memories.values())

    @contextmanager
    def _lock(self, user_id: str) -> Iterator[None]:
        with self._guard:
            lock = self._locks[user_id]
            lock.holders += 1
        try:
            with lock.lock:
                yield
        finally:
            with self._guard:
                lock.holders -= 1
                if not lock.holders:
                    del self._locks[user_id]

    def _fault(self, user_id: str, memory: Memory | None, cause: MemoryAgentError | OSError) -> bytes:
        error = StoreError(f"{type(cause).__name__}: {cause.strerror}") if isinstance(cause, OSError) else cause
        self._forget_if_broken(user_id, memory, error)
        return encode_fault(error)

    def _forget_if_broken(self, user_id: str, memory: Memory | None, error: MemoryAgentError) -> None:
        """Close the memory that failed, unless another thread already replaced it.

        A full disk is not a failure: the memory still answers, and reopening it would need room. The lock is held until
        it is closed, because opening it meanwhile would find it owned by this process.
        """
        if not isinstance(error, StoreError) or isinstance(error, StoreFullError):
            return
        log.error("memory.failed", user_id=user_id, code=error.code)
        with self._lock(user_id):
            if memory is not None and self._memories.get(user_id) is memory:
                del self._memories[user_id]
                memory.abandon() if isinstance(error, _MUST_NOT_WRITE) else memory.close()
