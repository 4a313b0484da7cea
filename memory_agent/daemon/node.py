"""The process of `memory-agent join`: a machine's embedder and its part of the daemon's Ray cluster.

The process joins again if Ray or the daemon ends and restarts. On SIGTERM, it leaves the cluster: the daemon moves the
users to other machines before the processes end. If it is killed, its child processes and hosts end too.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memory_agent.daemon.children import Child, embedder_arguments
from memory_agent.daemon.cluster_secrets import ray_environment
from memory_agent.daemon.compatibility import decode_settings, in_common
from memory_agent.daemon.place import FOLDER_VARIABLE, Place, forget_place, write_place
from memory_agent.daemon.supervisor import NEEDS_RAY, ray_installed
from memory_agent.embedders.lanes import usable_cores
from memory_agent.errors import MemoryAgentError, NodeLeftError, NodeMismatchError, SettingsError, UnavailableError
from memory_agent.layout import Layout
from memory_agent.settings import Settings
from memory_agent.storage.environment import require_keys
from memory_agent.storage.folders import USERS_FOLDER
from memory_agent.verbs.protocol import JoinGrant, decode_reply
from memory_agent.verbs.table import BY_METHOD
from memory_agent.version import VERSION
from relay import CurvePair, EncryptionSettings, Identity
from relay.crypto import ring_file
from relay.disk import write_private
from relay.log import log
from relay.net import AsyncRequestSocket

_ASK_TIMEOUT_S = 10.0
_LEAVE_TIMEOUT_S = 120.0
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 5.0


@dataclass(frozen=True)
class Joining:
    """How a machine joins: the daemon's endpoint with a key, and the machine's name and IP address."""

    endpoint: str
    identity: Identity
    token: Callable[[], str]
    name: str
    address: str


def serve_node(joining: Joining, settings: Settings, layout: Layout) -> int:
    """Run until SIGTERM, SIGINT or the verb `leave`; return the exit code. Raises `MemoryAgentError`."""
    if not ray_installed():
        raise SettingsError("cluster", NEEDS_RAY)
    layout.create()
    with layout.hold():
        _claim(layout)
        try:
            return asyncio.run(_NodeProcess(joining, settings, layout).run())
        finally:
            _delete_users(layout)
            forget_place(layout.run)
            layout.clear_sockets()


def _claim(layout: Layout) -> None:
    """Mark the folder as belonging to a machine that has joined a cluster. Raises `SettingsError` if it is a daemon's
    own folder.
    """
    marker = layout.node_marker
    if layout.journal.exists() or (not marker.exists() and (layout.data_dir / USERS_FOLDER).exists()):
        reason = f"{layout.data_dir} contains a daemon's memories; choose a folder for this machine's part"
        raise SettingsError("data_dir", reason)
    write_private(marker, b"")


def _delete_users(layout: Layout) -> None:
    users = layout.data_dir / USERS_FOLDER
    try:
        if users.exists():
            shutil.rmtree(users)
    except OSError as error:
        raise SettingsError("data_dir", f"{users} cannot be deleted: {error.strerror}") from error


def require_same_clock(grant: JoinGrant, asked_s: float, answered_s: float) -> None:
    """Raise `NodeMismatchError` if the clocks differ too much, after allowing for the round-trip time."""
    off_s = min(answered_s - grant.now_s, 0.0) or max(asked_s - grant.now_s, 0.0)
    if abs(off_s) > grant.clock_tolerance_s:
        tolerance = f"within {grant.clock_tolerance_s:g} s"
        raise NodeMismatchError("clock", f"{off_s:+.1f} s off", tolerance, "set the clock of this machine")


def require_ring(grant: JoinGrant, data_dir: Path) -> None:
    """Check that this machine can access the daemon's encryption keys, and store the key ring for local hosts."""
    if grant.ring:
        write_private(ring_file(data_dir), grant.ring)
    else:
        ring_file(data_dir).unlink(missing_ok=True)
    require_keys(EncryptionSettings(keys_folder=grant.keys_folder), data_dir)


class _NodeProcess:
    def __init__(self, joining: Joining, settings: Settings, layout: Layout) -> None:
        self._joining = joining
        self._layout = layout
        self._parent = ("--parent-pid", str(os.getpid()))
        arguments = (*embedder_arguments(settings, layout.embedder), *self._parent)
        self._embedder = Child("embedder", "memory_agent.embedders", arguments)
        self._stopping = asyncio.Event()

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        try:
            await self._embedder.start()  # first, because the daemon compares the model
            await self._stay_joined()
        finally:
            await self._embedder.stop()
        return 0

    async def _stay_joined(self) -> None:
        has_joined, pause_s = False, _FIRST_PAUSE_S
        while not self._stopping.is_set():
            try:
                raylet = await self._join(again=has_joined)
            except NodeLeftError:
                log.info("node.left")
                return
            except MemoryAgentError as error:
                if not has_joined or not error.retryable:
                    raise
                log.warning("node.not_joined", reason=str(error))
            else:
                if not has_joined:
                    self._print_ready()
                has_joined, pause_s = True, _FIRST_PAUSE_S
                await self._until_end_of(raylet)
            await self._stopped_within(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _join(self, *, again: bool) -> Child:
        own = self._joining
        model: str | None = self._embedder.ready.get("model")
        params = {
            "name": own.name,
            "address": own.address,
            "cores": usable_cores(),
            "version": VERSION,
            "model": model,
            "again": again,
            "in_common": in_common(),
        }
        asked_s = time.time()
        grant: JoinGrant = await self._ask("join", params, _ASK_TIMEOUT_S)
        require_same_clock(grant, asked_s, time.time())
        decode_settings(grant.settings)  # as hosts will
        _delete_users(self._layout)
        require_ring(grant, self._layout.data_dir)
        os.environ.update(self._prepared(grant))
        raylet = Child("ray", "memory_agent.daemon.raylet", (own.name, own.address, grant.gcs), is_restarted=False)
        try:
            await raylet.start()
        except BaseException:
            await raylet.stop()
            raise
        log.info("node.joined", node=own.name)
        return raylet

    def _prepared(self, grant: JoinGrant) -> dict[str, str]:
        """Write the files that Ray and the hosts of this machine read; return their environment variables."""
        run = self._layout.run
        curve = CurvePair(*grant.curve)
        place = Place(
            data_dir=str(self._layout.data_dir),
            embedder=self._layout.embedder,
            shared=grant.shared,
            address=self._joining.address,
            curve=curve,
        )
        write_place(run, place)
        token = run / "ray-token"
        write_private(token, grant.token.encode())
        return {
            **ray_environment(run, grant.certificate),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
            FOLDER_VARIABLE: str(run),
        }

    async def _until_end_of(self, raylet: Child) -> None:
        ended = asyncio.create_task(raylet.ended())
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait((ended, stopping), return_when=asyncio.FIRST_COMPLETED)
            if self._stopping.is_set():
                await self._leave()
            else:
                log.warning("node.ray_ended")
        finally:
            for task in (ended, stopping):
                task.cancel()
            await asyncio.gather(ended, stopping, return_exceptions=True)
            await raylet.stop()

    async def _leave(self) -> None:
        try:
            await self._ask("leave", {"name": self._joining.name}, _LEAVE_TIMEOUT_S)
        except MemoryAgentError as error:
            log.warning("node.not_drained", reason=str(error))

    async def _ask(self, method: str, arguments: Mapping[str, Any], timeout_s: float) -> Any:
        call = BY_METHOD[method].call(arguments)
        endpoint = self._joining.endpoint
        socket = AsyncRequestSocket(endpoint, self._joining.identity)  # a queued request would be sent late
        try:
            frames = await socket.request(call.encode("", self._joining.token()), timeout_s)
        except UnavailableError as error:
            raise UnavailableError(f"no daemon at {endpoint} that accepts this key") from error
        finally:
            socket.close()
        return decode_reply(frames[0], call.verb.result)

    async def _stopped_within(self, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._stopping.wait()
        except TimeoutError:
            pass

    def _print_ready(self) -> None:
        own = self._joining
        ready = {"ready": True, "pid": os.getpid(), "data_dir": str(self._layout.data_dir), "name": own.name}
        ready |= {"address": own.address, "daemon": own.endpoint}
        words = f"{own.name} has joined {own.endpoint} as {own.address}; press Ctrl-C to leave\n"
        sys.stdout.write(words if sys.stdout.isatty() else json.dumps(ready) + "\n")
        sys.stdout.flush()
