"""Another program that serves a page on this machine."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Stranger:
    """The address of the program, and the path, page key and cookie of each request that it received."""

    url: str
    seen: list[tuple[str, str, str]] = field(default_factory=list)


@contextmanager
def another_program(body: bytes, port: int = 0) -> Iterator[Stranger]:
    """Answer every request to one port of this machine with `body`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found.seen.append((self.path, self.headers.get("X-Page-Key", ""), self.headers.get("Cookie", "")))
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        found = Stranger(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield found
        finally:
            server.shutdown()
            thread.join()
