"""The relay as a process that copies its journal to the archive: `python -m memory_agent.daemon.relay_process`.

Takes the options of `python -m relay`, and `--archive FILE` with the archive's settings in JSON.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import msgspec

from memory_agent.archiving import archived_journal
from memory_agent.settings import ArchiveSettings
from relay import described, run_program, run_relay
from relay.disk import write_private


def relay_command(settings: ArchiveSettings, run: Path) -> tuple[str, tuple[str, ...]]:
    """Return the module to run as the relay, and its options. Writes the archive's settings to a file in `run`."""
    if archived_journal(settings) is None:
        return "relay", ()
    file = run / "relay-archive.json"
    write_private(file, msgspec.json.encode(settings))  # the options may contain secrets
    return __name__, ("--archive", str(file))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--archive", type=Path, required=True)
    options, others = parser.parse_known_args(arguments)
    settings = msgspec.json.decode(options.archive.read_bytes(), type=described(ArchiveSettings))
    return run_relay(others, archived_journal(settings))


if __name__ == "__main__":
    run_program(main)
