"""The command `memory-agent`; also `python -m memory_agent`."""

from __future__ import annotations

import os
import sys

INTERRUPTED = 130


def main() -> None:
    """Run the command line; Ctrl-C ends it with exit code 130."""
    try:
        from memory_agent.cli.group import cli  # inside, so that Ctrl-C while the imports run is clean too

        cli(prog_name="memory-agent")
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    finally:
        _discard_unwritable()


def _discard_unwritable() -> None:
    """Drop what standard output and error could not write; at exit Python would try again, and exit with 120."""
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


if __name__ == "__main__":
    main()
