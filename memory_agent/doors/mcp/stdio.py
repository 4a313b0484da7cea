"""Bridges an agent's standard input to the daemon's `/mcp`: each line is a message.

A coding agent starts one bridge process per session. So the bridge imports only msgspec, sockets and threads. This
takes 0.07 s and 18 MB; the `mcp` library takes 0.84 s and 63 MB, and has no deadlines. The bridge lists the tools
without a daemon, starts a daemon if none is running, and answers every request within a deadline.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from typing import IO, Any, Literal
from urllib.parse import quote

import msgspec

from memory_agent.doors.mcp.introduction import ToolSet, introduce
from memory_agent.doors.mcp.messages import (
    IDEMPOTENCY_HEADER,
    INTERNAL_ERROR,
    INVALID_REQUEST,
    MOST_BYTES,
    Id,
    Message,
    RpcError,
    error_line,
    failed_call,
    id_within,
    is_stateless,
    read_message,
    result_line,
)
from memory_agent.errors import DeadlineExceededError, MemoryAgentError, UnavailableError
from memory_agent.exchange import Answer, Door, Exchange, UnusableDoorError, local_door
from memory_agent.layout import Layout
from memory_agent.starting import Start, start_daemon
from relay import described

ANSWER_S = 15.0
"""Each request's deadline. The daemon gives up on a request after 10 s."""
_MOST_AT_ONCE = 32
_PART_BYTES = 1 << 16
_POLL_S = 0.05
_START_S = 30.0
"""Maximum startup time of a daemon. After a failed start, no daemon is started until this time has passed."""
_CLOSED = "the daemon's HTTP interface is off; set daemon.http.listen, for example to 127.0.0.1:0"
_MOST_UNSURE = 8
_LOST = "the daemon closed the connection before it responded; the request may have been carried out"

Say = Callable[[str], None]


class LocalDoor:
    """Finds the address of a data folder's daemon, and starts a daemon if none is running."""

    def __init__(self, layout: Layout, token: str | None, say: Say, start: Callable[[], Start] | None = Start) -> None:
        """`token` belongs to the caller's own key (None: use the data folder's token). `say` shows a line to the user.

        `start` returns the options for starting a daemon; None means that no daemon is started.
        """
        self._layout = layout
        self._token = token
        self._start = start
        self._say = say
        self._guard = threading.Lock()
        self._tried_s = 0.0
        self._process: Any = None

    def find(self, until_s: float) -> Door:
        """Return the daemon's address, waiting until `until_s` (monotonic clock). Raises `UnavailableError`."""
        while True:
            if (door := local_door(self._layout, self._token)) is not None:
                return door
            call = self._layout.call()
            if not self._layout.daemon_runs():
                self.start()
            elif call is not None and self._layout.served_for_s > _START_S:  # the daemon is not about to stop
                raise UnavailableError(_CLOSED)
            if time.monotonic() + _POLL_S >= until_s:
                raise UnavailableError(
                    f"the daemon for {self._layout.data_dir} is starting; try again in a few seconds"
                )
            time.sleep(_POLL_S)

    def start(self) -> None:
        """Start a daemon if none is running or starting. Raises `UnavailableError`, `SettingsError` and `OSError`."""
        folder = self._layout.data_dir
        with self._guard:
            if self._layout.daemon_runs() or (self._process is not None and self._process.poll() is None):
                return
            if self._start is None:
                raise UnavailableError(
                    f"no daemon serves {folder}; start one with: memory-agent serve --data-dir {folder}"
                )
            if self._process is not None and self._process.returncode and time.monotonic() - self._tried_s < _START_S:
                raise UnavailableError(f"the daemon did not start; see {self._layout.log}")
            process = start_daemon(self._layout, self._start())
            if process is not None:
                self._say(f"no daemon served {folder}; starting one takes a few seconds (log: {self._layout.log})")
                self._process, self._tried_s = process, time.monotonic()
                threading.Thread(target=process.wait, daemon=True).start()  # reap it if it ends before this session


class Bridge:
    """Answers one client's messages."""

    def __init__(
        self,
        find: Callable[[float], Door],
        context: dict[str, str],
        tools: ToolSet,
        out: IO[bytes],
        current_session: Callable[[], str | None] = lambda: None,
    ) -> None:
        """`current_session` returns the session of the next request, or None for the session of `context`."""
        self._find = find
        self._context = context
        self._current_session = current_session
        self._tools = tools
        self._out = out
        self._guard = threading.Lock()
        self._slots = threading.Semaphore(_MOST_AT_ONCE)
        self._open: dict[Id, _Request] = {}
        self._unsure: dict[bytes, str] = {}
        """The idempotency keys of calls whose outcome is unknown. A repeated call reuses its key."""

    def run(self, lines: IO[bytes]) -> None:
        """Answer requests until the input ends, then wait for those still running."""
        threads: list[threading.Thread] = []
        while line := lines.readline(MOST_BYTES + 1):
            if len(line) > MOST_BYTES and not line.endswith(b"\n"):
                id = id_within(line, _rest_of(line, lines))
                self._write(
                    error_line(RpcError(INVALID_REQUEST, f"a line must have at most {MOST_BYTES} bytes", id=id))
                )
            elif line.strip():
                threads = [thread for thread in threads if thread.is_alive()]
                if (thread := self._take(line)) is not None:
                    threads.append(thread)
        for thread in threads:
            thread.join()

    def _take(self, line: bytes) -> threading.Thread | None:
        """Answer a line, or return a thread that forwards it to the daemon."""
        try:
            message = read_message(line)
            stateless = is_stateless(message, None)
        except RpcError as error:
            self._write(error_line(error))
            return None
        if isinstance(message.id, msgspec.UnsetType):
            if message.method == "notifications/cancelled":
                self._cancel(message.params.get("requestId"))
            return None
        try:
            if (result := introduce(message, self._tools, stateless)) is not None:
                self._write(result_line(message.id, result))
                return None
        except RpcError as error:
            self._write(error_line(RpcError(error.code, error.message, error.data, message.id)))
            return None
        if not self._slots.acquire(blocking=False):
            self._write(_failure(message, UnavailableError(f"more than {_MOST_AT_ONCE} requests in progress")))
            return None
        request = self._open[message.id] = _Request(message, line, self._key(message))
        thread = threading.Thread(target=self._forward, args=(message.id, request), daemon=True)
        thread.start()
        return thread

    def _forward(self, id: Id, request: _Request) -> None:
        answer = _failure(
            request.message, MemoryAgentError("internal error in memory-agent mcp; see its standard error")
        )
        daemon = "the daemon"
        try:
            until_s = time.monotonic() + ANSWER_S
            door = self._find(until_s)
            daemon = f"the daemon at {door.url}"
            answer = request.run(door, self._path(), until_s)
        except MemoryAgentError as error:
            answer = _failure(request.message, error)
        except UnusableDoorError as error:
            answer = _failed(request.message, "unavailable", f"{daemon} cannot be reached: {error}", False)
        except OSError as error:
            reason = f"{daemon} cannot be reached: {error.strerror or error}"
            answer = _failure(request.message, UnavailableError(reason))
        finally:
            if not request.is_cancelled:
                if request.has_succeeded:
                    self._unsure.pop(_call(request.message), None)
                self._write(answer)
            if self._open.get(id) is request:
                del self._open[id]
            self._slots.release()

    def _path(self) -> str:
        session = self._current_session()
        context = self._context if session is None else {**self._context, "session_id": session}
        return "/mcp?" + "&".join(f"{name}={quote(value, safe='')}" for name, value in context.items())

    def _key(self, message: Message) -> str | None:
        """Return the idempotency key of a tool call: that of an identical call with an unknown outcome, or a new key.
        Return None for other messages.
        """
        if message.method != "tools/call":
            return None
        key = self._unsure.setdefault(_call(message), os.urandom(16).hex())
        if len(self._unsure) > _MOST_UNSURE + _MOST_AT_ONCE:
            self._unsure.pop(next(iter(self._unsure)), None)
        return key

    def _cancel(self, id: object) -> None:
        """Drop the request if it has not been sent yet. In either case, write no answer."""
        request = self._open.get(id) if isinstance(id, str | int) else None
        if request is not None:
            request.cancel()

    def _write(self, line: bytes) -> None:
        with self._guard, contextlib.suppress(OSError, ValueError):  # the client has closed its end
            self._out.write(line.rstrip() + b"\n")
            self._out.flush()


class _Request:
    def __init__(self, message: Message, line: bytes, key: str | None) -> None:
        self.message = message
        self.is_cancelled = False
        self.has_succeeded = False
        self._keyed = {} if key is None else {IDEMPOTENCY_HEADER: key}
        self._line = line.strip()
        self._exchange: Exchange | None = None

    def cancel(self) -> None:
        self.is_cancelled = True
        if self._exchange is not None:
            self._exchange.cancel()

    def run(self, door: Door, path: str, until_s: float) -> bytes:
        """Return the answer as a line, or b"" if cancelled. Raises `MemoryAgentError` and `OSError`."""
        exchange = self._exchange = Exchange(door, until_s)
        headers = {"Accept": "application/json, text/event-stream", **self.message.headers, **self._keyed}
        try:
            if self.is_cancelled:  # cancelled before the exchange existed, for example during the daemon's startup
                return b""
            return self._answer(exchange.send(path, self._line, headers).receive())
        except TimeoutError as error:
            raise DeadlineExceededError(f"no response from the daemon within {ANSWER_S:g} s") from error
        except (ConnectionResetError, BrokenPipeError, ConnectionAbortedError) as error:
            raise UnavailableError(_LOST) from error
        finally:
            exchange.close()

    def _answer(self, answer: Answer) -> bytes:
        with contextlib.suppress(msgspec.DecodeError):
            if answer.media_type == "application/problem+json":
                found = msgspec.json.decode(answer.body, type=described(_Problem))
                return _failed(self.message, found.code, found.detail, found.retryable)
            known = msgspec.json.decode(answer.body, type=described(_Answer))
            if known.id == self.message.id:
                self.has_succeeded = known.result is not None and not known.result.isError
                return b" ".join(answer.body.splitlines())
        reason = f"the server at this address is not memory-agent: {answer.first[:80]}"
        return _failed(self.message, "unavailable", reason, False)


class _Result(msgspec.Struct):
    isError: bool = False  # noqa: N815


class _Answer(msgspec.Struct):
    jsonrpc: Literal["2.0"]
    id: Id
    result: _Result | None = None


class _Problem(msgspec.Struct):
    code: str = "unavailable"
    detail: str = ""
    retryable: bool = False


def _call(message: Message) -> bytes:
    """Return a call's tool and arguments, which identify it regardless of its id."""
    return msgspec.json.encode((message.params.get("name"), message.params.get("arguments")), order="sorted")


def _rest_of(line: bytes, lines: IO[bytes]) -> bytes:
    """Read the rest of a line; return its last bytes."""
    end = line
    while part := lines.readline(_PART_BYTES):
        end = end[-_PART_BYTES:] + part
        if part.endswith(b"\n"):
            break
    return end


def _failure(message: Message, error: MemoryAgentError) -> bytes:
    return _failed(message, error.code, str(error), error.retryable)


def _failed(message: Message, code: str, reason: str, retryable: bool) -> bytes:
    """Return the response to a failed request. A failed tool call gets a result, so that the model can read it."""
    assert not isinstance(message.id, msgspec.UnsetType)
    if message.method == "tools/call":
        return result_line(message.id, failed_call(code, reason, retryable))
    return error_line(RpcError(INTERNAL_ERROR, f"{code}: {reason}", {"code": code, "retryable": retryable}, message.id))
