"""Test that two threads can decode a type for the first time concurrently, which crashes plain msgspec."""

from __future__ import annotations

import subprocess
import sys

DECODING = """
import sys
import threading
import msgspec
from relay import described

sys.setswitchinterval(1e-6)
data = msgspec.msgpack.encode({f"f{number}": [] for number in range(20)})
for turn in range(200):
    inner = msgspec.defstruct("Inner", [(f"f{number}", dict[str, list[int]] | None, None) for number in range(30)])
    outer = msgspec.defstruct("Outer", [(f"f{number}", list[inner]) for number in range(20)])
    barrier = threading.Barrier(4)

    def decode():
        barrier.wait()
        msgspec.msgpack.decode(data, type=described(outer))

    threads = [threading.Thread(target=decode) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def test_threads_that_first_decode_a_type_at_the_same_time_do_not_crash() -> None:
    done = subprocess.run([sys.executable, "-c", DECODING], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
