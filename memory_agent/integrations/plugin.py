"""The plugin for Claude Code and Codex: the entries that `connect` writes, as files that `ops.documents` generates.

For installing from a marketplace, or on many machines: `memory-agent` is then found on the `PATH`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from memory_agent.integrations.clients import CLIENTS, PROGRAM, Command, Hooks, Server
from memory_agent.integrations.json_text import JsonText
from memory_agent.version import VERSION

FOLDER = Path(__file__).with_name("plugins")
"""A marketplace with one plugin."""
_DESCRIPTION = "Episodic memory: what past sessions did, found and decided comes back when it bears on the prompt."
_MANIFESTS = {"claude-code": ".claude-plugin/plugin.json", "codex": ".codex-plugin/plugin.json"}
_COMMAND = Command(PROGRAM)


def plugin_files() -> dict[Path, str]:
    """Return the text of each file of the marketplace."""
    owner = {"name": PROGRAM}
    plugin = {"name": PROGRAM, "source": f"./{PROGRAM}", "description": _DESCRIPTION}
    files: dict[str, Any] = {
        ".claude-plugin/marketplace.json": {
            "name": PROGRAM, "owner": owner, "metadata": {"description": _DESCRIPTION}, "plugins": [plugin],
        },
        f"{PROGRAM}/.mcp.json": _entries("claude-code", Server),
    }  # fmt: skip
    for client, manifest in _MANIFESTS.items():
        files[f"{PROGRAM}/{manifest}"] = {
            "name": PROGRAM,
            "version": VERSION,
            "description": _DESCRIPTION,
            "author": owner,
            "hooks": f"./hooks/{client}.json",
        }
        files[f"{PROGRAM}/hooks/{client}.json"] = _entries(client, Hooks)
    return {FOLDER / name: json.dumps(content, indent=2) + "\n" for name, content in files.items()}


def _entries(client: str, kind: type[Server | Hooks]) -> Any:
    """Return our entries of this kind as the client's user settings would have them."""
    text = JsonText("{}")
    for file in CLIENTS[client].user:
        for entry in file.entries:
            if isinstance(entry, kind):
                for wanted in entry.wanted(_COMMAND):
                    text = text.added(wanted.place, wanted.key, wanted.value)
    return json.loads(text.text)
