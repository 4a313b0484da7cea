"""Test a long timeline, memories with equal timestamps, and a live feed with many events."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from memory_agent import MemoryClient
from tests.end_to_end.conftest import DaemonProcess, short_folder
from tests.page.browsing import DESKTOP, Tab, publish, signed_in
from tests.page.timelines import WITHOUT_MODEL, import_messages

MEMORIES = 5_000
EVENTS = 2_000
PAGE = 100
EQUAL = 1_100
BEFORE = AFTER = 300
"""How many of ida's memories share one timestamp, more than fit on a page; and how many are newer and older."""
TALL = {"width": 1280, "height": 1_600}
MOST_ELEMENTS = 1_500
"""Limit for the whole document; a row of the timeline has eight elements."""
_SCROLL = """(share) => new Promise((done) => {
  const list = document.querySelector(".list");
  list.scrollTop = list.scrollHeight * share;
  requestAnimationFrame(() => requestAnimationFrame(done));  // the rows follow the scroll event
})"""
_LOADED = "() => document.querySelector('[role=option] .what') && !document.querySelector('[role=option] .wait')"
_SCROLL_TO = """([place, total]) => {
  const list = document.querySelector(".list");
  list.scrollTop = (place / total) * list.scrollHeight;
}"""
_LOADED_AT = """place => {
  const rows = [...document.querySelectorAll("[role=option]")];
  return rows.some(row => Number(row.ariaPosInSet) === place + 1) && !rows.some(row => row.querySelector(".wait"));
}"""
_ROWS = """() => [...document.querySelectorAll("[role=option]")].map(row =>
  [Number(row.ariaPosInSet) - 1, Number(row.textContent.match(/number (\\d+)/)[1])])"""
_ELEMENTS = "() => document.querySelectorAll('*').length"


def times(before: int, equal: int, after: int) -> list[datetime]:
    """Return times that are an hour apart, newest first, with one of them repeated."""
    now = datetime.now(UTC)
    hours = [*range(before), *[before] * equal, *range(before + 1, before + 1 + after)]
    return [now - timedelta(hours=number) for number in hours]


@pytest.fixture(scope="module")
def long_daemon() -> Iterator[DaemonProcess]:
    """A daemon without a model, whose user lena has many memories, one per hour. Of ida's memories, some share one
    timestamp; of ivo's, all.
    """
    with short_folder() as folder:
        import_messages(Path(folder), "lena", times(MEMORIES, 0, 0))
        import_messages(Path(folder), "ida", times(BEFORE, EQUAL, AFTER))
        import_messages(Path(folder), "ivo", times(0, EQUAL, 0))
        with DaemonProcess(Path(folder), *WITHOUT_MODEL, light=True).running() as process:
            yield process


@pytest.fixture(scope="module")
def lena(browser: Browser, long_daemon: DaemonProcess) -> Iterator[Tab]:
    with browser.new_context(viewport=DESKTOP) as context:
        tab = signed_in(context, long_daemon.data_dir, "lena")
        yield tab
        tab.check()


def rows(tab: Tab) -> int:
    return tab.page.locator("[role=option]").count()


def lists(tab: Tab) -> int:
    """Return how many pages of memories were read."""
    limits = [one.post_data_json.get("limit") for one in tab.requests if one.url.endswith("/v1/list")]
    return sum(1 for limit in limits if limit and limit > 1)


def test_a_long_timeline_has_few_rows_in_the_document_and_reads_pages_where_it_is_looked_at(lena: Tab) -> None:
    lena.show("timeline")
    expect(lena.page.locator("main")).to_contain_text(f"{MEMORIES:,} memories")
    expect(lena.page.locator("[role=option]").first).to_contain_text("Memory number 0")
    assert rows(lena) < 60
    assert lists(lena) <= 3
    seen = lists(lena)
    lena.evaluate("() => { document.querySelector('.list').scrollTop = 1e9; }")
    expect(lena.page.get_by_role("option").last).to_contain_text(f"Memory number {MEMORIES - 1}")
    lena.settle()
    assert lists(lena) - seen <= 4
    lena.page.locator(".list").focus()
    for step in range(1, 11):
        lena.evaluate(_SCROLL, step / 11)
        lena.page.wait_for_function(_LOADED)
        assert rows(lena) < 60
    assert lena.evaluate(_ELEMENTS) < MOST_ELEMENTS
    texts = lena.page.locator("[role=option] .what").all_text_contents()
    numbers = [int(text.removeprefix("Memory number ")) for text in texts]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))  # in order, without repeats or gaps
    lena.press("Home")
    expect(lena.page.locator("[role=option]").first).to_contain_text("Memory number 0")


def test_the_bars_of_the_timeline_count_every_memory_and_loaded_ones_without_a_request(lena: Tab) -> None:
    for params, total in (({}, MEMORIES), ({"session": "session-7"}, 50)):
        lena.requests.clear()
        lena.show("timeline", **params)
        bars = lena.page.locator(".density i")
        expect(bars).to_have_count(60)
        titles = bars.evaluate_all("bars => bars.map(bar => bar.title)")
        assert sum(int(title.split(": ")[-1].split()[0].replace(",", "")) for title in titles) == total
    filters = [one.post_data_json["filter"] for one in lena.requests if one.url.endswith("/v1/list")]
    assert filters
    assert not any("until" in one for one in filters)


def test_a_long_list_of_sessions_has_few_rows_in_the_document(lena: Tab) -> None:
    lena.show("sessions")
    expect(lena.page.locator("main")).to_contain_text("100 sessions")
    assert rows(lena) < 60
    lena.show("sessions", id="session-7")
    expect(lena.page.locator("main")).to_contain_text("Memory number 375")


def test_a_map_of_memories_without_vectors_says_so(lena: Tab) -> None:
    lena.show("map")
    expect(lena.page.locator("main")).to_contain_text("No memory has a vector yet")


def test_a_live_feed_keeps_the_newest_rows_and_pauses(long_daemon: DaemonProcess, lena: Tab) -> None:
    lena.show("live")
    lena.page.get_by_text("Following").wait_for()
    event = {"user_id": "lena", "event_type": "note.taken"}
    publish(long_daemon.data_dir, event | {"payload": {"text": "the first note"}})
    lena.page.get_by_text("the first note").wait_for()
    lena.press("p")
    for begin in range(0, EVENTS, 500):
        publish(
            long_daemon.data_dir,
            *(event | {"payload": {"text": f"note {number}"}} for number in range(begin, begin + 500)),
        )
    resume = lena.page.get_by_role("button", name=f"Resume ({EVENTS} new)")
    resume.wait_for()
    assert lena.page.locator(".feed-row").count() == 1
    resume.click()
    lena.page.get_by_text(f"note {EVENTS - 1}").wait_for()
    assert lena.page.locator(".feed-row").count() <= 360
    assert lena.page.get_by_text("the first note").count() == 0
    assert lena.evaluate(_ELEMENTS) < 5_000
    expect(lena.page.locator("main")).to_contain_text(f"{EVENTS + 1:,} events")
    lena.page.get_by_label("Show only").fill(f"note {EVENTS - 1}")
    expect(lena.page.locator(".feed-row")).to_have_count(1)
    with MemoryClient("lena", data_dir=long_daemon.data_dir) as client:
        assert client.stats().memories == MEMORIES  # a note is no memory


def look_at(tab: Tab, place: int, total: int) -> dict[int, int]:
    """Scroll to a position, and return the number of each row shown there, by index."""
    tab.evaluate(_SCROLL_TO, [place, total])
    tab.page.wait_for_function(_LOADED_AT, arg=place)
    return dict(tab.evaluate(_ROWS))


@pytest.fixture
def tall_tab(lena: Tab) -> Iterator[Tab]:
    """The timeline in a window that shows many rows."""
    lena.page.set_viewport_size(TALL)
    lena.show("timeline")
    yield lena
    lena.page.set_viewport_size(DESKTOP)
    lena.switch_user("lena")


@pytest.mark.parametrize(("user", "total"), [("ida", BEFORE + EQUAL + AFTER), ("ivo", EQUAL)])
def test_every_memory_has_one_row_that_few_requests_load_if_many_share_a_timestamp(
    tall_tab: Tab, user: str, total: int
) -> None:
    tab = tall_tab
    tab.switch_user(user)
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
