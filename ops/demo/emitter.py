"""The demo's emitter process: publishes events from a file through the relay and reports acks.

    python -m ops.demo.emitter EVENTS.jsonl --relay URL [--pace-ms 8] [--again 12]

It prints JSON lines: `{"acked": n}` as acks arrive, then a summary. `--again N` sends the last N events a second time,
like an emitter that was restarted and has lost its position.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from relay import Progress, Publisher

_FLUSH_TIMEOUT_S = 60.0


def main() -> int:
    """Publish the events; return the exit code, which is 0 if every event was acknowledged."""
    options = _parse()
    lines = options.events.read_text(encoding="utf-8").splitlines()
    events = [json.loads(line) for line in lines]
    with Publisher(options.relay, on_progress=_tell) as publisher:
        for event in [*events, *events[len(events) - options.again :]]:
            publisher.publish(event)
            time.sleep(options.pace_ms / 1000)  # spreads the events over a few seconds
        report = publisher.flush(_FLUSH_TIMEOUT_S)
    settled = report.acked + report.duplicates
    _print({"published": report.published, "acked": report.acked, "duplicates": report.duplicates})
    return 0 if settled == report.published else 1


def _tell(progress: Progress) -> None:
    _print({"acked": progress.acked + progress.duplicates})


def _print(document: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m ops.demo.emitter", description="Publish events from a file.")
    parser.add_argument("events", type=Path)
    parser.add_argument("--relay", required=True)
    parser.add_argument("--pace-ms", type=float, default=0.0)
    parser.add_argument("--again", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
