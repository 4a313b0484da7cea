"""The entry point of the command `memory-agent`, also run by `python -m memory_agent`."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from memory_agent.cli.exit_codes import ExitCode
from relay import run_program

_HOOK = "hook"


def run() -> NoReturn:
    """Run this process's command line, then exit."""
    run_program(main)


def main() -> None:
    """Run the command line; Ctrl-C exits with code 130."""
    try:
        if sys.argv[1:2] == [_HOOK]:
            return _hook()
        from memory_agent.cli.group import cli  # imported here, so that Ctrl-C during imports is handled too

        cli(prog_name="memory-agent")
    except KeyboardInterrupt:
        sys.exit(ExitCode.INTERRUPTED)
    finally:
        _discard_unwritable()


def _discard_unwritable() -> None:
    """Discard unwritten output. Otherwise, Python would try to write it again at exit, and would exit with code 120."""
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _hook() -> None:
    """Run the command `hook` without importing the other commands, unless its arguments need the full parser."""
    from memory_agent.hooks.process import plain_options, run_hook

    options = plain_options(sys.argv[2:])
    if options is not None:
        run_hook(options)
    from memory_agent.cli.group import cli

    try:
        cli(prog_name="memory-agent")
    except SystemExit as exit:
        # Exit code 2 from a hook tells the client to stop, so invalid arguments exit with another code.
        sys.exit(ExitCode.FAILED if exit.code == ExitCode.MISUSED else exit.code)


if __name__ == "__main__":
    run()
