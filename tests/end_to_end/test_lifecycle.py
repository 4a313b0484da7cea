"""Test waking and sleeping, broken users, quarantine, event tables, and a missing model."""

from __future__ import annotations

import sqlite3

import pytest

from memory_agent import MemoryClient
from memory_agent.errors import DeadlineExceededError
from memory_agent.storage.folders import user_folder
from relay import Publisher, Subscriber, read_event, relay_endpoints

from .conftest import DaemonProcess
from .test_killed import wait_until

pytestmark = pytest.mark.slow


def ask(daemon: DaemonProcess, user_id: str = "default") -> MemoryClient:
    return MemoryClient(user_id, data_dir=daemon.data_dir)


def said(user_id: str, text: str, **fields: object) -> dict[str, object]:
    return {"event_type": "chat.user_msg", "user_id": user_id, "payload": {"text": text}, **fields}


def publish(daemon: DaemonProcess, *events: dict[str, object]) -> dict[str, int]:
    with Publisher(relay_endpoints(daemon.data_dir).ingest) as publisher:
        for event in events:
            publisher.publish(event)
        report = publisher.flush()
        assert (report.pending, report.rejected) == (0, 0)
        return report.acked_through


def awake(daemon: DaemonProcess) -> tuple[str, ...]:
    with ask(daemon) as client:
        return client.status().active_users


def test_users_sleep_when_idle_and_wake_on_a_request(own_daemon: DaemonProcess) -> None:
    own_daemon.configure("daemon.idle_sleep_s=1", "daemon.upkeep_interval_s=0.2", "daemon.dedicated_hosts=1")
    own_daemon.start()
    users = [f"user-{number}" for number in range(5)]
    for user_id in users:
        with ask(own_daemon, user_id) as client:
            client.remember(f"The favourite colour of {user_id} is blue")
    with ask(own_daemon) as client:
        hosts = [part.name for part in client.status().parts if part.name.startswith(("user-", "shared-"))]
    assert sum(host.startswith("user-") for host in hosts) <= 1
    assert sum(host.startswith("shared-") for host in hosts) <= 2
    wait_until(lambda: awake(own_daemon) == ())
    for user_id in users:
        with ask(own_daemon, user_id) as client:
            found = client.recall("favourite colour").memories
            assert [memory.record.text for memory in found] == [f"The favourite colour of {user_id} is blue"]


def test_a_broken_user_delays_no_other_and_loses_nothing(rough_daemon: DaemonProcess) -> None:
    folder = user_folder(rough_daemon.data_dir, "broken")
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.write_text("not a folder")
    through = publish(
        rough_daemon,
        *(said("broken", f"the drill number {number} is on shelf {number}") for number in range(30)),
        said("healthy", "the saw hangs on the wall"),
    )
    with ask(rough_daemon, "healthy") as client:
        client.wait({"healthy": through["healthy"]}, timeout_s=60)
        assert len(client.recall("saw").memories) == 1
        with pytest.raises(DeadlineExceededError):
            client.wait({"broken": through["broken"]}, timeout_s=0.5)
    folder.unlink()
    with ask(rough_daemon, "broken") as client:
        client.wait(through, timeout_s=60)
        assert client.stats().memories == 30


def test_events_without_an_owner_are_quarantined_until_they_have_one(rough_daemon: DaemonProcess) -> None:
    orphan = {
        "event_type": "conductor.run.completed",
        "user_id": "system",
        "payload": {"run_id": "run-9", "summary": "Replaced the pump in the cellar"},
    }
    through = publish(rough_daemon, orphan)
    with ask(rough_daemon, "olga") as client:
        client.wait(through, timeout_s=60)
        (entry,) = client.quarantined()
        assert (entry.code, entry.seq, entry.user_id, entry.event_type) == (
            "owner_unknown",
            through["system"],
            "system",
            "conductor.run.completed",
        )
        assert "Replaced" not in repr(entry)
        assert client.retry_quarantined([entry.id]).still_failing == 1
        through = publish(
            rough_daemon, said("olga", "is the pump replaced?", payload={"text": "hello", "run_id": "run-9"})
        )
        client.wait(through, timeout_s=60)
        assert client.retry_quarantined().handled == 1
        assert client.quarantined() == []
        assert "Replaced the pump in the cellar" in client.recall("pump").memories[0].record.text
        second = dict(orphan, payload={"run_id": "run-10", "summary": "Nobody asked for this"})
        client.wait(publish(rough_daemon, second), timeout_s=60)
        assert client.drop_quarantined() == 1
        assert client.quarantined() == []


def test_an_event_table_is_followed_from_its_cursor(own_daemon: DaemonProcess) -> None:
    table = own_daemon.data_dir / "events.db"
    connection = sqlite3.connect(table)
    connection.execute(
        "CREATE TABLE events (seq INTEGER PRIMARY KEY, event_id TEXT, timestamp TEXT, event_type TEXT, payload TEXT,"
        " actor_id TEXT, user_id TEXT, session_id TEXT, thread_id TEXT)"
    )

    def insert(number: int) -> None:
        row = (number, f"row-{number}", "2026-02-16T10:00:00Z", "chat.user_msg", f'{{"text": "row number {number}"}}')
        connection.execute("INSERT INTO events VALUES (?,?,?,?,?,NULL,'tara','s',NULL)", row)
        connection.commit()

    insert(1)
    own_daemon.configure(f'relay.broker.tables=[{{name = "app", path = "{table}"}}]')
    own_daemon.start()
    with ask(own_daemon, "tara") as client:
        wait_until(lambda: client.stats().memories == 1)
    own_daemon.kill()
    insert(2)
    own_daemon.start()
    with ask(own_daemon, "tara") as client:
        wait_until(lambda: client.stats().memories == 2)
    connection.close()
    with Subscriber(*relay_endpoints(own_daemon.data_dir)) as subscriber:
        entries = subscriber.fetch(0, 100, user_id="tara").entries
    rows = [read_event(entry.data).event_id for entry in entries if entry.event_type == "chat.user_msg"]
    assert rows == ["row-1", "row-2"]


def test_without_a_model_recall_uses_words_and_vectors_are_added_later(own_daemon: DaemonProcess) -> None:
    empty = own_daemon.data_dir / "no-model"
    empty.mkdir()
    own_daemon.configure(f"embedder.folder={empty}", "daemon.upkeep_interval_s=0.2")
    own_daemon.start()
    through = publish(own_daemon, said("uma", "the parcel was delivered to the neighbour"))
    with ask(own_daemon, "uma") as client:
        client.wait(through, timeout_s=60)
        result = client.recall("parcel")
        assert len(result.memories) == 1
        assert "no_model" in result.degraded
        assert client.stats().without_vector == 1
    assert own_daemon.stop() == 0
    own_daemon.configure("daemon.upkeep_interval_s=0.2")
    own_daemon.start()
    with ask(own_daemon, "uma") as client:
        client.recall("parcel")
        wait_until(lambda: client.stats().without_vector == 0)
        assert client.recall("package handed over next door", mode="vector").memories != ()
