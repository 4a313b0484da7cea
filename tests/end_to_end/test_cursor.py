"""Test a real Cursor agent after `memory-agent connect cursor`: it reads our entry and calls our tools.

The agent is Cursor's package `@cursor/sdk`, which reads the desktop program's settings files. The desktop program
itself is not available from any registry.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from ops.demo.agents import node
from tests.from_npm import missing

from .conftest import DaemonProcess
from .cursor_backend import PATIENCE_S, cursor_backend
from .test_coding_agents import memory_agent
from .test_vs_code import CALLS, EDITED, FACT, INSTALLED, TOOLS, channel_of_the_fact

AGENT = Path(__file__).with_name("cursor_agent.js")


@pytest.mark.parametrize("where", ["--user", "--project"])
def test_cursor_calls_the_tools_of_the_server_that_connect_wrote(
    tmp_path: Path, light_daemon: DaemonProcess, where: str
) -> None:
    program, package = node(), INSTALLED / "node_modules" / "@cursor" / "sdk"
    if program is None or not package.exists():
        missing(INSTALLED, "Cursor's agent", "editors")
    home, folder, user = tmp_path / "home", tmp_path / "shop", f"cursor{where}"
    home.mkdir()
    folder.mkdir()
    file = (home if where == "--user" else folder) / ".cursor" / "mcp.json"
    file.parent.mkdir()
    file.write_text(EDITED.format("mcpServers"))
    named = ["--project"] if where == "--project" else []
    memory_agent(home, folder, "connect", "cursor", *named, "--user", user, "--data-dir", str(light_daemon.data_dir))
    with cursor_backend(CALLS) as backend:
        said = subprocess.run(
            [program, str(AGENT), str(package), "Remember why the deploy hangs"], cwd=folder, text=True,
            env={"PATH": os.environ["PATH"], "HOME": str(home), "CURSOR_BACKEND_URL": backend.url,
                 "CURSOR_DATA_DIR": str(tmp_path / "cursor")},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=3 * PATIENCE_S, check=False,
        ).stdout  # fmt: skip
    assert '"status":"FINISHED"' in said, said
    assert backend.tools == TOOLS
    assert FACT in backend.results[1]
    assert channel_of_the_fact(user, light_daemon) == (f"project:{folder}" if where == "--project" else None)
