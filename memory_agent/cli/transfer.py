"""`export`, `import` and `index`: write memories to a file; read exported files, plain JSON and Markdown documents."""

from __future__ import annotations

import errno
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from memory_agent.cli.access import open_memory
from memory_agent.cli.command import SectionedCommand
from memory_agent.cli.exit_codes import ExitCode
from memory_agent.cli.failure import note
from memory_agent.cli.fields import FURTHER_FILTERS, filter_options
from memory_agent.cli.options import STANDARD_STREAM, Target, check_output, common_options, daemon_options
from memory_agent.cli.progress import progress_bars
from memory_agent.cli.render import counted, print_document, printed_json
from memory_agent.errors import InvalidInputError, MemoryAgentError
from memory_agent.records.memories import MemoryFilter

if TYPE_CHECKING:
    from memory_agent.notes import StoredNotes

_MOST_PRINTED = 20
_LOOK_AGAIN_S = 1.0


@click.command("export", cls=SectionedCommand, sections={"Filters": FURTHER_FILTERS})
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--replace", is_flag=True, help="Replace an existing file.")
@filter_options
@common_options
def export_memories(target: Target, file: Path, replace: bool, filter: MemoryFilter) -> None:
    """Write the memories of --user to FILE, or to standard output with -, as one JSON document per line.

    Each line contains a whole memory, including its usage, vector and event ids. Without filters, events whose memory
    was deleted are included; with filters, only memories that match all filters are written. Can be used while a daemon
    is running. An existing file is replaced only with --replace, and only by a complete file. What was learned from
    runs is not included; use `memory-agent sona export` for that. With --user shared-knowledge, the lines are the
    shared items, with attachments but without figures or chosen names.

    \b
    Examples:
      memory-agent export alice.jsonl --user alice
      memory-agent export notes.jsonl --type note --metadata host=staging
      memory-agent export - | jq -r 'select(.record) | .record.text'
    """
    from memory_agent.care import export_user, write_file
    from memory_agent.erasure.copies import note_copy

    check_output(target, file)
    if not file.absolute().parent.is_dir():
        raise InvalidInputError("file", f"{file.absolute().parent} is not a folder")
    if file != STANDARD_STREAM and file.exists() and not replace:
        raise InvalidInputError("file", f"{file} already exists; choose a different file or use --replace")
    with progress_bars() as report:
        lines = (line + b"\n" for line in export_user(target.data_dir, target.settings, target.user_id, report, filter))
        if file == STANDARD_STREAM:
            count = _write(sys.stdout.buffer, lines)
        else:
            count = write_file(file, lines)
            with suppress(OSError):  # a read-only or full disk does not make the export worthless
                note_copy(target.data_dir, "export", file, target.user_id, datetime.now(UTC))
    if target.as_json:
        print_document({"file": str(file), "lines": count})
    elif file != STANDARD_STREAM:
        click.echo(f"wrote {counted(count, 'line')} to {file}")


def _write(stream: BinaryIO, lines: Iterable[bytes]) -> int:
    count = 0
    for line in lines:
        stream.write(line)
        count += 1
    stream.flush()
    return count


_HEAD = b"memory_agent_export"
_LONGEST_HEAD = 1 << 20
_FORMS = (
    'it also contains no plain memories (objects with a "text", as JSON lines, a JSON list or {"entries": [...]}); '
    "use `memory-agent index FILE` to read it as Markdown"
)


@click.command("import")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@daemon_options
def import_memories(target: Target, file: Path) -> None:
    """Import FILE for --user. FILE may be - for standard input.

    FILE has one of three formats. For a file written by `memory-agent export`, stop the daemon first. If any of its
    lines is invalid, the line numbers are reported and nothing is imported. Vectors from a different model are
    recomputed. Plain memories are JSON lines, a JSON list or {"entries": [...]}: objects with a "text" and any
    arguments of `remember`. Invalid memories are reported, with exit code 1, and all other memories are imported. A
    Markdown document (.md) is imported in the same way as by `memory-agent index`. Existing memories are not changed,
    so importing is idempotent.

    \b
    Examples:
      memory-agent import alice.jsonl --user alice
      memory-agent import - --user alice < alice.jsonl
      memory-agent import notes.json
      memory-agent import ~/.claude/CLAUDE.md
    """
    from memory_agent.notes import SUFFIXES, has_notes, read_plain, store_notes

    if file.name.lower().endswith(SUFFIXES):
        _present(target, _index(target, file))
        return
    with tempfile.TemporaryFile() if file == STANDARD_STREAM else file.open("rb") as opened:
        if file == STANDARD_STREAM:  # read twice
            shutil.copyfileobj(sys.stdin.buffer, opened)
            opened.seek(0)
        if has_notes(opened):
            with open_memory(target, "remember") as memory:
                stored = store_notes(memory, read_plain(opened, str(file)), str(file))
            _present(target, stored)
            return
        from memory_agent.care import import_user  # imports the engines

        try:
            with progress_bars() as report:
                now = datetime.now(UTC)
                imported = import_user(opened, target.data_dir, target.settings, target.user_id, now, report)
        except InvalidInputError as error:
            opened.seek(0)
            if _HEAD in opened.readline(_LONGEST_HEAD):
                raise
            place, reason = error.args
            raise InvalidInputError(place, f"{reason}; {_FORMS}") from error
    if not printed_json(target.as_json, imported):
        taken = counted(imported.taken, "memory", "memories")
        waiting = f", {imported.without_vector} of them without a vector" if imported.without_vector else ""
        left_out = f", {imported.unpublished} were unpublished here" if imported.unpublished else ""
        click.echo(f"imported {taken}{waiting}; {imported.known} already present{left_out}")


@click.command("index")
@click.argument("path", type=click.Path(exists=True, path_type=Path))
@click.option("--watch", is_flag=True, help="Keep indexing changes until interrupted.")
@daemon_options
def index_documents(target: Target, path: Path, watch: bool) -> None:
    """Store each section of the Markdown documents in PATH (a folder or a file) with the file name and the heading.

    Run the command again when documents have changed: changed sections are replaced, removed sections are forgotten,
    and the rest is not touched. Folders whose names begin with a dot, and folders of installed packages, are skipped;
    unreadable files are reported (exit code 1). In GEMINI.md, CLAUDE.md, AGENTS.md and MEMORY.md, each list item is a
    memory. With --watch, memories are updated within seconds when documents are added, changed, renamed or removed. The
    command waits while the daemon or PATH cannot be reached.

    \b
    Examples:
      memory-agent index ./docs
      memory-agent index ./docs --watch
      memory-agent recall "how do we release?" --type document.section
    """
    if watch:
        _watch(target, path)
    else:
        _present(target, _index(target, path))


def _watch(target: Target, path: Path) -> None:
    from memory_agent.cli.publish import Interrupts  # imports the relay
    from memory_agent.notes import DocumentWatch

    watch, is_first, is_failing = DocumentWatch(path.absolute()), True, False
    with Interrupts() as interrupts:
        while not interrupts.heard:
            changed = watch.look()
            try:
                if changed or is_first:
                    _show(target, _index(target, path, None if is_first else changed))
                    watch.settle(changed)
                is_first = is_failing = False
            except (MemoryAgentError, FileNotFoundError) as error:
                if isinstance(error, MemoryAgentError) and not error.retryable:
                    raise
                if not is_failing:
                    note(f"trying again: {error}")
                is_failing = True
            interrupts.cut_short(lambda: time.sleep(_LOOK_AGAIN_S))
    note("no longer watching")


def _index(target: Target, path: Path, only: Collection[Path] | None = None) -> StoredNotes:
    """Update the memories of a document, or of every document in a folder, to match its text."""
    from memory_agent import notes

    if not path.exists():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    with progress_bars() as report, open_memory(target, "remember") as memory:
        stored = notes.index_documents(memory, path.absolute(), datetime.now(UTC), report, only)
    if not (stored.files or stored.bad or only):
        note(f"no documents in {path.absolute()}: looked for file names ending in {' or '.join(notes.SUFFIXES)}")
    return stored


def _present(target: Target, stored: StoredNotes) -> None:
    """Print the counts of stored notes; exit with code 1 if some were invalid."""
    _show(target, stored)
    if stored.bad:
        raise SystemExit(ExitCode.FAILED)


def _show(target: Target, stored: StoredNotes) -> None:
    if not printed_json(target.as_json, stored):
        for bad in stored.bad_places[:_MOST_PRINTED]:
            note(f"left out: {bad}")
        if stored.bad > _MOST_PRINTED:
            note(f"and {stored.bad - _MOST_PRINTED} more that were left out; --json lists them")
        click.echo(
            f"{stored.added} added, {stored.replaced} replaced, {stored.removed} removed, {stored.unchanged} unchanged"
        )
