"""The answers of a deployment that has shared nothing: it has no store, and asking for one makes none. Pure."""

from __future__ import annotations

from typing import Any

from memory_agent.errors import InvalidInputError
from memory_agent.recall.query import check_now
from memory_agent.records.shared import FoundItem, UnpublishReceipt
from memory_agent.records.shared_changes import Untold
from memory_agent.records.shared_requests import (
    AnyAsk,
    Fetch,
    ForgetUser,
    Offer,
    OwnName,
    Publish,
    Rate,
    ReadLog,
    SetName,
    SharedPart,
    ShowItem,
    Unpublish,
)

_UNKNOWN = (Rate, ShowItem, Fetch)
_CREATING = (Publish, Offer, SetName)


def creates_store(ask: AnyAsk) -> bool:
    """Return whether a request creates the store where there is none."""
    return isinstance(ask, _CREATING)


def answer_without_store(ask: AnyAsk) -> Any:
    """Return the answer to a request that creates none. Raises `InvalidInputError` for an item by its id."""
    if isinstance(ask, _UNKNOWN):
        raise InvalidInputError("item_id", "is no shared item that this user may see")
    if isinstance(ask, Unpublish):
        return UnpublishReceipt(item_id=ask.item_id, found=False, at=check_now(None))
    if isinstance(ask, ReadLog):
        return Untold()
    if isinstance(ask, ForgetUser):
        return SharedPart()
    if isinstance(ask, OwnName):
        return None
    return 0 if ask.result is int else []


class NothingFound:
    """A search that found nothing. Satisfies `PendingItems`."""

    def result(self, timeout_s: float) -> list[FoundItem]:
        """Return no items."""
        return []
