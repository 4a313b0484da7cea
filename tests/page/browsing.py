"""A signed-in tab in a real Chromium, which records a page's forbidden actions."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import msgspec
import pytest
from http_caller import HttpCaller
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Dialog, Page, Request, expect

from memory_agent.layout import Layout
from ops.bench.page import open_chromium

VIEWS = ("timeline", "search", "map", "runs", "sessions", "live", "learned", "shared", "quarantine", "erase", "health")
DESKTOP, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 844}
REBOUND = "rebound.example"
"""A name that the browser resolves to this machine."""
PATIENCE_MS = 60_000
ENDLESS = ("/v1/events", "/v1/blocks", "/page/session")
"""Paths of responses that are not read to the end."""

_NEXT_FRAME = "() => new Promise((done) => requestAnimationFrame(() => setTimeout(done)))"
_IS_LOADING = """() => new Promise((done) => requestAnimationFrame(() => setTimeout(() =>
  done([...document.querySelectorAll("[role=status]")].some((one) => one.textContent.endsWith("…"))))))"""
_FOUND = "() => [...checks.violations, ...checks.intruders(), ...[window.pwned].flat().filter(Boolean)]"
_SIGN_OUT = """async () => {
  const { sessionState, signOut } = await import("/page/api.js");
  if (sessionState.get().state === "signed-in") await signOut();
  else sessionState.set({ isKept: false });
  localStorage.clear();
  history.replaceState(null, "", "#/");  // without an event, which might find the next ticket
}"""
_CHECKS = Path(__file__).with_name("checks.js")


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start the system's Chromium. Without Chromium, the test is skipped, or fails under CI."""
    expect.set_options(timeout=PATIENCE_MS)
    with ExitStack() as stack:
        try:
            browser = stack.enter_context(open_chromium(f"--host-resolver-rules=MAP {REBOUND} 127.0.0.1"))
        except FileNotFoundError as error:
            (pytest.fail if os.environ.get("CI") else pytest.skip)(str(error))
        yield browser


class Tab:
    """One page. `problems` collects errors, dialogs and requests that must not occur; `check` fails if there is any."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.problems: list[str] = []
        self.expected: tuple[str, ...] = ()
        """Words that identify problems that a test causes on purpose."""
        self.requests: list[Request] = []
        self._under_way: set[Request] = set()
        page.set_default_timeout(PATIENCE_MS)
        page.add_init_script(path=_CHECKS)
        page.on("dialog", self._on_dialog)
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        page.on("request", self._on_request)
        page.on("requestfinished", self._on_request_end)
        page.on("requestfailed", self._on_request_end)

    def sign_in(self, token: str, user: str) -> None:
        """Open a link with a ticket or a key. If the page is loaded, it is signed out, and not loaded again."""
        if self.page.url.startswith(self.url):
            self.evaluate(_SIGN_OUT)
        self.page.goto(f"{self.url}/page/#token={token}&user={user}")
        self.page.wait_for_selector(".shell main h1")
        self.settle()

    def show(self, view: str, /, **params: str) -> None:
        """Go to a view the way a link does, and wait until it has loaded."""
        query = f"?{urlencode(params)}" if params else ""
        self.page.evaluate("hash => { document.activeElement.blur(); location.hash = hash; }", f"#/{view}{query}")
        self.settle()

    def switch_user(self, user: str) -> None:
        """Show the memory of another user, as the field in the navigation does."""
        self.page.evaluate("user => import('/page/api.js').then((api) => api.switchUser(user))", user)
        self.settle()

    def settle(self) -> None:
        """Wait until no request is under way and the page shows no loading indicator."""
        until_s = time.monotonic() + PATIENCE_MS / 1_000
        calm_frames = 0
        while calm_frames < 2:
            assert time.monotonic() < until_s, [one.url for one in self._under_way]
            is_busy = self.page.evaluate(_IS_LOADING) or self._under_way
            calm_frames = 0 if is_busy else calm_frames + 1

    def press(self, *keys: str) -> None:
        """Press keys one after the other, once the page is rendered and handles them."""
        self.page.evaluate(_NEXT_FRAME)
        for key in keys:
            self.page.keyboard.press(key)

    def text(self, selector: str = "body") -> str:
        """Unfold an element, and return its text with whitespace collapsed."""
        while (button := self.page.locator(f"{selector} button.link", has_text="more characters)")).count():
            button.first.click()
        return " ".join(str(self.page.locator(selector).first.text_content()).split())

    def texts(self, selector: str = "body") -> list[str]:
        """Return every text node, title and label in an element."""
        texts: list[str] = self.page.evaluate("selector => checks.texts(selector)", selector)
        return texts

    def verbs(self) -> list[str]:
        """Return the verbs that the page has called."""
        paths = [urlsplit(one.url).path for one in self.requests]
        return [path.removeprefix("/v1/") for path in paths if path.startswith("/v1/")]

    def evaluate(self, expression: str, argument: object = None) -> Any:
        """Evaluate JavaScript in the page."""
        return self.page.evaluate(expression, argument)

    def forget_problems(self) -> None:
        """Begin another test."""
        self.problems.clear()
        self.requests.clear()
        self.expected = ()

    def check(self) -> None:
        """Fail if the page did anything that it must not do."""
        found = [one for one in self.problems if not any(word in one for word in self.expected)]
        found += self.page.evaluate(_FOUND)
        assert not found, found

    def _on_dialog(self, dialog: Dialog) -> None:
        self.problems.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(f"console: {message.text}")

    def _on_request(self, request: Request) -> None:
        self.requests.append(request)
        target = urlsplit(request.url)
        if target.scheme in ("http", "https") and f"{target.scheme}://{target.netloc}" != self.url:
            self.problems.append(f"request: {request.url}")
        if target.scheme in ("http", "https") and not (request.method == "GET" and target.path in ENDLESS):
            self._under_way.add(request)

    def _on_request_end(self, request: Request) -> None:
        self._under_way.discard(request)


def address(data_dir: Path) -> str:
    """Return the HTTP address of the daemon of a folder."""
    return Layout(data_dir).http.read_text().strip()


def post(data_dir: Path, path: str, fields: object = None) -> Any:
    """Send a request with the token of a daemon's folder; return the answer."""
    with closing(HttpCaller(address(data_dir), Layout(data_dir).token())) as caller:
        answer = caller.send("POST", path, b"" if fields is None else msgspec.json.encode(fields))
    assert answer.status == 200, answer
    return answer.json()


def ticket(data_dir: Path) -> str:
    """Get a ticket in the same way as `memory-agent open`."""
    ticket: str = post(data_dir, "/page/ticket")["ticket"]
    return ticket


def publish(data_dir: Path, *events: Mapping[str, Any]) -> None:
    """Publish events. They are durable on return."""
    assert post(data_dir, "/v1/events", {"events": events})["refused"] == 0


def signed_in(context: BrowserContext, data_dir: Path, user: str) -> Tab:
    """Open the page in a new tab as `memory-agent open` does."""
    tab = Tab(context.new_page(), address(data_dir))
    tab.sign_in(ticket(data_dir), user)
    return tab
