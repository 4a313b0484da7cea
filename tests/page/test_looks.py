"""Test every view in both themes and on a phone: nothing is cut off, and axe finds no violation."""

from __future__ import annotations

from typing import Any

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import expect

from tests.page.browsing import DESKTOP, PHONE, VIEWS, Tab
from tests.page.conftest import Filled, OpenTab
from tests.page.hostile import FEW, TEXTS, as_id

_RUN_AXE = "options => axe.run({ resultTypes: ['violations'], ...options }).then(({ violations }) => violations)"
_COLOURS = ("color-contrast", "link-in-text-block")
"""The rules whose result depends on the theme, and hardly on the size. They take most of the time."""
_ONLY_COLOURS = {"runOnly": _COLOURS}
_NO_COLOURS = {"rules": {rule: {"enabled": False} for rule in _COLOURS}}
PLACES: dict[str, tuple[str, dict[str, str]]] = {view: (view, {}) for view in VIEWS} | {
    "a search": ("search", {"q": "script"}),
    "a shared search": ("shared", {"tab": "search", "q": "script"}),
    "a publication": ("shared", {"tab": "publish"}),
    "an unknown view": ("nowhere", {}),
}


def axe(tab: Tab, **options: object) -> list[str]:
    """Return what axe finds: the rule and the first element of each violation."""
    if tab.evaluate("() => !window.axe"):
        tab.evaluate(AXE_SCRIPT)
    found: list[dict[str, Any]] = tab.evaluate(_RUN_AXE, options)
    return [f"{one['id']}: {one['nodes'][0]['html'][:120]} ({len(one['nodes'])})" for one in found]


def fits(tab: Tab) -> list[str]:
    """Return the elements that do not fit the width of the window."""
    tab.page.set_viewport_size(PHONE)
    tab.settle()
    too_wide: list[str] = tab.evaluate("() => checks.tooWide()")
    return too_wide


def looked_at(tab: Tab) -> dict[str, list[str]]:
    """Return the faults of the view shown, in both themes and at the size of a phone."""
    found = {"light": axe(tab)}
    tab.press("t")
    found["dark"] = axe(tab, **_ONLY_COLOURS)
    tab.press("t")
    found["phone"] = fits(tab) + axe(tab, **_NO_COLOURS)
    tab.page.set_viewport_size(DESKTOP)
    return {where: problems for where, problems in found.items() if problems}


@pytest.fixture
def tab(any_tab: Tab) -> Tab:
    """The shared tab, with the memory of a user who has few memories."""
    any_tab.switch_user(FEW)
    return any_tab


@pytest.mark.parametrize("place", PLACES)
def test_a_view_is_accessible_and_fits(tab: Tab, place: str) -> None:
    view, params = PLACES[place]
    tab.show(view, **params)
    tab.evaluate("() => document.activeElement.blur()")
    assert looked_at(tab) == {}


def test_a_memory_a_run_and_a_session_are_accessible_and_fit(tab: Tab, filled_daemon: Filled) -> None:
    one, wide = filled_daemon.few["right to left"], filled_daemon.few["wide"]
    found = {}
    for view, params in (
        ("timeline", {"id": one.memory_id}),
        ("timeline", {"id": wide.memory_id}),
        ("runs", {"id": wide.run_id}),
        ("sessions", {"id": f"session {one.text}"}),
        ("map", {"id": one.memory_id}),
    ):
        tab.show(view, **params)
        found[f"{view} {params}"] = looked_at(tab)
    assert found == {place: {} for place in found}


def test_an_open_memory_leaves_the_map_half_of_the_width(tab: Tab, filled_daemon: Filled) -> None:
    tab.show("map", id=filled_daemon.few["script"].memory_id)
    tab.page.locator("aside").get_by_role("heading").first.wait_for()
    width = "selector => document.querySelector(selector).getBoundingClientRect().width"
    assert tab.evaluate(width, "canvas") >= tab.evaluate(width, "main") / 2
    expect(tab.page.get_by_role("listbox", name="Nearest memories")).to_be_visible()


def test_the_dialogs_and_the_menu_are_accessible_and_fit(filled_daemon: Filled, open_tab: OpenTab) -> None:
    tab = open_tab(filled_daemon.data_dir, FEW)
    tab.page.set_viewport_size(PHONE)
    found = {}
    tab.page.get_by_role("button", name="Menu").click()
    expect(tab.page.get_by_role("link", name="Quarantine")).to_be_visible()
    found["menu"] = axe(tab) + fits(tab)
    tab.press("t")
    expect(tab.page.locator("html")).to_have_attribute("data-theme", "dark")
    found["dark menu"] = axe(tab, **_ONLY_COLOURS)  # the bar above a phone's view is on no desktop
    tab.press("t")
    expect(tab.page.locator("html")).to_have_attribute("data-theme", "light")
    tab.page.get_by_role("link", name="Erase").click()
    tab.page.get_by_label("The session's id").fill(as_id(f"session {TEXTS['script']}"))
    tab.page.get_by_role("button", name="Erase …").click()
    tab.page.get_by_role("dialog").wait_for()
    found["confirm"] = axe(tab) + fits(tab)
    tab.press("Escape")
    tab.press("?")
    tab.page.get_by_role("dialog", name="Keys").wait_for()
    found["help"] = axe(tab) + fits(tab)
    tab.press("Escape")
    tab.page.get_by_role("button", name="Menu").click()
    tab.page.get_by_role("button", name="Sign out").click()
    tab.page.get_by_role("dialog", name="Sign in").wait_for()
    found["sign in"] = axe(tab) + fits(tab)
    assert found == {place: [] for place in found}


def test_the_theme_is_the_systems_until_one_is_chosen(filled_daemon: Filled, open_tab: OpenTab) -> None:
    tab = open_tab(filled_daemon.data_dir, FEW)
    html = tab.page.locator("html")
    for scheme, other in (("light", "dark"), ("dark", "light")):
        tab.evaluate("() => localStorage.removeItem('memory-agent.theme')")
        tab.page.emulate_media(color_scheme=scheme)
        tab.page.reload()
        tab.page.locator("main h1").wait_for()  # from now on, the page follows the system
        expect(html).to_have_attribute("data-theme", scheme)
        tab.page.emulate_media(color_scheme=other)
        expect(html).to_have_attribute("data-theme", other)
        tab.press("t")
        expect(html).to_have_attribute("data-theme", scheme)
        tab.page.reload()
        expect(html).to_have_attribute("data-theme", scheme)
    tab.settle()
