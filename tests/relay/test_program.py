"""Test that a program writes its output, runs its exit handlers, does no other cleanup, and exits with its code."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import atexit, sys, threading, time
from relay import run_program

class Cleaned:
    def __del__(self):
        print("cleanup")

kept = Cleaned()

def write_later():
    time.sleep(0.05)
    print("thread")

def main():
    atexit.register(print, "handler")
    threading.Thread(target=write_later).start()
    print("main")
    {end}

run_program(main)
"""


@pytest.mark.parametrize(
    ("end", "code", "error"),
    [
        ("return None", 0, ""),
        ("return 0", 0, ""),
        ("return 3", 3, ""),
        ("sys.exit()", 0, ""),
        ("sys.exit(2)", 2, ""),
        ("sys.exit('no such file')", 1, "no such file\n"),
        ("raise ValueError('a bug')", 1, "ValueError: a bug\n"),
    ],
)
def test_a_program_ends_as_usual_but_skips_the_cleanup(end: str, code: int, error: str) -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM.format(end=end)], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (code, "main\nthread\nhandler\n")
    assert ended.stderr.endswith(error)
    assert bool(ended.stderr) == bool(error)


def test_a_closed_output_does_not_change_the_exit_code() -> None:
    program = "import os\nfrom relay import run_program\nrun_program(lambda: print('lost') or os.close(1) or 4)"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (4, "")
