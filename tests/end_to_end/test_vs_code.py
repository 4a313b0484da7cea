"""Test a real VS Code after `memory-agent connect vscode`: it reads our entry, starts the server and calls its tools.

The test runs VS Code's server from the package `code-server`, with the workbench in a browser. The desktop program,
which is in no registry, has the same MCP client and reads the same files.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import jsonschema
import pytest
from playwright.sync_api import BrowserContext, Page

from memory_agent import MemoryClient
from memory_agent.doors.mcp.tools import BY_SET
from memory_agent.integrations import JsonText, Scope, Syntax
from ops.demo.agents import node
from tests.from_npm import missing
from tests.page.browsing import PATIENCE_MS, chromium
from tests.polling import wait_until

from .conftest import DaemonProcess, environment, short_folder
from .test_coding_agents import memory_agent

INSTALLED = Path(os.environ.get("EDITORS", Path(__file__).parents[2] / ".venv" / "editors"))
"""The folder in which `make editors` installs VS Code and Cursor's agent."""
FACT = "The deploy to staging hangs while the VPN is off."
CALLS = [("remember", {"text": FACT}), ("recall", {"query": "why does the deploy to staging hang?"})]
TOOLS = set(BY_SET["standard"])
EDITED = '{{ // as VS Code and Cursor permit\n  "{}": {{}},\n}}\n'
SETTINGS = {
    "telemetry.telemetryLevel": "off", "workbench.startupEditor": "none",
    "workbench.secondarySideBar.defaultVisibility": "hidden", "git.enabled": False,
}  # fmt: skip
CONSENT = re.compile("^(Yes|Trust Folder & Continue)$")


class VsCode(NamedTuple):
    """A running instance of VS Code for the user with this home folder."""

    url: str
    home: Path
    browser: BrowserContext

    @contextmanager
    def window(self, folder: Path) -> Iterator[Page]:
        """Open a folder in a window."""
        with self.browser.new_page() as page:
            page.set_default_timeout(PATIENCE_MS)
            page.goto(f"{self.url}/?folder={quote(str(folder))}")
            yield page


@pytest.fixture
def vs_code() -> Iterator[VsCode]:
    program = node()
    script = INSTALLED / "node_modules" / "code-server" / "lib" / "vscode" / "out" / "server-main.js"
    if program is None or not script.exists():
        missing(INSTALLED, "VS Code", "editors")
    with short_folder() as folder, chromium() as browser:
        home = Path(folder)
        data, extensions = home / ".config" / "Code", home / "extensions"  # the data folder of the desktop program
        (data / "User").mkdir(parents=True)
        (data / "User" / "settings.json").write_text(json.dumps(SETTINGS))
        shutil.copytree(Path(__file__).with_name("vs_code_probe"), extensions / "memory-agent.probe-0.0.1")
        words = [
            "--host", "127.0.0.1", "--port", "0", "--without-connection-token", "--accept-server-license-terms",
            "--telemetry-level", "off", "--user-data-dir", str(data), "--extensions-dir", str(extensions),
        ]  # fmt: skip
        with (
            served([program, str(script), *words], home) as port,
            browser.new_context(viewport={"width": 1000, "height": 700}) as context,
        ):
            yield VsCode(f"http://127.0.0.1:{port}", home, context)


@contextmanager
def served(command: list[str], home: Path) -> Iterator[int]:
    """Run VS Code's server; yield its port. Ends all processes that it has started."""
    log = home / "vs-code.log"
    with open(log, "wb") as output:
        process = subprocess.Popen(
            command, cwd=home, env=environment() | {"HOME": str(home), "XDG_RUNTIME_DIR": str(home)},
            stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
    try:
        until_s = time.monotonic() + PATIENCE_MS / 1000
        while not (said := re.search(r"listening on (\d+)", log.read_text(errors="replace"))):
            assert process.poll() is None, log.read_text(errors="replace")
            assert time.monotonic() < until_s, log.read_text(errors="replace")
            time.sleep(0.05)
        yield int(said.group(1))
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def probe(page: Page, folder: Path, number: int, **asked: Any) -> tuple[dict[str, Any], list[str]]:
    """Let the extension call the tools, and accept VS Code's prompts; return its findings and the prompts."""
    (folder / "asked.json").write_text(json.dumps(asked))
    (folder / "asked.json").rename(folder / f"probe-{number}.json")
    file, questions = folder / f"found-{number}.json", list[str]()
    until_s = time.monotonic() + 2 * PATIENCE_MS / 1000
    dialog = page.locator(".monaco-dialog-box")
    while not file.exists():
        assert time.monotonic() < until_s, page.locator("body").inner_text()
        if dialog.count():
            questions.append(dialog.inner_text())
            dialog.locator(".monaco-button", has_text=CONSENT).click()
            dialog.wait_for(state="detached")
        page.wait_for_timeout(100)
    found: dict[str, Any] = json.loads(file.read_text())
    assert "error" not in found, found
    return found, questions


def check(found: dict[str, Any], file: Path) -> dict[str, Any]:
    """Check the extension's findings, and validate the settings file against VS Code's schema; return its servers."""
    assert {name.removeprefix("mcp_episodic_memo_") for name in found["tools"]} == TOOLS
    assert FACT in found["texts"][1]
    entries = JsonText(file.read_text(), Syntax(comments=True, trailing_commas=True)).value
    servers: dict[str, Any] = entries["servers"]
    schema = jsonschema.Draft7Validator(found["schema"])
    assert schema.is_valid(entries)
    assert not schema.is_valid({"mcpServers": servers})
    assert not schema.is_valid({"servers": {name: {**server, "program": "x"} for name, server in servers.items()}})
    return servers


def channel_of_the_fact(user: str, daemon: DaemonProcess) -> str | None:
    """Return the channel of the only memory, which was stored by VS Code or Cursor."""
    with MemoryClient(user, data_dir=daemon.data_dir) as memory:
        (record,) = memory.list(limit=5).records
    assert record.text == FACT
    return record.channel_id


def test_vs_code_calls_the_tools_of_a_projects_and_a_users_server_and_would_write_the_same_entry(
    vs_code: VsCode, light_daemon: DaemonProcess, tmp_path: Path
) -> None:
    ((projects, _),) = Scope("vscode", tmp_path, vs_code.home, {}).files()
    ((users, _),) = Scope("vscode", None, vs_code.home, {}).files()
    projects.parent.mkdir()
    for file in (projects, users):
        file.write_text(EDITED.format("servers"))
    data = ["--data-dir", str(light_daemon.data_dir)]
    memory_agent(vs_code.home, tmp_path, "connect", "vscode", "--project", "--user", "vs-code-project", *data)
    with vs_code.window(tmp_path) as page:
        found, (trust, question) = probe(page, tmp_path, 1, calls=CALLS)
        check(found, projects)
        assert "Do you trust the authors" in trust
        assert "Run remember" in question, "VS Code does not ask before it recalls"
        assert channel_of_the_fact("vs-code-project", light_daemon) == f"project:{tmp_path}"

        projects.unlink()
        memory_agent(vs_code.home, tmp_path, "connect", "vscode", "--user", "vs-code", *data)
        found, (question,) = probe(page, tmp_path, 2, calls=CALLS, command="workbench.mcp.addConfiguration")
        servers = check(found, users)
        assert "Run remember" in question
        assert channel_of_the_fact("vs-code", light_daemon) is None
        ((name, entry),) = servers.items()
        users.unlink()
        page.get_by_role("option", name="Command (stdio)").click()
        page.get_by_placeholder("Command to run").fill(
            " ".join(f'"{word}"' for word in [entry["command"], *entry["args"]])
        )
        page.keyboard.press("Enter")
        page.get_by_placeholder("Unique identifier for this server").fill(name)
        page.keyboard.press("Enter")
        page.get_by_role("option", name="Global").click()
        wait_until(lambda: users.exists() and users.read_text().endswith("}"))
    assert json.loads(users.read_text())["servers"] == servers
