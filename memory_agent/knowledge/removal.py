"""Permanently removes items, offers and erased users' data from a store of shared items.

Each removal is first written to the history of erasures. The next open completes an interrupted removal. When a backup
is restored, the history is applied to it.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager

from memory_agent.erasure.forgetting import Forgetting
from memory_agent.erasure.logs import History, fingerprint, history_bytes, note_erasure
from memory_agent.erasure.request import Intent
from memory_agent.knowledge import pseudonyms
from memory_agent.knowledge.items import (
    about_of,
    offerers_of,
    place_in,
    usage_of,
    write_usage,
)
from memory_agent.knowledge.offers import authors_with_offers, drop_offers, unsupported_without
from memory_agent.knowledge.publish_log import log_removed
from memory_agent.knowledge.stored_figures import drop_figures, due_in, erase_user, parts_in, places_with, write_due
from memory_agent.recall.query import check_now
from memory_agent.storage.archive import Archive
from memory_agent.storage.batch import Batch
from memory_agent.storage.snapshot import Snapshot

_APPLIED = "shared:followed"
_AT_ONCE = 100
"""Maximum number of items changed per transaction."""


class ItemForgetting(Forgetting):
    """Deletes items with their blobs."""

    def memories(self, record_ids: Sequence[str]) -> int:
        with self._archive.batch() as batch:
            gone = {*record_ids, *self.linked_ids(batch, record_ids)}
            drop_offers(batch, gone.__contains__, authors_with_offers(batch))
        return super().memories(record_ids)

    def linked_ids(self, snapshot: Snapshot, record_ids: Sequence[str]) -> list[str]:
        """Return the ids of the offers that form items; upkeep would recreate the items from these offers."""
        return [offer_id for one in record_ids for offer_id in offerers_of(snapshot, one).values()]

    def remove(self, batch: Batch, rows: Sequence[int]) -> int:
        records = list(filter(None, map(batch.record, rows)))
        for record in records:
            place = place_in(batch, record.id)
            for kind in (pseudonyms.FILE, pseudonyms.OFFERERS):
                batch.set_blob(kind + place, None)
            drop_figures(batch, place)
            author = about_of(record).author
            write_usage(batch, author, usage_of(batch, author).with_item(record, -1))
            log_removed(batch, record, check_now(None))
        write_due(batch, {*due_in(batch)}.difference(record.id for record in records))
        pseudonyms.mark_removal(batch)
        return super().remove(batch, rows)


class Removal:
    """Removes data from one store. Durable on return."""

    def __init__(self, user_id: str, archive: Archive, forgetting: Forgetting, offers_together: int) -> None:
        """`user_id` is the id of the store. At least `offers_together` users must offer an item."""
        self._user_id = user_id
        self._archive = archive
        self._forgetting = forgetting
        self._offers_together = offers_together
        self._lock = threading.Lock()
        self._under_way = 0
        self._was_current = False

    @property
    def is_behind(self) -> bool:
        """Whether the history of erasures has entries that have not been applied yet."""
        folder, known = self._archive.store.folder, self._archive.store.blob(_APPLIED)
        return history_bytes(folder, self._user_id) != int.from_bytes(known or b"", "big")

    def apply(self, history: History) -> int:
        """Apply a history of erasures, and delete blobs without an item; return the number of items removed."""
        gone = history.memories_in(check_now(None))

        def is_gone(name: str) -> bool:
            return fingerprint(self._user_id, name) in gone

        with self._lock, self._archive.batch() as batch:
            ids = {row: record.id for row, record in batch.scan()}
            unsupported = unsupported_without(batch, is_gone, self._offers_together)
            removed = [row for row, item_id in ids.items() if is_gone(item_id) or item_id in unsupported]
            self._forgetting.remove(batch, removed)
            for row in removed:
                del ids[row]
            drop_offers(batch, is_gone, authors_with_offers(batch))
            for author in pseudonyms.authors_with_names(batch):
                if is_gone(author):
                    pseudonyms.drop_name(batch, author)
            places = {place_in(batch, item_id) for item_id in ids.values()}
            for kind in (pseudonyms.FILE, pseudonyms.FIGURES, pseudonyms.OFFERERS):
                for name in batch.blobs(kind):
                    if name.removeprefix(kind) not in places:
                        batch.set_blob(name, None)
            for name, place, user in parts_in(batch):
                if place not in places:
                    batch.set_blob(name, None)
                elif is_gone(user.decode()):
                    erase_user(batch, place, user)
            pseudonyms.mark_removal(batch)
            self._set_applied(batch)
        return len(removed)

    def note(self, ids: Sequence[str], authors: Sequence[str] = (), offerers: Collection[str] = ()) -> None:
        """Record the removal of items, offers and authors in the history, before `carry_out` removes them.

        `offerers` are the users whose offers are removed, in the same transaction as the items that depend on these
        offers.
        """
        folder, now, is_gone = self._archive.store.folder, check_now(None), {*ids, *authors}.__contains__
        with self._lock:
            if not self._under_way:
                self._was_current = not self.is_behind
            with self._archive.store.snapshot() as snapshot:
                offering = authors_with_offers(snapshot, offerers)
                unsupported = unsupported_without(snapshot, is_gone, self._offers_together) if offering else []
            note_erasure(folder, self._user_id, Intent(started_at=now, record_ids=(*ids, *unsupported, *authors)), now)
            self._under_way += 1
            if not offering:
                return
            try:
                with self._archive.batch() as batch:
                    self._remove(batch, unsupported)
                    drop_offers(batch, is_gone, offering)
            except BaseException:
                self._under_way -= 1
                self._was_current = False
                raise

    def paused(self) -> AbstractContextManager[object]:
        """Return a context in which `note` blocks, so that no offer is removed."""
        return self._lock

    def carry_out(self, item_ids: Sequence[str], authors: Sequence[str] = ()) -> None:
        """Remove items and all data of erased authors, in transactions of bounded size. Call it after `note`."""
        try:
            self._remove_all(item_ids, authors)
        except BaseException:
            with self._lock:
                self._under_way -= 1
                self._was_current = False
            raise
        with self._lock, self._archive.batch() as batch:
            self._under_way -= 1
            if self._was_current and not self._under_way:
                self._set_applied(batch)

    def _remove_all(self, item_ids: Sequence[str], authors: Sequence[str]) -> None:
        for some in in_parts(item_ids):
            with self._archive.batch() as batch:
                self._remove(batch, some)
        if not authors:
            return
        with self._archive.batch() as batch:
            for author in authors:
                pseudonyms.drop_name(batch, author)
                batch.set_blob(pseudonyms.place_of(batch, pseudonyms.ERASED, author), b"")
            pseudonyms.mark_removal(batch)
        users = [author.encode() for author in authors]
        with self._archive.store.snapshot() as snapshot:
            places = places_with(snapshot, users)
        for some in in_parts(list(places)):
            with self._archive.batch() as batch:
                for place in some:
                    for user in users:
                        erase_user(batch, place, user)
                pseudonyms.mark_removal(batch)

    def _remove(self, batch: Batch, item_ids: Sequence[str]) -> None:
        rows = map(batch.row_of_id, item_ids)
        self._forgetting.remove(batch, [row for row in rows if row is not None])

    def _set_applied(self, batch: Batch) -> None:
        size = history_bytes(self._archive.store.folder, self._user_id)
        batch.set_blob(_APPLIED, size.to_bytes(8, "big"))


def in_parts(names: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(names), _AT_ONCE):
        yield names[start : start + _AT_ONCE]
