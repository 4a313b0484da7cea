"""Test HTTP requests as bytes: refusals, slow and foreign clients, and oversized requests."""

from __future__ import annotations

import json
import re
import select
import socket
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from http_caller import Answer, HttpCaller
from served_gateway import Served, gateway_in_new_folder
from verb_examples import BAD

from memory_agent import MemoryClient
from memory_agent.doors.http.app import PAGES
from memory_agent.settings import DaemonSettings, HttpSettings, Settings
from memory_agent.verbs.table import BY_METHOD, BY_NAME
from relay import ALL_SCOPES, Scope, create_key, revoke_key

BODY_BYTES = 200_000
HELD_BYTES = 300_000
TIMEOUT_S = 1.0
PATIENCE_S = 30.0
PUBLIC = sorted(name for name, verb in BY_NAME.items() if not verb.is_inner)
INNER = sorted(BY_NAME.keys() - set(PUBLIC))


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    http = HttpSettings(body_bytes=BODY_BYTES, timeout_s=TIMEOUT_S, hosts=("memory.example",))
    settings = Settings(daemon=DaemonSettings(http=http, requests_bytes=HELD_BYTES))
    with gateway_in_new_folder(settings=settings) as served:
        yield served


class RawConnection:
    """A connection that sends bytes unchanged."""

    def __init__(self, served: Served) -> None:
        place = urlsplit(served.http)
        assert place.hostname is not None
        assert place.port is not None
        self.socket = socket.create_connection((place.hostname, place.port), PATIENCE_S)
        self._token = served.token

    def head(self, verb: str, *headers: str) -> bytes:
        lines = (f"POST /v1/{verb} HTTP/1.1", "Host: 127.0.0.1", f"Authorization: Bearer {self._token}", *headers)
        return "\r\n".join((*lines, "Content-Type: application/json", "", "")).encode()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def send_for_ever(self, data: bytes) -> None:
        """Send until the other side closes the connection."""
        try:
            while True:
                self.socket.sendall(data)
        except OSError:
            return

    def read_to_end(self) -> bytes:
        """Return all bytes received until the other side closes the connection."""
        data = b""
        try:
            while part := self.socket.recv(65536):
                data += part
        except ConnectionResetError:
            pass
        return data

    def __enter__(self) -> RawConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()


def refused(answer: Answer, status: int, code: str) -> dict[str, Any]:
    """Check that a response is a refusal; return its problem document."""
    assert (answer.status, answer.code) == (status, code), answer
    assert answer.headers["content-type"] == "application/problem+json"
    found: dict[str, Any] = answer.json()
    assert found["status"] == status
    assert found["type"] == f"urn:memory-agent:error:{code}"
    return found


@pytest.mark.parametrize("verb", PUBLIC)
@pytest.mark.parametrize("header", ["", "Bearer wrong", "Bearer", "Basic bG9jYWw6eA=="])
def test_no_verb_answers_without_a_key(served: Served, verb: str, header: str) -> None:
    caller = HttpCaller(served.http)
    answer = caller.post(verb, {"query": "x"}, **({"Authorization": header} if header else {}))
    refused(answer, 401, "unauthorized")
    assert answer.headers["www-authenticate"] == "Bearer"
    caller.close()


def test_a_revoked_key_is_refused_at_its_next_request(served: Served) -> None:
    caller = HttpCaller(served.http, create_key(served.data_dir, "passing", "alice", ALL_SCOPES).token)
    assert caller.post("stats").json()["user_id"] == "alice"
    revoke_key(served.data_dir, "passing")
    detail = refused(caller.post("stats"), 401, "unauthorized")["detail"]
    header = "with the header Authorization: Bearer TOKEN"
    assert f"{header} (memory-agent mcp and open: with --key-file or MEMORY_AGENT_TOKEN);" in detail
    caller.close()


def test_a_key_allows_only_its_scopes_and_its_user(served: Served) -> None:
    caller = HttpCaller(served.http, create_key(served.data_dir, "reading", "alice", frozenset({Scope.RECALL})).token)
    assert caller.post("recall", {"query": "x", "mode": "lexical"}).status == 200
    assert caller.post("list", {"user_id": "alice"}).status == 200
    assert refused(caller.post("remember", {"text": "x"}), 403, "scope_missing")["args"] == ["publish", "reading"]
    for user_id in ("bob", "nobody-at-all"):
        refused(caller.post("list", {"user_id": user_id}), 403, "user_not_allowed")
    refused(caller.post("owner", {"run_id": "r"}), 403, "user_not_allowed")
    caller.close()


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "10.0.0.7", "[fe80::1]:1"]
)
def test_another_host_is_refused(caller: HttpCaller, host: str) -> None:
    refused(caller.post("stats", Host=host), 421, "protocol")
    refused(caller.send("GET", "/openapi.json", Host=host), 421, "protocol")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:4", "[::1]:9", "LOCALHOST", "memory.example:443"])
def test_names_of_this_machine_and_of_the_settings_are_accepted(caller: HttpCaller, host: str) -> None:
    assert caller.post("stats", Host=host).status == 200


def test_pages_of_other_origins_are_refused(served: Served, caller: HttpCaller) -> None:
    for origin in ("https://evil.example", "null", "http://127.0.0.1:1", "http://[::1"):
        refused(caller.post("stats", Origin=origin), 403, "protocol")
    answer = caller.post("stats", Origin=served.http)
    assert answer.status == 200
    assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize("body", [b"{", b'{"query": NaN}', b'{"query": "\\ud800"}', b"\xff", b"6o", b"\r", b"query=x"])
def test_invalid_json_is_a_malformed_request(caller: HttpCaller, body: bytes) -> None:
    refused(caller.send("POST", "/v1/recall", body), 400, "protocol")


def test_a_body_that_nests_too_deep_is_malformed(caller: HttpCaller) -> None:
    deep = b'{"text": "x y z", "metadata": {"a": ' + b"[" * 50_000 + b"]" * 50_000 + b"}}"
    refused(caller.send("POST", "/v1/remember", deep), 400, "protocol")


@pytest.mark.parametrize("body", [b"[]", b'"x"', b"7", b"null"])
def test_a_body_that_is_not_an_object_is_refused(caller: HttpCaller, body: bytes) -> None:
    assert refused(caller.send("POST", "/v1/recall", body), 422, "invalid_input")["args"][0] == "body"


def test_another_media_type_is_refused(caller: HttpCaller) -> None:
    for media_type in ("text/plain", "application/x-www-form-urlencoded", ""):
        refused(caller.post("recall", {"query": "x"}, Content_Type=media_type), 415, "protocol")
    assert caller.post("stats", Content_Type="text/plain").status == 200  # no body, so the content type is ignored


@pytest.mark.parametrize("verb", [*INNER, "no_such_verb", "recall/more", "", "runs.begin"])
def test_an_unknown_verb_and_the_daemons_own_are_not_found(caller: HttpCaller, verb: str) -> None:
    assert refused(caller.post(verb, {}), 404, "unknown_method")["args"] == [verb]


def test_a_path_accepts_only_its_methods(caller: HttpCaller) -> None:
    for method in ("GET", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
        answer = caller.send(method, "/v1/recall")
        refused(answer, 405, "protocol")
        assert answer.headers["allow"] == "POST"
    refused(caller.post("blocks"), 405, "protocol")
    for stream in ("blocks", "events"):  # HEAD has no body, so a stream would keep the connection open forever
        assert caller.send("HEAD", f"/v1/{stream}").status == 405
        assert caller.post("stats").status == 200
    refused(caller.send("GET", "/nothing"), 404, "protocol")
    assert caller.send("POST", "/").status == 405


SAME_NAMES = [one for one in BAD if not one[0].startswith("erasure.") and "nan" not in repr(one[1])]


@pytest.mark.parametrize(("method", "arguments", "field"), SAME_NAMES, ids=lambda value: str(value)[:40])
def test_the_server_refuses_the_same_arguments_as_a_client(
    caller: HttpCaller, method: str, arguments: dict[str, Any], field: str
) -> None:
    """Over HTTP, only the server checks the arguments."""
    fields = {"ids": arguments["data"].decode()} if "data" in arguments else arguments
    name = "ids" if fields is not arguments else field
    assert refused(caller.post(BY_METHOD[method].name, fields), 422, "invalid_input")["args"][0] == name


@pytest.mark.parametrize("verb", PUBLIC)
def test_an_unknown_field_is_refused_by_name(caller: HttpCaller, verb: str) -> None:
    answer = caller.post(verb, {"colour": "red"})
    field, reason = refused(answer, 422, "invalid_input")["args"]
    assert (field, reason.partition(":")[0]) == ("colour", "no such field; must be one of")
    assert reason.endswith("user_id, deadline_ms")


@pytest.mark.parametrize(
    ("path", "body", "detail"),
    [
        (
            "recall",
            {"query": "x", "filter": {"kind": "finding"}},
            "filter.kind: no such field; must be one of: kinds,",
        ),
        ("recall", {"query": "x", "filter": {"kinds": ["idea"]}}, "filter.kinds[0]: must be one of episode, finding,"),
        ("recall", {"query": "x", "profile": "plan"}, "profile: must be one of before_planning, document, trajectory"),
        ("list", {"order": "best"}, "order: must be one of newest, oldest, updated"),
        ("events", {"event_type": "chat.user_msg"}, "event_type: no such field; must be one of: events, user_id,"),
        ("events", [], "body: Expected `object`, got `array`; its fields are events, user_id, deadline_ms"),
    ],
)
def test_a_refusal_lists_what_fits(caller: HttpCaller, path: str, body: Any, detail: str) -> None:
    assert detail in refused(caller.post(path, body), 422, "invalid_input")["detail"]


def test_a_user_in_the_query_is_refused(caller: HttpCaller) -> None:
    answer = caller.send("POST", "/v1/stats?user_id=alice", b"{}")
    assert refused(answer, 422, "invalid_input")["detail"] == ("user_id: must be in the request body, not in the URL")


def test_a_wrong_path_method_or_media_type_gets_a_hint(caller: HttpCaller) -> None:
    assert "/docs" in refused(caller.send("GET", "/health"), 404, "protocol")["detail"]
    assert "accepts POST" in refused(caller.send("GET", "/v1/recall"), 405, "protocol")["detail"]
    typeless = caller.post("recall", {"query": "x"}, Content_Type="text/plain")
    assert "Content-Type: application/json" in refused(typeless, 415, "protocol")["detail"]
    lost = caller.send("GET", "/v1/blocks?rule=x")
    assert "the parameters are: role, run, session, user_id" in refused(lost, 422, "invalid_input")["detail"]


def test_an_empty_user_and_an_impossible_deadline_are_refused(caller: HttpCaller) -> None:
    for fields, field in (
        ({"user_id": ""}, "user_id"),
        ({"user_id": "a/b"}, "user_id"),
        ({"deadline_ms": -1}, "deadline_ms"),
        ({"deadline_ms": 1e9}, "deadline_ms"),
    ):
        assert refused(caller.post("stats", fields), 422, "invalid_input")["args"][0] == field
    unsafe = refused(caller.post("stats", {"user_id": "a/b"}), 422, "invalid_input")["detail"]
    assert unsafe == "user_id: a user id consists of 1 to 128 ASCII letters, digits and ._:@+-, with no leading dot"
    nothing = refused(caller.send("POST", "/v1/remember", b""), 422, "invalid_input")["detail"]
    assert "missing required field `text`" in nothing


def test_whole_numbers_may_be_written_with_a_point(caller: HttpCaller) -> None:
    """In JSON Schema, 1.0 is an integer and 1.5 is not."""
    assert caller.send("POST", "/v1/list", b'{"limit": 1.0}').status == 200
    refused(caller.send("POST", "/v1/list", b'{"limit": 1.5}'), 422, "invalid_input")


def test_days_begin_in_the_zone_of_the_reference_time(caller: HttpCaller) -> None:
    fields = {"user_id": "zoe", "query": "what happened yesterday", "mode": "lexical"}
    caller.post("remember", {"user_id": "zoe", "text": "the deploy hung"})
    answer = caller.post("recall", {**fields, "reference_time": "2026-11-23T00:30:00+09:00"})
    assert answer.json()["dates"][0]["since"] == "2026-11-21T15:00:00Z"


def test_the_key_of_a_repeat_writes_once(caller: HttpCaller) -> None:
    def twice(verb: str, fields: dict[str, Any], key: str) -> list[Any]:
        return [caller.post(verb, {"user_id": "ida", **fields}, Idempotency_Key=key).json() for _ in range(2)]

    runs = twice("run_begin", {"objective": "Fix the race"}, "key-1")
    assert runs[0]["id"] == runs[1]["id"]
    steps = twice("run_step", {"run_id": runs[0]["id"], "text": "Put a mutex there"}, "key-2")
    assert [len(run["steps"]) for run in steps] == [1, 1]
    memories = twice("remember", {"text": "staging needs the VPN", "tags": ["once"]}, "key-3")
    assert memories[0] == memories[1]
    assert (memories[0]["id"], memories[0]["updated_at"]) == ("key-3", None)
    assert caller.post("list", {"user_id": "ida", "filter": {"tags": ["once"]}}).json()["total"] == 1
    own = caller.post("remember", {"user_id": "ida", "id": "own", "text": "x y z"}, Idempotency_Key="key-4")
    assert own.json()["id"] == "own"


def test_an_ended_run_does_not_begin_again_and_a_repeat_ends_it_once(caller: HttpCaller) -> None:
    run = {"user_id": "eda", "run_id": "run-1"}
    begun = {"objective": "Fix the race", **run}
    assert caller.post("run_begin", begun, Idempotency_Key="begin").status == 200
    assert caller.post("run_end", run | {"outcome": "completed"}).status == 200
    assert refused(caller.post("run_begin", begun), 409, "run_ended")["args"][0] == "run-1"
    assert refused(caller.post("run_end", run | {"outcome": "failed"}), 409, "run_ended")["args"][0] == "run-1"
    assert refused(caller.post("run_step", run | {"text": "Went on"}), 409, "run_ended")["args"][0] == "run-1"
    assert caller.post("feedback", {"user_id": "eda", "recall_id": "run-1", "quality": 0.1}).json()["quality"] == 0.1
    assert caller.post("run_begin", begun, Idempotency_Key="begin").json()["state"] == "ended"


def test_an_unknown_run_or_one_with_another_objective_is_refused(caller: HttpCaller) -> None:
    run = {"user_id": "eda", "run_id": "run-2"}
    assert refused(caller.post("run_end", run), 404, "run_unknown")["args"] == ["run-2"]
    assert refused(caller.post("run_step", run | {"text": "Went on"}), 404, "run_unknown")["args"] == ["run-2"]
    assert caller.post("run_begin", run | {"objective": "Fix the race"}).status == 200
    refused(caller.post("run_begin", run | {"objective": "Bake bread"}), 409, "run_begun")


def test_a_body_that_is_announced_as_too_large_is_refused_before_it_is_sent(served: Served) -> None:
    with RawConnection(served) as raw:
        raw.send(raw.head("recall", f"Content-Length: {BODY_BYTES + 1}"))
        answer = raw.read_to_end()
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in answer


@pytest.mark.parametrize("token", ["right", "wrong"])
def test_an_endless_body_is_cut_off(served: Served, token: str) -> None:
    """With a wrong key, the body is not read."""
    with RawConnection(served) as raw:
        head = raw.head("recall", "Transfer-Encoding: chunked")
        raw.send(head if token == "right" else head.replace(b"Bearer ", b"Bearer x"))
        sending = threading.Thread(target=raw.send_for_ever, args=(b"1000\r\n" + b" " * 4096 + b"\r\n",))
        sending.start()
        answer = raw.read_to_end()
        sending.join(PATIENCE_S)
        assert not sending.is_alive()
    assert answer.startswith(b"HTTP/1.1 413 " if token == "right" else b"HTTP/1.1 401 ")


def test_a_body_that_stops_coming_times_out(served: Served) -> None:
    with RawConnection(served) as raw:
        raw.send(raw.head("recall", "Content-Length: 20") + b'{"query"')
        answer = raw.read_to_end()
    assert answer.startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("sent", [b"", b"POST /v1/rec", b"POST /v1/stats HTTP/1.1\r\nHost: 127.0.0.1\r\nX-A: "])
def test_a_head_that_stops_coming_ends_the_connection(served: Served, sent: bytes) -> None:
    with RawConnection(served) as raw:
        raw.send(sent)
        assert raw.read_to_end() == b""


def test_a_head_that_stops_coming_after_a_request_ends_the_connection(served: Served) -> None:
    with RawConnection(served) as raw:
        raw.send(raw.head("stats", "Content-Length: 0") + b"POST /v1/st")
        assert raw.read_to_end().count(b"HTTP/1.1 ") == 1


def test_an_endless_head_ends_the_connection(served: Served) -> None:
    with RawConnection(served) as raw:
        raw.send(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        raw.send_for_ever(b"X-Long: " + b"a" * 1000 + b"\r\n")
        raw.read_to_end()


def test_a_client_that_reads_no_response_loses_its_connection(served: Served, caller: HttpCaller) -> None:
    for number in range(30):
        caller.post("remember", {"user_id": "slow", "text": f"{number} " + "word " * 3_000})
    with RawConnection(served) as raw:
        raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        asked = b'{"user_id": "slow", "limit": 30}'
        raw.send((raw.head("list", f"Content-Length: {len(asked)}") + asked) * 30)
        events = select.poll()
        events.register(raw.socket, select.POLLERR | select.POLLHUP)
        assert events.poll(PATIENCE_S * 1000), "the server is blocked by a client that does not read"
    assert caller.post("stats").status == 200


def test_one_users_requests_leave_room_for_others(served: Served, caller: HttpCaller) -> None:
    greedy = HttpCaller(served.http, create_key(served.data_dir, "greedy", "greg", ALL_SCOPES).token)
    asked = json.dumps({"through": {"greg": 1 << 40}, "deadline_ms": 5_000}).encode()
    waiting = [RawConnection(served) for _ in range(16)]  # a quarter of the slots
    token = create_key(served.data_dir, "greedy-2", "greg", ALL_SCOPES).token
    for raw in waiting:
        raw._token = token
        raw.send(raw.head("wait", f"Content-Length: {len(asked)}") + asked)
    while (answer := greedy.post("stats")).status == 200:
        pass
    assert refused(answer, 503, "unavailable")["retryable"]
    assert answer.headers["retry-after"] == "1"
    assert caller.post("stats").status == 200
    for raw in waiting:
        raw.socket.close()
    greedy.close()


def test_the_total_size_of_bodies_is_limited(served: Served, caller: HttpCaller) -> None:
    text = b'{"user_id": "bea", "text": "' + b"word " * 30_000
    with RawConnection(served) as first, RawConnection(served) as second:
        for raw in (first, second):
            raw.send(raw.head("remember", f"Content-Length: {BODY_BYTES}") + text)
        answers = {first.read_to_end()[:13], second.read_to_end()[:13]}
    assert answers == {b"HTTP/1.1 408 ", b"HTTP/1.1 503 "}
    refused(caller.post("remember", {"user_id": "bea", "text": "word " * 30_000}), 422, "invalid_input")  # room again


def test_one_users_bodies_leave_room_for_others(served: Served) -> None:
    tokens = [create_key(served.data_dir, f"bodies-of-{name}", name, ALL_SCOPES).token for name in ("fay", "gil")]
    other = HttpCaller(served.http, tokens[1])
    waiting = [RawConnection(served) for _ in range(3)]  # 90,000 of the 300,000 bytes each
    for raw in waiting:
        raw._token = tokens[0]
        raw.send(raw.head("remember", f"Content-Length: {BODY_BYTES}") + b'{"text": "' + b"word " * 18_000)
    refused(other.post("remember", {"text": "word " * 20_000}), 422, "invalid_input")  # not refused for lack of room
    answers = [raw.read_to_end()[:13] for raw in waiting]
    assert b"HTTP/1.1 408 " in answers
    assert set(answers) <= {b"HTTP/1.1 408 ", b"HTTP/1.1 503 "}
    for raw in waiting:
        raw.socket.close()
    other.close()


def test_unread_responses_are_limited_per_user() -> None:
    settings = Settings(daemon=DaemonSettings(http=HttpSettings(timeout_s=60.0), requests_bytes=2_000_000))
    with gateway_in_new_folder(settings=settings) as served:
        tokens = [create_key(served.data_dir, name, name, ALL_SCOPES).token for name in ("hed", "ike")]
        callers = [HttpCaller(served.http, token) for token in tokens]
        for number in range(40):
            for caller in callers:
                caller.post("remember", {"text": f"{number} " + "word " * 3_000})
        asked = b'{"limit": 40}'
        with RawConnection(served) as raw:
            raw._token = tokens[0]
            raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            raw.send((raw.head("list", f"Content-Length: {len(asked)}") + asked) * 40)
            while (answer := callers[0].post("list", {"limit": 40})).status == 200:
                pass  # until a response no longer fits into the connection's buffers
            refused(answer, 503, "unavailable")
            assert callers[0].post("list", {"limit": 1}).status == 200
            assert callers[1].post("list", {"limit": 40}).status == 200
        while callers[0].post("list", {"limit": 40}).status != 200:
            pass  # the server notices that the client has disconnected
        for caller in callers:
            caller.close()


def test_the_documentation_page_loads_nothing_from_other_hosts(caller: HttpCaller) -> None:
    for path, (_, media_type) in PAGES.items():
        answer = caller.send("GET", path)
        assert (answer.status, answer.headers["content-type"].partition(";")[0]) == (200, media_type)
        assert answer.headers["content-security-policy"].startswith("default-src 'self';")
    named = re.findall(r'(?:src|href)="([^"]+)"', caller.send("GET", "/docs").body.decode())
    assert set(named) - {"data:,"} == PAGES.keys() - {"/docs"}
    assert caller.send("GET", "/").json() == {
        "docs": "/docs",
        "openapi": "/openapi.json",
        "page": "/page/",
        "verbs": "POST /v1/VERB",
    }
    browser = caller.send("GET", "/", Accept="text/html,*/*")
    assert (browser.status, browser.headers["location"]) == (303, "/page/")
    refused(caller.send("GET", "/docs/../app.py"), 404, "protocol")
    refused(caller.send("GET", "/docs/LICENSE"), 404, "protocol")


def test_http_and_a_client_share_one_memory(served: Served, caller: HttpCaller) -> None:
    with MemoryClient("both", endpoint=served.gateway, token=served.token) as client:
        record = client.remember("the canteen opens at noon")
        assert caller.post("get", {"user_id": "both", "ids": [record.id]}).json()[0]["text"] == record.text
