"""`model status` and `model fetch`: the embedding model of this machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec

from memory_agent.cli.options import Target, common_options
from memory_agent.cli.progress import progress_bars
from memory_agent.cli.render import print_document, print_figures, size
from memory_agent.config import EmbedderSettings
from memory_agent.embedders.cache import ModelStatus, advise, fetch_model, model_status

_USABLE = ("ready", "unbuilt")

_folder_option: Callable[[Any], Any] = click.option(
    "--folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Use the model in this folder, as the setting embedder.folder does.",
)


@click.group(short_help="The embedding model: status, fetch.")
def model() -> None:
    """The embedding model: whether it is there, and getting it.

    \b
    Examples:
      memory-agent model status
      memory-agent model fetch
    """


@model.command(short_help="Which model, from where; exit code 1 without one.")
@_folder_option
@common_options
def status(target: Target, folder: Path | None) -> None:
    """Which model, from where, in which arithmetic; exit code 1 when there is none that can be used.

    \b
    Examples:
      memory-agent model status
      memory-agent model status --folder models/bge-small --json
    """
    settings = _settings(target, folder)
    found = model_status(settings)
    _print(found, settings, target.as_json)
    if found.state not in _USABLE:
        raise SystemExit(1)


@model.command(short_help="Find or download the weights, check them, build the graph.")
@_folder_option
@common_options
def fetch(target: Target, folder: Path | None) -> None:
    """Find or download the weights, check them, and build the graph into the cache.

    Looks in the folder (if named), the cache, the installed package, and then the model hub. A file with another
    SHA-256 than the expected one is refused.

    \b
    Examples:
      memory-agent model fetch
      memory-agent model fetch --folder models/bge-small
      memory-agent model fetch --set embedder.scheme=float32
    """
    settings = _settings(target, folder)
    with progress_bars("bytes") as report:
        found = fetch_model(settings, progress=report)
    _print(found, settings, target.as_json)


def _settings(target: Target, folder: Path | None) -> EmbedderSettings:
    if folder is None:
        return target.settings.embedder
    return msgspec.structs.replace(target.settings.embedder, folder=str(folder.absolute()))


def _print(found: ModelStatus, settings: EmbedderSettings, as_json: bool) -> None:
    if as_json:
        print_document(found)
        return
    figures = msgspec.structs.asdict(found) | {"graph_bytes": size(found.graph_bytes) if found.graph_bytes else ""}
    print_figures("model", {name.replace("_", " "): value for name, value in figures.items() if value})
    if advice := advise(found.state, settings):
        click.echo(advice)
