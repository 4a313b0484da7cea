"""A memory stays private until its user publishes it, and removed items leave no trace.

A model tracks all words ever published or offered, their readers, and the contributions counted in the figures. After
each step, `sharing_checks` compares the model with files, the history of erasures, answers, messages from a user's
memory to the store, the relay's journal, and logs. It checks words, tags, queries, sessions, ids, vectors and names.

The journal may contain the id, version, type, policy and time of an announced item. It never contains a word, author,
vector or figure, or anything about unpublished content, including offers. Once a removal has been announced and the
journal compacted, only the item's fingerprint remains.

`--hypothesis-profile deep` (`make fuzz`) runs twenty times as many examples, with a new random seed each time.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule
from sharing_checks import SAYINGS, CheckedSharing, close_embedder, embedder, quiet
from sharing_model import (
    ADMIN,
    BY_HAND,
    CROWD,
    EVERYBODY,
    GROUPS,
    POLICIES,
    Item,
    Offer,
    PrivateMemory,
    Words,
    half,
    marks_in,
)
from sharing_world import after_each_step, copy_folder

from memory_agent.care import erase, erase_user, make_backup, restore_all, restore_user
from memory_agent.erasure.request import Selection
from memory_agent.errors import InvalidInputError
from memory_agent.records.memories import RecallResult
from memory_agent.records.shared_requests import Caller, ForgetUser, Report, ReportedItem
from relay import SHARED_USER

BOTH = ("local", "global")
ANSWERED = 0

users = st.sampled_from(sorted(GROUPS))
offering = sorted(GROUPS | CROWD)
offerers = st.sampled_from(offering)
policies = st.sampled_from(POLICIES)
sayings = st.sampled_from(SAYINGS)
qualities = st.sampled_from((0.0, 0.35, 0.8, 1.0))
works_of_many = st.lists(st.tuples(qualities, st.booleans()), min_size=len(CROWD), max_size=len(CROWD))
spellings = st.lists(st.sampled_from(("", "", ".", ":")), min_size=len(offering), max_size=len(offering))
crashes = st.sampled_from((None, None, None, ANSWERED, 1, 1, 2, 3, 5))
"""The step after which the process is killed; `ANSWERED` kills it before it receives the store's first answer."""


def now() -> datetime:
    return datetime.now(UTC)


@pytest.fixture(scope="module", autouse=True)
def _closes_the_embedder() -> Iterator[None]:
    yield
    close_embedder()


class SharingModel(CheckedSharing):
    """Actions of users, upkeep, crashes and restores, each followed by the checks."""

    @initialize(policy=policies, whom=st.sets(offerers, min_size=5), values=works_of_many, spelled=spellings)
    def begin(self, policy: str, whom: set[str], values: list[tuple[float, bool]], spelled: list[str]) -> None:
        """Begin with figures and with items of one user and of many users, so that each example covers all three."""
        assume(any(value != (0.0, False) for value in values))  # skips the simplest example, which only makes backups
        self.create()
        self.publish_text("quince-ann", SAYINGS[1], "public", has_file=True, crash=None)
        self.publish_text(
            "quince-ben", SAYINGS[0], policy if policy in GROUPS["quince-ben"] else "org:acme", False, None
        )
        self.offer_together("public", whom, spelled, None)
        self.many_work(values)
        self.announce_all()

    def tells(self, user: str, *hidden: str) -> None:
        """Remember a memory that no item contains."""
        self.model.told.append(PrivateMemory(user, hidden[0], frozenset(), frozenset(hidden)))

    def asks(self, user: str, query: str, **options: Any) -> RecallResult:
        """Recall, write pending data to disk as a host's upkeep does, and check the answer."""
        self.leaving.add(query)
        self.recalls += 1
        words = f"{query} {SAYINGS[self.recalls % len(SAYINGS)]}"
        self.model.vectors.add(half(embedder().embed_query(words)))
        result = self.memory(user).recall(words, 20, min_relevance=0.0, deadline_ms=30_000.0, **options)
        self.memory(user).expire()
        assert "global_unavailable" not in result.degraded
        self.check_answer(user, result)
        shared = [one for one in result.memories if one.tier == "global" and one.shared is not None]
        for one in shared:
            item = self.model.admitted(user)[one.record.id]
            assert not item.is_of(user)
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
        self.model.told.append(
            PrivateMemory(user, id_, frozenset({text, title, tag}), frozenset({session, id_, place}))
        )

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
        self.check_answer(user, self.memory(user).shared.search(f"{query} {saying}", 20, min_relevance=0.0))

    @rule(user=users, quality=qualities, is_reported=st.booleans(), crash=crashes)
    def work(self, user: str, quality: float, is_reported: bool, crash: int | None) -> None:
        """Begin a run, recall both tiers, report all recalled memories and an unknown id as used, and end the run."""
        self.works(user, quality)
        if is_reported:
            self.reports(user, crash)

    @rule(values=works_of_many)
    def many_work(self, values: list[tuple[float, bool]]) -> None:
        """Report as enough users to have figures released, one report twice. Reports by authors must not count."""
        for item in [item for item in self.model.items.values() if item.author]:
            self.reports_by_hand(item.author, item, 1, [values[0][0]])
        for user, (quality, rates) in zip(CROWD, values, strict=True):
            self.works(user, quality)
            self.reports(user, ANSWERED if user == min(CROWD) else None)
            for item in self.model.items.values() if rates else ():
                if not item.is_of(user):
                    self.rates(user, item, quality)
        self.keep_up()

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

    @precondition(lambda self: any(item.author for item in self.model.items.values()))
    @rule(data=st.data(), saying=sayings, policy=policies, has_file=st.booleans(), crash=crashes)
    def publish_version(self, data: st.DataObject, saying: str, policy: str, has_file: bool, crash: int | None) -> None:
        item = self.some_item(data, lambda item: bool(item.author))
        text, title, inside = self.says(item.author, 3)
        asked = {"title": title, "summary": f"{text} {saying}", "access_policy": policy, "item_id": item.id}
        asked["version"] = str(item.version + 1)
        self.publish(item.author, asked, {text, title}, inside if has_file else None, crash)

    def some_item(self, data: st.DataObject, is_meant: Callable[[Item], bool] = lambda _: True) -> Item:
        ids = sorted(item.id for item in self.model.items.values() if is_meant(item))
        return self.model.items[data.draw(st.sampled_from(ids))]

    def publish(self, user: str, asked: dict[str, Any], marks: set[str], inside: str | None, crash: int | None) -> None:
        shared = self.memory(user).shared
        data = None if inside is None else f"{inside} of a file".encode()
        if asked["access_policy"] not in ("public", *GROUPS[user]):
            with pytest.raises(InvalidInputError, match="access_policy"):
                shared.preview(**asked, attachment=data)
            return
        self.leaving |= marks if inside is None else {*marks, inside}
        preview = shared.preview(**asked, attachment=data)
        assert marks_in(msgspec.json.encode(preview.content)) == marks  # only the preview's content leaves the memory
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
        self.publishes(Item(id_, user, asked["access_policy"], frozenset(marks), version, data))
        assert shared.confirm(preview, data) == stored  # repeated, as if the answer had been lost

    @precondition(lambda self: any(item.author for item in self.model.items.values()))
    @rule(data=st.data(), crash=crashes)
    def unpublish(self, data: st.DataObject, crash: int | None) -> None:
        item = self.some_item(data, lambda item: bool(item.author))
        for user in GROUPS.keys() - {item.author}:
            assert not self.memory(user).shared.unpublish(item.id).found
        shared = self.memory(item.author).shared
        again = shared.preview("again", "the same id", item_id=item.id, version="after", access_policy="public")
        self.run(lambda: shared.unpublish(item.id), crash)
        shared = self.memory(item.author).shared
        if item.id in {one.id for one in shared.published()}:
            assert crash is not None
            return
        self.model.remove(item.id)
        assert not shared.unpublish(item.id).found
        with pytest.raises(InvalidInputError, match="unpublished"):
            shared.confirm(again)

    @rule(user=offerers, saying=sayings, policy=policies, crash=crashes)
    def offer_alone(self, user: str, saying: str, policy: str, crash: int | None) -> None:
        """Offer words that nobody else offers."""
        if policy in ("public", *EVERYBODY[user]):
            title, text = self.says(user, 2)
            self.offers(user, policy, Words(f"{title} alone", f"{text} {saying}"), crash)

    @rule(policy=policies, whom=st.sets(offerers, min_size=4), spelled=spellings, crash=crashes)
    def offer_together(self, policy: str, whom: set[str], spelled: list[str], crash: int | None) -> None:
        """Offer words that others also offer, with different punctuation and a different tag."""
        common = self.said_by_many.setdefault(policy, (self.mark(), self.mark()))
        able = [user for user in sorted(whom) if policy in ("public", *EVERYBODY[user])]
        for user, end in zip(able, spelled, strict=False):
            self.model.said[user].update(common)
            if (policy, frozenset(common)) not in {one.said for one in self.model.offers.values() if one.user == user}:
                words = Words(f"{common[0]} of many", f"{common[1]} {SAYINGS[0]}{end}")
                self.offers(user, policy, words, crash if user == able[-1] else None)

    def offers(self, user: str, policy: str, words: Words, crash: int | None) -> None:
        shared, (tag,) = self.memory(user).shared, self.says(user, 1)
        common = frozenset(marks_in(" ".join(words).encode()))
        preview = shared.preview(*words, tags=[tag], access_policy=policy, offer=True)
        assert marks_in(msgspec.json.encode(preview.content)) == {*common, tag}
        offer = Offer(preview.content.item_id, user, policy, words, common | {tag}, common)
        self.leaving |= offer.marks
        self.run(lambda: shared.offer(preview), crash)
        if offer.id in {one.content.item_id for one in self.memory(user).shared.offered()}:
            self.model.offers[offer.id] = offer
        else:
            assert crash is not None
            self.model.left |= offer.marks

    @precondition(lambda self: self.model.offers)
    @rule(data=st.data(), crash=crashes)
    def take_back(self, data: st.DataObject, crash: int | None) -> None:
        offer = self.model.offers[data.draw(st.sampled_from(sorted(self.model.offers)))]
        for user in GROUPS.keys() - {offer.user}:
            assert not self.memory(user).shared.unpublish(offer.id).found
        self.run(lambda: self.memory(offer.user).shared.unpublish(offer.id), crash)
        if offer.id in {one.content.item_id for one in self.memory(offer.user).shared.offered()}:
            assert crash is not None
        else:
            self.model.withdraw(lambda one: one.id == offer.id)

    @precondition(lambda self: any(item.offerers for item in self.model.items.values()))
    @rule(data=st.data(), from_the_files=st.booleans())
    def take_from_many(self, data: st.DataObject, from_the_files: bool) -> None:
        """Remove an item offered by many users, together with its offers; only an administrator can do this."""
        item = self.some_item(data, lambda item: bool(item.offerers))
        for user in GROUPS:
            assert not self.memory(user).shared.unpublish(item.id).found
        if from_the_files:
            with self.world.closed():
                assert erase(
                    self.world.data_dir, self.world.settings, SHARED_USER, Selection(ids=(item.id,)), now()
                ).complete
        else:
            assert self.world.user(ADMIN, is_admin=True).shared.unpublish(item.id).found
        self.model.withdraw(lambda one: one.id in item.offerers.values())

    @rule(user=st.one_of(users, st.sampled_from(sorted(CROWD)), st.sampled_from(BY_HAND)), crash=crashes)
    def erase(self, user: str, crash: int | None) -> None:
        mine, pseudonym = self.model.of_author(user), self.world.shared._authors.pseudonym(user)
        if crash is not None:
            self.run(lambda: self.world.shared.ask(Caller(user_id=user), ForgetUser()), crash)
            assert {one.id for one in self.memory(user).shared.published()} in (set(), mine.keys())
        with self.world.closed():
            assert erase_user(self.world.data_dir, self.world.settings, user, now()).complete
        self.model.erase(user, pseudonym)
        self.settled()  # includes upkeep and announcements
        self.model.announce()
        self.model.compact()
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
    def rate(self, data: st.DataObject, user: str, rating: float | None) -> None:
        item, shared = self.some_item(data), self.memory(user).shared
        if item.is_of(user):
            with pytest.raises(InvalidInputError, match="own"):
                shared.rate(item.id, rating)
        elif item.id in self.model.admitted(user):
            self.rates(user, item, rating)

    @rule(user=users, crash=crashes)
    def report(self, user: str, crash: int | None) -> None:
        self.reports(user, crash)

    def reports(self, user: str, crash: int | None = None) -> None:
        """Send a report as upkeep does. After a crash, the next upkeep repeats the report, which counts once."""
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

    @precondition(lambda self: self.model.items)
    @rule(
        data=st.data(),
        sender=st.sampled_from((*BY_HAND, "author")),
        number=st.integers(1, 3),
        said=st.lists(qualities, min_size=1, max_size=4),
    )
    def report_by_hand(self, data: st.DataObject, sender: str, number: int, said: list[float]) -> None:
        """Send a report by hand, even for the user's own item, with a number that may have been counted already."""
        item = self.some_item(data)
        user = (item.author or min(item.offerers)) if sender == "author" else sender
        self.reports_by_hand(user, item, number, said)

    def reports_by_hand(self, user: str, item: Item, number: int, said: list[float]) -> None:
        """Send a report twice, as if the first answer had been lost."""
        used = ReportedItem(
            item_id=item.id, version=item.named[1], retrievals=len(said), uses=len(said), quality=sum(said)
        )
        for _ in range(2):
            self.world.shared.ask(Caller(user_id=user), Report(number=number, items=(used,)))
        if not item.is_of(user):
            self.model.tallies[item.named].count_numbered(user, number, len(said), said)

    @rule(crash=crashes)
    def upkeep(self, crash: int | None) -> None:
        self.run(self.world.shared.expire, crash)
        self.keep_up()
        stats = [self.world.shared.stats(), *(self.memory(user).stats() for user in GROUPS)]
        assert not marks_in(msgspec.json.encode(stats))

    @rule(crash=crashes)
    def tell_followers(self, crash: int | None) -> None:
        """Announce changes the way the daemon does. After a kill, the next call continues the announcement."""
        if crash is not None:
            self.model.announce()
            self.run(self.followers.announce, crash)
        else:
            self.announce_all()

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
        """Restore a backup, with all its items except those removed since."""
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
        if self.model.ended or self.model.pseudonyms:  # the restore applied the history and ran upkeep
            self.settled()
        self.nothing_private_is_in_the_files()

    def run(self, do: Callable[[], object], crash: int | None) -> None:
        """Run an action. If `crash` is a number, kill the process after that step or after the last step."""
        if crash is None:
            do()
            return
        kept, left = self.root / "kept", [crash or 1]

        def step() -> None:
            left[0] -= 1
            if left[0] == 0:
                copy_folder(self.world.data_dir, kept)

        if crash == ANSWERED:
            self.world.on_answer = step
            do()
            self.world.on_answer = lambda: None
        else:
            with after_each_step(step):
                do()
        if not kept.exists():
            copy_folder(self.world.data_dir, kept)
        self.world.crash(kept)


class EncryptedSharingModel(SharingModel):
    """The same model with encryption: no file contains a user's mark."""

    is_encrypted = True


TestSharing = pytest.mark.slow(pytest.mark.timeout(1_200)(SharingModel.TestCase))
TestEncryptedSharing = pytest.mark.slow(pytest.mark.timeout(1_200)(EncryptedSharingModel.TestCase))
TestSharing.settings = settings(
    max_examples=settings.default.max_examples // 25,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.generate),  # shrinking a failure takes minutes, and examples are short
    derandomize=settings.get_current_profile_name() != "deep",
)
TestEncryptedSharing.settings = settings(TestSharing.settings, max_examples=settings.default.max_examples // 100)
