"""Runs functions of a test file in forks of one process, because imports take longer than most functions."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO


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


def kill_after(count: int, act: Callable[[IO[str]], object]) -> list[str]:
    """Call `act` in a fork, and kill it with SIGKILL after it has written `count` lines. Return all lines that it wrote
    completely.
    """
    read_end, write_end = os.pipe()
    child = os.fork()
    if not child:
        with open(write_end, "w") as lines:
            act(lines)
        os._exit(1)
    os.close(write_end)
    with open(read_end) as said:
        first = [said.readline() for _ in range(count)]
        os.kill(child, signal.SIGKILL)
        rest = said.read()
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
    return ("".join(first) + rest).split("\n")[:-1]


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
