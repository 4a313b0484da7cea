"""Test `service install` and `service remove` where no service manager runs, and `stop` without a daemon."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

Run = Callable[..., Result]
RunJson = Callable[..., Any]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home folder of a user without a service manager."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "none"))
    for name in ("XDG_CONFIG_HOME", "DBUS_SESSION_BUS_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def unit_in(home: Path) -> Path:
    return home / ".config" / "systemd" / "user" / "memory-agent.service"


def test_a_dry_run_shows_the_file_and_writes_nothing(run: Run, run_json: RunJson, home: Path, data_dir: Path) -> None:
    result = run("service", "install", "--dry-run", "--set", "log_level=warning")
    assert result.exit_code == 0, result.output
    assert f"memory-agent serve --light --data-dir {data_dir} --set log_level=warning\n" in result.stdout
    assert str(unit_in(home)) in result.stdout
    assert "nothing is written" in result.stderr
    assert "--light" not in run_json("service", "install", "--dry-run", "--full")["text"]
    assert list(home.iterdir()) == []


def test_bad_settings_are_refused_before_anything_is_written(run: Run, home: Path) -> None:
    result = run("service", "install", "--yes", "--set", "recall.nope=1")
    assert (result.exit_code, "recall.nope: no such setting" in result.stderr) == (1, True)
    assert list(home.iterdir()) == []


@pytest.mark.skipif(shutil.which("systemctl") is None, reason="systemctl is not on this machine")
def test_without_a_service_manager_the_advice_is_given_and_nothing_is_written(run: Run, home: Path) -> None:
    result = run("service", "install", "--yes")
    assert result.exit_code == 1
    assert "service manager does not answer (systemctl --user show-environment: " in result.stderr
    assert "loginctl enable-linger" in result.stderr
    assert "memory-agent serve --light" in result.stderr
    assert list(home.iterdir()) == []


def test_an_edited_file_is_neither_replaced_nor_removed(run: Run, home: Path) -> None:
    unit = unit_in(home)
    unit.parent.mkdir(parents=True)
    unit.write_text("[Service]\nExecStart=true\n")
    for verb in ("install", "remove"):
        result = run("service", verb, "--yes")
        assert (result.exit_code, f"{unit} " in result.stderr) == (1, True), result.output
        assert "was edited" in result.stderr
    assert unit.read_text() == "[Service]\nExecStart=true\n"


def test_removing_what_is_not_installed_changes_nothing(run: Run, run_json: RunJson) -> None:
    result = run("service", "remove")
    assert (result.exit_code, result.stderr) == (0, "note: no service is installed\n")
    assert run_json("service", "remove")["is_done"] is False


def test_stopping_without_a_daemon_fails_as_unavailable(run: Run, data_dir: Path) -> None:
    result = run("stop")
    assert (result.exit_code, result.stderr) == (1, f"error: no daemon serves {data_dir}\n")
    assert '"code": "unavailable"' in run("stop", "--json").stderr
    assert not data_dir.exists()
