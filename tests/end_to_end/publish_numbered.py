"""A publisher process for the crash tests: publishes numbered requests of several users, and records each ack.

    python publish_numbered.py DATA_DIR FIRST COUNT ACKED_FILE USER...

Each line of ACKED_FILE is the id of an acknowledged event. The line is synced before the next event is sent.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from relay import Publisher, relay_endpoints

CHUNK = 20
ROOMS = ("kitchen", "archive", "harbour", "workshop", "library", "cellar", "garden", "station")


def event(number: int, users: list[str]) -> dict[str, object]:
    room = ROOMS[number % len(ROOMS)]
    return {
        "event_id": f"event-{number:06d}",
        "event_type": "chat.user_msg",
        "timestamp": "2026-02-16T10:00:00Z",
        "user_id": users[number % len(users)],
        "session_id": f"session-{number % 7}",
        "payload": {"text": f"Please check lamp number {number} in the {room} and note what you find"},
    }


def main(data_dir: Path, first: int, count: int, acked_file: Path, users: list[str]) -> None:
    with Publisher(relay_endpoints(data_dir).ingest) as publisher, open(acked_file, "a", encoding="utf-8") as acked:
        for start in range(first, first + count, CHUNK):
            numbers = range(start, min(start + CHUNK, first + count))
            ids = [publisher.publish(event(number, users), timeout_s=120.0) for number in numbers]
            report = publisher.flush(timeout_s=120.0)
            assert not report.pending, report
            acked.writelines(f"{event_id}\n" for event_id in ids)
            acked.flush()
            os.fsync(acked.fileno())


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]), sys.argv[5:])
