"""Where the hosts of one machine find its data folder, embedder and keys.

A machine that joined a daemon stores this in a file, and its hosts inherit the path as an environment variable.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import msgspec

from memory_agent.verbs.protocol import HostEndpoints
from relay import CurvePair, Identity, described
from relay.disk import write_private

FOLDER_VARIABLE: Final = "MEMORY_NODE_FOLDER"
"""The run folder of the machine's data folder. The prefix is not `MEMORY_AGENT_`, which marks settings."""
_FILE = "place.json"


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A machine, as its hosts see it. `address` is empty for the daemon's machine; `shared` is the store of shared
    items."""

    data_dir: str
    embedder: str
    shared: str
    address: str = ""
    curve: CurvePair | None = None

    @property
    def identity(self) -> Identity:
        """The keys for the hosts on other machines; every machine has the same pair."""
        return cluster_identity(self.curve)

    @property
    def endpoints(self) -> HostEndpoints:
        """Unused ports at this machine's address, for a host that other machines connect to."""
        free = f"curve+tcp://{self.address}:0"
        return HostEndpoints(answer=free, ingest=free)


def cluster_identity(curve: CurvePair | None) -> Identity:
    """Return the credentials for a host on another machine.

    The host uses the key pair as its server key and accepts no other client key.
    """
    return Identity() if curve is None else Identity(curve=curve, server=curve.public)


def write_place(run_folder: Path, place: Place) -> None:
    write_private(run_folder / _FILE, msgspec.json.encode(place))


def forget_place(run_folder: Path) -> None:
    (run_folder / _FILE).unlink(missing_ok=True)


def is_node(run_folder: Path) -> bool:
    return (run_folder / _FILE).exists()


def place_here() -> Place:
    return msgspec.json.decode((Path(os.environ[FOLDER_VARIABLE]) / _FILE).read_bytes(), type=described(Place))
