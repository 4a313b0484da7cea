"""Complete erasure through the daemon: memories, and the events they were made of. As `Memory.erasure` embedded."""

from __future__ import annotations

from collections.abc import Sequence

from memory_agent.calls import Call, listed
from memory_agent.client_runs import Send
from memory_agent.erasure.receipt import ErasureReceipt
from memory_agent.erasure.selection import Selection
from memory_agent.protocol import EraseParams
from memory_agent.records import MemoryFilter

_PATIENCE_MS = 600_000.0


class ClientErasure:
    """Needs a key with the scope `admin`. Raises what `MemoryClient.recall` raises."""

    def __init__(self, send: Send) -> None:
        """Ask through `send`."""
        self._send = send

    def erase(
        self,
        record_ids: Sequence[str] = (),
        *,
        session_id: str | None = None,
        filter: MemoryFilter | None = None,
        dry_run: bool = False,
    ) -> ErasureReceipt:
        """Forget completely, in the journal as well; see `ErasureFace.erase`."""
        selection = Selection(ids=listed("ids", record_ids), session_id=session_id, filter=filter)
        selection.check()
        params = EraseParams(selection=selection, dry_run=dry_run)
        return self._send(Call("erase", params, ErasureReceipt, _PATIENCE_MS))
