"""Runs the command line in this process, on a temporary data folder, ignoring settings in the environment."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from memory_agent.cli.group import cli
from memory_agent.settings import ENVIRONMENT_PREFIX

Run = Callable[..., Result]


@pytest.fixture(autouse=True)
def _no_settings_around(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in list(os.environ):
        if name.startswith(ENVIRONMENT_PREFIX) and name != "MEMORY_AGENT_MODEL_CACHE":
            monkeypatch.delenv(name)


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def run(data_dir: Path) -> Run:
    """Run `memory-agent VERB … --data-dir DATA_DIR`. Removes the note that the files were used (`test_errors`)."""
    used = f"note: no daemon serves {data_dir}; the files were used directly\n".encode()

    def run_verb(*words: str, input: str | bytes | None = None) -> Result:
        result = CliRunner().invoke(cli, [*words, "--data-dir", str(data_dir)], input=input)
        result.stderr_bytes = (result.stderr_bytes or b"").removesuffix(used)
        return result

    return run_verb


@pytest.fixture
def run_json(run: Run) -> Callable[..., Any]:
    """Run a command with `--json`, expect success, and return the document on standard output."""

    def run_verb(*words: str, input: str | bytes | None = None) -> Any:
        result = run(*words, "--json", input=input)
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    return run_verb
