"""`verify`: every checksum, and everything that points to something, in all stores and the journal."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from memory_agent.cli.each_user import passing_without_key
from memory_agent.cli.failure import note
from memory_agent.cli.options import ONLY, Target, options_where_user
from memory_agent.cli.progress import progress_bars
from memory_agent.cli.render import print_document, print_table
from memory_agent.errors import BackupDamagedError
from memory_agent.layout import Layout
from memory_agent.storage.folders import known_users, user_folder
from relay import SYSTEM_USER, journal_folder
from relay.disk import Report

if TYPE_CHECKING:
    from memory_agent.care.checkup import PartReport

_FOUND = 2
_FEW = 3  # users


@click.command(short_help="Check every checksum and index; change nothing.")
@click.argument("backup", type=click.Path(file_okay=False, exists=True, path_type=Path), required=False)
@options_where_user(ONLY)
@click.pass_context
def verify(context: click.Context, target: Target, backup: Path | None) -> None:
    """Check everything that is kept: each record and event against its checksum, each index against the records.

    With BACKUP, which `memory-agent backup` made: its files against its manifest, then each record and event in them.

    Without --user, all users, whose runs are whose, and the journal; a user whose encryption key is gone is named and
    could not be checked. Works beside a daemon, and changes nothing. What is wrong is named by file and class of keys,
    and counted. Exit code 2: something was found, or could not be checked. What is found in index.usearch or
    lexicon.sqlite costs nothing: they are built anew (now: `memory-agent rebuild`), and one that is not there yet is a
    note; sona.state is learnt again when the memory is opened. Anything else is restored from a backup:
    `memory-agent restore`.

    \b
    Examples:
      memory-agent verify
      memory-agent verify --user alice
      memory-agent verify /mnt/backups/monday
      memory-agent verify --json | jq '.parts[] | select(.findings != [])'
    """
    unchecked: list[str] = []
    with progress_bars() as report:
        check = partial(_checked, target) if backup is None else partial(_checked_backup, target, backup)
        parts = list(check(report, unchecked))
    found = [(part.part, one.place, one.fault, one.count) for part in parts for one in part.findings]
    if target.as_json:
        print_document({"sound": not found and not unchecked, "parts": parts, "unchecked": unchecked})
    else:
        _print(parts, found)
    for part in parts:
        if part.unbuilt:
            note(f"{part.part}: {', '.join(part.unbuilt)} is not there; it is built at the next start")
    if found or unchecked:
        context.exit(_FOUND)


def _checked_backup(target: Target, backup: Path, report: Report, unchecked: list[str]) -> Iterator[PartReport]:
    """Check the manifest, and then what it speaks of. Raises `BackupDamagedError` for a folder that is no backup."""
    from memory_agent.care.checkup import PartReport
    from memory_agent.care.manifest import MANIFEST_FILE, read_manifest
    from relay.disk import Finding

    report(MANIFEST_FILE, 0, 1)
    try:
        manifest = read_manifest(backup)
    except BackupDamagedError as error:
        if not (backup / MANIFEST_FILE).exists():
            raise
        damage = Finding(place=MANIFEST_FILE, fault=str(error), count=1)
        yield PartReport(part="manifest", entries=0, findings=(damage,))
    else:
        yield PartReport(part="manifest", entries=len(manifest.parts))
        if manifest.left_out:
            note(f"not in this backup: {', '.join(manifest.left_out)}")
    report(MANIFEST_FILE, 1, 1)
    yield from _checked(target, report, unchecked, backup)


def _checked(target: Target, report: Report, unchecked: list[str], backup: Path | None = None) -> Iterator[PartReport]:
    """Add to `unchecked` who is passed over."""
    from memory_agent.care.checkup import check_events, check_owners, check_user  # engines

    root, is_copy = backup or target.data_dir, backup is not None
    users = [target.user_id] if target.user_named else list(known_users(root))
    for done, user_id in enumerate(users):
        folder = user_folder(root, user_id)
        told = partial(_report, report, user_id) if len(users) <= _FEW else _untold
        report("users", done, len(users))
        checked = None
        with passing_without_key(target):
            checked = check_user(folder, user_id, target.settings.store, told, target.key_of(user_id), is_copy=is_copy)
        if checked is None:
            unchecked.append(f"user {user_id}")
        else:
            yield checked
    report("users", len(users), len(users))
    owners, journal = Layout(root).owners, journal_folder(root)
    if not target.user_named and owners.exists():
        yield check_owners(owners, target.key_of(SYSTEM_USER))
    if not target.user_named and journal.exists():
        yield check_events(journal, target.settings.relay.journal, partial(_report, report, "journal"))


def _report(report: Report, part: str, what: str, done: int, total: int) -> None:
    report(f"{part}: {what}", done, total)


def _untold(_what: str, _done: int, _total: int) -> None:
    """Of many users, each part of each would be a bar of its own."""


def _print(parts: list[PartReport], found: list[tuple[str, str, str, int]]) -> None:
    for part in parts:
        state = "sound" if not part.findings else f"{len(part.findings)} findings"
        click.echo(f"{part.part}: {part.entries} entries, {state}")
    if found:
        click.echo()
        print_table("findings", ("part", "where", "what", "count"), found)
