"""The relay as a process: `python -m relay --data-dir DIR`.

Prints one JSON line with its endpoints when it is ready, and logs to standard error. Exits with status 0 after SIGTERM,
1 on an error, and 2 on an invalid setting. With `--parent-pid`, it also exits soon after the given process stops being
its parent.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from relay.broker import Broker, open_after_former
from relay.config import RelaySettings, load_settings
from relay.errors import RelayError, RelaySettingsError
from relay.journal import JournalCopy
from relay.log import LEVELS, configure_logging
from relay.program import run_program


def run_relay(arguments: Sequence[str] | None = None, copy: JournalCopy | None = None) -> int:
    """Run a relay until SIGTERM or SIGINT; return the exit code. `copy`: as for `Broker`."""
    options = _parse(arguments)
    configure_logging(options.log_level)
    try:
        _serve(options.data_dir, _settings(options), options.parent_pid, copy)
    except RelayError as error:
        print(f"relay: {error} [{error.code}]", file=sys.stderr)  # noqa: T201
        return 2 if isinstance(error, RelaySettingsError) else 1
    return 0


def _serve(data_dir: Path, settings: RelaySettings, parent_pid: int, copy: JournalCopy | None) -> None:
    broker = open_after_former(data_dir, settings, copy) if parent_pid else Broker(data_dir, settings, copy)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: broker.stop())
    ready = {"ready": True, **broker.listening, "pid": os.getpid()}
    print(json.dumps(ready), flush=True)  # noqa: T201
    broker.run(lambda: parent_pid in (0, os.getppid()))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m relay",
        description="Run only the event bus: durable journal, acknowledged intake, replay by cursor.",
        epilog="example: python -m relay --data-dir data --pub-bind tcp://127.0.0.1:5555",
    )
    parser.add_argument("--data-dir", type=Path, required=True, help="folder for the journal and the socket files")
    parser.add_argument(
        "--config", type=Path, help="TOML settings file, with tables such as events, journal and broker"
    )
    parser.add_argument("--pub-bind", action="append", default=[], help="endpoint to which plain PUB emitters connect")
    parser.add_argument("--pub-connect", action="append", default=[], help="endpoint to which a PUB emitter is bound")
    parser.add_argument("--parent-pid", type=int, default=0, help="exit when this process is no longer the parent")
    parser.add_argument("--log-level", choices=LEVELS, default="info")
    return parser.parse_args(arguments)


def _settings(options: argparse.Namespace) -> RelaySettings:
    settings = load_settings(options.config) if options.config else RelaySettings()
    broker = msgspec.structs.replace(
        settings.broker,
        pub_bind=settings.broker.pub_bind + tuple(options.pub_bind),
        pub_connect=settings.broker.pub_connect + tuple(options.pub_connect),
    )
    return msgspec.structs.replace(settings, broker=broker)


if __name__ == "__main__":
    run_program(run_relay)
