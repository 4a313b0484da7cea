"""Events for followers of shared items: each change is sent once, to readers that the policy admits."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from sharing_world import UNLIMITED, World, after_each_step

from memory_agent.care import erase, erase_user, make_backup, restore_user, verify_folder
from memory_agent.daemon import announcer as announcer_module
from memory_agent.daemon.announcer import Announcer
from memory_agent.erasure.logs import fingerprint
from memory_agent.erasure.request import Selection
from memory_agent.knowledge import publish_log
from memory_agent.records.shared import GlobalRecord, SharedChange
from memory_agent.records.shared_requests import Caller, ForgetUser, ReadLog
from memory_agent.settings import EmbedderSettings, Settings
from memory_agent.storage.folders import user_folder
from relay import (
    SHARED_USER,
    AsyncSubscriber,
    Broker,
    BrokerSettings,
    BusSettings,
    EncryptionSettings,
    EventLimits,
    Identity,
    Journal,
    JournalEntry,
    JournalError,
    JournalSettings,
    Publisher,
    RelaySettings,
    RelayUnavailableError,
    Scope,
    ScopeMissingError,
    Subscriber,
    UnauthorizedError,
    UserNotAllowedError,
    create_key,
    revoke_key,
)

PUBLIC, ACME, PRO = "public", "org:acme", "tier:pro"
GROUPS = {"member": (ACME,), "payer": (PRO,), "both": (ACME, PRO), "nobody": ()}
SOON = RelaySettings(broker=BrokerSettings(upkeep_interval_s=0.05))
Received = list[tuple[str, str]]


class Deployment:
    """Shared items, a relay, and followers that each have a key."""

    def __init__(self, data_dir: Path, keys: Path | None = None) -> None:
        encryption = EncryptionSettings(keys_folder=str(keys or ""))
        embedder = EmbedderSettings(folder="none")
        self.world = World(data_dir, None, Settings(shared=UNLIMITED, embedder=embedder, encryption=encryption))
        self.data_dir = data_dir
        self.broker = Broker(data_dir, msgspec.structs.replace(SOON, encryption=encryption)).start()
        self.tokens: dict[str, str] = {}

    def close(self) -> None:
        self.broker.stop()
        self.world.close()

    def announce(self) -> None:
        async def told() -> None:
            async with AsyncSubscriber(*self.broker.endpoints) as journal:
                await Announcer(
                    self.world.shared, journal, self.broker.endpoints.ingest, EventLimits()
                ).publish_changes()

        asyncio.run(told())

    def publish(self, title: str, policy: str = PUBLIC, **fields: str) -> GlobalRecord:
        shared = self.world.user("ann", ACME, PRO).shared
        return shared.confirm(shared.preview(title, f"{title} needs the VPN", access_policy=policy, **fields))

    def entries(self, name: str, user_id: str = SHARED_USER) -> list[JournalEntry]:
        """Return the entries that a follower's key may read."""
        if name not in self.tokens:
            orgs = {group[4:] for group in GROUPS[name] if group.startswith("org:")}
            tier = "pro" if PRO in GROUPS[name] else None
            scopes = frozenset({Scope.RECALL})
            made = create_key(self.data_dir, f"of-{name}", name, scopes, orgs=frozenset(orgs), tier=tier)
            self.tokens[name] = made.token
        with Subscriber(*self.broker.endpoints, identity=Identity(token=self.tokens[name])) as subscriber:
            return subscriber.fetch(0, 1_000, user_id=user_id).entries

    def received(self, name: str = "both") -> Received:
        """Return the events that a follower receives, each as its kind and the item's id or fingerprint."""
        changes = changes_in(self.entries(name))
        return [(change.kind, change.item_id or change.item) for change in changes]

    def journal_holds(self, text: str) -> bool:
        return text.encode() in (self.data_dir / "journal" / "data.mdb").read_bytes()


@contextmanager
def deployment(copy: Path | None = None, keys: Path | None = None) -> Iterator[Deployment]:
    with tempfile.TemporaryDirectory(prefix="log-") as folder:
        data_dir = Path(folder) / "data"
        if copy is not None:
            shutil.copytree(copy, data_dir, ignore=shutil.ignore_patterns("*.sock"))
        opened = Deployment(data_dir, keys)
        try:
            yield opened
        finally:
            opened.close()


@pytest.fixture
def here() -> Iterator[Deployment]:
    with deployment() as opened:
        yield opened


def changes_in(entries: list[JournalEntry]) -> list[SharedChange]:
    """Return the change recorded by each journal entry."""
    changes = [change for entry in entries if (change := SharedChange.in_entry(entry))]
    assert len(changes) == len(entries)
    return changes


def gone(item: GlobalRecord) -> str:
    return fingerprint(SHARED_USER, item.id)


def quiet(*_: object) -> None:
    return None


def test_each_change_reaches_only_readers_that_the_policy_admits(here: Deployment) -> None:
    items = {policy: here.publish(policy.replace(":", " "), policy) for policy in (PUBLIC, ACME, PRO)}
    here.announce()
    for name, groups in GROUPS.items():
        admitted = [("published", items[policy].id) for policy in (PUBLIC, ACME, PRO) if policy in (PUBLIC, *groups)]
        assert here.received(name) == admitted
        assert here.entries(name, name) == []
        assert not any(items[policy].id.encode() in entry.data for entry in here.entries(name) for policy in items
                       if policy not in (PUBLIC, *groups))  # fmt: skip
    for item in items.values():
        here.world.user("ann").shared.unpublish(item.id)
    here.announce()
    for name, groups in GROUPS.items():
        admitted = [("unpublished", gone(items[policy])) for policy in items if policy in (PUBLIC, *groups)]
        assert here.received(name) == admitted


def test_an_event_has_the_item_id_but_no_text_and_no_author(here: Deployment) -> None:
    item = here.publish("The quokka", ACME, version="7.1")
    here.announce()
    (entry,) = here.entries("member")
    change = SharedChange.in_entry(entry)
    assert (entry.event_type, entry.user_id) == ("global.published", SHARED_USER)
    assert change == SharedChange(
        kind="published",
        item=gone(item),
        access_policy=ACME,
        at=item.published_at,
        item_id=item.id,
        version="7.1",
        content_type="document",
    )
    for word in ("uokka", "VPN", item.author_id, "ann"):
        assert word.encode() not in entry.data
    for other in ({"data": b"{"}, {"user_id": "ann"}, {"event_type": "chat.user_msg"}):
        assert SharedChange.in_entry(msgspec.structs.replace(entry, **other)) is None


def test_only_keys_that_may_read_can_follow_until_they_are_revoked(here: Deployment) -> None:
    here.publish("The quokka")
    here.announce()
    assert len(here.received("member")) == 1
    revoke_key(here.data_dir, "of-member")
    with pytest.raises(UnauthorizedError):
        here.received("member")
    writer = create_key(here.data_dir, "writes", "member", frozenset({Scope.PUBLISH, Scope.SHARE}))
    here.tokens["member"] = writer.token
    with pytest.raises(ScopeMissingError):
        here.received("member")
    with pytest.raises(UserNotAllowedError):
        here.entries("nobody", "member")


def test_the_journal_keeps_only_the_fingerprint_of_an_unpublished_item(here: Deployment) -> None:
    item, kept = here.publish("The quokka"), here.publish("The other")
    here.announce()
    assert here.journal_holds(item.id)
    here.world.user("ann").shared.unpublish(item.id)
    here.world.shared.expire()
    assert item.id.encode() not in here.world.bytes_of_the_store()  # not even in the log, before the announcement
    here.announce()
    assert here.received() == [("published", kept.id), ("unpublished", gone(item))]
    with Subscriber(*here.broker.endpoints) as local:
        while local.stats().journal.uncompacted:
            local.wait(0.05)
    assert not here.journal_holds(item.id)
    assert here.journal_holds(gone(item))


def test_an_item_removed_before_its_announcement_is_announced_only_as_removed(here: Deployment) -> None:
    item = here.publish("The quokka")
    here.publish("The quokka two", version="2", item_id=item.id)
    other = here.publish("Another")
    here.publish("Another again", version="2", item_id=other.id)
    here.world.user("ann").shared.unpublish(item.id)
    here.announce()
    assert here.received() == [("published", other.id), ("unpublished", gone(item))]
    assert changes_in(here.entries("both"))[0].version == "2"


def test_an_encrypted_log_and_journal_show_neither_items_nor_readers(tmp_path: Path) -> None:
    with deployment(keys=tmp_path / "keys") as here:
        item, went = here.publish("The quokka", ACME), here.publish("The other", ACME)
        here.announce()
        here.world.user("ann").shared.unpublish(went.id)
        for _ in range(2):  # before and after the removal is announced
            stored = here.world.bytes_of_the_store().replace(gone(went).encode(), b"", 1)  # the history contains it
            for text in (item.id, went.id, gone(item), gone(went), "acme", "published"):
                assert not here.journal_holds(text)
                assert text.encode() not in stored
            here.announce()
        assert here.received("member") == [("published", item.id), ("unpublished", gone(went))]


def test_a_change_of_policy_announces_removal_to_the_former_readers(here: Deployment) -> None:
    item = here.publish("The quokka", PRO)
    here.announce()
    here.publish("The quokka", ACME, version="2", item_id=item.id)
    here.announce()
    assert here.received("payer") == [("unpublished", gone(item))]
    assert here.received("member") == [("published", item.id)]
    assert here.received("both") == [("unpublished", gone(item)), ("published", item.id)]
    assert here.received("nobody") == []


def test_a_rating_is_announced_at_its_release_without_its_rater(here: Deployment) -> None:
    item = here.publish("The quokka")
    here.announce()
    raters = [f"rater-{number}" for number in range(5)]

    def rate(names: list[str], rating: float | None) -> Received:
        """Rate an item, and run upkeep and announce changes after each rating."""
        for name in names:
            here.world.user(name).shared.rate(item.id, rating)
            here.world.shared.expire()
            here.announce()
        return here.received()[1:]

    assert rate(raters[:4], 1.0) == []
    assert rate(raters[4:], 1.0) == [("rated", item.id)]
    assert rate(raters[:4], 0.0) == [("rated", item.id)]
    assert rate(raters[4:], 0.0) == [("rated", item.id)] * 2
    assert rate(raters, 0.0) == [("rated", item.id)] * 2  # unchanged
    pseudonyms = {here.world.shared._authors.pseudonym(name) for name in raters}
    for entry in here.entries("both"):
        assert not any(name.encode() in entry.data for name in (*raters, *pseudonyms))
        assert b"rating" not in entry.data
    assert rate(raters[:1], None) == [("rated", item.id)] * 2  # withdrawn, because too few raters remain
    assert here.world.user("ben").shared.search("quokka")[0].item.quality_metrics.user_rating is None
    here.world.user("ann").shared.unpublish(item.id)
    here.announce()
    assert here.received() == [("unpublished", gone(item))]


def test_erasing_a_rater_is_not_announced(here: Deployment) -> None:
    item = here.publish("The quokka")
    for number in range(6):
        here.world.user(f"rater-{number}").shared.rate(item.id, 1.0)
    here.world.shared.expire()
    here.announce()
    before = here.received()
    here.world.shared.ask(Caller(user_id="rater-0"), ForgetUser())
    here.world.shared.expire()
    here.announce()
    assert here.received() == before == [("published", item.id), ("rated", item.id)]


@pytest.mark.parametrize("is_served", [True, False])
def test_items_of_an_erased_user_are_announced_as_removed(here: Deployment, *, is_served: bool) -> None:
    items = [here.publish(f"Quokka {number}", ACME) for number in range(3)]
    here.announce()
    author = items[0].author_id
    if is_served:
        here.world.shared.ask(Caller(user_id="ann"), ForgetUser())
    else:
        here.world.close()
        here.broker.stop()
        receipt = erase_user(here.data_dir, here.world.settings, "ann", datetime.now(UTC))
        assert (receipt.unpublished, receipt.complete) == (3, True)
        assert not any(here.journal_holds(item.id) for item in items)
        here.broker = Broker(here.data_dir, SOON).start()
        here.world.open()
    here.announce()
    assert here.received("nobody") == []
    assert sorted(here.received("member")) == sorted(("unpublished", gone(item)) for item in items)
    for entry in here.entries("member"):
        assert not any(word.encode() in entry.data for word in (author, *(item.id for item in items)))


def test_an_item_erased_by_id_disappears_from_the_journal(here: Deployment) -> None:
    item = here.publish("The quokka", ACME)
    here.announce()
    assert here.journal_holds(item.id)
    here.world.close()
    here.broker.stop()
    receipt = erase(here.data_dir, here.world.settings, SHARED_USER, Selection(ids=(item.id,)), datetime.now(UTC))
    assert (receipt.memories, receipt.complete) == (1, True)
    assert not here.journal_holds(item.id)
    here.broker = Broker(here.data_dir, SOON).start()
    here.world.open()
    here.announce()
    assert here.received("member") == [("unpublished", gone(item))]


def test_a_journal_that_fails_keeps_no_user_from_being_erased(
    here: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise JournalError("it was damaged meanwhile")

    here.publish("The quokka", ACME)
    here.world.user("ann").remember("hers alone")
    here.world.close()
    here.broker.stop()
    with monkeypatch.context() as patched:
        patched.setattr(Journal, "append", fails)
        receipt = erase_user(here.data_dir, here.world.settings, "ann", datetime.now(UTC))
    assert (receipt.unpublished, receipt.complete) == (1, False)
    assert not user_folder(here.data_dir, "ann").exists()
    here.broker = Broker(here.data_dir, SOON).start()
    here.world.open()


def test_a_receipt_states_that_a_full_journal_still_has_the_removed_items(here: Deployment) -> None:
    """The items are removed by the first daemon that starts once the journal has room again."""
    item = here.publish("The quokka", ACME)
    here.announce()
    with Publisher(here.broker.endpoints.ingest) as publisher:
        for number in range(30):
            note = {"event_type": "note", "user_id": "ben", "payload": {"text": f"{number} " * 10_000}}
            publisher.publish(note)
        assert not publisher.flush().pending
    here.world.close()
    here.broker.stop()
    full = BusSettings(journal=JournalSettings(map_size_bytes=1 << 20))
    settings = msgspec.structs.replace(here.world.settings, relay=full)
    receipt = erase_user(here.data_dir, settings, "ann", datetime.now(UTC))
    assert (receipt.unpublished, receipt.complete) == (1, False)
    assert "journal_full" in str(receipt.reason)
    here.broker = Broker(here.data_dir, SOON).start()
    here.world.open()
    here.announce()
    assert here.received("member") == [("unpublished", gone(item))]


def test_a_kill_at_any_step_announces_each_change_once(tmp_path: Path) -> None:
    copies: list[Path] = []
    copying = threading.Lock()  # the relay runs in another thread
    with deployment() as here:
        first, moved = here.publish("The first", ACME), here.publish("The moved")
        here.announce()

        def keep() -> None:
            with copying:
                copies.append(tmp_path / str(len(copies)))
                shutil.copytree(here.data_dir, copies[-1], ignore=shutil.ignore_patterns("*.sock"))

        with after_each_step(keep):
            second = here.publish("The second", ACME)
            here.publish("The second again", ACME, version="2", item_id=second.id)
            here.world.user("ann").shared.unpublish(first.id)
            here.publish("The moved again", ACME, version="2", item_id=moved.id)
            here.publish("The third", ACME)
            here.announce()
    assert len(copies) > 10
    seen = set()
    for copy in copies:
        with deployment(copy) as again:
            items = {item.id: item.version for item in again.world.user("ann").shared.published()}
            again.announce()
            expected = [("published", id_) for id_ in items]
            expected += [] if first.id in items else [("unpublished", gone(first))]
            of_moved = [("published", moved.id)] if items[moved.id] == "1" else [("unpublished", gone(moved))]
            assert again.received("nobody") == of_moved
            assert sorted(again.received("member")) == sorted({*expected, *of_moved})
            entries = again.entries("member")
            again.announce()
            assert again.entries("member") == entries
            assert again.world.shared.ask(Caller(user_id="x"), ReadLog()).through == 0
            told = changes_in(entries)
            assert {one.item_id: one.version for one in told if one.item_id} == items
            seen.add(tuple(items.items()))
    assert len(seen) == 5  # one state after each change


def test_a_repeated_event_has_the_same_id(here: Deployment) -> None:
    item = here.publish("The quokka")
    for number in range(5):
        here.world.user(f"rater-{number}").shared.rate(item.id, 1.0)
    here.world.shared.expire()
    for _ in range(2):  # killed before the log received the acknowledgement
        told = here.world.shared.ask(Caller(user_id="x"), ReadLog())
        events = [change.to_event(event_id) for event_id, change in told.changes]
        with Publisher(here.broker.endpoints.ingest) as publisher:
            for event in events:
                publisher.publish(event)
            assert not publisher.flush().pending
    entries = here.entries("both")
    here.announce()
    assert here.entries("both") == entries
    assert here.received() == [("published", item.id), ("rated", item.id)]


def test_changes_of_all_kinds_are_announced_together_in_order(
    here: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    erased = counted(monkeypatch, "erase")
    items = [here.publish("Quokka 0")]
    expected = []
    for number in range(1, 8):
        items.append(here.publish(f"Quokka {number}"))
        here.world.user("ann").shared.unpublish(items[number - 1].id)
        expected.append(("unpublished", gone(items[number - 1])))
    here.publish("The last", ACME, version="2", item_id=items[-1].id)
    here.announce()
    assert here.received() == [*expected, ("unpublished", gone(items[-1])), ("published", items[-1].id)]
    assert len(erased) == 1
    monkeypatch.setattr(publish_log, "_AT_ONCE", 4)
    more = [here.publish(f"Another {number}") for number in range(10)]
    here.announce()
    assert here.received("nobody")[8:] == [("published", item.id) for item in more]
    assert here.world.shared.ask(Caller(user_id="x"), ReadLog()).through == 0


def test_a_repeated_batch_erases_none_of_its_own_events(here: Deployment) -> None:
    item = here.publish("The quokka", PRO)
    here.announce()
    here.publish("The quokka", ACME, version="2", item_id=item.id)
    with Publisher(here.broker.endpoints.ingest) as publisher:  # killed before the log received the acknowledgement
        for told in here.world.shared.ask(Caller(user_id="x"), ReadLog()).events:
            publisher.publish(told)
        assert not publisher.flush().pending
    here.announce()
    assert here.received("member") == [("published", item.id)]
    assert here.received("payer") == [("unpublished", gone(item))]


def test_removals_in_quick_succession_are_erased_from_the_journal_together(
    here: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An erasure reads all of the journal's events of shared items, and a compaction copies the journal's file."""
    items = [here.publish(f"Quokka {number}") for number in range(20)]
    here.announce()
    erased, compacted = counted(monkeypatch, "erase"), counted(monkeypatch, "compact")
    monkeypatch.setattr(announcer_module, "_REST", 1e9)  # for the rest of this test

    async def unpublished_one_by_one() -> None:
        async with AsyncSubscriber(*here.broker.endpoints) as journal:
            announcer = Announcer(here.world.shared, journal, here.broker.endpoints.ingest, EventLimits())
            running = asyncio.create_task(announcer.run())
            for item in items:
                here.world.user("ann").shared.unpublish(item.id)
                announcer.wake()
                while not erased:
                    await asyncio.sleep(0.001)
                await asyncio.sleep(0)
            running.cancel()

    asyncio.run(unpublished_one_by_one())
    assert len(erased) == 1
    here.announce()
    assert len(erased) == 2
    assert here.received() == [("unpublished", gone(item)) for item in items]
    with Subscriber(*here.broker.endpoints) as local:
        while local.stats().journal.uncompacted:
            local.wait(0.05)
    assert len(compacted) <= 2
    assert not any(here.journal_holds(item.id) for item in items)


def counted(monkeypatch: pytest.MonkeyPatch, method: str) -> list[str]:
    """Return a list that gains an entry whenever any journal's `method` is called."""
    calls: list[str] = []
    do = getattr(Journal, method)

    def called(journal: Journal, *arguments: object, **more: object) -> object:
        calls.append(method)
        return do(journal, *arguments, **more)

    monkeypatch.setattr(Journal, method, called)
    return calls


def test_the_log_keeps_changes_while_the_relay_is_unavailable(here: Deployment) -> None:
    items = [here.publish(f"Quokka {number}") for number in range(3)]
    here.broker.stop()
    with pytest.raises(RelayUnavailableError):
        here.announce()
    here.world.reopen()
    here.broker = Broker(here.data_dir, SOON).start()
    here.announce()
    assert here.received() == [("published", item.id) for item in items]


def test_a_backup_contains_the_log_and_no_change_is_announced_again(here: Deployment, tmp_path: Path) -> None:
    item, other = here.publish("The quokka"), here.publish("The other")
    here.broker.stop()
    with here.world.closed():
        make_backup(here.data_dir, tmp_path / "backup", here.world.settings, datetime.now(UTC), quiet)
    here.broker = Broker(here.data_dir, SOON).start()
    here.announce()
    here.world.user("ann").shared.unpublish(item.id)
    here.announce()
    before = here.entries("both")
    here.broker.stop()
    with here.world.closed():
        paths = tmp_path / "backup", here.data_dir
        restore_user(*paths, SHARED_USER, here.world.settings, datetime.now(UTC), quiet, replace=True)
    here.broker = Broker(here.data_dir, SOON).start()
    here.announce()
    assert here.entries("both") == before
    assert here.received() == [("published", other.id), ("unpublished", gone(item))]


def test_without_a_daemon_the_log_keeps_the_latest_entries(here: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish_log, "_MOST", 3)
    gone_before = here.publish("Gone")
    here.announce()
    here.world.user("ann").shared.unpublish(gone_before.id)
    items = [here.publish(f"Quokka {number}") for number in range(5)]
    assert faults(here) == []
    here.announce()
    assert here.received() == [("unpublished", gone(gone_before)), *(("published", item.id) for item in items[2:])]
    assert here.journal_holds(gone(gone_before))
    with here.world.shared._archive.store.snapshot() as snapshot:
        assert snapshot.blobs("shared:log:") == []
    later = here.publish("Later")
    here.announce()
    assert here.received()[4:] == [("published", later.id)]


@pytest.mark.parametrize("value", [None, b"\xc1"])
def test_verify_finds_an_incomplete_log(here: Deployment, value: bytes | None) -> None:
    for number in range(3):
        here.publish(f"Quokka {number}")
    assert faults(here) == []
    with here.world.shared._archive.batch() as batch:
        batch.set_blob(batch.blobs("shared:log:")[1], value)
    assert any("publish log" in fault for fault in faults(here))


def faults(here: Deployment) -> list[str]:
    with here.world.closed():
        parts = list(verify_folder(here.data_dir, here.world.settings, quiet, SHARED_USER))
    return [finding.fault for part in parts for finding in part.findings]
