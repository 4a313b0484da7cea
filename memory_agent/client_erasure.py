"""Complete erasure through the daemon, blocking and awaiting: memories and their events. As `Memory.erasure`."""

from __future__ import annotations

from collections.abc import Sequence

from memory_agent.calls import Call, listed
from memory_agent.client_runs import Send, SendAsync
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
        return self._send(_erase(record_ids, session_id, filter, dry_run=dry_run))

    def erase_expired(self, *, dry_run: bool = False) -> ErasureReceipt:
        """Forget completely what has reached the age of a rule of the daemon's; see `ErasureFace.erase_expired`."""
        return self._send(_erase_selected(Selection(expired=True), dry_run=dry_run))

    def erase_user(self, *, dry_run: bool = False) -> ErasureReceipt:
        """Forget everything of the user, the folder included. Whoever asks meanwhile waits, and meets an empty memory.

        What is published while it goes on is of the new one.
        """
        return self._send(_erase_selected(Selection(everything=True), dry_run=dry_run))


class AsyncClientErasure:
    """As `ClientErasure`, inside an event loop."""

    def __init__(self, send: SendAsync) -> None:
        """Ask through `send`."""
        self._send = send

    async def erase(
        self,
        record_ids: Sequence[str] = (),
        *,
        session_id: str | None = None,
        filter: MemoryFilter | None = None,
        dry_run: bool = False,
    ) -> ErasureReceipt:
        """As `ClientErasure.erase`."""
        return await self._send(_erase(record_ids, session_id, filter, dry_run=dry_run))

    async def erase_expired(self, *, dry_run: bool = False) -> ErasureReceipt:
        """As `ClientErasure.erase_expired`."""
        return await self._send(_erase_selected(Selection(expired=True), dry_run=dry_run))

    async def erase_user(self, *, dry_run: bool = False) -> ErasureReceipt:
        """As `ClientErasure.erase_user`."""
        return await self._send(_erase_selected(Selection(everything=True), dry_run=dry_run))


def _erase(
    record_ids: Sequence[str], session_id: str | None, filter: MemoryFilter | None, *, dry_run: bool
) -> Call[ErasureReceipt]:
    selection = Selection(ids=listed("ids", record_ids), session_id=session_id, filter=filter)
    selection.check()
    return _erase_selected(selection, dry_run=dry_run)


def _erase_selected(selection: Selection, *, dry_run: bool) -> Call[ErasureReceipt]:
    return Call("erase", EraseParams(selection=selection, dry_run=dry_run), ErasureReceipt, _PATIENCE_MS)
