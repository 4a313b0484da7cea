"""The options with which `mcp` and `open` find a daemon's HTTP interface."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import click

from memory_agent.cli.command import (
    Verb,
    as_struct,
    config_option,
    data_dir_option,
    key_file_option,
    set_option,
    settings_words,
    start_option,
    with_options,
)
from memory_agent.cli.failure import note
from memory_agent.doors.mcp.stdio import LocalDoor
from memory_agent.errors import UnavailableError
from memory_agent.exchange import Door
from memory_agent.layout import (
    CONFIG_VARIABLE,
    KEY_FILE_VARIABLE,
    TOKEN_VARIABLE,
    Layout,
    default_data_dir,
)
from memory_agent.starting import Start, has_settings


class Daemon(NamedTuple):
    """Which daemon to use, and how to start it."""

    data_dir: Path | None
    url: str | None
    key_file: Path | None
    config: Path | None
    settings: tuple[str, ...]
    start: bool

    def finder(self, *, start_early: bool = False) -> Callable[[float], Door]:
        """Return a function that takes a deadline (monotonic clock) and returns the daemon's `Door`.

        The function starts a daemon if none is running. With `start_early`, the daemon is started now, before that
        call. Raises `UnavailableError`.
        """
        token = self._token()
        if self.url is not None:
            if not _is_address(self.url):
                raise click.UsageError(f"--url must be http(s)://HOST:PORT, not {self.url!r}")
            door = Door(self.url.rstrip("/"), token or "")
            return lambda _: door
        start = partial(how_to_start, self.config, self.settings) if self.start else None
        local = LocalDoor(self.layout, token, note, start)
        if start_early:
            try:
                local.start()
            except UnavailableError as error:
                note(str(error))
        return local.find

    @property
    def layout(self) -> Layout:
        folder = self.data_dir
        if folder is None and (self.config is not None or self.settings):
            from memory_agent.cli.options import configured_folder  # imported late: takes 6 MB, and few need it

            folder = configured_folder(self.config, self.settings)
        return Layout(folder or default_data_dir())

    def _token(self) -> str | None:
        if self.key_file is None:
            return os.environ.get(TOKEN_VARIABLE) or None
        from relay import identity_of, read_key_file  # imported late: most clients use the data folder's own key

        return identity_of(read_key_file(self.key_file.expanduser())).token


def how_to_start(config: Path | None, settings: Sequence[str]) -> Start:
    """Return how to start a daemon with these options and the settings in the environment. Raises `SettingsError`."""
    own = settings_words(config, settings)
    if not own and not has_settings(os.environ):
        return Start()
    from memory_agent.cli.options import read_settings  # imported late: takes 6 MB, and few clients need it
    from memory_agent.settings import variables_named

    return Start(tuple(own), variables_named(read_settings(config, settings), os.environ))


_OPTIONS = (
    data_dir_option(),
    click.option(
        "--url",
        metavar="URL",
        help=f"Use the daemon at http(s)://HOST:PORT instead of the local daemon, with the token in ${TOKEN_VARIABLE}.",
    ),
    key_file_option(help=f"Use this key file, written by `keys create --out`. Default: ${KEY_FILE_VARIABLE}."),
    config_option(
        envvar=CONFIG_VARIABLE,
        help=f"TOML settings file for a daemon that this command starts. Default: ${CONFIG_VARIABLE}.",
    ),
    set_option(help="One setting for that daemon. May be repeated."),
    start_option(),
)


def door_options(command: Verb) -> Verb:
    return with_options(as_struct("daemon", Daemon)(command), _OPTIONS)


def _is_address(url: str) -> bool:
    try:
        place = urlsplit(url)
        is_bare = url.rstrip("/") == f"{place.scheme}://{place.netloc}" and "@" not in place.netloc
        return is_bare and place.scheme in ("http", "https") and bool(place.hostname) and place.port != 0
    except ValueError:  # not a port number
        return False
