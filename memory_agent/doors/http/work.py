"""The answer of a verb as server-sent events, where the request has `Accept: text/event-stream`: progress, then result.

Long work (`compact`, `erase`, `rebuild`) then shows that it goes on, and proxies keep the connection. `rebuild` with
`vectors` returns at once and embeds in the background; its stream ends when all memories have vectors.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from typing import Any

import msgspec

from memory_agent.doors.http.problems import problem
from memory_agent.doors.http.streams import event_frame
from memory_agent.errors import MemoryAgentError

MOST_PAUSE_S = 1.0
"""Seconds between two events of a stream, at most."""
_under_way: set[asyncio.Task[bytes]] = set()


class WorkProgress(msgspec.Struct, frozen=True, kw_only=True):
    """The work goes on. `waiting`: memories that have no vector yet; None where the work is not about vectors."""

    elapsed_ms: int
    waiting: int | None = None


class Work:
    """A request that is being answered. It goes on when its client is gone."""

    def __init__(self, answer: Coroutine[Any, Any, bytes], pause_s: float) -> None:
        """Begin. `answer` returns the result as JSON, and may raise `MemoryAgentError`."""
        self._started_s = time.monotonic()
        self._pause_s = min(pause_s, MOST_PAUSE_S)
        self._answer = asyncio.create_task(answer)
        _under_way.add(self._answer)  # the loop itself refers to its tasks weakly
        self._answer.add_done_callback(_done)

    async def refuse(self) -> None:
        """Raise what the work raises within `MOST_PAUSE_S`, so that the answer has the status of that error."""
        done, _ = await asyncio.wait({self._answer}, timeout=MOST_PAUSE_S)
        if done:
            self._answer.result()

    async def frames(self, waiting: Callable[[], Awaitable[int]] | None) -> AsyncGenerator[bytes]:
        """Yield the frames: progress, then the result or the problem.

        `waiting` counts the memories without vectors; if given, the result comes when there are none.
        """
        try:
            while not self._answer.done():
                yield self._progress(None)
                await asyncio.wait({self._answer}, timeout=self._pause_s)
            result = self._answer.result()
            while waiting is not None and (count := await waiting()):
                yield self._progress(count)
                await asyncio.sleep(self._pause_s)
            yield event_frame("result", result)
        except MemoryAgentError as error:
            yield event_frame("problem", msgspec.json.encode(problem(error)))

    def _progress(self, waiting: int | None) -> bytes:
        elapsed_ms = round((time.monotonic() - self._started_s) * 1000)
        return event_frame("progress", msgspec.json.encode(WorkProgress(elapsed_ms=elapsed_ms, waiting=waiting)))


def _done(work: asyncio.Task[bytes]) -> None:
    """Take the error of work that nobody follows any more: asyncio would log it with its text."""
    _under_way.discard(work)
    if not work.cancelled():
        work.exception()
