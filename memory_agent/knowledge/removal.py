"""Takes away items, and what erased users left in a store of shared items: noted first, so that neither returns.

The note is the history of erasures. The next opening completes what a crash interrupted, and no backup brings it back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from functools import partial

import msgspec

from memory_agent.erasure.forgetting import Forgetting
from memory_agent.erasure.history import History, fingerprint, history_bytes, note_erasure
from memory_agent.erasure.intent_log import Intent
from memory_agent.knowledge.authors import drop_name
from memory_agent.knowledge.items import ERASED, FIGURES, NAMED, OF_ITEMS, mark_removal, place_of, versions_of
from memory_agent.recall.query import check_now
from memory_agent.storage.archive import Archive
from memory_agent.storage.batch import Batch

_FOLLOWED = "shared:followed"


class ItemForgetting(Forgetting):
    """Deletes items with all that is kept beside them."""

    def remove(self, batch: Batch, rows: Sequence[int]) -> int:
        """Delete items in a batch; return how many existed."""
        for record in filter(None, map(batch.record, rows)):
            for kind in OF_ITEMS:
                batch.set_blob(place_of(batch, kind, record.id), None)
        mark_removal(batch)
        return super().remove(batch, rows)


class Removal:
    """Takes away from one store. Durable on return."""

    def __init__(self, user_id: str, archive: Archive, forgetting: Forgetting) -> None:
        """`user_id` is that of the store itself."""
        self._user_id = user_id
        self._archive = archive
        self._forgetting = forgetting
        self._removing = threading.Lock()

    @property
    def is_behind(self) -> bool:
        """Whether the history of erasures names what was not taken away yet."""
        return history_bytes(self._archive.store.folder, self._user_id) != _followed(
            self._archive.store.blob(_FOLLOWED)
        )

    def follow(self, history: History) -> int:
        """Take away what a history of erasures names, and what belongs to no item; return how many items it named.

        What erased users named, rated and contributed goes too. A history of this store need not be its own: a restore
        has that of the store which it replaces.
        """
        gone = history.memories_in(check_now(None))
        with self._removing, self._archive.batch() as batch:
            ids = {row: record.id for row, record in batch.scan()}
            removed = [row for row, item_id in ids.items() if self._is_in(gone, item_id)]
            self._forgetting.remove(batch, removed)
            for row in removed:
                del ids[row]
            _drop_authors(batch, partial(self._is_in, gone))
            for kind in OF_ITEMS:
                of_items = {place_of(batch, kind, item_id) for item_id in ids.values()}
                for name in set(batch.blobs(kind)).difference(of_items):
                    batch.set_blob(name, None)
            mark_removal(batch)
            self._set_followed(batch)
        return len(removed)

    def remove(self, item_ids: Sequence[str], authors: Sequence[str] = ()) -> None:
        """Take away items, and what erased authors left."""
        folder, now = self._archive.store.folder, check_now(None)
        with self._removing:
            is_even = not self.is_behind
            note_erasure(folder, self._user_id, Intent(started_at=now, record_ids=(*item_ids, *authors)), now)
            with self._archive.batch() as batch:
                rows = map(batch.row_of_id, item_ids)
                self._forgetting.remove(batch, [row for row in rows if row is not None])
                if authors:
                    _drop_authors(batch, authors.__contains__)
                    for author in authors:
                        batch.set_blob(place_of(batch, ERASED, author), b"")
                    mark_removal(batch)
                if is_even:
                    self._set_followed(batch)

    def _is_in(self, gone: Collection[str], name: str) -> bool:
        return fingerprint(self._user_id, name) in gone

    def _set_followed(self, batch: Batch) -> None:
        """Note that nothing of the history is left to be taken away."""
        size = history_bytes(self._archive.store.folder, self._user_id)
        batch.set_blob(_FOLLOWED, size.to_bytes(8, "big"))


def _drop_authors(batch: Batch, is_gone: Callable[[str], bool]) -> None:
    """Take away the names and contributions of erased users."""
    for name in batch.blobs(NAMED):
        author = (batch.blob(name) or b"").decode()
        if is_gone(author):
            drop_name(batch, author)
    for name in batch.blobs(FIGURES):
        versions = versions_of(batch.blob(name))
        users = [
            (one, user)
            for one in versions.values()
            for user in {*one.contributions, *one.rating.waiting}
            if is_gone(user.decode())
        ]
        for figures, user in users:
            figures.erase(user)
        if users:
            batch.set_blob(name, msgspec.msgpack.encode(versions))


def _followed(blob: bytes | None) -> int:
    """Return how many bytes of the history of erasures have been applied."""
    return int.from_bytes(blob or b"", "big")
