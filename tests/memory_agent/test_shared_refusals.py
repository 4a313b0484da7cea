"""Refused requests create no store of shared items, whether made through the gateway or directly on files."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
import pytest
from served_gateway import gateway_in_new_folder

from memory_agent import MemoryClient
from memory_agent.care import offline
from memory_agent.client.methods import MemoryMethods
from memory_agent.embedders import Embedder
from memory_agent.errors import InvalidInputError, UnavailableError
from memory_agent.memory import Memory, Shared
from memory_agent.records.shared_content import preview_digest
from memory_agent.settings import EmbedderSettings, Settings
from memory_agent.storage.folders import user_folder
from relay import ALL_SCOPES, SHARED_USER, create_key

FIX = "Staging needs the VPN: connect to it before a deploy"


@contextmanager
def served(embedder: Embedder) -> Iterator[tuple[MemoryMethods | Memory, Path]]:
    with ExitStack() as stack:
        gateway = stack.enter_context(gateway_in_new_folder(embedder))
        folder = gateway.data_dir
        token = create_key(folder, "of-ann", "ann", ALL_SCOPES, orgs=frozenset({"acme"})).token
        client = stack.enter_context(MemoryClient("ann", endpoint=gateway.gateway, token=token))
        yield client, user_folder(folder, SHARED_USER)


@contextmanager
def on_files(embedder: Embedder) -> Iterator[tuple[MemoryMethods | Memory, Path]]:
    settings = Settings(embedder=EmbedderSettings(allow_download=False))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="refused-")))
        items = stack.enter_context(offline.shared_items(folder, settings))
        yield (
            stack.enter_context(offline.open_memory(folder, settings, "ann", shared=items)),
            user_folder(folder, SHARED_USER),
        )


@pytest.mark.parametrize("way", [served, on_files])
def test_only_an_accepted_request_creates_the_store(way: object, embedder: Embedder) -> None:
    assert callable(way)
    with way(embedder) as (ann, store):
        ann.remember(FIX, id="vpn")
        preview = ann.shared.preview(memory_id="vpn", attachment=b"[rules]")
        edited = msgspec.structs.replace(preview, content=msgspec.structs.replace(preview.content, title="Another"))
        content = msgspec.structs.replace(preview.content, access_policy="org:zoo", attachment=None)
        foreign = msgspec.structs.replace(
            preview, content=content, digest=preview_digest(content, preview.user_id), memory_id=None
        )
        ann.remember("Staging needs nothing any more", id="vpn")
        refused = (
            ("preview", lambda: ann.shared.confirm(edited, b"[rules]")),
            ("preview", lambda: ann.shared.confirm(preview, b"[rules]")),
            ("attachment", lambda: ann.shared.confirm(ann.shared.preview("A", FIX, attachment=b"x"), b"y")),
            ("access_policy", lambda: ann.shared.confirm(foreign)),
            ("preview", lambda: ann.shared.confirm({"digest": "x"})),
            ("name", lambda: ann.shared.set_name("...")),
            ("rating", lambda: ann.shared.rate("01KHJY9080NWG22H9Q8BBD7B80", 7)),
            ("item_id", lambda: ann.shared.rate("01KHJY9080NWG22H9Q8BBD7B80", 1.0)),
        )
        for field, ask in refused:
            with pytest.raises(InvalidInputError) as error:
                ask()
            assert error.value.field.startswith(field)
            assert not store.exists()
        assert ann.shared.published() == []
        assert not ann.shared.unpublish("01KHJY9080NWG22H9Q8BBD7B80").found
        assert not store.exists()
        item = ann.shared.confirm(ann.shared.preview("A", FIX))
        assert store.exists()
        assert ann.shared.published() == [item]


def test_an_unavailable_memory_reports_its_own_error_and_creates_no_store(
    embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object, **__: object) -> None:
        raise UnavailableError("the memory of ann moves")

    with served(embedder) as (ann, store):
        preview = ann.shared.preview("A", FIX)
        with monkeypatch.context() as patched:
            patched.setattr(Shared, "confirm", away)
            with pytest.raises(UnavailableError, match="the memory of ann moves"):
                ann.shared.confirm(preview)
        assert not store.exists()
        assert ann.shared.name() is None
        assert not store.exists()
        item = ann.shared.confirm(preview)
        assert ann.shared.name() == item.author
