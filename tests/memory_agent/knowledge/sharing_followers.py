"""The relay of a data folder in which users share, and those who follow what they share, each with a key."""

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
    """They follow while the relay runs, which is no longer than what is done with it."""

    def __init__(self, world: World, groups: Mapping[str, tuple[str, ...]]) -> None:
        """Each user has a key for the groups."""
        self._world = world
        self._tokens = {user: _key(world.data_dir, user, of_user) for user, of_user in groups.items()}

    def tell(self) -> None:
        """Tell them what is in the publish log, as a daemon does. Durable on return."""

        async def told(broker: Broker) -> None:
            ingest = broker.endpoints.ingest
            async with AsyncSubscriber(*broker.endpoints) as journal:
                await Announcer(self._world.shared, journal, ingest, self._world.settings.relay.events).tell()

        with self._relay() as broker:
            asyncio.run(told(broker))

    def compact(self) -> None:
        """Take the bytes of what was erased out of the journal."""
        compact_journal(self._world.data_dir, self._world.settings)

    def entries(self) -> dict[str, list[JournalEntry]]:
        """What each of them reads."""
        with self._relay() as broker:
            return {user: _read(broker, token) for user, token in self._tokens.items()}

    def bytes_of_the_journal(self) -> bytes:
        """The bytes of all its files, those of former events in free pages too."""
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
