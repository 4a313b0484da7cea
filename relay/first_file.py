"""The first file of an LMDB folder: made aside, synced, and moved to its place whole. Knows no engine.

LMDB writes the two pages that begin a new file in one go, into the file's own place. A process or a machine that dies
in the middle leaves half of that, and the folder is then refused for ever, though nothing was ever in it (measured:
SIGKILL within the first write). Rejected: taking such a half for a new file; one that was full and was cut looks alike.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from relay.durable import flush
from relay.pages import DATA_FILE

_ASIDE = "new"


def make_first_file(path: Path, make: Callable[[Path], None]) -> None:
    """Have `make` create an empty environment aside and move its file into `path`, unless there is one. Durable.

    One process at a time, or none does more than its work twice. Raises `OSError`, and what `make` raises.
    """
    file = path / DATA_FILE
    if file.exists() and file.stat().st_size:
        return
    aside = path / _ASIDE
    shutil.rmtree(aside, ignore_errors=True)  # of a process that died
    aside.mkdir(mode=0o700)
    try:
        make(aside)
        flush(aside / DATA_FILE)
        (aside / DATA_FILE).replace(file)
        flush(path)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
