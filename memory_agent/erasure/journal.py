"""What an erasure asks of the journal: the events behind the memories, in the relay's terms. Pure."""

from __future__ import annotations

import msgspec

from memory_agent.erasure.ledger import Intent
from memory_agent.erasure.receipt import ErasureReceipt
from relay import Erasable, Erased


def erasable(user_id: str, intent: Intent) -> Erasable:
    """Return the user's own events to erase: those that the memories were made of, and of the session and its runs.

    What of `system` goes with them is for who knows whose it is (`storage.owners`).
    """
    return Erasable(
        user_id=user_id,
        everything=intent.everything,
        event_ids=frozenset(intent.event_ids),
        session_ids=frozenset() if intent.session_id is None else frozenset({intent.session_id}),
        run_ids=frozenset(intent.run_ids),
    )


def with_journal(receipt: ErasureReceipt, erased: Erased, *, is_compact: bool) -> ErasureReceipt:
    """Return the receipt of both, the memory's and the journal's part."""
    is_waiting = not receipt.dry_run and not is_compact
    return msgspec.structs.replace(
        receipt,
        events=len(erased.seqs),
        quarantined=erased.quarantined,
        complete=receipt.complete and not is_waiting,
        reason=receipt.reason
        or ("the journal's file is cleared at an upkeep of the relay to come" if is_waiting else None),
    )
