"""The embedder process: `python -m memory_agent.embedders --endpoint ipc://...`.

It prints one line of JSON when it is ready. It exits on SIGTERM or SIGINT, or when `--parent-pid` is no longer its
parent.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from pathlib import Path

import msgspec

from memory_agent.embedders.malloc import return_freed_memory
from memory_agent.embedders.server import open_server
from memory_agent.embedders.weights import PACKAGE, cache_folder
from memory_agent.errors import MemoryAgentError
from memory_agent.settings import AnyEmbedder, EmbedderSettings, TracingSettings
from memory_agent.tracing import start_tracing_if_possible, stop_tracing
from relay import described, run_program
from relay.log import configure_logging


def main(arguments: list[str] | None = None) -> int:
    """Serve until a signal; return the exit code."""
    options = _parse(arguments)
    return_freed_memory()
    configure_logging("info")
    signals: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: signals.append(number))
    try:
        given = (options.settings, options.former)
        settings, former = (msgspec.json.decode(text, type=described(AnyEmbedder | None)) for text in given)
        start_tracing_if_possible(msgspec.json.decode(options.tracing, type=described(TracingSettings)))
        server = open_server(
            options.endpoint, settings or EmbedderSettings(), options.cache, options.package, former=former
        )
    except (MemoryAgentError, msgspec.MsgspecError) as error:
        sys.stderr.write(f"memory_agent.embedders: {error}\n")
        return 2
    ready = {
        "ready": True,
        "endpoint": server.endpoint,
        "pid": os.getpid(),
        "model": server.model,
        "problem": server.problem.code if server.problem else None,
    }
    sys.stdout.write(json.dumps(ready) + "\n")
    sys.stdout.flush()
    server.serve(lambda: not signals and options.parent_pid in (0, os.getppid()))
    stop_tracing()
    return 0


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m memory_agent.embedders", description=__doc__)
    parser.add_argument("--endpoint", required=True, help="address to listen on, ipc:///path or tcp://127.0.0.1:*")
    parser.add_argument("--settings", default="null", help="the embedder's settings as JSON")
    parser.add_argument("--former", default="null", help="the former embedder's settings as JSON")
    parser.add_argument("--tracing", default="{}", help="the tracing settings as JSON")
    parser.add_argument("--cache", type=Path, default=cache_folder(), help="folder for downloaded and built models")
    parser.add_argument("--package", default=PACKAGE, help="distribution that may contain the weights (empty for none)")
    parser.add_argument("--parent-pid", type=int, default=0, help="exit when this process is no longer the parent")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    run_program(main)
