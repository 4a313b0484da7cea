"""`import`: memories that `export` wrote, taken all or not at all."""

from __future__ import annotations

import shutil
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from memory_agent.cli.options import Target, common_options
from memory_agent.cli.progress import progress_bars
from memory_agent.cli.render import print_document

if TYPE_CHECKING:
    from memory_agent.care.export import Imported

_STANDARD_STREAM = Path("-")


@click.command("import", short_help="Take the memories that `export` wrote.")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@common_options
def importing(target: Target, file: Path) -> None:
    """Take the memories of FILE, which `memory-agent export` wrote, for --user; - is standard input.

    The daemon must be stopped. Every line is looked at first: wrong ones are named by number, and nothing is taken
    then. What is there already, by its id or its event, stays as it is; to import twice changes nothing. Vectors of
    another model are made anew.

    \b
    Examples:
      memory-agent import alice.jsonl --user alice
      memory-agent import - --user alice < alice.jsonl
    """
    if file == _STANDARD_STREAM:
        with tempfile.TemporaryFile() as kept:  # it is read twice
            shutil.copyfileobj(sys.stdin.buffer, kept)
            imported = _imported(target, kept)
    else:
        with file.open("rb") as opened:
            imported = _imported(target, opened)
    if target.as_json:
        print_document(imported)
    else:
        waiting = f", {imported.without_vector} of them without a vector" if imported.without_vector else ""
        click.echo(f"took {imported.taken} memories{waiting}; {imported.known} were there already")


def _imported(target: Target, file: BinaryIO) -> Imported:
    from memory_agent.care.export import import_user  # imports the engines

    with progress_bars() as report:
        return import_user(file, target.data_dir, target.settings, target.user_id, datetime.now(UTC), report)
