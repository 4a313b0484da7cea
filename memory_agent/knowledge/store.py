"""One deployment's store of shared items. Every user may publish to it; it belongs to no user.

An item is a record with text, vector and words, as in any memory, plus blobs with its figures and its attachment. Users
appear only as pseudonyms. Searches store nothing. Upkeep purges removed bytes from the files. A removed item's id and
an erased user's pseudonym are never reused (`removal`).
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from typing import Any, cast

import msgspec

from memory_agent.embedders import LazyEmbedder
from memory_agent.erasure.logs import os_errors_as_store_errors, read_history
from memory_agent.errors import DeadlineExceededError, InvalidInputError, RateLimitedError
from memory_agent.knowledge import pseudonyms, stored_figures
from memory_agent.knowledge.figures import Rules, check_report
from memory_agent.knowledge.items import (
    ABOUT,
    about_of,
    faults_of_items,
    is_repeat,
    item_and_standing,
    item_in,
    offerers_of,
    place_in,
    record_of,
    shown_item,
    usage_of,
)
from memory_agent.knowledge.offers import (
    CHANGED,
    add_offerers,
    faults_of_offers,
    items_offered_by,
    offers_by,
    proposals,
    version_of_offer,
    write_offer,
    write_proposals,
)
from memory_agent.knowledge.pseudonyms import Authors
from memory_agent.knowledge.publish_log import add_published, drop_sent, faults_of_log, log_rated, pending_changes
from memory_agent.knowledge.removal import ItemForgetting, Removal, in_parts
from memory_agent.knowledge.stored_figures import ItemFigures, Voter
from memory_agent.knowledge.voters import ANYBODY, Voters
from memory_agent.memory import Memory
from memory_agent.recall.query import Query, QueryDefaults, check_now, make_query
from memory_agent.records import shared_content
from memory_agent.records import shared_requests as requests
from memory_agent.records.embedded import embedded_text
from memory_agent.records.memories import MemoryFilter, MemoryRecord, RetrievedMemory
from memory_agent.records.shared import (
    FoundItem,
    GlobalRecord,
    OfferedPattern,
    QualityMetrics,
    SharedContent,
    SharedFile,
    UnpublishReceipt,
)
from memory_agent.records.shared_requests import Caller, PendingItems, SharedRequest, SharedStore
from memory_agent.settings import LearningSettings, RetentionSettings, Settings
from memory_agent.storage.archive import Archive
from memory_agent.storage.snapshot import Snapshot
from relay.locks import ReadWriteLock

_WRITES = (requests.Publish, requests.Offer, requests.Rate, requests.SetName, requests.Report, requests.ForgetUser)


def faults_of_knowledge(snapshot: Snapshot) -> Iterator[str]:
    """Yield the inconsistencies between the values of a store. Every value must be readable."""
    yield from faults_of_items(snapshot)
    yield from faults_of_offers(snapshot)
    yield from faults_of_log(snapshot)


class Knowledge(Memory):
    """The shared items of one deployment. Satisfies `SharedStore`. Thread-safe.

    >>> with Knowledge.open("data/shared") as shared, Memory.open("data/alice", shared=shared) as alice:
    ...     item = alice.shared.confirm(alice.shared.preview("Staging needs the VPN", "Connect before a deploy"))
    ...     with Memory.open("data/bob", shared=shared) as bob:
    ...         [found.tier for found in bob.recall("what does staging need?", tiers=("local", "global")).memories]
    ['global']
    """

    _forgetting_kind = ItemForgetting

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
        """Takes the same arguments as `Memory`. Retention rules do not apply to shared items, and learning is off."""
        of_items = msgspec.structs.replace(
            settings, retention=RetentionSettings(), learning=LearningSettings(mode="off", patterns=False)
        )
        super().__init__(user_id, archive, embedder, of_items, is_hosted=is_hosted)
        self._limits = settings.shared
        self._rules = Rules(prior=settings.shared.prior)
        self._quota = SearchQuota(settings.shared.searches, settings.shared.searches_per_s)
        self._asking = threading.Lock()  # guards the quota
        self._writing = ReadWriteLock()  # exclusive while the erasure of a user is recorded
        self._authors = Authors(archive, self.erasure)
        self._voters = Voters(archive, self._authors, settings.shared)
        self.removal = Removal(user_id, archive, self._forgetting, settings.shared.offers_together)
        if self.removal.is_behind:
            self.removal.apply(read_history(archive.store.folder, user_id))

    def ask(self, caller: Caller, ask: SharedRequest[Any], timeout_s: float = 10.0) -> Any:
        """Answer a request; `timeout_s` limits the duration of a search. Raises `InvalidInputError` and `StoreError`.

        Raises `DeadlineExceededError` for a write after its deadline, because the caller's data may have been erased
        since then.
        """
        with self._call():
            if not isinstance(ask, _WRITES):
                return self._answer(caller, cast(requests.AnySharedRequest, ask), timeout_s)
            if timeout_s <= 0.0:
                raise DeadlineExceededError("the request reached the store of shared items after its deadline")
            if isinstance(ask, requests.ForgetUser):
                return self._forget_user(caller, dry_run=ask.dry_run)
            with self._writing.shared():
                return self._answer(caller, cast(requests.AnySharedRequest, ask), timeout_s)

    def begin_search(self, caller: Caller, ask: requests.SearchItems, timeout_s: float) -> PendingItems:
        return partial(self.ask, caller, ask)

    def expire(self, now: datetime | None = None) -> int:
        """Read the voters, create items from matching offers, release the figures that are due, and purge the bytes of
        removed items. Returns 0.

        If this were done after each report or offer, it would reveal the sender.
        """
        with self._call():
            with self._voters.changing:
                if (voters := self._voters.read(check_now(now))) is not None:
                    self._adopt(voters)
            if self._archive.store.blob(CHANGED) is not None:
                self._propose(check_now(now))
            if self._archive.store.blob(pseudonyms.DUE) is not None:
                self._release()
            self._purge_removed()
        return super().expire(now)

    def _purge_removed(self) -> None:
        marked = self._archive.store.blob(pseudonyms.PURGE)
        if marked is not None:
            self._archive.purge()
            with self._archive.batch() as batch:
                if batch.blob(pseudonyms.PURGE) == marked:  # false if other items were removed during the purge
                    batch.set_blob(pseudonyms.PURGE, None)

    def _answer(self, caller: Caller, ask: requests.AnySharedRequest, timeout_s: float) -> Any:
        match ask:
            case requests.SearchItems():
                with self._asking:
                    self._quota.take(caller.user_id, time.monotonic())
                return self._search(caller, ask, timeout_s)
            case requests.Publish():
                return self._publish(caller, ask)
            case requests.Offer():
                return self._offer(caller, ask.content)
            case requests.ListOffers():
                with self._archive.store.snapshot() as snapshot:
                    return offers_by(snapshot, self._authors.pseudonym(caller.user_id))
            case requests.Unpublish():
                return self._unpublish(caller, ask.item_id)
            case requests.Rate():
                return self._rate(caller, ask)
            case requests.ListOwn():
                return self._own(self._authors.pseudonym(caller.user_id))
            case requests.ShowItem():
                return self._show(caller, ask.item_id)
            case requests.Fetch():
                return self._fetch(caller, ask.item_id)
            case requests.OwnName():
                with self._archive.store.snapshot() as snapshot:
                    return pseudonyms.name_in(snapshot, self._authors.pseudonym(caller.user_id))
            case requests.SetName():
                kept = None if ask.name is None else self._masker.text(shared_content.check_name(ask.name))
                return self._authors.set_name(self._authors.pseudonym(caller.user_id), kept)
            case requests.Report():
                return self._count(caller, ask)
            case requests.ReadLog():
                return self._read_log(ask.after)

    def _publish(self, caller: Caller, ask: requests.Publish) -> GlobalRecord:
        content, now = ask.content, check_now(None)
        shared_content.check_content(content)
        shared_content.check_admitted(content.access_policy, caller.rights.policies)
        file = content.attachment
        if file != shared_content.attachment_of(ask.data, None if file is None else file.name):
            raise InvalidInputError("attachment", "is not the file that the item names")
        record = record_of(content, self._authors.pseudonym(caller.user_id), now)
        words = embedded_text(record)
        vectors = self._vectors.embed((words,), is_awaited=True)
        with self.erasure.admitting(record.id, now) as admit, self._archive.batch() as batch:
            known = item_in(batch, content.item_id)
            if known is not None and is_repeat(known, record):
                return shown_item(batch, known)
            if self.erasure.is_forgotten(record.id, now):
                raise InvalidInputError("item_id", "is the id of an unpublished item; preview a new one")
            self._check_new(batch, known, record)
            if known is None:
                admit()
            batch.upsert(record, vectors.admitted(batch).get(words))
            add_published(batch, record, ask.data, known)
            if known is not None:
                pseudonyms.mark_removal(batch)  # of the previous version
            return shown_item(batch, record)

    def _check_new(self, snapshot: Snapshot, known: MemoryRecord | None, record: MemoryRecord) -> None:
        """Raise `InvalidInputError` unless the author may publish this record in place of `known`."""
        about = about_of(record)
        used = usage_of(snapshot, about.author)
        if known is not None:
            former = about_of(known)
            if former.author != about.author:
                raise InvalidInputError("item_id", "is not an item of this user")
            if about.version in stored_figures.standings_at(snapshot, place_in(snapshot, record.id)):
                raise InvalidInputError(
                    "version", f"{about.version} is already published and cannot change; choose a different version"
                )
            used = used.with_item(known, -1)
        most_items, most_bytes = self._limits.items_per_author, self._limits.bytes_per_author
        if used.items >= most_items:
            reason = f"this user has {used.items:,} of {most_items:,} items (shared.items_per_author)"
            raise InvalidInputError("preview", f"{reason}; unpublish an item first")
        size = used.with_item(record).size_bytes - used.size_bytes
        if used.size_bytes + size > most_bytes:
            reason = f"has {size:,} bytes, and this user's other items use {used.size_bytes:,} of {most_bytes:,} bytes"
            raise InvalidInputError("preview", f"{reason} (shared.bytes_per_author); unpublish an item first")

    def _offer(self, caller: Caller, content: SharedContent) -> OfferedPattern:
        now, own = check_now(None), self._authors.pseudonym(caller.user_id)
        shared_content.check_content(content)
        shared_content.check_admitted(content.access_policy, caller.rights.policies)
        shared_content.check_offer(content)
        with self._archive.batch() as batch:
            if self.erasure.is_forgotten(content.item_id, now):
                raise InvalidInputError("item_id", "is the id of a withdrawn offer; preview a new one")
            return write_offer(batch, own, content, now)

    def _propose(self, now: datetime) -> None:
        with self._archive.store.snapshot() as snapshot:
            seen, found = (
                snapshot.blob(CHANGED),
                proposals(snapshot, self._limits.offers_together, now, self._voters.of),
            )
        vectors = self._vectors.embed(embedded_text(one.record) for one in found)
        with self.removal.paused(), self._archive.batch() as batch:
            admitted = vectors.admitted(batch)
            write_proposals(batch, [(one, admitted.get(embedded_text(one.record))) for one in found])
            add_offerers(batch)
            if batch.blob(CHANGED) == seen:  # false if more has been offered since
                batch.set_blob(CHANGED, None)

    def _unpublish(self, caller: Caller, item_id: str) -> UnpublishReceipt:
        now, own = check_now(None), self._authors.pseudonym(caller.user_id)
        with self._archive.store.snapshot() as snapshot:
            record, offered = item_in(snapshot, item_id), version_of_offer(snapshot, own, item_id)
            if record is not None and about_of(record).author != own and not caller.rights.is_admin:
                record = None
            offers = {} if record is None else offerers_of(snapshot, item_id)
        versions = [one for one in (offered, None if record is None else about_of(record).version) if one is not None]
        if versions:
            ids = [item_id, *offers.values()]  # includes its offers, because upkeep would otherwise recreate the item
            self.removal.note(ids, offerers={own, *offers})
            self.removal.carry_out([item_id])
        return UnpublishReceipt(item_id=item_id, found=bool(versions), at=now, versions=tuple(dict.fromkeys(versions)))

    def _rate(self, caller: Caller, ask: requests.Rate) -> QualityMetrics:
        record = self._visible(caller, self._archive.store.record_of_id(ask.item_id))
        own = self._authors.pseudonym(caller.user_id)
        if about_of(record).author == own:
            raise InvalidInputError("item_id", "is one of the user's own items")
        version = about_of(record).version if ask.version is None else ask.version
        with self._archive.batch() as batch:
            if own in offerers_of(batch, record.id):
                raise InvalidInputError("item_id", "is based on the user's own offer")
            figures = ItemFigures(batch, record.id, self._voters.of)
            if version not in figures.standings:
                raise InvalidInputError("version", f"{version} is not a version of this item")
            if figures.rate(own.encode(), version, ask.rating):
                stored_figures.write_due(batch, {*stored_figures.due_in(batch), record.id})
            return figures.standings[version].metrics()

    def _count(self, caller: Caller, report: requests.Report) -> int:
        """Count a report; return the number of items that were counted. The recalls that showed these items have
        already checked that the user may see them.
        """
        check_report(report)
        own = self._authors.pseudonym(caller.user_id)
        counted = []
        with self._archive.batch() as batch:
            for item in report.items:
                if own in offerers_of(batch, item.item_id):
                    continue  # an author's runs do not count
                if ItemFigures(batch, item.item_id, self._voters.of).report(own.encode(), report.number, item):
                    counted.append(item.item_id)
            stored_figures.write_due(batch, {*stored_figures.due_in(batch), *counted})
        return len(counted)

    def _release(self) -> None:
        with self._archive.batch() as batch:
            for item_id in stored_figures.due_in(batch):
                record = item_in(batch, item_id)
                if record is None:
                    continue  # removed since
                figures = ItemFigures(batch, item_id, self._voters.of)
                present = figures.standings[about_of(record).version]
                former = present.rating.released
                figures.release(self._rules, [user.encode() for user in offerers_of(batch, item_id)])
                if present.rating.released not in (None, former):
                    log_rated(batch, record, check_now(None))
            stored_figures.write_due(batch, ())

    def _adopt(self, voters: dict[bytes, Voter]) -> None:
        """Assign all contributions to the current voters. If this fails, the next upkeep retries it."""
        with self._writing.exclusive():  # ensures that no report for the former voters is in progress
            changed = self._voters.adopt(voters)
        with self._archive.store.snapshot() as snapshot:
            users = changed | (stored_figures.users_in(snapshot) if ANYBODY in changed else set())
            found = _items_of(snapshot, users) if users else {}
        for some in in_parts(list(found)):
            with self._archive.batch() as batch:
                for item_id in some:
                    ItemFigures(batch, item_id, self._voters.of).assign(found[item_id])
                stored_figures.write_due(batch, {*stored_figures.due_in(batch), *some})
        if users:
            with self._archive.batch() as batch:
                batch.set_blob(CHANGED, secrets.token_bytes(8))
        self._voters.store()

    def _read_log(self, after: int) -> requests.PendingChanges:
        if after:
            with self._archive.batch() as batch:
                drop_sent(batch, after)
        with self._archive.store.snapshot() as snapshot:
            return pending_changes(snapshot)

    def _own(self, author: str) -> list[GlobalRecord]:
        rows = self._rows_of(author)
        with self._archive.store.snapshot() as snapshot:
            found = filter(None, map(snapshot.record, rows))
            items = [shown_item(snapshot, record) for record in found]
        return sorted(items, key=lambda item: (item.published_at, item.id), reverse=True)

    def _show(self, caller: Caller, item_id: str) -> GlobalRecord:
        with self._archive.store.snapshot() as snapshot:
            record = self._visible(caller, item_in(snapshot, item_id))
            return shown_item(snapshot, record)

    def _fetch(self, caller: Caller, item_id: str) -> SharedFile:
        with self._archive.store.snapshot() as snapshot:
            record = self._visible(caller, item_in(snapshot, item_id))
            file, data = (
                about_of(record).attachment,
                snapshot.blob(pseudonyms.place_of(snapshot, pseudonyms.FILE, item_id)),
            )
        if file is None or data is None:
            raise InvalidInputError("item_id", "has no attachment")
        return SharedFile(attachment=file, data=data)

    def _forget_user(self, caller: Caller, *, dry_run: bool) -> requests.SharedPart:
        part = self._part_of(caller)  # before taking the lock, because this reads all figures
        if dry_run:
            return part
        with self._writing.exclusive():  # no write under these pseudonyms is in progress or will follow
            authors = self._authors.pseudonyms(caller.user_id)
            rows = [row for author in authors for row in self._rows_of(author)]
            with self._archive.store.snapshot() as snapshot:
                item_ids = [record.id for record in filter(None, map(snapshot.record, rows))]
            self.removal.note(item_ids, authors, offerers=authors)
        self.removal.carry_out(item_ids, authors)
        self._voters.forget([author.encode() for author in authors])
        with os_errors_as_store_errors(self._archive.store.folder):
            self._purge_removed()
        return msgspec.structs.replace(part, items=len(item_ids))

    def _part_of(self, caller: Caller) -> requests.SharedPart:
        authors = self._authors.pseudonyms(caller.user_id)
        with self._archive.store.snapshot() as snapshot:
            return requests.SharedPart(
                items=sum(len(self._rows_of(author)) for author in authors),
                offers=sum(len(offers_by(snapshot, author)) for author in authors),
                ratings=stored_figures.ratings_by(snapshot, [author.encode() for author in authors]),
            )

    def _search(self, caller: Caller, ask: requests.SearchItems, timeout_s: float) -> list[FoundItem]:
        query = self._query(caller, ask, timeout_s)
        result = self._pipeline.answer(query, check_now(None))
        admitted = caller.rights.policies
        with self._archive.store.snapshot() as snapshot:
            found = [self._found(snapshot, memory) for memory in result.memories]
        items = [one for one in found if one.item.access_policy in admitted]  # a new version may have another policy
        return sorted(items, key=lambda found: found.sona_score, reverse=True)

    def _query(self, caller: Caller, ask: requests.SearchItems, timeout_s: float) -> Query:
        chosen = None
        if ask.filter is not None or ask.content_types:
            about: dict[str, Any] = {f"{ABOUT}.content_type": ask.content_types} if ask.content_types else {}
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
            QueryDefaults(self._recall_settings, check_now(None)),
        )
        within = MemoryFilter(metadata={f"{ABOUT}.policy": caller.rights.policies})
        return msgspec.structs.replace(
            query,
            is_noted=False,
            is_explained=False,
            is_marked=ask.is_marked,
            present_us=None,
            within=within,
            without=self._own_items(caller) if ask.of_others else None,
            embedded=ask.vector,
        )

    def _own_items(self, caller: Caller) -> MemoryFilter | None:
        """Return a filter for the items that the caller published or offered, or None if there are none."""
        with self._archive.store.snapshot() as snapshot:
            own = self._authors.pseudonyms_in(snapshot, caller.user_id)[-1]
            authors = [about_of(record).author for record in items_offered_by(snapshot, own).values()]
            if usage_of(snapshot, own).items:
                authors.append(own)
        return MemoryFilter(metadata={f"{ABOUT}.author": tuple(authors)}) if authors else None

    def _found(self, snapshot: Snapshot, found: RetrievedMemory) -> FoundItem:
        item, standing = item_and_standing(snapshot, found.record)
        boost = 0.0 if standing is None else standing.boost
        return FoundItem(
            item=item,
            score=found.score,
            sona_score=found.sona_score + boost,
            relevance=found.relevance,
            highlights=found.highlights,
            is_proven=standing is not None and standing.is_proven,
            is_worse=standing is not None and standing.is_worse(self._rules),
            passage_at=found.passage_at,
            boost=boost,
        )

    def _visible(self, caller: Caller, record: MemoryRecord | None) -> MemoryRecord:
        """Return a visible item. Raises the same `InvalidInputError` for hidden and missing items."""
        if record is not None:
            about = about_of(record)
            if about.policy in caller.rights.policies or about.author == self._authors.pseudonym(caller.user_id):
                return record
        raise InvalidInputError("item_id", "is not a shared item that this user may see")

    def _rows_of(self, author: str) -> list[int]:
        view = self._archive.settled_view()
        is_own = view.mask(MemoryFilter(metadata={f"{ABOUT}.author": author}))
        assert is_own is not None
        return [int(row) for row in view.rows[is_own]]


def _items_of(snapshot: Snapshot, users: set[bytes]) -> dict[str, list[bytes]]:
    """Return the items that any of the users published, offered or contributed to, with each item's contributors."""
    places, found = stored_figures.places_with(snapshot, users), {}
    for _, record in snapshot.scan():
        contributors = places.get(place_in(snapshot, record.id), [])
        authors = (about_of(record).author, *offerers_of(snapshot, record.id))
        if contributors or any(author.encode() in users for author in authors):
            found[record.id] = contributors
    return found


_MOST_USERS = 10_000


class SearchQuota:
    """A token bucket for each of the most recent users. Not thread-safe."""

    def __init__(self, size: int, per_s: float) -> None:
        """Allow each user a burst of `size` searches, then `per_s` per second."""
        self._size = float(size)
        self._per_s = per_s
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, user: str, now_s: float) -> None:
        """Take a token from a user's bucket; `now_s` is read from the monotonic clock. Raises `RateLimitedError` if it
        is empty.

        >>> quota = SearchQuota(1, per_s=2.0)
        >>> quota.take("user-1", now_s=0.0)
        >>> quota.take("user-1", now_s=0.1)
        Traceback (most recent call last):
        memory_agent.errors.RateLimitedError: too many searches of shared items; retry in 400 ms
        """
        tokens, at_s = self._buckets.pop(user, (self._size, now_s))
        tokens = min(self._size, tokens + max(now_s - at_s, 0.0) * self._per_s)
        self._buckets[user] = (tokens - 1.0 if tokens >= 1.0 else tokens, now_s)
        if len(self._buckets) > _MOST_USERS:
            self._buckets.popitem(last=False)
        if tokens < 1.0:
            raise RateLimitedError(round((1.0 - tokens) / self._per_s * 1000))
