"""Measures how often a coding agent's hook delivers its block in time while other processes use all cores.

Twenty busy processes compete for two cores. Each prompt starts a hook with the command that `connect` writes into the
settings of clients, and with the default deadline of 300 ms. A prompt counts as answered if the process prints a block
before it exits. Variants alternate, with a pause in between for the daemon to ingest the prompt; no prompt is repeated.
`command` is the hook without the short path, and `bare` is an interpreter that only reads its input. Each variant is
installed in its own environment, as pip would install it, so that the import hooks of the development environment do
not affect the results.

If permitted, this process has real-time priority, so that the measured times do not include its own waits for a core.

    python -m ops.bench.hooks [--quick] [--former CHECKOUT] [--busy 20] [--json]

`--former` adds the hook of another checkout, with that checkout's daemon.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from memory_agent import MemoryClient
from memory_agent.evaluation import temporary_daemon
from memory_agent.integrations import hook_launcher
from memory_agent.settings import DaemonSettings, Settings
from memory_agent.storage.folders import user_folder
from ops.bench.filled_store import MEMORIES, QUICK_MEMORIES, filled_store
from ops.bench.hook import BARE, Timed, time_hook
from ops.bench.spread import percentile, spread
from ops.bench.texts import CHANNEL, queries

_USER = "bench"
_CORES = 2
_TURNS, _PROMPTS, _WARM_UP = 5, 40, 20
_PAUSE_S = 0.7
_HERE = Path(__file__).parents[2]
_SPIN = "while True: pass"
_SCRIPT = (
    "#!{python}\nimport sys\nfrom memory_agent.__main__ import run\nif __name__ == '__main__':\n    sys.exit(run())\n"
)


def measure(store: Path, former: Path | None, busy: int, turns: int = _TURNS) -> dict[str, Any]:
    """Return the figures of each variant; the filled store is not changed."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-hooks-")))
        now = [str(_installed(folder / "now", _HERE)), *_options(stack, store, _HERE)]
        programs = {"hook": [*hook_launcher(), *now], "command": now}
        if former is not None:
            programs["former"] = [str(_installed(folder / "former", former)), *_options(stack, store, former)]
        programs["bare"] = [str(folder / "now" / "bin" / "python"), "-c", BARE]
        took: dict[str, list[list[Timed]]] = {name: [[] for _ in range(turns)] for name in programs}
        stack.enter_context(_busy_processes(busy))
        for turn in range(turns):
            for place, text in enumerate(queries(_PROMPTS, 3_000 + turn)):
                for name, program in programs.items():
                    took[name][turn].append(time_hook(program, text, f"{name}-{turn}-{place}"))
                    time.sleep(_PAUSE_S)
    return {name: _figures(turns) for name, turns in took.items()}


def _options(stack: ExitStack, store: Path, checkout: Path) -> list[str]:
    """Start a daemon from `checkout` with a copy of the store, and warm it up; return the arguments of its hook."""
    with _python_path(checkout):
        data_dir = stack.enter_context(temporary_daemon(Settings(daemon=DaemonSettings(light=True))))
    shutil.copytree(store, user_folder(data_dir, _USER))
    with MemoryClient(_USER, data_dir=data_dir) as client:
        for text in queries(_WARM_UP, seed=1):
            client.recall(text)
    return ["hook", "claude-code", "--user", _USER, "--channel", CHANNEL, "--data-dir", str(data_dir)]


@contextmanager
def _python_path(checkout: Path) -> Iterator[None]:
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(checkout)
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def _figures(turns: list[list[Timed]]) -> dict[str, Any]:
    everything = [one for turn in turns for one in turn]
    lines = [one.line_ms for one in everything]
    return {
        "answered": spread([100 * sum(math.isfinite(one.line_ms) for one in turn) / len(turn) for turn in turns], 1),
        "line_p50_ms": round(percentile(lines, 50), 1),
        "line_p99_ms": round(percentile(lines, 99), 1),
        "end_p50_ms": round(percentile([one.end_ms for one in everything], 50), 1),
        "end_p99_ms": round(percentile([one.end_ms for one in everything], 99), 1),
        "processor_ms": spread([percentile([one.processor_ms for one in turn], 50) for turn in turns]),
        "prompts": len(everything),
    }


def _installed(folder: Path, checkout: Path) -> Path:
    """Create an environment with the package from `checkout`, and return its program."""
    venv.create(folder)
    python = folder / "bin" / "python"
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "bench.pth").write_text(f"{checkout}\n{sysconfig.get_path('purelib')}\n")
    program = folder / "bin" / "memory-agent"
    program.write_text(_SCRIPT.format(python=python))
    program.chmod(0o755)
    return program


@contextmanager
def _busy_processes(count: int) -> Iterator[None]:
    processes = [subprocess.Popen([sys.executable, "-c", _SPIN]) for _ in range(count)]
    try:
        with suppress(PermissionError):
            os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def main() -> None:
    """Run the benchmark and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--former", type=Path)
    parser.add_argument("--busy", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:_CORES])  # inherited by the daemons, hooks and competitors
    former = None if given.former is None else given.former.absolute()
    with filled_store(QUICK_MEMORIES if given.quick else MEMORIES) as store:
        figures = measure(store, former, given.busy, 1 if given.quick else _TURNS)
    if given.json:
        print(json.dumps(figures, indent=2))
        return
    for name, one in figures.items():
        print(f"{name:8} {one}")


if __name__ == "__main__":
    main()
