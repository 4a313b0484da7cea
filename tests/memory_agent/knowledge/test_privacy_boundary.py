"""What users remember stays theirs until they publish it, and what they unpublish is gone, whatever happens between.

Every word that a user says has a mark of its own (`MARK`). A model knows which marks are published, to whom, and which
were; after each step the marks in files, answers and logs are compared with it, and so are vectors, ids and names.
"""

from __future__ import annotations

import copy
import re
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import structlog
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from sharing_world import World, after_each_step

from memory_agent.care.backup import make_backup
from memory_agent.care.offline import erase_user
from memory_agent.care.restoration import restore_all, restore_user
from memory_agent.care.verification import verify_folder
from memory_agent.embedders import Embedder, open_embedder
from memory_agent.errors import InvalidInputError
from memory_agent.knowledge.places import FIGURES
from memory_agent.memory import Memory
from memory_agent.settings import EmbedderSettings
from memory_agent.shared_asks import Caller, ForgetUser
from memory_agent.storage.folders import user_folder
from relay import SHARED_USER

GROUPS = {
    "quince-ann": ("org:acme",),
    "quince-ben": ("org:acme", "tier:pro"),
    "quince-cas": (),
    "quince-dot": ("tier:pro",),
}
POLICIES = ("public", "org:acme", "tier:pro")
MARK = re.compile(rb"zq[0-9a-f]{6}x", re.IGNORECASE)
SAYINGS = (
    "connect to the VPN before a deploy to staging",
    "a mutex for each session fixed the race for the token",
    "the nightly backup fails while the disk is full",
    "restart the tunnel when the login times out",
)
UNKNOWN = "0" * 26

users = st.sampled_from(sorted(GROUPS))
policies = st.sampled_from(POLICIES)
sayings = st.sampled_from(SAYINGS)
crashes = st.sampled_from((None, None, None, 1, 1, 2, 3, 5))
"""The step after which the process is killed."""


@dataclass
class Told:
    """A memory: the marks of its text, title and tags, and those that an item never has (`hidden`)."""

    user: str
    id: str
    marks: frozenset[str]
    hidden: frozenset[str]


@dataclass
class Item:
    """A version of an item, as published."""

    id: str
    author: str
    policy: str
    marks: frozenset[str]
    version: int
    data: bytes | None = None
    vector: bytes = b""


@dataclass
class Model:
    """What is: memories, items by id, chosen names by user. And what is no more."""

    told: list[Told] = field(default_factory=list)
    items: dict[str, Item] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)  # ids that never return
    left: set[str] = field(default_factory=set)  # marks of what is no more
    vectors: set[bytes] = field(default_factory=set)  # of every memory and item that ever was
    public: set[bytes] = field(default_factory=set)  # of every item that ever was
    pseudonyms: set[str] = field(default_factory=set)  # of erased users
    said: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    is_purged: bool = True

    def admitted(self, user: str) -> dict[str, Item]:
        return {id_: item for id_, item in self.items.items() if item.policy in ("public", *GROUPS[user])}

    def of_author(self, user: str) -> dict[str, Item]:
        return {id_: item for id_, item in self.items.items() if item.author == user}

    def may_see(self, user: str) -> set[str]:
        """The marks that an answer to a user may have."""
        seen = {mark for one in self.told if one.user == user for mark in one.marks | one.hidden}
        for item in (self.admitted(user) | self.of_author(user)).values():
            seen |= item.marks | {self.names.get(item.author, "")}
        return seen | {self.names.get(user, "")}

    def published(self) -> set[str]:
        """The marks that the store holds."""
        return {mark for item in self.items.values() for mark in item.marks} | set(self.names.values())

    def drop(self, id_: str) -> None:
        self.left |= self.items.pop(id_).marks
        self.is_purged = False


def marks_in(data: bytes) -> set[str]:
    return {mark.decode().lower() for mark in MARK.findall(data)}


def half(numbers: list[float] | None) -> bytes:
    """A vector as the store holds it."""
    return np.array(numbers, np.float32).astype("<f2").tobytes()


def forms_of(vector: bytes) -> tuple[bytes, ...]:
    """A vector as the records and as the columns hold it."""
    floats = np.frombuffer(vector, "<f2").astype(np.float32)
    return vector, np.rint(floats / np.abs(floats).max() * np.float32(127)).astype(np.int8).tobytes()


def now() -> datetime:
    return datetime.now(UTC)


def quiet(*_: object) -> None:
    return None


_opened: list[Embedder] = []


def embedder() -> Embedder:
    if not _opened:
        _opened.append(open_embedder(EmbedderSettings(allow_download=False)))
    return _opened[0]


@pytest.fixture(scope="module", autouse=True)
def _closes_the_embedder() -> Iterator[None]:
    yield
    while _opened:
        _opened.pop().close()


class SharingModel(RuleBasedStateMachine):
    """Several users, the store on disk, and the model of who may see what."""

    is_encrypted = False

    @initialize()
    def create(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="sharing-"))
        self.numbers = count(1)
        self.model = Model()
        self.saved: tuple[Model, set[str]] | None = None
        self.capturing = structlog.testing.capture_logs()
        self.logs = self.capturing.__enter__()
        self.lines = 0
        if self.is_encrypted:
            (self.root / "keys").mkdir(mode=0o700)
        self.world = World(self.root / "data", embedder(), keys=self.root / "keys" if self.is_encrypted else None)

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        self.upkeep()
        self.nothing_private_is_in_the_files()
        self.world.close()
        self.nothing_private_is_in_the_files()
        parts = verify_folder(self.world.data_dir, self.world.settings, quiet)
        assert [part.findings for part in parts if part.findings] == []
        self.no_log_quotes_anybody()
        self.capturing.__exit__(None, None, None)
        shutil.rmtree(self.root)

    def mark(self) -> str:
        return f"zq{next(self.numbers) * 7919 % (1 << 24):06x}x"

    def memory(self, user: str) -> Memory:
        return self.world.user(user, *GROUPS[user])

    def says(self, user: str, times: int) -> list[str]:
        marks = [self.mark() for _ in range(times)]
        self.model.said[user].update(marks)
        return marks

    def heard(self, user: str, answer: object) -> None:
        """Check an answer to a user."""
        assert marks_in(msgspec.json.encode(answer)) <= self.model.may_see(user)

    @rule(user=users, saying=sayings)
    def remember(self, user: str, saying: str) -> None:
        text, title, tag, session, id_, place = self.says(user, 6)
        memory = self.memory(user)
        memory.remember(
            f"{text} {saying}", title=title, tags=[tag], session_id=session, id=id_, metadata={"place": place}
        )
        self.model.vectors.add(half(memory.get([id_], with_embedding=True)[0].embedding))
        self.model.told.append(Told(user, id_, frozenset({text, title, tag}), frozenset({session, id_, place})))

    @rule(user=users, saying=sayings, tiers=st.sampled_from([("local",), ("global",), ("local", "global")]))
    def recall(self, user: str, saying: str, tiers: Any) -> None:
        (query,) = self.says(user, 1)
        self.model.told.append(Told(user, query, frozenset(), frozenset({query})))
        result = self.memory(user).recall(
            f"{query} {saying}", 20, tiers=tiers, min_relevance=0.0, deadline_ms=30_000.0, by_session=query
        )
        assert "global_unavailable" not in result.degraded
        self.heard(user, result)
        shared = {one.record.id for one in result.memories if one.tier == "global"}
        assert shared <= self.model.admitted(user).keys()
        assert "global" in tiers or not shared

    @rule(user=users, saying=sayings, policy=policies, has_file=st.booleans(), crash=crashes)
    def publish_text(self, user: str, saying: str, policy: str, has_file: bool, crash: int | None) -> None:
        text, title, tag, body, inside = self.says(user, 5)
        asked = {"title": title, "summary": f"{text} {saying}", "tags": [tag], "body": body, "access_policy": policy}
        self.publish(user, asked, {text, title, tag, body}, inside if has_file else None, crash)

    @precondition(lambda self: any(one.marks for one in self.model.told))
    @rule(data=st.data(), policy=policies, crash=crashes)
    def publish_memory(self, data: st.DataObject, policy: str, crash: int | None) -> None:
        told = data.draw(st.sampled_from([one for one in self.model.told if one.marks]))
        self.publish(told.user, {"memory_id": told.id, "access_policy": policy}, set(told.marks), None, crash)

    @precondition(lambda self: self.model.items)
    @rule(data=st.data(), saying=sayings, policy=policies, has_file=st.booleans(), crash=crashes)
    def publish_version(self, data: st.DataObject, saying: str, policy: str, has_file: bool, crash: int | None) -> None:
        item = self.some_item(data)
        text, title, inside = self.says(item.author, 3)
        asked = {"title": title, "summary": f"{text} {saying}", "access_policy": policy, "item_id": item.id}
        asked["version"] = str(item.version + 1)
        self.publish(item.author, asked, {text, title}, inside if has_file else None, crash)

    def some_item(self, data: st.DataObject) -> Item:
        return self.model.items[data.draw(st.sampled_from(sorted(self.model.items)))]

    def publish(self, user: str, asked: dict[str, Any], marks: set[str], inside: str | None, crash: int | None) -> None:
        shared = self.memory(user).shared
        data = None if inside is None else f"{inside} of a file".encode()
        preview = shared.preview(**asked, attachment=data)
        assert marks_in(msgspec.json.encode(preview.content)) == marks  # what leaves, and nothing else does
        if asked["access_policy"] not in ("public", *GROUPS[user]):
            with pytest.raises(InvalidInputError, match="access_policy"):
                shared.confirm(preview, data)
            return
        id_ = preview.content.item_id
        former = self.model.items.get(id_)
        version = 1 if former is None else former.version + 1
        marks = marks if inside is None else {*marks, inside}
        self.run(lambda: shared.confirm(preview, data), crash)
        shared = self.memory(user).shared
        stored = next((one for one in shared.published() if one.id == id_), None)
        if stored is None or stored.version != str(version):
            assert crash is not None
            self.model.left |= marks
            return
        if former is not None:
            self.model.drop(id_)
        (record,) = self.world.shared.get([id_], with_embedding=True)
        item = Item(id_, user, asked["access_policy"], frozenset(marks), version, data, half(record.embedding))
        self.model.items[id_] = item
        self.model.vectors.add(item.vector)
        self.model.public.add(item.vector)
        assert shared.confirm(preview, data) == stored  # again, as after a lost answer

    @precondition(lambda self: self.model.items)
    @rule(data=st.data(), crash=crashes)
    def unpublish(self, data: st.DataObject, crash: int | None) -> None:
        item = self.some_item(data)
        for user in GROUPS.keys() - {item.author}:
            assert not self.memory(user).shared.unpublish(item.id).found
        shared = self.memory(item.author).shared
        again = shared.preview("again", "the same id", item_id=item.id, version="after", access_policy="public")
        self.run(lambda: shared.unpublish(item.id), crash)
        shared = self.memory(item.author).shared
        if item.id in {one.id for one in shared.published()}:
            assert crash is not None
            return
        self.model.drop(item.id)
        self.model.ended.add(item.id)
        assert not shared.unpublish(item.id).found
        with pytest.raises(InvalidInputError, match="unpublished"):
            shared.confirm(again)

    @rule(user=users, crash=crashes)
    def erase(self, user: str, crash: int | None) -> None:
        mine, pseudonym = self.model.of_author(user), self.world.shared._authors.pseudonym(user)
        if crash is not None:
            self.run(lambda: self.world.shared.ask(Caller(user_id=user), ForgetUser()), crash)
            assert {one.id for one in self.memory(user).shared.published()} in (set(), mine.keys())
        with self.world.closed():
            assert erase_user(self.world.data_dir, self.world.settings, user, now()).complete
        for id_ in mine:
            self.model.drop(id_)
            self.model.ended.add(id_)
        self.model.left.add(self.model.names.pop(user, ""))
        self.model.pseudonyms.add(pseudonym)
        self.model.told = [one for one in self.model.told if one.user != user]
        if self.saved is not None:
            self.saved[1].add(user)

    @rule(user=users, has_name=st.booleans())
    def set_name(self, user: str, has_name: bool) -> None:
        if user in self.model.names:
            self.model.left.add(self.model.names.pop(user))
            self.model.is_purged = False
        if not has_name:
            assert self.memory(user).shared.set_name().startswith("user-")
            return
        (name,) = self.says(user, 1)
        seen = self.memory(user).shared.set_name(f"{name} of the platform team")
        assert seen.startswith(f"{name} of the platform team #")
        self.model.names[user] = name

    @precondition(lambda self: self.model.items)
    @rule(data=st.data(), user=users)
    def rate_and_fetch(self, data: st.DataObject, user: str) -> None:
        item, shared = self.some_item(data), self.memory(user).shared
        if item.id in self.model.admitted(user) | self.model.of_author(user):
            if item.author != user:
                shared.rate(item.id, 1.0)
            if item.data is not None:
                assert shared.attachment(item.id).data == item.data
            return
        asks: list[Callable[[str], object]] = [lambda one: shared.rate(one, 1.0), shared.attachment]
        for ask in asks:
            with pytest.raises(InvalidInputError) as refused:
                ask(item.id)
            with pytest.raises(InvalidInputError) as unknown:
                ask(UNKNOWN)
            assert refused.value.args == unknown.value.args

    @rule(user=users)
    def report(self, user: str) -> None:
        """As a host's upkeep does."""
        self.memory(user).expire()
        self.memory(user).shared.report(now())

    @rule()
    def upkeep(self) -> None:
        self.world.shared.expire()
        self.model.is_purged = True

    @rule()
    def reopen(self) -> None:
        self.world.reopen()

    @rule()
    def crash(self) -> None:
        self.world.crash()

    @rule()
    def back_up(self) -> None:
        shutil.rmtree(self.root / "backup", ignore_errors=True)
        with self.world.closed():
            made = make_backup(self.world.data_dir, self.root / "backup", self.world.settings, now(), quiet)
        assert made.left_out == ()
        self.saved = copy.deepcopy(self.model), set()

    @precondition(lambda self: self.saved is not None)
    @rule(is_whole=st.booleans())
    def restore(self, is_whole: bool) -> None:
        """The items of the backup return but for those that were taken away since, here or by an erasure."""
        assert self.saved is not None
        saved, erased = self.saved
        paths = self.root / "backup", self.world.data_dir
        with self.world.closed():
            if is_whole:
                restored = restore_all(*paths, self.world.settings, now(), quiet, replace=True)
            else:
                restored = restore_user(*paths, SHARED_USER, self.world.settings, now(), quiet, replace=True)
            shutil.rmtree(restored.aside or "")
            self.model.left |= self.model.published()
            self.model.items = {id_: one for id_, one in saved.items.items() if id_ not in self.model.ended}
            self.model.names = {user: name for user, name in saved.names.items() if user not in erased}
            if is_whole:
                self.model.told = [one for one in saved.told if one.user not in erased]
            self.model.is_purged = True
            self.nothing_private_is_in_the_files()

    def run(self, do: Callable[[], object], crash: int | None) -> None:
        """Do it; with a number, kill the process after that step of it, or after its last."""
        if crash is None:
            do()
            return
        kept, left = self.root / "kept", [crash]

        def step() -> None:
            left[0] -= 1
            if left[0] == 0:
                shutil.copytree(self.world.data_dir, kept)

        with after_each_step(step):
            do()
        if not kept.exists():
            shutil.copytree(self.world.data_dir, kept)
        self.world.crash(kept)

    @invariant()
    def nothing_private_is_in_the_files(self) -> None:
        if not hasattr(self, "world"):
            return
        model, data = self.model, self.world.bytes_of_the_store()
        gone = set() if model.is_purged else model.left
        allowed = set() if self.is_encrypted else model.published() | gone
        assert marks_in(data) <= allowed
        assert self.is_encrypted or model.published() <= marks_in(data)  # else this would look for the wrong bytes
        assert not any(user.encode() in data for user in GROUPS)
        live = {item.vector for item in model.items.values()} if model.is_purged else model.public
        hidden = model.vectors if self.is_encrypted else model.vectors - live
        assert not any(form in data for vector in hidden for form in forms_of(vector))
        ids = {*model.items, *model.ended} if self.is_encrypted else model.ended if model.is_purged else set()
        assert not any(id_.encode() in data for id_ in ids)
        if model.is_purged or self.is_encrypted:
            assert not any(name.encode() in data for name in model.pseudonyms)

    @invariant()
    def nobodys_own_files_hold_the_words_of_another(self) -> None:
        if hasattr(self, "world"):
            for user in GROUPS:
                files = (file for file in user_folder(self.world.data_dir, user).rglob("*") if file.is_file())
                assert marks_in(b"".join(file.read_bytes() for file in files)) <= self.model.said[user]

    @invariant()
    def everybody_finds_what_the_policies_admit_and_nothing_else(self) -> None:
        if not hasattr(self, "world"):
            return
        for user in GROUPS:
            admitted, found = self.model.admitted(user), self.world.found(user, SAYINGS[0], *GROUPS[user])
            assert found.keys() <= admitted.keys()
            texts = {admitted[id_].marks for id_ in found}
            assert {item.marks for item in admitted.values()} == texts  # of the same words one is enough
            self.heard(user, list(found.values()))
            own = self.memory(user).shared.published()
            assert {one.id: one.version for one in own} == {
                id_: str(item.version) for id_, item in self.model.of_author(user).items()
            }
            self.heard(user, own)
        for user, answer in self.world.answers:
            assert not any(name in repr(answer) for name in GROUPS), user
        self.world.answers.clear()

    @invariant()
    def no_item_is_there_in_part(self) -> None:
        if not hasattr(self, "world"):
            return
        with self.world.shared._archive.store.snapshot() as snapshot:
            assert {record.id for _, record in snapshot.scan()} == self.model.items.keys()
            files, figures = snapshot.blobs("shared:file:"), snapshot.blobs(FIGURES)
        assert len(files) == sum(item.data is not None for item in self.model.items.values())
        assert len(figures) == len(self.model.items)

    @invariant()
    def nothing_is_kept_of_a_search(self) -> None:
        if not hasattr(self, "world"):
            return
        store = self.world.shared._archive.store
        with store.snapshot() as snapshot:
            assert list(snapshot.recall_notes()) == []
            assert not any(record.times_recalled for _, record in snapshot.scan())
        assert not store.has_waiting_notes

    @invariant()
    def no_log_quotes_anybody(self) -> None:
        if hasattr(self, "world"):
            assert not marks_in(repr(self.logs).encode())
            self.lines += len(self.logs)
            self.logs.clear()


class EncryptedSharingModel(SharingModel):
    """The same, encrypted: then the files hold nothing of anybody."""

    is_encrypted = True


TestSharing = pytest.mark.slow(SharingModel.TestCase)
TestEncryptedSharing = pytest.mark.slow(EncryptedSharingModel.TestCase)
TestSharing.settings = settings(
    max_examples=20,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.generate),  # to shrink a failure takes minutes, and its story is short already
    derandomize=True,
)
TestEncryptedSharing.settings = settings(TestSharing.settings, max_examples=5)
