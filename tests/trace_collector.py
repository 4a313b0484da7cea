"""A collector of traces: an HTTP server that decodes what OTLP exporters send, with OpenTelemetry's own messages."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from polling import wait_until

KINDS = {2: "server", 3: "client"}


class Found(NamedTuple):
    """A span that the collector received. Ids are in hexadecimal, and `parent` is "" for the root span of a trace."""

    name: str
    kind: str
    trace: str
    id: str
    parent: str
    attributes: dict[str, Any]
    is_failed: bool
    took_ms: float
    resource: dict[str, Any]


class Collector:
    """Receives exports at `url`. It answers with `status`, but only while `may_answer` is set."""

    def __init__(self, port: int = 0) -> None:
        self.status = 200
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.may_answer = threading.Event()
        self.may_answer.set()
        self._connections: list[socket.socket] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                collector._connections.append(self.connection)

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.may_answer.wait()
                if self.path == "/v1/traces" and collector.status == 200:
                    collector.bodies.append(body)
                collector.headers.append({name.lower(): value for name, value in self.headers.items()})
                with suppress(OSError):  # the caller may have given up
                    self.send_response(collector.status if self.path == "/v1/traces" else 404)
                    self.send_header("Content-Length", "0")
                    self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_port
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def spans(self) -> list[Found]:
        """Return all received spans."""
        return [span for body in list(self.bodies) for span in decoded(body)]

    def trace(self, trace_id: str, count: int) -> dict[str, Found]:
        """Wait for `count` spans of a trace; return them by name."""
        self.wait_for(lambda: len(self._of(trace_id)) >= count)
        found = self._of(trace_id)
        assert len(found) == len({span.name for span in found}) == count, found
        return {span.name: span for span in found}

    def wait_for(self, fact: Callable[[], object]) -> None:
        """Wait until the received spans make `fact` true."""
        wait_until(fact, 60)

    def _of(self, trace_id: str) -> list[Found]:
        return [span for span in self.spans() if span.trace == trace_id]

    def close(self) -> None:
        self.may_answer.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        for connection in self._connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


@contextmanager
def collecting(port: int = 0) -> Iterator[Collector]:
    collector = Collector(port)
    try:
        yield collector
    finally:
        collector.close()


def lineage(spans: dict[str, Found], name: str) -> list[str]:
    """Return the names of a span's ancestors, its parent first."""
    by_id = {span.id: span for span in spans.values()}
    found, span = [], spans[name]
    while span.parent in by_id:
        span = by_id[span.parent]
        found.append(span.name)
    return found


def decoded(body: bytes) -> list[Found]:
    return [
        Found(
            name=span.name,
            kind=KINDS.get(span.kind, "internal"),
            trace=span.trace_id.hex(),
            id=span.span_id.hex(),
            parent=span.parent_span_id.hex(),
            attributes=_values(span.attributes),
            is_failed=span.status.code == 2,
            took_ms=(span.end_time_unix_nano - span.start_time_unix_nano) / 1e6,
            resource=_values(group.resource.attributes),
        )
        for group in ExportTraceServiceRequest.FromString(body).resource_spans
        for scope in group.scope_spans
        for span in scope.spans
    ]


def _values(attributes: Any) -> dict[str, Any]:
    return {attribute.key: _value(attribute.value) for attribute in attributes}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(one) for one in value.array_value.values]
    return getattr(value, kind)
