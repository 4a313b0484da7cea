"""OpenTelemetry traces: one trace follows a request from the client through the door and the host to the embedder.

Read `spans` first. Only `otlp` imports OpenTelemetry, and it is itself imported only if tracing is on. Spans contain
names of verbs, numbers, error codes and times. They never contain texts, vectors or tokens, and contain ids only with
`tracing.ids`.
"""

from __future__ import annotations

from types import ModuleType

from memory_agent.errors import SettingsError
from memory_agent.model_apis import check_url, is_exposed
from memory_agent.settings import TracingSettings, with_variables
from memory_agent.tracing import spans
from memory_agent.tracing.spans import (
    NO_SPAN,
    OPERATIONS,
    AnySpan,
    call_span,
    client_span,
    code_of,
    current_span,
    receive_trace,
    server_span,
)
from relay.log import log

__all__ = [
    "NO_SPAN",
    "OPERATIONS",
    "AnySpan",
    "call_span",
    "client_span",
    "code_of",
    "current_span",
    "find_export_problem",
    "receive_trace",
    "server_span",
    "start_tracing",
    "start_tracing_if_possible",
    "stop_tracing",
    "trace_clients",
]


def start_tracing(settings: TracingSettings) -> None:
    """Start exporting this process's spans to `settings.endpoint`, if it is set. Raises `SettingsError`."""
    if settings.endpoint:
        otlp, address = _otlp("tracing.endpoint"), _address(settings)
        spans.start(otlp.SpanExport(*address, settings.interval_s), settings.sample_ratio, with_ids=settings.ids)


def find_export_problem(settings: TracingSettings) -> str:
    """Send an empty export to the endpoint; return a description of the problem, or "". Raises `SettingsError`."""
    connection = _otlp("tracing.endpoint").Connection(*_address(settings))
    _, problem = connection.post(b"")
    connection.close()
    return str(problem)


def start_tracing_if_possible(settings: TracingSettings) -> None:
    """Like `start_tracing`, but settings errors are only logged; for processes that must run even without traces."""
    try:
        start_tracing(settings)
    except SettingsError as error:
        log.warning("tracing.not_started", setting=error.setting, reason=error.reason)


def stop_tracing() -> None:
    """Export the remaining spans, for at most two seconds. Idempotent."""
    spans.stop()


def trace_clients() -> None:
    """Start recording a span for each call by this process's clients, using the program's own OpenTelemetry.

    The span is a child of the program's current span, and its trace continues in the daemon. Raises `SettingsError` if
    OpenTelemetry is not installed.

    >>> trace_clients()
    """
    spans.use_program(_otlp("tracing").ProgramSpan)


def _otlp(setting: str) -> ModuleType:
    try:
        from memory_agent.tracing import otlp
    except ImportError as error:
        raise SettingsError(setting, "requires `pip install opentelemetry-api opentelemetry-proto`") from error
    return otlp


def _address(settings: TracingSettings) -> tuple[str, dict[str, str]]:
    """Return the URL to export to, and the headers."""
    url = settings.endpoint
    check_url("tracing.endpoint", url)
    if settings.headers and is_exposed(url):
        reason = "contradicts tracing.headers, which are only sent encrypted: use https, or remove the headers"
        raise SettingsError("tracing.endpoint", reason)
    headers = {name: with_variables(f"tracing.headers.{name}", text) for name, text in settings.headers.items()}
    return url.rstrip("/") + "/v1/traces", headers
