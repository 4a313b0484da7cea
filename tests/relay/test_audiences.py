"""Test access to events about shared items: only the key `local` can publish them, and other keys can read only those
for their own groups.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from relays import mapping

from relay import (
    ALL_SCOPES,
    SHARED_USER,
    Broker,
    Erasable,
    Identity,
    Publisher,
    Scope,
    ScopeMissingError,
    Subscriber,
    UserNotAllowedError,
    create_key,
    read_event,
)

AUDIENCES = ("public", "org:acme", "tier:pro", "org:acmee", "", None, ["public"], "user:alice")


def publish_for(broker: Broker, *audiences: Any) -> None:
    """Publish an event of the user alice, and one event for each audience."""
    with Publisher(broker.endpoints.ingest) as publisher:
        publisher.publish(mapping(0))
        for number, audience in enumerate(audiences, 1):
            publisher.publish(mapping(number, user_id=SHARED_USER, audience=audience))
        assert publisher.flush().rejections == ()


def reading(broker: Broker, identity: Identity | None) -> Subscriber:
    return Subscriber(*broker.endpoints, identity=identity)


def key(data_dir: Path, name: str, *orgs: str, user_id: str | None = "ann", scopes: Any = (Scope.RECALL,)) -> Identity:
    made = create_key(data_dir, name, user_id, frozenset(scopes), orgs=frozenset(orgs))
    return Identity(token=made.token)


def read_audiences(subscriber: Subscriber, after: int = 0) -> list[Any]:
    entries = subscriber.fetch(after, 100, user_id=SHARED_USER).entries
    return [read_event(entry.data).extra["audience"] for entry in entries]


def test_a_key_reads_the_events_for_everybody_and_for_its_groups(broker: Broker, data_dir: Path) -> None:
    publish_for(broker, *AUDIENCES)
    pro = create_key(data_dir, "pro", "ben", frozenset({Scope.RECALL}), orgs=frozenset({"acme"}), tier="pro")
    expected = {
        key(data_dir, "plain"): ["public"],
        key(data_dir, "member", "acme"): ["public", "org:acme"],
        key(data_dir, "other", "acmee"): ["public", "org:acmee"],
        key(data_dir, "for-all", user_id=None): ["public"],
        Identity(token=pro.token): ["public", "org:acme", "tier:pro"],
    }
    for identity, audiences in expected.items():
        with reading(broker, identity) as subscriber:
            assert read_audiences(subscriber) == audiences
    with reading(broker, None) as local:
        assert read_audiences(local) == ["public"]  # the same audience as for a search with this key
        assert len(local.fetch(0, 100).entries) == 1 + len(AUDIENCES)


def test_a_key_without_permission_reads_nothing(broker: Broker, data_dir: Path) -> None:
    publish_for(broker, "public")
    with (
        reading(broker, key(data_dir, "writes", scopes=(Scope.PUBLISH, Scope.SHARE))) as writes,
        pytest.raises(ScopeMissingError),
    ):
        read_audiences(writes)
    with reading(broker, key(data_dir, "ann", "acme")) as ann:
        assert ann.fetch(0, 100, user_id="ann").entries == []
        for ask in (lambda: ann.fetch(0, 100), lambda: ann.erase(Erasable(user_id=SHARED_USER, everything=True))):
            with pytest.raises((ScopeMissingError, UserNotAllowedError)):
                ask()


@pytest.mark.parametrize("user_id", [None, "ann"])
def test_only_the_data_folders_own_key_publishes_them(broker: Broker, data_dir: Path, user_id: str | None) -> None:
    forger = key(data_dir, "forger", "acme", user_id=user_id, scopes=ALL_SCOPES)
    with Publisher(broker.endpoints.ingest, identity=forger) as publisher:
        publisher.publish(mapping(1, user_id=SHARED_USER, audience="public"))
        (rejection,) = publisher.flush().rejections
        assert (rejection.field, rejection.code) == (
            "user_id",
            "user_not_allowed" if user_id else "malformed_event",
        )
    with reading(broker, None) as local:
        assert local.fetch(0, 100).entries == []
        for entry in local.quarantined():
            assert not local.retry_quarantined(entry.id)


def test_a_reader_gets_past_any_number_of_events_for_others(
    broker: Broker, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.journal.journal._MOST_SKIPPED", 3)
    publish_for(broker, *["org:acme"] * 7, "public", *["org:acme"] * 4, "public")
    with reading(broker, key(data_dir, "plain")) as subscriber:
        first = subscriber.fetch(0, 100, user_id=SHARED_USER)
        assert (first.entries, first.last_seq, first.has_more) == ([], 4, True)
        found, after = [], 0
        while after < 14:
            batch = subscriber.fetch(after, 100, user_id=SHARED_USER)
            found += [entry.seq for entry in batch.entries]
            after = found[-1] if batch.entries else batch.last_seq
        assert found == [9, 14]
        following = subscriber.follow(["chat.*"], after=0, user_id=SHARED_USER)
        assert [next(following).seq for _ in range(2)] == [9, 14]


def test_a_follower_receives_later_events(broker: Broker, data_dir: Path) -> None:
    publish_for(broker, "public", "org:acme")
    with reading(broker, key(data_dir, "member", "acme")) as subscriber:
        following = subscriber.follow(after=2, user_id=SHARED_USER)
        assert next(following).seq == 3
        with Publisher(broker.endpoints.ingest) as publisher:
            publisher.publish(mapping(7, user_id="ann"))
            publisher.publish(mapping(8, user_id=SHARED_USER, audience="tier:pro"))
            publisher.publish(mapping(9, user_id=SHARED_USER, audience="org:acme"))
            publisher.flush()
        assert next(following).seq == 6
