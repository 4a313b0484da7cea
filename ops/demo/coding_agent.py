"""The scene with a real coding agent, if one is installed: its second session receives the first session's finding."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from memory_agent.integrations import CLIENTS, Scope
from ops.demo.agents import AGENTS, ANSWER, FAILURE, Agent
from ops.demo.model_api import ModelApi, model_api
from ops.demo.stage import Stage, wait_until

_USER = "carol"
_FIRST = "Find out why the deploy to staging hangs"
_SECOND = "The deploy to staging hangs again, what should I do?"
_TRIES = 3  # retried, because a hook adds nothing to the prompt if it takes longer than 300 ms
_SHOWN_LINES = 12


def connect_an_agent(stage: Stage) -> None:
    """Connect the first installed agent, run two sessions, and disconnect it."""
    name = next((name for name, agent in AGENTS.items() if agent.program is not None), None)
    if name is None:
        stage.screen.say("skipped: no coding agent is installed; `make agents` installs three (870 MB)", "dim")
        return
    home, folder = stage.scratch / "home", stage.scratch / "shop"
    home.mkdir()
    folder.mkdir()
    (folder / "deploy.sh").write_text(f"echo '{FAILURE}' >&2; exit 7\n", encoding="utf-8")
    title, scope = CLIENTS[name].title, Scope(name, None, home, {})
    with model_api() as model:
        AGENTS[name].prepare(home, model.url)
        before = _read(scope)
        _connect(stage, "connect", name, home)
        model.play([AGENTS[name].run_shell("sh deploy.sh")], ANSWER)
        stage.screen.request(f"the real {title}, with a fake model: its first session", _FIRST)
        AGENTS[name].session(_FIRST, folder, home, model.url)
        stage.screen.say(f"it ran deploy.sh, which failed, and reported: {ANSWER}")
        client = stage.client(_USER)
        wait_until(lambda: any(ANSWER in record.text for record in client.list(limit=50).records))
        stage.screen.request("its second session", _SECOND)
        block = _second_session(AGENTS[name], folder, home, model)
    stage.screen.block("what the model received before this prompt", "\n".join(block.splitlines()[:_SHOWN_LINES]))
    stage.screen.promise("the first session's finding is in the second session's prompt", ANSWER in block)
    _connect(stage, "disconnect", name, home)
    left = _read(scope)
    stage.screen.promise(
        f"disconnected: no memory-agent entries are left in the settings of {title}",
        all(b"memory-agent" not in content for content in left.values()) and left.keys() >= before.keys(),
    )


def _second_session(agent: Agent, folder: Path, home: Path, model: ModelApi) -> str:
    """Return the block that precedes a new session's prompt, or "" if there is none."""
    for _ in range(_TRIES):
        model.play([], "Connect the VPN.")
        agent.session(_SECOND, folder, home, model.url)
        block = next((text for text in _texts(json.loads(model.requests[0])) if ANSWER in text), "")
        if block:
            return block
    return ""


def _texts(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for one in inner for text in _texts(one)]


def _connect(stage: Stage, verb: str, client: str, home: Path) -> None:
    shown = ["memory-agent", verb, client]
    stage.screen.say(f"$ {' '.join(shown)}", "bold")
    where = ("--user", _USER, "--data-dir", str(stage.data_dir)) if verb == "connect" else ()
    subprocess.run(
        [str(Path(sys.executable).with_name("memory-agent")), verb, client, *where],
        env={"PATH": os.environ["PATH"], "HOME": str(home)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
    )


def _read(scope: Scope) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path, _ in scope.files() if path.exists()}
