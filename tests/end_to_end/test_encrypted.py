"""Test a daemon with encryption: its folder is unreadable, and a user's key can be destroyed while it runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from memory_agent import MemoryClient
from memory_agent.errors import MemoryAgentError
from relay import Publisher, relay_endpoints

from .conftest import HASTY, DaemonProcess, invoke, short_folder

SECRET = "zanzibarquokka"
MARKS = (SECRET, "kakapo-run", "numbat-session", "axolotl-event")


@pytest.fixture
def encrypted_daemon() -> Iterator[DaemonProcess]:
    with short_folder() as folder, short_folder() as keys:
        process = DaemonProcess(Path(folder), *HASTY, f"encryption.keys_folder={keys}", light=True)
        process.keys = keys  # type: ignore[attr-defined]
        process.start()
        yield process
        process.kill()


def said(number: int, user_id: str) -> dict[str, Any]:
    return {
        "event_id": f"axolotl-event-{user_id}-{number}",
        "event_type": "chat.user_msg",
        "user_id": user_id,
        "session_id": f"numbat-session-{user_id}",
        "payload": {"text": f"{SECRET} of {user_id} was seen {number} times", "run_id": f"kakapo-run-{user_id}"},
    }


def readable(folder: Path) -> list[str]:
    files = [file for file in folder.rglob("*") if file.is_file() and file.name != "daemon.log"]
    held = b"\n".join(file.read_bytes() for file in files)
    return [mark for mark in MARKS if mark.encode() in held]


def run_verb(daemon: DaemonProcess, *words: str) -> Any:
    keys = ("--set", f"encryption.keys_folder={daemon.keys}")  # type: ignore[attr-defined]
    done = invoke(*words, "--data-dir", str(daemon.data_dir), "--json", *keys)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_a_key_destroyed_while_the_daemon_runs_ends_its_user_and_delays_no_other(
    encrypted_daemon: DaemonProcess,
) -> None:
    daemon = encrypted_daemon
    with (
        Publisher(relay_endpoints(daemon.data_dir).ingest) as publisher,
        MemoryClient("alice", data_dir=daemon.data_dir) as alice,
        MemoryClient("bob", data_dir=daemon.data_dir) as bob,
    ):
        for number in range(8):
            publisher.publish(said(number, "alice"))
            publisher.publish(said(number, "bob"))
        through = publisher.flush().acked_through
        alice.wait(through, 60)
        assert (alice.stats().memories, bob.stats().memories) == (8, 8)
        assert SECRET in alice.recall(SECRET).memories[0].record.text
        assert readable(daemon.data_dir) == []
        states = {one["part"]: one["state"] for one in run_verb(daemon, "encryption", "status")["stores"]}
        assert states == dict.fromkeys(("user alice", "user bob", "owners", "journal"), "encrypted")

        left = run_verb(daemon, "encryption", "destroy", "--user", "alice", "--yes")["left"]
        assert "system" in left[-1]
        for ask in (lambda: alice.recall(SECRET), alice.stats):
            with pytest.raises(MemoryAgentError) as caught:
                ask()
            assert caught.value.code == "encryption_key_missing"
        publisher.publish(said(9, "alice"))
        publisher.publish(said(9, "bob"))
        bob.wait(publisher.flush().acked_through, 60)
        assert bob.stats().memories == 9
        aside = bob.quarantined()
        assert [(one.user_id, one.code) for one in aside] == [("alice", "encryption_key_missing")]
        assert bob.status().dispatched["lag"] == 0
        assert readable(daemon.data_dir) == []
        assert run_verb(daemon, "forget", "--user", "alice", "--user-all", "--yes")["complete"]
        publisher.publish(said(10, "alice"))
        alice.wait(publisher.flush().acked_through, 60)
        assert [memory.record.text for memory in alice.recall(SECRET).memories] == [
            said(10, "alice")["payload"]["text"]
        ]
        assert bob.quarantined() == []
    assert daemon.stop() == 0
    assert readable(daemon.data_dir) == []
    states = {one["part"]: one["state"] for one in run_verb(daemon, "encryption", "status")["stores"]}
    assert states == dict.fromkeys(("user alice", "user bob", "owners", "journal"), "encrypted")
