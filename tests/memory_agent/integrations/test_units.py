"""Test the service definitions for systemd and launchd, and the recognition of our own files."""

from __future__ import annotations

import os
import plistlib
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from memory_agent.integrations import Service, system_unit, user_service
from memory_agent.layout import Layout

COMMAND = (sys.executable, "serve", "--light", "--data-dir", "/srv/my data/100%/$HOME", "--set", 'a.b="c\\d"', "")
MOST_EXPOSED = 2.0
"""systemd rates a service's exposure from 0 to 10; the system unit scores 1.7 (8.5 with fewer options)."""


def service_for(tmp_path: Path, platform: str, monkeypatch: pytest.MonkeyPatch) -> Service:
    monkeypatch.setattr(sys, "platform", platform)
    return user_service(COMMAND, Layout(tmp_path / "data"), tmp_path, {})


@pytest.fixture(autouse=True)
def _runtime_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))  # systemd-analyze needs this variable for user units


def analyze(*words: str) -> str:
    if shutil.which("systemd-analyze") is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("systemd-analyze is not on this machine")
    done = subprocess.run(["systemd-analyze", *words], capture_output=True, text=True, check=False)
    assert "memory-agent.service" not in done.stderr
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("kind", ["system", "user"])
def test_systemd_accepts_the_unit(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = system_unit() if kind == "system" else service_for(tmp_path, "linux", monkeypatch).text
    unit = tmp_path / "memory-agent.service"
    unit.write_text(re.sub(r"^ExecStart=\S+", f"ExecStart={sys.executable}", text, flags=re.MULTILINE))
    analyze("verify", *(("--user",) if kind == "user" else ()), str(unit))


def test_the_unit_of_a_machine_is_hardened(tmp_path: Path) -> None:
    unit = tmp_path / "memory-agent.service"
    unit.write_text(system_unit())
    exposure = re.search(r"Overall exposure level for \S+: ([\d.]+)", analyze("security", "--offline=yes", str(unit)))
    assert exposure is not None
    assert float(exposure[1]) <= MOST_EXPOSED


def test_a_command_line_reaches_systemd_word_for_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = re.search(r"^ExecStart=(.*)$", service_for(tmp_path, "linux", monkeypatch).text, re.MULTILINE)
    assert line is not None
    assert '"/srv/my data/100%%/$$HOME"' in line[1]
    assert [word.replace("%%", "%").replace("$$", "$") for word in shlex.split(line[1])] == list(COMMAND)


def test_launchd_gets_a_valid_property_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = service_for(tmp_path, "darwin", monkeypatch)
    assert own.path == tmp_path / "Library" / "LaunchAgents" / "local.memory-agent.plist"
    definition = plistlib.loads(own.text.encode())
    assert definition["ProgramArguments"] == list(COMMAND)
    assert definition["Label"] == own.path.stem
    assert definition["KeepAlive"] == {"SuccessfulExit": False}  # `memory-agent stop` exits with 0
    assert definition["StandardErrorPath"] == str(tmp_path / "data" / "daemon.log")


@pytest.mark.parametrize("platform", ["linux", "darwin"])
def test_only_a_file_as_it_was_written_is_ours(tmp_path: Path, platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    own = service_for(tmp_path, platform, monkeypatch)
    assert own.state == "absent"
    own.path.parent.mkdir(parents=True)
    own.path.write_text(own.text)
    assert own.state == "current"
    other = user_service(("memory-agent", "serve"), Layout(tmp_path / "data"), tmp_path, {})
    assert other.state == "former"
    for edited in (own.text + "\n", own.text.replace("serve", "serve --full"), f"# mine\n\n{own.text}", "", "\0"):
        own.path.write_text(edited)
        assert own.state == "edited"
    own.path.write_bytes(b"\xff")
    assert own.state == "edited"
