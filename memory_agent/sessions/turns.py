"""Ids that a transcript and the hooks of its session share, so that what both report is stored once.

A turn is a prompt and what follows it: `promptId` of Claude Code, `turn_id` of Codex. Gemini CLI gives its hooks no
ids, so there a text is identified by its digest: the same words twice in one session are stored once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CLAUDE_CODE = "claude-code"
CODEX = "codex"
GEMINI = "gemini"
_FEWEST_WORDS = 3
"""Words of a prompt of Claude Code that begins a run, at least: "yes" and "go on" belong to the run before."""


def run_of(client: str, turn: str) -> str:
    """Return the id of the run that a turn is."""
    return f"{client}:{turn}"


def begins_run(prompt: str) -> bool:
    """Return whether a prompt of Claude Code is a request of its own."""
    return len(prompt.split()) >= _FEWEST_WORDS


def call_id(turn: str, call: str) -> str:
    """Return the id of a call. `call` is unique within a turn, and not within a session."""
    return f"{turn}:{call}"


def said_id(place: str, text: str) -> str:
    """Return the id of a text without an id of its own. `place` is that of its turn or session."""
    return f"{place}:{_digest(text.strip())}"


def made_id(session: str, name: str, arguments: Mapping[str, Any], output: str) -> str:
    """Return the id of a call without an id of its own, from what was called and what it returned."""
    import json  # late: for one client alone

    return said_id(session, json.dumps([name, arguments, output.strip()], sort_keys=True))


def _digest(text: str) -> str:
    from hashlib import blake2b  # late: 3 ms, for some hooks alone

    return blake2b(text.encode(errors="replace"), digest_size=12).hexdigest()
