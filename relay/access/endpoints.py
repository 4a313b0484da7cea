"""Where a socket of the bus may listen: socket files, loopback, and elsewhere with CURVE alone. Pure."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import sys

from relay.errors import RelaySettingsError

CURVE = "curve+"
"""Before a TCP endpoint: peers there authenticate with CURVE keys, and nothing is readable on the way."""

_SOCKET_PATH_BYTES = 103 if sys.platform == "darwin" else 107


def check_endpoint(setting: str, endpoint: str) -> str:
    """Return `endpoint` when it is a socket file of at most 107 bytes, TCP on loopback, or TCP with CURVE.

    Raises `RelaySettingsError`.
    """
    scheme, _, place = endpoint.partition("://")
    if scheme == "ipc" and place:
        _check_length(setting, place)
    elif scheme == "tcp" and place:
        _check_loopback(setting, place.rpartition(":")[0], place)
    elif not (scheme == CURVE + "tcp" and place):
        known = "ipc://PATH, tcp://127.0.0.1:PORT or curve+tcp://HOST:PORT"
        raise RelaySettingsError(setting, f"{endpoint!r} is no endpoint: {known}")
    return endpoint


def is_curve(endpoint: str) -> bool:
    """Say whether peers at this endpoint authenticate with CURVE keys."""
    return endpoint.startswith(CURVE)


def _check_length(setting: str, path: str) -> None:
    length, limit = len(os.fsencode(path)), _SOCKET_PATH_BYTES
    if length > limit:
        raise RelaySettingsError(
            setting, f"{path} has {length} bytes, a socket path may have {limit}: choose a shorter folder"
        )


def _check_loopback(setting: str, host: str, place: str) -> None:
    with contextlib.suppress(ValueError):
        if host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback:
            return
    raise RelaySettingsError(
        setting, f"{host or '*'} is not loopback (127.0.0.1, ::1, localhost); with CURVE: {CURVE}tcp://{place}"
    )
