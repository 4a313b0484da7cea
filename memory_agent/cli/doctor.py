"""`doctor`: checks of this machine and data folder, and what to do about each failure."""

from __future__ import annotations

import click
from rich.text import Text

from memory_agent.cli.options import Target, common_options
from memory_agent.cli.render import emit, plain, print_document

_MARKS = {"ok": ("ok     ", "green"), "warning": ("warning", "yellow"), "failed": ("FAILED ", "bold red")}
_NAME_WIDTH = 14
_MARK_WIDTH = 9


@click.command(short_help="Check this machine, and say what to do.")
@common_options
def doctor(target: Target) -> None:
    """Check versions, model, folders, disk, sockets and the daemon; say what to do about each failure.

    Embeds a text and recalls it from a temporary memory. Exit code 1 when a check failed; a warning is no failure.

    \b
    Examples:
      memory-agent doctor
      memory-agent doctor --data-dir /srv/memory --json
    """
    from memory_agent.care.doctor import Check, examine  # engines

    made: list[Check] = []
    for check in examine(target.settings, target.data_dir):
        made.append(check)
        if not target.as_json:
            _print(check.name, check.state, check.detail, check.advice)
    failed = [check.name for check in made if check.state == "failed"]
    if target.as_json:
        print_document({"healthy": not failed, "checks": made})
    elif not failed:
        warned = sum(check.state == "warning" for check in made)
        told = f"; {warned} to look at, above" if warned else ""
        emit(Text(f"everything that is needed works{told}", style="bold"))
    if failed:
        raise SystemExit(1)


def _print(name: str, state: str, detail: str, advice: str) -> None:
    emit(Text.assemble(_MARKS[state], f"  {name:<{_NAME_WIDTH}}", plain(detail)))
    if advice:
        emit(Text(f"{'':<{_MARK_WIDTH + _NAME_WIDTH}}-> {advice}", style="dim"))
