"""The data folder: private, one daemon at a time, found by clients."""

from __future__ import annotations

from pathlib import Path

import pytest

from memory_agent.errors import DaemonRunningError, SettingsError, UnavailableError
from memory_agent.layout import Layout


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


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(SettingsError, match="data_dir"):
        Layout(tmp_path / "file" / "data").create()


def test_socket_files_are_removed(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    layout.create()
    (layout.run / "gateway.sock").touch()
    layout.clear_sockets()
    assert list(layout.run.iterdir()) == []


def test_an_error_of_an_unreachable_daemon_says_what_to_do(tmp_path: Path) -> None:
    from memory_agent.client import find_daemon

    with pytest.raises(UnavailableError, match="memory-agent serve --data-dir"):
        find_daemon(tmp_path, None, None).require()
