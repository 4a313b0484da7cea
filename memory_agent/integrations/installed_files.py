"""Writes and removes files of this program that other programs read: shell completions and manual pages.

A file that does not contain `MARK` belongs to another program: it is neither replaced nor removed.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from pathlib import Path

from relay.disk import write_private

MARK = "memory-agent completion"
_READABLE = 0o644


def completion_path(shell: str, home: Path, variables: Mapping[str, str]) -> Path:
    """Return the file from which one user's shell loads the completions of `memory-agent`.

    >>> completion_path("fish", Path("/home/ann"), {})
    PosixPath('/home/ann/.config/fish/completions/memory-agent.fish')
    """
    data = _folder(variables, "XDG_DATA_HOME") or home / ".local" / "share"
    if shell == "bash":
        folder = _folder(variables, "BASH_COMPLETION_USER_DIR") or data / "bash-completion"
        return folder / "completions" / "memory-agent"
    if shell == "zsh":
        return data / "zsh" / "site-functions" / "_memory-agent"
    return (_folder(variables, "XDG_CONFIG_HOME") or home / ".config") / "fish" / "completions" / "memory-agent.fish"


def install_file(path: Path, text: str, mark: str = MARK) -> bool:
    """Atomically write a world-readable file; return False if it already contains this text.

    Raises `OSError`, including when the file exists but does not contain `mark`.
    """
    existing = _own(path, mark)
    if existing == text:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    write_private(path, text.encode())
    path.chmod(_READABLE)
    return True


def remove_file(path: Path, mark: str = MARK) -> bool:
    """Remove a file; return False if it does not exist. Raises `OSError`, including when the file lacks `mark`."""
    if _own(path, mark) is None:
        return False
    path.unlink()
    return True


def _folder(variables: Mapping[str, str], name: str) -> Path | None:
    """Return the folder that a variable names. A relative path is ignored, as the XDG specification requires."""
    path = Path(variables.get(name, ""))
    return path if path.is_absolute() else None


def _own(path: Path, mark: str) -> str | None:
    try:
        text = path.read_bytes().decode(errors="replace")
    except FileNotFoundError:
        return None
    if mark not in text:
        raise FileExistsError(errno.EEXIST, "was not written by memory-agent; rename or remove it first", str(path))
    return text
