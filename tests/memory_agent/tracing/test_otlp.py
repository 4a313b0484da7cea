"""Test that spans are exported to a real server, and that a missing, slow or broken server delays nothing."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from polling import wait_until
from structlog.testing import capture_logs
from trace_collector import Collector, collecting

from memory_agent import tracing
from memory_agent.errors import SettingsError
from memory_agent.settings import TracingSettings
from memory_agent.tracing import client_span, server_span, start_tracing, start_tracing_if_possible, stop_tracing
from memory_agent.tracing.otlp import SpanExport
from memory_agent.tracing.spans import Span

FREE = "http://127.0.0.1:1"


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


@pytest.fixture(autouse=True)
def _stopped() -> Iterator[None]:
    yield
    stop_tracing()


@contextlib.contextmanager
def exporting(url: str, interval_s: float = 0.05) -> Iterator[SpanExport]:
    export = SpanExport(f"{url}/v1/traces", {}, interval_s)
    yield export
    export.close()


def some_span(number: int = 1) -> Span:
    span = Span("server", "door", "recall", number, 0)
    span.ended_ns = span.began_ns + 1_500_000
    return span


def test_a_span_arrives_with_its_parts(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACES_TOKEN", "s3cret")
    headers = {"authorization": "Bearer ${TRACES_TOKEN}"}
    start_tracing(TracingSettings(endpoint=collector.url, headers=headers, interval_s=0.05))
    with server_span("door", "recall", may_begin=True), client_span("daemon", "recall") as span:
        span.mark("words")
        span.set("memory_agent.degraded", ("deadline", "waking"))
        span.note(SimpleNamespace(memories=(1,)))
        span.fail("unavailable")
    stop_tracing()
    inner, outer = collector.spans()
    assert (outer.name, outer.kind, outer.parent, outer.is_failed) == ("door recall", "server", "", False)
    assert (inner.name, inner.kind, inner.parent, inner.is_failed) == ("daemon recall", "client", outer.id, True)
    assert inner.trace == outer.trace
    assert 0 <= inner.took_ms <= outer.took_ms
    assert inner.attributes.pop("memory_agent.words_ms") >= 0
    assert inner.attributes == {
        "memory_agent.degraded": ["deadline", "waking"],
        "gen_ai.operation.name": "search_memory",
        "gen_ai.memory.record.count": 1,
        "error.type": "unavailable",
    }
    assert inner.resource["service.name"] == "memory-agent"
    assert collector.headers[0]["authorization"] == "Bearer s3cret"
    assert collector.headers[0]["content-type"] == "application/x-protobuf"


def test_spans_wait_for_a_collector_that_is_away() -> None:
    with collecting() as collector:
        port = collector.port
    with capture_logs() as logs, exporting(collector.url) as export:
        for number in range(1, 4):
            export.record(some_span(number))
        wait_until(lambda: [line["event"] for line in logs] == ["traces.not_exported"])
        with collecting(port) as collector:
            wait_until(lambda: len(collector.spans()) == 3)
            assert [int(span.trace, 16) for span in collector.spans()] == [1, 2, 3]
            wait_until(lambda: len(logs) == 2)
    assert logs[1]["event"] == "traces.exported_again"


def test_a_failure_is_logged_once_and_its_end_with_the_number_of_lost_spans(collector: Collector) -> None:
    collector.status = 503
    with capture_logs() as logs, exporting(collector.url) as export:
        for number in range(1, 3_001):
            export.record(some_span(number))
        wait_until(lambda: len(collector.headers) > 3)  # retries of the same batch
        collector.status = 200
        wait_until(lambda: len(collector.spans()) == 2_048)  # the queue's length
    problem, again = logs
    assert (problem["event"], problem["problem"]) == ("traces.not_exported", "status 503")
    assert (again["event"], again["lost"]) == ("traces.exported_again", 3_000 - 2_048)


def test_a_batch_that_the_collector_rejects_is_not_repeated(collector: Collector) -> None:
    collector.status = 400
    with capture_logs() as logs, exporting(collector.url) as export:
        export.record(some_span(1))
        wait_until(lambda: len(collector.headers) == 1)
        collector.status = 200
        export.record(some_span(2))
        wait_until(lambda: len(collector.spans()) == 1)
        assert int(collector.spans()[0].trace, 16) == 2
    assert logs[-1]["lost"] == 1


def test_neither_recording_nor_closing_waits_for_a_silent_collector(collector: Collector) -> None:
    collector.may_answer.clear()
    export = SpanExport(f"{collector.url}/v1/traces", {}, 0.05)
    for number in range(1, 5_001):
        export.record(some_span(number))
    closing = threading.Thread(target=export.close)
    closing.start()
    closing.join()  # while the collector still delays its answer
    assert not collector.headers


def test_a_collector_that_closes_the_connection_is_asked_again(collector: Collector) -> None:
    with exporting(collector.url) as export:
        export.record(some_span(1))
        wait_until(lambda: len(collector.spans()) == 1)
        port = collector.port
        collector.close()
        with collecting(port) as again:
            export.record(some_span(2))
            wait_until(lambda: len(again.spans()) == 1)
    collector.close = lambda: None  # type: ignore[method-assign]  # it is closed


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"endpoint": "collector:4318"}, r"tracing\.endpoint.*must be http"),
        ({"endpoint": "http://user:key@host"}, r"tracing\.endpoint.*without a key"),
        ({"endpoint": "http://host:99999999"}, r"tracing\.endpoint.*must be http"),
        ({"endpoint": "http://collector", "headers": {"a": "${PATH}"}}, r"tracing\.endpoint.*only sent encrypted"),
        ({"endpoint": FREE, "headers": {"a": "${NOT_SET_ANYWHERE}"}}, r"tracing\.headers\.a.*NOT_SET_ANYWHERE"),
    ],
)
def test_unusable_settings_are_named(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        start_tracing(TracingSettings(**settings))


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "memory_agent.tracing.otlp", raising=False)
    monkeypatch.delattr(tracing, "otlp", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(SettingsError, match=r"tracing\.endpoint.*pip install opentelemetry"):
        start_tracing(TracingSettings(endpoint=FREE))
    with pytest.raises(SettingsError, match=r"pip install opentelemetry"):
        tracing.trace_clients()
    with capture_logs() as logs:
        start_tracing_if_possible(TracingSettings(endpoint=FREE))  # a host answers without traces
    assert logs[0]["event"] == "tracing.not_started"


def test_nothing_is_imported_while_tracing_is_off() -> None:
    program = (
        "import sys\n"
        "from memory_agent.settings import TracingSettings\n"
        "from memory_agent.tracing import start_tracing, stop_tracing\n"
        "start_tracing(TracingSettings()); stop_tracing()\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]\n"
        "assert 'http.client' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
