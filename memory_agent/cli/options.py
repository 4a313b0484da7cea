"""What every verb takes: whose memory, where it lies, which settings, and how to print.

A verb is a function whose first argument is a `Target`; the decorators add the options and build it. What this file
does not do: open anything (`access`).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from memory_agent.cli.failure import JSON_KEY, note
from memory_agent.layout import KEY_FILE_VARIABLE, TOKEN_VARIABLE, Layout, default_data_dir, platform_data_dir
from memory_agent.protocol import DEFAULT_USER
from memory_agent.settings import ENVIRONMENT_PREFIX, Settings, load_settings
from relay import TOKEN_FILE, Identity, identity_of, read_key_file
from relay.crypto import KeyRing, open_key_ring

Verb = Callable[..., Any]


@dataclass(frozen=True)
class Target:
    """What the options of every verb say. `user_named` and `settings_named`: they were given on the command line."""

    user_id: str
    user_named: bool
    settings: Settings
    settings_named: bool
    data_dir: Path
    endpoint: str | None
    token: str | None
    key_file: Path | None
    as_json: bool

    @property
    def layout(self) -> Layout:
        """The paths of the data folder."""
        return Layout(self.data_dir)

    @property
    def keys(self) -> KeyRing | None:
        """The encryption keys of users, None where nothing is encrypted. Raises `RelaySettingsError`."""
        return open_key_ring(self.settings.encryption, self.data_dir)

    @property
    def identity(self) -> Identity:
        """What to show to a relay. Raises `RelaySettingsError` for a key file that cannot be read."""
        if self.key_file is not None:
            return identity_of(read_key_file(self.key_file))
        return Identity(token=self.token) if self.token else Identity(file=self.data_dir / TOKEN_FILE)


def _note_json(context: click.Context, _parameter: click.Parameter, value: bool) -> bool:
    context.meta[JSON_KEY] = value
    return value


_WHOSE = "Whose memory."
UNUSED = "Changes nothing here."
ONLY = "This user's alone. Default: everything."
_COMMON = (
    click.option(
        "--data-dir",
        type=click.Path(file_okay=False, path_type=Path),
        help=f"Where memories lie. Default: $MEMORY_AGENT_DATA_DIR, else {platform_data_dir()}",
    ),
    click.option(
        "--config",
        type=click.Path(dir_okay=False, path_type=Path),
        envvar="MEMORY_AGENT_CONFIG",
        metavar="FILE",
        help="Settings as TOML. Default: $MEMORY_AGENT_CONFIG.",
    ),
    click.option(
        "--set",
        "settings",
        multiple=True,
        metavar="NAME=VALUE",
        help="One setting for this command, as in --set recall.min_score=0.2. May be repeated.",
    ),
    click.option(
        "--json",
        "as_json",
        is_flag=True,
        is_eager=True,
        callback=_note_json,
        help="Print one JSON document on standard output, and nothing else there.",
    ),
)
_ENDPOINT = click.option(
    "--endpoint",
    metavar="URL",
    help=f"Ask the daemon at this endpoint (a token for it in ${TOKEN_VARIABLE}) instead of the data folder's.",
)
_KEY_FILE = click.option(
    "--key-file",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar=KEY_FILE_VARIABLE,
    metavar="FILE",
    help=f"Show this key, from `keys create --out`. Default: ${KEY_FILE_VARIABLE}, else the data folder's own.",
)


def common_options(verb: Verb) -> Verb:
    """Give a verb the options of every verb, as a `Target`."""
    return _given(verb, click.option("--user", default=DEFAULT_USER, show_default=True, metavar="ID", help=_WHOSE))


def options_where_user(means: str) -> Callable[[Verb], Verb]:
    """As `common_options`, for a verb where --user is something else than whose memory, and has no default to tell."""
    return lambda verb: _given(verb, click.option("--user", default=DEFAULT_USER, metavar="ID", help=means))


def _given(verb: Verb, user_option: Callable[[Verb], Verb]) -> Verb:
    @functools.wraps(verb)
    def with_target(
        user: str,
        data_dir: Path | None,
        config: Path | None,
        settings: tuple[str, ...],
        as_json: bool,
        endpoint: str | None = None,
        key_file: Path | None = None,
        **own: Any,
    ) -> Any:
        loaded = read_settings(config, settings)
        target = Target(
            user_id=user,
            user_named=given("user"),
            settings=loaded,
            settings_named=bool(settings) or typed("config"),
            data_dir=_data_dir(data_dir, loaded),
            endpoint=endpoint,
            token=os.environ.get(TOKEN_VARIABLE) if key_file is None else None,
            key_file=key_file,
            as_json=as_json,
        )
        return verb(target, **own)

    return _decorated(with_target, (user_option, *_COMMON))


def daemon_options(verb: Verb) -> Verb:
    """As `common_options`, for a verb that may ask a daemon: with `--endpoint` and `--key-file` too."""
    return _ENDPOINT(_KEY_FILE(common_options(verb)))


def typed(option: str) -> bool:
    """Say whether an option of the running verb stood on the command line, rather than in a variable."""
    return click.get_current_context().get_parameter_source(option) is ParameterSource.COMMANDLINE


def given(option: str) -> bool:
    """Say whether an option of the running verb was given, rather than left at its default."""
    return click.get_current_context().get_parameter_source(option) not in (ParameterSource.DEFAULT, None)


def read_settings(config: Path | None, pairs: Sequence[str]) -> Settings:
    """Return the settings. A NAME=VALUE pair is the variable of that setting, for this command only."""
    variables = {name: text for name, text in os.environ.items() if name not in (TOKEN_VARIABLE, KEY_FILE_VARIABLE)}
    return load_settings(config, variables | dict(map(_variable, pairs)), warn=note)


def _variable(pair: str) -> tuple[str, str]:
    name, equals, value = pair.partition("=")
    if not name or not equals:
        raise click.BadParameter(f"{pair!r} is not NAME=VALUE, as in recall.min_score=0.2", param_hint="--set")
    return ENVIRONMENT_PREFIX + name.strip().replace(".", "__").upper(), value


def _data_dir(named: Path | None, settings: Settings) -> Path:
    return (named or (Path(settings.data_dir) if settings.data_dir else default_data_dir())).expanduser().absolute()


def _decorated(verb: Verb, options: Sequence[Callable[[Verb], Verb]]) -> Verb:
    for option in reversed(options):
        verb = option(verb)
    return verb
