"""What a user's own memory refuses creates no store of shared items, through the gateway and on files alone."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
import pytest
from served_gateway import gateway_without_ray

from memory_agent import MemoryClient
from memory_agent.care import offline
from memory_agent.client.methods import MemoryMethods
from memory_agent.embedders import Embedder, open_embedder
from memory_agent.errors import InvalidInputError, UnavailableError
from memory_agent.memory import Memory, Shared
from memory_agent.records.shared_content import digest_of
from memory_agent.settings import EmbedderSettings, Settings
from memory_agent.storage.folders import user_folder
from relay import ALL_SCOPES, SHARED_USER, create_key

FIX = "Staging needs the VPN: connect to it before a deploy"


@pytest.fixture(scope="module")
def embedder() -> Iterator[Embedder]:
    embedder = open_embedder(EmbedderSettings(allow_download=False))
    yield embedder
    embedder.close()


@contextmanager
def served(embedder: Embedder) -> Iterator[tuple[MemoryMethods | Memory, Path]]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="refused-")))
        gateway = stack.enter_context(gateway_without_ray(folder, embedder))
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
def test_what_is_refused_creates_no_store_and_what_is_accepted_does(way: object, embedder: Embedder) -> None:
    assert callable(way)
    with way(embedder) as (ann, store):
        ann.remember(FIX, id="vpn")
        preview = ann.shared.preview(memory_id="vpn", attachment=b"[rules]")
        edited = msgspec.structs.replace(preview, content=msgspec.structs.replace(preview.content, title="Another"))
        content = msgspec.structs.replace(preview.content, access_policy="org:zoo", attachment=None)
        foreign = msgspec.structs.replace(preview, content=content, digest=digest_of(content), memory_id=None)
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


def test_a_memory_that_is_away_says_so_itself_and_creates_no_store(
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
