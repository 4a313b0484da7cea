"""The clients of the cluster campaign: they use users' memories in an endless loop, and record each operation.

    python -m tests.crash.cluster_clients publish|use DATA_DIR NOTES_FOLDER USER...

`publish` publishes events to the users. `use` remembers, forgets and lists their memories, with two threads for each
user. Each thread appends its operations to its own file, `NOTES_FOLDER/*.ops`, as JSON lines. Times are in nanoseconds
of the monotonic clock, which all processes share. The line for the beginning of an operation is written before the
request is sent. A text starts with an id, and only ids are recorded. Both commands pause while NOTES_FOLDER/rest
exists, and end once NOTES_FOLDER/stop exists.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

from memory_agent import MemoryClient
from memory_agent.errors import MemoryAgentError, UnavailableError
from relay import Publisher, PublisherSettings, relay_endpoints

PAUSE_S = 0.7
FORGOTTEN = 7  # one in this many memories is forgotten
WAIT_S = 5.0
SETTINGS = PublisherSettings(window=64, ack_timeout_s=0.5, publish_timeout_s=300.0)


class Operations:
    """The file to which one thread appends its operations."""

    def __init__(self, notes: Path, name: str) -> None:
        self._file = (notes / f"{name}.ops").open("a", encoding="utf-8")
        self._stop, self._rest = notes / "stop", notes / "rest"

    def note(self, what: str, user_id: str, **fields: object) -> None:
        """Record an operation that happens or ends now."""
        line = {"what": what, "user": user_id, "at": time.monotonic_ns(), **fields}
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def rounds(self) -> Iterator[int]:
        """Yield round numbers, with a pause after each, until the campaign stops."""
        number = 0
        while not self._stop.exists():
            if not self._rest.exists():
                yield number
                number += 1
            time.sleep(PAUSE_S)


def publish(data_dir: Path, notes: Path, users: list[str]) -> None:
    """In a loop, publish an event to each user and wait for the acknowledgements."""
    operations = Operations(notes, "publish")
    with Publisher(relay_endpoints(data_dir).ingest, settings=SETTINGS) as publisher:
        for number in operations.rounds():
            ids = {user_id: f"{user_id}-event-{number}" for user_id in users}
            for user_id, id_ in ids.items():
                operations.note("add", user_id, id=id_, event=True)
                payload = {"text": f"{id_}: the lamp in room {number} flickers"}
                publisher.publish(
                    {"event_id": id_, "event_type": "chat.user_msg", "user_id": user_id, "payload": payload}
                )
            while (report := publisher.flush(1.0)).pending:
                pass
            assert not report.rejected, report
            for user_id, id_ in ids.items():
                operations.note("added", user_id, id=id_)


def use(data_dir: Path, notes: Path, users: list[str]) -> None:
    """Write and read each user's memories in separate threads. An error in any thread ends the process."""
    threading.excepthook = _end
    threads = [
        threading.Thread(target=work, args=(data_dir, notes, user_id)) for user_id in users for work in (write, read)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def write(data_dir: Path, notes: Path, user_id: str) -> None:
    """Remember texts in a loop, and sometimes forget one."""
    operations, seeded = Operations(notes, f"write-{user_id}"), random.Random(user_id)
    found: dict[str, str] = {}
    for number in operations.rounds():
        id_ = f"{user_id}-note-{number}"
        operations.note("add", user_id, id=id_)
        try:
            with MemoryClient(user_id, data_dir=data_dir) as client:
                client.remember(f"{id_}: staging needs the VPN on day {number}")
                operations.note("added", user_id, id=id_)
                if number % FORGOTTEN:
                    continue
                found = found or {_id(one.text): one.id for one in client.list(limit=200).records}
                if not found:
                    continue
                gone = seeded.choice(sorted(found))
                operations.note("remove", user_id, id=gone)
                client.forget([found.pop(gone)])
                operations.note("removed", user_id, id=gone)
        except MemoryAgentError as error:
            found = {}
            operations.note("failed", user_id, verb="write", code=error.code)


def read(data_dir: Path, notes: Path, user_id: str) -> None:
    """List all memories repeatedly, sometimes after waiting for all events."""
    operations = Operations(notes, f"read-{user_id}")
    for number in operations.rounds():
        try:
            with MemoryClient(user_id, data_dir=data_dir) as client:
                read_once(client, operations)
                if number % 3 == 0:
                    wait_once(client, operations, WAIT_S)
        except MemoryAgentError as error:
            operations.note("failed", user_id, verb="read", code=error.code)


def read_once(client: MemoryClient, operations: Operations) -> None:
    """List a user's memories."""
    begun = time.monotonic_ns()
    ids, after = [], None
    while True:
        page = client.list(limit=1000, after=after)
        ids += [_id(record.text) for record in page.records]
        after = page.next_cursor
        if not after:
            break
    operations.note("read", client.user_id, begun=begun, ids=ids)


def wait_once(client: MemoryClient, operations: Operations, timeout_s: float) -> None:
    """Wait until all events in the journal have become memories."""
    begun = time.monotonic_ns()
    last_seq = client.status().journal.get("last_seq")  # None while the relay does not answer
    if last_seq is None:
        raise UnavailableError("the relay does not answer")
    client.wait({client.user_id: last_seq}, timeout_s)
    operations.note("wait", client.user_id, begun=begun)


def _end(failure: threading.ExceptHookArgs) -> None:
    traceback.print_exception(failure.exc_value)
    os._exit(1)


def _id(text: str) -> str:
    return text.partition(":")[0]


if __name__ == "__main__":
    work, data_dir, notes, *users = sys.argv[1:]
    {"publish": publish, "use": use}[work](Path(data_dir), Path(notes), users)
