"""The command `memory-agent`; also `python -m memory_agent`."""

from __future__ import annotations

import sys

INTERRUPTED = 130


def main() -> None:
    """Run the command line; Ctrl-C ends it with exit code 130."""
    try:
        from memory_agent.cli.group import cli  # inside, so that Ctrl-C while the imports run is clean too

        cli(prog_name="memory-agent")
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
