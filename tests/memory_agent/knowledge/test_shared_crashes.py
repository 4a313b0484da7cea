"""A kill after any step that changes the disk leaves no partial operation on shared items."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

import pytest
from forks import forking, serve
from sharing_world import UNLIMITED, World, after_each_step, with_id

from memory_agent.embedders import Embedder
from memory_agent.errors import InvalidInputError
from memory_agent.knowledge.pseudonyms import FIGURES
from memory_agent.knowledge.stored_figures import parts_in
from memory_agent.records.shared_requests import Caller, ForgetUser
from memory_agent.settings import EmbedderSettings, Settings

pytestmark = pytest.mark.slow
Killed = dict[str, list[Path]]
OWN, OTHER, FOREIGN = (f"01KHJY9080NWG22H9Q8BBD7B8{number}" for number in range(3))


def opened(data_dir: Path) -> World:
    """Return a world whose searches use only words, because loading a model takes a second in each process."""
    return World(data_dir, None, Settings(shared=UNLIMITED, embedder=EmbedderSettings(folder="none")))


def publish(world: World, version: str = "1") -> None:
    data = f"the file of {version}".encode() * 100
    fields = {"version": version, "title": "The quokka", "body": f"as in {version}",
              "access_policy": "public"}  # fmt: skip
    shared = world.user("ann").shared
    preview = shared.preview(summary=f"The quokka needs the VPN {version}", attachment=data, **fields)
    shared.confirm(with_id(preview, OWN), data)


def setup(world: World) -> None:
    publish(world)
    shared = world.user("ann").shared
    shared.confirm(with_id(shared.preview("The other", "A second quokka", attachment=b"[2]"), OTHER), b"[2]")
    shared.set_name("Quokka Ann")
    others = world.user("ben").shared
    others.confirm(with_id(others.preview("Another", "Restart the tunnel"), FOREIGN))
    shared.rate(FOREIGN, 1.0)
    world.user("cas").shared.rate(FOREIGN, 1.0)


OPERATIONS = {
    "publish": publish,
    "version": lambda world: publish(world, "2"),
    "unpublish": lambda world: world.user("ann").shared.unpublish(OWN),
    "erase": lambda world: world.shared.ask(Caller(user_id="ann"), ForgetUser()),
    "upkeep": lambda world: world.shared.expire(),
}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data folder before each operation."""
    root = tmp_path_factory.mktemp("prepared")
    for name in OPERATIONS:
        with opened(root / name) as world:
            if name != "publish":
                setup(world)
            if name == "upkeep":
                OPERATIONS["unpublish"](world)
    return root


def items_of(world: World) -> dict[str, str]:
    """Return the versions by id; check that each item is complete and that no blob is orphaned."""
    with world.shared._archive.store.snapshot() as snapshot:
        items = {record.id: record for _, record in snapshot.scan()}
        files, figures = snapshot.blobs("shared:file:"), snapshot.blobs(FIGURES)
    assert len(figures) == len(items)
    with_file = [item_id for item_id in items if item_id in (OWN, OTHER)]
    assert len(files) == len(with_file)
    for item_id in with_file:
        file = world.user("ben").shared.attachment(item_id)
        assert sha256(file.data).hexdigest() == file.attachment.sha256
    versions = {one.id: one.version for user in ("ann", "ben") for one in world.user(user).shared.published()}
    assert versions.keys() == items.keys()
    if OWN in versions:
        shown = next(one for one in world.user("ann").shared.published() if one.id == OWN)
        assert shown.body == f"as in {shown.version}"
        assert world.user("ben").shared.attachment(OWN).data == f"the file of {shown.version}".encode() * 100
    return versions


def contributors(world: World) -> set[bytes]:
    with world.shared._archive.store.snapshot() as snapshot:
        return {user for _, _, user in parts_in(snapshot)}


def kill_at_step(data_dir: str, operation: str, left: int) -> None:
    """Run an operation, and kill this process after a step."""

    def step() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    with opened(Path(data_dir)) as world, after_each_step(step):
        OPERATIONS[operation](world)


@pytest.fixture(scope="module")
def killed(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Killed:
    """The data folders after a kill at each step of an operation, and after the last step."""
    root, folders = tmp_path_factory.mktemp("killed"), Killed()
    with forking(__file__) as run:
        for operation in OPERATIONS:
            folders[operation], code = [], -signal.SIGKILL
            while code:
                assert code == -signal.SIGKILL
                folders[operation].append(root / operation / str(len(folders[operation])))
                shutil.copytree(prepared / operation, folders[operation][-1])
                code = run(folders[operation][-1], operation, len(folders[operation]))
    return folders


def outcomes(killed: Killed, folder: Path, operation: str) -> Iterator[World]:
    """Yield the world after a kill at each step of an operation."""
    for data_dir in killed[operation]:
        with opened(shutil.copytree(data_dir, folder / data_dir.name)) as world:
            yield world


@pytest.mark.parametrize(
    ("operation", "before", "after"),
    [
        ("publish", {}, {OWN: "1"}),
        ("version", {OWN: "1", OTHER: "1", FOREIGN: "1"}, {OWN: "2", OTHER: "1", FOREIGN: "1"}),
        ("unpublish", {OWN: "1", OTHER: "1", FOREIGN: "1"}, {OTHER: "1", FOREIGN: "1"}),
        ("erase", {OWN: "1", OTHER: "1", FOREIGN: "1"}, {FOREIGN: "1"}),
    ],
)
def test_a_kill_at_any_step_leaves_each_operation_done_or_repeatable(
    killed: Killed, tmp_path: Path, operation: str, before: dict[str, str], after: dict[str, str]
) -> None:
    seen = []
    for world in outcomes(killed, tmp_path, operation):
        found = items_of(world)
        assert found in (before, after)
        name = world.user("ann").shared.published()[0].author if OWN in found else None
        assert name is None or name.startswith("Quokka Ann #") == (operation != "publish")
        if operation in ("unpublish", "erase") and found == after:
            assert world.shared.erasure.is_forgotten(OWN, datetime.now(UTC))  # otherwise a restore would revive it
        seen.append(found)
        OPERATIONS[operation](world)
        assert items_of(world) == after
    assert seen == sorted(seen, key=lambda found: found == after)
    assert seen[-1] == after
    assert len(seen) > 1


def test_upkeep_killed_at_any_step_is_completed_by_the_next(killed: Killed, tmp_path: Path) -> None:
    steps = 0
    for world in outcomes(killed, tmp_path, "upkeep"):
        assert items_of(world) == {OTHER: "1", FOREIGN: "1"}
        world.shared.expire()
        assert b"needs the VPN" not in world.bytes_of_the_store()
        assert b"the file of 1" not in world.bytes_of_the_store()
        assert b"second quokka" in world.bytes_of_the_store()
        steps += 1
    assert steps > 3


def test_an_erased_user_leaves_nothing_whenever_it_is_killed(killed: Killed, tmp_path: Path) -> None:
    for world in outcomes(killed, tmp_path, "erase"):
        begun = world.user("ann").shared.published() == []
        rated = contributors(world)
        assert len(rated) == (1 if begun else 2)  # opening the store completed the interrupted removal
        OPERATIONS["erase"](world)
        assert contributors(world) == {world.shared._authors.pseudonym("cas").encode()} <= rated
        world.shared.expire()
        assert b"uokka" not in world.bytes_of_the_store()
        assert b"tunnel" in world.bytes_of_the_store()


def test_an_unpublish_recorded_only_in_the_history_is_completed_by_the_next_opening(
    tmp_path: Path, embedder: Embedder
) -> None:
    """The history is written first; otherwise, after a crash, an unrecorded removal would be undone by a restore."""
    with World(tmp_path / "data", embedder) as world:
        item = world.published("ann", "The quokka needs the VPN", data=b"[quokka]")
        copies = []

        def copy() -> None:
            copies.append(tmp_path / f"copy-{len(copies)}")
            shutil.copytree(world.data_dir, copies[-1])

        with after_each_step(copy):
            world.user("ann").shared.unpublish(item.id)
        with World(copies[0], embedder) as noted:
            assert noted.found("ben", "quokka") == {}
            with pytest.raises(InvalidInputError, match="not a shared item"):
                noted.user("ben").shared.attachment(item.id)
            noted.shared.expire()
            assert b"quokka" not in noted.bytes_of_the_store()


if __name__ == "__main__":
    serve(kill_at_step)
