"""Test shared items of a real daemon: search by others, an unavailable store, crash recovery and erasure."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from memory_agent import MemoryClient
from memory_agent.errors import InvalidInputError, MemoryAgentError
from memory_agent.records.memories import RecallResult
from memory_agent.records.shared import GlobalRecord, SharedChange
from memory_agent.storage.folders import user_folder
from relay import ALL_SCOPES, SHARED_USER, Identity, Scope, Subscriber, create_key, relay_endpoints

from .conftest import ONE_HOST, DaemonProcess, environment
from .test_killed import part_pid, wait_until

FIX = "The deploy to staging hangs while the VPN is off: connect it first"
QUESTION = "why does the deploy to staging hang?"
BOTH = ("local", "global")


def client_of(daemon: DaemonProcess, user_id: str, token: str | None = None) -> MemoryClient:
    return MemoryClient(user_id, data_dir=daemon.data_dir, token=token)


def published(client: MemoryClient, text: str = FIX, **fields: object) -> GlobalRecord:
    return client.shared.confirm(client.shared.preview("The deploy hangs", text, **fields))  # type: ignore[arg-type]


def asked(client: MemoryClient, *tiers: str) -> RecallResult:
    return client.recall(QUESTION, deadline_ms=30_000, tiers=tiers)  # type: ignore[arg-type]


def pid_of_the_store(daemon: DaemonProcess) -> int:
    with client_of(daemon, "anybody") as client:
        found = [part.pid for part in client.status().parts if part.name == SHARED_USER]
    assert found[0] is not None
    return found[0]


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_what_one_user_shares_is_found_by_others_until_it_is_unpublished(own_full_daemon: DaemonProcess) -> None:
    own_full_daemon.configure(*ONE_HOST)
    own_full_daemon.start()
    with (
        client_of(own_full_daemon, "ann") as ann,
        client_of(own_full_daemon, "ben") as ben,
        client_of(own_full_daemon, "new") as new,
    ):
        ben.remember("Lunch is at noon in the canteen")
        assert asked(ben, *BOTH).degraded == ()  # nothing was published, so no host process runs for shared items
        assert SHARED_USER not in {part.name for part in ben.status().parts}
        preview = ann.shared.preview("A title", "A summary")
        changed = msgspec.structs.replace(preview, content=msgspec.structs.replace(preview.content, title="Another"))
        for refused in (lambda: ann.shared.confirm(changed), lambda: ann.shared.set_name("...")):
            with pytest.raises(InvalidInputError):
                refused()
        assert SHARED_USER not in {part.name for part in ben.status().parts}
        assert not user_folder(own_full_daemon.data_dir, SHARED_USER).exists()
        item = published(ann)
        for reader in (ben, new):
            (found,) = asked(reader, *BOTH).memories
            assert found.shared is not None
            assert (found.tier, found.record.id, found.shared.author) == ("global", item.id, item.author)
        assert not asked(ben, "local").memories
        assert "ann" not in item.author + item.author_id
        status = ben.status()
        assert SHARED_USER in {part.name for part in status.parts}
        assert SHARED_USER not in status.active_users

        os.kill(pid_of_the_store(own_full_daemon), signal.SIGKILL)
        wait_until(lambda: [one.record.id for one in asked(ben, *BOTH).memories] == [item.id])
        with stopped(pid_of_the_store(own_full_daemon)):
            ben.remember(FIX, id="own")
            away = asked(ben, *BOTH)
            assert [one.record.id for one in away.memories] == ["own"]
            assert away.degraded == ("global_unavailable",)

        assert own_full_daemon.stop() == 0
        own_full_daemon.light = True  # reads the same files
        own_full_daemon.start()
        (both,) = asked(ben, *BOTH).memories  # merged with the user's own memory, which has the same words
        assert (both.tier, both.record.id) == ("local", "own")
        assert both.shared is not None
        assert both.shared.author == item.author
        token = create_key(own_full_daemon.data_dir, "of-ben", "ben", frozenset({Scope.SHARE})).token
        with client_of(own_full_daemon, "ben", token) as without_admin:
            assert not without_admin.shared.unpublish(item.id).found
        assert ann.shared.unpublish(item.id).found
        assert not asked(new, *BOTH).memories
        assert not new.shared.search(QUESTION)


def test_an_erased_user_leaves_nothing_behind_in_the_store(own_daemon: DaemonProcess) -> None:
    own_daemon.start()
    with client_of(own_daemon, "ann") as ann, client_of(own_daemon, "ben") as ben:
        ann.shared.set_name("Ann of the platform team")
        item = published(ann)
        kept = published(ben, "Restart the tunnel before the deploy")
        assert ann.erasure.erase_user().unpublished == 1
        assert [found.item.id for found in ben.shared.search(QUESTION, min_relevance=0.0)] == [kept.id]
        with pytest.raises(InvalidInputError, match="item_id"):
            ben.shared.rate(item.id, 1.0)
        folder = user_folder(own_daemon.data_dir, SHARED_USER)
        wait_until(lambda: not any(holds(folder, said) for said in ("while the VPN is off", "platform team")))
    assert own_daemon.stop() == 0
    assert not any(holds(folder, said) for said in ("while the VPN is off", "platform team"))
    assert holds(folder, "Restart the tunnel")


def test_a_policy_admits_those_whose_key_has_the_group(daemon: DaemonProcess) -> None:
    scopes = frozenset({Scope.PUBLISH, Scope.RECALL, Scope.SHARE})
    tokens = {
        name: create_key(daemon.data_dir, f"of-{name}", name, scopes, orgs=orgs).token
        for name, orgs in (("shares", frozenset({"acme"})), ("member", frozenset({"acme"})), ("other", frozenset()))
    }
    with (
        client_of(daemon, "shares", tokens["shares"]) as author,
        client_of(daemon, "member", tokens["member"]) as member,
        client_of(daemon, "other", tokens["other"]) as other,
    ):
        item = published(author, access_policy="org:acme")
        assert [found.item.id for found in member.shared.search(QUESTION)] == [item.id]
        assert [found.record.id for found in asked(member, *BOTH).memories] == [item.id]
        assert not other.shared.search(QUESTION)
        assert not asked(other, *BOTH).memories
        for ask in (lambda: other.shared.rate(item.id, 1.0), lambda: other.shared.attachment(item.id)):
            with pytest.raises(MemoryAgentError, match="is not a shared item that this user may see"):
                ask()
        with pytest.raises(InvalidInputError, match="access_policy"):
            published(other, access_policy="org:acme")
        assert author.shared.unpublish(item.id).found


def test_followers_receive_missed_events_after_a_crash(own_full_daemon: DaemonProcess) -> None:
    own_full_daemon.start()
    scopes = frozenset({Scope.RECALL})
    member, other = (
        Identity(token=create_key(own_full_daemon.data_dir, name, name, scopes, orgs=orgs).token)
        for name, orgs in (("member", frozenset({"acme"})), ("other", frozenset()))
    )
    author = create_key(own_full_daemon.data_dir, "author", "ann", ALL_SCOPES, orgs=frozenset({"acme"})).token
    with client_of(own_full_daemon, "ann", author) as ann:
        first = published(ann, access_policy="org:acme")
        wait_until(lambda: len(changes(own_full_daemon, member)) == 1)
        relay = part_pid(own_full_daemon, "relay")
        assert relay is not None
        os.kill(relay, signal.SIGSTOP)
        second = published(ann, "Restart the tunnel before the deploy", access_policy="org:acme")
        assert ann.shared.unpublish(first.id).found
    own_full_daemon.kill()
    os.kill(relay, signal.SIGKILL)
    own_full_daemon.light = True  # reads the same files
    own_full_daemon.start()
    wait_until(lambda: "unpublished" in {one.kind for one in changes(own_full_daemon, member)})
    told = changes(own_full_daemon, member)
    assert sorted((one.kind, one.item_id) for one in told) == sorted([("unpublished", None), ("published", second.id)])
    assert [json.loads(line)["seq"] for line in followed(own_full_daemon, member)] == [2, 3]
    with client_of(own_full_daemon, "ann", author) as ann:
        assert ann.erasure.erase_user().unpublished == 1
    wait_until(lambda: {one.kind for one in changes(own_full_daemon, member)} == {"unpublished"})
    assert {one.item for one in told} == {one.item for one in changes(own_full_daemon, member)}
    assert changes(own_full_daemon, other) == []


def followed(daemon: DaemonProcess, identity: Identity) -> list[str]:
    """Return the command line's output for events after journal number 1."""
    words = ["shared", "follow", "--user", "member", "--after", "1", "--count", "2", "--timeout", "60", "--json"]
    command = [sys.executable, "-m", "memory_agent", *words, "--data-dir", str(daemon.data_dir)]
    shown = {**environment(), "MEMORY_AGENT_TOKEN": identity.token}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=shown, timeout=120)
    return done.stdout.splitlines()


def changes(daemon: DaemonProcess, identity: Identity) -> list[SharedChange]:
    with Subscriber(*relay_endpoints(daemon.data_dir), identity=identity) as subscriber:
        entries = subscriber.fetch(0, 100, user_id=SHARED_USER).entries
        return [change for entry in entries if (change := SharedChange.in_entry(entry))]


def test_no_client_can_act_as_the_store(daemon: DaemonProcess) -> None:
    with pytest.raises(InvalidInputError, match="reserved"), client_of(daemon, SHARED_USER) as client:
        client.recall(QUESTION)


def holds(folder: Path, words: str) -> bool:
    return any(words.encode() in path.read_bytes() for path in folder.rglob("*") if path.is_file())
