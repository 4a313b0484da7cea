"""The scene without a recall request: the memory publishes blocks for a conductor and its worker after a message."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ops.demo.senders import start_process
from ops.demo.stage import HEROINE, Stage

_RUN = "pay-201"
_STEP = "Reproduce the logout of a customer with two tabs at checkout"
_EVENTS = 3
_MOST_MS = 5_000.0


def let_memory_speak(stage: Stage) -> None:
    """Send a message to a conductor; show the block in the conductor's prompt, and the block of its worker."""
    request = stage.story.request[0]
    where = ("--data-dir", str(stage.data_dir), "--user", HEROINE)
    with _ready("ops.demo.conductor", *where) as conductor, _ready("ops.demo.worker", *where, "--run", _RUN) as worker:
        stage.screen.request(f"{HEROINE}'s conductor receives a message, and makes no recall request", request.text)
        message = {"text": request.text, "session_id": "s-speaking", "run_id": _RUN, "step": _STEP}
        assert conductor.stdin is not None
        conductor.stdin.write(json.dumps(message) + "\n")
        conductor.stdin.close()
        plan, step = _line(conductor), _line(worker)
    stage.published += _EVENTS
    stage.wait_until_handled()
    found = stage.client().get(plan.get("memories", []))
    prompt = plan.get("prompt", "")
    block, small = prompt.partition("\n\nThe request:")[0], step.get("text", "")
    stage.screen.block("the beginning of its prompt", block)
    stage.screen.promise(
        f"the block came {plan.get('came_ms', 0.0):.0f} ms after the message was acknowledged, and contains "
        f"{request.expects}, the helpful run",
        request.expects in [record.run_id for record in found] and 0.0 < plan.get("came_ms", 0.0) < _MOST_MS,
    )
    stage.screen.promise(
        "the message itself, although already stored, is not in the block",
        request.text not in block,
    )
    stage.screen.block("what its worker receives for the first step", small)
    stage.screen.promise(
        "the worker receives its own, smaller block, and both begin with what worked",
        0 < len(small) < len(block) and all("approved" in _first_entry(text) for text in (block, small)),
    )


def _first_entry(block: str) -> str:
    return block.partition("\n1. ")[2].partition("\n2. ")[0]


@contextmanager
def _ready(module: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run a demo process, and yield it once it has reported its subscription."""
    with start_process(module, *arguments, stdin=subprocess.PIPE) as process:
        try:
            _line(process)
            yield process
        finally:
            process.kill()


def _line(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Return the process's next JSON line, or {} after it has exited."""
    assert process.stdout is not None
    told: dict[str, Any] = json.loads(process.stdout.readline() or "{}")
    return told
