"""Creates the fixture with an earlier version. Run it in a checkout of that version, with its virtual environment.

    git worktree add ../former 71b6c66 && cd ../former    # with its own virtual environment
    .venv/bin/python PATH/TO/tests/former_version/make.py     # writes former.tar.xz and answers.json beside this file

A daemon receives events, answers recalls, follows runs, erases, exports, is backed up, and stops cleanly. A second
daemon does some of this with encryption. The Python interface does the rest (garbage in the quarantine, a publisher
without a relay).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, os.getcwd())

import msgspec
from questions import ANSWERS, ARCHIVE, SETTINGS, answers, unpack, write_answers

from memory_agent import MemoryClient
from ops.demo.story import Story
from relay import Journal, Publisher, journal_folder, relay_endpoints

NOW = datetime(2026, 2, 16, 10, tzinfo=UTC)
STORY = Story.load()
LESSONS = [
    ("customers are logged out in the middle of a purchase", "mutex"),
    ("sessions end during checkout when two tabs are open", "mutex"),
    ("people must sign in again while they pay", "mutex"),
    ("a card was charged two times for one order", "idempotency key"),
    ("the acquirer recorded two captures after a timeout", "idempotency key"),
    ("a shopper says that we took the money twice", "idempotency key"),
    ("users get signed out at random", "mutex"),
    ("retries of a payment charge again", "idempotency key"),
]
FAST = ("--set", "daemon.owner_wait_s=1", "--set", "daemon.upkeep_interval_s=1", "--set", "daemon.shared_hosts=1")


def main() -> None:
    """Create and pack the data, and record this version's answers about it."""
    with tempfile.TemporaryDirectory(prefix="former-") as folder:
        root = Path(folder)
        make_plain(root)
        make_encrypted(root)
        make_spool(root)
        pack(root)
    with tempfile.TemporaryDirectory(prefix="former-") as folder:
        unpack(Path(folder))
        journal = look_at_journal(Path(folder) / "plain")
        write_answers(answers(Path(folder)) | {"journal": journal})
    print(f"{ARCHIVE.name}: {ARCHIVE.stat().st_size:,} bytes; {ANSWERS.name}: {ANSWERS.stat().st_size:,} bytes")


def make_plain(root: Path) -> None:
    """Create a folder with two users, runs, lessons, an erasure, quarantined events, keys, exports and a backup."""
    data_dir = root / "plain"
    with daemon(data_dir):
        publish(data_dir, [event for sent in STORY.events((1, 2), NOW).values() for event in sent])
        with MemoryClient("alice", data_dir=data_dir) as memory:
            memory.remember("Staging needs the VPN", tags=["deploy"], provenance="verified")
            memory.remember("The staging needs a VPN.", tags=["deploy"])
            memory.remember("Never deploy on a Friday", kind="pattern", title="Deploys", session_id="by-hand")
            teach(memory)
        publish(data_dir, [said("system", "nobody", "Whose event is this?", "lost-1")])
        memory_agent("forget", "--session", "join-memory", "--yes", "--user", "bob", "--data-dir", str(data_dir))
        memory_agent("export", str(root / "alice.jsonl"), "--user", "alice", "--data-dir", str(data_dir))
        memory_agent("sona", "export", str(root / "alice.sona"), "--user", "alice", "--data-dir", str(data_dir))
        for words in (("alice-laptop", "--user", "alice"), ("planner", "--all-users", "--scope", "recall", "--curve")):
            memory_agent("keys", "create", *words, "--out", str(root / f"{words[0]}.key"), "--data-dir", str(data_dir))
        memory_agent("backup", str(root / "backup"), "--data-dir", str(data_dir))
        publish(data_dir, [said("bob", "after", "The nightly load has a new owner since the backup", "after-1")])
    with Journal.open(journal_folder(data_dir)) as journal:
        journal.quarantine(b'{"event_type": "torn', "malformed_event", "is no event", "ingest", NOW)
    memory_agent("compact", "--data-dir", str(data_dir))


def teach(memory: MemoryClient) -> None:
    """Record successful runs that used the memory containing the solution."""
    for number, (request, used) in enumerate(LESSONS):
        result = memory.recall(request, top_k=5)
        chosen = [found.record.id for found in result.memories if used in found.record.text][:1]
        run_id = f"lesson-{number:02}"
        memory.runs.begin(request, run_id, session_id=f"s-{number}", recall_ids=[result.recall_id])
        memory.runs.step(run_id, "Did as the former run had done", memory_ids=chosen)
        memory.runs.end(run_id, "completed", "It is done" if number % 4 else "It is done, and holds")
        if chosen and number % 2:
            memory.feedback(result.recall_id, used=chosen, quality=1.0, comment="Held for a week")


def make_encrypted(root: Path) -> None:
    """Create one user with an event, memories and a run, all encrypted."""
    data_dir, keys = root / "encrypted", root / "keys"
    keys.mkdir(mode=0o700)
    setting = ("--set", f"encryption.keys_folder={keys}")
    with daemon(data_dir, *setting):
        publish(data_dir, [said("erin", "s-1", "Checkout logs people out; find out why", "secret-1")])
        with MemoryClient("erin", data_dir=data_dir) as memory:
            memory.remember("A mutex per session fixed the race of two token refreshes", kind="strategy")
            memory.remember("Lunch is at noon")
            result = memory.recall("users are signed out")
            memory.runs.begin("Stop the sign-outs", "run-1", recall_ids=[result.recall_id])
            memory.runs.end("run-1", "completed", "No sign-outs", memory_ids=[result.memories[0].record.id])
    memory_agent("compact", "--data-dir", str(data_dir), *setting)


def make_spool(root: Path) -> None:
    """Create a spool of events that a publisher could not send because no relay was running."""
    publisher = Publisher(relay_endpoints(root / "plain").ingest, spool=root / "spool", producer_id="former-publisher")
    for number in range(40):
        user_id = ("alice", "bob")[number % 2]
        publisher.publish(said(user_id, "spooled", f"Ticket {number} waits on the emitter's disk", f"spooled-{number}"))
    publisher.close()


def look_at_journal(data_dir: Path) -> dict[str, Any]:
    """Return every event's number and id, and each consumer's cursor."""
    with Journal.open(journal_folder(data_dir)) as journal:
        events = [[entry.seq, msgspec.msgpack.decode(entry.data)["event_id"]] for entry in journal.read(0, 1_000)]
        return {"events": events, "consumers": {consumer.name: consumer.seq for consumer in journal.consumers()}}


def said(user_id: str, session_id: str, text: str, event_id: str) -> dict[str, Any]:
    """Return the event for a user's message."""
    return {
        "event_id": event_id, "event_type": "chat.user_msg", "timestamp": NOW.isoformat(), "user_id": user_id,
        "session_id": session_id, "payload": {"text": text},
    }  # fmt: skip


def publish(data_dir: Path, events: list[dict[str, Any]]) -> None:
    """Publish events in chronological order, and wait until each is stored, dropped or quarantined."""
    with Publisher(relay_endpoints(data_dir).ingest) as publisher:
        for event in sorted(events, key=lambda event: event["timestamp"]):
            publisher.publish(event)
        assert publisher.flush().pending == 0
    with MemoryClient("alice", data_dir=data_dir) as client:
        client.wait({"system": client.status().journal["last_seq"]}, 120)


@contextmanager
def daemon(data_dir: Path, *settings: str) -> Iterator[None]:
    """Run a daemon, and stop it the way a supervisor does."""
    words = [sys.executable, "-m", "memory_agent", "serve", "--data-dir", str(data_dir), *SETTINGS, *FAST, *settings]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline(), "the daemon did not start"
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def memory_agent(*words: str) -> None:
    """Run a command of the earlier version."""
    subprocess.run([sys.executable, "-m", "memory_agent", *words, *SETTINGS], check=True, stdout=subprocess.DEVNULL)


def pack(root: Path) -> None:
    """Pack everything except sockets. Identical files are adjacent, so that copies in the backup take little space."""
    kept = [path for path in root.rglob("*") if "run" not in path.relative_to(root).parts and not path.is_socket()]
    with tarfile.open(ARCHIVE, "w:xz", preset=9) as archive:
        for path in sorted(kept, key=lambda path: (path.is_file(), path.name, str(path))):
            archive.add(path, path.relative_to(root), recursive=False, filter=_nameless)


def _nameless(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


if __name__ == "__main__":
    main()
