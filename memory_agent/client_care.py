"""The files of one user's memory through the daemon: what `Memory.care` is embedded."""

from __future__ import annotations

from memory_agent.calls import Call
from memory_agent.client_runs import Send
from memory_agent.protocol import NoParams
from memory_agent.records import Compacted

_PATIENCE_MS = 600_000.0
_REBUILD = Call("rebuild", NoParams(), int, _PATIENCE_MS)
_COMPACT = Call("compact", NoParams(), Compacted, _PATIENCE_MS)


class ClientCare:
    """Needs a key with the scope `admin`. Every method raises what `MemoryClient.recall` raises."""

    def __init__(self, send: Send) -> None:
        """Ask through `send`."""
        self._send = send

    def rebuild(self) -> int:
        """Build what is derived from the records anew; return how many memories there are."""
        return self._send(_REBUILD)

    def compact(self) -> Compacted:
        """Give back the room of what was deleted."""
        return self._send(_COMPACT)
