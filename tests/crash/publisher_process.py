"""A publisher in the laboratory: publishes numbered events until it is stopped, and records each promise.

    python -m tests.crash.publisher_process DATA_DIR NAME NOTES_FOLDER [--spool FOLDER] [--pace SECONDS]

Each line of NOTES_FOLDER/NAME.acked is the id of an event that the relay acknowledged or the spool accepted. The line
is on disk before the next event is sent. A restarted publisher continues after the last line. The process exits once
the file NOTES_FOLDER/stop exists and everything is acknowledged.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

from relay import Publisher, PublisherSettings, SpoolFullError, relay_endpoints

from .events import event

CHUNK = 8
AHEAD = 200  # maximum number of pending events; a run ends when all events are ingested
UNBOUNDED = ("stop", "unbounded")  # while either file exists, this limit does not apply: at the end, or without a relay
SETTINGS = PublisherSettings(window=64, ack_timeout_s=0.2, publish_timeout_s=120.0, full_pause_s=0.05)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data_dir", type=Path)
    parser.add_argument("name")
    parser.add_argument("notes", type=Path)
    parser.add_argument("--spool", type=Path)
    parser.add_argument("--pace", type=float, default=0.0)
    options = parser.parse_args()
    file = options.notes / f"{options.name}.acked"
    number = len(file.read_text(encoding="utf-8").splitlines()) if file.exists() else 0
    ingest = relay_endpoints(options.data_dir).ingest
    with (
        Publisher(ingest, settings=SETTINGS, spool=options.spool) as publisher,
        file.open("a", encoding="utf-8") as acked,
    ):
        while not (options.notes / "stop").exists():
            ids = [_publish(publisher, event(options.name, number + place)) for place in range(CHUNK)]
            number += CHUNK
            report = publisher.flush(0.3)
            while report.pending:
                report = publisher.flush(0.3)
            assert not report.rejected, report
            acked.writelines(f"{event_id}\n" for event_id in ids)
            acked.flush()
            os.fsync(acked.fileno())
            time.sleep(options.pace)
            while number > AHEAD + _taken(options.notes) and not _is_unbounded(options.notes):
                time.sleep(0.05)
        report = publisher.flush(120.0)
        assert not report.pending, report
        assert not report.spooled, report


def _publish(publisher: Publisher, mapping: dict[str, object]) -> str:
    """Publish an event, retrying while the spool is full."""
    while True:
        try:
            return publisher.publish(mapping)
        except SpoolFullError:
            time.sleep(SETTINGS.full_pause_s)


def _is_unbounded(notes: Path) -> bool:
    return any((notes / name).exists() for name in UNBOUNDED)


def _taken(notes: Path) -> int:
    """Return half the number of ids that the owner recorded, because there are two publishers."""
    file = notes / "taken"
    return file.read_bytes().count(b"\n") // 2 if file.exists() else 0


if __name__ == "__main__":
    main()
