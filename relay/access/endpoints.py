"""Validates the endpoints of sockets. Only socket files and loopback are permitted without CURVE. Pure."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import sys
from pathlib import Path

from relay.errors import RelaySettingsError, SettingsError

CURVE = "curve+"  # prefix of a TCP endpoint whose peers authenticate with CURVE keys and encrypt all traffic

_SOCKET_PATH_BYTES = 103 if sys.platform == "darwin" else 107


def ipc_endpoint(path: Path) -> str:
    """Return the endpoint of a socket file. Raises `SettingsError` if the path is too long for the system."""
    reason = _too_long(os.fspath(path))
    if reason:
        raise SettingsError("data_dir", reason)
    return f"ipc://{path}"


def check_endpoint(setting: str, endpoint: str) -> str:
    """Return `endpoint` if it is a socket file, TCP on loopback, or TCP with CURVE. Raises `RelaySettingsError`."""
    scheme, _, place = endpoint.partition("://")
    if scheme == "ipc" and place:
        reason = _too_long(place)
    elif scheme == "tcp" and place:
        reason = _not_loopback(place)
    elif scheme == CURVE + "tcp" and place:
        reason = ""
    else:
        reason = f"{endpoint!r} is not an endpoint (ipc://PATH, tcp://127.0.0.1:PORT or curve+tcp://HOST:PORT)"
    if reason:
        raise RelaySettingsError(setting, reason)
    return endpoint


def is_curve(endpoint: str) -> bool:
    return endpoint.startswith(CURVE)


def _too_long(path: str) -> str:
    length, limit = len(os.fsencode(path)), _SOCKET_PATH_BYTES
    return f"{path} has {length} bytes; socket paths allow {limit}: choose a shorter folder" if length > limit else ""


def _not_loopback(place: str) -> str:
    host = place.rpartition(":")[0]
    with contextlib.suppress(ValueError):
        if host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback:
            return ""
    return f"{host or '*'} is not loopback (127.0.0.1, ::1, localhost); use CURVE instead: {CURVE}tcp://{place}"
