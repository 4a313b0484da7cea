"""Measures the overhead that our code adds to a model on a server. A local server answers at once with fixed vectors.

The server is a separate process, so the measured processor time does not include it. To run only this benchmark:
`python -m ops.bench --only providers [--json]`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import closing
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from memory_agent.embedders import open_embedder
from memory_agent.settings import OllamaEmbedder, OpenAIEmbedder, RemoteEmbedder
from ops.bench.spread import spread

_TURNS = 4
_QUERIES = 50
_TEXTS = 2_048
_WIDTHS = {"/api/embed": 768, "/embeddings": 1_536}


class _Server(BaseHTTPRequestHandler):
    """Answers as Ollama and OpenAI do."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # otherwise the response body would be delayed by 40 ms

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        content = _answer(self.path, len(body["input"]))
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *_arguments: Any) -> None:
        return


@cache
def _answer(path: str, count: int) -> bytes:
    vector = [round(0.0123456789 + place * 1e-6, 9) for place in range(_WIDTHS[path])]
    if path == "/api/embed":
        return json.dumps({"embeddings": [vector] * count, "prompt_eval_count": 30 * count}).encode()
    data = [{"index": place, "embedding": vector} for place in range(count)]
    return json.dumps({"data": data, "usage": {"prompt_tokens": 30 * count}}).encode()


def measure() -> dict[str, Any]:
    """Measure both protocols; takes about 15 s."""
    command = [sys.executable, "-m", "ops.bench.providers"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            url = server.stdout.readline().strip()
            ollama, openai = OllamaEmbedder(url=url, model="any"), OpenAIEmbedder(url=url, model="any", api_key="")
            kinds: dict[str, RemoteEmbedder] = {"/api/embed": ollama, "/embeddings": openai}
            return {
                f"{_WIDTHS[path]} dimensions, batches of {kind.batch:,}": _figures(kind) for path, kind in kinds.items()
            }
        finally:
            server.terminate()


def _figures(settings: RemoteEmbedder) -> dict[str, Any]:
    texts_per_s, processor_ms, query_ms = [], [], []
    with closing(open_embedder(settings)) as embedder:
        for turn in range(_TURNS + 1):
            began_s, spent_s = time.monotonic(), time.process_time()
            embedder.embed_texts(
                [f"the session token of turn {turn} expired after {n} requests" for n in range(_TEXTS)]
            )
            wall_s, spent_s = time.monotonic() - began_s, time.process_time() - spent_s
            began_s = time.monotonic()
            for number in range(_QUERIES):
                embedder.embed_query(f"why did the token of turn {turn} expire after {number} requests?")
            if turn:  # the first turn is a warm-up
                texts_per_s.append(_TEXTS / wall_s)
                processor_ms.append(spent_s * 1_000 / _TEXTS)
                query_ms.append((time.monotonic() - began_s) * 1_000 / _QUERIES)
    figures = {"texts_per_s": texts_per_s, "processor_ms": processor_ms, "query_ms": query_ms}
    return {name: spread(values) for name, values in figures.items()}


def _serve() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Server)
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    _serve()
