"""An emitter without our library: sends messages over plain ZeroMQ PUB, without acknowledgements, and exits.

    python -m ops.demo.plain_tool MESSAGES --connect URL

The file contains one message per line. The socket is XPUB instead of PUB only because the tool must wait until the
relay subscribes.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import zmq

_SUBSCRIBE_TIMEOUT_MS = 30_000
_TOPIC = b"terminal.command.completed"


def main() -> int:
    """Send the messages; return the exit code, which is 1 if there was no subscriber."""
    parser = argparse.ArgumentParser(prog="python -m ops.demo.plain_tool", description="Send lines over plain PUB.")
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
