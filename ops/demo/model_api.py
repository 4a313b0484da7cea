"""Fakes three model APIs on loopback, so that coding agents can run without a key or a model.

The fake plays a script: tool calls, one per request, and then an answer. The clients are real; `requests` contains what
a model would have received.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

Json = dict[str, Any]


class ToolCall(NamedTuple):
    """A tool call by the model. `namespace` is the tool's namespace in Codex, or "" at the top level."""

    tool: str
    arguments: Mapping[str, Any]
    namespace: str = ""


class ModelApi:
    """A scripted model and the requests that it received."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._calls: Sequence[ToolCall] = ()
        self._answer = ""
        self._requests: list[str] = []
        self._results: list[str] = []
        self._lock = threading.Lock()

    def play(self, calls: Sequence[ToolCall], answer: str) -> None:
        """Script the next session: make these calls, then return this answer."""
        with self._lock:
            self._calls, self._answer, self._requests, self._results = calls, answer, [], []

    @property
    def requests(self) -> list[str]:
        """The session's requests that offer tools, in order; each is the model's input in one turn."""
        with self._lock:
            return list(self._requests)

    @property
    def results(self) -> list[str]:
        """The results of the tool calls."""
        with self._lock:
            return list(self._results)

    def turn(self, body: Json, results: Sequence[Any]) -> tuple[str, ToolCall | str]:
        """Return an id and the next action, given the results of the session's earlier tool calls."""
        with self._lock:
            if not body.get("tools"):
                return "side", self._answer
            self._requests.append(json.dumps(body, ensure_ascii=False))
            self._results = [json.dumps(result, ensure_ascii=False) for result in results]
            return f"{len(self._requests)}", (*self._calls, self._answer)[min(len(results), len(self._calls))]


@contextmanager
def model_api() -> Iterator[ModelApi]:
    """Serve the Anthropic, OpenAI and Gemini APIs at one address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        model = server.model = ModelApi(f"http://127.0.0.1:{server.server_port}")  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield model
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 10  # a client's open connection must not keep the server alive

    @property
    def _model(self) -> ModelApi:
        found: ModelApi = self.server.model  # type: ignore[attr-defined]
        return found

    def do_HEAD(self) -> None:
        self._send(b"", "text/plain")

    def do_GET(self) -> None:
        self._send(b"{}")

    def do_POST(self) -> None:
        path = self.path.partition("?")[0]
        body = self._read()
        if path.endswith("/messages"):
            self._send_events(_anthropic(*self._model.turn(body, list(_blocks(body["messages"], "tool_result")))))
        elif path.endswith("/responses"):
            self._send_events(_openai(*self._model.turn(body, list(_blocks(body["input"], "function_call_output")))))
        elif path.endswith(":streamGenerateContent"):
            parts = [part for content in body["contents"] for part in content["parts"]]
            done = [part["functionResponse"] for part in parts if "functionResponse" in part]
            self._send_events([_gemini(self._model.turn(body, done)[1])])
        elif path.endswith(":generateContent"):
            self._send(json.dumps(_gemini(self._model.turn(body, ())[1])).encode())
        else:  # token counts and telemetry
            self._send(b'{"input_tokens": 1, "totalTokens": 1}')

    def _read(self) -> Json:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            data = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        else:
            data = b""
            while size := int(self.rfile.readline().partition(b";")[0], 16):
                data += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        body: Json = json.loads(data or b"{}")
        return body

    def _send_events(self, events: Sequence[Json]) -> None:
        names = (f"event: {event['type']}\n" if "type" in event else "" for event in events)
        lines = (f"{name}data: {json.dumps(event)}\n\n" for name, event in zip(names, events, strict=True))
        self._send("".join(lines).encode(), "text/event-stream")

    def _send(self, data: bytes, kind: str = "application/json") -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


def _blocks(value: Any, kind: str) -> Iterator[Json]:
    """Yield the objects of type `kind` in a list and, at any depth, in the `content` of its objects."""
    for one in value if isinstance(value, list) else ():
        if isinstance(one, dict):
            if one.get("type") == kind:
                yield one
            yield from _blocks(one.get("content"), kind)


def _anthropic(id: str, said: ToolCall | str) -> list[Json]:
    if isinstance(said, str):
        block: Json = {"type": "text", "text": ""}
        delta, reason = {"type": "text_delta", "text": said}, "end_turn"
    else:
        block = {"type": "tool_use", "id": f"toolu_{id}", "name": said.tool, "input": {}}
        delta, reason = {"type": "input_json_delta", "partial_json": json.dumps(said.arguments)}, "tool_use"
    message = {"id": f"msg_{id}", "type": "message", "role": "assistant", "model": "fake", "content": []}
    usage = {"input_tokens": 1, "output_tokens": 1}
    return [
        {"type": "message_start", "message": message | {"stop_reason": None, "stop_sequence": None, "usage": usage}},
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, "usage": usage},
        {"type": "message_stop"},
    ]


def _openai(id: str, said: ToolCall | str) -> list[Json]:
    if isinstance(said, str):
        content = [{"type": "output_text", "text": said}]
        item: Json = {"type": "message", "id": f"msg_{id}", "role": "assistant", "content": content}
    else:
        called = {"name": said.tool, "arguments": json.dumps(said.arguments), "call_id": f"call_{id}"}
        item = {"type": "function_call", "id": f"fc_{id}"} | called
        item |= {"namespace": said.namespace} if said.namespace else {}
    usage = {"input_tokens": 1, "input_tokens_details": None, "output_tokens": 1, "output_tokens_details": None}
    return [
        {"type": "response.created", "response": {"id": f"resp_{id}"}},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": {"id": f"resp_{id}", "usage": usage | {"total_tokens": 2}}},
    ]


def _gemini(said: ToolCall | str) -> Json:
    called = said if isinstance(said, str) else {"name": said.tool, "args": said.arguments}
    part = {"text": called} if isinstance(said, str) else {"functionCall": called}
    candidate = {"content": {"role": "model", "parts": [part]}, "finishReason": "STOP", "index": 0}
    usage = {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}
    return {"candidates": [candidate], "usageMetadata": usage}
