"""A tool that knows nothing of us: sends messages as plain ZeroMQ PUB and goes away.

    python -m ops.demo.plain_tool MESSAGES --connect URL

One message a line. It is an XPUB socket so that it can wait until the relay listens; otherwise it is what any PUB
emitter is, acknowledgements included: there are none.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import zmq

_SUBSCRIBE_TIMEOUT_MS = 30_000
_TOPIC = b"terminal.command.completed"


def main() -> int:
    """Send; exit code 1 when nobody subscribed."""
    parser = argparse.ArgumentParser(prog="python -m ops.demo.plain_tool", description="Sends lines as plain PUB.")
    parser.add_argument("messages", type=Path)
    parser.add_argument("--connect", required=True)
    options = parser.parse_args()
    with zmq.Context() as context, context.socket(zmq.XPUB) as socket:
        socket.connect(options.connect)
        if not socket.poll(_SUBSCRIBE_TIMEOUT_MS):
            return 1
        socket.recv()
        for line in options.messages.read_bytes().splitlines():
            socket.send_multipart([_TOPIC, line])
    return 0


if __name__ == "__main__":
    sys.exit(main())
