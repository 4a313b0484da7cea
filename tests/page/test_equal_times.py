"""Test the timeline when more memories share one timestamp than fit on a page."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.end_to_end.conftest import DaemonProcess, short_folder
from tests.page.browsing import Tab
from tests.page.conftest import OpenTab
from tests.page.timelines import WITHOUT_MODEL, import_messages

EQUAL = 1_400
BEFORE = AFTER = 300
"""How many memories are newer, and how many are older."""
_SCROLL = """([place, total]) => {
  const list = document.querySelector(".list");
  list.scrollTop = (place / total) * list.scrollHeight;
}"""
_LOADED = """place => {
  const rows = [...document.querySelectorAll("[role=option]")];
  return rows.some(row => Number(row.ariaPosInSet) === place + 1) && !rows.some(row => row.querySelector(".wait"));
}"""
_ROWS = """() => [...document.querySelectorAll("[role=option]")].map(row =>
  [Number(row.ariaPosInSet) - 1, Number(row.textContent.match(/number (\\d+)/)[1])])"""


def times(before: int, equal: int, after: int) -> list[datetime]:
    """Return times that are an hour apart, newest first, with one of them repeated."""
    now = datetime.now(UTC)
    found = [now - timedelta(hours=hours) for hours in range(before)]
    found += [now - timedelta(hours=before)] * equal
    return found + [now - timedelta(hours=before + 1 + hours) for hours in range(after)]


@pytest.fixture(scope="module")
def importing_daemon() -> Iterator[DaemonProcess]:
    """A daemon without a model, whose users ida and ivo imported memories with equal timestamps."""
    with short_folder() as folder:
        import_messages(Path(folder), "ida", times(BEFORE, EQUAL, AFTER))
        import_messages(Path(folder), "ivo", times(0, EQUAL, 0))
        with DaemonProcess(Path(folder), *WITHOUT_MODEL, light=True).running() as process:
            yield process


def look_at(tab: Tab, place: int, total: int) -> dict[int, int]:
    """Scroll to a position; return the numbers of the rows shown there, keyed by index."""
    tab.evaluate(_SCROLL, [place, total])
    tab.page.wait_for_function(_LOADED, arg=place)
    return dict(tab.evaluate(_ROWS))


@pytest.mark.parametrize(("user", "total"), [("ida", BEFORE + EQUAL + AFTER), ("ivo", EQUAL)])
def test_every_memory_has_one_row_that_few_requests_load(
    importing_daemon: DaemonProcess, open_tab: OpenTab, user: str, total: int
) -> None:
    tab = open_tab(importing_daemon.data_dir, user)
    expect(tab.page.locator("main")).to_contain_text(f"{total:,} memories")
    tab.settle()
    rows: dict[int, int] = {}
    for place in (total // 2, total - EQUAL // 3, total // 2 - 130, total - 200, 150):
        asked = tab.verbs().count("list")
        rows |= look_at(tab, place, total)
        assert tab.verbs().count("list") - asked <= 12
    place, first = total - 20, total
    while first > 0:  # the rows of each look overlap with those of the look before
        seen = look_at(tab, place, total)
        assert all(rows.get(index, number) == number for index, number in seen.items())
        rows |= seen
        first = min(seen)
        place = max(0, first - (max(seen) - place) + 2)
    assert sorted(rows) == sorted(rows.values()) == list(range(total))
