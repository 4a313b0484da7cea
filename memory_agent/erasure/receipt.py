"""What an erasure did, for whoever has to show it: counts and a hash, no text. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from hashlib import sha256

import msgspec

NOT_COVERED = (
    "backups and exports made before (a restore here erases from them again), and what it put aside (replaced-*)",
    "spools and windows of publishers that have not sent yet",
    "quarantined bytes that are no event and name no user",
    "the ids of the events, by which a repeat is recognised",
)


class ErasureReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """`ids_sha256` is that of the sorted ids of the memories, one a line; `complete` says that no file holds them any
    more. Where it is false, the rest is done when the store is opened again, or at its next upkeep. `by_rule` counts
    the memories that reached the age of a rule of retention; `unknown_ids` are ids that were asked for and are of no
    memory: mistyped, or forgotten before."""

    user_id: str
    erased_at: datetime
    dry_run: bool
    complete: bool
    memories: int
    ids_sha256: str
    events: int = 0
    quarantined: int = 0
    published: int = 0
    not_covered: tuple[str, ...] = NOT_COVERED
    reason: str | None = None
    by_rule: dict[str, int] = {}
    unknown_ids: tuple[str, ...] = ()

    def of_ids(self, asked: Iterable[str], known: Collection[str]) -> ErasureReceipt:
        """Return the receipt with those of the ids that were asked for that nothing is known of."""
        return msgspec.structs.replace(self, unknown_ids=tuple(sorted(set(asked).difference(known))))

    @classmethod
    def of(
        cls,
        user_id: str,
        record_ids: Collection[str],
        now: datetime,
        *,
        dry_run: bool = False,
        reason: str | None = None,
        expired: Mapping[str, Collection[str]] | None = None,
    ) -> ErasureReceipt:
        """Return the receipt of an erasure of these memories, not complete for a `reason`."""
        return cls(
            user_id=user_id,
            erased_at=now,
            dry_run=dry_run,
            complete=not dry_run and reason is None,
            memories=len(record_ids),
            ids_sha256=digest_of(record_ids),
            reason=reason,
            by_rule={rule: len(ids) for rule, ids in (expired or {}).items()},
        )


def digest_of(record_ids: Iterable[str]) -> str:
    """Return the SHA-256 of the ids, sorted, one a line."""
    return sha256("".join(f"{record_id}\n" for record_id in sorted(record_ids)).encode()).hexdigest()
