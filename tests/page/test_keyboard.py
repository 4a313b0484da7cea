"""Test that everything on the page can be reached and used with the keyboard alone."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.page.browsing import VIEWS, Tab
from tests.page.conftest import Filled
from tests.page.hostile import FEW, shown

MOST_STOPS, PRESSES = 400, 10


def heading(tab: Tab, name: str) -> None:
    """Wait until the view with this title is shown."""
    expect(tab.page.locator("main h1").first).to_have_text(re.compile(name, re.IGNORECASE))


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_is_reached_by_its_key_and_each_control_in_it_by_tab(any_tab: Tab, view: str) -> None:
    tab = any_tab
    tab.switch_user(FEW)
    if tab.page.url.endswith(f"/{view}"):
        tab.show("nowhere")
    key = tab.page.locator(f"nav a[href='#/{view}'] kbd").text_content()
    tab.evaluate("() => document.activeElement.blur()")
    tab.press(*str(key).split())
    heading(tab, view)
    tab.settle()
    tab.evaluate("() => { document.activeElement.blur(); getSelection().removeAllRanges(); }")
    names = {one["number"]: one["name"] for one in tab.evaluate("() => checks.controls()")}
    stops: list[dict[str, Any]] = []
    for _ in range(0, MOST_STOPS, PRESSES):
        for _ in range(PRESSES):
            tab.page.keyboard.press("Tab")
        stops = tab.evaluate("() => checks.stops")
        if len({one["number"] for one in stops}) < len(stops):  # wrapped around
            break
    reached = {one["number"] for one in stops}
    assert [name for number, name in names.items() if number not in reached] == []
    assert [names[one["number"]] for one in stops if not one["isSeen"]] == []


def test_the_help_opens_with_a_question_mark_and_closes_with_escape(tab: Tab) -> None:
    tab.show("timeline")
    tab.press("?")
    dialog = tab.page.get_by_role("dialog", name="Keys")
    expect(dialog).to_be_visible()
    text = str(dialog.text_content())
    assert [title for title in ("Timeline", "Quarantine", "Map") if title not in text] == []
    tab.press("g", "q")  # keys have no effect on the view behind a dialog
    tab.press("Escape")
    expect(dialog).to_have_count(0)
    heading(tab, "timeline")


def test_the_timeline_is_moved_through_and_opened(tab: Tab) -> None:
    tab.show("timeline")
    titles = tab.page.locator("[role=option] .what").all_text_contents()
    tab.press("j", "j", "k", "j", "Enter")
    pane = tab.page.locator("aside")
    expect(pane).to_contain_text(shown(titles[1])[:40])
    tab.press("j")
    expect(pane).to_contain_text(shown(titles[2])[:40])
    tab.press("Escape")
    expect(pane).to_have_count(0)
    assert tab.page.locator("[aria-selected=true]").count() == 1


def test_enter_opens_the_selected_row_after_a_button_was_clicked(tab: Tab) -> None:
    for view in ("timeline", "runs"):
        tab.show(view)
        for _ in range(2):  # to dark and back
            tab.page.get_by_role("button", name=re.compile("^(Dark|Light)$")).click()
        theme = tab.page.locator("html").get_attribute("data-theme")
        tab.press("j", "Enter")
        tab.page.wait_for_function("view => location.hash.startsWith(`#/${view}?`)", arg=view)
        assert tab.page.locator("html").get_attribute("data-theme") == theme
        tab.settle()


def test_the_help_closes_when_the_address_changes(tab: Tab) -> None:
    tab.show("timeline")
    tab.press("?")
    dialog = tab.page.get_by_role("dialog", name="Keys")
    expect(dialog).to_be_visible()
    tab.evaluate("() => { location.hash = '#/health'; }")
    expect(dialog).to_have_count(0)
    heading(tab, "health")


def test_commands_and_names_are_for_the_user_shown(tab: Tab) -> None:
    user = tab.page.get_by_title("The user whose memory is shown")
    mine = user.input_value()
    for name, option in (("default", []), ("nobody@here", ["--user nobody@here"])):
        user.fill(name)
        tab.press("Enter")
        for view in ("timeline", "search", "map", "runs", "sessions", "live", "shared"):
            tab.show(view)
            command = tab.page.locator(".command code")
            expect(command).to_contain_text("memory-agent")
            assert re.findall(r"--user \S+", str(command.text_content())) == option, view
    user.fill("a b; rm")
    tab.press("Enter")
    expect(tab.page.locator(".toasts")).to_contain_text("ASCII letters")
    expect(user).to_have_value("nobody@here")
    tab.switch_user(mine)


def test_a_search_is_typed_and_its_results_are_opened(tab: Tab) -> None:
    tab.show("health")
    tab.press("/")
    query = tab.page.get_by_label("What to recall")
    expect(query).to_be_focused()
    tab.page.keyboard.type("toString g t ?")
    tab.press("Enter")
    expect(query).to_have_value("toString g t ?")  # shortcuts are inactive while text is being typed
    tab.page.locator("#result-0").wait_for()
    tab.settle()
    tab.press("Escape", "j", "Enter")
    expect(tab.page.locator("aside")).to_contain_text("toString")
    tab.press("Escape")
    expect(tab.page.locator("aside")).to_have_count(0)
    tab.press("/")
    expect(query).to_be_focused()


def test_a_run_and_a_session_are_opened_and_left(tab: Tab, filled_daemon: Filled) -> None:
    for view in ("runs", "sessions"):
        tab.show(view)
        tab.press("j", "Enter")
        tab.page.wait_for_function("view => location.hash.startsWith(`#/${view}?`)", arg=view)
        tab.settle()
        tab.press("Escape")
        tab.page.wait_for_function("view => location.hash === `#/${view}`", arg=view)


def test_the_theme_is_turned(tab: Tab) -> None:
    tab.show("timeline")
    html = tab.page.locator("html")
    expect(html).to_have_attribute("data-theme", "light")
    light = tab.evaluate("() => getComputedStyle(document.body).backgroundColor")
    tab.press("t")
    expect(html).to_have_attribute("data-theme", "dark")
    assert tab.evaluate("() => getComputedStyle(document.body).backgroundColor") != light
    tab.press("t")
    expect(html).to_have_attribute("data-theme", "light")


def test_the_feed_is_paused_and_the_quarantine_selected(tab: Tab) -> None:
    tab.show("live")
    pause = tab.page.get_by_role("button", name="Pause")
    pause.wait_for()
    tab.press("p")
    tab.page.get_by_role("button", name="Resume").wait_for()
    tab.press("p")
    pause.wait_for()
    tab.show("quarantine")
    tab.press("j", "j", "x")
    expect(tab.page.get_by_role("checkbox", checked=True)).to_have_count(1)
    tab.page.get_by_role("button", name="Drop").focus()
    tab.press("Enter")
    dialog = tab.page.get_by_role("dialog")
    expect(dialog).to_be_visible()
    tab.press("Escape")
    expect(dialog).to_have_count(0)
    expect(tab.page.get_by_role("button", name="Drop")).to_be_focused()
