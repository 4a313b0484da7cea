"""Invariants that hold after each step of a sequence of operations on shared items.

Files, answers, events, messages and logs contain only what the model (`sharing_model`) allows, and the figures match
its counts.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path

import msgspec
import pytest
import structlog
from hypothesis.stateful import RuleBasedStateMachine, invariant
from msgspec.structs import astuple
from sharing_followers import Followers
from sharing_model import (
    EVERYBODY,
    GROUPS,
    POLICIES,
    Item,
    Model,
    VectorSearch,
    forms_of,
    half,
    marks_in,
    printed_forms_of,
)
from sharing_world import World, parts_of
from test_publish_log import changes_in

from memory_agent.care import verify_folder
from memory_agent.embedders import Embedder, open_embedder
from memory_agent.erasure.logs import fingerprint
from memory_agent.errors import InvalidInputError
from memory_agent.knowledge.figures import Contribution
from memory_agent.knowledge.pseudonyms import FIGURES, FILE, OFFERERS, OFFERS
from memory_agent.memory import Memory
from memory_agent.records.shared_requests import Caller, ListOffers, Offer, Publish, SearchItems, SetName
from memory_agent.settings import EmbedderSettings
from memory_agent.storage.folders import user_folder
from relay import SHARED_USER

SAYINGS = (
    "connect to the VPN before a deploy to staging",
    "a mutex for each session fixed the race for the token",
    "the nightly backup fails while the disk is full",
    "restart the tunnel when the login times out",
)
UNKNOWN = "0" * 26
NUMBERS = re.compile(r"(?:-?\d\.\d+(?:e-?\d+)?[,\s]+){4}")
"""Matches part of a vector as a log would print it."""

_opened: list[Embedder] = []


def embedder() -> Embedder:
    """The real embedder, opened once for all tests."""
    if not _opened:
        _opened.append(open_embedder(EmbedderSettings(allow_download=False)))
    return _opened[0]


def close_embedder() -> None:
    while _opened:
        _opened.pop().close()


def quiet(*_: object) -> None:
    return None


def refused(ask: Callable[[str], object], item_id: str) -> tuple[object, ...]:
    with pytest.raises(InvalidInputError) as error:
        ask(item_id)
    return error.value.args


class CheckedSharing(RuleBasedStateMachine):
    """Several users, the store and the relay on disk, and the model. If `is_encrypted`, no file contains a mark."""

    is_encrypted = False

    def create(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="sharing-"))
        self.numbers = count(1)
        self.model = Model()
        self.saved: tuple[Model, set[str]] | None = None
        self.capturing = structlog.testing.capture_logs()
        self.logs = self.capturing.__enter__()
        self.leaving: set[str] = set()  # the marks that users send to the store in a step
        self.said_by_many: dict[str, tuple[str, str]] = {}  # marks of words that many users offer, by policy
        self.lines = self.recalls = 0
        self.in_files, self.in_journal = VectorSearch(), VectorSearch()
        if self.is_encrypted:
            (self.root / "keys").mkdir(mode=0o700)
        self.world = World(self.root / "data", embedder(), keys=self.root / "keys" if self.is_encrypted else None)
        self.followers = Followers(self.world, GROUPS)

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        self.keep_up()
        self.announce_all()
        self.nothing_private_is_in_the_files()
        self.events_contain_only_published_items()
        self.world.close()
        self.nothing_private_is_in_the_files()
        parts = verify_folder(self.world.data_dir, self.world.settings, quiet)
        assert [part.findings for part in parts if part.findings] == []
        self.logs_contain_no_marks()
        assert self.lines >= self.recalls  # otherwise there would be no log lines to check
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

    def check_answer(self, user: str, answer: object) -> None:
        """Check an answer to a user."""
        assert marks_in(msgspec.json.encode(answer)) <= self.model.may_see(user)

    def keep_up(self) -> None:
        """Run the store's upkeep."""
        self.world.shared.expire()
        self.settled()

    def settled(self) -> None:
        """Update the model after upkeep, and set the ids of the items that upkeep proposed."""
        proposed = self.model.settle(self.world.shared._authors.pseudonym)
        with self.world.shared._archive.store.snapshot() as snapshot:
            new = {record.title: record for _, record in snapshot.scan() if record.id not in self.model.items}
        assert len(new) == len(proposed)
        for group in proposed:
            spelled = [offer.words for offer in group.values()]
            words = min(spelled, key=lambda one: (-spelled.count(one), one))
            record, one = new[words.title], next(iter(group.values()))
            assert (record.text, record.tags) == (words.summary, ())
            offerers = {user: offer.id for user, offer in group.items()}
            item = Item(record.id, "", one.policy, one.common, 1, None, b"", words, offerers)
            self.publishes(item)
        self.model.is_purged = True

    def publishes(self, item: Item) -> None:
        """Add a published item to the model."""
        (record,) = self.world.shared.get([item.id], with_embedding=True)
        item.vector = half(record.embedding)
        with self.world.shared._archive.store.snapshot() as snapshot:
            standing, _ = parts_of(snapshot, item.id)[item.named[1]]
        self.model.publish(item, standing.key)

    def announce_all(self) -> None:
        """Publish all pending changes to followers, and check what each follower reads."""
        self.model.announce()
        self.followers.announce()
        self.followers.compact()
        self.model.compact()
        for user, entries in self.followers.entries().items():
            self.model.check_received(user, changes_in(entries))
            data = b"".join(entry.data for entry in entries)
            assert not marks_in(data)
            assert not any(name.encode() in data for name in (*EVERYBODY, *self.pseudonyms()))

    def pseudonyms(self) -> set[str]:
        """The pseudonyms of the users, including the former pseudonyms of erased users."""
        return self.model.pseudonyms | {self.world.shared._authors.pseudonym(user) for user in EVERYBODY}

    @invariant()
    def nothing_private_is_in_the_files(self) -> None:
        model, data = self.model, self.world.bytes_of_the_store()
        gone = set() if model.is_purged else model.left
        allowed = set() if self.is_encrypted else model.published() | gone
        assert marks_in(data) <= allowed
        assert self.is_encrypted or model.published() <= marks_in(data)  # shows that `marks_in` finds marks
        assert not any(user.encode() in data for user in EVERYBODY)
        live = {item.vector for item in model.items.values()} if model.is_purged else model.public
        hidden = model.vectors if self.is_encrypted else model.vectors - live
        assert not self.in_files.finds_any(data, hidden)
        kept = {*model.items, *model.offers}
        ids = kept | model.ended if self.is_encrypted else model.ended if model.is_purged else set()
        assert not any(id_.encode() in data for id_ in ids)
        if model.is_purged or self.is_encrypted:
            assert not any(name.encode() in data for name in model.pseudonyms)

    @invariant()
    def events_contain_only_published_items(self) -> None:
        """Check that the journal contains no words, vectors or users, and only permitted item ids."""
        model, data = self.model, self.followers.bytes_of_the_journal()
        assert not marks_in(data)
        assert not any(name.encode() in data for name in (*EVERYBODY, *self.pseudonyms()))
        assert not self.in_journal.finds_any(data, model.vectors)
        known = {*model.items, *model.offers, *model.ended}
        hidden = known if self.is_encrypted else known - model.journal.named
        found = {id_ for id_ in hidden if id_.encode() in data}
        groups = {"items": model.items, "offers": model.offers, "ended": model.ended, "astray": model.journal.astray}
        assert {name: found & {*group} for name, group in groups.items() if found & {*group}} == {}
        if self.is_encrypted:
            assert not any(fingerprint(SHARED_USER, id_).encode() in data for id_ in known)
            assert not any(policy.encode() in data for policy in POLICIES)

    @invariant()
    def no_user_folder_contains_words_of_another_user(self) -> None:
        for user in GROUPS:
            files = (file for file in user_folder(self.world.data_dir, user).rglob("*") if file.is_file())
            assert marks_in(b"".join(file.read_bytes() for file in files)) <= self.model.said[user]

    @invariant()
    def searches_find_exactly_the_admitted_items(self) -> None:
        for user in GROUPS:
            admitted, found = self.model.admitted(user), self.world.found(user, SAYINGS[0], *GROUPS[user])
            assert found.keys() <= admitted.keys()
            texts = {admitted[id_].marks for id_ in found}
            assert {item.marks for item in admitted.values()} == texts  # equal offers yield one item
            self.check_answer(user, list(found.values()))
            own = self.memory(user).shared.published()
            assert {one.id: one.version for one in own} == {
                id_: str(item.version) for id_, item in self.model.of_author(user).items()
            }
            self.check_answer(user, own)
            for item in (*own, *(one.item for one in found.values())):
                assert item.quality_metrics == self.model.tallies[item.id, item.version].metrics()
                offered_by = len(self.model.items[item.id].offerers) // 5 * 5
                assert item.offered_by == offered_by
                assert not offered_by or item.author == f"{offered_by} users"
            for one in found.values():
                assert one.is_proven == self.model.tallies[one.item.id, one.item.version].is_proven
            self.reaches_by_id(user)
        for user in EVERYBODY:
            offered = self.world.shared.ask(Caller(user_id=user), ListOffers())
            assert {one.content.item_id: one.proposed_as for one in offered} == self.model.offers_of(user)
            self.check_answer(user, offered)
        for user, answer in self.world.answers:
            shown = repr(answer)
            assert not any(name in shown for name in EVERYBODY), user
            assert marks_in(msgspec.msgpack.encode(answer)) <= self.model.may_see(user) | self.model.said[user]
        self.world.answers.clear()

    def reaches_by_id(self, user: str) -> None:
        """Check that each item is visible to the users that its policy admits, and to no others."""
        shared, visible = self.memory(user).shared, self.model.admitted(user) | self.model.of_author(user)
        asks: list[Callable[[str], object]] = [shared.item, shared.attachment, partial(shared.rate, rating=1.0)]
        unknown = [refused(ask, UNKNOWN) for ask in asks]
        for item in self.model.items.values():
            if item.id not in visible:
                assert [refused(ask, item.id) for ask in asks] == unknown
                continue
            seen = shared.item(item.id)
            assert (seen.id, seen.version, seen.access_policy) == (*item.named, item.policy)
            self.check_answer(user, seen)
            if item.data is not None:
                assert shared.attachment(item.id).data == item.data

    @invariant()
    def a_memory_sends_only_what_its_user_confirmed(self) -> None:
        messages = []
        for caller, ask in self.world.asked:
            message = msgspec.msgpack.encode((caller.rights, ask))
            chosen = self.leaving if isinstance(ask, Publish | Offer | SearchItems | SetName) else set()
            assert marks_in(message) <= chosen
            messages.append(message)
        sent = b"\n".join(messages)
        assert not any(user.encode() in sent for user in EVERYBODY)
        assert not any(form in sent for vector in self.model.vectors for form in forms_of(vector))
        self.world.asked.clear()
        self.leaving.clear()

    @invariant()
    def figures_match_the_contributions_of_existing_users(self) -> None:
        """Check that each contribution is stored once, and that none is stored for the item's author."""
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
    def every_item_is_complete(self) -> None:
        items, offers = self.model.items, self.model.offers
        with self.world.shared._archive.store.snapshot() as snapshot:
            assert {record.id for _, record in snapshot.scan()} == items.keys()
            kept = {kind: len(snapshot.blobs(kind)) for kind in (FILE, FIGURES, OFFERERS, OFFERS)}
        assert kept == {
            FILE: sum(item.data is not None for item in items.values()),
            FIGURES: len(items),
            OFFERERS: sum(bool(item.offerers) for item in items.values()),
            OFFERS: len({offer.user for offer in offers.values()}),
        }

    @invariant()
    def searches_leave_no_trace(self) -> None:
        store = self.world.shared._archive.store
        with store.snapshot() as snapshot:
            assert list(snapshot.recall_notes()) == []
            assert not any(record.times_recalled for _, record in snapshot.scan())
        assert not store.has_waiting_notes

    @invariant()
    def logs_contain_no_marks(self) -> None:
        lines = repr(self.logs)
        assert not marks_in(lines.encode())
        assert not NUMBERS.search(lines)
        assert not any(form in lines for vector in self.model.vectors for form in printed_forms_of(vector))
        self.lines += len(self.logs)
        self.logs.clear()
