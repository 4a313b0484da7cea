"""Test that spans are recorded with the right content, and that the trace context passes from one part to the next."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_samples import open_without_model

from memory_agent.errors import InvalidInputError
from memory_agent.tracing import NO_SPAN, OPERATIONS, call_span, client_span, current_span, receive_trace, server_span
from memory_agent.tracing import spans as module
from memory_agent.tracing.spans import Span, parse
from memory_agent.verbs.table import BY_NAME

SAMPLED = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
UNSAMPLED = SAMPLED[:-1] + "0"
MALFORMED = (
    "",
    "00",
    "hello",
    SAMPLED.upper(),
    SAMPLED + "-more",
    SAMPLED + "\n",
    "ff" + SAMPLED[2:],
    "00-" + "0" * 32 + "-b7ad6b7169203331-01",
    "00-0af7651916cd43dd8448eb211c80319c-" + "0" * 16 + "-01",
    "0" * 100_000,
)


class Kept:
    """A tracer that keeps the spans."""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    def record(self, span: Span) -> None:
        self.spans.append(span)

    def close(self) -> None:
        pass


@pytest.fixture
def kept() -> Iterator[Kept]:
    tracer = Kept()
    module.start(tracer, 1.0, with_ids=False)
    yield tracer
    module.stop()


def test_nothing_is_recorded_unless_tracing_is_on() -> None:
    receive_trace(SAMPLED)
    with server_span("door", "recall", SAMPLED, may_begin=True) as span:
        assert span is NO_SPAN
        assert current_span() is NO_SPAN
        assert client_span("daemon", "recall") is NO_SPAN
        span.mark("words")
        span.note(None)
        span.fail("invalid_input")
    assert call_span("recall") is NO_SPAN
    assert NO_SPAN.traceparent == ""


def test_spans_of_one_request_form_a_tree(kept: Kept) -> None:
    with server_span("door", "recall", may_begin=True) as door, client_span("daemon", "recall") as hop:
        assert current_span() is hop
    assert current_span() is NO_SPAN
    with server_span("host", "recall", hop.traceparent):
        pass
    last, first, host = kept.spans
    assert (first.name, last.name, host.name) == ("door recall", "daemon recall", "host recall")
    assert first is door
    assert first.parent_id == 0
    assert (last.parent_id, host.parent_id) == (first.id, last.id)
    assert len({span.trace_id for span in kept.spans}) == 1
    assert all(span.ended_ns >= span.began_ns for span in kept.spans)


def test_a_traces_sampling_is_its_callers_choice(kept: Kept) -> None:
    with server_span("door", "recall", UNSAMPLED, may_begin=True) as span:
        assert span is NO_SPAN
        assert client_span("daemon", "recall") is NO_SPAN
    with server_span("door", "recall", SAMPLED, may_begin=True):
        pass
    (span,) = kept.spans
    assert f"{span.trace_id:032x}-{span.parent_id:016x}" == SAMPLED[3:-3]


def test_only_a_door_begins_a_trace_and_only_for_its_share_of_requests() -> None:
    tracer = Kept()
    module.start(tracer, 0.25, with_ids=False)
    try:
        for _ in range(2_000):
            server_span("door", "recall", may_begin=True).end()
            server_span("host", "recall").end()
    finally:
        module.stop()
    assert {span.name for span in tracer.spans} <= {"door recall"}
    assert 350 < len([span for span in tracer.spans if isinstance(span, Span)]) < 650


@pytest.mark.parametrize("header", MALFORMED, ids=lambda header: header[:8])
def test_a_malformed_trace_context_is_ignored(kept: Kept, header: str) -> None:
    assert parse(header) is None
    with server_span("door", "recall", header, may_begin=True):
        pass
    assert kept.spans[0].parent_id == 0
    assert server_span("host", "recall", header) is NO_SPAN


@given(st.text())
def test_any_text_is_a_trace_context_or_none(text: str) -> None:
    parse(text)
    receive_trace(text)


@given(st.integers(1, (1 << 128) - 1), st.integers(1, (1 << 64) - 1), st.booleans())
def test_a_valid_trace_context_is_read(trace_id: int, parent_id: int, is_sampled: bool) -> None:
    assert parse(f"00-{trace_id:032x}-{parent_id:016x}-{int(is_sampled):02x}") == (trace_id, parent_id, is_sampled)
    assert parse(f"7f-{trace_id:032x}-{parent_id:016x}-{0xFE | is_sampled:02x}-new") == (
        trace_id,
        parent_id,
        is_sampled,
    )


def test_the_span_of_an_error_has_its_code_and_not_its_text(kept: Kept) -> None:
    with pytest.raises(InvalidInputError), server_span("host", "recall", SAMPLED):
        raise InvalidInputError("query", "the secret plan")
    (span,) = kept.spans
    assert span.is_failed
    assert span.attributes == {"error.type": "invalid_input"}


def test_results_are_counted_by_the_verbs_operation(kept: Kept, tmp_path: Path) -> None:
    with open_without_model(tmp_path / "alice") as memory:
        record = memory.remember("Staging needs the VPN", session_id="s-1")
        memory.remember("Lunch is at noon", session_id="s-2")
        results = {
            "remember": (record, "upsert_memory", 1),
            "recall": (memory.recall("staging VPN"), "search_memory", 1),
            "list": (memory.list(), "", 2),
            "get": (memory.get([record.id]), "", 1),
            "erase": (memory.erasure.erase([record.id]), "delete_memory", 1),
            "forget": (memory.forget([record.id]), "delete_memory", 0),
            "forget_session": (memory.forget_session("s-2"), "delete_memory", 1),
        }
        stats = memory.stats()
    assert results.keys() == module._COUNTS.keys()
    for verb, (result, operation, count) in results.items():
        with server_span("host", verb, SAMPLED) as span:
            span.note(result, "alice")
        named = {"gen_ai.operation.name": operation} if operation else {}
        assert kept.spans.pop().attributes == {**named, "gen_ai.memory.record.count": count}
    with server_span("host", "stats", SAMPLED) as span:
        span.note(stats, "alice")
    assert kept.spans.pop().attributes == {}


@pytest.mark.parametrize("verb", module._COUNTS)
def test_a_result_of_an_unexpected_type_does_not_fail_the_request(verb: str) -> None:
    tracer = Kept()
    module.start(tracer, 1.0, with_ids=True)
    with server_span("host", verb, SAMPLED) as span:
        span.note(object(), "alice")
    module.stop()
    assert not tracer.spans[0].is_failed
    assert tracer.spans[0].attributes["gen_ai.memory.store.id"] == "alice"


def test_ids_are_only_recorded_if_they_are_requested() -> None:
    tracer = Kept()
    module.start(tracer, 1.0, with_ids=True)
    with server_span("host", "remember", SAMPLED) as span:
        span.note(SimpleNamespace(id="m-1"), "alice")
    module.stop()
    attributes = tracer.spans[0].attributes
    assert (attributes["gen_ai.memory.store.id"], attributes["gen_ai.memory.record.id"]) == ("alice", "m-1")


def test_operations_are_those_of_verbs() -> None:
    assert OPERATIONS.keys() <= BY_NAME.keys()
