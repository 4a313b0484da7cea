"""Test what the page changes: an erasure, a retry from quarantine, a publication, a forgotten memory, another user."""

from __future__ import annotations

import json
import re

import pytest
from playwright.sync_api import expect

from memory_agent import MemoryClient
from tests.page.browsing import Tab, publish
from tests.page.conftest import Filled

HTML = "<b>Erase me</b>"


@pytest.fixture
def tab(any_tab: Tab) -> Tab:
    """The shared tab. Each test shows the memory of a different user."""
    return any_tab


def test_an_erasure_removes_what_its_preview_shows_and_gives_a_receipt(filled_daemon: Filled, tab: Tab) -> None:
    with MemoryClient("ella", data_dir=filled_daemon.data_dir) as client:
        for number in range(3):
            client.remember(f"{HTML} number {number}", session_id="gone")
        client.remember("Kept", session_id="kept")
        tab.switch_user("ella")
        tab.show("erase")
        tab.page.get_by_label("The session's id").fill("gone")
        preview = tab.page.locator("ol.told li")
        expect(preview).to_have_count(3)
        expect(preview.first).to_contain_text(f"{HTML} number 2")
        tab.page.get_by_role("button", name="Erase …").click()
        dialog = tab.page.get_by_role("dialog")
        erase = dialog.get_by_role("button", name="Erase", exact=True)
        expect(erase).to_be_disabled()
        dialog.get_by_label(re.compile("confirm")).fill("2")
        expect(erase).to_be_disabled()
        assert client.stats().memories == 4
        dialog.get_by_label(re.compile("confirm")).fill("3")
        erase.click()
        receipt = tab.page.locator(".receipt")
        expect(receipt).to_contain_text("Complete")
        expect(receipt).to_contain_text(re.compile("Memories\\s*3"))
        with tab.page.expect_download() as saved:
            receipt.get_by_role("button", name="Save the receipt").click()
        kept = json.loads(saved.value.path().read_bytes())
        assert (kept["user_id"], kept["memories"], kept["complete"]) == ("ella", 3, True)
        assert [record.text for record in client.list().records] == ["Kept"]


def test_an_erasure_is_refused_if_more_matches_than_was_previewed(filled_daemon: Filled, tab: Tab) -> None:
    with MemoryClient("emil", data_dir=filled_daemon.data_dir) as client:
        client.remember("The first", session_id="gone")
        tab.switch_user("emil")
        tab.show("erase", session="gone")
        tab.page.get_by_role("button", name="Erase …").click()
        dialog = tab.page.get_by_role("dialog")
        dialog.get_by_label(re.compile("confirm")).fill("1")
        client.remember("The second, which nobody has seen", session_id="gone")
        dialog.get_by_role("button", name="Erase", exact=True).click()
        expect(dialog.get_by_role("alert")).to_contain_text("Since the preview, other memories match")
        assert client.stats().memories == 2
        tab.press("Escape")
        expect(tab.page.locator("ol.told li")).to_have_count(2)


def test_an_event_in_quarantine_is_retried_once_its_run_has_an_owner(filled_daemon: Filled, tab: Tab) -> None:
    summary = {"run_id": "run-of-quinn", "summary": "Quinn replaced the pump"}
    with MemoryClient("quinn", data_dir=filled_daemon.data_dir) as client:
        seen = len(client.quarantined())
        publish(
            filled_daemon.data_dir, {"user_id": "system", "event_type": "conductor.run.completed", "payload": summary}
        )
        tab.switch_user("quinn")
        tab.show("quarantine")
        row = tab.page.locator("tr", has_text="conductor.run.completed")
        row.wait_for(timeout=60_000)  # the list is read every ten seconds
        row.get_by_role("checkbox").check()
        tab.page.get_by_role("button", name="Retry 1").click()
        expect(tab.page.locator(".toasts")).to_contain_text("0 events handled, 1 still failing")
        assert len(client.quarantined()) == seen + 1
        client.runs.begin("Replace the pump", run_id="run-of-quinn")
        row.get_by_role("checkbox").check()
        tab.page.get_by_role("button", name="Retry 1").click()
        expect(tab.page.locator(".toasts")).to_contain_text("1 event handled, 0 still failing")
        expect(row).to_have_count(0)
        assert "Quinn replaced the pump" in [record.text for record in client.list().records]
        assert len(client.quarantined()) == seen


def test_a_publication_sends_exactly_what_its_preview_shows(filled_daemon: Filled, tab: Tab) -> None:
    tab.switch_user("paula")
    tab.show("shared", tab="publish")
    typed = {
        "Title": "Restart <b>the</b> relay",
        "Summary": "Restart the relay with token ghp_" + "a1B2" * 9 + " when it hangs",
        "Body": "ssh anna@db.example.com\nsudo systemctl restart relay",
        "Tags": "ops, relay",
    }
    for label, text in typed.items():
        tab.page.get_by_role("textbox", name=re.compile(f"^{label}")).fill(text)
    tab.page.get_by_role("button", name="Preview").click()
    leaves = tab.page.locator(".leaves")
    leaves.wait_for()
    assert "publish_confirm" not in tab.verbs()
    shown = {
        str(name.text_content()): str(value.text_content())
        for name, value in zip(leaves.locator("dt").all(), leaves.locator("dd").all(), strict=True)
    }
    expect(leaves.locator("mark", has_text="anna@db.example.com")).to_be_visible()
    tab.page.get_by_role("button", name="Publish …").click()
    with tab.page.expect_request("**/v1/publish_confirm") as sent:
        tab.page.get_by_role("dialog").get_by_role("button", name="Publish").click()
    tab.page.get_by_role("heading", name="Published").wait_for()
    expect(tab.page.locator("main")).to_contain_text("Restart <b>the</b> relay")
    content = json.loads(str(sent.value.post_data))["preview"]["content"]
    with MemoryClient("paula", data_dir=filled_daemon.data_dir) as client:
        (item,) = client.shared.published()
        left = client.shared.item(item.id)
    for one in (content, {name: getattr(left, name) for name in ("title", "summary", "body", "tags")}):
        assert [one["title"], one["summary"], one["body"]] == [shown["Title"], shown["Summary"], shown["Body"]]
        assert ", ".join(one["tags"]) == shown["Tags"]
    assert "ghp_" not in left.summary
    tab.page.get_by_role("button", name="Unpublish …").click()
    tab.page.get_by_role("dialog").get_by_role("button", name="Withdraw").click()
    expect(tab.page.locator("main")).to_contain_text("You share nothing")


def test_a_memory_is_forgotten_after_a_question(filled_daemon: Filled, tab: Tab) -> None:
    with MemoryClient("fritz", data_dir=filled_daemon.data_dir) as client:
        record = client.remember("Fritz has a boat")
        tab.switch_user("fritz")
        tab.show("timeline", id=record.id)
        tab.page.get_by_role("button", name="Forget …").click()
        assert client.stats().memories == 1
        tab.page.get_by_role("dialog").get_by_role("button", name="Forget", exact=True).click()
        expect(tab.page.locator("main")).to_contain_text("Nothing is remembered yet")
        assert client.stats().memories == 0


def test_another_users_memory_is_shown_without_a_rest_of_the_former(filled_daemon: Filled, tab: Tab) -> None:
    with MemoryClient("una", data_dir=filled_daemon.data_dir) as client:
        client.remember("Una sails")
    with MemoryClient("uwe", data_dir=filled_daemon.data_dir) as client:
        client.remember("Uwe sings")
    tab.switch_user("una")
    tab.show("search", q="Una")
    expect(tab.page.locator("#result-0")).to_contain_text("Una sails")
    tab.page.get_by_label("User").fill("uwe")
    tab.press("Enter")
    for view in ("search", "timeline", "runs", "sessions", "map", "health"):
        tab.show(view)
        assert "Una sails" not in tab.text("main")
    tab.show("timeline")
    expect(tab.page.locator("main")).to_contain_text("Uwe sings")
    tab.page.get_by_label("User").fill("no such user")
    tab.press("Enter")
    expect(tab.page.locator("main")).to_contain_text("Uwe sings")
