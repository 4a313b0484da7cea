"""Test random histories of users on several nodes: no fault loses or duplicates a text."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from dispatching import dispatching

from memory_agent.daemon import host_pool as host_pool_module
from memory_agent.daemon.hosts import Hosts
from memory_agent.embedders import Embedder
from memory_agent.errors import MemoryAgentError
from memory_agent.records.memories import MemoryPage
from memory_agent.settings import DaemonSettings
from memory_agent.verbs.protocol import decode_reply, encode_fields
from memory_agent.verbs.table import BY_NAME
from relay import AsyncSubscriber, Broker, Publisher
from tests.memory_agent.daemon.several_nodes import Machines, cluster
from tests.set_history import History, Violation

USERS = ("alice", "bob", "carol")
NODES = ("one", "two", "three")
STEPS = 40


class Campaign:
    """Operations and faults in a random order, and their history."""

    def __init__(self, hosts: Hosts, machines: Machines, broker: Broker, seed: int) -> None:
        self.history = History()
        self._hosts = hosts
        self._machines = machines
        self._broker = broker
        self._random = random.Random(seed)
        self._archive = Path(machines.settings.archive.url.removeprefix("file://"))
        self._number = 0

    def _text(self, user_id: str) -> str:
        self._number += 1
        return f"note {self._number} of {user_id} about the staging environment"

    async def remember(self, user_id: str) -> None:
        addition = self.history.begin(user_id, self._text(user_id))
        params = encode_fields(BY_NAME["remember"].call({"text": addition.text}).params)
        with suppress(MemoryAgentError):
            decode_reply(await self._hosts.call(user_id, "remember", params, 20_000.0), object)
            self.history.acknowledge(addition)

    async def publish(self, user_id: str) -> None:
        """Publish an event, which later recalls may find and the final recall must find."""
        addition = self.history.begin(user_id, self._text(user_id), is_event=True)
        event = {
            "event_type": "chat.user_msg",
            "user_id": user_id,
            "event_id": addition.text,
            "payload": {"text": addition.text},
        }
        await asyncio.to_thread(partial(_publish, self._broker, event))

    async def read(self, user_id: str) -> None:
        begun = self.history.now()
        params = encode_fields(BY_NAME["list"].call({"limit": 500}).params)
        with suppress(MemoryAgentError):
            reply = await self._hosts.call(user_id, "list", params, 20_000.0)
            self.history.read(user_id, begun, [one.text for one in decode_reply(reply, MemoryPage).records])

    async def sleep(self, user_id: str) -> None:
        await self._hosts.sleep(user_id)

    async def bring_home(self, user_id: str) -> None:
        with suppress(MemoryAgentError):
            async with self._hosts.kept_home(user_id):
                await self.read(user_id)

    async def balance(self, _: str) -> None:
        await self._hosts.balance()

    async def pause(self, _: str) -> None:
        self._machines.nodes[self._random.choice(NODES)].pause()

    async def take_down(self, _: str) -> None:
        node = self._machines.nodes[self._random.choice(NODES)]
        node.pause()
        node.is_up = False

    async def go_on(self, _: str) -> None:
        for node in self._machines.nodes.values():
            node.go_on()
            node.is_up = True

    async def break_archive(self, _: str) -> None:
        """Make the archive refuse operations for a short time."""
        if self._archive.is_dir():
            self._archive.chmod(0o500)
            aside = self._archive.with_name("unreachable")
            self._archive.rename(aside)
            self._archive.touch()
            await asyncio.sleep(self._random.random() * 0.5)
            self._archive.unlink()
            aside.rename(self._archive)
            self._archive.chmod(0o700)

    async def run(self, steps: int) -> None:
        """Run `steps` random operations, several at a time."""
        operations = [self.remember] * 5 + [self.publish] * 5 + [self.read] * 4 + [self.sleep, self.bring_home]
        operations += [self.balance, self.pause, self.take_down, self.go_on, self.go_on, self.break_archive]
        under_way: set[asyncio.Task[None]] = set()
        for _ in range(steps):
            under_way.add(asyncio.create_task(self._random.choice(operations)(self._random.choice(USERS))))
            await asyncio.sleep(self._random.random() * 0.1)
            under_way = {task for task in under_way if not task.done() or task.result() is not None}
        await self.go_on("")
        await asyncio.gather(*under_way)


def _publish(broker: Broker, event: dict[str, object]) -> None:
    with Publisher(broker.endpoints.ingest) as publisher:
        publisher.publish(event)


@pytest.mark.parametrize("seed", range(3))
def test_histories_under_random_faults_are_consistent(
    broker: Broker, tmp_path: Path, embedder: Embedder, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(host_pool_module, "_AVOIDED_S", 0.5)

    async def go() -> list[Violation]:
        journal = AsyncSubscriber(*broker.endpoints, "memory")
        async with (
            cluster(tmp_path, NODES, embedder, lease_s=0.5) as (hosts, machines, _),
            dispatching(journal, tmp_path, hosts, DaemonSettings(batch_events=3), 1.0) as dispatcher,
        ):
            campaign = Campaign(hosts, machines, broker, seed)
            await campaign.run(STEPS)
            published = (await journal.stats()).journal.last_seq
            await dispatcher.wait(dict.fromkeys(USERS, published), 60.0)
            for addition in campaign.history.additions:
                if addition.is_event:
                    campaign.history.acknowledge(addition)
            for user_id in USERS:
                await campaign.read(user_id)
            assert len(campaign.history.reads) >= len(USERS)
            return campaign.history.violations()

    assert asyncio.run(go()) == []
