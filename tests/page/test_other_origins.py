"""Test that pages of other origins get nothing from the daemon, even if they are served from its host or from a name
that resolves to it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from urllib.parse import urlsplit

import pytest
from http_caller import HttpCaller
from playwright.sync_api import Page, expect

from memory_agent import MemoryClient
from tests.page.browsing import REBOUND, Tab
from tests.page.conftest import Filled
from tests.page.stranger import Stranger, another_program

_ATTEMPTS = """async ([target, key]) => {
  const erase = JSON.stringify({ user_id: "orla", selection: { everything: true } });
  const keyed = { "content-type": "application/json", "x-page-key": key };
  const attempts = {
    session: ["/page/session", {}],
    "session with the key": ["/page/session", { headers: keyed }],
    "session, no-cors": ["/page/session", { mode: "no-cors" }],
    list: ["/v1/list", { method: "POST", headers: keyed, body: '{"user_id": "orla"}' }],
    erase: ["/v1/erase", { method: "POST", mode: "no-cors", body: erase }],
    "sign out": ["/page/session", { method: "DELETE" }],
    "sign in": ["/page/session", { method: "POST", mode: "no-cors", body: '{"token": "mine"}' }],
    ticket: ["/page/ticket", { method: "POST", mode: "no-cors" }],
    events: ["/v1/events?user_id=*", {}],
  };
  const found = {};
  for (const [name, [path, options]] of Object.entries(attempts)) {
    found[name] = await fetch(target + path, { credentials: "include", ...options }).then(
      async (answer) => `${answer.type} ${answer.status} ${await answer.text()}`.slice(0, 200), () => "refused");
  }
  return found;
}"""
_STATUS = """([path, method, key]) =>
  fetch(path, { method, headers: { "x-page-key": key } }).then((answer) => answer.status)"""


@pytest.fixture(scope="module")
def stranger() -> Iterator[Stranger]:
    with another_program(b"<!doctype html><title>Another page</title><h1>Another page</h1>") as stranger:
        yield stranger


@pytest.fixture(scope="module")
def page(shared_tab: Tab, stranger: Stranger) -> Iterator[Page]:
    """The stranger's page, in the signed-in browser profile."""
    page = shared_tab.page.context.new_page()
    page.goto(stranger.url)
    yield page
    page.close()


@pytest.fixture
def victim(filled_daemon: Filled, any_tab: Tab) -> Iterator[Tab]:
    """A signed-in tab of a user with one memory, which must still exist after the test."""
    with MemoryClient("orla", data_dir=filled_daemon.data_dir) as client:
        client.remember("Orla's secret", id="secret")
        any_tab.switch_user("orla")
        yield any_tab
        assert [record.text for record in client.list().records] == ["Orla's secret"]
    any_tab.page.bring_to_front()  # a hidden tab renders once a second
    any_tab.show("search", q="secret")
    expect(any_tab.page.locator("#result-0")).to_contain_text("Orla's secret")  # still signed in


def test_a_page_on_another_port_of_the_host_gets_nothing(victim: Tab, page: Page) -> None:
    key = victim.evaluate("() => localStorage.getItem('memory-agent.page-key')")
    assert page.evaluate("() => localStorage.length") == 0
    answers = page.evaluate(_ATTEMPTS, [victim.url, key])
    assert {answer for answer in answers.values() if not answer.startswith("opaque 0")} == {"refused"}, answers
    assert "secret" not in json.dumps(answers)


def test_a_page_on_another_port_frames_nothing_and_reads_no_window(victim: Tab, page: Page) -> None:
    shown = page.evaluate(
        """target => new Promise(done => {
          const frame = document.createElement("iframe");
          frame.onload = () => { try { done(frame.contentDocument.body.textContent); } catch { done("unreadable"); } };
          frame.src = `${target}/page/`;
          document.body.append(frame);
        })""",
        victim.url,
    )
    framed = page.frames[-1]
    assert shown == "unreadable"
    assert framed.url.startswith("chrome-error:")
    with page.expect_popup() as opened:
        page.evaluate("target => { window.other = open(`${target}/page/#/timeline`); }", victim.url)
    opened.value.locator("main h1").wait_for()
    read = page.evaluate("() => { try { return window.other.document.title; } catch { return 'unreadable'; } }")
    assert read == "unreadable"
    page.evaluate("() => window.other.postMessage({ token: 'x' }, '*')")
    opened.value.close()


@pytest.mark.usefixtures("page")
def test_the_cookie_is_worthless_to_a_server_on_another_port(victim: Tab, stranger: Stranger) -> None:
    _, _, cookie = stranger.seen[-1]  # a host name has one cookie jar for all its ports
    assert cookie.startswith(f"memory_agent_{urlsplit(victim.url).port}=")
    with closing(HttpCaller(victim.url)) as caller:
        for headers in ({}, {"X-Page-Key": "guessed"}, {"X-Page-Key": cookie.partition("=")[2]}):
            assert caller.post("list", {"user_id": "orla"}, Cookie=cookie, **headers).status == 401
            assert caller.send("GET", "/page/session", Cookie=cookie, **headers).status == 401


def test_a_name_that_resolves_to_the_host_gets_no_page_and_no_answer(victim: Tab) -> None:
    rebound = f"http://{REBOUND}:{urlsplit(victim.url).port}"
    page = victim.page.context.new_page()
    answer = page.goto(f"{rebound}/page/")
    assert answer is not None
    assert answer.status == 421
    assert page.locator("script").count() == 0
    for path, method in (("session", "GET"), ("ticket", "POST"), ("app.js", "GET"), ("../v1/list", "POST")):
        assert page.evaluate(_STATUS, [f"/page/{path}", method, "guessed"]) == 421
    page.close()
