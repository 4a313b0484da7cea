"""Measures the overhead of tracing. Two daemons with identical stores answer the same recalls; one traces all of them.

The daemons take turns in short blocks, with the same queries. Processor time is that of all processes of a daemon,
including the export of the spans to a collector, which is a process of its own. Without `--full`, the daemons run
without Ray. Recording and exporting the spans of a recall is also measured separately, because the daemons' figures
vary by more than its cost.

To run only this benchmark: `python -m ops.bench.tracing [--quick] [--full]`.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from memory_agent import MemoryClient
from memory_agent.evaluation import temporary_daemon
from memory_agent.records.memories import RecallResult
from memory_agent.settings import DaemonSettings, Settings, TracingSettings
from memory_agent.storage.folders import user_folder
from memory_agent.tracing import client_span, current_span, server_span, start_tracing, stop_tracing
from ops.bench.filled_store import MEMORIES, QUICK_MEMORIES, filled_store
from ops.bench.spread import Spread, spread
from ops.bench.texts import queries
from ops.process_memory import measure_tree, process_tree

_USER = "bench"
_BLOCKS = 120
_RECALLS = 30
_DRAWS = 2_000
_TURNS = 9
_ALONE = 500  # the maximum number of waiting spans
_FOUND = RecallResult(recall_id="", memories=())
_WARM_UP = 60
_COLLECTOR = """
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Collector(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()
    def log_message(self, *_): pass
server = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
print(server.server_port, flush=True)
server.serve_forever()
"""


def measure(store: Path, *, is_light: bool) -> dict[str, Any]:
    """Return the processor time of a recall in ms without and with traces, and the share that traces add."""
    with ExitStack() as stack:
        traced = TracingSettings(endpoint=stack.enter_context(_collector()))
        tables = {"off": TracingSettings(), "on": traced}
        asked = {
            name: _Asked(stack, store, Settings(daemon=DaemonSettings(light=is_light), tracing=tracing))
            for name, tracing in tables.items()
        }
        found = _take_turns(asked)
        return {
            "recall_processor_ms": {name: spread(values, digits=3) for name, values in found.items()},
            "added_share": _added(found["off"], found["on"]),
            "spans_us": spread([_spans_us(traced) for _ in range(_TURNS)], digits=1),
            "pss_mb": {name: one.pss_mb() for name, one in asked.items()},
        }


def _take_turns(asked: Mapping[str, _Asked]) -> dict[str, list[float]]:
    """Return the processor times of a recall, by daemon and block."""
    for one in asked.values():
        one.recall(queries(_WARM_UP, seed=1))
    found: dict[str, list[float]] = {name: [] for name in asked}
    for block in range(_BLOCKS):
        for name in sorted(asked, reverse=bool(block % 2)):
            found[name].append(asked[name].recall(queries(_RECALLS, seed=100 + block)))
    return found


def _added(without: Sequence[float], traced: Sequence[float]) -> Spread:
    """Return by what share `traced` exceeds `without`: the median over blocks, with a 95 % interval (bootstrap)."""
    shares = [two / one - 1 for one, two in zip(without, traced, strict=True)]
    drawn = np.random.default_rng(0).choice(shares, (_DRAWS, len(shares)))
    low, high = np.percentile(np.median(drawn, axis=1), (2.5, 97.5))
    return {"median": round(statistics.median(shares), 4), "from": round(float(low), 4), "to": round(float(high), 4)}


def _spans_us(settings: TracingSettings) -> float:
    """Return the processor time that a recall's spans take in this process, including their export in batches."""
    began_s = time.process_time()
    start_tracing(settings)
    for _ in range(_ALONE):
        with server_span("door", "recall", may_begin=True), client_span("daemon", "recall") as hop:
            pass
        with server_span("host", "recall", hop.traceparent) as host:
            for stage in ("words", "embedding", "search", "ranking"):
                current_span().mark(stage)
            host.note(_FOUND)
        server_span("embedder", "query", host.traceparent).end()
    stop_tracing()
    return (time.process_time() - began_s) * 1e6 / _ALONE


class _Asked:
    """A daemon with one client."""

    def __init__(self, stack: ExitStack, store: Path, settings: Settings) -> None:
        data_dir = stack.enter_context(temporary_daemon(settings))
        shutil.copytree(store, user_folder(data_dir, _USER))
        self._client = stack.enter_context(MemoryClient(_USER, data_dir=data_dir))
        pid = next(part.pid for part in self._client.status().parts if part.name == "daemon")
        assert pid is not None
        self._pid = pid

    def recall(self, texts: list[str]) -> float:
        """Return the processor time of a recall in ms."""
        began_s = self._processor_s()
        for text in texts:
            self._client.recall(text)
        return (self._processor_s() - began_s) * 1000 / len(texts)

    def pss_mb(self) -> float:
        """Return the memory of all processes."""
        return round(sum(process.pss_bytes for process in measure_tree(self._pid)) / 1e6, 1)

    def _processor_s(self) -> float:
        return sum(_times_s(process.pid) for process in process_tree(self._pid))


def _times_s(pid: int) -> float:
    """Return the processor time of all threads of a process in seconds, to the nanosecond (`/proc/PID/schedstat`)."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat") if psutil.pid_exists(pid) else ()
    return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9


@contextmanager
def _collector() -> Iterator[str]:
    """Run a collector that discards spans; yield its address."""
    process = subprocess.Popen([sys.executable, "-c", _COLLECTOR], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def main(arguments: list[str]) -> None:
    """Print the figures as JSON."""
    began_s = time.perf_counter()
    with filled_store(QUICK_MEMORIES if "--quick" in arguments else MEMORIES) as store:
        figures = measure(store, is_light="--full" not in arguments)
    print(json.dumps({**figures, "took_s": round(time.perf_counter() - began_s)}, indent=2))


if __name__ == "__main__":
    main(sys.argv[1:])
