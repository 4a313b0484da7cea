"""Test real coding agents after `memory-agent connect`: findings of one session appear in the next prompt."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path

import pytest

from memory_agent import MemoryClient
from memory_agent.integrations import CLIENTS, Scope, hook_launcher
from memory_agent.integrations import FOLDER as PLUGINS
from ops.demo.agents import AGENTS, ANSWER, FAILURE, INSTALLED, Agent
from ops.demo.model_api import ModelApi, ToolCall, model_api
from tests.from_npm import missing

from .conftest import DaemonProcess, invoke
from .test_killed import wait_until

FIRST_PROMPT = "Find out why the deploy to staging hangs, and fix it"
SECOND_PROMPT = "The deploy to staging hangs again, what should I do?"
KNOWN = "A deploy to staging hangs if the host key has changed."
OTHER_FAILURE = "ssh: no route to 10.8.0.15"
NOWHERE = "/proc/none"
"""A data folder for which no daemon can be started."""
PLUGIN = {
    "claude-code": [
        ["plugin", "validate", str(PLUGINS / "memory-agent")],
        ["plugin", "marketplace", "add", str(PLUGINS)],
        ["plugin", "install", "memory-agent@memory-agent"],
    ],
    "codex": [
        ["plugin", "marketplace", "add", str(PLUGINS)],
        ["plugin", "add", "memory-agent@memory-agent"],
    ],
}


@pytest.fixture(scope="module")
def model() -> Iterator[ModelApi]:
    with model_api() as model:
        yield model


def installed(client: str) -> Agent:
    """Return an agent; skip the test if npm refused to install it or, outside CI, if it was not installed."""
    agent = AGENTS[client]
    if agent.program is None:
        missing(INSTALLED, CLIENTS[client].title, "agents")
    return agent


def memory_agent(home: Path, folder: Path, *words: str) -> None:
    with chdir(folder):
        done = invoke(*words, HOME=str(home))
    assert done.exit_code == 0, done.output


def texts(memory: MemoryClient) -> list[str]:
    return [record.text for record in memory.list(limit=50).records]


def channels(memory: MemoryClient) -> set[str | None]:
    return {record.channel_id for record in memory.list(limit=50).records}


def are_stored(memory: MemoryClient, *findings: str) -> bool:
    stored = texts(memory)
    return all(any(finding in text for text in stored) for finding in findings)


def give_hooks_time(scope: Scope) -> None:
    """Raise the deadlines in the settings, because other tests slow down the machine."""
    for path, _ in scope.files():
        text = path.read_text(encoding="utf-8").replace(
            f"hook {scope.client} ", f"hook {scope.client} --deadline-ms 50000 "
        )
        path.write_text(re.sub(r'"timeout": 3(000)?\b', r'"timeout": 60\1', text), encoding="utf-8")


def leave_hooks_to_the_short_path(scope: Scope, folder: Path) -> Path:
    """Replace the program in the hooks' commands with a script that only writes a file; return the file's path."""
    program, mark = folder / "memory-agent", folder / "mark"
    program.write_text(f'#!/bin/sh\necho "$@" >> {mark}\n')
    program.chmod(0o755)
    own = Path(sys.executable).with_name("memory-agent")
    changed = 0
    for path, _ in scope.files():
        text, count = re.subn(f"{own}(?= hook )", str(program), path.read_text(encoding="utf-8"))
        path.write_text(text, encoding="utf-8")
        changed += count
    assert changed
    return mark


@contextmanager
def connected(client: str, home: Path, folder: Path, user: str, daemon: DaemonProcess, *where: str) -> Iterator[Scope]:
    """Connect a client, with `--project` only for `folder`; then disconnect it, which must restore its files."""
    scope = Scope(client, folder if where else None, home, {})
    before = {path: path.read_bytes() if path.exists() else None for path, _ in scope.files()}
    memory_agent(home, folder, "connect", client, *where, "--user", user, "--data-dir", str(daemon.data_dir))
    give_hooks_time(scope)
    yield scope
    memory_agent(home, folder, "disconnect", client, *where)
    for path, _ in scope.files():
        assert "memory-agent" not in (path.read_text(encoding="utf-8") if path.exists() else "")
        if path.name != ".claude.json":  # the client writes this file itself
            assert (path.read_bytes() if path.exists() else None) == before[path]


@pytest.mark.parametrize("client", AGENTS)
def test_findings_of_one_session_are_in_the_prompt_of_another(
    tmp_path: Path, light_daemon: DaemonProcess, model: ModelApi, client: str
) -> None:
    """The first session uses the entries of `connect`, the second those of `connect --project`."""
    agent = installed(client)
    home, folder, user = tmp_path / "home", tmp_path / "shop", f"agent-{client}"
    home.mkdir()
    folder.mkdir()
    (folder / "deploy.sh").write_text(f"echo '{FAILURE}' >&2; exit 7\n")
    (folder / "retry.sh").write_text(f"echo '{OTHER_FAILURE}' >&2; exit 7\n")
    agent.prepare(home, model.url)
    if client == "codex":  # a user does this once per project
        trust = f'\n[projects."{folder}"]\ntrust_level = "trusted"\n'
        config = home / ".codex" / "config.toml"
        config.write_text(config.read_text() + trust)
    with MemoryClient(user, data_dir=light_daemon.data_dir) as memory:
        memory.remember(KNOWN, channel_id=f"project:{folder}")
    with connected(client, home, folder, user, light_daemon):
        model.play([agent.run_shell("sh deploy.sh"), agent.recall], ANSWER)
        said = agent.session(FIRST_PROMPT, folder, home, model.url)
        assert ANSWER in said
        assert FAILURE in model.requests[1], "the model read what its command printed"
        assert "VPN" not in model.requests[0]
        assert KNOWN in model.requests[0], "a hook put it into the prompt"
        assert KNOWN in model.results[1], "the tool found it"
        with MemoryClient(user, data_dir=light_daemon.data_dir) as memory:
            wait_until(lambda: are_stored(memory, ANSWER, FAILURE))
            assert channels(memory) == {f"project:{folder}"}

    with connected(client, home, folder, user, light_daemon, "--project") as scope:
        mark = leave_hooks_to_the_short_path(scope, tmp_path) if hook_launcher() else None
        model.play([agent.run_shell("sh retry.sh"), agent.recall], "Connect the VPN.")
        agent.session(SECOND_PROMPT, folder, home, model.url)
        assert ANSWER in model.requests[0], "a hook put it into the prompt"
        assert ANSWER in model.results[1], "the tool found it"
        with MemoryClient(user, data_dir=light_daemon.data_dir) as memory:
            wait_until(lambda: are_stored(memory, "Connect the VPN.", OTHER_FAILURE))
            assert channels(memory) == {f"project:{folder}"}
        assert mark is None or not mark.exists(), f"the short path left a hook to the command: {mark.read_text()}"


@pytest.mark.parametrize("client", AGENTS)
def test_a_session_continues_without_a_daemon(tmp_path: Path, model: ModelApi, client: str) -> None:
    agent = installed(client)
    home, folder = tmp_path / "home", tmp_path / "shop"
    home.mkdir()
    folder.mkdir()
    agent.prepare(home, model.url)
    memory_agent(home, folder, "connect", client, "--data-dir", NOWHERE)
    model.play([agent.run_shell("echo done")], ANSWER)
    assert ANSWER in agent.session(FIRST_PROMPT, folder, home, model.url)
    assert len(model.requests) == 2


@pytest.mark.parametrize("client", ["claude-code", "codex"])
def test_connect_refuses_a_syntax_only_if_the_client_does(tmp_path: Path, model: ModelApi, client: str) -> None:
    agent = installed(client)
    agent.prepare(tmp_path, model.url)
    memory_agent(tmp_path, tmp_path, "connect", client, "--data-dir", NOWHERE)
    (hooks,) = (
        path for path, _ in Scope(client, None, tmp_path, {}).files() if path.name in ("settings.json", "hooks.json")
    )
    hooks.write_text(f"// why\n{hooks.read_text()}")
    model.play([], ANSWER)
    try:
        said = agent.session(FIRST_PROMPT, tmp_path, tmp_path, model.url)
    except subprocess.CalledProcessError as error:
        said = error.stdout
    assert hooks.name in said


@pytest.mark.parametrize("client", ["claude-code", "codex"])
def test_the_plugin_serves_a_client_as_connect_does(
    tmp_path: Path, light_daemon: DaemonProcess, model: ModelApi, client: str
) -> None:
    agent = installed(client)
    agent.prepare(tmp_path, model.url)
    here = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    usual = tmp_path / ".local" / "share" / "memory-agent"  # Codex does not pass our variables to a server
    usual.parent.mkdir(parents=True)
    usual.symlink_to(light_daemon.data_dir)
    for words in PLUGIN[client]:
        agent.run(words, tmp_path, tmp_path, model.url, here)
    with MemoryClient(data_dir=light_daemon.data_dir) as memory:
        memory.remember(ANSWER, channel_id=f"project:{tmp_path}")
    tool = f"mcp__plugin_memory-agent_{agent.recall.tool[5:]}" if client == "claude-code" else agent.recall.tool
    model.play([agent.recall._replace(tool=tool)], "Connect the VPN.")
    agent.session(SECOND_PROMPT, tmp_path, tmp_path, model.url, here)
    (found,) = model.results
    assert ANSWER in found
    with MemoryClient(data_dir=light_daemon.data_dir) as memory:
        wait_until(lambda: SECOND_PROMPT in texts(memory))


def test_the_tools_of_claude_code_follow_its_session_after_clear(
    tmp_path: Path, light_daemon: DaemonProcess, model: ModelApi
) -> None:
    agent = installed("claude-code")
    assert agent.program is not None
    memory_agent(
        tmp_path, tmp_path, "connect", "claude-code", "--user", "clears", "--data-dir", str(light_daemon.data_dir)
    )
    give_hooks_time(Scope("claude-code", None, tmp_path, {}))
    stored = [ToolCall("mcp__memory-agent__remember", {"text": text}) for text in ("The first fact", "The second fact")]
    model.play([stored[0]], ANSWER)
    options = ["--input-format", "stream-json", "--output-format", "stream-json", "--verbose"]
    environment = {name: value.replace("{url}", model.url) for name, value in agent.environment.items()}
    with subprocess.Popen(
        [*agent.program, *agent.words, *options], cwd=tmp_path, text=True, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TERM": "dumb", **environment},
    ) as process:  # fmt: skip
        sessions = [said_in(process, FIRST_PROMPT)]
        said_in(process, "/clear")
        model.play([stored[1]], ANSWER)
        sessions.append(said_in(process, SECOND_PROMPT))
        process.communicate("", timeout=60)
    assert sessions[0] != sessions[1]
    with MemoryClient("clears", data_dir=light_daemon.data_dir) as memory:
        found = {record.text: record.session_id for record in memory.list(limit=50).records}
    assert [found["The first fact"], found["The second fact"]] == sessions


def said_in(process: subprocess.Popen[str], prompt: str) -> str:
    """Send a prompt to Claude Code; return the session of its result."""
    assert process.stdin is not None
    assert process.stdout is not None
    message = {"type": "user", "message": {"role": "user", "content": prompt}}
    process.stdin.write(json.dumps(message) + "\n")
    process.stdin.flush()
    for line in process.stdout:
        said = json.loads(line)
        if said.get("type") == "result":
            return str(said["session_id"])
    raise AssertionError("Claude Code ended")
