"""Test page addresses with values that no link on the page contains."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.page.browsing import Tab
from tests.page.hostile import INVISIBLE


@pytest.mark.parametrize("name", ["__proto__", "constructor", "nothing"])
def test_the_map_is_coloured_by_kind_if_the_address_names_no_column(tab: Tab, name: str) -> None:
    tab.show("map", by=name)
    expect(tab.page.get_by_label("Colour by")).to_have_value("kind")
    tab.show("timeline")
    expect(tab.page.get_by_role("heading", name="Timeline")).to_be_visible()


@pytest.mark.parametrize(
    ("view", "params"),
    [
        ("timeline", {"source": "a\u202eb,c\u200bd"}),
        ("timeline", {"kind": "e\u2066f"}),
        ("search", {"least": "\u202e"}),
    ],
)
def test_what_an_address_names_is_shown_with_its_invisible_characters(
    tab: Tab, view: str, params: dict[str, str]
) -> None:
    tab.expected = ("422", "cannot be parsed")
    tab.show(view, q="text", **params)
    assert [ascii(text) for text in tab.texts() if INVISIBLE.search(text.replace("\u200d", ""))] == []
