"""`export` and `import`: a user's memories as JSON Lines."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from memory_agent.cli.filters import filter_options
from memory_agent.cli.options import Target, common_options
from memory_agent.cli.progress import progress_bars
from memory_agent.cli.render import print_document
from memory_agent.errors import InvalidInputError
from memory_agent.records import MemoryFilter

if TYPE_CHECKING:
    from memory_agent.care.export import Imported

_STANDARD_STREAM = Path("-")


@click.command("export")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--replace", is_flag=True, help="Replace an existing file.")
@filter_options
@common_options
def export_memories(target: Target, file: Path, replace: bool, filter: MemoryFilter) -> None:
    """Write the memories of --user to FILE, one JSON document a line, or to standard output with -.

    A line has everything of a memory: usage, vector, and the ids of its events. Without filters (--session to
    --min-quality), events whose memory was deleted are included; with filters, only memories that match all are
    written. Runs beside a daemon. An existing file is refused, or replaced as a whole with --replace. What was learned
    from runs is not included: `memory-agent sona export` writes that.

    \b
    Examples:
      memory-agent export alice.jsonl --user alice
      memory-agent export notes.jsonl --type note --metadata host=staging
      memory-agent export - | jq -r 'select(.record) | .record.text'
    """
    from memory_agent.care.export import export_user, write_file  # imports the engines

    if target.as_json and file == _STANDARD_STREAM:
        raise click.UsageError("--json and - both take standard output: name a file")
    if not file.absolute().parent.is_dir():
        raise InvalidInputError("file", f"{file.absolute().parent} is not a folder")
    if file != _STANDARD_STREAM and file.exists() and not replace:
        raise InvalidInputError("file", f"{file} exists; name another file or give --replace")
    with progress_bars() as report:
        lines = (line + b"\n" for line in export_user(target.data_dir, target.settings, target.user_id, report, filter))
        count = _write(sys.stdout.buffer, lines) if file == _STANDARD_STREAM else write_file(file, lines)
    if target.as_json:
        print_document({"file": str(file), "lines": count})
    elif file != _STANDARD_STREAM:
        click.echo(f"wrote {count} lines to {file}")


def _write(stream: BinaryIO, lines: Iterable[bytes]) -> int:
    count = 0
    for line in lines:
        stream.write(line)
        count += 1
    stream.flush()
    return count


@click.command("import")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@common_options
def import_memories(target: Target, file: Path) -> None:
    """Import FILE, which `memory-agent export` wrote, for --user; - is standard input.

    Stop the daemon first. Every line is checked before anything is imported: bad lines are named by number, and nothing
    is imported then. A memory that is there already, by id or event, is skipped, so importing is idempotent. Vectors of
    another model are recomputed.

    \b
    Examples:
      memory-agent import alice.jsonl --user alice
      memory-agent import - --user alice < alice.jsonl
    """
    if file == _STANDARD_STREAM:
        with tempfile.TemporaryFile() as copy:  # read twice
            shutil.copyfileobj(sys.stdin.buffer, copy)
            imported = _import(target, copy)
    else:
        with file.open("rb") as opened:
            imported = _import(target, opened)
    if target.as_json:
        print_document(imported)
    else:
        waiting = f", {imported.without_vector} of them without a vector" if imported.without_vector else ""
        click.echo(f"imported {imported.taken} memories{waiting}; {imported.known} were there already")


def _import(target: Target, file: BinaryIO) -> Imported:
    from memory_agent.care.export import import_user  # imports the engines

    with progress_bars() as report:
        return import_user(file, target.data_dir, target.settings, target.user_id, datetime.now(UTC), report)
