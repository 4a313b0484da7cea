"""`verify`: every checksum, and everything that points to something, in all stores and the journal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from memory_agent.cli.each_user import note_skipped
from memory_agent.cli.failure import note
from memory_agent.cli.options import ONLY, Target, options_where_user
from memory_agent.cli.progress import progress_bars
from memory_agent.cli.render import print_document, print_table
from memory_agent.errors import EncryptionKeyMissingError

if TYPE_CHECKING:
    from memory_agent.care.checkup import PartReport

_FOUND = 2


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
    from memory_agent.care.verification import verify_folder, verify_manifest  # imports the engines

    unchecked: list[str] = []

    def skip(error: EncryptionKeyMissingError) -> None:
        unchecked.append(f"user {error.user_id}")
        note_skipped(error)

    parts: list[PartReport] = []
    with progress_bars() as report:
        if backup is not None:
            checked, manifest = verify_manifest(backup, report)
            parts.append(checked)
            if manifest is not None and manifest.left_out:
                note(f"not in this backup: {', '.join(manifest.left_out)}")
        user_id = target.user_id if target.user_named else None
        on_missing_key = None if target.user_named else skip
        parts += verify_folder(target.data_dir, target.settings, report, user_id, on_missing_key, backup)
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


def _print(parts: list[PartReport], found: list[tuple[str, str, str, int]]) -> None:
    for part in parts:
        state = "sound" if not part.findings else f"{len(part.findings)} findings"
        click.echo(f"{part.part}: {part.entries} entries, {state}")
    if found:
        click.echo()
        print_table("findings", ("part", "where", "what", "count"), found)
