"""One browser and one daemon whose memory contains hostile texts, shared by all tests of the page in a process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.end_to_end.conftest import DaemonProcess, short_folder
from tests.page.browsing import DESKTOP, Tab, address, chromium, signed_in, ticket
from tests.page.hostile import FEW, TEXTS, USER, Hostile, filled, quarantine

SETTINGS = ("daemon.owner_wait_s=0.1", "relay.events.max_bytes=2000000", "daemon.http.heartbeat_s=1")
"""Events without an owner are quarantined at once."""


@dataclass(frozen=True)
class Filled:
    """A daemon, and the contents of its memories."""

    data_dir: Path
    all: dict[str, Hostile]
    """The contents of the memory of `hostile.USER`, keyed by the name of the text."""
    few: dict[str, Hostile]
    """The contents of the memory of `hostile.FEW`."""


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="package")
def filled_daemon() -> Iterator[Filled]:
    """A daemon for tests that only read, or that modify only their own users' data."""
    with short_folder() as folder, DaemonProcess(Path(folder), *SETTINGS, light=True).running() as process:
        few = filled(process.data_dir, FEW, "script", "right to left", "wide")
        everything = filled(process.data_dir, USER, *TEXTS)
        quarantine(process.data_dir)
        yield Filled(process.data_dir, everything, few)


@pytest.fixture(scope="package")
def shared_tab(browser: Browser, filled_daemon: Filled) -> Iterator[Tab]:
    with browser.new_context(viewport=DESKTOP, color_scheme="light", reduced_motion="reduce") as context:
        yield signed_in(context, filled_daemon.data_dir, USER)


@pytest.fixture
def any_tab(shared_tab: Tab) -> Iterator[Tab]:
    """A tab shared by the tests, because opening a tab costs a second. It is checked after each test, and
    still shows that test's view and user.
    """
    if shared_tab.page.viewport_size != DESKTOP:
        shared_tab.page.set_viewport_size(DESKTOP)
    shared_tab.forget_problems()
    yield shared_tab
    shared_tab.check()


@pytest.fixture
def tab(any_tab: Tab) -> Tab:
    """The shared tab, with the memory that contains hostile texts."""
    any_tab.switch_user(USER)
    return any_tab


@pytest.fixture(scope="package")
def tabs(browser: Browser) -> Iterator[dict[Path, Tab]]:
    """The tabs of `open_tab` by the daemon's folder."""
    tabs: dict[Path, Tab] = {}
    yield tabs
    for one in tabs.values():
        one.page.context.close()


OpenTab = Callable[..., Tab]


@pytest.fixture
def open_tab(browser: Browser, tabs: dict[Path, Tab]) -> Iterator[OpenTab]:
    """Sign in, using a browser profile without another session: `open_tab(data_dir, user, token=None)`.

    The tests share one such tab per daemon, and each begins with the timeline. Checked after the test, which closes
    other tabs that it opened in the profile.
    """
    opened: list[Tab] = []

    def open_one(data_dir: Path, user: str, token: str | None = None) -> Tab:
        if data_dir not in tabs:
            tabs[data_dir] = Tab(browser.new_context(viewport=DESKTOP).new_page(), address(data_dir))
        tab = tabs[data_dir]
        tab.forget_problems()
        tab.page.set_viewport_size(DESKTOP)
        tab.page.unroute_all()
        tab.sign_in(token or ticket(data_dir), user)
        opened.append(tab)
        return tab

    yield open_one
    for one in opened:
        one.check()
        for page in one.page.context.pages:
            if page != one.page:
                page.close()


@pytest.fixture(scope="package")
def mortal() -> Iterator[DaemonProcess]:
    """A daemon that tests kill and restart. Each test uses its own user."""
    with short_folder() as folder, DaemonProcess(Path(folder), light=True).running() as process:
        yield process
