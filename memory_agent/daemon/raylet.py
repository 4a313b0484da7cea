"""Runs one machine's part of the daemon's Ray: `python -m memory_agent.daemon.raylet NAME ADDRESS GCS`.

It is a separate process, because Ray reads its variables once, when it is imported, and a restarted daemon sends new
ones.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

from memory_agent.daemon.ray_supervisor import Raylet

_CHECK_S = 0.5


def main(name: str, address: str, gcs: str) -> int:
    """Run until SIGTERM, or until the parent or the raylet exits; return the exit code."""
    parent = os.getppid()
    stopped = False

    def stop(*_: object) -> None:
        nonlocal stopped
        stopped = True

    raylet = Raylet(name, address, gcs)
    try:
        for number in (signal.SIGTERM, signal.SIGINT):  # Ray has set its own handlers
            signal.signal(number, stop)
        sys.stdout.write(json.dumps({"ready": True}) + "\n")
        sys.stdout.flush()
        while not stopped and os.getppid() == parent and raylet.alive():
            time.sleep(_CHECK_S)
    finally:
        raylet.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
