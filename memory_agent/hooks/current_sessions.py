"""The current session of each agent process. It is stored because MCP servers do not receive the new session after
`/clear` or `/resume`.

A file for each process, named by its id and start time, contains the session's id.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

_SHELLS = frozenset({"sh", "dash", "bash", "zsh", "ash", "ksh"})
_SESSION = re.compile(r"[\w.:-]{1,128}", re.ASCII)


class CurrentSessions:
    """The sessions of the agent processes on this machine. Does nothing on systems without `/proc`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, process: int) -> str | None:
        """Return the current session of the agent that started a program; `process` is that program's parent."""
        agent = _agent(process)
        with suppress(OSError):
            return None if agent is None else (self._folder / agent).read_text(encoding="ascii") or None
        return None

    def set(self, process: int, session: str) -> None:
        """Store the session that a hook reports; `process` is the hook's parent: the agent, or its shell."""
        agent = _agent(process)
        if agent is None or _SESSION.fullmatch(session) is None or self.get(process) == session:
            return
        with suppress(OSError):
            self._folder.mkdir(mode=0o700, exist_ok=True)
            for name in os.listdir(self._folder):
                if _name(name.partition("-")[0]) != name:
                    (self._folder / name).unlink(missing_ok=True)
            written = self._folder / f"{agent}.{os.getpid()}"
            written.write_text(session, encoding="ascii")
            written.rename(self._folder / agent)


def _agent(process: int) -> str | None:
    """Return the id and start time of the first process, from `process` upwards, that is not a shell."""
    for _ in range(3):
        stat = _stat(str(process))
        if stat is None:
            return None
        if stat[0] not in _SHELLS:
            return _name(str(process))
        process = int(stat[2])
    return None


def _name(process: str) -> str | None:
    stat = _stat(process)
    return None if stat is None else f"{process}-{stat[20]}"


def _stat(process: str) -> list[str] | None:
    """Return a process's name and the fields after the name, or None if there is no such process."""
    try:
        text = Path("/proc", process, "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    before, _, after = text.rpartition(")")
    return [before.partition("(")[2], *after.split()]
