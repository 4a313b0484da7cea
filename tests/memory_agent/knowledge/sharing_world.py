"""A data folder of users who share items, opened in this process as it would be by a daemon's hosts."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import pytest

from memory_agent.embedders import Embedder
from memory_agent.erasure import logs
from memory_agent.knowledge import Knowledge
from memory_agent.knowledge.figures import Part, Standing
from memory_agent.knowledge.items import place_in
from memory_agent.knowledge.stored_figures import StoredParts, parts_in, standings_at
from memory_agent.memory import Memory
from memory_agent.records.shared import FoundItem, GlobalRecord, PublishPreview
from memory_agent.records.shared_content import preview_digest
from memory_agent.records.shared_requests import AnySharedRequest, Caller, PendingItems, Rights, SearchItems
from memory_agent.settings import RecallSettings, Settings, SharedSettings
from memory_agent.storage import derived
from memory_agent.storage.folders import user_folder
from memory_agent.storage.snapshot import Snapshot
from relay import SHARED_USER, BusSettings, EncryptionSettings, JournalSettings
from relay.disk import Transaction, environment

UNLIMITED = SharedSettings(searches=1_000_000, votes_after_days=0.0)  # followers have new keys
_PATIENT = RecallSettings(deadline_ms=60_000.0)  # on a busy machine, a late part of a search would be left out
_SMALL = BusSettings(journal=JournalSettings(disk_reserve_bytes=0))  # a simulated crash copies these folders


def with_id(preview: PublishPreview, item_id: str) -> PublishPreview:
    """Return the preview with this item id instead of the random id."""
    content = msgspec.structs.replace(preview.content, item_id=item_id)
    return msgspec.structs.replace(preview, content=content, digest=preview_digest(content, preview.user_id))


class World:
    """The store of shared items, and the memories of users, opened on first use."""

    def __init__(
        self, data_dir: Path, embedder: Embedder | None, settings: Settings | None = None, keys: Path | None = None
    ) -> None:
        encryption = EncryptionSettings(keys_folder=str(keys or ""))
        self.data_dir = data_dir
        self.settings = settings or Settings(recall=_PATIENT, shared=UNLIMITED, encryption=encryption, relay=_SMALL)
        self.answers: list[tuple[str, object]] = []
        """The store's answers, each with the user that received it."""
        self.asked: list[tuple[Caller, AnySharedRequest]] = []
        """All requests sent by users' memories."""
        self.on_answer: Callable[[], None] = lambda: None
        """Called after each answer of the store, before a user's memory receives it."""
        self._embedder = embedder
        self._memories: dict[str, Memory] = {}
        self.open()

    def open(self) -> None:
        self.shared = Knowledge.open(
            self.folder, user_id=SHARED_USER, settings=self.settings, embedder=self._embedder, role="host"
        )

    def close(self) -> None:
        for memory in self._memories.values():
            memory.close()
        self._memories.clear()
        self.shared.close()

    def reopen(self) -> None:
        self.close()
        self.open()

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Keep the store closed while the context is open, because a process may open an LMDB file only once."""
        self.close()
        try:
            yield
        finally:
            self.open()

    def crash(self, copy: Path | None = None) -> None:
        """Continue with the current files, or the files of `copy`, as if the process had been killed."""
        aside = self.data_dir.with_name("crashed")
        shutil.rmtree(aside, ignore_errors=True)
        if copy is None:
            copy_folder(self.data_dir, aside)
        else:
            copy.rename(aside)
        for memory in (*self._memories.values(), self.shared):
            memory.abandon()
        self._memories.clear()
        shutil.rmtree(self.data_dir)
        aside.rename(self.data_dir)
        self.open()

    def leave(self, user_id: str) -> None:
        """Close a user's memory."""
        memory = self._memories.pop(user_id, None)
        if memory is not None:
            memory.close()

    @property
    def folder(self) -> Path:
        """The folder of the store of shared items."""
        return user_folder(self.data_dir, SHARED_USER)

    def user(self, user_id: str, *groups: str, is_admin: bool = False) -> Memory:
        """Return a user's memory for a caller who belongs to these organisations and tiers."""
        if user_id not in self._memories:
            self._memories[user_id] = Memory.open(
                user_folder(self.data_dir, user_id),
                user_id=user_id,
                settings=self.settings,
                embedder=self._embedder,
                role="host",
                shared=RecordingStore(self),
            )
        return self._memories[user_id].with_rights(Rights(groups=groups, is_admin=is_admin))

    def keep_up(self, user_id: str) -> Memory:
        """Run a user's upkeep, and return the memory. As in a host, it does not have a caller's rights."""
        memory = self.user(user_id)
        memory.expire()
        return memory

    def published(
        self, user_id: str, text: str, *groups: str, data: bytes | None = None, **fields: Any
    ) -> GlobalRecord:
        shared = self.user(user_id, *groups).shared
        fields = {"access_policy": "public", **fields}
        return shared.confirm(shared.preview(text[:80], text, attachment=data, **fields), data)

    def found(self, user_id: str, query: str, *groups: str) -> dict[str, FoundItem]:
        """Return the items of any relevance that a user finds, by id."""
        found = self.user(user_id, *groups).shared.search(query, 100, min_relevance=0.0)
        return {one.item.id: one for one in found}

    def bytes_of_the_store(self) -> bytes:
        """The bytes of the store's files and of the erasure history."""
        return bytes_below(self.folder) + bytes_below(self.data_dir / "erasures")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def parts_of(snapshot: Snapshot, item_id: str) -> dict[str, tuple[Standing, dict[bytes, Part]]]:
    """Return the figures of each version of an item, with each user's contribution."""
    place = place_in(snapshot, item_id)
    users = [user for _, at, user in parts_in(snapshot) if at == place]
    found = {}
    for version, standing in standings_at(snapshot, place).items():
        of_version = StoredParts(snapshot, place, version)
        found[version] = standing, {user: part for user in users if (part := of_version.get(user)) is not None}
    return found


def copy_folder(folder: Path, target: Path) -> None:
    """Copy a data folder, except for its sockets."""
    shutil.copytree(folder, target, ignore=shutil.ignore_patterns("*.sock"))


def bytes_below(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in folder.rglob("*") if file.is_file())


class RecordingStore:
    """A store that records requests and answers. Satisfies `SharedStore`."""

    def __init__(self, world: World) -> None:
        self._world = world

    def ask(self, caller: Caller, ask: AnySharedRequest, timeout_s: float) -> Any:
        self._world.asked.append((caller, ask))
        answer = self._world.shared.ask(caller, ask, timeout_s)
        self._world.answers.append((caller.user_id, answer))
        self._world.on_answer()
        return answer

    def begin_search(self, caller: Caller, ask: SearchItems, timeout_s: float) -> PendingItems:
        self._world.asked.append((caller, ask))
        search = self._world.shared.begin_search(caller, ask, timeout_s)

        def awaited(timeout_s: float) -> list[FoundItem]:
            found = search(timeout_s)
            self._world.answers.append((caller.user_id, found))
            return found

        return awaited


@contextmanager
def after_each_step(do: Callable[[], None]) -> Iterator[None]:
    """Call `do` after each step that changes the disk: a commit, an append to the history, a replaced file. A kill
    between two steps leaves the disk as it was after the first step. Other threads cannot perform a step during `do`.
    """
    stepping = threading.RLock()

    def followed(step: Callable[..., Any]) -> Callable[..., Any]:
        def stepped(*arguments: Any, **more: Any) -> Any:
            with stepping:
                result = step(*arguments, **more)
                do()
            return result

        return stepped

    begin_write = environment.Environment.write

    @contextmanager
    def write(self: environment.Environment) -> Iterator[Transaction]:
        with ExitStack() as step:
            with begin_write(self) as transaction:
                yield transaction
                step.enter_context(stepping)  # before the commit, because other threads may wait for it
            do()

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(environment.Environment, "write", write)
        for place, name in ((logs, "_append"), (environment, "replace_by_copy"), (derived, "write_arrays")):
            patched.setattr(place, name, followed(getattr(place, name)))
        yield
