"""Test that the package works without its extras, and imports an extra only when a setting or command needs it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
PROGRAM = """
import json, sys
absent = json.loads(sys.argv[1])
sys.modules |= dict.fromkeys(absent)  # importing one of them now raises ImportError
from memory_agent import Memory
with Memory.open(sys.argv[2]) as memory:
    memory.remember("Staging needs the VPN")
    result = memory.recall("what does staging need?", deadline_ms=60_000)
    print(json.dumps([result.memories[0].record.text, result.degraded, memory.stats().memories]))
"""


def extras() -> list[str]:
    """Return the modules of the optional packages, except development packages."""
    optional = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    lines = [line for name, lines in optional.items() if name not in ("dev", "fuzz") for line in lines]
    return sorted({re.split(r"[<>=!~;\[ ]", line)[0].replace("-", "_") for line in lines})


def test_a_memory_works_without_any_extra(tmp_path: Path) -> None:
    assert {"httpx2", "huggingface_hub", "fsspec", "cryptography"} <= set(extras())
    command = [sys.executable, "-c", PROGRAM, json.dumps(extras()), str(tmp_path / "alice")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["Staging needs the VPN", [], 1]
