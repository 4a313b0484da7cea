"""Call a provider's HTTP API with limits on time and size. This is the only file that imports `httpx2`.

All calls to an API run in one event loop on a separate thread, because the timeouts of a synchronous client restart
with each byte. A deadline covers the whole call, including name resolution, retries and a slow answer.

Errors and logs contain no text, key, or content of an answer, because providers repeat keys and texts in their errors.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import re
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, TypeVar

import httpx2
import msgspec

from memory_agent.errors import (
    MemoryAgentError,
    ModelError,
    ProviderError,
    ProviderInputError,
    ProviderUnavailableError,
)
from memory_agent.model_apis.endpoint import ModelEndpoint, is_loopback
from memory_agent.records.memories import ApiCounts
from relay import described
from relay.future import Future

_ATTEMPTS, _ATTEMPTS_AT_500 = 4, 2
_CONNECT_S = 5.0
_CONNECTIONS = 8
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 8.0
_FAILURES, _OPEN_S, _OPEN_LONGEST_S = 3, 1.0, 60.0
_LONGEST_RETRY_AFTER_S = 3600.0
_SHORT_WAIT_S = 1.0  # a call that times out sooner does not count as a failure of the provider
_REFUSED = {401: 30.0, 402: 30.0, 403: 30.0, 404: 0.0}  # statuses that any call would receive, and the pause in seconds
_UNAVAILABLE = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
_ADVICE = {
    400: "the request was rejected; check {setting}.model and the other settings of {setting}",
    401: "the key was refused; set a valid one in {key}",
    402: "the account has no credit",
    403: "the key may not use this model; check the permissions of the key in {key}",
    404: "no such model or path; check {setting}.model and {setting}.url",
    413: "a text is too long for this model",
    422: "the request was rejected; check {setting}.model and the other settings of {setting}",
}
_OF_INPUT = frozenset({400, 413, 422, 500})
_NAMES = ("code", "type", "status")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")

Answer = TypeVar("Answer")

for _logger in ("httpx2", "httpcore2"):
    logging.getLogger(_logger).setLevel(logging.WARNING)  # httpcore2 logs headers, including the key, at DEBUG


class _Failure(msgspec.Struct, frozen=True):
    """A provider's error. Its name is in `code` or `type` for OpenAI and Anthropic, and in `status` for Gemini."""

    error: Any = None


async def _settle(future: Future[Answer], work: Callable[[], Awaitable[Answer]], provider: str) -> None:
    try:
        answer = await work()
    except MemoryAgentError as error:
        future.settle(error)
    except Exception as error:  # noqa: BLE001 - the caller must get an error, and not wait for ever
        future.settle(ProviderError(provider, f"the call failed: {type(error).__name__}"))
    else:
        future.settle(answer)


class ModelApi:
    """The API of one provider. Thread-safe; starts its thread on the first call."""

    def __init__(self, endpoint: ModelEndpoint) -> None:
        endpoint.check()
        self.endpoint = endpoint
        self._circuit = Circuit()
        self._lock = threading.Lock()
        self._counts = ApiCounts(provider=endpoint.provider)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._client = httpx2.AsyncClient(
            timeout=httpx2.Timeout(None, connect=_CONNECT_S),
            limits=httpx2.Limits(max_connections=_CONNECTIONS),
            verify=not endpoint.url.startswith("http:"),  # reading the certificates takes .1 s
            follow_redirects=False,  # another host would receive the texts and the key
            trust_env=not is_loopback(endpoint.url),  # a proxy (HTTP_PROXY) would receive them unencrypted
            headers={"accept-encoding": "identity", "content-type": "application/json", **endpoint.headers},
        )
        self._is_closed = False

    def run(self, work: Callable[[], Coroutine[Any, Any, Answer]]) -> Future[Answer]:
        """Run a coroutine, which may call `ask`, without waiting. Cancelling the future closes its connection."""
        future = Future[Answer]()
        ended = self._unavailable("was closed")
        tasks: list[asyncio.Task[None]] = []

        def start() -> None:
            if not future.done():
                tasks.append(loop.create_task(_settle(future, work, self.endpoint.provider)))
                tasks[0].add_done_callback(lambda _: future.settle(ended))

        def stop(_: object) -> None:
            if future.cancelled():
                with suppress(RuntimeError):  # the loop is closed, so the call has ended
                    loop.call_soon_threadsafe(lambda: [task.cancel() for task in tasks])

        with self._lock:  # so that `close` finds every call in the loop
            if self._is_closed:
                future.settle(ended)
                return future
            loop = self._running_loop()
            loop.call_soon_threadsafe(start)
        future.call_when_done(stop)
        return future

    def post(self, path: str, body: object, kind: type[Answer], timeout_s: float | None = None) -> Answer:
        """Call `ask` and wait. Raises the same errors."""
        return self.run(partial(self.ask, path, body, kind, timeout_s)).result()

    def add_tokens(self, read: int, written: int = 0) -> None:
        with self._lock:
            counts = self._counts
            total = counts.tokens_read + counts.tokens_written + read + written
            self._counts = msgspec.structs.replace(
                counts,
                tokens_read=counts.tokens_read + read,
                tokens_written=counts.tokens_written + written,
                cost_usd=total * self.endpoint.usd_per_million_tokens / 1e6,
            )

    def counts(self) -> ApiCounts:
        """Return counts of the calls so far; `problem` is the last call's error, or "" if it succeeded."""
        return self._counts

    def close(self) -> None:
        """Cancel the calls in progress and end the thread. Idempotent."""
        with self._lock:
            is_closed, self._is_closed = self._is_closed, True
        if self._loop is None or self._thread is None or is_closed:
            return
        asyncio.run_coroutine_threadsafe(self._end(), self._loop)
        self._thread.join()

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        """Return the loop, which the first call starts. The caller holds the lock."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._run, name="model-api", daemon=True)
            self._thread.start()
        return self._loop

    def _run(self) -> None:
        assert self._loop is not None
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.close()

    async def _end(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with suppress(Exception):
            await self._client.aclose()
        asyncio.get_running_loop().stop()

    async def ask(self, path: str, body: object, kind: type[Answer], timeout_s: float | None = None) -> Answer:
        """Post `body` as JSON to `path` and return the answer, decoded as `kind`. Call this from within the loop.

        If the connection fails or the provider is overloaded, retries with backoff for up to `timeout_s`, which cannot
        exceed the endpoint's timeout. Raises `ProviderUnavailableError` (try again later), `ProviderInputError` or a
        `ProviderError`.
        """
        limit_s = min(self.endpoint.timeout_s, self.endpoint.timeout_s if timeout_s is None else timeout_s)
        ended_by_s = time.monotonic() + limit_s
        try:
            async with asyncio.timeout(limit_s):
                answer = await self._call(path, msgspec.json.encode(body), kind, ended_by_s)
        except TimeoutError:
            if limit_s >= min(_SHORT_WAIT_S, self.endpoint.timeout_s):
                self._circuit.failed()
            error = self._unavailable(f"no complete answer within {limit_s:.3g} s")
            self._count(calls=1, failed=1, problem=str(error))
            raise error from None
        except ModelError as error:
            self._count(calls=1, failed=1, problem=str(error))
            raise
        self._circuit.succeeded()
        self._count(calls=1, problem="")
        return answer

    async def _call(self, path: str, content: bytes, kind: type[Answer], ended_by_s: float) -> Answer:
        """Send the request, with retries. Raises `ModelError`; records failures in the circuit breaker."""
        key = self.endpoint.read_key()
        headers = {self.endpoint.key_header: f"{self.endpoint.key_scheme}{key}"} if key else {}
        waits_s = self._circuit.admit()
        if waits_s:
            self._count(refused=1)
            raise self._unavailable(f"not called for another {waits_s:.2g} s, after an error: {self._counts.problem}")
        for attempt in range(_ATTEMPTS):
            if time.monotonic() >= ended_by_s:
                raise TimeoutError
            asked_s, status = 0.0, 0
            try:
                status, answer_headers, answer = await self._send(path, content, headers)
            except httpx2.TransportError as error:
                problem = f"{self.endpoint.url} is not reachable: {type(error).__name__}"
            else:
                if status == httpx2.codes.OK:
                    return self._decoded(answer, answer_headers, kind)
                asked_s = retry_after_s(answer_headers)
                problem = self._problem(status, answer)
                if status not in _UNAVAILABLE:
                    if status in _REFUSED:
                        self._circuit.failed(_REFUSED[status])
                    raise (ProviderInputError if status in _OF_INPUT else ProviderError)(
                        self.endpoint.provider, problem
                    )
            wait_s = max(asked_s, pause_s(attempt))
            if (
                attempt + 1 == (_ATTEMPTS_AT_500 if status == 500 else _ATTEMPTS)
                or time.monotonic() + wait_s >= ended_by_s
            ):
                break
            self._count(retries=1)
            await asyncio.sleep(wait_s)
        self._circuit.failed(asked_s)
        if status in _OF_INPUT:  # some servers return 500 for invalid input
            raise ProviderInputError(self.endpoint.provider, problem)
        raise self._unavailable(problem)

    async def _send(self, path: str, content: bytes, headers: dict[str, str]) -> tuple[int, httpx2.Headers, bytes]:
        """Return the status, headers and content of one attempt. Raises `ProviderError` if the answer is too large."""
        url, parts, size = self.endpoint.url.rstrip("/") + path, list[bytes](), 0
        async with self._client.stream("POST", url, content=content, headers=headers) as response:
            async for part in response.aiter_raw():
                size += len(part)
                if size > self.endpoint.answer_bytes:
                    self._circuit.failed()
                    raise ProviderError(
                        self.endpoint.provider, f"the answer exceeds {self.endpoint.answer_bytes} bytes"
                    )
                parts.append(part)
            return response.status_code, response.headers, b"".join(parts)

    def _decoded(self, answer: bytes, headers: httpx2.Headers, kind: type[Answer]) -> Answer:
        try:
            return msgspec.json.decode(answer, type=described(kind))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            self._circuit.failed()
            what = headers.get("content-type", "").partition(";")[0][:40] or "no content type"
            where = str(error).rpartition(" - at ")[2][:80] if " - at " in str(error) else "not the expected JSON"
            reason = f"an answer that cannot be used ({what}: {where}); check {self.endpoint.setting}.url"
            raise ProviderError(self.endpoint.provider, reason) from None  # the cause contains parts of the answer

    def _problem(self, status: int, answer: bytes) -> str:
        """Return the meaning of a status, with the provider's name for the error if it is a plain word."""
        advice = _ADVICE.get(status, "redirects are not followed; correct {setting}.url" if 300 <= status < 400 else "")
        text = advice.format(key=self.endpoint.key or "the settings", setting=self.endpoint.setting)
        names: list[str] = []
        with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            failure = msgspec.json.decode(answer, type=described(_Failure)).error
            given = [failure.get(field) for field in _NAMES] if isinstance(failure, dict) else []
            names = [name for name in given if isinstance(name, str) and _NAME.fullmatch(name)]
        return f"HTTP {status}" + f" {'/'.join(sorted(set(names)))}" * bool(names) + f": {text}" * bool(text)

    def _unavailable(self, reason: str) -> ProviderUnavailableError:
        return ProviderUnavailableError(self.endpoint.provider, reason)

    def _count(self, problem: str | None = None, **more: int) -> None:
        with self._lock:
            counts = self._counts
            added: dict[str, Any] = {name: getattr(counts, name) + number for name, number in more.items()}
            added["problem"] = counts.problem if problem is None else problem
            self._counts = msgspec.structs.replace(counts, **added)


def pause_s(attempt: int) -> float:
    """Return the pause after attempt 0, 1, …: .25 s, doubled each time up to 8 s, times a random factor of .5 to 1."""
    longest_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(attempt, 16))
    return random.uniform(longest_s / 2, longest_s)


def retry_after_s(headers: Mapping[str, str]) -> float:
    """Return the pause in seconds that `Retry-After` (a number or a date) requests: at most an hour, or 0 if the header
    is missing.

    >>> retry_after_s({"retry-after": "2.5"}), retry_after_s({"retry-after": "soon"})
    (2.5, 0.0)
    """
    text = headers.get("retry-after", "")
    try:
        seconds = float(text)
    except ValueError:
        try:
            moment = parsedate_to_datetime(text)
        except ValueError:
            return 0.0
        seconds = (moment.replace(tzinfo=moment.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
    return min(max(0.0, seconds), _LONGEST_RETRY_AFTER_S) if math.isfinite(seconds) else 0.0


class Circuit:
    """Rejects calls for a while after three consecutive failures, and then admits one call as a probe. Thread-safe.

    The pause starts at 1 s and doubles each time, up to a minute. It is longer if the provider requests a longer pause.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failures = 0
        self._closed_again_at_s = 0.0

    def admit(self) -> float:
        """Return 0 to admit a call, or the number of seconds until the next call may be sent."""
        now_s = time.monotonic()
        with self._lock:
            waits_s = self._closed_again_at_s - now_s
            if waits_s <= 0 and self._failures >= _FAILURES:
                self._closed_again_at_s = now_s + self._open_s()  # other calls wait for the result of this one
            return max(0.0, waits_s)

    def succeeded(self) -> None:
        with self._lock:
            self._failures, self._closed_again_at_s = 0, 0.0

    def failed(self, asked_s: float = 0.0) -> None:
        """Record a failed call, after which the provider requested a pause of `asked_s`."""
        with self._lock:
            self._failures += 1
            open_s = self._open_s() if self._failures >= _FAILURES else 0.0
            self._closed_again_at_s = max(self._closed_again_at_s, time.monotonic() + max(open_s, asked_s))

    def _open_s(self) -> float:
        return min(_OPEN_LONGEST_S, _OPEN_S * 2.0 ** min(self._failures - _FAILURES, 16))
