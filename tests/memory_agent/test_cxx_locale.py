"""Both engines of an embedded memory live in one process, whichever of them is imported first (decision 0010)."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("engines", ["usearch.index, onnxruntime", "onnxruntime, usearch.index"])
def test_both_engines_can_be_imported_in_either_order(engines: str) -> None:
    done = subprocess.run([sys.executable, "-c", f"import memory_agent, {engines}"], check=False, timeout=60)
    assert done.returncode == 0
