"""Test a real VS Code after `memory-agent connect vscode`: it reads our entry, starts the server and calls its tools.

It is VS Code's server with its workbench in a browser, from the package `code-server`. The desktop program, which is
in no registry, has the same MCP client and reads the same files.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import jsonschema
import pytest
from playwright.sync_api import Browser, Page

from memory_agent import MemoryClient
from memory_agent.doors.mcp.tools import BY_SET
from memory_agent.integrations import JsonText, Scope, Syntax
from ops.demo.agents import node
from tests.from_npm import missing
from tests.page.browsing import PATIENCE_MS, chromium
from tests.polling import wait_until

from .conftest import DaemonProcess, environment, short_folder

ROOT = Path(__file__).parents[2]
INSTALLED = Path(os.environ.get("EDITORS", ROOT / ".venv" / "editors"))
"""The folder in which `make editors` installs VS Code."""
FACT = "The deploy to staging hangs while the VPN is off."
CALLS = [("remember", {"text": FACT}), ("recall", {"query": "why does the deploy to staging hang?"})]
TOOLS = set(BY_SET["standard"])
EDITED = '{{ // as VS Code and Cursor permit\n  "{}": {{}},\n}}\n'
SETTINGS = {"telemetry.telemetryLevel": "off", "workbench.startupEditor": "none", "window.commandCenter": False}
CONSENT = re.compile("^(Yes|Trust Folder & Continue)$")


class VsCode(NamedTuple):
    """A running VS Code. `config_home` is the folder that XDG_CONFIG_HOME names for its user."""

    url: str
    config_home: Path
    browser: Browser

    @property
    def user_file(self) -> Path:
        """The user's mcp.json."""
        (found,) = (
            path for path, _ in Scope("vscode", None, Path(), {"XDG_CONFIG_HOME": str(self.config_home)}).files()
        )
        return found

    @contextmanager
    def window(self, folder: Path) -> Iterator[Page]:
        """Open a folder in a window of its own."""
        with self.browser.new_context(viewport={"width": 1000, "height": 700}) as context:
            page = context.new_page()
            page.set_default_timeout(PATIENCE_MS)
            page.goto(f"{self.url}/?folder={quote(str(folder))}")
            yield page

    def connect(self, daemon: DaemonProcess, folder: Path, user: str, *words: str) -> None:
        """Run `memory-agent connect vscode` in a folder."""
        done = subprocess.run(
            [str(Path(sys.executable).with_name("memory-agent")), "connect", "vscode", *words,
             "--user", user, "--data-dir", str(daemon.data_dir)],
            cwd=folder, env=environment() | {"HOME": str(self.config_home), "XDG_CONFIG_HOME": str(self.config_home)},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def vs_code() -> Iterator[VsCode]:
    program = node()
    script = INSTALLED / "node_modules" / "code-server" / "lib" / "vscode" / "out" / "server-main.js"
    if program is None or not script.exists():
        missing(INSTALLED, "VS Code", "editors")
    with short_folder() as folder, chromium() as browser:
        data = Path(folder, "Code")  # the user's data folder of the desktop program, below XDG_CONFIG_HOME
        (data / "User").mkdir(parents=True)
        (data / "User" / "settings.json").write_text(json.dumps(SETTINGS))
        shutil.copytree(
            Path(__file__).with_name("vs_code_probe"), Path(folder, "extensions", "memory-agent.probe-0.0.1")
        )
        words = [
            "--host", "127.0.0.1", "--port", "0", "--without-connection-token", "--accept-server-license-terms",
            "--telemetry-level", "off", "--user-data-dir", str(data), "--extensions-dir", f"{folder}/extensions",
        ]  # fmt: skip
        with served([str(program), str(script), *words], Path(folder)) as port:
            yield VsCode(f"http://127.0.0.1:{port}", Path(folder), browser)


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


def found_by_probe(page: Page, folder: Path) -> tuple[dict[str, Any], list[str]]:
    """Consent to what VS Code asks until the extension has called the tools; return its findings, and the questions."""
    file, questions = folder / "found.json", list[str]()
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


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "shop"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("where", ["--user", "--project"])
def test_vs_code_calls_the_tools_of_the_server_that_connect_wrote(
    vs_code: VsCode, light_daemon: DaemonProcess, folder: Path, where: str
) -> None:
    user = f"vs-code{where}"
    (folder / "probe.json").write_text(json.dumps({"calls": CALLS}))
    file = vs_code.user_file if where == "--user" else folder / ".vscode" / "mcp.json"
    vs_code.user_file.unlink(missing_ok=True)
    file.parent.mkdir(exist_ok=True)
    file.write_text(EDITED.format("servers"))
    vs_code.connect(light_daemon, folder, user, *(["--project"] if where == "--project" else []))
    with vs_code.window(folder) as page:
        found, questions = found_by_probe(page, folder)
    trusts = [question for question in questions if "Do you trust the authors" in question]
    runs = [question for question in questions if "Run remember" in question]  # and not before it recalls
    assert (len(trusts), len(runs), len(questions)) == ((0, 1, 1) if where == "--user" else (1, 1, 2))
    assert {name.removeprefix("mcp_episodic_memo_") for name in found["tools"]} == TOOLS
    assert FACT in found["texts"][1]
    with MemoryClient(user, data_dir=light_daemon.data_dir) as memory:
        (record,) = memory.list(limit=5).records
    assert record.text == FACT
    assert record.channel_id == (f"project:{folder}" if where == "--project" else None)

    entries = JsonText(file.read_text(), Syntax(comments=True, trailing_commas=True)).value
    schema = jsonschema.Draft7Validator(found["schema"])
    assert schema.is_valid(entries)
    servers = entries["servers"]
    assert not schema.is_valid({"servers": {"memory-agent": servers["memory-agent"] | {"program": "x"}}})
    assert not schema.is_valid({"mcpServers": servers})


def test_vs_code_writes_the_same_entry_as_connect(vs_code: VsCode, light_daemon: DaemonProcess, folder: Path) -> None:
    vs_code.user_file.unlink(missing_ok=True)
    vs_code.connect(light_daemon, folder, "added")
    ours = json.loads(vs_code.user_file.read_text())
    vs_code.user_file.unlink()
    (folder / "probe.json").write_text(json.dumps({"command": "workbench.mcp.addConfiguration"}))
    ((name, entry),) = ours["servers"].items()
    with vs_code.window(folder) as page:
        page.get_by_role("option", name="Command (stdio)").click()
        for question, answer in (
            ("Command to run", " ".join([entry["command"], *entry["args"]])),
            ("Unique identifier for this server", name),
        ):
            page.get_by_placeholder(question).fill(answer)
            page.keyboard.press("Enter")
        page.get_by_role("option", name="Global").click()
        wait_until(lambda: vs_code.user_file.exists() and vs_code.user_file.read_text().endswith("}"))
    assert json.loads(vs_code.user_file.read_text())["servers"] == ours["servers"]
