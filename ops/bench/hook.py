"""Measures a coding agent's hook: the time from a prompt until its context arrives, and until the hook exits.

As in a client, each prompt starts a hook process with the default deadline. The hook publishes the prompt's events
during the recall. The baseline is an interpreter that only reads its input. Variants alternate, and no prompt is
repeated.

To run only this benchmark: `python -m ops.bench --only hook [--quick] [--json]`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from memory_agent import MemoryClient
from memory_agent.evaluation import child_environment, temporary_daemon
from memory_agent.settings import Settings
from memory_agent.storage.folders import user_folder
from ops.bench.spread import percentile, spread
from ops.bench.texts import CHANNEL, queries

_USER = "bench"
_TURNS = 5
_PROMPTS = 40
_WARM_UP = 20
BARE = "import sys; sys.stdin.buffer.read(); print(flush=True)"


class Timed(NamedTuple):
    """Milliseconds until the first output line (infinite if there is none) and until exit, and the processor time."""

    line_ms: float
    end_ms: float
    processor_ms: float


def measure(store: Path) -> dict[str, Any]:
    """Return the measurements; the filled store is not changed."""
    with temporary_daemon(Settings()) as data_dir:
        shutil.copytree(store, user_folder(data_dir, _USER))
        hook = [str(Path(sys.executable).with_name("memory-agent")), "hook", "claude-code", "--data-dir", str(data_dir)]
        programs = {
            "hook": [*hook, "--user", _USER, "--channel", CHANNEL],
            "bare": [sys.executable, "-c", BARE],
        }
        with MemoryClient(_USER, data_dir=data_dir) as client:
            for text in queries(_WARM_UP, seed=1):
                client.recall(text)
        took: dict[str, list[list[Timed]]] = {name: [[] for _ in range(_TURNS)] for name in programs}
        for turn in range(_TURNS):
            for place, text in enumerate(queries(_PROMPTS, 3_000 + turn)):
                for name, program in programs.items():
                    took[name][turn].append(time_hook(program, text, f"{turn}-{place}"))
    figures: dict[str, Any] = {}
    for name, turns in took.items():
        everything = [one for turn in turns for one in turn]
        answered = [one.line_ms for one in everything if one.line_ms != float("inf")]
        figures[name] = {
            "p50_ms": spread([percentile([one.line_ms for one in turn], 50) for turn in turns]),
            "p99_ms": round(percentile(answered, 99), 1),
            "processor_ms": spread([percentile([one.processor_ms for one in turn], 50) for turn in turns]),
            "end_p99_ms": round(percentile([one.end_ms for one in everything], 99), 1),
            "answered": len(answered),
            "prompts": len(everything),
        }
    return figures


def time_hook(program: list[str], prompt: str, number: str) -> Timed:
    """Run a hook for a prompt; `number` identifies its session and turn."""
    said = {"hook_event_name": "UserPromptSubmit", "session_id": f"s-{number}", "prompt_id": number, "prompt": prompt}
    reading, writing = os.pipe()  # filled beforehand, so that the hook never waits for this process
    os.write(writing, json.dumps(said).encode())
    os.close(writing)
    started_s = time.perf_counter()
    with subprocess.Popen(program, stdin=reading, stdout=subprocess.PIPE, env=child_environment()) as process:
        os.close(reading)
        assert process.stdout is not None
        line = process.stdout.readline()
        line_ms = (time.perf_counter() - started_s) * 1000
        _, status, used = os.wait4(process.pid, 0)
        end_ms = (time.perf_counter() - started_s) * 1000
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return Timed(line_ms if line else float("inf"), end_ms, (used.ru_utime + used.ru_stime) * 1000)
