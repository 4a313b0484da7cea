"""`cells list|take|drop`: show which cell a user belongs to, and move users when the cells file changes."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from memory_agent.cli.command import Group
from memory_agent.cli.exit_codes import ExitCode
from memory_agent.cli.failure import note
from memory_agent.cli.options import ONLY, UNUSED, Target, options_where_user
from memory_agent.cli.progress import progress_bars
from memory_agent.cli.render import print_document, print_table
from memory_agent.storage.folders import known_users
from relay import SHARED_USER

if TYPE_CHECKING:
    from memory_agent.client import MemoryClient
    from memory_agent.client.cells import Cells

_SLACK_S = 0.2  # uptimes are rounded
_WAIT_S = 300.0
_PAGE = 100
_AT_ONCE = 16  # erasures within a second share one compaction of the journal
_file = click.argument("file", type=click.Path(dir_okay=False, path_type=Path))


@click.group(cls=Group)
def cells() -> None:
    """Cells are daemons that divide the users among themselves. FILE describes the cells; a user's id determines the
    cell.

    \b
    Examples:
      memory-agent cells list cells.toml --user alice
      memory-agent cells take cells.toml cell-2 /mnt/backups/cell-0 --data-dir /srv/cell-2
      memory-agent cells drop cells.toml --data-dir /srv/cell-0
    """


@cells.command("list", short_help="Show the cell of each user.")
@_file
@options_where_user(ONLY)
def list_users(target: Target, file: Path) -> None:
    """Show the cell to which FILE assigns each user of the data folder, or --user.

    \b
    Examples:
      memory-agent cells list new-cells.toml --data-dir /srv/cell-0
    """
    from memory_agent.client.cells import read_cells  # imports the relay

    read = read_cells(file)
    users = [target.user_id] if target.user_named else _users(target.data_dir)
    _print(target, "cell", {user_id: read.name_of(user_id) for user_id in users})


@cells.command(short_help="Restore a cell's users from another cell's backup.")
@_file
@click.argument("name")
@click.argument("backup", type=click.Path(file_okay=False, exists=True, path_type=Path))
@options_where_user(UNUSED)
def take(target: Target, file: Path, name: str, backup: Path) -> None:
    """Restore into this data folder the users of BACKUP whom FILE assigns to the cell NAME. BACKUP is from another
    cell.

    Stop the daemon of this data folder first. Users who have memories here, or were erased here after the backup, are
    skipped. The keys of encrypted users must be in the keys folder.

    \b
    Examples:
      memory-agent cells take cells.toml cell-2 /mnt/backups/cell-0 --data-dir /srv/cell-2
    """
    from memory_agent.care import take_users  # imports the engines
    from memory_agent.client.cells import read_cells

    read, now = read_cells(file), datetime.now(UTC)
    _check_cell(read, name, target.data_dir)
    with progress_bars() as report:
        taken = take_users(
            backup, target.data_dir, lambda one: read.name_of(one) == name, target.settings, now, report, note
        )
    users = dict.fromkeys((one for one in _users(backup) if read.name_of(one) == name), "skipped")
    _print(target, "outcome", users | {part.part.removeprefix("user "): "taken" for part in taken.parts})


def _check_cell(cells: Cells, name: str, data_dir: Path) -> None:
    """Raise `click.UsageError` if the file does not contain the cell, or names a different data folder for it."""
    cell = cells.by_name.get(name)
    if cell is None:
        raise click.UsageError(f"the file has no cell {name!r}, only {', '.join(cells.by_name)}")
    if cell.data_dir is not None and Path(cell.data_dir).resolve() != data_dir.resolve():
        raise click.UsageError(f"the data folder of {name} is {cell.data_dir}: pass it as --data-dir")


@cells.command(short_help="Erase users who have moved to another cell.")
@_file
@options_where_user(UNUSED)
@click.pass_context
def drop(context: click.Context, target: Target, file: Path) -> None:
    """Erase from this daemon each user whom FILE assigns to another cell, if that cell has all of the user's memories.

    Run this command on the daemon's machine; the other cells must also be running. If the other cell lacks one of a
    user's memories, or has it with a different text, the user is not erased, and the exit code is 1. Shared items of an
    erased user are unpublished.

    \b
    Examples:
      memory-agent cells drop cells.toml --data-dir /srv/cell-0
    """
    from memory_agent.client import MemoryClient  # imports sockets

    with MemoryClient(data_dir=target.data_dir) as daemon:
        daemon.wait({"system": daemon.status().journal["last_seq"]}, _WAIT_S)

    def dropped(user_id: str) -> str:
        with MemoryClient(user_id, cells=file) as there, MemoryClient(user_id, data_dir=target.data_dir) as here:
            if _is_same(there, here):
                return "here"
            if not _has_all(there, here):
                return "left"
            receipt = here.erasure.erase_user()
            return "dropped" if receipt.complete else f"dropped, but {receipt.reason}"

    users = _users(target.data_dir)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        done = dict(zip(users, pool.map(dropped, users), strict=True))
    _print(target, "outcome", {user_id: outcome for user_id, outcome in done.items() if outcome != "here"})
    if not {"here", "dropped"}.issuperset(done.values()):
        context.exit(ExitCode.FAILED)


def _is_same(there: MemoryClient, here: MemoryClient) -> bool:
    """Whether both clients reach the same daemon. Repeats the check if `here` was restarted in the meantime."""
    while True:
        before, since_s = here.status(), time.monotonic()
        other, elapsed_s = there.status(), time.monotonic() - since_s
        after = here.status()
        if after.uptime_s - before.uptime_s >= elapsed_s - _SLACK_S:
            is_as_old = before.uptime_s - _SLACK_S <= other.uptime_s <= after.uptime_s + _SLACK_S
            return is_as_old and other.endpoints == after.endpoints


def _has_all(there: MemoryClient, here: MemoryClient) -> bool:
    """Whether each memory in `here` also exists in `there`, with the same text."""
    after: str | None = None
    while True:
        page = here.list(limit=_PAGE, after=after)
        found = {record.id: record.text for record in there.get([record.id for record in page.records])}
        if any(found.get(record.id) != record.text for record in page.records):
            return False
        if (after := page.next_cursor) is None:
            return True


def _users(folder: Path) -> list[str]:
    return [user_id for user_id in known_users(folder) if user_id != SHARED_USER]


def _print(target: Target, what: str, users: dict[str, str]) -> None:
    print_document({"users": users}) if target.as_json else print_table("users", ("user", what), users.items())
