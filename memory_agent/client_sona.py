"""The learner of one user through the daemon: what `Memory.sona` is embedded, blocking and awaiting."""

from __future__ import annotations

from memory_agent.calls import Call
from memory_agent.client_runs import Send, SendAsync
from memory_agent.errors import InvalidInputError
from memory_agent.protocol import NoParams
from memory_agent.run_params import SonaImportParams
from memory_agent.trajectory import SonaStatus

_PATIENCE_MS = 60_000.0
"""For what learns everything anew, or carries all that was learnt."""
_MOST_BYTES = 32 << 20
"""Many times what a learner may hold; a frame that is larger still would end the connection without a word."""
_STATUS = Call("sona_status", NoParams(), SonaStatus)
_RESET = Call("sona_reset", NoParams(), int, _PATIENCE_MS)
_EXPORT = Call("sona_export", NoParams(), bytes, _PATIENCE_MS)


class ClientSona:
    """What was learnt for one user. Every method raises what `MemoryClient.recall` raises."""

    def __init__(self, send: Send) -> None:
        """Ask through `send`."""
        self._send = send

    def status(self) -> SonaStatus:
        """Return what the learner says of itself."""
        return self._send(_STATUS)

    def reset(self) -> int:
        """Forget what was learnt, not the runs, which are left out from now on; return how many those are."""
        return self._send(_RESET)

    def export(self) -> bytes:
        """Return the runs that have ended, with their recalls, for `load`: made of what was asked, and as private."""
        return self._send(_EXPORT)

    def load(self, data: bytes) -> int:
        """Learn from runs that `export` gave; return how many were new. Raises `InvalidInputError` when damaged."""
        return self._send(_load(data))


class AsyncClientSona:
    """As `ClientSona`, inside an event loop."""

    def __init__(self, send: SendAsync) -> None:
        """Ask through `send`."""
        self._send = send

    async def status(self) -> SonaStatus:
        """As `ClientSona.status`."""
        return await self._send(_STATUS)

    async def reset(self) -> int:
        """As `ClientSona.reset`."""
        return await self._send(_RESET)

    async def export(self) -> bytes:
        """As `ClientSona.export`."""
        return await self._send(_EXPORT)

    async def load(self, data: bytes) -> int:
        """As `ClientSona.load`."""
        return await self._send(_load(data))


def _load(data: bytes) -> Call[int]:
    if len(data) > _MOST_BYTES:
        raise InvalidInputError("data", f"has {len(data)} bytes; nothing that was learned is so large")
    return Call("sona_import", SonaImportParams(data=data), int, _PATIENCE_MS)
