"""A publisher process for the crash tests: publishes numbered events in order, and records each acknowledgement.

    python publish_numbered.py INGEST PRODUCER COUNT ACKED_FILE [SPOOL]

A line is written to ACKED_FILE only when the relay has acknowledged the event.
"""

from __future__ import annotations

import sys
from pathlib import Path

from relay import Publisher, PublisherSettings

CHUNK = 25
SETTINGS = PublisherSettings(window=64, ack_timeout_s=0.2, publish_timeout_s=60.0)


def event(producer: str, number: int) -> dict[str, object]:
    return {
        "event_id": f"{producer}-{number:06d}",
        "event_type": "worker.task.progress",
        "user_id": f"user-{number % 3}",
        "actor_id": producer,
        "payload": {"number": number, "text": "x" * 200},
    }


def main(ingest: str, producer: str, count: int, acked_file: Path, spool: Path | None) -> None:
    with (
        Publisher(ingest, settings=SETTINGS, spool=spool) as publisher,
        acked_file.open("a", encoding="utf-8") as acked,
    ):
        for start in range(0, count, CHUNK):
            ids = [publisher.publish(event(producer, number)) for number in range(start, min(start + CHUNK, count))]
            report = publisher.flush(60.0)
            assert report.acked + report.duplicates == start + len(ids), report
            acked.writelines(f"{event_id}\n" for event_id in ids)
            acked.flush()


if __name__ == "__main__":
    main(
        sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]), Path(sys.argv[5]) if len(sys.argv) > 5 else None
    )
