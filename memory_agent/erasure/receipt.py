"""The receipt of an erasure: counts and a hash, no text. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from hashlib import sha256

import msgspec

from memory_agent.records.shared_requests import SharedPart
from relay import Erased

NOT_COVERED = (
    "backups and exports made before (a restore here erases from them again), and what it put aside (replaced-*)",
    "spools and windows of publishers that have not sent yet",
    "quarantined bytes that are no event and name no user",
    "the ids of the events, by which a repeat is recognised",
    "what was published of these memories: `shared unpublish` takes it away, as erasing the user does; its bytes leave "
    "the files in the next upkeep",
)
_SHARED_OF_USER = "the bytes of what the user shared, until the next upkeep: no answer has them"


class ErasureReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """What was erased. `complete`: no file holds it any more.

    Otherwise `reason` says what is left, and the next opening or upkeep of the store does it. `ids_sha256` is the
    SHA-256 of the sorted ids, one a line. `by_rule` counts expired memories by retention rule. `unknown_ids` were
    requested and belong to no memory: mistyped, or erased before. `unpublished` counts the items that a
    user had shared, `offers` what the user offered and `ratings` which versions of others' items the user rated.
    """

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
    unpublished: int = 0
    offers: int = 0
    ratings: int = 0

    def of_ids(self, asked: Iterable[str], known: Collection[str]) -> ErasureReceipt:
        """Return the receipt with the requested ids that are not known."""
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
        """Return the receipt for these memories; with a `reason` it is not complete."""
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


def with_journal(receipt: ErasureReceipt, erased: Erased, *, is_compact: bool) -> ErasureReceipt:
    """Return the receipt with the journal's part; it is complete once the journal's file is compact."""
    is_waiting = not receipt.dry_run and not is_compact
    return msgspec.structs.replace(
        receipt,
        events=len(erased.seqs),
        quarantined=erased.quarantined,
        complete=receipt.complete and not is_waiting,
        reason=receipt.reason or ("the journal's file is compacted at the relay's next upkeep" if is_waiting else None),
    )


def with_shared(receipt: ErasureReceipt, part: SharedPart) -> ErasureReceipt:
    """Return the receipt of a whole user with what the user shared."""
    return msgspec.structs.replace(
        receipt,
        unpublished=part.items,
        offers=part.offers,
        ratings=part.ratings,
        not_covered=(*NOT_COVERED[:-1], _SHARED_OF_USER),
    )


def left_shared(code: str) -> str:
    """Return the reason why an erasure is not complete, if the store of shared items fails with this code."""
    return f"what the user shared cannot be read ({code}): erase the user again when it can"


def left_in_journal(code: str) -> str:
    """Return the reason why an erasure is not complete, if the publish log was not told for an error of this code."""
    return f"the journal names what the user shared ({code}): a daemon takes it out at its start or in its next upkeep"


def digest_of(record_ids: Iterable[str]) -> str:
    """Return the SHA-256 of the ids, sorted, one a line."""
    return sha256("".join(f"{record_id}\n" for record_id in sorted(record_ids)).encode()).hexdigest()
