"""Test how browsers sign in: tickets, the two secrets of a session, refusal of other sites' requests, and restarts."""

from __future__ import annotations

import http.client
import json
import stat
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest
from http_caller import Answer, HttpCaller
from served_gateway import Served, gateway_in_new_folder, gateway_without_ray
from served_host import absent_embedder
from structlog.testing import capture_logs

from memory_agent.doors.http.page.sessions import MOST_OF_A_KEY, SESSION_S, TICKET_S, Secrets, Sessions
from memory_agent.layout import Layout
from memory_agent.version import VERSION
from relay import ALL_SCOPES, Scope, create_key, revoke_key

PORT = 7430
NOW_S = 1_800_000_000.0
REQUESTS = (
    ("POST", "/v1/stats", b"{}"),
    ("POST", "/v1/remember", b'{"text": "shown on the page"}'),
    ("POST", "/v1/events", b'{"events": []}'),
    ("GET", "/v1/events?user_id=*", None),
    ("GET", "/v1/blocks", None),
    ("POST", "/mcp", b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}'),
    ("GET", "/page/session", None),
)
"""A request for each kind of route that needs a key."""


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with gateway_in_new_folder() as served:
        yield served


def sent(url: str, method: str, path: str, body: bytes | None = None, **headers: str) -> Answer:
    """Send one request without a token."""
    with closing(HttpCaller(url)) as caller:
        return caller.send(method, path, body, **headers)


def ticket_of(url: str, token: str) -> str:
    answer = sent(url, "POST", "/page/ticket", Authorization=f"Bearer {token}")
    assert (answer.status, answer.json()["expires_in_s"]) == (200, TICKET_S)
    ticket: str = answer.json()["ticket"]
    return ticket


class Browser:
    """Sends requests with the headers that a signed-in browser sends, with some of them altered."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.cookie = self.page_key = self.attributes = ""

    def sign_in(self, token: str, **headers: str) -> Answer:
        body = msgspec.json.encode({"token": token})
        answer = sent(self.url, "POST", "/page/session", body, **headers)
        if answer.status == 200:
            self.cookie, _, self.attributes = answer.headers["set-cookie"].partition("; ")
            self.page_key = answer.json()["page_key"]
        return answer

    def send(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Answer:
        return sent(self.url, method, path, body, **self._headers(headers))

    def stats(self, **headers: str) -> Answer:
        return self.send("POST", "/v1/stats", b"{}", **headers)

    def status(self, method: str, path: str, body: bytes | None, **headers: str) -> int:
        """Return the status of a response, which may be an endless stream."""
        with closing(http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=30)) as connection:
            connection.request(method, path, body, {"Content-Type": "application/json"} | self._headers(headers))
            with connection.getresponse() as answer:
                return answer.status

    def _headers(self, changed: dict[str, str]) -> dict[str, str]:
        own = {"Cookie": self.cookie, "X-Page-Key": self.page_key, "Sec-Fetch-Site": "same-origin"}
        headers = own | {name.replace("_", "-"): value for name, value in changed.items()}
        return {name: value for name, value in headers.items() if value}


@pytest.fixture
def browser(served: Served) -> Browser:
    browser = Browser(served.http)
    assert browser.sign_in(served.token).status == 200
    return browser


def unauthorized(answer: Answer) -> str:
    assert (answer.status, answer.code) == (401, "unauthorized"), answer
    detail: str = answer.json()["detail"]
    return detail


def test_a_ticket_signs_in_once(served: Served) -> None:
    ticket = ticket_of(served.http, served.token)
    browser = Browser(served.http)
    assert browser.sign_in(ticket).json() == {
        "user_id": None,
        "scopes": sorted(ALL_SCOPES),
        "page_key": browser.page_key,
        "version": VERSION,
    }
    assert browser.stats().json()["user_id"] == "default"
    assert "the ticket was used or has expired" in unauthorized(Browser(served.http).sign_in(ticket))
    assert browser.stats().status == 200


def test_a_ticket_is_given_for_a_bearer_token_alone(served: Served, browser: Browser) -> None:
    unauthorized(browser.send("POST", "/page/ticket"))  # otherwise a session could prolong itself
    unauthorized(sent(served.http, "POST", "/page/ticket", Authorization="Bearer wrong"))


def test_a_key_signs_in_with_its_user_and_scopes(served: Served) -> None:
    reader = create_key(served.data_dir, "reader", "rita", frozenset({Scope.RECALL})).token
    browser = Browser(served.http)
    expected = {"user_id": "rita", "scopes": ["recall"], "version": VERSION}
    assert expected.items() <= browser.sign_in(f" {reader}\n").json().items()
    shown = browser.send("GET", "/page/session").json()
    assert shown == {**expected, "page_key": browser.page_key}
    assert browser.stats().json()["user_id"] == "rita"
    refused = browser.send("POST", "/v1/remember", b'{"text": "x"}')
    assert (refused.status, refused.code) == (403, "scope_missing")
    other = browser.send("POST", "/v1/stats", b'{"user_id": "default"}')
    assert (other.status, other.code) == (403, "user_not_allowed")


def test_the_cookie_is_hidden_from_scripts_and_from_other_sites(served: Served, browser: Browser) -> None:
    assert browser.cookie.startswith(f"memory_agent_{urlsplit(served.http).port}=")
    assert browser.attributes == f"Path=/; HttpOnly; SameSite=Strict; Max-Age={SESSION_S}"
    assert "; Secure;" in Sessions(Path("none"), PORT, is_tls=True).set_cookie("x")


@pytest.mark.parametrize(("method", "path", "body"), REQUESTS)
def test_every_route_needs_the_cookie_and_the_page_key(
    served: Served, browser: Browser, method: str, path: str, body: bytes | None
) -> None:
    other = Browser(served.http)
    other.sign_in(served.token)
    assert browser.status(method, path, body) == 200
    assert browser.status(method, path, body, **{"X-Page-Key": ""}) == 401
    assert browser.status(method, path, body, Cookie="") == 401
    assert browser.status(method, path, body, **{"X-Page-Key": other.page_key}) == 401
    assert browser.status(method, path, body, Cookie=browser.cookie.replace("memory_agent_", "x")) == 401
    assert browser.status(method, path, body, Authorization="Bearer wrong") == 401
    for site, status in (("none", 200), ("same-site", 403), ("cross-site", 403), ("", 200)):
        assert browser.status(method, path, body, **{"Sec-Fetch-Site": site}) == status, site


def test_a_session_is_refused_to_other_origins_and_through_other_host_names(served: Served, browser: Browser) -> None:
    own = urlsplit(served.http).netloc
    assert browser.stats(Origin=served.http).status == 200
    for origin in ("http://127.0.0.1:1", f"http://evil.example:{urlsplit(served.http).port}", "null"):
        assert browser.stats(Origin=origin).status == 403
        assert browser.sign_in(served.token, Origin=origin).status == 403
        assert browser.send("DELETE", "/page/session", Origin=origin).status == 403
    for host in ("evil.example", f"evil.example:{urlsplit(served.http).port}"):
        assert browser.stats(Host=host).status == 421
        assert browser.sign_in(served.token, Host=host).status == 421
        assert browser.send("GET", "/page/", Host=host).status == 421
    for method in ("POST", "DELETE"):
        body = msgspec.json.encode({"token": served.token})
        assert browser.send(method, "/page/session", body, Sec_Fetch_Site="cross-site").status == 403
    assert browser.stats(Host=own).status == 200  # none of these requests ended the session


def test_a_revoked_key_ends_its_sessions_and_tickets(served: Served) -> None:
    token = create_key(served.data_dir, "lost", "lara", ALL_SCOPES).token
    browser = Browser(served.http)
    browser.sign_in(ticket_of(served.http, token))
    unused = ticket_of(served.http, token)
    assert browser.stats().status == 200
    revoke_key(served.data_dir, "lost")
    assert "the key lost was revoked" in unauthorized(browser.stats())
    unauthorized(browser.send("GET", "/page/session"))
    unauthorized(Browser(served.http).sign_in(unused))


def test_signing_out_ends_the_session_and_removes_the_cookie(served: Served, browser: Browser) -> None:
    other = Browser(served.http)
    other.sign_in(served.token)
    for _ in range(2):
        answer = browser.send("DELETE", "/page/session")
        assert (answer.status, answer.body) == (204, b"")
        name = browser.cookie.partition("=")[0]
        assert answer.headers["set-cookie"] == f"{name}=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0"
        assert "memory-agent open" in unauthorized(browser.stats())
    assert other.stats().status == 200


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"", {}, 422),
        (b"{", {}, 400),
        (b"[" * 4000, {}, 400),
        (b'{"token": 7}', {}, 422),
        (b'{"token": "wrong", "more": 1}', {}, 422),
        (b'{"token": ""}', {}, 401),
        ('{"token": "käse\\u0000"}'.encode(), {}, 401),
        (b'{"token": "' + b"x" * 2000 + b'"}', {}, 422),
        (b'{"token": "' + b"x" * 5000 + b'"}', {}, 413),
        (b'{"token": "wrong"}', {"Content-Type": "text/plain"}, 415),
    ],
)
def test_a_bad_sign_in_is_refused(served: Served, body: bytes, headers: dict[str, str], status: int) -> None:
    answer = sent(served.http, "POST", "/page/session", body, **headers)
    assert answer.status == status
    assert "set-cookie" not in answer.headers
    assert "wrong" not in answer.body.decode()


def test_a_restart_keeps_the_port_and_the_sessions() -> None:
    with tempfile.TemporaryDirectory(prefix="gateway-") as folder, absent_embedder(Path(folder)) as embedder:
        with gateway_without_ray(Path(folder), embedder) as first:
            browser = Browser(first.http)
            browser.sign_in(first.token)
        Layout(first.data_dir).clear_sockets()  # as a daemon does when it stops
        with gateway_without_ray(Path(folder), embedder) as second:
            assert second.http == first.http
            assert browser.stats().status == 200
            with gateway_in_new_folder() as other:
                strange = Browser(other.http)
                strange.cookie, strange.page_key = browser.cookie, browser.page_key
                unauthorized(strange.stats())


def test_no_log_line_contains_a_secret() -> None:
    with gateway_in_new_folder() as served, capture_logs() as logs:
        Layout(served.data_dir).page_sessions.mkdir()  # the sessions cannot be written, which is logged
        browser = Browser(served.http)
        ticket = ticket_of(served.http, served.token)
        browser.sign_in(ticket)
        unauthorized(browser.sign_in(ticket))
        assert browser.stats().status == 200
        secrets = [served.token, ticket, browser.cookie.partition("=")[2], browser.page_key]
        browser.send("DELETE", "/page/session")
        unauthorized(browser.stats())
    assert [line["event"] for line in logs] == ["page.sessions_not_saved"] * 4
    assert [secret for secret in secrets if secret in str(logs)] == []


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "page-sessions"


def test_tickets_and_sessions_expire(path: Path) -> None:
    sessions = Sessions(path, PORT, is_tls=False)
    ticket, kept = sessions.give_ticket("laptop", "t", NOW_S), sessions.give_ticket("laptop", "t", NOW_S)
    assert sessions.take_ticket(ticket, NOW_S + TICKET_S) is None
    assert sessions.take_ticket(kept, NOW_S + TICKET_S - 1) == "t"
    begun = sessions.begin("laptop", "t", NOW_S)
    assert sessions.token(begun, NOW_S + SESSION_S - 1) == "t"
    assert sessions.token(begun, NOW_S + SESSION_S) is None
    sessions.begin("phone", "u", NOW_S + SESSION_S)
    assert len(json.loads(path.read_bytes().splitlines()[0])) == 1  # expired ones are removed


def test_tickets_and_sessions_last_at_most_twice_as_long_after_the_clock_was_set_back(path: Path) -> None:
    sessions = Sessions(path, PORT, is_tls=False)
    ticket, begun = sessions.give_ticket("laptop", "t", NOW_S), sessions.begin("laptop", "t", NOW_S)
    assert sessions.take_ticket(ticket, NOW_S - TICKET_S - 1) is None
    assert sessions.token(begun, NOW_S - SESSION_S) == "t"
    long_ago_s = NOW_S - 10 * 365 * 86_400
    assert sessions.token(begun, long_ago_s) is None
    assert sessions.take_ticket(ticket, long_ago_s) is None
    assert sessions.token(sessions.begin("laptop", "t", long_ago_s), long_ago_s) == "t"
    assert sessions.token(begun, NOW_S) is None


def test_each_key_has_a_bounded_number_of_sessions_and_tickets(path: Path) -> None:
    sessions = Sessions(path, PORT, is_tls=False)
    other = sessions.begin("phone", "u", NOW_S)
    ticket = sessions.give_ticket("laptop", "t", NOW_S)
    begun = [sessions.begin("laptop", "t", NOW_S) for _ in range(MOST_OF_A_KEY + 2)]
    assert [sessions.token(one, NOW_S) for one in begun] == [None] * 2 + ["t"] * MOST_OF_A_KEY
    assert sessions.token(other, NOW_S) == "u"
    for _ in range(MOST_OF_A_KEY - 1):
        sessions.give_ticket("laptop", "t", NOW_S)
    assert sessions.take_ticket(ticket, NOW_S) == "t"


def test_a_ticket_is_no_session_and_a_session_no_ticket(path: Path) -> None:
    sessions = Sessions(path, PORT, is_tls=False)
    ticket, begun = sessions.give_ticket("laptop", "t", NOW_S), sessions.begin("laptop", "t", NOW_S)
    assert sessions.token(Secrets(ticket, ""), NOW_S) is None
    assert sessions.take_ticket("\n".join(begun), NOW_S) is None
    assert sessions.token(Secrets("\n".join(begun), ""), NOW_S) is None


def test_the_file_is_private_reveals_no_secret_and_is_valid_for_its_port(path: Path) -> None:
    sessions = Sessions(path, PORT, is_tls=False)
    token = "a-token-of-a-key"
    secrets = (token, sessions.give_ticket("laptop", token, NOW_S), *sessions.begin("laptop", token, NOW_S))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    stored = path.read_bytes()
    assert [secret for secret in secrets if secret.encode() in stored] == []
    assert Sessions(path, PORT, is_tls=False).token(Secrets(*secrets[2:]), NOW_S) == token
    assert Sessions(path, PORT + 1, is_tls=False).token(Secrets(*secrets[2:]), NOW_S) is None


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-70], lambda data: data.replace(b"laptop", b"tablet"), bytes.upper]
)
def test_a_damaged_file_ends_the_sessions(path: Path, damage: Any) -> None:
    begun = Sessions(path, PORT, is_tls=False).begin("laptop", "t", NOW_S)
    path.write_bytes(damage(path.read_bytes()))
    with capture_logs() as logs:
        sessions = Sessions(path, PORT, is_tls=False)
    assert [line["event"] for line in logs] == ["page.sessions_unreadable"]
    assert sessions.token(begun, NOW_S) is None
    assert sessions.token(sessions.begin("laptop", "t", NOW_S), NOW_S) == "t"
