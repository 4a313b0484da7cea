"""Test the timeline when more memories share one timestamp than fit on a page."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from playwright.sync_api import expect

from memory_agent.memory import Memory
from memory_agent.settings import EmbedderSettings, Settings
from memory_agent.storage.folders import user_folder
from tests.end_to_end.conftest import DaemonProcess, short_folder
from tests.page.browsing import Tab
from tests.page.conftest import OpenTab

EQUAL = 1_400
BEFORE = AFTER = 300
"""Memories of other times, newer and older ones."""
NOWHERE = EmbedderSettings(folder="no-such-model", allow_download=False)
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


def imported(store: Path, before: int, equal: int, after: int) -> None:
    """Store memories of one time between others, an hour apart; each text has its place in the list."""
    now = datetime.now(UTC)
    times = [now - timedelta(hours=hours) for hours in range(before)]
    times += [now - timedelta(hours=before)] * equal
    times += [now - timedelta(hours=before + 1 + hours) for hours in range(after)]
    events = [
        {
            "event_id": f"e-{number:05}",
            "event_type": "chat.user_msg",
            "timestamp": time.isoformat(),
            "user_id": store.name,
            "payload": {"text": f"Memory number {number}"},
        }
        for number, time in enumerate(times)
    ]
    store.parent.mkdir(parents=True, exist_ok=True)
    with Memory.open(store, settings=Settings(embedder=NOWHERE)) as memory:
        for begin in range(0, len(events), 500):
            memory.ingest(events[begin : begin + 500])


@pytest.fixture(scope="module")
def importing_daemon() -> Iterator[DaemonProcess]:
    """A daemon without a model, whose users ida and ivo imported memories of one time."""
    with short_folder() as folder:
        data_dir = Path(folder)
        imported(user_folder(data_dir, "ida"), BEFORE, EQUAL, AFTER)
        imported(user_folder(data_dir, "ivo"), 0, EQUAL, 0)
        process = DaemonProcess(data_dir, "embedder.folder=no-such-model", "embedder.allow_download=false", light=True)
        process.start()
        yield process
        assert process.stop() == 0, process.log()


def look_at(tab: Tab, place: int, total: int) -> dict[int, int]:
    """Scroll to a place; return the numbers of the rows there, by index."""
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
    for place in range(total - 20, -1, -20):
        seen = look_at(tab, place, total)
        assert all(rows.get(index, number) == number for index, number in seen.items())
        rows |= seen
    assert sorted(rows) == sorted(rows.values()) == list(range(total))
