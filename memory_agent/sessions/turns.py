"""Ids that a transcript and the hooks of its session both know, so that what both report is stored once.

A turn is what follows a prompt: `promptId` of Claude Code, `turn_id` of Codex. Gemini CLI names nothing to its hooks,
so there a text is its own id: said twice in one session, it is stored once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CLAUDE_CODE = "claude-code"
CODEX = "codex"
GEMINI = "gemini"
_FEWEST_WORDS = 3
"""Of a prompt of Claude Code that begins a run: "yes" and "go on" belong to the run before."""


def run_of(client: str, turn: str) -> str:
    """Return the id of the run that a turn is."""
    return f"{client}:{turn}"


def begins_run(prompt: str) -> bool:
    """Return whether a prompt of Claude Code asks for something of its own."""
    return len(prompt.split()) >= _FEWEST_WORDS


def call_id(turn: str, call: str) -> str:
    """Return the id of a call in a turn. Calls of one session may share an id, those of a turn do not."""
    return f"{turn}:{call}"


def said_id(place: str, text: str) -> str:
    """Return the id of what was said in a turn or a session, where nothing names it."""
    return f"{place}:{_digest(text.strip())}"


def made_id(session: str, name: str, arguments: Mapping[str, Any], output: str) -> str:
    """Return the id of a call that nothing names: what was called, and what came back."""
    import json  # late, as above: for one client alone

    return said_id(session, json.dumps([name, arguments, output.strip()], sort_keys=True))


def _digest(text: str) -> str:
    from hashlib import blake2b  # late: 3 ms, for some hooks alone

    return blake2b(text.encode(errors="replace"), digest_size=12).hexdigest()
