"""Parameters of the verbs on shared items. The rules of `params` apply."""

from __future__ import annotations

from typing import Annotated, Any

from memory_agent.records.memories import means
from memory_agent.records.shared import ContentType, PublishPreview
from memory_agent.records.shared_requests import AnySharedRequest, Caller
from memory_agent.verbs.params import MinRelevance, OptionHelp, Params


class PreviewParams(Params, frozen=True, kw_only=True):
    title: Annotated[
        str | None, OptionHelp("The title. Default: the memory's title, or the document's first heading.")
    ] = None
    summary: Annotated[
        str | None,
        OptionHelp(
            "The text that is searched and shown. Default: the memory's text, or the document's first paragraph."
        ),
    ] = None
    content_type: Annotated[ContentType | None, OptionHelp("The type of content. Default: document.")] = None
    body: str | None = None
    memory_id: Annotated[
        str | None, OptionHelp("Share this memory. Its title, summary, tags and type are used unless you pass others.")
    ] = None
    reference: Annotated[
        str | None, OptionHelp("The location of the original (a path or an address); other users can see it.")
    ] = None
    version: Annotated[str, OptionHelp("The name of this version.")] = "1"
    tags: Annotated[tuple[str, ...], OptionHelp("A tag for finding the item.")] = ()
    access_policy: Annotated[
        str | None,
        OptionHelp(
            "Who can find the item: public (all users of this deployment, the default), org:NAME or tier:NAME. Your "
            "key must include this organisation or tier."
        ),
    ] = None
    item_id: Annotated[str | None, OptionHelp("Publish a new version of your item with this id.")] = None
    attachment: bytes | None = None
    attachment_name: str | None = None
    offer: Annotated[
        bool, OptionHelp("Preview a pattern to offer with `shared offer`, rather than an item to publish.")
    ] = False


class ConfirmParams(Params, frozen=True, kw_only=True):
    preview: PublishPreview
    attachment: bytes | None = None


class OfferParams(Params, frozen=True, kw_only=True):
    preview: PublishPreview


class ItemParams(Params, frozen=True, kw_only=True):
    item_id: str


class RateParams(Params, frozen=True, kw_only=True):
    item_id: str
    rating: float | None
    version: Annotated[str | None, OptionHelp("The version to rate. Default: the current version.")] = None


class SearchSharedParams(Params, frozen=True, kw_only=True):
    query: str
    top_k: Annotated[int, means("Maximum number of items.", 1)] = 5
    content_types: Annotated[tuple[ContentType, ...], means("Of this type.")] = ()
    tags: Annotated[tuple[str, ...], means("With this tag; of several tags, at least one must match.")] = ()
    min_relevance: MinRelevance = None


class NameParams(Params, frozen=True, kw_only=True):
    name: str | None


class AskSharedParams(Params, frozen=True, kw_only=True):
    caller: Caller
    ask: AnySharedRequest

    def arguments(self, remaining_ms: float, usual_ms: float) -> dict[str, Any]:
        return {"caller": self.caller, "ask": self.ask, "timeout_s": remaining_ms / 1000}
