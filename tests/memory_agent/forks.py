"""Runs a function of a test file in forks of one process, because imports take longer than most functions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def forking(file: str) -> Iterator[Callable[..., int]]:
    """Run `file` as a program that calls `serve`. Yield a function that passes arguments to a fork, and returns the
    exit status of the fork.
    """
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, file]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:

        def run(*arguments: object) -> int:
            assert process.stdin is not None
            assert process.stdout is not None
            print(json.dumps(arguments, default=str), file=process.stdin, flush=True)
            return int(process.stdout.readline())

        try:
            yield run
        finally:
            process.kill()  # also if a fork hangs


def serve(act: Callable[..., object]) -> None:
    """Call `act` in a fork for each list of arguments on standard input, and print the exit status of each fork."""
    for line in sys.stdin:
        child = os.fork()
        if not child:
            try:
                act(*json.loads(line))
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
