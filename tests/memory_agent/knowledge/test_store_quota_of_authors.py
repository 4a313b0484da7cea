"""An author's storage quota: publishing consumes it, and removing items frees it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
from sharing_world import UNLIMITED, World

from memory_agent.embedders import Embedder
from memory_agent.errors import InvalidInputError
from memory_agent.knowledge.items import faults_of_items
from memory_agent.records.shared import GlobalRecord, PublishPreview
from memory_agent.records.shared_requests import Caller, ForgetUser
from memory_agent.settings import Settings

MOST = 10_000
FIX = "Connect to the VPN before a deploy to staging"


@pytest.fixture
def world(tmp_path: Path, embedder: Embedder) -> Iterator[World]:
    limits = msgspec.structs.replace(UNLIMITED, bytes_per_author=MOST)
    with World(tmp_path / "data", embedder, Settings(shared=limits)) as world:
        yield world
        with world.shared._archive.store.snapshot() as snapshot:
            assert list(faults_of_items(snapshot)) == []


def used(world: World, user: str) -> int:
    return sum(item.size_bytes for item in world.user(user).shared.published())


def test_an_item_counts_with_its_texts_and_its_file(world: World) -> None:
    shared = world.user("ann").shared
    preview = shared.preview("Ä", "öö", body="x", tags=["ü"], reference="é", attachment=b"12345")
    between = len("\n\n")
    assert shared.confirm(preview, b"12345").size_bytes == 2 + 4 + between + 1 + 2 + 2 + 5


def test_concurrent_publishes_respect_the_byte_quota_of_an_author(world: World) -> None:
    shared = world.user("ann").shared
    data = b"x" * 3_000
    previews = [shared.preview(f"Item {number}", FIX, attachment=data) for number in range(8)]

    def confirm(preview: PublishPreview) -> GlobalRecord | InvalidInputError:
        try:
            return shared.confirm(preview, data)
        except InvalidInputError as error:
            return error

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(confirm, previews))
    items = [one for one in answers if isinstance(one, GlobalRecord)]
    assert len(items) == 3
    size = 3_000 + len(FIX) + len("Item 1")
    left = MOST - used(world, "ann")
    assert left == MOST - 3 * size
    said = f"has {size:,} bytes, and this user's other items use {3 * size:,} of 10,000 bytes"
    for one in answers:
        if isinstance(one, InvalidInputError):
            assert (one.field, one.reason) == ("preview", f"{said} (shared.bytes_per_author); unpublish an item first")
    assert world.published("ben", FIX, data=data).size_bytes > left  # each author has a quota


def test_the_last_byte_fits_and_one_more_does_not(world: World) -> None:
    shared = world.user("ann").shared
    more, most = b"x" * (MOST - 3), b"x" * (MOST - 4)
    with pytest.raises(InvalidInputError, match="has 10,001 bytes, and this user's other items use 0 of 10,000 bytes"):
        shared.confirm(shared.preview("ti", "su", attachment=more), more)
    preview = shared.preview("ti", "su", attachment=most)
    assert shared.confirm(preview, most).size_bytes == MOST
    assert shared.confirm(preview, most).size_bytes == MOST  # a repetition adds no item


def test_a_new_version_replaces_the_former_one_in_the_quota(world: World) -> None:
    data = b"x" * 8_000
    item = world.published("ann", FIX, data=data)
    second = world.published("ann", FIX, data=data, item_id=item.id, version="2")
    assert used(world, "ann") == second.size_bytes
    world.published("ann", FIX, item_id=item.id, version="3")
    world.published("ann", FIX, data=data)


@pytest.mark.parametrize("way", ["unpublish", "erase", "interrupted"])
def test_a_removal_frees_the_quota(world: World, way: str) -> None:
    data = b"x" * 8_000
    item = world.published("ann", FIX, data=data)
    if way == "unpublish":
        world.user("ann").shared.unpublish(item.id)
    elif way == "erase":
        world.shared.ask(Caller(user_id="ann"), ForgetUser())
    else:
        world.shared.removal.note([item.id])  # a crash follows
        world.reopen()
    assert world.published("ann", FIX, data=data).size_bytes == used(world, "ann")


def test_an_error_of_either_quota_names_what_is_used_and_the_limit(tmp_path: Path, embedder: Embedder) -> None:
    limits = msgspec.structs.replace(UNLIMITED, items_per_author=2, bytes_per_author=MOST)
    with World(tmp_path / "data", embedder, Settings(shared=limits)) as world:
        items = [world.published("ann", FIX) for _ in range(2)]
        with pytest.raises(InvalidInputError, match=r"preview: this user has 2 of 2 items \(shared.items_per_author\)"):
            world.published("ann", FIX)
        world.user("ann").shared.unpublish(items[0].id)
        world.reopen()
        data, left = b"x" * MOST, MOST - items[1].size_bytes
        with pytest.raises(InvalidInputError, match=f"other items use {items[1].size_bytes} of 10,000 bytes"):
            world.published("ann", FIX, data=data)
        world.published("ann", FIX, data=data[: left - items[1].size_bytes])  # exactly what is left
