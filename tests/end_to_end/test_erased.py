"""Test `forget` while the daemon runs: no byte is left in the data folder, and nothing reappears."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from memory_agent import MemoryClient
from memory_agent.storage.folders import user_folder
from relay import Publisher, relay_endpoints

from .conftest import DaemonProcess

SECRET = "zanzibarquokka"
OTHER_SECRET = "timbuktuwombat"


def files_with(text: str, folder: Path) -> list[str]:
    files = (file for part in ("journal", "users", "owners") for file in (folder / part).rglob("*") if file.is_file())
    return sorted(str(file.relative_to(folder)) for file in files if text.encode() in file.read_bytes())


def said(number: int, user_id: str, text: str) -> dict[str, object]:
    payload = {"text": text, "run_id": f"erased-{user_id}"}
    return {
        "event_id": f"erased-{number}",
        "event_type": "chat.user_msg",
        "user_id": user_id,
        "session_id": f"s-{user_id}",
        "payload": payload,
    }


def test_a_session_is_erased_from_every_file_of_a_running_daemon_for_good(daemon: DaemonProcess) -> None:
    events = [said(number, "erin", f"{SECRET} was seen {number} times") for number in range(12)]
    others = [said(number, "frank", f"frank's harmless thing {number}") for number in range(3)]
    with Publisher(relay_endpoints(daemon.data_dir).ingest) as publisher:
        for event in [*events[:6], *others, *events[6:]]:
            publisher.publish(event)
        report = publisher.flush()
        with MemoryClient("erin", data_dir=daemon.data_dir) as erin:
            erin.wait(report.acked_through, 60)
            erin.recall(SECRET)
            assert "journal/data.mdb" in files_with(SECRET, daemon.data_dir)
            planned = erin.erasure.erase(session_id="s-erin", dry_run=True)
            receipt = erin.erasure.erase(session_id="s-erin")
            assert (receipt.complete, receipt.memories) == (True, 12)
            assert receipt.events >= 12  # plus the blocks that the daemon has published
            assert planned.ids_sha256 == receipt.ids_sha256
            assert files_with(SECRET, daemon.data_dir) == []
            publisher.publish(events[3])
            erin.wait(publisher.flush().acked_through, 60)
            assert erin.stats().memories == 0
    with MemoryClient("frank", data_dir=daemon.data_dir) as frank:
        assert frank.stats().memories == 3
    assert files_with(SECRET, daemon.data_dir) == []


def test_a_user_is_erased_from_a_running_daemon_that_serves_other_users(daemon: DaemonProcess) -> None:
    events = [said(number, "gina", f"{OTHER_SECRET} was seen {number} times") for number in range(100, 140)]
    stop = threading.Event()

    def ask() -> list[int]:
        found = []
        with MemoryClient("gina", data_dir=daemon.data_dir) as gina:
            while not stop.is_set():
                found.append(len(gina.recall(OTHER_SECRET, 3, mode="lexical").memories))
        return found

    with Publisher(relay_endpoints(daemon.data_dir).ingest) as publisher, ThreadPoolExecutor(1) as pool:
        for event in [*events, said(150, "hans", "harmless of hans")]:
            publisher.publish(event)
        with MemoryClient("gina", data_dir=daemon.data_dir) as gina:
            gina.wait(publisher.flush().acked_through, 60)
            asking = pool.submit(ask)
            planned = gina.erasure.erase_user(dry_run=True)
            receipt = gina.erasure.erase_user()
            stop.set()
            assert set(asking.result()) == {3, 0}  # no request was refused: late requests found an empty memory
            assert (receipt.complete, receipt.memories) == (True, 40)
            assert receipt.events >= 40  # plus the blocks that the daemon has published
            assert planned.ids_sha256 == receipt.ids_sha256
            assert files_with(OTHER_SECRET, daemon.data_dir) == []
            assert gina.stats().memories == 0
            publisher.publish(events[7])  # a repeat
            publisher.publish(said(160, "gina", "gina begins anew"))
            gina.wait(publisher.flush().acked_through, 60)
            assert gina.stats().memories == 1
    with MemoryClient("hans", data_dir=daemon.data_dir) as hans:
        assert hans.stats().memories == 1
    assert user_folder(daemon.data_dir, "gina").exists()
    assert files_with(OTHER_SECRET, daemon.data_dir) == []
