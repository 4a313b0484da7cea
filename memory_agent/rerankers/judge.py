"""Calls the reranker of one memory with a timeout, validates its selection, and caches it.

A selection depends only on the query and the snippets, so their digest is the cache key. The cache is in memory and
bounded. Failures are not cached.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from queue import Empty, SimpleQueue
from types import MappingProxyType
from typing import Literal, NamedTuple

import msgspec

from memory_agent.errors import (
    InvalidSelectionError,
    ModelError,
    ProviderError,
    ProviderUnavailableError,
    SettingsError,
)
from memory_agent.rerankers.chat_model import SERVERS, ChatModel, endpoint_of
from memory_agent.rerankers.protocol import Reranker, Selection, Snippet
from memory_agent.settings import JudgeSettings, import_named
from relay import described
from relay.log import log

Fault = Literal["judge_unavailable", "judge_timeout", "judge_invalid"]  # an error, a timeout, or an invalid reply

_SETTING = "judge.server"  # may name a function
_OF_REQUEST = ("model", "messages", "system", "stream")
_USD = 1_000_000_000  # counted in billionths


class Verdict(NamedTuple):
    """A selection, or the reason why there is none, and the increments of the memory's counters."""

    selection: Selection | None
    fault: Fault | None = None
    problem: str = ""  # contains no text of a query, a memory or a reply
    is_cached: bool = False
    counts: Mapping[str, int] = MappingProxyType({})


class Judge:
    """The judge of one memory. Thread-safe.

    In the example, `memory` is as in `memory_agent.memory.Memory`.
    """

    def __init__(self, settings: JudgeSettings, deadline_ms: float) -> None:
        """Prepare without connecting. `deadline_ms` is the default deadline. Raises the errors of `check_judge`."""
        check_judge(settings, deadline_ms)
        self.settings = settings
        self._guard = threading.Lock()
        self._own = open_reranker(settings)
        self._reranker: Reranker | None = self._own
        self._selections: OrderedDict[bytes, Selection] = OrderedDict()

    @property
    def is_on(self) -> bool:
        return self._reranker is not None

    def use(self, reranker: Reranker | None) -> None:
        """Select the memories of answers with `reranker` or, if it is None, with the server in the settings.

        Calls that last longer than the deadline are abandoned. Clears the cache.

        >>> old, new = memory.remember("Staging needs the VPN"), memory.remember("Staging needs no VPN")
        >>> memory.judge.use(lambda query, candidates, most, timeout_s: Selection((old.id,)))
        >>> [found.record.text for found in memory.recall("does staging need the VPN?").memories]
        ['Staging needs the VPN']
        """
        self.share(None if reranker is None else OwnFunction(reranker, self.settings.at_once))

    def share(self, reranker: Reranker | None) -> None:
        """Like `use`, for a reranker that enforces its timeout itself. The caller closes it."""
        with self._guard:
            self._reranker = reranker or self._own
            self._selections.clear()

    def select(self, query: str, candidates: Sequence[Snippet], timeout_s: float) -> Verdict:
        """Return the reranker's selection, or a fault after an error or a timeout. Never raises."""
        key = _digest(query, candidates)
        with self._guard:
            reranker, known = self._reranker, self._selections.get(key)
            if known is not None:
                self._selections.move_to_end(key)
                return Verdict(known, is_cached=True, counts={"judge.cached": 1})
        if reranker is None or timeout_s * 1000 < self.settings.least_ms:
            return Verdict(None, "judge_timeout", "no time was left", counts={"judge.skipped": 1})
        verdict = self._asked(reranker, query, candidates, timeout_s)
        if verdict.selection is not None:
            self._remember(reranker, key, verdict.selection)
        return verdict

    def close(self) -> None:
        """Close the connection to the server, if the judge opened it. Idempotent."""
        if self._own is not None:
            self._own.close()

    def _remember(self, reranker: Reranker, key: bytes, selection: Selection) -> None:
        with self._guard:
            if reranker is self._reranker:  # otherwise, a different reranker is in use now
                self._selections[key] = selection
                while len(self._selections) > self.settings.cache:
                    self._selections.popitem(last=False)

    def _asked(self, reranker: Reranker, query: str, candidates: Sequence[Snippet], timeout_s: float) -> Verdict:
        began_s, most = time.monotonic(), self.settings.most
        read = written = 0
        fault: Fault = "judge_unavailable"
        try:
            found = reranker(query, candidates, most, timeout_s)
            read, written = found.tokens_read, found.tokens_written
            return Verdict(_checked(found, candidates, most), counts=self._counts(read, written))
        except InvalidSelectionError as error:
            fault, problem = "judge_invalid", str(error)
            read, written = max(read, error.tokens_read), max(written, error.tokens_written)
        except (ModelError, SettingsError) as error:
            problem = str(error)
        except Exception as error:  # noqa: BLE001 - a function that a host passed may return anything
            problem = type(error).__name__
        if fault == "judge_unavailable" and time.monotonic() - began_s >= timeout_s:
            fault = "judge_timeout"
        log.warning("judge.failed", fault=fault, reason=problem)
        return Verdict(None, fault, problem, counts={**self._counts(read, written), "judge.failed": 1})

    def _counts(self, read: int, written: int) -> dict[str, int]:
        usd_per_million = read * self.settings.usd_per_million_read + written * self.settings.usd_per_million_written
        counts = {"asked": 1, "tokens_read": read, "tokens_written": written}
        counts["billionths_usd"] = round(usd_per_million * _USD / 1_000_000)
        return {f"judge.{name}": count for name, count in counts.items() if count}


class OwnFunction:
    """Calls a function, given directly or as MODULE:NAME, within a time limit. Thread-safe.

    A function cannot be stopped, so it runs in its own thread and is abandoned after the timeout. It counts towards
    `judge.at_once` until it returns.
    """

    def __init__(self, function: Reranker | str, at_once: int) -> None:
        """Prepare without importing the function. At most `at_once` calls run at a time."""
        self._function = function
        self._slots = threading.BoundedSemaphore(at_once)

    def __call__(self, query: str, candidates: Sequence[Snippet], most: int, timeout_s: float) -> Selection:
        """Like `Reranker`. Raises `ProviderError`, `ProviderUnavailableError` and `SettingsError`."""
        function = import_named(_SETTING, self._function) if isinstance(self._function, str) else self._function
        if not self._slots.acquire(blocking=False):
            raise ProviderUnavailableError("judge", "earlier calls have not returned (judge.at_once)")
        outcome = SimpleQueue[Selection | Exception]()

        def call() -> None:
            try:
                outcome.put(function(query, candidates, most, timeout_s))
            except Exception as error:  # noqa: BLE001 - raised in the waiting thread
                outcome.put(error)
            finally:
                self._slots.release()

        threading.Thread(target=call, name="reranker", daemon=True).start()
        try:
            found = outcome.get(timeout=timeout_s)
        except Empty:
            raise ProviderUnavailableError("judge", f"the function did not return within {timeout_s:.3g} s") from None
        if isinstance(found, Exception):
            raise ProviderError("judge", type(found).__name__) from found  # its message may contain memories
        return found

    def close(self) -> None:
        """Do nothing."""


def open_reranker(settings: JudgeSettings) -> ChatModel | OwnFunction | None:
    """Return the reranker that the settings select, without connecting or importing anything; the caller closes it."""
    if settings.server == "off":
        return None
    return ChatModel(settings) if settings.server in SERVERS else OwnFunction(settings.server, settings.at_once)


def check_judge(settings: JudgeSettings, deadline_ms: float) -> None:
    """Raise `SettingsError` for a judge that cannot be called, and for settings that contradict each other."""
    if settings.server == "off":
        return
    _check_server(settings) if settings.server in SERVERS else import_named(_SETTING, settings.server)
    for name in ("most", "fallback"):
        if getattr(settings, name) > settings.candidates:
            raise SettingsError(f"judge.{name}", f"is more than judge.candidates ({settings.candidates})")
    if settings.least_ms >= deadline_ms:
        reason = f"is not below recall.deadline_ms ({deadline_ms:g}), so the judge is never called; raise the deadline"
        raise SettingsError("judge.least_ms", reason)


def _check_server(settings: JudgeSettings) -> None:
    if not settings.model:
        raise SettingsError("judge.model", f"is empty; name the model that judge.server = {settings.server} is to run")
    if not settings.url and not settings.api_key:
        raise SettingsError("judge.api_key", "is empty; name the variable with the key, or set judge.url to a server")
    taken = [name for name in _OF_REQUEST if name in settings.parameters]
    if taken:
        raise SettingsError("judge.parameters", f"must not set {', '.join(taken)}, which the judge sets itself")
    endpoint_of(settings).check()


def _checked(found: Selection, candidates: Sequence[Snippet], most: int) -> Selection:
    """Return the selection, or raise `InvalidSelectionError` unless it names at most `most` different candidates."""
    try:
        selection = msgspec.convert(msgspec.structs.asdict(found), described(Selection))
    except msgspec.ValidationError as error:
        raise InvalidSelectionError("is not a Selection") from error
    selected = set(selection.selected)
    if len(selected) < len(selection.selected) or not selected <= {snippet.id for snippet in candidates}:
        raise InvalidSelectionError("selects a memory twice, or a memory that was not offered")
    if len(selected) > most:
        raise InvalidSelectionError(f"selects {len(selected)} memories, more than {most}")
    return selection


def _digest(query: str, candidates: Sequence[Snippet]) -> bytes:
    """Return the cache key of a selection. It omits the settings, which are constant for a memory."""
    parts = msgspec.msgpack.encode((query, [(snippet.id, snippet.text, snippet.timestamp) for snippet in candidates]))
    return hashlib.blake2b(parts, digest_size=16).digest()
