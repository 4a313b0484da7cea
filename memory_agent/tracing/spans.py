"""Spans of requests, and the W3C trace context that connects the spans of several processes. Imports no OpenTelemetry.

A span is recorded only if its trace is sampled. Whether it is sampled is decided by the caller's `traceparent` or,
without a `traceparent`, by the door. Otherwise, `NO_SPAN` is used, whose methods do nothing.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any, Literal, Protocol, Self

Kind = Literal["server", "client"]
Attribute = str | int | float | tuple[str, ...]

OPERATIONS = {
    "recall": "search_memory",
    "remember": "upsert_memory",
    "forget": "delete_memory",
    "forget_session": "delete_memory",
    "erase": "delete_memory",
}
"""OpenTelemetry's names for memory operations (`gen_ai.operation.name`), by verb. Other verbs have none."""
STORE, RECORD, COUNT = "gen_ai.memory.store.id", "gen_ai.memory.record.id", "gen_ai.memory.record.count"
OPERATION, ERROR = "gen_ai.operation.name", "error.type"

_COUNTS: dict[str, Callable[[Any], int]] = {
    "recall": lambda result: len(result.memories),
    "list": lambda page: len(page.records),
    "get": len,
    "remember": lambda _: 1,
    "forget": int,
    "forget_session": int,
    "erase": lambda receipt: int(receipt.memories),
}
_CONTEXT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


class CallSpan(Protocol):
    """The span of a client's call, which ends with the `with` statement."""

    @property
    def traceparent(self) -> str:
        """The W3C trace context to send, or "" if there is none."""

    def note(self, result: Any) -> None:
        """Add the verb's operation, and the number of memories in its result."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Tracer(Protocol):
    def record(self, span: Span) -> None:
        """Queue an ended span for export. Returns immediately."""

    def close(self) -> None:
        """Export the queued spans, for at most two seconds."""


class Span:
    """A recorded span. `parent_id` is 0 in the first span of a trace. Times are nanoseconds since 1970."""

    is_recorded = True

    def __init__(self, kind: Kind, part: str, verb: str, trace_id: int, parent_id: int) -> None:
        self.kind = kind
        self.name = f"{part} {verb}"
        self.trace_id, self.parent_id, self.id = trace_id, parent_id, _ids.getrandbits(64) or 1
        self.attributes: dict[str, Attribute] = {}
        self.is_failed = False
        self.began_ns = time.time_ns()
        self.ended_ns = self.began_ns
        self._verb = verb
        self._began = self._marked = time.perf_counter_ns()
        self._outer: Token[AnySpan] | None = None

    @property
    def traceparent(self) -> str:
        """The W3C trace context for this span's children."""
        return f"00-{self.trace_id:032x}-{self.id:016x}-01"

    def set(self, name: str, value: Attribute) -> None:
        self.attributes[name] = value

    def mark(self, stage: str) -> None:
        """Set the attribute `memory_agent.STAGE_ms`: the time since the last mark, or since the span's start."""
        now = time.perf_counter_ns()
        self.attributes[f"memory_agent.{stage}_ms"] = (now - self._marked) / 1e6
        self._marked = now

    def note(self, result: Any, user_id: str = "") -> None:
        """Add the verb's operation, the number of memories in its result and, with `tracing.ids`, the ids."""
        self.attributes |= described(self._verb, result, user_id if _with_ids else "")

    def fail(self, code: str) -> None:
        """Mark the span as failed with an error's code."""
        self.is_failed = True
        self.attributes[ERROR] = code

    def end(self) -> None:
        """Queue the span for export. A `with` statement does this, too."""
        self.ended_ns = self.began_ns + time.perf_counter_ns() - self._began
        if _tracer is not None:
            _tracer.record(self)

    def __enter__(self) -> Self:
        self._outer = _current.set(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        assert self._outer is not None
        _current.reset(self._outer)
        if error is not None:
            self.fail(code_of(error))
        self.end()


class NoSpan:
    """A `Span` that is not recorded."""

    traceparent = ""
    is_recorded = False

    def set(self, name: str, value: Attribute) -> None: ...
    def mark(self, stage: str) -> None: ...
    def note(self, result: Any, user_id: str = "") -> None: ...
    def fail(self, code: str) -> None: ...
    def end(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...


AnySpan = Span | NoSpan
NO_SPAN = NoSpan()
_current: ContextVar[AnySpan] = ContextVar("span", default=NO_SPAN)
_received: ContextVar[str] = ContextVar("traceparent", default="")


def code_of(error: BaseException) -> str:
    """Return an error's code or, if it has none, the name of its type. Never returns its text, which may quote a
    caller's data.
    """
    return str(getattr(error, "code", type(error).__name__))


def described(verb: str, result: Any, user_id: str = "") -> dict[str, Attribute]:
    """Return the attributes of a verb's result: the operation, the number of memories and, with `user_id`, the ids.

    A missing attribute in the result is not an error, because the request has already been carried out.
    """
    found: dict[str, Attribute] = {OPERATION: OPERATIONS[verb]} if verb in OPERATIONS else {}
    if user_id:
        found[STORE] = user_id
    with suppress(AttributeError, TypeError, ValueError):
        if verb in _COUNTS:
            found[COUNT] = _COUNTS[verb](result)
        if user_id and verb == "remember":
            found[RECORD] = result.id
    return found


_ids = random.Random()  # seeded by the system in each process
_tracer: Tracer | None = None
_sample_ratio = 1.0
_with_ids = False
_begin_program_span: Callable[[str], CallSpan] | None = None


def start(tracer: Tracer, sample_ratio: float, *, with_ids: bool) -> None:
    global _tracer, _sample_ratio, _with_ids
    _tracer, _sample_ratio, _with_ids = tracer, sample_ratio, with_ids
    _ids.seed()


def stop() -> None:
    """Record no more spans, and close the tracer. Idempotent."""
    global _tracer
    tracer, _tracer = _tracer, None
    if tracer is not None:
        tracer.close()


def use_program(begin: Callable[[str], CallSpan]) -> None:
    """Use `begin` to begin client spans; it receives the name of the verb."""
    global _begin_program_span
    _begin_program_span = begin


def current_span() -> AnySpan:
    return _current.get()


def receive_trace(traceparent: object) -> None:
    """Use the caller's trace context for the door's span in this task. Ignored unless it is valid."""
    if _tracer is not None and isinstance(traceparent, str):
        _received.set(traceparent)


def server_span(part: str, verb: str, traceparent: str = "", *, may_begin: bool = False) -> AnySpan:
    """Return the span of a received request. With `may_begin`, it may be the first span of a trace."""
    if _tracer is None:
        return NO_SPAN
    parent = parse(traceparent or _received.get() if may_begin else traceparent)
    if parent is not None:
        trace_id, parent_id, is_sampled = parent
        return Span("server", part, verb, trace_id, parent_id) if is_sampled else NO_SPAN
    if may_begin and _ids.random() < _sample_ratio:
        return Span("server", part, verb, _ids.getrandbits(128) or 1, 0)
    return NO_SPAN


def client_span(part: str, verb: str) -> AnySpan:
    """Return a child of the current span for a request to another part, or `NO_SPAN` without a current span."""
    outer = _current.get()
    return Span("client", part, verb, outer.trace_id, outer.id) if isinstance(outer, Span) else NO_SPAN


def call_span(verb: str) -> CallSpan:
    """Return the span of a client's call, recorded by the program's own OpenTelemetry (`trace_clients`)."""
    return NO_SPAN if _begin_program_span is None else _begin_program_span(verb)


def parse(traceparent: str) -> tuple[int, int, bool] | None:
    """Return the trace id, the parent id, and whether the trace is sampled; None if `traceparent` is invalid (W3C Trace
    Context, level 1).

    >>> parse("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00")
    (14532796640713022374263055010393518492, 13235353014750950193, False)
    """
    found = _CONTEXT.fullmatch(traceparent) if traceparent else None
    if found is None or found[1] == "ff" or (found[1] == "00" and found[5]):
        return None
    trace_id, parent_id = int(found[2], 16), int(found[3], 16)
    return (trace_id, parent_id, bool(int(found[4], 16) & 1)) if trace_id and parent_id else None
