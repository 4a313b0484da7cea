"""A file or a folder on the disk: what was written to it, or which names it holds."""

from __future__ import annotations

import os
from pathlib import Path


def flush(path: Path) -> None:
    """Return when a file, or the names in a folder, are on the disk. Raises `OSError`."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
