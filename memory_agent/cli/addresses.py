"""Which relay to publish to, and whether anybody listens at an endpoint.

ZeroMQ connects to what is not there and waits, which is right for an emitter and wrong for somebody at a prompt: so
it is looked up first.
"""

from __future__ import annotations

import socket

from memory_agent.cli.options import Target
from relay import relay_endpoints

_CONNECT_TIMEOUT_S = 3.0


def relay_ingest(target: Target, named: str | None) -> str:
    """Return the endpoint for events: the one that was named, that of the settings, or that of the data folder."""
    return named or target.settings.relay.broker.ingest or relay_endpoints(target.data_dir).ingest


def listens(endpoint: str) -> bool:
    """Say whether somebody listens at an ipc or tcp endpoint; True for one of another kind."""
    scheme, _, address = endpoint.partition("://")
    try:
        if scheme == "ipc":
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
                peer.settimeout(_CONNECT_TIMEOUT_S)
                peer.connect(address)
        elif scheme in ("tcp", "curve+tcp"):
            host, _, port = address.rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_TIMEOUT_S).close()
    except (OSError, ValueError):
        return False
    return True
