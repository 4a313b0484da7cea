"""Test the output, prompts, writes and refusals of `connect` and `disconnect`."""

from __future__ import annotations

import json
import os
import pty
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from memory_agent.cli.group import cli
from memory_agent.integrations import hook_launcher

Run = Callable[..., Result]
RunJson = Callable[..., Any]

TOKEN = "ghp_1234567890abcdefghijklmnopqrstuvwx12"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    (home / "shop").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "CLAUDE_CONFIG_DIR", "CODEX_HOME", "GEMINI_CLI_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(home / "shop")
    return home


def test_a_dry_run_shows_the_change_and_writes_nothing(run: Run, home: Path) -> None:
    result = run("connect", "codex", "--dry-run")
    assert result.exit_code == 0, result.output
    assert "+[mcp_servers.memory-agent]" in result.stdout
    assert "hook codex --data-dir" in result.stdout
    assert "nothing is written" in result.stderr
    assert [path.name for path in home.iterdir()] == ["shop"]


def test_connecting_writes_absolute_paths_and_prints_what_to_do_next(run: Run, home: Path, data_dir: Path) -> None:
    result = run("connect", "codex", "--user", "alice")
    assert result.exit_code == 0, result.output
    assert "Codex is connected" in result.stderr
    assert "/hooks" in result.stderr
    hooks = json.loads((home / ".codex" / "hooks.json").read_text())
    line = hooks["hooks"]["UserPromptSubmit"][0]["hooks"][0]["command"]
    command = f"{Path(sys.executable).with_name('memory-agent')} hook codex --user alice --data-dir {data_dir}"
    assert line == " ".join([shlex.join(hook_launcher()), command]).strip()
    again = run("connect", "codex", "--user", "alice")
    assert ("no change" in again.stdout, again.stderr) == (True, "note: Codex is already connected\n")
    assert run("disconnect", "codex").exit_code == 0
    assert not (home / ".codex").exists()
    assert run("disconnect", "codex").stderr == "note: Codex was not connected\n"


def test_settings_that_a_server_would_refuse_are_refused_before_anything_is_written(run: Run, home: Path) -> None:
    bad = home / "bad.toml"
    bad.write_text("[recall]\nmode = 'loud'\n")
    for words, reason in (
        (("--set", "recall.nope=1"), "recall.nope: no such setting"),
        (("--config", str(home / "absent.toml")), "absent.toml"),
        (("--config", str(bad)), "recall.mode"),
    ):
        result = run("connect", "codex", *words)
        assert (result.exit_code, reason in result.stderr) == (1, True), result.output
    assert not (home / ".codex").exists()


def test_the_data_folder_of_the_settings_is_that_of_the_entries(home: Path) -> None:
    config = home / "settings.toml"
    config.write_text(f"data_dir = '{home / 'memories'}'\n")
    result = CliRunner().invoke(cli, ["connect", "gemini", "--config", str(config)])
    assert result.exit_code == 0, result.output
    server = json.loads((home / ".gemini" / "settings.json").read_text())["mcpServers"]["memory-agent"]
    assert server["args"][server["args"].index("--data-dir") + 1] == str(home / "memories")


def test_an_unknown_client_is_refused_with_the_known_ones(run: Run) -> None:
    result = run("connect", "windsurf")
    assert result.exit_code == 2
    assert "connect [OPTIONS] CLIENT\n" in result.stderr
    assert "'claude-code', 'codex', 'gemini', 'cursor', 'vscode', 'zed'" in result.stderr


def test_a_project_gets_its_own_settings_and_a_channel(run_json: RunJson, home: Path) -> None:
    done = run_json("connect", "vscode", "--project")
    file = home / "shop" / ".vscode" / "mcp.json"
    assert (done["scope"], done["is_written"], [edit["path"] for edit in done["files"]]) == (
        "project",
        True,
        [str(file)],
    )
    said = json.loads(file.read_text())["servers"]["memory-agent"]
    assert said["args"][:3] == ["mcp", "--channel", f"project:{home / 'shop'}"]
    assert run_json("disconnect", "vscode", "--project")["is_written"]
    assert not file.parent.exists()


@pytest.mark.parametrize("indent", [2, None])
def test_secrets_beside_the_change_are_not_shown(run: Run, home: Path, indent: int | None) -> None:
    """Masking would find GitHub's tokens but not a PIN, so all values are hidden."""
    secrets = ["hunter2", "s3cr3tvalue", "pw-in-args", TOKEN]
    server = {
        "command": "npx",
        "args": ["--password", secrets[2]],
        "headers": {"Authorization": f"Bearer {secrets[1]}"},
        "env": {"GITHUB_TOKEN": TOKEN, "PIN": secrets[0]},
    }
    hooks = {"SessionStart": [{"hooks": [{"type": "command", "command": f"curl -u me:{secrets[0]} x"}]}]}
    file = home / ".gemini" / "settings.json"
    file.parent.mkdir()
    before = json.dumps({"mcpServers": {"github": server}, "hooks": hooks}, indent=indent)
    file.write_text(before)
    for words in (("connect", "gemini"), ("connect", "gemini", "--user", "alice"), ("disconnect", "gemini")):
        result = run(*words)
        assert result.exit_code == 0, result.output
        assert "hook gemini" in result.stdout
        assert not [secret for secret in secrets if secret in result.output], result.output
    assert file.read_text() == before


def test_an_invalid_file_is_a_failure_with_its_place(run: Run, home: Path) -> None:
    (home / ".cursor").mkdir()
    (home / ".cursor" / "mcp.json").write_text('{"mcpServers": ')
    result = run("connect", "cursor", "--json")
    assert result.exit_code == 1
    error = json.loads(result.stderr)["error"]
    assert error["code"] == "client_settings"
    assert "mcp.json was not changed: line 1" in error["message"]


def test_user_and_project_exclude_each_other(run: Run) -> None:
    for verb in ("connect", "disconnect"):
        assert run(verb, "zed", "--project", "--user").exit_code == 2
    assert run("connect", "emacs").exit_code == 2


def test_the_plugin_folder_is_a_marketplace(run: Run) -> None:
    folder = Path(run("connect", "--plugin-folder").stdout.strip())
    (plugin,) = json.loads((folder / ".claude-plugin" / "marketplace.json").read_text())["plugins"]
    for manifest in (".claude-plugin", ".codex-plugin"):
        said = json.loads((folder / plugin["source"] / manifest / "plugin.json").read_text())
        assert (folder / plugin["source"] / said["hooks"]).is_file()


@pytest.mark.parametrize(("answer", "is_written"), [(b"y\n", True), (b"n\n", False)])
def test_connecting_asks_a_person_first(home: Path, data_dir: Path, answer: bytes, is_written: bool) -> None:
    command = [sys.executable, "-m", "memory_agent", "connect", "zed", "--data-dir", str(data_dir)]
    controller, terminal = pty.openpty()
    try:
        os.write(controller, answer)
        done = subprocess.run(command, stdin=terminal, capture_output=True, timeout=60, check=False)
    finally:
        os.close(controller)
        os.close(terminal)
    assert b"Write this?" in done.stderr
    assert (home / ".config" / "zed" / "settings.json").exists() == is_written
    assert (done.returncode == 0) == is_written
    assert (b"nothing was done" in done.stderr) != is_written
