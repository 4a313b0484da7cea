"""Repeatedly opens a journal that is damaged in a different way each time, and prints each outcome. Run as a
process.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
from pathlib import Path

from relay import Journal, RelayError

PAGE_BYTES = 4096


def damage(content: bytearray, rng: random.Random) -> str:
    """Zero a tail or a page, or overwrite a page with noise, as a failing disk might."""
    kind = rng.choice(("tail", "page", "noise"))
    pages = len(content) // PAGE_BYTES
    first = rng.randrange(2, pages)
    last = pages if kind == "tail" else first + 1
    size = (last - first) * PAGE_BYTES
    content[first * PAGE_BYTES : last * PAGE_BYTES] = rng.randbytes(size) if kind == "noise" else bytes(size)
    return kind


def outcome(folder: Path) -> str:
    try:
        with Journal.open(folder) as journal:
            journal.fetch(0, 10_000, 64 << 20)
            journal.stats()
    except RelayError as error:
        return error.code
    return "read"


def main(source: Path, scratch: Path, seed: int, times: int) -> None:
    rng = random.Random(seed)
    ends: list[tuple[str, str]] = []
    for _ in range(times):
        shutil.rmtree(scratch, ignore_errors=True)
        shutil.copytree(source, scratch)
        content = bytearray((source / "data.mdb").read_bytes())
        kind = damage(content, rng)
        (scratch / "data.mdb").write_bytes(content)
        ends.append((kind, outcome(scratch)))
        assert (scratch / "data.mdb").read_bytes() == content or ends[-1][1] == "read"
    print(json.dumps(ends))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
