"""Reads settings from the defaults, then a TOML file, environment variables and command-line flags."""

from __future__ import annotations

import copy
import importlib
import os
import re
import tomllib
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, get_args
from urllib.parse import quote

import msgspec

from memory_agent.errors import SettingsError
from memory_agent.settings.tables import AnyEmbedder, Settings
from relay import described, read_toml, setting_at_fault

ENVIRONMENT_PREFIX = "MEMORY_AGENT_"
RENAMED = {"recall.alpha": "recall.vector_weight", "learning.outcome": "recall.outcome"}
"""Maps former names, which are still accepted with a warning, to current names."""
REMOVED = {
    "recall.centering": "queries are no longer centred, because this helped on no data set",
    "recall.diversity": "answers are no longer diversified, because this helped on no data set",
    "learning.implicit": "quality is no longer inferred from events after a run, because this did not improve answers",
}
"""Maps each setting that no longer has an effect to the reason. Such settings are ignored, with a warning."""

_VARIABLE = re.compile(r"\$\{(\w+)\}")
_EMBEDDER_TABLES = ("embedder", "former_embedder")
_LEADING_POINT = re.compile(r"^\s*([+-]?)\.(?=\d)")
_NOT_SETTINGS = frozenset(
    {"MEMORY_AGENT_CONFIG", "MEMORY_AGENT_MODEL_CACHE", "MEMORY_AGENT_TOKEN", "MEMORY_AGENT_KEY_FILE"}
)


def load_settings(
    file: Path | None = None,
    environment: Mapping[str, str] = os.environ,
    overrides: Mapping[str, Any] | None = None,
    warn: Callable[[str], None] | None = None,
) -> Settings:
    """Return the defaults, overridden by `file`, then by the environment, then by `overrides`. Raises `SettingsError`.

    A variable is named `MEMORY_AGENT_` plus the path of the setting, with `__` between its parts, as in
    `MEMORY_AGENT_RECALL__MODE=vector`. The keys of `overrides` are dotted, as in `recall.mode`. `warn` receives a
    message for each setting with a former name (`RENAMED`) or without effect (`REMOVED`); by default, a `FutureWarning`
    is issued.

    >>> environment = {"MEMORY_AGENT_RECALL__MODE": "vector"}
    >>> settings = load_settings(environment=environment, overrides={"recall.deadline_ms": 200})
    >>> settings.recall.mode, settings.recall.deadline_ms, settings.recall.candidates
    ('vector', 200.0, 30)
    """
    warned: list[str] = []
    tree = read_toml(file, SettingsError) if file is not None else {}
    rename_settings(tree, warned.append)
    variables = [
        (name.removeprefix(ENVIRONMENT_PREFIX).lower().split("__"), read_value(text))
        for name, text in environment.items()
        if name.startswith(ENVIRONMENT_PREFIX) and name not in _NOT_SETTINGS
    ]
    for layer in (variables, [(name.split("."), value) for name, value in (overrides or {}).items()]):
        _lay_over(tree, layer, warned.append)
    _leave_out_removed(tree, warned.append)
    for table in _EMBEDDER_TABLES:
        _settle_type(tree, table)
    for message in dict.fromkeys(warned):
        (warn or _warn)(message)
    try:
        return msgspec.convert(tree, described(Settings), strict=False)
    except msgspec.ValidationError as error:
        raise SettingsError(*setting_at_fault(error)) from error


def _lay_over(tree: dict[str, Any], layer: list[tuple[list[str], Any]], warn: Callable[[str], None]) -> None:
    """Apply a layer, which overrides the values of earlier layers, even those under a setting's former name."""
    own: dict[str, Any] = {}
    for path, value in layer:
        _plant(own, path, copy.deepcopy(value))
        _plant(tree, path, value)
    rename_settings(own, lambda _: None)  # rejects a layer with both names
    rename_settings(tree, warn, replaces=True)


def rename_settings(tree: dict[str, Any], warn: Callable[[str], None], *, replaces: bool = False) -> None:
    """Rename settings that have former names to their current names, with a warning for each.

    With `replaces`, the former name's value takes precedence; otherwise using both names raises `SettingsError`.
    """
    for former, present in RENAMED.items():
        table, name = _table_of(tree, former)
        if name not in table:
            continue
        present_table, present_name = _table_of(tree, present)
        if present_name in present_table and not replaces:
            raise SettingsError(former, f"is the former name of {present}, which is also set; remove one of them")
        warn(f"setting {former} was renamed to {present}; the former name still works")
        _plant(tree, present.split("."), table.pop(name))


def _leave_out_removed(tree: dict[str, Any], warn: Callable[[str], None]) -> None:
    for setting, reason in REMOVED.items():
        table, name = _table_of(tree, setting)
        if name in table:
            del table[name]
            warn(f"setting {setting} was removed and has no effect ({reason}); remove it")


def _settle_type(tree: dict[str, Any], table: str) -> None:
    """Fill in the default type of an embedder. Raises `SettingsError` for a setting that contradicts the type."""
    chosen = tree.get(table)
    if not isinstance(chosen, dict):
        return
    kinds = {kind.__struct_config__.tag: set(kind.__struct_fields__) for kind in get_args(AnyEmbedder)}
    own = kinds.get(chosen.setdefault("type", "local"), set())
    for name in chosen.keys() - own - {"type"} if own else ():
        others = [str(tag) for tag, fields in kinds.items() if name in fields]
        if others:
            kind = f'{table}.type = "{chosen["type"]}"'
            reason = f"contradicts {kind}: it applies only to {', '.join(others)}; remove one of them"
            raise SettingsError(f"{table}.{name}", reason)


def _table_of(tree: dict[str, Any], setting: str) -> tuple[dict[str, Any], str]:
    """Return the table that contains a setting (empty if there is none), and the setting's name in the table."""
    *tables, name = setting.split(".")
    for table in tables:
        branch = tree.get(table)
        if not isinstance(branch, dict):
            return {}, name
        tree = branch
    return tree, name


def _warn(message: str) -> None:
    warnings.warn(message, FutureWarning, stacklevel=3)  # shown by default, unlike DeprecationWarning


def _plant(tree: dict[str, Any], path: list[str], value: Any) -> None:
    for name in path[:-1]:
        branch = tree.setdefault(name, {})
        if not isinstance(branch, dict):
            raise SettingsError(".".join(path), f"{name} is a setting, not a table")
        tree = branch
    tree[path[-1]] = value


def with_variables(setting: str, text: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return the value of a setting with each `${VARIABLE}` replaced, percent-encoded within a URL.

    Raises `SettingsError` for an unknown variable.

    >>> with_variables("index.url", "postgresql://${DB_USER}@db/app", {"DB_USER": "a/b"})
    'postgresql://a%2Fb@db/app'
    """

    def value_of(match: re.Match[str]) -> str:
        if match[1] not in environment:
            raise SettingsError(setting, f"names the environment variable {match[1]}, which is not set")
        value = environment[match[1]]
        return quote(value, safe="") if "://" in text else value

    return _VARIABLE.sub(value_of, text)


def variables_named(settings: Settings, present: Iterable[str]) -> tuple[str, ...]:
    """Return the names of the environment variables that a daemon with these settings reads.

    The names in `present` are included if the settings select a library that reads them.

    >>> own = OpenAIEmbedder(api_key="${KEY}")
    >>> variables_named(Settings(embedder=own, archive=ArchiveSettings(url="s3://own")), ["AWS_PROFILE", "GH_TOKEN"])
    ('AWS_PROFILE', 'KEY')
    """
    values = msgspec.json.encode(settings).decode()
    prefixes = ["HF_"] if "/" in getattr(settings.embedder, "model", "") else []
    prefixes += ["AWS_", "AZURE_", "GOOGLE_", "GCS_"] if settings.archive.url else []
    prefixes += ["PG"] if settings.index.engine == "pgvector" else []
    prefixes += ["PYTHONPATH"] if ":" in settings.learning.engine + settings.judge.server else []  # MODULE:NAME
    others = {name for name in present if name.startswith(tuple(prefixes))}
    return tuple(sorted({*_VARIABLE.findall(values), *others}))


def import_named(setting: str, name: str) -> Callable[..., Any]:
    """Return the class or function that a setting names as MODULE:NAME. Raises `SettingsError`.

    >>> import_named("learning.engine", "json:dumps")([1])
    '[1]'
    """
    module, _, attribute = name.partition(":")
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise SettingsError(setting, f"{name} cannot be imported: {error}") from error
    if not callable(found):
        raise SettingsError(setting, f"{name} is not a class or function")
    return found


def read_value(text: str) -> Any:
    """Parse a value: lists, tables, numbers (also `.5`) and booleans as TOML, anything else as plain text."""
    number = _LEADING_POINT.sub(r"\g<1>0.", text)
    try:
        return tomllib.loads(f"value = {number}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        return text
