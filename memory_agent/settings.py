"""All settings, and where they come from: defaults, then TOML, then environment, then flags.

Read once, in an entry point. Unknown names and values out of bounds are refused by name.
"""

from __future__ import annotations

import os
import tomllib
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypedDict

import msgspec

from memory_agent.config import (
    DaemonSettings,
    EmbedderSettings,
    IngestSettings,
    LearningSettings,
    RecallSettings,
    RetentionSettings,
    StoreSettings,
)
from memory_agent.errors import SettingsError
from memory_agent.log import Level
from relay import BusSettings, EncryptionSettings, EventLimits, MaskingSettings


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings: one table of the TOML file for each part."""

    data_dir: str = ""
    log_level: Level = "info"
    encryption: EncryptionSettings = EncryptionSettings()
    relay: BusSettings = BusSettings()
    embedder: EmbedderSettings = EmbedderSettings()
    store: StoreSettings = StoreSettings()
    ingest: IngestSettings = IngestSettings()
    recall: RecallSettings = RecallSettings()
    learning: LearningSettings = LearningSettings()
    retention: RetentionSettings = RetentionSettings()
    daemon: DaemonSettings = DaemonSettings()


class SettingsKeywords(TypedDict, total=False):
    """Tables of `Settings` as keywords of `Memory.open`, as former versions took them. None leaves a table as it is."""

    embedder_settings: EmbedderSettings | None
    store_settings: StoreSettings | None
    ingest_settings: IngestSettings | None
    recall_settings: RecallSettings | None
    event_limits: EventLimits | None
    learning_settings: LearningSettings | None
    masking_settings: MaskingSettings | None
    encryption_settings: EncryptionSettings | None
    retention_settings: RetentionSettings | None


_OF_RELAY = {"event_limits": "events", "masking_settings": "masking"}


def with_keywords(settings: Settings, keywords: SettingsKeywords) -> Settings:
    """Return `settings` with the tables that `keywords` give replaced. Raises `TypeError` for an unknown keyword."""
    unknown = keywords.keys() - SettingsKeywords.__annotations__.keys()
    if unknown:
        raise TypeError(f"Memory.open() got an unexpected keyword argument {min(unknown)!r}")
    given = {name: table for name, table in keywords.items() if table is not None}
    relay = {table: given.pop(name) for name, table in _OF_RELAY.items() if name in given}
    tables = {name.removesuffix("_settings"): table for name, table in given.items()}
    return msgspec.structs.replace(settings, relay=msgspec.structs.replace(settings.relay, **relay), **tables)


ENVIRONMENT_PREFIX = "MEMORY_AGENT_"
RENAMED = {"recall.alpha": "recall.vector_weight"}
"""Settings by their former names, which are still read, with a warning."""

_NOT_SETTINGS = frozenset(
    {"MEMORY_AGENT_CONFIG", "MEMORY_AGENT_MODEL_CACHE", "MEMORY_AGENT_TOKEN", "MEMORY_AGENT_KEY_FILE"}
)


def load_settings(
    file: Path | None = None,
    environment: Mapping[str, str] = os.environ,
    overrides: Mapping[str, Any] | None = None,
    warn: Callable[[str], None] | None = None,
) -> Settings:
    """Return the defaults, changed by `file`, then by the environment, then by `overrides`.

    A variable is `MEMORY_AGENT_` and the path of the setting with `__` between its parts, as in
    `MEMORY_AGENT_RECALL__MODE=vector`; an override is keyed `recall.mode`. `warn` receives a message for each setting
    given under a former name (`RENAMED`); by default it is a `FutureWarning`. Raises `SettingsError`.
    """
    tree = _read_toml(file) if file is not None else {}
    for name, text in environment.items():
        if name.startswith(ENVIRONMENT_PREFIX) and name not in _NOT_SETTINGS:
            _plant(tree, name.removeprefix(ENVIRONMENT_PREFIX).lower().split("__"), _value(text))
    for name, value in (overrides or {}).items():
        _plant(tree, name.split("."), value)
    rename_settings(tree, warn or _warn)
    try:
        return msgspec.convert(tree, Settings, strict=False)
    except msgspec.ValidationError as error:
        raise SettingsError(*_named(str(error))) from error


def rename_settings(tree: dict[str, Any], warn: Callable[[str], None]) -> None:
    """Move the settings that a tree of tables holds under former names to their present ones, warning of each.

    Raises `SettingsError` where a setting is given under both names.
    """
    for former, present in RENAMED.items():
        table, name = _table_of(tree, former)
        if name not in table:
            continue
        present_table, present_name = _table_of(tree, present)
        if present_name in present_table:
            raise SettingsError(former, f"is the former name of {present}, which is set too; remove one of them")
        warn(f"setting {former} was renamed {present}; the former name is still read")
        _plant(tree, present.split("."), table.pop(name))


def _table_of(tree: dict[str, Any], setting: str) -> tuple[dict[str, Any], str]:
    """Return the table that holds a setting, empty where there is none, and the setting's name in it."""
    *tables, name = setting.split(".")
    for table in tables:
        branch = tree.get(table)
        if not isinstance(branch, dict):
            return {}, name
        tree = branch
    return tree, name


def _warn(message: str) -> None:
    warnings.warn(message, FutureWarning, stacklevel=4)  # shown by default, unlike DeprecationWarning


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError("--config", f"{file} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SettingsError("--config", f"{file} is not TOML: {error}") from error


def _plant(tree: dict[str, Any], path: list[str], value: Any) -> None:
    for name in path[:-1]:
        branch = tree.setdefault(name, {})
        if not isinstance(branch, dict):
            raise SettingsError(".".join(path), f"{name} is a setting, not a table")
        tree = branch
    tree[path[-1]] = value


def _value(text: str) -> Any:
    """Read a variable as TOML where it is a list, a table, a number or a boolean, and as plain text otherwise."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        return text


def _named(message: str) -> tuple[str, str]:
    """Split msgspec's message into the setting's path and the reason."""
    reason, _, path = message.partition(" - at `")
    setting = path.rstrip("`").removeprefix("$").removeprefix(".")
    if "unknown field" in reason:
        unknown = reason.rpartition("unknown field ")[2].strip("`")
        return ".".join(part for part in (setting, unknown) if part), "there is no such setting"
    return setting or "settings", reason
