"""Test the erasure of hook events that no daemon has acknowledged."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from memory_agent.erasure import hook_events
from memory_agent.erasure.hook_events import erase_hook_events, left_hook_events
from memory_agent.errors import StoreError
from memory_agent.hooks.answering import receiver_of
from memory_agent.hooks.waiting import Batch, Waiting
from memory_agent.layout import Layout
from relay import Erasable, Scope, create_key


def event(number: int, user_id: str | None = None, **fields: object) -> bytes:
    named = {} if user_id is None else {"user_id": user_id}
    return json.dumps({"event_id": str(number), "event_type": "x", **named, **fields}).encode()


def keep(data_dir: Path, *events: bytes, url: str | None = None, token: str | None = None) -> Waiting:
    """Store events as a hook with these options would."""
    waiting = Waiting(Layout(data_dir).hooks, receiver_of(url, token))
    waiting.keep(events)
    return waiting


def kept(data_dir: Path) -> str:
    """Return the numbers of the remaining events."""
    lines = (line for file in Layout(data_dir).hooks.rglob("*.jsonl") for line in file.read_text().splitlines())
    return "".join(sorted(json.loads(line)["event_id"] for line in lines))


@pytest.mark.parametrize(
    ("wanted", "left"),
    [
        (Erasable(user_id="alice", everything=True), "1567"),
        (Erasable(user_id="alice", session_ids=frozenset({"s-1"})), "124567"),
        (Erasable(user_id="alice", event_ids=frozenset({"2", "1"})), "134567"),
        (Erasable(user_id="alice", run_ids=frozenset({"r-1"})), "123567"),
        (Erasable(user_id="default", everything=True), "123467"),
        (Erasable(user_id="carol", everything=True), "123457"),
    ],
)
def test_only_the_selected_events_of_the_user_are_erased(tmp_path: Path, wanted: Erasable, left: str) -> None:
    token = create_key(tmp_path, "of-carol", "carol", frozenset({Scope.PUBLISH})).token
    keep(tmp_path, event(1, "bob", session_id="s-1"), event(2, "alice"), event(3, "alice", session_id="s-1"))
    keep(tmp_path, event(4, "alice", payload={"run_id": "r-1"}), event(5))
    keep(tmp_path, event(6), token=token)
    keep(tmp_path, event(7), url="http://127.0.0.1:9")
    erase_hook_events(tmp_path, wanted, "default")
    assert kept(tmp_path) == left
    (other,) = left_hook_events(tmp_path)  # that of another daemon
    assert "7" in next((tmp_path / other).iterdir()).read_text()


def test_files_that_are_not_finished_and_lines_that_are_not_events_are_erased(tmp_path: Path) -> None:
    keep(tmp_path, event(1, "bob"), b"{torn", b"[]")
    folder = Layout(tmp_path).hooks
    for name in ("1-1.tmp", "1-1.jsonl.new"):
        (folder / name).write_bytes(event(2, "alice"))
    erase_hook_events(tmp_path, Erasable(user_id="alice", event_ids=frozenset({"2"})), "default")
    (file,) = folder.iterdir()
    assert file.read_bytes() == event(1, "bob") + b"\n"


def test_an_erasure_waits_for_a_hook_that_sends_and_gives_up_on_one_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(tmp_path, event(1, "alice"))
    sending = keep(tmp_path, event(2, "alice"))
    assert len(sending.batch(Batch(())).events) == 2  # the process now holds the lock
    wanted = Erasable(user_id="alice", everything=True)
    monkeypatch.setattr(hook_events, "_SENT_WITHIN_S", 0.0)
    with pytest.raises(StoreError, match="a hook is sending these events"):
        erase_hook_events(tmp_path, wanted, "default")
    assert kept(tmp_path) == "12"
    monkeypatch.setattr(hook_events, "_SENT_WITHIN_S", 60.0)
    erasing = threading.Thread(target=erase_hook_events, args=(tmp_path, wanted, "default"))
    erasing.start()
    sending.close()
    erasing.join()
    assert kept(tmp_path) == ""


def test_a_hook_whose_events_are_erased_before_it_sends_them_sends_the_others(tmp_path: Path) -> None:
    waiting = Waiting(Layout(tmp_path).hooks)
    own = waiting.keep((event(1, "alice"), event(2, "bob")))
    erase_hook_events(tmp_path, Erasable(user_id="alice", everything=True), "default")
    assert waiting.batch(own) == Batch((event(2, "bob"),), own.files)
    waiting.close()
    erase_hook_events(tmp_path, Erasable(user_id="bob", everything=True), "default")
    assert waiting.batch(own).events == ()
    waiting.close()
