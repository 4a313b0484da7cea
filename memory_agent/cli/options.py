"""The options that commands share, and their value types. The decorators pass the values of the shared options as a
`Target`.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from memory_agent.cli.command import Verb, config_option, data_dir_option, key_file_option, set_option, with_options
from memory_agent.cli.failure import JSON_KEY, note
from memory_agent.errors import InvalidInputError
from memory_agent.layout import (
    CONFIG_VARIABLE,
    DATA_DIR_VARIABLE,
    KEY_FILE_VARIABLE,
    TOKEN_VARIABLE,
    Layout,
    default_data_dir,
    platform_data_dir,
)
from memory_agent.settings import Settings, load_settings, read_value
from memory_agent.verbs.protocol import DEFAULT_USER
from relay import TOKEN_FILE, Identity, identity_of, read_key_file
from relay.crypto import KeyRing, open_key_ring


@dataclass(frozen=True)
class Target:
    """The values of the shared options. `user_named` and `settings_named`: whether the user or any settings were
    given.
    """

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
    def only_user(self) -> str | None:
        return self.user_id if self.user_named else None

    @property
    def layout(self) -> Layout:
        return Layout(self.data_dir)

    @property
    def keys(self) -> KeyRing | None:
        """The users' encryption keys, or None if encryption is off. Raises `RelaySettingsError`."""
        return open_key_ring(self.settings.encryption, self.data_dir)

    @property
    def identity(self) -> Identity:
        """The credentials for a relay. Raises `RelaySettingsError` for an unreadable key file."""
        if self.key_file is not None:
            return identity_of(read_key_file(self.key_file))
        return Identity(token=self.token) if self.token else Identity(file=self.data_dir / TOKEN_FILE)


def _note_json(context: click.Context, _parameter: click.Parameter, value: bool) -> bool:
    context.meta[JSON_KEY] = value
    return value


_WHOSE = "The user of the memory."
UNUSED = "No effect here."
ONLY = "Only this user's data. Default: everything."
_COMMON = (
    data_dir_option(help=f"The data folder. Default: ${DATA_DIR_VARIABLE} or {platform_data_dir()}"),
    config_option(envvar=CONFIG_VARIABLE, help=f"TOML settings file. Default: ${CONFIG_VARIABLE}."),
    set_option(help="One setting for this command, such as recall.min_score=0.2. May be repeated."),
    click.option(
        "--json",
        "as_json",
        is_flag=True,
        is_eager=True,
        callback=_note_json,
        help="Print one JSON document, and nothing else, on standard output.",
    ),
)
_ENDPOINT = click.option(
    "--endpoint",
    metavar="URL",
    help=f"Use the daemon at this endpoint instead of the data folder's daemon, with the token in ${TOKEN_VARIABLE}.",
)
_KEY_FILE = key_file_option(
    help=f"Use this key file, written by `keys create --out`. Default: ${KEY_FILE_VARIABLE} or the data folder's key."
)


def common_options(command: Verb) -> Verb:
    return _given(command, click.option("--user", default=DEFAULT_USER, show_default=True, metavar="ID", help=_WHOSE))


def options_where_user(means: str) -> Callable[[Verb], Verb]:
    """Like `common_options`, with `means` as the help text of --user and without its default."""
    return lambda command: _given(command, click.option("--user", default=DEFAULT_USER, metavar="ID", help=means))


def _given(command: Verb, user_option: Callable[[Verb], Verb]) -> Verb:
    @functools.wraps(command)
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
        folder = data_dir or (Path(loaded.data_dir) if loaded.data_dir else default_data_dir())
        target = Target(
            user_id=user,
            user_named=given("user"),
            settings=loaded,
            settings_named=bool(settings) or typed("config"),
            data_dir=folder.expanduser().absolute(),
            endpoint=endpoint,
            token=os.environ.get(TOKEN_VARIABLE) if key_file is None else None,
            key_file=key_file,
            as_json=as_json,
        )
        return command(target, **own)

    return with_options(with_target, (user_option, *_COMMON))


def daemon_options(command: Verb) -> Verb:
    """Like `common_options`, with --endpoint and --key-file for commands that may use a daemon."""
    return _ENDPOINT(_KEY_FILE(common_options(command)))


def daemon_options_without_user(command: Verb) -> Verb:
    """Like `daemon_options`, for commands that act on the whole daemon."""
    return _ENDPOINT(_KEY_FILE(options_where_user(UNUSED)(command)))


def key_options(command: Verb) -> Verb:
    """Like `daemon_options_without_user`, for a command whose argument is the endpoint."""
    return _KEY_FILE(options_where_user(UNUSED)(command))


def typed(option: str) -> bool:
    """Return whether an option of the running command was given on the command line."""
    return click.get_current_context().get_parameter_source(option) is ParameterSource.COMMANDLINE


def given(option: str) -> bool:
    """Return whether an option of the running command was given, or set by an environment variable."""
    return click.get_current_context().get_parameter_source(option) not in (ParameterSource.DEFAULT, None)


def read_settings(config: Path | None, pairs: Sequence[str]) -> Settings:
    variables = {name: text for name, text in os.environ.items() if name not in (TOKEN_VARIABLE, KEY_FILE_VARIABLE)}
    return load_settings(config, variables, dict(map(_override, pairs)), warn=note)


def configured_folder(config: Path | None, pairs: Sequence[str]) -> Path | None:
    named = read_settings(config, pairs).data_dir
    return Path(named) if named else None


def _override(pair: str) -> tuple[str, Any]:
    name, equals, value = pair.partition("=")
    if not name or not equals:
        raise click.BadParameter(
            f"{pair!r} is not of the form NAME=VALUE, such as recall.min_score=0.2", param_hint="--set"
        )
    return name.strip().lower().replace("__", "."), read_value(value)


_AGO = re.compile(r"(\d{1,18})([mhdw])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


class Moment(click.ParamType[datetime]):
    """An ISO 8601 date or time (in UTC if it has no zone), or an age such as 30m, 12h, 7d or 2w."""

    name = "WHEN"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        try:
            return parse_moment(value, datetime.now(UTC))
        except OverflowError:
            self.fail(f"{value!r} is too far in the past to be a date", param, ctx)
        except ValueError:
            self.fail(f"{value!r} is neither an ISO date such as 2026-02-16 nor an age such as 7d or 12h", param, ctx)


def parse_moment(text: str, now: datetime) -> datetime:
    ago = _AGO.fullmatch(text.strip())
    if ago is None:
        moment = datetime.fromisoformat(text.strip())
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    return now - timedelta(**{_UNITS[ago[2]]: int(ago[1])})


STANDARD_STREAM = Path("-")


def check_output(target: Target, file: Path) -> None:
    """Raise `click.UsageError` if --json and the file both write to standard output."""
    if target.as_json and file == STANDARD_STREAM:
        raise click.UsageError("--json and - cannot both write to standard output; specify a file")


def read_text(text: str) -> str:
    """Return `text`, or the content of standard input for `-`. Raises `InvalidInputError` if it is not UTF-8."""
    if text != "-":
        return text
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise InvalidInputError("text", f"standard input is not UTF-8 at byte {error.start}") from error
