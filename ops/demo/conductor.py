"""The demo's conductor process: plans each message with the context block that memory publishes for it.

    python -m ops.demo.conductor --data-dir DIR --user alice

A conductor without memory publishes the same events. This one also subscribes to blocks, and puts each block at the
start of its prompt. It reads one JSON line per message. It prints a JSON line when it is ready, and another line for
each plan.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from memory_agent import MemoryClient
from memory_agent.client import Blocks
from relay import Publisher, relay_endpoints

_PATIENCE_S = 10.0


def main() -> int:
    """Plan every message; return the exit code, which is 1 if a block did not arrive."""
    options = _parse()
    with (
        MemoryClient(options.user, data_dir=options.data_dir) as memory,
        memory.blocks(role="conductor") as blocks,
        Publisher(relay_endpoints(options.data_dir).ingest) as publisher,
    ):
        _print({"ready": True})
        return max((_plan(json.loads(line), options.user, publisher, blocks) for line in sys.stdin), default=0)


def _plan(message: dict[str, Any], user: str, publisher: Publisher, blocks: Blocks) -> int:
    """Publish the message, wait for its block, and start the planned run."""
    of_user = {"user_id": user, "session_id": message["session_id"]}
    cause = publisher.publish({"event_type": "chat.user_msg", "payload": {"text": message["text"]}, **of_user})
    publisher.flush()
    acked_s = time.perf_counter()
    while (block := blocks.wait(_PATIENCE_S)) is not None and block.cause_event_id != cause:
        pass
    if block is None:
        return 1
    came_ms = (time.perf_counter() - acked_s) * 1000
    run = {"run_id": message["run_id"], "objective": message["text"], "recall_id": block.recall_id}
    publisher.publish({"event_type": "conductor.run.started", "payload": run, **of_user})
    step = {"run_id": message["run_id"], "objective": message["step"], "worker_id": "worker-1"}
    publisher.publish({"event_type": "conductor.assignment.dispatched", "payload": step, **of_user})
    publisher.flush()
    prompt = f"{block.text}\n\nThe request: {message['text']}\nPlan the steps."
    _print({"came_ms": came_ms, "memories": [one.id for one in block.memories], "prompt": prompt})
    return 0


def _print(document: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m ops.demo.conductor", description="Plan with memory's blocks.")
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--user", required=True)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
