"""The process that answers one hook call.

Parsing simple arguments without the command-line library halves the time of a call.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from memory_agent.hooks.answering import Options, answer
from memory_agent.hooks.deadline import LONGEST_MS, Deadline
from memory_agent.hooks.inputs import LISTENED
from memory_agent.layout import CONFIG_VARIABLE

_NO_START = "--no-start"
_TYPES: dict[str, Callable[[str], Any]] = {"data_dir": Path, "deadline_ms": int}
_NAMES = {f"--{name.replace('_', '-')}": name for name in Options._fields[1:-1]} | {"--data": "data_dir"}


def run_hook(options: Options) -> NoReturn:
    """Read the hook's input from standard input, answer it within the deadline, and end the process."""
    deadline = Deadline(options.deadline_ms)
    if sys.stdin is not None and sys.stdout is not None:  # None if the client closed it
        source, out = sys.stdin.buffer, sys.stdout.fileno()
        deadline.keep(lambda: answer(options, source, out, deadline))
    os._exit(0)  # skips the interpreter's cleanup, which takes 5 ms (measured)


def plain_options(words: Sequence[str]) -> Options | None:
    """Parse a client, `--no-start`, and options that take a value, each allowed only once.

    Return None for other arguments, or if a settings file may name the data folder.

    >>> plain_options(["codex", "--user", "alice"])
    Options(client='codex', data_dir=None, channel=None, user='alice', url=None, deadline_ms=300, start=True)
    >>> plain_options(["codex", "--user=alice"]) is None
    True
    """
    starts = _NO_START not in words
    words = [word for word in words if word != _NO_START]
    if not words or words[0] not in LISTENED or len(words) % 2 == 0:
        return None
    named: dict[str, Any] = {}
    try:
        for word, value in zip(words[1::2], words[2::2], strict=True):
            name = _NAMES[word]
            named[name] = _TYPES.get(name, str)(value)
    except (KeyError, ValueError):
        return None
    is_configured = "data_dir" not in named and os.environ.get(CONFIG_VARIABLE)
    is_repeated = len(named) < len(words) // 2
    is_plain = not (is_configured or is_repeated or any(value.startswith("-") for value in words[2::2]))
    is_plain = is_plain and 0 < named.get("deadline_ms", 1) <= LONGEST_MS
    return Options(words[0], start=starts, **named) if is_plain else None
