"""The exit codes of all commands. `ops/ERRORS.md` lists them. Imported by hooks, so this imports no other module."""

from __future__ import annotations

from enum import IntEnum

_FAILED = (
    "The command failed, or it failed for some items, which are listed, and succeeded for the rest (`publish`, "
    "`import`, `import-sessions`, `index`, `quarantine retry`, `forget`). Also: there is no item, model or daemon to "
    "act on (`shared unpublish`, `model status`, `stop`), a check of the machine failed (`doctor`), or nothing arrived "
    "within `--timeout` (`blocks`)"
)


class ExitCode(IntEnum):
    """How a command ended. `meaning` describes it for users.

    >>> ExitCode.MISUSED.value, ExitCode.MISUSED.meaning
    (2, 'The command line is invalid. Nothing was done')
    """

    meaning: str

    def __new__(cls, value: int, meaning: str) -> ExitCode:
        code = int.__new__(cls, value)
        code._value_ = value
        code.meaning = meaning
        return code

    DONE = 0, "Everything was done. Finding nothing is not a failure (`recall`, `list`). Hooks always exit with 0"
    FAILED = 1, _FAILED
    MISUSED = 2, "The command line is invalid. Nothing was done"
    FOUND = 3, "`verify` found a problem, or could not check everything; `backup` left out users, whom it lists"
    INTERRUPTED = 130, "The command was interrupted (Ctrl-C), or a question was answered with no"
