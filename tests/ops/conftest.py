"""Adds `ops`, which is not distributed, and the samples of the evaluation tests to the import path."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

for folder in (ROOT, ROOT / "tests" / "memory_agent" / "evaluation"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
