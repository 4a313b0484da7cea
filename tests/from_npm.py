"""Skips tests that run programs from npm if these are not installed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

import pytest


def missing(folder: Path, name: str, target: str) -> NoReturn:
    """Skip the test if npm refused to install the program; if it is missing for another reason, fail in CI and skip
    elsewhere.
    """
    refused = folder / "refused"
    if not refused.exists():
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"{name} is not installed: run `make {target}`")
    said = refused.read_text(encoding="utf-8").splitlines() or ["npm refused"]
    pytest.skip(f"{name} is not installed: {next((line for line in said if 'error' in line.lower()), said[-1])}")
