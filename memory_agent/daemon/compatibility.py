"""Checks that the machines of a cluster are compatible. Their product versions may differ."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import msgspec

from memory_agent.archiving.chain import FORMAT as ARCHIVE_FORMAT
from memory_agent.errors import NodeMismatchError, SettingsError
from memory_agent.settings import Settings
from memory_agent.storage.codec import FORMAT as RECORD_FORMAT
from memory_agent.verbs.params import JoinParams
from memory_agent.verbs.protocol import HOST_PROTOCOL
from memory_agent.version import VERSION
from relay import described, setting_at_fault


def in_common() -> dict[str, int | str]:
    return {
        "protocol": HOST_PROTOCOL,
        "record format": RECORD_FORMAT,
        "archive format": ARCHIVE_FORMAT,
        "Ray": version("ray"),
        "Python": platform.python_version(),  # Ray compares all three numbers
    }


def require_compatible(params: JoinParams, model: str | None) -> None:
    """Raise `NodeMismatchError` with advice if a machine is incompatible with this daemon, which uses `model`."""
    for what, expected in in_common().items():
        own = params.in_common.get(what, 0)
        if own != expected:
            raise NodeMismatchError(what, str(own), str(expected), _advice(own, expected, params.version))
    if params.model != model:
        advice = "use one model on all machines (embedder.folder)"
        raise NodeMismatchError("model", params.model or "missing", model or "missing", advice)


def _advice(own: int | str, expected: int | str, version: str) -> str:
    if not isinstance(own, int) or not isinstance(expected, int):
        return f"install {expected} on this machine, because Ray requires the same versions of Ray and Python"
    if own < expected:
        return f"upgrade this machine from version {version} to {VERSION}"
    return f"upgrade the daemon from version {VERSION} to {version} first"


def encode_settings(settings: Settings) -> bytes:
    """Encode only the settings that differ from their defaults, since another version may not recognise the others."""
    return msgspec.msgpack.encode(_differing(settings))


def decode_settings(encoded: bytes) -> Settings:
    """Return the settings of a daemon. Raises `SettingsError` for a setting that this version does not support."""
    try:
        return msgspec.msgpack.decode(encoded, type=described(Settings))
    except msgspec.ValidationError as error:
        name, reason = setting_at_fault(error)
        advice = f"set on the daemon, but version {VERSION} on this machine does not accept it ({reason})"
        raise SettingsError(name, f"{advice}; upgrade this machine, or unset it") from error


def _differing(settings: msgspec.Struct) -> Mapping[str, Any]:
    default, config = type(settings)(), settings.__struct_config__
    values = {name: getattr(settings, name) for name in settings.__struct_fields__}
    tag = {config.tag_field: config.tag} if config.tag_field else {}  # selects the struct of the union
    return tag | {
        name: _differing(value) if isinstance(value, msgspec.Struct) else value
        for name, value in values.items()
        if value != getattr(default, name)
    }
