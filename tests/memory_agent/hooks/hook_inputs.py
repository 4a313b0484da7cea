"""Hook inputs in the form that clients send, and a function that runs a hook in this process."""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from memory_agent.hooks.answering import Options, answer
from memory_agent.hooks.deadline import Deadline

FOLDER = "/home/ann/shop"
PATIENCE_MS = 30_000
_PIPE_BYTES = 64 << 10
"""Number of bytes that a pipe buffers while its reader waits for the hook to exit."""


def of_claude(name: str, session: str = "s-1", turn: str = "p-1", **fields: Any) -> dict[str, Any]:
    """Return the hook input that Claude Code sends."""
    own = {"session_id": session, "transcript_path": "/t.jsonl", "cwd": FOLDER, "prompt_id": turn}
    return {**own, "hook_event_name": name, **fields}


def of_codex(name: str, session: str = "s-2", turn: str = "t-1", **fields: Any) -> dict[str, Any]:
    """Return the hook input that Codex sends."""
    return {"session_id": session, "turn_id": turn, "cwd": FOLDER, "hook_event_name": name, **fields}


def of_gemini(name: str, session: str = "s-3", **fields: Any) -> dict[str, Any]:
    """Return the hook input that Gemini CLI sends."""
    own = {"session_id": session, "cwd": FOLDER, "timestamp": "2026-11-22T15:53:49.887Z"}
    return {**own, "hook_event_name": name, **fields}


def bash(name: str, command: str, **fields: Any) -> dict[str, Any]:
    """Return the hook input for a command, as sent by Claude Code."""
    return of_claude(name, tool_name="Bash", tool_input={"command": command}, **fields)


def answered(
    client: str, said: dict[str, Any] | bytes, data_dir: Path, deadline_ms: int = PATIENCE_MS, **options: Any
) -> str:
    """Run a hook in this process; return the context that it adds to the prompt, or ""."""
    data = said if isinstance(said, bytes) else json.dumps(said).encode()
    with TemporaryFile() as out:
        deadline = Deadline(deadline_ms)
        answer(Options(client, data_dir, **{"start": False, **options}), BytesIO(data), out.fileno(), deadline)
        assert deadline.left_s > 0, "the hook did not end within its deadline"
        out.seek(0)
        written = out.read()
    assert len(written) < _PIPE_BYTES
    if not written:
        return ""
    shown = json.loads(written)["hookSpecificOutput"]
    assert shown["hookEventName"] == json.loads(data)["hook_event_name"]
    return str(shown["additionalContext"])
