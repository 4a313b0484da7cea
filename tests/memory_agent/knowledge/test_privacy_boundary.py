"""What users remember stays theirs until they publish it, and what they unpublish is gone, whatever happens between.

A model tracks which words are or were published, for whom, and which contributions the figures count. After each step
files, the history of erasures, answers, messages from a user's memory to the store, and logs are compared with it:
words, tags, queries, sessions, ids, vectors and names. Events for followers: `test_publish_log`.

`--hypothesis-profile deep` tells ten times as many stories, other ones each time (`make fuzz`).
"""

from __future__ import annotations

import copy
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import astuple
from sharing_model import (
    CROWD,
    EVERYBODY,
    GROUPS,
    Item,
    Model,
    Told,
    forms_of,
    half,
    marks_in,
)
from sharing_world import World, after_each_step, parts_of

from memory_agent.care.backup import make_backup
from memory_agent.care.offline import erase_user
from memory_agent.care.restoration import restore_all, restore_user
from memory_agent.care.verification import verify_folder
from memory_agent.embedders import Embedder, open_embedder
from memory_agent.errors import InvalidInputError
from memory_agent.knowledge.contributions import Contribution
from memory_agent.knowledge.places import FIGURES
from memory_agent.memory import Memory
from memory_agent.records import RecallResult
from memory_agent.settings import EmbedderSettings
from memory_agent.shared_asks import Caller, ForgetUser, Publish, SearchItems, SetName
from memory_agent.storage.folders import user_folder
from relay import SHARED_USER

POLICIES = ("public", "org:acme", "tier:pro")
SAYINGS = (
    "connect to the VPN before a deploy to staging",
    "a mutex for each session fixed the race for the token",
    "the nightly backup fails while the disk is full",
    "restart the tunnel when the login times out",
)
UNKNOWN = "0" * 26
BOTH = ("local", "global")
NUMBERS = re.compile(r"(?:-?\d\.\d+(?:e-?\d+)?[,\s]+){4}")
"""A part of a vector, as a log would show it."""

users = st.sampled_from(sorted(GROUPS))
policies = st.sampled_from(POLICIES)
sayings = st.sampled_from(SAYINGS)
qualities = st.sampled_from((0.0, 0.35, 0.8, 1.0))
crashes = st.sampled_from((None, None, None, 1, 1, 2, 3, 5))
"""The step after which the process is killed."""


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
        self.leaving: set[str] = set()  # the marks that users send to the store in a step
        self.lines = self.recalls = 0
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
        assert self.lines >= self.recalls  # else this would look for lines where none are
        self.capturing.__exit__(None, None, None)
        shutil.rmtree(self.root)

    def mark(self) -> str:
        return f"zq{next(self.numbers) * 7919 % (1 << 24):06x}x"

    def memory(self, user: str) -> Memory:
        return self.world.user(user, *EVERYBODY[user])

    def says(self, user: str, times: int) -> list[str]:
        marks = [self.mark() for _ in range(times)]
        self.model.said[user].update(marks)
        return marks

    def heard(self, user: str, answer: object) -> None:
        """Check an answer to a user."""
        assert marks_in(msgspec.json.encode(answer)) <= self.model.may_see(user)

    def tells(self, user: str, *hidden: str) -> None:
        """Note what no item has."""
        self.model.told.append(Told(user, hidden[0], frozenset(), frozenset(hidden)))

    def asks(self, user: str, query: str, **options: Any) -> RecallResult:
        """Recall, and check the answer. Both are on disk then, as after the upkeep of a host."""
        self.leaving.add(query)
        self.recalls += 1
        words = f"{query} {SAYINGS[self.recalls % len(SAYINGS)]}"
        self.model.vectors.add(half(embedder().embed_query(words)))
        result = self.memory(user).recall(words, 20, min_relevance=0.0, deadline_ms=30_000.0, **options)
        self.memory(user).expire()
        assert "global_unavailable" not in result.degraded
        self.heard(user, result)
        shared = [one for one in result.memories if one.tier == "global" and one.shared is not None]
        for one in shared:
            item = self.model.admitted(user)[one.record.id]
            if one.record.embedding is not None:
                assert half(one.record.embedding) == item.vector
        self.model.unreported[user].shown += [(one.record.id, one.shared.version) for one in shared if one.shared]
        return result

    @rule(user=users, saying=sayings)
    def remember(self, user: str, saying: str) -> None:
        text, title, tag, session, id_, place = self.says(user, 6)
        memory = self.memory(user)
        memory.remember(
            f"{text} {saying}", title=title, tags=[tag], session_id=session, id=id_, metadata={"place": place}
        )
        self.model.vectors.add(half(memory.get([id_], with_embedding=True)[0].embedding))
        self.model.told.append(Told(user, id_, frozenset({text, title, tag}), frozenset({session, id_, place})))

    @rule(user=users, tiers=st.sampled_from([("local",), ("global",), BOTH]), with_embedding=st.booleans())
    def recall(self, user: str, tiers: Any, with_embedding: bool) -> None:
        query, session = self.says(user, 2)
        self.tells(user, query, session)
        result = self.asks(user, query, tiers=tiers, by_session=session, with_embedding=with_embedding)
        assert "global" in tiers or not any(one.tier == "global" for one in result.memories)

    @rule(user=users, saying=sayings)
    def search(self, user: str, saying: str) -> None:
        query, tag = self.says(user, 2)
        self.tells(user, query, tag)
        self.leaving |= {query, tag}
        assert self.memory(user).shared.search(f"{query} {saying}", 20, tags=[tag], min_relevance=0.0) == []
        self.heard(user, self.memory(user).shared.search(f"{query} {saying}", 20, min_relevance=0.0))

    @rule(user=users, quality=qualities, is_reported=st.booleans(), crash=crashes)
    def work(self, user: str, quality: float, is_reported: bool, crash: int | None) -> None:
        """A run that recalls both tiers, names all it was shown and an id of its own, and ends."""
        self.works(user, quality)
        if is_reported:
            self.reports(user, crash)

    @rule(values=st.lists(st.tuples(qualities, st.booleans()), min_size=len(CROWD), max_size=len(CROWD)))
    def many_work(self, values: list[tuple[float, bool]]) -> None:
        """Enough users for figures; and an author, whose own do not count, and whose report is repeated."""
        for author in sorted({item.author for item in self.model.items.values()})[:1]:
            self.works(author, values[0][0])
            self.reports(author, crash=2)
        for user, (quality, rates) in zip(CROWD, values, strict=True):
            self.works(user, quality)
            self.reports(user)
            for item in self.model.items.values() if rates else ():
                self.rates(user, item, quality)
        self.upkeep()

    def works(self, user: str, quality: float) -> None:
        run, session, objective, step, end, query, unknown = self.says(user, 7)
        memory = self.memory(user)
        memory.runs.begin(f"{objective} the deploy", run_id=run, session_id=session)
        result = self.asks(user, query, tiers=BOTH, by_run=run, by_session=session)
        named = [one.record.id for one in result.memories]
        memory.runs.step(run, f"{step} went on", [unknown, *named][:20])
        memory.runs.end(run, "failed" if quality == 0.0 else "completed", f"{end} of the deploy", quality)
        used = {(one.record.id, one.shared.version) for one in result.memories if one.tier == "global" and one.shared}
        self.model.unreported[user].runs.append((run, {version for version in used if version[0] in named[:19]}))
        said = [record.id for record in memory.list({"run_id": run}).records]
        self.model.vectors.update(half(one.embedding) for one in memory.get(said, with_embedding=True))
        self.tells(user, run, session, objective, step, end, query, unknown)

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
        if asked["access_policy"] not in ("public", *GROUPS[user]):
            with pytest.raises(InvalidInputError, match="access_policy"):
                shared.preview(**asked, attachment=data)
            return
        self.leaving |= marks if inside is None else {*marks, inside}
        preview = shared.preview(**asked, attachment=data)
        assert marks_in(msgspec.json.encode(preview.content)) == marks  # what leaves, and nothing else does
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
        (record,) = self.world.shared.get([id_], with_embedding=True)
        vector = half(record.embedding)
        self.model.publish(Item(id_, user, asked["access_policy"], frozenset(marks), version, data, vector))
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
        self.model.end(item.id)
        assert not shared.unpublish(item.id).found
        with pytest.raises(InvalidInputError, match="unpublished"):
            shared.confirm(again)

    @rule(user=st.one_of(users, st.sampled_from(sorted(CROWD))), crash=crashes)
    def erase(self, user: str, crash: int | None) -> None:
        mine, pseudonym = self.model.of_author(user), self.world.shared._authors.pseudonym(user)
        if crash is not None:
            self.run(lambda: self.world.shared.ask(Caller(user_id=user), ForgetUser()), crash)
            assert {one.id for one in self.memory(user).shared.published()} in (set(), mine.keys())
        with self.world.closed():
            assert erase_user(self.world.data_dir, self.world.settings, user, now()).complete
        self.model.erase(user, pseudonym)
        if self.saved is not None:
            self.saved[1].add(user)

    @rule(user=users, has_name=st.booleans())
    def set_name(self, user: str, has_name: bool) -> None:
        if user in self.model.names:
            self.model.left.add(self.model.names.pop(user))
            self.model.is_purged = False
        if not has_name:
            assert self.memory(user).shared.set_name(None).startswith("user-")
            return
        (name,) = self.says(user, 1)
        self.leaving.add(name)
        seen = self.memory(user).shared.set_name(f"{name} of the platform team")
        assert seen.startswith(f"{name} of the platform team #")
        self.model.names[user] = name

    def rates(self, user: str, item: Item, rating: float | None) -> None:
        self.memory(user).shared.rate(item.id, rating)
        self.model.tallies[item.named].rate(user, rating)

    @precondition(lambda self: self.model.items)
    @rule(data=st.data(), user=users, rating=st.one_of(qualities, st.none()))
    def rate_and_fetch(self, data: st.DataObject, user: str, rating: float | None) -> None:
        item, shared = self.some_item(data), self.memory(user).shared
        if item.id in self.model.admitted(user) | self.model.of_author(user):
            if item.author != user:
                self.rates(user, item, rating)
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

    @rule(user=users, crash=crashes)
    def report(self, user: str, crash: int | None) -> None:
        self.reports(user, crash)

    def reports(self, user: str, crash: int | None = None) -> None:
        """As a host's upkeep does, and after a crash the next one: what was said counts once."""
        self.run(lambda: self.world.keep_up(user).shared.report(now()), crash)
        if crash is not None:
            self.world.keep_up(user).shared.report(now())
        self.model.count(user, self.quality_of(user))

    def quality_of(self, user: str) -> Callable[[str], float | None]:
        def quality(run_id: str) -> float | None:
            run = self.memory(user).runs.get(run_id)
            assert run is not None
            return run.quality

        return quality

    @rule()
    def upkeep(self) -> None:
        self.world.shared.expire()
        for tally in self.model.tallies.values():
            tally.release()
        self.model.is_purged = True
        stats = [self.world.shared.stats(), *(self.memory(user).stats() for user in GROUPS)]
        assert not marks_in(msgspec.json.encode(stats))

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
            self.model.restore(copy.deepcopy(saved), erased, is_whole=is_whole)
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
        assert not any(user.encode() in data for user in EVERYBODY)
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
            for item in (*own, *(one.item for one in found.values())):
                self.model.tallies[item.id, item.version].check(item.quality_metrics)
        for user, answer in self.world.answers:
            assert not any(name in repr(answer) for name in EVERYBODY), user
            assert marks_in(msgspec.msgpack.encode(answer)) <= self.model.may_see(user) | self.model.said[user]
        self.world.answers.clear()

    @invariant()
    def nothing_else_leaves_a_memory_than_what_its_user_sends(self) -> None:
        if not hasattr(self, "world"):
            return
        for caller, ask in self.world.asked:
            message = msgspec.msgpack.encode((caller.rights, ask))
            chosen = self.leaving if isinstance(ask, Publish | SearchItems | SetName) else set()
            assert marks_in(message) <= chosen
            assert not any(user.encode() in message for user in EVERYBODY)
            assert not any(form in message for vector in self.model.vectors for form in forms_of(vector))
        self.world.asked.clear()
        self.leaving.clear()

    @invariant()
    def figures_are_made_of_what_living_users_contributed(self) -> None:
        """Each part is there once, without the author's, whatever was repeated, interrupted, erased or restored."""
        if not hasattr(self, "world"):
            return
        names = {self.world.shared._authors.pseudonym(user).encode(): user for user in EVERYBODY}
        with self.world.shared._archive.store.snapshot() as snapshot:
            kept = {
                (id_, version): (
                    {
                        names[user]: astuple(part.sums)[1:]
                        for user, part in parts.items()
                        if part.sums != Contribution()
                    },
                    [
                        (
                            series.released is not None,
                            {names[user] for user, part in parts.items() if series.is_waiting(part.marks[place])},
                        )
                        for place, series in enumerate(standing.series)
                    ],
                )
                for id_ in self.model.items
                for version, (standing, parts) in parts_of(snapshot, id_).items()
            }
        assert kept == {version: tally.state() for version, tally in self.model.tallies.items()}

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
            lines = repr(self.logs)
            assert not marks_in(lines.encode())
            assert not NUMBERS.search(lines)
            assert not any(repr(form)[2:-1] in lines for vector in self.model.vectors for form in forms_of(vector))
            self.lines += len(self.logs)
            self.logs.clear()


class EncryptedSharingModel(SharingModel):
    """The same, encrypted: then the files hold nothing of anybody."""

    is_encrypted = True


TestSharing = pytest.mark.slow(pytest.mark.timeout(1_200)(SharingModel.TestCase))
TestEncryptedSharing = pytest.mark.slow(pytest.mark.timeout(1_200)(EncryptedSharingModel.TestCase))
TestSharing.settings = settings(
    max_examples=settings.default.max_examples // 10,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.generate),  # to shrink a failure takes minutes, and its story is short already
    derandomize=settings.get_current_profile_name() != "deep",
)
TestEncryptedSharing.settings = settings(TestSharing.settings, max_examples=settings.default.max_examples // 50)
