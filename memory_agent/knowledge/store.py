"""The store of shared items of one deployment: the memory of no user, to which everybody may publish.

An item is a record with its text, its vector and its words, as in any memory, and what is kept of it beside: how it
was used and rated (`figures`) and its attachment. So backup, verification, export and encryption are those of a user's
store. Of who publishes, rates and uses there is a pseudonym alone, keyed with a secret of this store. Searches leave
nothing behind.

Item, figures and attachment are written in one transaction, and taken away in one. The bytes of what is gone leave the
files in upkeep. What is taken away is first noted in the history of erasures: the next opening completes what a crash
interrupted, no backup brings it back, and its id never returns, nor does the pseudonym of an erased user.

What is kept beside the record lies in blobs, whose names are readable in an encrypted store. So they are digests, keyed
with the secret.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from functools import partial
from hashlib import blake2b
from typing import Any

import msgspec

from memory_agent.embedded import embedded_text
from memory_agent.embedders.lazy_embedder import LazyEmbedder
from memory_agent.erasure.forgetting import Forgetting
from memory_agent.erasure.history import History, fingerprint, history_bytes, note_erasure, read_history
from memory_agent.erasure.intent_log import Intent
from memory_agent.errors import DeadlineExceededError, InvalidInputError
from memory_agent.knowledge.contributions import check_report
from memory_agent.knowledge.figures import Rules
from memory_agent.knowledge.items import (
    ABOUT,
    DUE,
    ERASED,
    FIGURES,
    FILE,
    NAME,
    NAMED,
    OF_ITEMS,
    PURGE,
    SECRET,
    About,
    about_of,
    due_in,
    figures_in,
    is_repeat,
    item_in,
    keep_beside,
    keep_due,
    keep_figures,
    mark_removal,
    name_in,
    place_of,
    present_figures,
    record_of,
    shown_item,
    versions_of,
)
from memory_agent.knowledge.search_quota import SearchQuota
from memory_agent.memory import Memory
from memory_agent.recall.query import Query, check_now, make_query
from memory_agent.records import MemoryFilter, MemoryRecord, RetrievedMemory
from memory_agent.settings import LearningSettings, RetentionSettings, Settings
from memory_agent.shared_asks import (
    AnyAsk,
    Caller,
    Fetch,
    ForgetUser,
    ListOwn,
    Publish,
    Rate,
    Report,
    SearchItems,
    SetName,
    SharedStore,
    Unpublish,
)
from memory_agent.shared_content import (
    PUBLIC,
    attachment_of,
    check_content,
    check_name,
    digest_of,
)
from memory_agent.shared_records import (
    FoundItem,
    GlobalRecord,
    QualityMetrics,
    SharedFile,
    UnpublishReceipt,
)
from memory_agent.storage.archive import Archive
from memory_agent.storage.batch import Batch
from memory_agent.storage.snapshot import Snapshot
from relay.rwlock import ReadWriteLock

_FOLLOWED = "shared:followed"
_PSEUDONYM_BYTES = 10
_WRITES = (Publish, Rate, SetName, Report, ForgetUser)


class _ItemForgetting(Forgetting):
    """Deletes items with all that is kept beside them."""

    def remove(self, batch: Batch, rows: Sequence[int]) -> int:
        """Delete items in a batch; return how many existed."""
        for record in filter(None, map(batch.record, rows)):
            for kind in OF_ITEMS:
                batch.set_blob(place_of(batch, kind, record.id), None)
        mark_removal(batch)
        return super().remove(batch, rows)


class Knowledge(Memory):
    """The shared items of one deployment. Satisfies `SharedStore`. Thread-safe.

    >>> with Knowledge.open("data/shared") as shared, Memory.open("data/alice", shared=shared) as alice:
    ...     item = alice.shared.confirm(alice.shared.preview("Staging needs the VPN", "Connect before a deploy"))
    ...     with Memory.open("data/bob", shared=shared) as bob:
    ...         [found.tier for found in bob.recall("what does staging need?", tiers=("local", "global")).memories]
    ['global']
    """

    _forgetting_kind = _ItemForgetting

    def __init__(
        self,
        user_id: str,
        archive: Archive,
        embedder: LazyEmbedder,
        settings: Settings,
        *,
        is_hosted: bool = False,
        shared: SharedStore | None = None,
    ) -> None:
        """As `Memory`. No rule of retention is about what users share, and nothing is learned here."""
        of_items = msgspec.structs.replace(
            settings, retention=RetentionSettings(), learning=LearningSettings(mode="off", patterns=False)
        )
        super().__init__(user_id, archive, embedder, of_items, is_hosted=is_hosted)
        self._limits = settings.shared
        self._rules = Rules(prior=settings.shared.prior)
        self._quota = SearchQuota(settings.shared.searches, settings.shared.searches_per_s)
        self._asking = threading.Lock()  # of the quota
        self._writing = ReadWriteLock()  # held alone to forget a user
        self._removing = threading.Lock()
        folder = archive.store.folder
        if history_bytes(folder, user_id) != _followed(archive.store.blob(_FOLLOWED)):
            self.follow(read_history(folder, user_id))

    def ask(self, caller: Caller, ask: AnyAsk, timeout_s: float = 10.0) -> Any:
        """Answer a caller; `timeout_s` bounds a search. Raises `InvalidInputError`, `StoreError`.

        What has waited for so long that its caller gave up is not written: its user may be erased by now. Then it
        raises `DeadlineExceededError`.
        """
        with self._call():
            if not isinstance(ask, _WRITES):
                return self._answer(caller, ask, timeout_s)
            if timeout_s <= 0.0:
                raise DeadlineExceededError("the store of shared items was reached too late")
            with self._writing.exclusive() if isinstance(ask, ForgetUser) else self._writing.shared():
                return self._answer(caller, ask, timeout_s)

    def begin_search(self, caller: Caller, ask: SearchItems, timeout_s: float) -> _Search:
        """Return a search, which is made when its result is wanted."""
        return _Search(self, caller, ask)

    def expire(self, now: datetime | None = None) -> int:
        """Release the figures that are due, and remove the bytes of what was taken away from the files; return 0.

        Part of upkeep: figures that changed as soon as somebody reports would tell who watches that somebody did.
        """
        with self._call():
            if self._archive.store.blob(DUE) is not None:
                self._release()
            marked = self._archive.store.blob(PURGE)
            if marked is not None:
                self._archive.purge()
                with self._archive.batch() as batch:
                    if batch.blob(PURGE) == marked:  # else something went during the purge
                        batch.set_blob(PURGE, None)
        return super().expire(now)

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
            self._drop_authors(batch, partial(self._is_in, gone))
            for kind in OF_ITEMS:
                of_items = {place_of(batch, kind, item_id) for item_id in ids.values()}
                for name in set(batch.blobs(kind)).difference(of_items):
                    batch.set_blob(name, None)
            mark_removal(batch)
            self._set_followed(batch)
        return len(removed)

    def _drop_authors(self, batch: Batch, is_gone: Callable[[str], bool]) -> None:
        """Take away the names and contributions of erased users."""
        for name in batch.blobs(NAMED):
            author = (batch.blob(name) or b"").decode()
            if is_gone(author):
                self._drop_name(batch, author)
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

    def _is_in(self, gone: Collection[str], name: str) -> bool:
        return fingerprint(self.user_id, name) in gone

    def _set_followed(self, batch: Batch) -> None:
        """Note that nothing of the history is left to be taken away."""
        size = history_bytes(self._archive.store.folder, self.user_id)
        batch.set_blob(_FOLLOWED, size.to_bytes(8, "big"))

    def _answer(self, caller: Caller, ask: AnyAsk, timeout_s: float) -> Any:
        match ask:
            case SearchItems():
                with self._asking:
                    self._quota.take(caller.user_id, time.monotonic())
                return self._search(caller, ask, timeout_s)
            case Publish():
                return self._publish(caller, ask)
            case Unpublish():
                return self._unpublish(caller, ask.item_id)
            case Rate():
                return self._rate(caller, ask)
            case ListOwn():
                return self._own(self._pseudonym(caller.user_id))
            case Fetch():
                return self._fetch(caller, ask.item_id)
            case SetName():
                return self._set_name(caller, ask.name)
            case Report():
                return self._count(caller, ask)
            case ForgetUser():
                return self._forget_user(self._pseudonyms(caller.user_id))

    def _publish(self, caller: Caller, ask: Publish) -> GlobalRecord:
        content, now = ask.content, check_now(None)
        check_content(content)
        if content.access_policy not in _admitted(caller):
            raise InvalidInputError("access_policy", f"{content.access_policy} is not one of the caller's key")
        file = content.attachment
        if file != attachment_of(ask.data, None if file is None else file.name):
            raise InvalidInputError("attachment", "is not the file that the item names")
        about = About(
            author=self._pseudonym(caller.user_id),
            version=content.version,
            content_type=content.content_type,
            policy=content.access_policy,
            digest=digest_of(content),
            summary_chars=len(content.summary),
            reference=content.reference,
            attachment=file,
        )
        record = record_of(content, about, now)
        words = embedded_text(record)
        vectors = self._intake.embed((words,), is_awaited=True)
        with self.erasure.admitting(record.id, now) as admit:
            others = len(self._rows_of(about.author))  # before the batch, which a rebuild of the columns waits for
            with self._archive.batch() as batch:
                known = item_in(batch, content.item_id)
                if known is not None and is_repeat(known, about):
                    return shown_item(batch, known, present_figures(batch, known))
                if self.erasure.is_forgotten(record.id, now):
                    raise InvalidInputError("item_id", "is that of an item that was unpublished: preview a new one")
                self._check_new(known, about, figures_in(batch, content.item_id), others)
                if known is None:
                    admit()
                batch.upsert(record, vectors.admitted(batch).get(words))
                keep_beside(batch, record.id, about, ask.data)
                if known is not None:
                    mark_removal(batch)  # of the former version
                return shown_item(batch, record, present_figures(batch, record))

    def _check_new(self, known: MemoryRecord | None, about: About, versions: Collection[str], others: int) -> None:
        """Raise `InvalidInputError` unless the author, who has `others` by now, may publish this."""
        if known is None:
            if others >= self._limits.items_per_author:
                raise InvalidInputError("item_id", "is one item too many of this user: unpublish others first")
            return
        former = about_of(known)
        if former.author != about.author:
            raise InvalidInputError("item_id", "is not an item of this user")
        if about.version == former.version or about.version in versions:
            raise InvalidInputError("version", f"{about.version} is published already, and never changes: name another")

    def _unpublish(self, caller: Caller, item_id: str) -> UnpublishReceipt:
        now, own = check_now(None), self._pseudonym(caller.user_id)
        record = self._archive.store.record_of_id(item_id)
        if record is None or (about_of(record).author != own and not caller.rights.is_admin):
            return UnpublishReceipt(item_id=item_id, found=False, at=now)
        self._remove([item_id])
        return UnpublishReceipt(item_id=item_id, found=True, at=now, versions=(about_of(record).version,))

    def _remove(self, item_ids: Sequence[str], authors: Sequence[str] = ()) -> None:
        """Take away items, and what erased authors left; note it first, so that neither returns."""
        folder, now = self._archive.store.folder, check_now(None)
        with self._removing:
            is_even = history_bytes(folder, self.user_id) == _followed(self._archive.store.blob(_FOLLOWED))
            note_erasure(folder, self.user_id, Intent(started_at=now, record_ids=(*item_ids, *authors)), now)
            with self._archive.batch() as batch:
                rows = map(batch.row_of_id, item_ids)
                self._forgetting.remove(batch, [row for row in rows if row is not None])
                if authors:
                    self._drop_authors(batch, authors.__contains__)
                    for author in authors:
                        batch.set_blob(place_of(batch, ERASED, author), b"")
                    mark_removal(batch)
                if is_even:
                    self._set_followed(batch)

    def _rate(self, caller: Caller, ask: Rate) -> QualityMetrics:
        record = self._visible(caller, self._archive.store.record_of_id(ask.item_id))
        if about_of(record).author == self._pseudonym(caller.user_id):
            raise InvalidInputError("item_id", "is an item of one's own")
        version = about_of(record).version if ask.version is None else ask.version
        with self._archive.batch() as batch:
            versions = figures_in(batch, record.id)
            if (figures := versions.get(version)) is None:
                raise InvalidInputError("version", f"{version} is no version of this item")
            if figures.rate(self._pseudonym(caller.user_id).encode(), ask.rating):
                keep_figures(batch, record.id, versions)
                keep_due(batch, {*due_in(batch), record.id})
            return figures.metrics()

    def _count(self, caller: Caller, report: Report) -> int:
        """Count a report; return how many of its items counted.

        It is of what recalls showed, as the caller's rights were then; a host's upkeep, which sends it, has no key.
        """
        check_report(report)
        user = self._pseudonym(caller.user_id).encode()
        counted = []
        with self._archive.batch() as batch:
            for item in report.items:
                versions = figures_in(batch, item.item_id)
                figures = versions.get(item.version)
                if figures is not None and figures.report(user, report.number, item):
                    counted.append(item.item_id)
                    keep_figures(batch, item.item_id, versions)
            keep_due(batch, {*due_in(batch), *counted})
        return len(counted)

    def _release(self) -> None:
        with self._archive.batch() as batch:
            for item_id in due_in(batch):
                versions = figures_in(batch, item_id)
                released = [figures.release(self._rules) for figures in versions.values()]
                if any(released):
                    keep_figures(batch, item_id, versions)
            keep_due(batch, ())

    def _own(self, author: str) -> list[GlobalRecord]:
        rows = self._rows_of(author)
        with self._archive.store.snapshot() as snapshot:
            found = filter(None, map(snapshot.record, rows))
            items = [shown_item(snapshot, record, present_figures(snapshot, record)) for record in found]
        return sorted(items, key=lambda item: (item.published_at, item.id), reverse=True)

    def _fetch(self, caller: Caller, item_id: str) -> SharedFile:
        with self._archive.store.snapshot() as snapshot:
            record = self._visible(caller, item_in(snapshot, item_id))
            file, data = about_of(record).attachment, snapshot.blob(place_of(snapshot, FILE, item_id))
        if file is None or data is None:
            raise InvalidInputError("item_id", "is an item without an attachment")
        return SharedFile(attachment=file, data=data)

    def _set_name(self, caller: Caller, name: str | None) -> str:
        own = self._pseudonym(caller.user_id)
        kept = None if name is None else self._masker.text(check_name(name))
        with self._archive.batch() as batch:
            named = None if kept is None else place_of(batch, NAMED, kept.casefold())
            if named is not None and batch.blob(named) not in (None, own.encode()):
                raise InvalidInputError("name", "is that of another user")
            self._drop_name(batch, own)
            if kept is not None and named is not None:
                batch.set_blob(place_of(batch, NAME, own), kept.encode())
                batch.set_blob(named, own.encode())
            return name_in(batch, own)

    def _drop_name(self, batch: Batch, author: str) -> None:
        former = batch.blob(place_of(batch, NAME, author))
        if former is not None:
            batch.set_blob(place_of(batch, NAMED, former.decode().casefold()), None)
            batch.set_blob(place_of(batch, NAME, author), None)
            mark_removal(batch)

    def _forget_user(self, authors: Sequence[str]) -> int:
        rows = [row for author in authors for row in self._rows_of(author)]
        with self._archive.store.snapshot() as snapshot:
            item_ids = [record.id for record in filter(None, map(snapshot.record, rows))]
        self._remove(item_ids, authors)
        return len(item_ids)

    def _search(self, caller: Caller, ask: SearchItems, timeout_s: float) -> list[FoundItem]:
        query = self._query(caller, ask, timeout_s)
        result = self._pipeline.answer(query, check_now(None))
        with self._archive.store.snapshot() as snapshot:
            items = [self._found(snapshot, found) for found in result.memories]
        return sorted(items, key=lambda found: found.sona_score, reverse=True)

    def _query(self, caller: Caller, ask: SearchItems, timeout_s: float) -> Query:
        admitted: dict[str, Any] = {f"{ABOUT}.policy": _admitted(caller)}
        about = admitted | ({f"{ABOUT}.content_type": ask.content_types} if ask.content_types else {})
        chosen = msgspec.structs.replace(ask.filter or MemoryFilter(), metadata=about)
        query = make_query(
            ask.query,
            ask.top_k,
            chosen,
            ask.mode,
            timeout_s * 1000,
            {
                "with_embedding": ask.with_embedding,
                "min_relevance": ask.min_relevance,
                "reference_time": ask.reference_time,
            },
            self._recall_settings,
            check_now(None),
        )
        within = MemoryFilter(metadata=admitted)
        return msgspec.structs.replace(query, is_noted=False, present_us=None, within=within)

    def _found(self, snapshot: Snapshot, found: RetrievedMemory) -> FoundItem:
        figures = present_figures(snapshot, found.record)
        return FoundItem(
            item=shown_item(snapshot, found.record, figures),
            score=found.score,
            sona_score=found.sona_score + (0.0 if figures is None else figures.boost),
            relevance=found.relevance,
            highlights=found.highlights,
            is_proven=figures is not None and figures.is_proven,
        )

    def _visible(self, caller: Caller, record: MemoryRecord | None) -> MemoryRecord:
        """Return an item that the caller may see. Raises `InvalidInputError`, the same whether it exists or not."""
        if record is None or not (
            about_of(record).policy in _admitted(caller) or about_of(record).author == self._pseudonym(caller.user_id)
        ):
            raise InvalidInputError("item_id", "is no shared item that this user may see")
        return record

    def _rows_of(self, author: str) -> list[int]:
        view = self._archive.settled_view()
        is_own = view.mask(MemoryFilter(metadata={f"{ABOUT}.author": author}))
        assert is_own is not None
        return [int(row) for row in view.rows[is_own]]

    def _pseudonym(self, user_id: str) -> str:
        """Return what this store calls a user: nobody without its secret finds the user, or the same user elsewhere."""
        return self._pseudonyms(user_id)[-1]

    def _pseudonyms(self, user_id: str) -> list[str]:
        """Return what this store called a user until each erasure of the user, and what it calls the user now.

        The history of erasures is that of this data folder; a store that was restored in another one knows by itself.
        """
        names: list[str] = []
        user, key = user_id.encode(errors="surrogatepass"), self._secret()
        with self._archive.store.snapshot() as snapshot:
            while not names or self._is_erased(snapshot, names[-1]):
                salt = len(names).to_bytes(8, "big")
                names.append(f"user-{blake2b(user, key=key, salt=salt, digest_size=_PSEUDONYM_BYTES).hexdigest()}")
        return names

    def _is_erased(self, snapshot: Snapshot, author: str) -> bool:
        is_noted = self.erasure.is_forgotten(author, check_now(None))
        return is_noted or snapshot.blob(place_of(snapshot, ERASED, author)) is not None

    def _secret(self) -> bytes:
        known = self._archive.store.blob(SECRET)
        if known is None:
            with self._archive.batch() as batch:
                known = batch.blob(SECRET)
                if known is None:
                    known = secrets.token_bytes(32)
                    batch.set_blob(SECRET, known)
        return known


class _Search:
    """A search in this process."""

    def __init__(self, knowledge: Knowledge, caller: Caller, ask: SearchItems) -> None:
        self._knowledge = knowledge
        self._caller = caller
        self._ask = ask

    def result(self, timeout_s: float) -> list[FoundItem]:
        """Search, and return the items."""
        found: list[FoundItem] = self._knowledge.ask(self._caller, self._ask, timeout_s)
        return found


def _admitted(caller: Caller) -> tuple[str, ...]:
    """Return the policies that admit a caller."""
    return (PUBLIC, *caller.rights.groups)


def _followed(blob: bytes | None) -> int:
    """Return how many bytes of the history of erasures have been applied."""
    return int.from_bytes(blob or b"", "big")
