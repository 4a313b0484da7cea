"""Test that the page shows hostile texts as text, in every field of every view."""

from __future__ import annotations

import pytest

from memory_agent import MemoryClient
from tests.page.browsing import Tab, publish
from tests.page.conftest import Filled
from tests.page.hostile import INVISIBLE, LINE, READER, TEXTS, USER, Hostile, as_id, as_type, shown

MOST_SHOWN = 160
ROW_CHARS = 150
"""A single-line text is truncated after several hundred characters."""


def missing(tab: Tab, *texts: str, where: str = "body") -> list[str]:
    """Return the given texts that an element does not show."""
    text = tab.text(where)
    return [ascii(one)[:MOST_SHOWN] for one in texts if shown(one) not in text]


def invisible(tab: Tab, where: str = "body") -> list[str]:
    """Return the texts, titles and labels that contain invisible characters, other than those that join emoji."""
    return [ascii(one)[:MOST_SHOWN] for one in tab.texts(where) if INVISIBLE.search(one.replace("\u200d", ""))]


def rows(field: str) -> list[str]:
    """Return the beginning of each text in a field, as shown in a row."""
    return [f"{name} {field} {text}"[:ROW_CHARS] for name, text in TEXTS.items()]


@pytest.fixture(params=["everything", "address", "bidi", "wide"])
def some(request: pytest.FixtureRequest, filled_daemon: Filled) -> Hostile:
    """The memory, run and shared item that contain each of four representative texts."""
    return filled_daemon.all[request.param]


def test_the_pane_of_a_memory_shows_every_field(tab: Tab, filled_daemon: Filled) -> None:
    problems = {}
    for name, one in filled_daemon.all.items():
        tab.show("timeline", id=one.memory_id)
        problems[name] = missing(tab, *one.fields, where="aside") + invisible(tab, "aside")
        tab.check()
    assert problems == {name: [] for name in TEXTS}


def test_a_run_is_told_with_its_request_steps_and_summary(tab: Tab, filled_daemon: Filled) -> None:
    problems = {}
    for name, one in filled_daemon.all.items():
        tab.show("runs", id=one.run_id)
        session = as_id(f"session {one.text}")
        problems[name] = missing(tab, *one.run_texts, session, where="main") + invisible(tab, "main")
        tab.check()
    assert problems == {name: [] for name in TEXTS}


def test_a_session_is_shown_with_its_runs_and_memories(tab: Tab, some: Hostile) -> None:
    tab.show("sessions", id=as_id(f"session {some.text}"))
    texts = [text[:ROW_CHARS] for text in (f"{some.name} text {some.text}", *some.run_texts)]
    assert missing(tab, *texts, as_id(f"session {some.text}"), where="main") == []
    assert invisible(tab, "main") == []


def test_a_search_for_a_text_finds_and_explains_it(tab: Tab, some: Hostile) -> None:
    tab.show("search", q=f"{some.name} text {some.text}", id=some.memory_id)
    if len(some.text) < ROW_CHARS:  # only the matching passage of a long text is shown
        assert missing(tab, f"{some.name} text {some.text}", where=".results") == []
    assert missing(tab, *some.fields, where="aside") == []
    assert invisible(tab, "main") == []


def test_names_of_an_address_are_shown_as_text(tab: Tab, some: Hostile) -> None:
    tab.show(
        "timeline", **{name: as_id(f"{name} {some.text}") for name in ("session", "channel", "agent", "type", "run")}
    )
    assert missing(tab, as_id(f"session {some.text}")[:ROW_CHARS], where="main") == []
    assert invisible(tab, "main") == []
    tab.evaluate("text => { location.hash = `#/no ${text.replaceAll('?', ' ')}`; }", some.text)
    tab.page.get_by_text("There is no view").wait_for()
    assert invisible(tab, "main") == []


def test_lists_show_every_text(tab: Tab, filled_daemon: Filled) -> None:
    tab.page.set_viewport_size({"width": 1280, "height": 6_000})  # tall enough for all rows of a virtual list
    requests = [one.run_texts[0][:ROW_CHARS] for one in filled_daemon.all.values()]
    problems = {}
    for view, expected in {
        "timeline": rows("title"),
        "runs": requests,
        "sessions": [" ".join(text.split()) for text in rows("text")],  # the daemon puts titles on one line
        "shared": rows("title"),
    }.items():
        tab.show(view)
        problems[view] = missing(tab, *expected, where="main") + invisible(tab, "main")
    assert problems == {view: [] for view in problems}


def test_the_map_and_what_was_learned_show_titles(tab: Tab) -> None:
    problems = {}
    for view, params in (("map", {"by": "session"}), ("map", {"by": "kind"}), ("learned", {}), ("health", {})):
        tab.show(view, **params)
        problems[view] = invisible(tab, "main")
    assert problems == {view: [] for view in problems}


def test_the_quarantine_shows_types_as_text(tab: Tab) -> None:
    tab.show("quarantine")
    assert missing(tab, *map(as_type, TEXTS.values()), where="main") == []
    assert invisible(tab, "main") == []


def test_the_preview_of_an_erasure_shows_what_would_go(tab: Tab, some: Hostile) -> None:
    tab.show("erase")
    tab.page.get_by_label("The session's id").fill(as_id(f"session {some.text}"))
    tab.page.locator("ol.told", has_text=f"{some.name} text").wait_for()
    assert missing(tab, f"{some.name} text {some.text}"[: 6 * ROW_CHARS], where="main") == []
    assert invisible(tab, "main") == []


def test_other_users_items_are_shown_as_text(tab: Tab, filled_daemon: Filled) -> None:
    tab.switch_user(READER)
    problems = {}
    tab.show("shared", tab="search", q="summary")
    for one in filled_daemon.all.values():
        title = tab.page.locator("ul.items button.link", has_text=f"{one.name} title").first
        if not title.count():  # a search lists the best 20 items
            tab.show("shared", tab="search", q=f"{one.name} summary {one.text}"[:400])
        title.click()
        tab.page.locator("aside h2", has_text=f"{one.name} title").wait_for()
        parts = [f"{one.name} {part} {one.text}"[:ROW_CHARS] for part in ("title", "summary", "body")]
        problems[one.name] = missing(tab, *parts, "<b>Mallory</b>", where="aside") + invisible(tab, "main")
        tab.check()
    assert problems == {name: [] for name in TEXTS}


def test_the_preview_of_a_publication_shows_exactly_the_text(tab: Tab, some: Hostile) -> None:
    tab.show("shared", tab="publish", memory=some.memory_id)
    tab.page.get_by_role("button", name="Preview").click()
    tab.page.locator(".leaves").wait_for()
    assert missing(tab, f"{some.name} text {some.text}"[: 6 * ROW_CHARS], where=".leaves") == []
    assert invisible(tab, "main") == []


def test_live_events_are_shown_as_text_and_long_ones_cut(tab: Tab, filled_daemon: Filled) -> None:
    tab.show("live")
    tab.page.get_by_text("Following").wait_for()
    event = {"user_id": USER, "event_type": "note.taken"}
    publish(
        filled_daemon.data_dir,
        *(
            event | {"actor_id": as_id(text), "session_id": as_id(text), "payload": {"text": f"{name} payload {text}"}}
            for name, text in {**TEXTS, "long": LINE}.items()
        ),
    )
    tab.page.get_by_text("long payload").wait_for()
    assert missing(tab, *rows("payload"), "long payload a long line", where="main") == []
    assert invisible(tab, "main") == []
    assert len(tab.text("main")) < 60_000


def test_a_memory_of_the_longest_text_is_folded_and_unfolded(tab: Tab, filled_daemon: Filled) -> None:
    with MemoryClient(USER, data_dir=filled_daemon.data_dir) as client:
        record = client.remember(LINE[:16_000], metadata={"whole": LINE[:100_000]})
        tab.show("timeline", id=record.id)
        assert len(tab.texts("aside")) < 1_000
        assert shown(LINE[:16_000]) in tab.text("aside")
        assert shown(LINE[:100_000]) in tab.text("aside")
        client.forget([record.id])
