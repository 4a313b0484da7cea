"""The demo's worker process: starts the first step of its run with the small block that the memory publishes for it.

    python -m ops.demo.worker --data-dir DIR --user alice --run RUN

It prints one JSON line when it is ready, and another with the step's block.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from memory_agent import MemoryClient

_PATIENCE_S = 30.0


def main() -> int:
    """Wait for the step's block; return the exit code, which is 1 if the block did not arrive."""
    parser = argparse.ArgumentParser(prog="python -m ops.demo.worker", description="Run a step with memory's block.")
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--user", required=True)
    parser.add_argument("--run", required=True)
    options = parser.parse_args()
    with (
        MemoryClient(options.user, data_dir=options.data_dir) as memory,
        memory.blocks(role="worker", run=options.run) as blocks,
    ):
        print(json.dumps({"ready": True}), flush=True)
        while (block := blocks.wait(_PATIENCE_S)) is not None:
            if block.trigger == "assignment":
                print(json.dumps({"run_id": block.run_id, "text": block.text}), flush=True)
                return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
