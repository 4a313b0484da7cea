"""Test a page that is open when the daemon restarts, a key is revoked, the clock jumps or a view fails."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from playwright.sync_api import Browser, expect

from memory_agent import MemoryClient
from relay import ALL_SCOPES, Scope, create_key, revoke_key
from tests.end_to_end.conftest import DaemonProcess
from tests.page.browsing import DESKTOP, Tab, publish, signed_in
from tests.page.conftest import Filled, OpenTab

AWAY = ".banner"
REFUSED = ("ERR_CONNECTION", "ERR_INCOMPLETE", "ERR_EMPTY", "ERR_NETWORK", "Failed to load resource")
DAY = timedelta(days=1)


def reconnect(tab: Tab) -> None:
    """End any pause before the page's next attempt, and wait until the page is connected."""
    tab.evaluate("() => [...document.querySelectorAll('.banner button')].forEach(button => button.click())")
    expect(tab.page.locator(AWAY)).to_have_count(0)


def note(text: str, user: str = "dora") -> dict[str, object]:
    return {"user_id": user, "event_type": "note.taken", "payload": {"text": text}}


def test_a_restart_of_the_daemon_loses_nothing_typed_and_needs_no_reload(
    mortal: DaemonProcess, open_tab: OpenTab
) -> None:
    with MemoryClient("dora", data_dir=mortal.data_dir) as client:
        client.remember("Staging needs the VPN", session_id="monday")
        client.remember("The deploy takes ten minutes", session_id="tuesday")
    writing = open_tab(mortal.data_dir, "dora")
    writing.expected = REFUSED
    live, erasing = (Tab(writing.page.context.new_page(), writing.url) for _ in range(2))
    writing.show("shared", tab="publish")
    typed = {"Title": "Half a title", "Summary": "half a summary", "Body": "half a body", "Tags": "one, two"}
    fields = {text: writing.page.get_by_role("textbox", name=re.compile(f"^{label}")) for label, text in typed.items()}
    for text, field in fields.items():
        field.fill(text)
    live.page.goto(f"{writing.url}/page/#/live")
    live.page.get_by_text("Following").wait_for()
    publish(mortal.data_dir, note("before the restart"))
    live.page.get_by_text("before the restart").wait_for()
    erasing.page.goto(f"{writing.url}/page/#/erase")
    erasing.page.get_by_label("The session's id").fill("monday")
    erasing.page.locator("ol.told").get_by_text("Staging needs the VPN").first.wait_for()

    url = mortal.ready["endpoints"]["http"]
    mortal.kill()
    live.page.locator(AWAY).wait_for()
    writing.page.get_by_role("button", name="Preview").click()
    writing.page.locator("main .problem").wait_for()
    writing.page.locator(AWAY).wait_for()
    erasing.page.get_by_role("button", name="Erase …").click()  # nothing is sent yet
    erasing.page.get_by_label(re.compile("to confirm")).fill("1")

    mortal.start()
    assert mortal.ready["endpoints"]["http"] == url
    publish(mortal.data_dir, note("after the restart"))
    for tab in (writing, live):
        reconnect(tab)
    live.page.get_by_text("after the restart").wait_for()
    live.page.get_by_text("before the restart").wait_for()
    for text, field in fields.items():
        expect(field).to_have_value(text)
    writing.page.get_by_role("button", name="Preview").click()
    expect(writing.page.locator(".leaves")).to_contain_text("half a body")
    erasing.page.get_by_role("button", name="Erase", exact=True).click()
    erasing.page.get_by_role("heading", name="Receipt").wait_for()
    with MemoryClient("dora", data_dir=mortal.data_dir) as client:
        assert [record.text for record in client.list().records] == ["The deploy takes ten minutes"]


def test_a_page_opened_while_the_daemon_is_away_shows_its_data_afterwards(
    mortal: DaemonProcess, open_tab: OpenTab
) -> None:
    with MemoryClient("dana", data_dir=mortal.data_dir) as client:
        client.remember("Staging needs the VPN")
    tab = open_tab(mortal.data_dir, "dana")
    tab.expected = REFUSED
    mortal.kill()
    tab.evaluate("() => { location.hash = '#/timeline?kind=finding'; }")
    tab.page.locator(AWAY).wait_for()
    tab.evaluate("() => { location.hash = '#/search?q=VPN'; }")
    mortal.start()
    reconnect(tab)
    expect(tab.page.locator("#result-0")).to_contain_text("Staging needs the VPN")
    tab.settle()


def test_a_revoked_key_asks_for_another_and_keeps_what_was_typed(filled_daemon: Filled, open_tab: OpenTab) -> None:
    token = create_key(filled_daemon.data_dir, "lost", "rita", ALL_SCOPES).token
    with MemoryClient("rita", data_dir=filled_daemon.data_dir) as client:
        client.remember("Rita keeps bees")
    tab = open_tab(filled_daemon.data_dir, "rita", token)
    tab.expected = ("401",)
    assert not tab.page.get_by_label("User").count()  # the key is for one user
    tab.show("search")
    query = tab.page.get_by_label("What to recall")
    query.fill("who keeps bees")
    revoke_key(filled_daemon.data_dir, "lost")
    tab.press("Enter")
    dialog = tab.page.get_by_role("dialog", name="Sign in")
    dialog.wait_for()
    expect(query).to_have_value("who keeps bees")
    field = dialog.get_by_label("Or paste a key")
    field.fill("wrong")
    tab.press("Enter")
    expect(dialog.get_by_role("alert")).to_contain_text("unauthorized")
    field.fill(create_key(filled_daemon.data_dir, "found", "rita", frozenset({Scope.RECALL})).token)
    tab.press("Enter")
    expect(dialog).to_have_count(0)
    expect(query).to_have_value("who keeps bees")
    expect(tab.page.locator("#result-0")).to_contain_text("Rita keeps bees")
    tab.settle()


def test_a_stream_of_a_revoked_key_ends_with_the_sign_in_form(filled_daemon: Filled, open_tab: OpenTab) -> None:
    token = create_key(filled_daemon.data_dir, "watching", "wanda", ALL_SCOPES).token
    tab = open_tab(filled_daemon.data_dir, "wanda", token)
    tab.expected = ("401",)
    tab.show("live")
    tab.page.get_by_text("Following").wait_for()
    revoke_key(filled_daemon.data_dir, "watching")
    tab.page.get_by_role("dialog", name="Sign in").wait_for()


def test_a_key_that_only_recalls_is_offered_no_change(filled_daemon: Filled, open_tab: OpenTab) -> None:
    reader = create_key(filled_daemon.data_dir, "reading", "rolf", frozenset({Scope.RECALL})).token
    with MemoryClient("rolf", data_dir=filled_daemon.data_dir) as client:
        record = client.remember("Rolf reads")
    tab = open_tab(filled_daemon.data_dir, "rolf", reader)
    tab.show("timeline", id=record.id)
    expect(tab.page.get_by_role("button", name="Forget …")).to_be_disabled()
    tab.show("shared", tab="publish")
    expect(tab.page.get_by_role("button", name="Preview")).to_be_disabled()
    tab.show("erase")
    expect(tab.page.locator("main")).to_contain_text("lacks the scope admin")
    assert tab.page.get_by_role("button", name="Erase …").count() == 0
    for view in ("quarantine", "health"):
        tab.show(view)
        expect(tab.page.locator("main")).to_contain_text("Needs a key with the scope admin for all users")
    assert [verb for verb in tab.verbs() if verb in ("forget", "erase", "quarantine_list", "status")] == []


@pytest.fixture
def own_profile(browser: Browser, filled_daemon: Filled) -> Iterator[Tab]:
    """A tab whose clock or modules a test replaces."""
    with browser.new_context(viewport=DESKTOP) as context:
        tab = signed_in(context, filled_daemon.data_dir, "clara")
        yield tab
        tab.check()


def test_a_clock_that_jumps_changes_ages_alone(filled_daemon: Filled, own_profile: Tab) -> None:
    tab = own_profile
    with MemoryClient("clara", data_dir=filled_daemon.data_dir) as client:
        client.remember("Before the clock was set")
    tab.page.clock.install(time=datetime.now(UTC))
    for view in ("live", "health", "timeline", "erase"):
        tab.show(view)
    for jump, age in ((3 * DAY, re.compile("^3 d ago$")), (-3 * DAY, re.compile("^in [23] d$"))):
        tab.show("live")
        tab.page.get_by_text("Following").wait_for()
        tab.page.clock.set_system_time(datetime.now(UTC) + jump)
        publish(filled_daemon.data_dir, note(f"after a jump of {jump}", "clara"))
        tab.page.get_by_text(f"after a jump of {jump}").wait_for()
        tab.show("health")
        expect(tab.page.locator("main")).to_contain_text("Memory of clara")
        tab.show("timeline")
        expect(tab.page.locator("main")).to_contain_text("Before the clock was set")
        tab.show("search", q="clock")
        expect(tab.page.locator("#result-0 time")).to_have_text(age)


def test_a_view_that_throws_shows_an_error_and_the_others_work(own_profile: Tab) -> None:
    tab = own_profile
    tab.expected = ("no such point",)
    broken = 'export default { title: "Map", key: "m", view: () => { throw new Error("no such point"); } };'
    tab.page.route("**/page/map.js", lambda route: route.fulfill(content_type="text/javascript", body=broken))
    tab.page.reload()
    tab.page.wait_for_selector(".shell main h1")
    tab.show("map")
    expect(tab.page.get_by_role("alert")).to_contain_text("This view failed: no such point.")
    tab.show("sessions")
    expect(tab.page.get_by_role("alert")).to_have_count(0)
    expect(tab.page.locator("main h1")).to_have_text("Sessions")
