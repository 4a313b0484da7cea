"""Turn a tool call of any client into an entry: a command with its output, a changed file, or delegated work.

The output of tools that read or search is skipped, since the files can be read again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from memory_agent.sessions.entries import Entry, Left, text_of

_SHELLS = frozenset(
    {
        *("bash", "shell", "local_shell", "exec_command", "container.exec", "run_shell_command", "execute_bash"),
        *("terminal", "terminaltool", "execute_command", "run_command", "run_terminal_cmd", "bashtool"),
    }
)
_EDITORS = frozenset(
    {
        *("edit", "multiedit", "write", "notebookedit", "apply_patch", "write_file", "replace", "edit_file"),
        *("create_file", "str_replace_editor", "str_replace_based_edit_tool", "file_editor", "fileeditortool"),
    }
)
_DELEGATES = frozenset({"task", "agent", "delegate", "spawn_agent"})
_PATHS = ("file_path", "path", "absolute_path", "filename", "notebook_path", "target_file")
_COMMANDS = ("command", "cmd", "script")
_OBJECTIVES = ("prompt", "message", "task", "description")
_PATCHED = re.compile(r"^\*\*\* (?:Add|Update|Delete) File: (.+)$", re.MULTILINE)
_READS = ("view", "undo_edit")
_OWN = re.compile(r"\bmemory-agent\s+(?:recall|list|blocks|export)\b")
_EXIT_CODE = re.compile(r"(?:[Ee]xit(?:ed with)? [Cc]ode:?|exited with code) (-?\d+)")
_EXIT_LINE = re.compile(r"^Exit Code: (-?\d+)$", re.MULTILINE)
_HEADER = re.compile(
    r"\A(?:[^\n]+\n){0,6}?(?:Process exited with code|Exit code:) (-?\d+)\n(?:[^\n]+\n){0,4}?Output:\n"
)
_HEAD_CHARS, _TAIL_CHARS = 1_000, 3_000
_MOST_ERROR_CHARS = 500
_MOST_COMMAND_CHARS = 4_000


class Call(NamedTuple):
    name: str
    arguments: Mapping[str, Any] = {}


class Result(NamedTuple):
    """The result of a tool call. `failed` and `exit_code` are None if the log does not contain them."""

    output: str = ""
    failed: bool | None = None
    exit_code: int | None = None


def arguments_of(text: Any) -> Mapping[str, Any]:
    """Return a call's arguments from an object or JSON text; any other text becomes the argument `input`."""
    if isinstance(text, Mapping):
        return text
    if not isinstance(text, str):
        return {}
    import msgspec  # imported here, because hooks get their arguments as objects

    try:
        decoded = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {"input": text}
    return decoded if isinstance(decoded, dict) else {"input": text}


def entry_of(
    call: Call, result: Result, id: str, at: datetime | None, *, run: str | None = None, agent: str | None = None
) -> Entry | Left:
    """Return the entry for a call and its result, or the reason why they are skipped."""
    name = call.name.rpartition("__")[2].rpartition(".")[2].lower() if call.name != "container.exec" else call.name
    if name in _SHELLS and (command := _command(call.arguments)):
        if _OWN.search(command):
            return Left.OWN_ANSWER
        return Entry(
            what="command",
            id=id,
            at=at,
            text=shortened(result.output),
            command=command[:_MOST_COMMAND_CHARS],
            exit_code=_exit_code(result),
            run=run,
            agent=agent,
        )
    if name in _EDITORS and (changed := _changed(call.arguments)):
        text = f"Changed {changed}"
        if result.failed:
            text = f"Could not change {changed}: {result.output[:_MOST_ERROR_CHARS]}"
        return Entry(what="step", id=id, at=at, text=text, run=run, agent=agent)
    if name in _DELEGATES and (objective := _first_text(call.arguments, _OBJECTIVES)):
        return Entry(what="assignment", id=id, at=at, text=objective, run=run, agent=agent)
    return Left.OTHER_TOOL


def exit_code_in(text: str) -> int | None:
    """Return the exit code that Gemini CLI adds to a command's output, or None for 0, which is not printed."""
    found = _EXIT_LINE.search(text)
    return None if found is None else int(found[1])


def result_of(output: Any) -> Result:
    """Return the result of a Codex call: text with a header, an object with text and exit code, or text parts."""
    if isinstance(output, str) and output.startswith("{"):
        output = arguments_of(output)
    if isinstance(output, dict) and "output" in output:
        about = output.get("metadata")
        code = about.get("exit_code") if isinstance(about, dict) else output.get("exit_code")
        return Result(output=text_of(output["output"]), exit_code=code if type(code) is int else None)
    text = text_of(output.get("content") if isinstance(output, dict) else output)
    header = _HEADER.match(text)
    if header is None:
        return Result(output=text)
    return Result(output=text[header.end() :], exit_code=int(header[1]), failed=header[1] != "0")


def shortened(output: str) -> str:
    """Return a long output without its middle; errors are usually at the end."""
    output = output.strip()
    if len(output) <= _HEAD_CHARS + _TAIL_CHARS:
        return output
    return f"{output[:_HEAD_CHARS]}\n…\n{output[-_TAIL_CHARS:]}"


def _command(arguments: Mapping[str, Any]) -> str:
    for name in _COMMANDS:
        value = arguments.get(name)
        if isinstance(value, Sequence) and not isinstance(value, str) and value:
            words = [word for word in value if isinstance(word, str)]
            is_wrapped = len(words) == 3 and words[1] in ("-c", "-lc")
            value = words[2] if is_wrapped else " ".join(words)
        if isinstance(value, str) and value.strip():
            return value.strip()
    return ""


def _changed(arguments: Mapping[str, Any]) -> str:
    if arguments.get("command") in _READS:
        return ""
    patch = _first_text(arguments, ("input", "patch"))
    return ", ".join(dict.fromkeys(_PATCHED.findall(patch))) or _first_text(arguments, _PATHS)


def _first_text(arguments: Mapping[str, Any], names: Sequence[str]) -> str:
    values = (arguments.get(name) for name in names)
    return next((value.strip() for value in values if isinstance(value, str) and value.strip()), "")


def _exit_code(result: Result) -> int | None:
    if result.exit_code is not None:
        return result.exit_code
    if result.failed is None:
        return None
    found = _EXIT_CODE.search(result.output[:_HEAD_CHARS])
    if found is not None and (int(found[1]) != 0) is result.failed:
        return int(found[1])
    return int(result.failed)
