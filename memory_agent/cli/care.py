"""Maintenance commands: `verify`, `rebuild`, `compact`, `backup`, `restore`, `migrate`."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, get_args, get_type_hints

import click

from memory_agent.cli.access import for_each_user, note_skipped, skip_without_key, uses_daemon
from memory_agent.cli.exit_codes import ExitCode
from memory_agent.cli.failure import note
from memory_agent.cli.fields import field_options
from memory_agent.cli.options import ONLY, UNUSED, Target, daemon_options, options_where_user
from memory_agent.cli.progress import Report, progress_bars
from memory_agent.cli.render import counted, print_document, print_table, printed_json, size
from memory_agent.errors import EncryptionKeyMissingError, UnavailableError
from memory_agent.settings import IndexSettings
from memory_agent.verbs.params import RebuildParams

if TYPE_CHECKING:
    from memory_agent.care import Part, PartReport, Restored
    from memory_agent.client import MemoryClient
    from memory_agent.memory import Memory

_LOOK_S, _STALLED_S = 0.25, 60.0
_ENGINES = get_args(get_type_hints(IndexSettings)["engine"])


@click.command()
@click.argument("backup", type=click.Path(file_okay=False, exists=True, path_type=Path), required=False)
@options_where_user(ONLY)
@click.pass_context
def verify(context: click.Context, target: Target, backup: Path | None) -> None:
    """Check each stored record and event against its checksum, and each index against the records.

    With BACKUP, made by `memory-agent backup`, checks the files against the manifest, then the records and events in
    them.

    Without --user, checks all users, the run owners, and the journal; a user whose encryption key is missing is
    reported as unchecked. Changes nothing, and can be used while a daemon is running. Findings are counted by file and
    kind of key. The exit code is 3 if there are findings or if something could not be checked. Findings in
    columns.arrays and graph.arrays do not mean data loss: both files are rebuilt from the records automatically.
    `memory-agent rebuild` rebuilds them at once, and also refills an index in another engine. A missing file is
    reported, but does not count as a finding. The state in sona.state is relearned when the memory is opened. Restore
    anything else from a backup with `memory-agent restore`.

    \b
    Examples:
      memory-agent verify
      memory-agent verify /mnt/backups/monday
      memory-agent verify --json | jq '.parts[] | select(.findings != [])'
    """
    from memory_agent.care import verify_folder, verify_manifest  # imports the engines

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
        on_missing_key = None if target.user_named else skip
        parts += verify_folder(target.data_dir, target.settings, report, target.only_user, on_missing_key, backup)
    found = [(part.part, one.place, one.fault, one.count) for part in parts for one in part.findings]
    if not printed_json(target.as_json, {"sound": not found and not unchecked, "parts": parts, "unchecked": unchecked}):
        _print_findings(parts, found)
    for part in parts:
        if part.unbuilt:
            note(f"{part.part}: missing {', '.join(part.unbuilt)}, to be built at the next start")
    if found or unchecked:
        context.exit(ExitCode.FOUND)


def _print_findings(parts: list[PartReport], found: list[tuple[str, str, str, int]]) -> None:
    for part in parts:
        state = counted(len(part.findings), "finding") if part.findings else "sound"
        click.echo(f"{part.part}: {counted(part.entries, 'entry', 'entries')}, {state}")
    if found:
        click.echo()
        print_table("findings", ("part", "where", "what", "count"), found)


@click.command()
@field_options(RebuildParams)
@daemon_options
def rebuild(target: Target, vectors: bool) -> None:
    """Rebuild the search columns from the records, for all users or for the user named by --user.

    Missing or damaged columns are rebuilt automatically; this command forces a rebuild. Until it finishes, recall uses
    the old columns and marks its results as degraded. Takes about 1 s per 10,000 memories.

    With --vectors, vectors from a different model are deleted and all memories are embedded again (about 1 minute per
    10,000). Until then, recall uses word matches and the vectors that are ready. If this command is interrupted, the
    running daemon, or the next one to start, continues the work.

    \b
    Examples:
      memory-agent rebuild
      memory-agent rebuild --vectors
    """
    ask = _embed_again if vectors else lambda memory, _: memory.care.rebuild()
    did = "embedded" if vectors else "built from"
    counts = for_each_user(target, "rebuild", "rebuilding", ask)
    if printed_json(target.as_json, {"users": counts}):
        return
    for user_id, count in counts.items():
        click.echo(f"user {user_id}: {did} {counted(count, 'memory', 'memories')}")


def _embed_again(memory: MemoryClient | Memory, report: Report) -> int:
    try:
        return _followed(memory, report)
    except UnavailableError as error:
        raise UnavailableError(f"{error}; a running daemon embeds the rest") from error


def _followed(memory: MemoryClient | Memory, report: Report) -> int:
    total = waiting = memory.care.rebuild(vectors=True)
    moved_at_s = time.monotonic()
    while waiting:
        report("embedding", total - waiting, total)
        time.sleep(_LOOK_S)
        before, waiting = waiting, memory.stats().waiting
        if waiting < before:
            moved_at_s = time.monotonic()
        elif time.monotonic() - moved_at_s > _STALLED_S:
            reason = f"the embedder made no progress for {_STALLED_S:.0f} s: it is unavailable, or rejects the texts"
            raise UnavailableError(f"still to embed: {waiting}; {reason}")
    report("embedding", total, total)
    return total


@click.command()
@daemon_options
def compact(target: Target) -> None:
    """Replace the records of all users, or of --user, with a verified copy that has no free pages.

    Removes the bytes of deleted memories from the file. Needs disk space for the copy. During the copy, recalls are
    answered, but writes wait. If the command is killed, one complete file remains: the old one or the new one. Without
    --user and without a daemon, the journal is compacted too; a daemon's relay compacts it after each erasure.

    \b
    Examples:
      memory-agent compact
    """
    sizes = for_each_user(target, "compact", "compacting", lambda memory, _: memory.care.compact())
    if not target.user_named and not uses_daemon(target):
        from memory_agent.care import compact_journal  # imports the engines

        compact_journal(target.data_dir, target.settings)
    if printed_json(target.as_json, {"users": sizes}):
        return
    for user_id, sized in sizes.items():
        click.echo(f"user {user_id}: {size(sized.bytes_before)} -> {size(sized.bytes_after)}")


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@options_where_user(UNUSED)
@click.pass_context
def backup(context: click.Context, target: Target, directory: Path) -> None:
    """Copy all users' memories and the journal to DIRECTORY, which must not exist yet.

    The daemon may keep running. The copy is consistent and verified, and DIRECTORY appears only once it is durable.
    Encrypted data stays encrypted; the keys are not included, and without them the backup is useless. Unencrypted data
    stays unencrypted: keep the backup as private as the data folder. Caches and tokens are left out. A user whose
    records are damaged, or whose encryption key is missing, is left out and reported; the exit code is then 3.

    \b
    Examples:
      memory-agent backup /mnt/backups/monday
      memory-agent backup "/mnt/backups/$(date +%F)" --json
    """
    from memory_agent.care import make_backup  # imports the engines

    with progress_bars() as report:
        made = make_backup(target.data_dir, directory, target.settings, datetime.now(UTC), report)
    if not printed_json(target.as_json, made):
        total = sum(part.bytes for part in made.parts)
        click.echo(f"{directory}: {counted(len(made.parts), 'part')}, {size(total)}")
    if made.left_out:
        note(f"left out because they are damaged or lack a key: {', '.join(made.left_out)}; run memory-agent verify")
        context.exit(ExitCode.FOUND)


@click.command()
@click.argument("directory", type=click.Path(path_type=Path), required=False)
@click.option("--replace", is_flag=True, help="Move existing data to a new folder first.")
@click.option("--from-journal", is_flag=True, help="Replay the events of --user from the journal; omit DIRECTORY.")
@click.option("--from-archive", is_flag=True, help="Restore only the journal, from the archive.")
@options_where_user(ONLY)
def restore(target: Target, directory: Path | None, replace: bool, from_journal: bool, from_archive: bool) -> None:
    """Restore the backup in DIRECTORY; with --user, only that user's memories.

    Stop the daemon first. A damaged or incomplete backup is rejected without changing anything. With --replace,
    existing data is never deleted; it is moved to a new folder, whose path is printed. Events that were published after
    the backup, and are still in the local journal, are ingested when the daemon next starts. Memories that were
    forgotten here after the backup stay forgotten. The journal does not contain memories from `remember` or `import`,
    recalls, or runs from `trajectory`, so --from-journal does not restore them.

    Use --from-archive on a machine that replaces a lost one: it restores the journal that the lost daemon kept in the
    archive (`archive.journal`). The journal's events are ingested again at the next start. If the former daemon is
    still running, it can no longer acknowledge events.

    \b
    Examples:
      memory-agent restore /mnt/backups/monday --data-dir /srv/memory
      memory-agent restore /mnt/backups/monday --user alice --replace
      memory-agent restore --from-journal --user alice --replace
      memory-agent restore --from-archive --data-dir /srv/memory
    """
    if (directory is not None) + from_journal + from_archive != 1:
        raise click.UsageError("specify DIRECTORY, --from-journal or --from-archive")
    if from_archive:
        _restore_from_archive(target)
        return
    if from_journal and not target.user_named:
        raise click.UsageError("--from-journal requires --user")
    restored = _restore(target, directory, replace)
    if directory is not None and not restored.has_history:
        note("this data folder has no erasure history; memories erased elsewhere since the backup have been restored")
    if printed_json(target.as_json, restored):
        return
    for user_id, count in restored.erased_again.items():
        click.echo(f"erased again: {counted(count, 'memory', 'memories')} of {user_id} (first erased after the backup)")
    for part in restored.parts:
        click.echo(f"restored {part.part}: {_content(part)}")
    if restored.aside:
        click.echo(f"the previous files are in {restored.aside}; delete them when you no longer need them")
    if from_journal:
        from memory_agent.care import NOT_IN_JOURNAL

        click.echo(f"the events of {target.user_id} are ingested again when the daemon starts")
        if restored.aside:
            click.echo(f"the journal does not contain {NOT_IN_JOURNAL}; they remain in that folder")


def _restore_from_archive(target: Target) -> None:
    from memory_agent.care import restore_archived_journal  # imports the engines

    if target.user_named:
        raise click.UsageError("--from-archive restores the journal of all users; omit --user")
    last_seq = restore_archived_journal(target.data_dir, target.settings)
    if not printed_json(target.as_json, {"last_seq": last_seq}):
        click.echo(f"restored journal; the next events have numbers after {last_seq}")


def _content(part: Part) -> str:
    if part.part == "journal":
        return f"events up to number {part.entries}"
    return size(part.bytes) if part.part == "owners" else counted(part.entries, "memory", "memories")


def _restore(target: Target, directory: Path | None, replace: bool) -> Restored:
    from memory_agent.care import replay_user, restore_all, restore_user  # imports the engines

    data_dir, user_id, settings, now = target.data_dir, target.user_id, target.settings, datetime.now(UTC)
    if directory is None:
        return replay_user(data_dir, user_id, settings, now, replace=replace, warn=note)
    with progress_bars() as report:
        if target.user_named:
            return restore_user(directory, data_dir, user_id, settings, now, report, replace=replace, warn=note)
        return restore_all(directory, data_dir, settings, now, report, replace=replace, warn=note)


@click.command()
@click.option("--to", "engine", type=click.Choice(_ENGINES), required=True, help="The new index.")
@options_where_user(ONLY)
def migrate(target: Target, engine: str) -> None:
    """Move the vectors of all users, or of the user named by --user, to another index. Stop the daemon first.

    Fills the new index from the records, and checks the number of memories and the nearest neighbours of a sample. Only
    then does it switch to the new index and remove the old one. Repeat the command to resume an interrupted migration.
    Set index.engine as well: it selects the index engine for new users.

    \b
    Examples:
      memory-agent migrate --to sqlite-vec --user alice
      memory-agent migrate --to pgvector --set 'index.url=postgresql://app:${PASSWORD}@db.example/app'
      memory-agent migrate --to builtin
    """
    from memory_agent.care import migrate_folder  # imports the engines

    with progress_bars() as report:
        moved = list(
            migrate_folder(target.data_dir, target.settings, engine, report, target.only_user, skip_without_key(target))
        )
    if target.as_json:
        print_document({"users": moved})
    for user in () if target.as_json else moved:
        state = "already there" if user.former == engine else f"moved from {user.former}"
        checked = "" if engine == "builtin" else f", {user.found:.0%} of the sample's neighbours found"
        click.echo(f"user {user.user_id}: {counted(user.memories, 'memory', 'memories')}, {state}{checked}")
    for user in moved:
        if user.left:
            note(user.left)
    if engine != target.settings.index.engine:
        note(f'new users get the index {target.settings.index.engine}; to change that, set index.engine = "{engine}"')
