"""Test `memory-agent mcp`: answers with and without a daemon, limits, and a daemon that is slow or dies."""

from __future__ import annotations

import asyncio
import io
import json
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import pytest
from mcp_peers import peer
from polling import wait_until
from served_gateway import Served, found_by_clients, gateway_in_new_folder
from test_http_guard import certificate

from memory_agent import starting
from memory_agent.doors.mcp import stdio
from memory_agent.doors.mcp.messages import CAPABILITIES_KEY, VERSION_KEY
from memory_agent.doors.mcp.stdio import Bridge, Door, LocalDoor
from memory_agent.embedders import Embedder
from memory_agent.errors import UnavailableError
from memory_agent.layout import Layout
from relay import ALL_SCOPES, create_key

VPN = "The deploy to staging hangs while the VPN is off: connect it first"
QUESTION = "why does the deploy to staging hang?"
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def served(embedder: Embedder) -> Iterator[Served]:
    with gateway_in_new_folder(embedder) as served, found_by_clients(served):
        yield served


def command(*options: str) -> list[str]:
    return [sys.executable, "-m", "memory_agent", "mcp", *options]


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("MEMORY_AGENT_")}


def request(method: str, params: object = None, id: object = 1) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": params or {}}


def recall(id: object = 1) -> dict[str, Any]:
    return request("tools/call", {"name": "recall", "arguments": {"query": QUESTION}}, id)


def line(message: object) -> bytes:
    return json.dumps(message).encode() + b"\n"


def answers(lines: bytes, *options: str) -> tuple[dict[Any, dict[str, Any]], str]:
    """Run a process on these lines; return its answers by id, and its standard error."""
    done = subprocess.run(
        command(*options), input=lines, capture_output=True, timeout=PATIENCE_S, env=environment(), check=False
    )
    assert done.returncode == 0, done.stderr
    found = [json.loads(one) for one in done.stdout.splitlines()]
    return {answer["id"]: answer for answer in found}, done.stderr.decode()


def bridged(find: Callable[[float], Door], *messages: object, tools: Any = "standard") -> dict[Any, dict[str, Any]]:
    """Pass messages to a bridge in this process; return its answers by id."""
    out = io.BytesIO()
    Bridge(find, {"tools": tools}, tools, out).run(io.BytesIO(b"".join(map(line, messages))))
    return {answer["id"]: answer for answer in map(json.loads, out.getvalue().splitlines())}


@contextmanager
def door_that(behaves: Callable[[socket.socket], None]) -> Iterator[Door]:
    """Listen at an address, and handle the first connection with `behaves`."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                behaves(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        yield Door(f"http://127.0.0.1:{listening.getsockname()[1]}", "token")
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def replying(sent: bytes) -> Callable[[socket.socket], None]:
    """Return a handler for `door_that` that reads a request and sends these bytes."""

    def reply(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        connection.sendall(sent)

    return reply


def failure(answer: dict[str, Any]) -> dict[str, Any]:
    """Check that a call failed with a result that a model can read; return its fields."""
    assert answer["result"]["isError"] is True
    fields: dict[str, Any] = answer["result"]["structuredContent"]
    assert fields["text"] == answer["result"]["content"][0]["text"]
    return fields


def test_the_official_client_works_with_a_daemon_that_runs(served: Served) -> None:
    mcp = pytest.importorskip("mcp")
    from mcp.client.stdio import stdio_client

    async def work() -> None:
        options = ["--data-dir", str(served.data_dir), "--user", "stdio", "--no-start"]
        server = mcp.StdioServerParameters(command=sys.executable, args=["-m", "memory_agent", "mcp", *options])
        async with stdio_client(server) as (read, write), mcp.ClientSession(read, write) as session:
            assert (await session.initialize()).server_info.name == "memory-agent"
            await session.send_ping()
            known = await session.call_tool("remember", {"text": VPN})
            found = await session.call_tool("recall", {"query": QUESTION})
            assert known.structured_content["id"] in found.content[0].text
            calls = [session.call_tool("recall", {"query": QUESTION}) for _ in range(8)]
            assert not any(answer.is_error for answer in await asyncio.gather(*calls))

    asyncio.run(work())


def test_the_options_are_the_context_of_each_call(served: Served) -> None:
    written = request("tools/call", {"name": "vector_memory_write", "arguments": {"content": VPN}})
    options = (
        "--tools",
        "classic",
        "--user",
        "a b&c=d",
        "--session",
        "s 1&user_id=bob",
        "--data-dir",
        str(served.data_dir),
    )
    refused, _ = answers(line(written), *options)
    assert failure(refused[1])["code"] == "invalid_input"  # the invalid name is refused, not replaced by another user
    found, _ = answers(line(written), *options[:3], "of-options", *options[4:])
    id = found[1]["result"]["structuredContent"]["id"]
    record = served.host._memories["of-options"].get([id])[0]
    assert record.session_id == "s 1&user_id=bob"


def test_the_session_of_claude_code_is_that_of_its_calls(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    written = line(request("tools/call", {"name": "remember", "arguments": {"text": VPN}}))
    monkeypatch.setenv("CLAUDE_CODE_SESSION_ID", "s-of-claude")
    for options, wanted in (((), "s-of-claude"), (("--session", "s-own"), "s-own")):
        found, _ = answers(written, "--data-dir", str(served.data_dir), "--user", "claude", *options)
        id = found[1]["result"]["structuredContent"]["id"]
        assert served.host._memories["claude"].get([id])[0].session_id == wanted


def test_a_key_file_provides_the_key_of_the_caller(served: Served, tmp_path: Path) -> None:
    key = create_key(served.data_dir, "stdio-key", "alice", ALL_SCOPES)
    file = tmp_path / "key.json"
    file.write_text(json.dumps({"id": key.id, "token": key.token}))
    mine = ("--data-dir", str(served.data_dir), "--key-file", str(file))
    assert "result" in answers(line(recall()), *mine)[0][1]
    assert failure(answers(line(recall()), *mine, "--user", "bob")[0][1])["code"] == "user_not_allowed"
    file.write_text(json.dumps({"id": key.id, "token": "wrong"}))
    assert failure(answers(line(recall()), *mine)[0][1])["code"] == "unauthorized"


def test_without_a_daemon_it_introduces_itself_and_says_what_to_do(tmp_path: Path) -> None:
    lines = [request("initialize", {"protocolVersion": "2025-06-18"}, 1), request("tools/list", id=2), recall(3)]
    lines += [request("resources/read", {"uri": "memory://x"}, 4), request("ping", id=5)]
    found, said = answers(b"".join(map(line, lines)), "--no-start", "--data-dir", str(tmp_path / "none"))
    assert found[1]["result"]["protocolVersion"] == "2025-06-18"
    assert len(found[2]["result"]["tools"]) == 9
    assert failure(found[3]) == {"text": failure(found[3])["text"], "code": "unavailable", "retryable": True}
    assert "memory-agent serve --data-dir" in failure(found[3])["text"]
    assert found[4]["error"]["data"]["code"] == "unavailable"
    assert found[5]["result"] == {}
    assert "note: no daemon serves" in said
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("url", ["ftp://x", "127.0.0.1:7430", "http://", "http://x:port", "http://x:99999"])
def test_an_invalid_address_is_refused_at_once(url: str) -> None:
    done = subprocess.run(command("--url", url), capture_output=True, text=True, env=environment(), check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "must be http(s)://HOST:PORT" in done.stderr


def test_disabled_http_is_reported_as_such(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    with layout.hold():
        os.utime(tmp_path / "daemon.lock", (0, 0))  # the daemon has been running for a long time
        found, _ = answers(line(recall()), "--data-dir", str(tmp_path))
    assert "daemon.http.listen" in failure(found[1])["text"]


def test_the_bridge_waits_for_a_daemon_that_another_session_starts(tmp_path: Path) -> None:
    class Opening(Layout):
        looks = 0

        @property
        def http(self) -> Path:
            self.looks += 1
            if self.looks == 3:
                self.create()
                (self.run / "http").write_text("http://127.0.0.1:1\n")
            return self.run / "http"

        @http.setter
        def http(self, _: Path) -> None:
            """Ignore the path that `Layout` sets."""

    layout = Opening(tmp_path)
    with layout.hold():
        local = LocalDoor(layout, "token", lambda _: None)
        assert local.find(time.monotonic() + PATIENCE_S)[:2] == ("http://127.0.0.1:1", "token")
        assert layout.looks == 3
        (layout.run / "http").unlink()
        with pytest.raises(UnavailableError, match="is starting"):
            local.find(time.monotonic())


def test_bad_lines_are_answered_and_the_next_one_too(tmp_path: Path) -> None:
    note = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    lines = b"{\n\n" + line([1]) + line(note) + line({"jsonrpc": "2.0", "id": 9}) + line(request("ping", id=10))
    done = subprocess.run(
        command("--no-start", "--data-dir", str(tmp_path)),
        input=lines, capture_output=True, timeout=PATIENCE_S, env=environment(), check=True,
    )  # fmt: skip
    found = [json.loads(one) for one in done.stdout.splitlines()]
    assert [(one["id"], one.get("error", {}).get("code")) for one in found] == [
        (None, -32700),
        (None, -32600),
        (9, -32600),
        (10, None),
    ]


def test_an_endless_line_is_refused_and_not_buffered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stdio, "MOST_BYTES", 1_000)
    large = {"a": "x" * 200_000}
    lines = [request("x", large, 1), {"method": "x", "params": large, "jsonrpc": "2.0", "id": "last"}, large]
    found = bridged(lambda _: Door("", ""), *lines, request("ping", id=2))
    for id in (1, "last", None):
        assert found[id]["error"]["code"] == -32600
        assert "1000 bytes" in found[id]["error"]["message"]
    assert found[2]["result"] == {}


def test_the_id_at_the_end_of_a_long_line_is_found_wherever_it_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    long = {"method": "x", "params": {"a": "x" * 300}, "jsonrpc": "2.0", "id": 77}
    monkeypatch.setattr(stdio, "_PART_BYTES", 512)
    for most in range(1, len(line(long)) - 1):
        monkeypatch.setattr(stdio, "MOST_BYTES", most)
        assert list(bridged(lambda _: Door("", ""), long)) == [77], most


def test_an_unknown_method_is_refused_without_a_daemon(tmp_path: Path) -> None:
    door = LocalDoor(Layout(tmp_path), "", lambda _: None, None).find
    found = bridged(door, request("logging/setLevel", {"level": "info"}, 1), request("completion/complete", id=2))
    assert [found[id]["error"]["code"] for id in (1, 2)] == [-32601, -32601]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_bug_is_answered_with_an_error() -> None:
    def broken(_: float) -> Door:
        raise ZeroDivisionError

    found = bridged(broken, recall(1), request("prompts/get", {"name": "x"}, 2))
    assert failure(found[1]) == {"text": failure(found[1])["text"], "code": "internal", "retryable": False}
    assert found[2]["error"]["code"] == -32603


def test_a_daemon_that_never_answers_causes_an_error_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stdio, "ANSWER_S", 0.2)
    over = threading.Event()
    with door_that(lambda connection: cast(None, over.wait(PATIENCE_S))) as door:
        found = bridged(lambda _: door, recall())
        over.set()
    assert failure(found[1])["code"] == "deadline_exceeded"


def test_a_daemon_that_answers_byte_by_byte_causes_an_error_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stdio, "ANSWER_S", 0.3)
    over = threading.Event()

    def drip(connection: socket.socket) -> None:
        while not over.wait(0.01):
            try:
                connection.sendall(b"x")
            except OSError:
                return

    with door_that(drip) as door:
        found = bridged(lambda _: door, recall())
        over.set()
    assert failure(found[1])["code"] == "deadline_exceeded"


@pytest.mark.parametrize(
    "sent",
    [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\nContent-Type: application/json\r\n\r\n{}"],
)
def test_a_daemon_that_dies_during_its_answer_causes_an_error(sent: bytes) -> None:
    with door_that(replying(sent)) as door:
        found = bridged(lambda _: door, recall())
    assert failure(found[1])["code"] == "unavailable"
    assert "may have been carried out" in failure(found[1])["text"]


@pytest.mark.parametrize(
    "sent",
    [
        b"Content-Type: text/html\r\n\r\n<html>",
        b'Content-Type: application/json\r\n\r\n{\n"detail": "Not Found"\n}',
        b'Content-Type: application/json\r\n\r\n{"jsonrpc": "2.0", "id": 2, "result": {}}',
        b"Content-Type: application/json\r\n\r\n\xff",
        b"Content-Type: application/problem+json\r\n\r\n[]",
        b"Content-Length: many\r\n\r\n",
        b"\r\n",
    ],
)
def test_another_program_at_the_port_is_recognised(sent: bytes) -> None:
    with door_that(replying(b"HTTP/1.1 200 OK\r\n" + sent)) as door:
        found = bridged(lambda _: door, recall())
    assert "is not memory-agent" in failure(found[1])["text"]


def test_an_answer_of_several_lines_becomes_one_line() -> None:
    indented = b'HTTP/1.1 200 OK\r\n\r\n{\n  "jsonrpc": "2.0",\r\n  "id": 1,\n  "result": {}\n}\n'
    with door_that(replying(indented)) as door:
        assert bridged(lambda _: door, recall())[1]["result"] == {}


def test_a_port_without_a_listener_causes_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        door = Door(f"http://127.0.0.1:{closed.getsockname()[1]}", "")
    found = bridged(lambda _: door, recall(), request("prompts/get", {"name": "x"}, 2))
    assert f"the daemon at {door.url} cannot be reached: Connection refused" in failure(found[1])["text"]
    assert found[2]["error"]["data"] == {"code": "unavailable", "retryable": True}


def test_an_untrusted_certificate_is_not_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate(tmp_path))

    def answer(connection: socket.socket) -> None:
        with suppress(ssl.SSLError), context.wrap_socket(connection, server_side=True) as secured:
            secured.recv(1 << 16)
            secured.sendall(b'HTTP/1.1 200 OK\r\n\r\n{"jsonrpc": "2.0", "id": 1, "result": {}}')

    def asked() -> dict[str, Any]:
        with door_that(answer) as door:
            return bridged(lambda _: door._replace(url=door.url.replace("http", "https")), recall())[1]

    refused = failure(asked())
    assert "certificate is not trusted" in refused["text"]
    assert refused["retryable"] is False
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "memory.pem"))  # the advice in the refusal
    assert asked()["result"] == {}


@pytest.mark.parametrize("door", [Door("http://a..b:80", "token"), Door("http://127.0.0.1:1", "t\u2019k")])
def test_an_invalid_address_or_token_is_not_retried(door: Door) -> None:
    assert failure(bridged(lambda _: door, recall())[1])["retryable"] is False


@pytest.mark.parametrize("tools", ["standard", "classic"])
def test_repeating_a_call_after_a_lost_answer_stores_one_memory(served: Served, tools: str) -> None:
    """A model may repeat a failed call that has in fact been executed."""
    name, text = ("remember", "text") if tools == "standard" else ("vector_memory_write", "content")

    def remember(id: int) -> bytes:
        return line(request("tools/call", {"name": name, "arguments": {text: VPN, "tags": ["vpn"]}}, id))

    class Patient(io.BytesIO):
        def readline(self, size: int | None = -1, /) -> bytes:
            wait_until(lambda: out.getvalue().count(b"\n") >= sent.count(None))
            sent.append(None)
            return super().readline(size)

    def swallow(connection: socket.socket) -> None:
        """Forward the request, and close the connection once the request has been executed."""
        with socket.create_connection(served.http.removeprefix("http://").split(":")) as daemon:
            daemon.sendall(connection.recv(1 << 16))
            while daemon.recv(1 << 16):
                pass

    user = f"again-{tools}"
    whole = Door(served.http, Layout(served.data_dir).token())
    out, sent = io.BytesIO(), []
    with door_that(swallow) as lossy:
        doors = [lossy._replace(token=whole.token), whole, whole]
        bridge = Bridge(lambda _: doors.pop(0), {"tools": tools, "user_id": user}, cast(Any, tools), out)
        bridge.run(Patient(remember(1) + remember(2) + remember(3)))
    lost, again, later = map(json.loads, out.getvalue().splitlines())
    assert failure(lost)["retryable"]
    ids = {record.id for record in served.host._memories[user].list().records}
    assert ids == {one["result"]["structuredContent"]["id"] for one in (again, later)}
    assert len(ids) == 2, "the third call is not a repeat, because the second was answered"


def test_a_cancelled_request_is_dropped_without_an_answer() -> None:
    asked, ended = threading.Event(), threading.Event()

    def wait(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        asked.set()
        assert connection.recv(1) == b""
        ended.set()

    class Lines(io.BytesIO):
        def readline(self, size: int | None = -1, /) -> bytes:
            found = super().readline(size)
            if b"cancelled" in found:
                assert asked.wait(PATIENCE_S)
            return found

    cancelled = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}
    out = io.BytesIO()
    with door_that(wait) as door:
        bridge = Bridge(lambda _: door, {}, "standard", out)
        bridge.run(Lines(line(recall(7)) + line(cancelled) + line(cancelled | {"params": {"requestId": [1]}})))
    assert ended.is_set()
    assert out.getvalue() == b""


def test_a_request_cancelled_early_is_not_sent() -> None:
    waiting = threading.Event()

    class Lines(io.BytesIO):
        def readline(self, size: int | None = -1, /) -> bytes:
            found = super().readline(size)
            if not found:
                waiting.set()
            return found

    cancelled = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}
    out = io.BytesIO()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def find(_: float) -> Door:
            waiting.wait(PATIENCE_S)
            return Door(f"http://127.0.0.1:{server.getsockname()[1]}", "")

        Bridge(find, {}, "standard", out).run(Lines(line(recall(7)) + line(cancelled)))
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()
    assert out.getvalue() == b""


def test_too_many_requests_at_once_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stdio, "_MOST_AT_ONCE", 1)
    waiting = threading.Event()

    def find(_: float) -> Door:
        waiting.wait(PATIENCE_S)
        raise UnavailableError("later")

    class Lines(io.BytesIO):
        def readline(self, size: int | None = -1, /) -> bytes:
            found = super().readline(size)
            if not found:
                waiting.set()
            return found

    out = io.BytesIO()
    Bridge(find, {}, "standard", out).run(Lines(line(recall(1)) + line(recall(2))))
    found = {answer["id"]: answer for answer in map(json.loads, out.getvalue().splitlines())}
    assert "in progress" in failure(found[2])["text"]
    assert "later" in failure(found[1])["text"]


def test_messages_without_handshake_pass_with_their_headers(served: Served) -> None:
    meta = {"_meta": {VERSION_KEY: "2026-07-28", CAPABILITIES_KEY: {}}}
    asked = [request("server/discover", meta, 1), request("resources/read", {"uri": "memory://ü", **meta}, 2)]
    asked += [request("ping", meta, 3), request("tools/call", {"name": "timeline", **meta}, 4)]
    found, _ = answers(b"".join(map(line, asked)), "--data-dir", str(served.data_dir))
    assert found[1]["result"]["supportedVersions"] == ["2026-07-28"]
    assert found[2]["error"] == {**found[2]["error"], "code": -32602, "data": {"uri": "memory://ü"}}
    assert found[3]["error"]["code"] == -32601
    assert found[4]["result"]["resultType"] == "complete"


def test_one_of_two_sessions_starts_a_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    go = tmp_path / "go"
    until_go = "import os, sys, time\nwhile not os.path.exists(sys.argv[2] + '/go'): time.sleep(0.01)\nsys.exit(1)"
    monkeypatch.setattr(starting, "_COMMAND", ("-c", until_go))
    first, second = (LocalDoor(Layout(tmp_path), None, said.append) for _ in range(2))
    for local in (first, second, first, second):
        local.start()
    assert len(said) == 1
    go.touch()
    first._process.wait(PATIENCE_S)
    second.start()  # the session whose daemon failed is idle, and does not block the other session
    assert len(said) == 2
    second._process.wait(PATIENCE_S)
    for local in (first, second):
        with pytest.raises(UnavailableError, match=r"did not start; see .*daemon\.log"):
            local.start()
    assert len(said) == 2


def test_a_session_whose_daemon_ended_does_not_block_other_sessions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = Layout(tmp_path)
    hold = "import os, sys; from pathlib import Path; from memory_agent.layout import Layout\n"
    hold += "with Layout(Path(sys.argv[2])).hold():\n  while not os.path.exists(sys.argv[2] + '/end'): pass"
    monkeypatch.setattr(starting, "_COMMAND", ("-c", hold))
    first, second = (LocalDoor(layout, None, lambda _: None) for _ in range(2))
    for local in (first, second, first):
        (tmp_path / "end").unlink(missing_ok=True)
        local.start()
        wait_until(layout.daemon_runs)
        (tmp_path / "end").touch()
        assert local._process.wait(PATIENCE_S) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["--method", "tools/list"], "vector_memory_search"),
        (["--method", "tools/call", "--tool-name", "search_memory", "--tool-arg", f"query={QUESTION}"], "recall_id"),
    ],
)
def test_the_inspector_lists_and_calls(served: Served, arguments: list[str], wanted: str) -> None:
    server = command("--tools", "classic", "--data-dir", str(served.data_dir))
    program = peer("mcp-inspector")
    environ = environment() | {"PATH": f"{Path(program[0]).parent}:{os.environ['PATH']}"}
    shown = subprocess.run(
        [*program, "--cli", *server, *arguments], capture_output=True, text=True, timeout=240, env=environ, check=False
    )
    assert shown.returncode == 0, shown.stderr
    assert wanted in json.dumps(json.loads(shown.stdout))
