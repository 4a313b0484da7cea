"""Other programs that use MCP, and a proxy for programs that cannot send a key."""

from __future__ import annotations

import http.client
import os
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

from ops.demo.agents import node
from tests.from_npm import missing

ROOT = Path(__file__).parents[3]
PEERS = Path(os.environ.get("MCP_PEERS", ROOT / ".venv" / "peers"))
"""The folder into which `make test` installs the peers from npm."""


def peer(name: str) -> list[str]:
    """Return the command of a peer; skip the test if npm refused the peer, or if it is missing outside CI."""
    program, script = node(), PEERS / "node_modules" / ".bin" / name
    if program is None or not script.exists():
        missing(PEERS, name, "peers")
    return [program, str(script)]


@contextmanager
def door_with_key(url: str, token: str) -> Iterator[str]:
    """Run a proxy for `url` that adds the token to requests; yield its address."""
    place = urlsplit(url)

    class Forward(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            with closing(http.client.HTTPConnection(place.netloc, timeout=30)) as connection:
                connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                for name, value in self.headers.items():
                    connection.putheader(name, value)
                connection.putheader("Authorization", f"Bearer {token}")
                connection.endheaders(body or None)
                answer = connection.getresponse()
                content = answer.read()
            self.send_response_only(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("content-length", "connection"):
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            with suppress(ConnectionError):  # the peer has closed the connection
                self.end_headers()
                self.wfile.write(content)

        do_GET = do_DELETE = do_POST  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Forward) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
