"""The other machines of a daemon's cluster: which may join, which are up, and which are leaving.

A machine that joins receives what its part of Ray needs (`JoinGrant`). The machine is up from the time Ray detects it
until it leaves or Ray declares it dead.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from msgspec.structs import replace

from memory_agent.daemon.cluster_secrets import is_address
from memory_agent.daemon.compatibility import require_compatible
from memory_agent.daemon.supervisor import Supervisor
from memory_agent.errors import (
    InvalidInputError,
    NoClusterError,
    NodeLeftError,
    NodeNameTakenError,
    UnavailableError,
)
from memory_agent.settings import ClusterSettings
from memory_agent.verbs.params import JoinParams
from memory_agent.verbs.protocol import JoinGrant, Node
from relay.log import log

__all__ = ["Node", "Nodes"]

_NAME = re.compile(r"[A-Za-z0-9-]{1,63}")
_WATCH_S = 1.0
_START_WITHIN_S = 60.0


@dataclass
class _Joined:
    """A machine that joined. `former`: Ray ids of its earlier processes; `is_seen`: Ray has listed a newer process."""

    node: Node
    former: frozenset[str]
    since_s: float
    is_seen: bool = False


class Nodes:
    """The machines of one daemon's cluster, except the daemon's own machine. Must be used from a single event loop."""

    def __init__(
        self,
        supervisor: Supervisor,
        settings: ClusterSettings,
        model: Callable[[], str | None],
        drain: Callable[[str], Awaitable[None]],
    ) -> None:
        """`model` returns the stamp of the daemon's model. `drain` moves all users away from a machine."""
        self._supervisor = supervisor
        self._settings = settings
        self._model = model
        self._drain = drain
        self._joined: dict[str, _Joined] = {}
        self._leaving: dict[str, asyncio.Task[None]] = {}
        self._endings: set[asyncio.Task[None]] = set()
        self._left: set[str] = set()

    def all(self) -> tuple[Node, ...]:
        """Return the machines that joined and have not left. Users are placed on a machine once it is up."""
        return tuple(
            joined.node if joined.is_seen or joined.node.state == "leaving" else replace(joined.node, state="joining")
            for joined in self._joined.values()
        )

    def up(self) -> dict[str, int]:
        return {
            name: joined.node.cores
            for name, joined in self._joined.items()
            if joined.is_seen and joined.node.state == "up"
        }

    async def join(self, params: JoinParams) -> JoinGrant:
        """Accept a machine. Idempotent: a machine may join again from the same address.

        Raises `NoClusterError`, `InvalidInputError`, `NodeLeftError`, `NodeMismatchError` and `NodeNameTakenError`.
        """
        if not self._settings.listen:
            raise NoClusterError("this daemon accepts no other machines: its setting cluster.listen is empty")
        self._check(params)
        grant = self._supervisor.grant(params.address)
        former = await self._supervisor.ray_nodes()
        self._left.discard(params.name)
        node = Node(
            name=params.name,
            address=params.address,
            cores=params.cores,
            version=params.version,
            joined_at=datetime.now(UTC).replace(microsecond=0),
        )
        self._joined[params.name] = _Joined(node, former.get(params.name, frozenset()), time.monotonic())
        log.info("node.joined", node=node.name, address=node.address, cores=node.cores)
        return replace(grant, now_s=time.time(), clock_tolerance_s=self._settings.clock_tolerance_s)

    async def leave(self, name: str) -> None:
        """Move the users away from a machine, and stop Ray there. Idempotent. Raises `InvalidInputError`."""
        if name in self._left:
            return
        if name not in self._joined:
            raise InvalidInputError("name", f"no machine {name[:64]!r} has joined")
        task = self._leaving.get(name)
        if task is None:
            task = self._leaving[name] = asyncio.create_task(self._leave(name))
            task.add_done_callback(lambda _: self._leaving.pop(name))
        await asyncio.shield(task)  # the caller may give up, but the users are still moved

    def lost(self, name: str) -> None:
        """Forget a machine whose hosts do not answer, until it joins again. Idempotent."""
        if self._joined.pop(name, None) is not None:
            log.warning("node.lost", node=name)
            ending = asyncio.create_task(self._end(name))  # if its Ray node is still running, the machine rejoins
            self._endings.add(ending)
            ending.add_done_callback(self._endings.discard)

    async def run(self) -> None:
        """Detect machines that Ray has declared dead, until cancelled. Returns at once if there is no cluster."""
        while self._settings.listen:
            await asyncio.sleep(_WATCH_S)
            try:
                alive = await self._supervisor.ray_nodes() if self._joined else {}
            except UnavailableError:  # the GCS is restarting
                continue
            for name, joined in list(self._joined.items()):
                if alive.get(name, frozenset()) - joined.former:
                    joined.is_seen = True
                elif joined.is_seen or time.monotonic() - joined.since_s > _START_WITHIN_S:
                    self.lost(name)

    async def _leave(self, name: str) -> None:
        joined = self._joined[name]
        joined.node = replace(joined.node, state="leaving")
        try:
            await self._drain(name)
        except BaseException:
            joined.node = replace(joined.node, state="up")
            raise
        self._left.add(name)
        self._joined.pop(name, None)
        await self._end(name)
        log.info("node.left", node=name)

    async def _end(self, name: str) -> None:
        """Stop Ray on a machine. If this fails, the machine itself detects that it has left or must join again."""
        try:
            await self._supervisor.end_node(name)
        except UnavailableError as error:
            log.warning("node.not_ended", node=name, reason=str(error))

    def _check(self, params: JoinParams) -> None:
        if not _NAME.fullmatch(params.name):
            raise InvalidInputError("name", "must be 1 to 63 letters, digits or dashes")
        if params.again and params.name in self._left:
            raise NodeLeftError(params.name)
        if not is_address(params.address):
            raise InvalidInputError("address", f"{params.address[:64]!r} is not the IP address of one machine")
        require_compatible(params, self._model())
        joined = self._joined.get(params.name)
        if joined is not None and joined.node.address != params.address:
            raise NodeNameTakenError(params.name, joined.node.address)
