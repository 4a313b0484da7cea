"""The data folder is private, has at most one daemon at a time, and is found by clients."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from memory_agent.errors import DaemonRunningError, SettingsError, UnavailableError
from memory_agent.exchange import local_door
from memory_agent.layout import Layout, default_data_dir, platform_data_dir


def test_only_one_daemon_holds_a_folder(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "data")
    assert not layout.daemon_runs()
    layout.create()
    with layout.hold():
        assert Layout(tmp_path / "data").daemon_runs()
        with pytest.raises(DaemonRunningError, match="process"), Layout(tmp_path / "data").hold():
            pass
    assert not layout.daemon_runs()


def test_the_token_is_made_once_and_private(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    assert layout.token() == ""
    token = layout.make_token()
    assert len(token) >= 32
    assert layout.make_token() == Layout(tmp_path).token() == token
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600


def test_an_empty_token_file_is_recreated(tmp_path: Path) -> None:
    """Otherwise every client without a token would send an empty token."""
    (tmp_path / "token").touch()
    assert len(Layout(tmp_path).make_token()) >= 32


def test_clients_looking_for_a_daemon_do_not_block_its_start(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    with layout.hold():
        pass
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            layout.daemon_runs()

    with ThreadPoolExecutor(2) as threads:
        for _ in range(2):
            threads.submit(look)
        try:
            for _ in range(200):
                with layout.hold():
                    pass
        finally:
            stop.set()


def test_a_folder_that_cannot_be_created_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(SettingsError, match="data_dir"):
        Layout(tmp_path / "file" / "data").create()


def test_socket_files_are_removed(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    layout.create()
    (layout.run / "gateway.sock").touch()
    layout.clear_sockets()
    assert list(layout.run.iterdir()) == []


def test_the_error_for_an_unreachable_daemon_has_advice(tmp_path: Path) -> None:
    from memory_agent.client import find_daemon

    with pytest.raises(UnavailableError, match="memory-agent serve --data-dir"):
        find_daemon(tmp_path, None, None).require()


def test_the_folders_are_private(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "data")
    layout.create()
    assert [folder.stat().st_mode & 0o777 for folder in (layout.data_dir, layout.run)] == [0o700, 0o700]


def test_a_client_made_before_the_first_daemon_learns_its_token(tmp_path: Path) -> None:
    from memory_agent.client import find_daemon

    address = find_daemon(tmp_path, None, None)
    assert address.token == ""
    token = Layout(tmp_path).make_token()
    assert address.token == token
    assert find_daemon(tmp_path, None, "named").token == "named"


def test_clients_do_not_contact_the_port_of_a_killed_daemon(tmp_path: Path) -> None:
    """Another program may now use the port, even while a command locks the folder as a daemon would."""
    layout = Layout(tmp_path)
    layout.create()
    layout.http.write_text("http://127.0.0.1:1\n")
    with layout.hold():
        assert layout.daemon_runs()
        assert local_door(layout, "token") is None


def test_a_client_looks_where_the_variable_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from memory_agent.client import find_daemon

    monkeypatch.setenv("MEMORY_AGENT_DATA_DIR", str(tmp_path / "named"))
    assert default_data_dir() == tmp_path / "named"
    assert find_daemon(None, None, None).layout.data_dir == tmp_path / "named"
    assert find_daemon(tmp_path / "given", None, None).layout.data_dir == tmp_path / "given"


def test_a_relative_or_home_folder_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The relay's endpoints are derived from the folder's path."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for named in ("~/memories", "memories"):
        monkeypatch.setenv("MEMORY_AGENT_DATA_DIR", named)
        assert default_data_dir() == tmp_path / "memories"


def test_without_the_variable_it_is_the_platforms_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MEMORY_AGENT_DATA_DIR", raising=False)
    assert default_data_dir() == platform_data_dir()
    monkeypatch.setenv("MEMORY_AGENT_DATA_DIR", "")
    assert default_data_dir() == platform_data_dir()


def test_the_help_shows_the_platforms_folder_regardless_of_the_variable(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "memory_agent", "stats", "--help"]
    variables = os.environ | {"MEMORY_AGENT_DATA_DIR": str(tmp_path / "elsewhere"), "COLUMNS": "400"}
    shown = subprocess.run(command, env=variables, capture_output=True, text=True, check=True).stdout
    assert "elsewhere" not in shown
    assert platform_data_dir().name in shown
