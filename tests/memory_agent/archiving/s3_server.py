"""A local S3 server (`moto`), reached by `s3fs` over HTTP, that can refuse requests and lose, delay or repeat
answers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from s3fs import S3FileSystem
from werkzeug.serving import WSGIRequestHandler, make_server
from werkzeug.test import run_wsgi_app

from memory_agent.settings import ArchiveSettings

Fault = Literal["500", "503", "lost"]
_BUCKET = "archive"
_SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>"
_INTERNAL = b"<Error><Code>InternalError</Code><Message>Try again.</Message></Error>"


class _Silent(WSGIRequestHandler):
    def log(self, *_: Any) -> None:
        """Write nothing."""


class S3Server:
    """The server, with one bucket, in threads of this process."""

    def __init__(self) -> None:
        self._app = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, self, threaded=True, request_handler=_Silent)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._faults: list[tuple[str, Fault]] = []
        self._held: tuple[str, threading.Event] | None = None
        self._listings: dict[str, Any] = {}
        self._is_outdated = False
        self._one_by_one = threading.Lock()
        self._thread.start()
        options = self.settings("").options
        S3FileSystem(**options, skip_instance_cache=True).mkdir(_BUCKET)

    def settings(self, prefix: str, timeout_s: float = 30.0, *, journal: bool = False) -> ArchiveSettings:
        """Return the settings of an archive that is stored under a prefix. The client itself does not retry."""
        options = {
            "endpoint_url": f"http://127.0.0.1:{self._server.server_port}",
            "key": "k",
            "secret": "s",
            "config_kwargs": {"retries": {"max_attempts": 0}},
        }
        return ArchiveSettings(url=f"s3://{_BUCKET}/{prefix}", options=options, timeout_s=timeout_s, journal=journal)

    def fail(self, method: str, *faults: Fault) -> None:
        """Make the next requests with this method fail. `lost` executes the request but returns an error."""
        self._faults += [(method, fault) for fault in faults]

    @contextmanager
    def held(self, method: str) -> Iterator[None]:
        """Until the context exits, delay the replies to requests that use this method."""
        event = threading.Event()
        self._held = method, event
        try:
            yield
        finally:
            self._held = None
            event.set()

    @contextmanager
    def outdated(self) -> Iterator[None]:
        """Repeat the last answer to each listing, as an eventually consistent store may do."""
        self._is_outdated = True
        try:
            yield
        finally:
            self._is_outdated = False

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        method = environ["REQUEST_METHOD"]
        held = self._held
        if held is not None and held[0] == method:
            held[1].wait()
        fault = self._fault_of(method)
        if fault in ("500", "503"):
            return _refused(fault, start_response)
        answer, status, headers = self._answer(environ)
        if fault == "lost":
            return _refused("500", start_response)
        start_response(status, headers.to_wsgi_list())
        return [answer]

    def _fault_of(self, method: str) -> Fault | None:
        place = next((place for place, (one, _) in enumerate(self._faults) if one == method), None)
        return None if place is None else self._faults.pop(place)[1]

    def _answer(self, environ: dict[str, Any]) -> tuple[bytes, str, Any]:
        query = environ["QUERY_STRING"]
        if "list-type" not in query:
            return self._passed_on(environ)
        if not self._is_outdated or query not in self._listings:
            self._listings[query] = self._passed_on(environ)
        return self._listings[query]

    def _passed_on(self, environ: dict[str, Any]) -> tuple[bytes, str, Any]:
        with self._one_by_one:  # moto checks the condition and writes in two steps, S3 in one step
            body, status, headers = run_wsgi_app(self._app, environ, buffered=True)
        return b"".join(body), status, headers


def _refused(fault: str, start_response: Callable[..., Any]) -> Iterable[bytes]:
    status = {"500": "500 Internal Server Error", "503": "503 Slow Down"}[fault]
    start_response(status, [("Content-Type", "application/xml")])
    return [_SLOW_DOWN if fault == "503" else _INTERNAL]
