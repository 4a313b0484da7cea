"""Publishes events from a process of their own, as emitters do, through the relay, until all are recallable.

It runs the verb `publish --wait` of the command line; its progress bars appear on our standard error.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from memory_agent.errors import UnavailableError
from memory_agent.evaluation.daemon_process import child_environment


class PublishSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What `publish --json` prints. Times are seconds since the first event was handed to the publisher."""

    published: int
    acknowledged: int
    duplicates: int
    rejected: int
    spooled: int
    acked_through: dict[str, int]
    acknowledged_s: float
    recallable_s: float | None


def publish_events(events: Iterable[dict[str, Any]], file: Path, data_dir: Path, timeout_s: float) -> PublishSummary:
    """Write the events to `file`, publish them to the daemon of `data_dir`, return when all are recallable.

    Raises `UnavailableError` when the publisher fails; it has told why on standard error.
    """
    encode = msgspec.json.encode
    file.write_bytes(b"".join(encode(event) + b"\n" for event in events))
    options = ["--data-dir", str(data_dir), "--wait", "--timeout", str(timeout_s), "--json"]
    command = [sys.executable, "-m", "memory_agent", "publish", str(file), *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, env=child_environment(), check=False)
    if done.returncode != 0:
        raise UnavailableError(f"the publisher ended with exit code {done.returncode}")
    return msgspec.json.decode(done.stdout, type=PublishSummary)
