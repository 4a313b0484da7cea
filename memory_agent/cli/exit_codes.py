"""The exit codes of all commands. `ops/ERRORS.md` lists them. Hooks import this module, so it imports no other."""

from __future__ import annotations

from enum import IntEnum

_FAILED = (
    "The command failed. With `publish`, `import`, `import-sessions`, `index`, `quarantine retry` and `forget`, the "
    "command may have failed for only some items, which it lists. Other causes: the item, model or daemon does not "
    "exist (`shared unpublish`, `model status`, `stop`), a check of the machine failed (`doctor`), or no block arrived "
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
    FOUND = 3, "`verify` found a problem or could not check everything, or `backup` left out some users, which it lists"
    INTERRUPTED = 130, "The command was interrupted (Ctrl-C), or the user answered no to a question"
