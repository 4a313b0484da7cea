"""The relay of a data folder whose users share items, and followers, each with its own key."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from sharing_world import World, bytes_below

from memory_agent.care import compact_journal
from memory_agent.daemon.announcer import Announcer
from relay import (
    SHARED_USER,
    AsyncSubscriber,
    Broker,
    Identity,
    JournalEntry,
    RelaySettings,
    Scope,
    Subscriber,
    create_key,
    journal_folder,
)

MOST_EVENTS = 10_000


class Followers:
    """Followers of shared items. The relay runs only within the context."""

    def __init__(self, world: World, groups: Mapping[str, tuple[str, ...]]) -> None:
        """Create a key for each follower, with the follower's `groups`."""
        self._world = world
        self._tokens = {user: _key(world.data_dir, user, of_user) for user, of_user in groups.items()}

    def announce(self) -> None:
        """Publish the changes in the publish log, as a daemon does. Durable on return."""

        async def told(broker: Broker) -> None:
            ingest = broker.endpoints.ingest
            async with AsyncSubscriber(*broker.endpoints) as journal:
                await Announcer(
                    self._world.shared, journal, ingest, self._world.settings.relay.events
                ).publish_changes()

        with self._relay() as broker:
            asyncio.run(told(broker))

    def compact(self) -> None:
        """Erase outdated events from the journal, and compact it."""
        compact_journal(self._world.data_dir, self._world.settings)

    def entries(self) -> dict[str, list[JournalEntry]]:
        """Return what each follower reads."""
        with self._relay() as broker:
            return {user: _read(broker, token) for user, token in self._tokens.items()}

    def bytes_of_the_journal(self) -> bytes:
        """Return the bytes of all journal files, including erased events in free pages."""
        return bytes_below(journal_folder(self._world.data_dir))

    def _relay(self) -> Broker:
        settings = self._world.settings
        return Broker(self._world.data_dir, RelaySettings.of(settings.relay, settings.encryption))


def _read(broker: Broker, token: str) -> list[JournalEntry]:
    with Subscriber(*broker.endpoints, identity=Identity(token=token)) as subscriber:
        batch = subscriber.fetch(0, MOST_EVENTS, user_id=SHARED_USER)
    assert not batch.has_more
    return batch.entries


def _key(data_dir: Path, user: str, groups: tuple[str, ...]) -> str:
    orgs = frozenset(group.removeprefix("org:") for group in groups if group.startswith("org:"))
    tiers = [group.removeprefix("tier:") for group in groups if group.startswith("tier:")]
    scopes = frozenset({Scope.RECALL})
    return create_key(data_dir, f"of-{user}", user, scopes, orgs=orgs, tier=next(iter(tiers), None)).token
