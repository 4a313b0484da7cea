"""`Memory.shared`: publishes and offers items, and reads items of other users.

A user's content leaves the memory only through `confirm` and `offer`, which send a preview exactly as its author saw
it. The items are in a separate store (`knowledge`), accessed through `SharedStore`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from hashlib import sha256
from typing import Any

import msgspec
from ulid import ULID

from memory_agent.errors import InvalidInputError, MemoryAgentError, UnavailableError
from memory_agent.learning import MOST_AHEAD_US, Outbox, filled, outbox_blob, outbox_in, words_without_figures
from memory_agent.memory.mentions import mentions
from memory_agent.recall.query import Query, check_now
from memory_agent.records import shared_content
from memory_agent.records import shared_requests as requests
from memory_agent.records.arguments import (
    check_choice,
    check_not_blank,
    check_share,
    check_text,
    check_whole,
    converted,
)
from memory_agent.records.memories import MemoryFilter, MemoryRecord, microseconds
from memory_agent.records.shared import (
    CONTENT_TYPES,
    ContentType,
    FormerVersion,
    FoundItem,
    GlobalRecord,
    OfferedPattern,
    PublishPreview,
    QualityMetrics,
    SharedContent,
    SharedFile,
    UnpublishReceipt,
)
from memory_agent.records.shared_requests import Answer, Caller, PendingItems, SentVector, SharedRequest, SharedStore
from memory_agent.storage.archive import Archive, InUse
from relay import Masker, masked_kinds
from relay.access import PUBLIC
from relay.log import log

MOST_FOUND = 100
_SPARE_ITEMS = 10
"""Number of extra items to request, from which new items are drawn."""
_MOST_TITLE_CHARS = 80  # of a title taken from a memory's first line
_TIMEOUT_S = 8.0  # below the clients' timeout
_NO_STORE = "this memory was opened without a store of shared items (Memory.open(..., shared=...))"
_OF_A_USER = ("session_id", "run_id", "channel_id", "agent_id", "type", "phase", "metadata", "sources", "provenance")


class Shared:
    """The shared items of this user and of others."""

    def __init__(
        self, caller: Caller, store: SharedStore | None, archive: Archive, masker: Masker, in_use: InUse
    ) -> None:
        self.caller = caller
        """The caller of all requests."""
        self._store = store
        self._archive = archive
        self._masker = masker
        self._in_use = in_use

    def preview(
        self,
        title: str | None = None,
        summary: str | None = None,
        *,
        content_type: ContentType | None = None,
        body: str | None = None,
        memory_id: str | None = None,
        reference: str | None = None,
        version: str = "1",
        tags: Sequence[str] = (),
        access_policy: str | None = None,
        item_id: str | None = None,
        attachment: bytes | None = None,
        attachment_name: str | None = None,
        offer: bool = False,
        now: datetime | None = None,
    ) -> PublishPreview:
        """Return exactly what `confirm` would publish. Sends and stores nothing.

        `summary` is the text that is searched and shown, `body` is an optional full text, and `reference` is the
        location of the original. `memory_id` names a memory of this user; if title, summary, tags or type is not
        passed, it is taken from this memory. Secrets are masked; names, accounts, paths, addresses, and phone, card and
        account numbers are listed in `mentions`. `access_policy` is `public` (every user of this deployment, the
        default), or an `org:NAME` or `tier:NAME` of the caller's key. To publish the next `version` of one of this
        user's items, pass its `item_id`. The new version inherits nothing, so `access_policy` is required; `replaces`
        is the previous version. With `offer`, the preview is for the method `offer` instead of `confirm`. The item is
        then a pattern; if it was learned from runs, it contains their steps without counts and dates. Raises
        `InvalidInputError` (with the argument's name), and also `UnavailableError` if `item_id` is passed.

        >>> preview = memory.shared.preview("Staging needs the VPN", "Connect before a deploy", tags=["deploy"])
        >>> preview.content.title, preview.content.access_policy, preview.mentions
        ('Staging needs the VPN', 'public', ())
        """
        with self._in_use():
            record = None if memory_id is None else self._memory(memory_id)
        content = SharedContent(
            item_id=str(ULID()) if item_id is None else item_id,
            content_type=_type_of("pattern" if offer and content_type is None else content_type, record),
            title=_filled("title", title, "" if record is None else _title_of(record)),
            summary=_filled("summary", summary, _default_summary(record, offer=offer)),
            version=version,
            access_policy=PUBLIC if access_policy is None else access_policy,
            tags=_tags(tags) or (() if record is None else record.tags),
            body=body,
            reference=reference,
            attachment=shared_content.attachment_of(attachment, attachment_name),
        )
        content = self._masked(content)
        if access_policy is None and item_id is not None:
            raise InvalidInputError("access_policy", "is required for the next version of an item")
        shared_content.check_admitted(content.access_policy, self.caller.rights.policies)
        if offer:
            shared_content.check_offer(content)
        former = None if item_id is None else self._former(item_id, is_offer=offer)
        texts = shared_content.texts_of(content)
        return PublishPreview(
            content=content,
            digest=shared_content.preview_digest(content, self.caller.user_id),
            made_at=check_now(now),
            masked=dict(masked_kinds(*texts.values())),
            mentions=mentions(texts, (self.caller.user_id,)),
            memory_id=None if record is None else record.id,
            memory_state=None if record is None else _state_of(record),
            is_offer=offer,
            replaces=former,
            user_id=self.caller.user_id,
        )

    def confirm(self, preview: PublishPreview | Mapping[str, Any], attachment: bytes | None = None) -> GlobalRecord:
        """Publish exactly the content of a preview; return the item. Durable on return. Idempotent.

        An existing version is never replaced. Raises `UnavailableError`, and `InvalidInputError`, for example if the
        preview is another user's, or if its content or memory has changed.

        >>> preview = memory.shared.preview("Staging needs the VPN", "Connect to it before a deploy")
        >>> item = memory.shared.confirm(preview)
        >>> item.version, [own.title for own in memory.shared.published()]
        ('1', ['Staging needs the VPN'])
        """
        shown = self._confirmed(preview, is_offer=False)
        expected = shown.content.attachment
        if expected != shared_content.attachment_of(
            attachment, None if expected is None or attachment is None else expected.name
        ):
            raise InvalidInputError("attachment", "must be the previewed file, or omitted if the preview has no file")
        return self._ask(requests.Publish(content=shown.content, data=attachment))

    def offer(self, preview: PublishPreview | Mapping[str, Any]) -> OfferedPattern:
        """Offer the pattern of a preview (`preview(..., offer=True)`). Durable on return.

        Nobody else sees the offer, and no search finds it, until `shared.offers_together` users (5) offer the same
        words for the same readers. The words may differ in whitespace, in the case of each line's first letter, and in
        each line's final punctuation. Upkeep then creates an item from the offers, with the author "5 users" and no
        names. The item is removed if too few offers are left; `unpublish` withdraws an offer. Raises
        `InvalidInputError` as `confirm` does, and `UnavailableError`.

        >>> preview = memory.shared.preview("Flaky deploys", "Retry once, then look at the proxy", offer=True)
        >>> memory.shared.offer(preview).proposed_as, memory.shared.search("flaky deploys")
        (None, [])
        """
        shown = self._confirmed(preview, is_offer=True)
        return self._ask(requests.Offer(content=shown.content))

    def offered(self) -> list[OfferedPattern]:
        """Return this user's offers, newest first, each with the id of the item created from it, if any.

        >>> preview = memory.shared.preview("Flaky deploys", "Retry once, then look at the proxy", offer=True)
        >>> offer = memory.shared.offer(preview)
        >>> memory.shared.offered() == [offer]
        True
        """
        return self._ask(requests.ListOffers())

    def unpublish(self, item_id: str) -> UnpublishReceipt:
        """Remove one of this user's items together with its figures, or withdraw an offer; return a receipt.

        After this returns, no answer contains the item.

        >>> item = memory.shared.confirm(memory.shared.preview("Staging needs the VPN", "Connect before a deploy"))
        >>> memory.shared.unpublish(item.id).found, memory.shared.unpublish(item.id).found
        (True, False)
        """
        return self._ask(requests.Unpublish(item_id=shared_content.check_item_id(item_id)))

    def rate(self, item_id: str, rating: float | None, version: str | None = None) -> QualityMetrics:
        """Rate a version of an item from 0 to 1, replacing this user's earlier rating; None removes it.

        Returns the released figures, which change after five more ratings. Raises `InvalidInputError`, including for
        the user's own items and for items that this user cannot see.

        >>> item = memory.shared.confirm(memory.shared.preview("Staging needs the VPN", "Connect before a deploy"))
        >>> memory.shared.rate(item.id, 1.0)
        Traceback (most recent call last):
        relay.errors.InvalidInputError: item_id: is one of the user's own items
        """
        checked = None if rating is None else check_share("rating", rating)
        named = None if version is None else shared_content.check_version(version)
        return self._ask(requests.Rate(item_id=shared_content.check_item_id(item_id), rating=checked, version=named))

    def published(self) -> list[GlobalRecord]:
        """Return this user's items with their released figures, newest first.

        >>> item = memory.shared.confirm(memory.shared.preview("Staging needs the VPN", "Connect before a deploy"))
        >>> [(own.id == item.id, own.quality_metrics.distinct_users) for own in memory.shared.published()]
        [(True, 0)]
        """
        return self._ask(requests.ListOwn())

    def search(
        self,
        query: str,
        top_k: int = 5,
        content_types: Sequence[ContentType] = (),
        tags: Sequence[str] = (),
        min_relevance: float | None = None,
    ) -> list[FoundItem]:
        """Return the shared items that match `query` and that this user may see, best first.

        The query is not stored. Raises `InvalidInputError` and `UnavailableError`.

        >>> item = memory.shared.confirm(memory.shared.preview("Staging needs the VPN", "Connect before a deploy"))
        >>> [found.item.title for found in memory.shared.search("what does staging need?")]
        ['Staging needs the VPN']
        """
        check_not_blank("query", query)
        types = tuple(
            check_choice(f"content_types[{place}]", one, CONTENT_TYPES) for place, one in enumerate(content_types)
        )
        ask = requests.SearchItems(
            query=query,
            top_k=check_whole("top_k", top_k, MOST_FOUND),
            content_types=types,
            filter=MemoryFilter(tags=_tags(tags)) if tags else None,
            min_relevance=min_relevance,
        )
        return self._ask(ask)

    def item(self, item_id: str) -> GlobalRecord:
        """Return an item that this user may see, with its released figures. Raises `InvalidInputError`.

        Unknown items and items whose policy excludes the user raise the same error.

        >>> item = memory.shared.confirm(memory.shared.preview("Staging needs the VPN", "Connect before a deploy"))
        >>> memory.shared.item(item.id).summary
        'Connect before a deploy'
        """
        return self._ask(requests.ShowItem(item_id=shared_content.check_item_id(item_id)))

    def attachment(self, item_id: str) -> SharedFile:
        """Return the file of an item that this user may see. Raises `InvalidInputError` if there is none.

        >>> preview = memory.shared.preview("Our linter", "Rules for SQL", attachment=b"[rules]")
        >>> item = memory.shared.confirm(preview, b"[rules]")
        >>> memory.shared.attachment(item.id).data
        b'[rules]'
        """
        return self._ask(requests.Fetch(item_id=shared_content.check_item_id(item_id)))

    def name(self) -> str | None:
        """Return the author name that others see on this user's items: the name with its suffix, or the pseudonym.

        Returns None if the deployment has no store of shared items yet.

        >>> memory.shared.name() == memory.shared.set_name(None)
        True
        """
        return self._ask(requests.OwnName())

    def set_name(self, name: str | None) -> str:
        """Set the name that others see on this user's items, and return it; None restores the pseudonym.

        Part of the pseudonym is appended, so that no two users have the same name. Raises `InvalidInputError`.

        >>> memory.shared.set_name("Ann of the platform team").partition(" #")[0]
        'Ann of the platform team'
        """
        return self._ask(requests.SetName(name=None if name is None else shared_content.check_name(name)))

    def report(self, until: datetime) -> int:
        """Report how runs used shared items up to `until`, as counts and sums. Part of a host's upkeep.

        Returns the number of acknowledged reports. Raises `UnavailableError` and the errors of the store. The next call
        sends the other reports again.

        >>> memory.shared.report(datetime.now(UTC))
        0
        """
        if self._store is None:
            return 0
        with self._in_use():
            with self._archive.store.snapshot() as snapshot:
                known = outbox_in(snapshot)
                outbox = filled(snapshot, known, microseconds(until, "until"))
            if outbox.reports or abs(outbox.through_us - known.through_us) > MOST_AHEAD_US:
                self._keep(outbox)
            for place, report in enumerate(outbox.reports, 1):
                try:
                    self._ask(report)
                except InvalidInputError as error:  # a retry would fail again
                    log.warning("shared.report_refused", field=error.field)
                self._keep(msgspec.structs.replace(outbox, reports=outbox.reports[place:]))
            return len(outbox.reports)

    def of_caller(self, caller: Caller) -> Shared:
        return Shared(caller, self._store, self._archive, self._masker, self._in_use)

    def begin_search(self, asked: Query, vector: SentVector | None = None) -> PendingItems | None:
        """Begin a search of shared items for a recall; return None if its filter excludes them."""
        if _excludes_items(asked.filter):
            return None
        ask = requests.SearchItems(
            query=asked.text,
            top_k=asked.top_k + _SPARE_ITEMS,
            filter=_filter_of_items(asked.filter),
            mode=asked.mode,
            min_relevance=asked.min_relevance,
            reference_time=asked.reference_time,
            with_embedding=asked.with_embedding,
            of_others=True,  # the caller's memory already contains the caller's own items
            is_marked=False,
            vector=vector,
        )
        try:
            return self._opened().begin_search(self.caller, ask, asked.deadline_ms / 1000)
        except MemoryAgentError as error:
            return partial(_fail, error)

    def _keep(self, outbox: Outbox) -> None:
        with self._archive.batch() as batch:
            batch.set_blob(*outbox_blob(outbox))

    def _ask(self, ask: SharedRequest[Answer]) -> Answer:
        return self._opened().ask(self.caller, ask, _TIMEOUT_S)

    def _opened(self) -> SharedStore:
        if self._store is None:
            raise UnavailableError(_NO_STORE)
        return self._store

    def _former(self, item_id: str, *, is_offer: bool) -> FormerVersion:
        """Return the current version of a user's item."""
        if is_offer:
            raise InvalidInputError("item_id", "is only for published items; an offer has no versions")
        found = next((item for item in self.published() if item.id == item_id), None)
        if found is None:
            raise InvalidInputError("item_id", "is not an item of this user")
        return FormerVersion(found.version, found.title)

    def _memory(self, memory_id: str) -> MemoryRecord:
        check_text("memory_id", memory_id)
        record = self._archive.store.record_of_id(memory_id) if memory_id else None
        if record is None:
            raise InvalidInputError("memory_id", "is not a memory of this user")
        return record

    def _confirmed(self, preview: PublishPreview | Mapping[str, Any], *, is_offer: bool) -> PublishPreview:
        """Return the preview after checking that it is unchanged and still valid."""
        shown = preview if isinstance(preview, PublishPreview) else converted("preview", preview, PublishPreview)
        if shown.is_offer != is_offer:
            raise InvalidInputError(
                "preview", f"is for {'an offer' if shown.is_offer else 'publishing'}; preview it again"
            )
        user = self.caller.user_id
        if shown.user_id not in ("", user):  # a client of an earlier version drops this field, but not the digest
            raise InvalidInputError("preview", f"was made for the user {shown.user_id!r}; preview it again as {user!r}")
        if shared_content.preview_digest(shown.content, user) != shown.digest:
            raise InvalidInputError("preview", "differs from what was previewed; preview it again")
        if self._masked(shown.content) != shown.content:
            raise InvalidInputError("preview", "contains secrets that are now masked; preview it again")
        shared_content.check_admitted(shown.content.access_policy, self.caller.rights.policies)
        if shown.memory_id is not None:
            with self._in_use():
                record = self._archive.store.record_of_id(shown.memory_id)
            if record is None or _state_of(record) != shown.memory_state:
                raise InvalidInputError("preview", "is outdated, because its memory has changed; preview it again")
        return shown

    def _masked(self, content: SharedContent) -> SharedContent:
        shared_content.check_content(content)
        mask = self._masker.text
        file = content.attachment
        return msgspec.structs.replace(
            content,
            title=mask(content.title),
            summary=mask(content.summary),
            body=None if content.body is None else mask(content.body),
            reference=None if content.reference is None else mask(content.reference),
            tags=tuple(map(mask, content.tags)),
            attachment=None if file is None else msgspec.structs.replace(file, name=mask(file.name)),
        )


def _fail(error: MemoryAgentError, timeout_s: float) -> list[FoundItem]:
    raise error


def _excludes_items(filter: MemoryFilter | None) -> bool:
    """Whether a filter excludes every shared item: others' items have no session, run, private label or quality."""
    return filter is not None and (any(getattr(filter, name) for name in _OF_A_USER) or filter.min_quality is not None)


def _filter_of_items(filter: MemoryFilter | None) -> MemoryFilter | None:
    """Return the part of a filter that applies to items. Private exclusions are not sent to the store."""
    if filter is None:
        return None
    return MemoryFilter(
        kinds=filter.kinds, since=filter.since, until=filter.until, tags=filter.tags, min_score=filter.min_score
    )


def _type_of(stated: ContentType | None, record: MemoryRecord | None) -> ContentType:
    if stated is not None:
        return check_choice("content_type", stated, CONTENT_TYPES)
    return "pattern" if record is not None and record.kind in ("pattern", "strategy") else "document"


def _filled(field: str, stated: str | None, default: str) -> str:
    if stated is None and not default:
        raise InvalidInputError(field, "is missing")
    return default if stated is None else stated


def _default_summary(record: MemoryRecord | None, *, offer: bool) -> str:
    if record is None:
        return ""
    return words_without_figures(record) if offer else record.text


def _title_of(record: MemoryRecord) -> str:
    line = record.title or record.text.strip().partition("\n")[0]
    return line if len(line) <= _MOST_TITLE_CHARS else line[: _MOST_TITLE_CHARS - 1].rstrip() + "…"


def _state_of(record: MemoryRecord) -> str:
    content = (record.id, record.text, record.title, record.tags, record.kind)
    return sha256(msgspec.msgpack.encode(content)).hexdigest()


def _tags(tags: object) -> tuple[str, ...]:
    if isinstance(tags, str | bytes) or not isinstance(tags, Sequence) or not all(isinstance(tag, str) for tag in tags):
        raise InvalidInputError("tags", "must be a list of strings")
    return tuple(dict.fromkeys(tags))
