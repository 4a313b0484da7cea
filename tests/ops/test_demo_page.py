"""Test the demo's last scene: it checks and prints the page's address, and does not wait if nobody is watching."""

from __future__ import annotations

import io
import os
import pty
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rich.console import Console
from served_gateway import found_by_clients, gateway_in_new_folder

from ops.demo.page import show_page
from ops.demo.screen import Screen
from ops.demo.stage import Stage
from ops.demo.story import Story


@pytest.mark.parametrize("is_terminal", [False, True])
def test_the_address_is_shown_and_a_visit_only_waited_for_on_a_terminal(
    is_terminal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user, terminal = pty.openpty()
    os.write(user, b"\n")
    output = io.StringIO()
    screen = Screen(Console(file=output, width=100, highlight=False, force_terminal=is_terminal, no_color=True))
    with gateway_in_new_folder() as served, found_by_clients(served), open(terminal) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        show_page(Stage(served.data_dir, tmp_path, Story.load(), screen, datetime.now(UTC)))
        shown = " ".join(output.getvalue().split())
        assert served.token not in shown
    os.close(user)
    assert (screen.kept, screen.broken) == (1, [])
    assert f"{served.http}/page/" in shown
    assert [word in shown for word in ("#token=", "to end the demo", "The daemon is about to stop")] == [
        *(is_terminal, is_terminal, not is_terminal)
    ]
    assert (screen.paused_s > 0) == is_terminal
