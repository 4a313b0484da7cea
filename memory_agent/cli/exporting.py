"""`export`: a user's memories as JSON lines."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

import click

from memory_agent.cli.options import Target, common_options
from memory_agent.cli.progress import progress_bars
from memory_agent.cli.render import print_document
from memory_agent.errors import InvalidInputError

_STANDARD_STREAM = Path("-")


@click.command("export", short_help="Write a user's memories as JSON lines.")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--replace", is_flag=True, help="Replace the file where it exists.")
@common_options
def exporting(target: Target, file: Path, replace: bool) -> None:
    """Write the memories of --user to FILE, one JSON document a line, or with - to standard output.

    Everything that a memory is goes along: its use, its vector, the ids of its events, and those of events whose memory
    was deleted. Works beside a daemon. A file that exists is refused, or with --replace replaced as a whole. What was
    learned from runs is not in it: `memory-agent sona export` writes that.

    \b
    Examples:
      memory-agent export alice.jsonl --user alice
      memory-agent export - | jq -r 'select(.record) | .record.text'
    """
    from memory_agent.care.export import export_user, write_file  # imports the engines

    if target.as_json and file == _STANDARD_STREAM:
        raise click.UsageError("--json and - both take standard output: name a file")
    if not file.absolute().parent.is_dir():
        raise InvalidInputError("file", f"{file.absolute().parent} is no folder")
    if file != _STANDARD_STREAM and file.exists() and not replace:
        raise InvalidInputError("file", f"{file} exists already; name one that does not, or say --replace")
    with progress_bars() as report:
        lines = (line + b"\n" for line in export_user(target.data_dir, target.settings, target.user_id, report))
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
