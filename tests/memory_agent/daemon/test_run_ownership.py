"""Test who owns runs and sessions published under `system`: using another user's ids gives no access."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from dispatching import Memories, dispatching
from served_gateway import Served, gateway_in_new_folder

from memory_agent import MemoryClient
from memory_agent.daemon.dispatcher import Dispatcher
from memory_agent.embedders import Embedder
from memory_agent.settings import DaemonSettings
from relay import ALL_SCOPES, AsyncSubscriber, Broker, Identity, Publisher, create_key, identity_of, local_identity

PATIENCE_S = 20.0


class World:
    """A relay, a dispatcher that reads from it, and keys for alice, mallory and the conductor."""

    def __init__(self, broker: Broker, folder: Path, dispatcher: Dispatcher, memories: Memories) -> None:
        self._broker = broker
        self._folder = folder
        self.dispatcher = dispatcher
        self._memories = memories
        self._keys = {"conductor": local_identity(broker.endpoints.ingest)}

    async def publish(self, who: str, user_id: str, **fields: Any) -> int:
        """Publish with the key of `who`; return the event's number."""
        return await asyncio.to_thread(self._publish, who, {"user_id": user_id, **fields})

    def _publish(self, who: str, fields: dict[str, Any]) -> int:
        with Publisher(self._broker.endpoints.ingest, identity=self._key(who)) as publisher:
            publisher.publish({"event_type": "run.noted", **fields})
            report = publisher.flush()
        (seq,) = report.acked_through.values()
        return seq

    async def became(self, seq: int) -> str | None:
        """Return the owner of an event, or None if it waits for an owner."""
        async with asyncio.timeout(PATIENCE_S):
            while seq not in self._owners and seq not in self.dispatcher._parking:
                await asyncio.sleep(0.005)
        return self._owners.get(seq)

    @property
    def _owners(self) -> dict[int, str]:
        return {seq: user_id for user_id, seq in self._memories.taken}

    async def found_its_owner(self, seq: int) -> str:
        """Wait until an event has an owner, and return it."""
        async with asyncio.timeout(PATIENCE_S):
            while (owner := await self.became(seq)) is None:
                await asyncio.sleep(0.005)
        return owner

    def _key(self, who: str) -> Identity:
        if who not in self._keys:
            self._keys[who] = identity_of(create_key(self._folder, f"of-{who}", who, ALL_SCOPES))
        return self._keys[who]


@asynccontextmanager
async def world(folder: Path, **settings: Any) -> AsyncIterator[World]:
    memories = Memories()
    with Broker(folder) as broker:
        journal = AsyncSubscriber(*broker.endpoints, "memory")
        patient = DaemonSettings(owner_wait_s=3600.0, **settings)
        async with dispatching(journal, folder, memories, patient) as dispatcher:
            yield World(broker, folder, dispatcher, memories)


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="whose-") as folder:
        yield Path(folder)


OF_RUN = {"payload": {"run_id": "run-alice-1"}}
OF_SESSION = {"session_id": "s-alice"}


def check(folder: Path, story: Callable[[World], Any], **settings: Any) -> None:
    async def go() -> None:
        async with world(folder, **settings) as here:
            await story(here)

    asyncio.run(go())


@pytest.mark.parametrize("named", [OF_RUN, OF_SESSION])
def test_naming_anothers_run_first_gains_no_ownership(folder: Path, named: dict[str, Any]) -> None:
    async def story(here: World) -> None:
        guess = await here.publish("mallory", "mallory", **named)
        early = await here.publish("conductor", "system", **named, event_id="early")
        assert await here.became(guess) == "mallory"  # alice's own event belongs to alice
        assert await here.became(early) is None
        told = await here.publish("conductor", "alice", **named)
        late = await here.publish("conductor", "system", **named, event_id="late")
        assert [await here.became(seq) for seq in (told, late)] == ["alice", "alice"]
        assert await here.found_its_owner(early) == "alice"

    check(folder, story)


@pytest.mark.parametrize("named", [OF_RUN, OF_SESSION])
def test_naming_anothers_run_later_takes_no_ownership(folder: Path, named: dict[str, Any]) -> None:
    async def story(here: World) -> None:
        await here.publish("conductor", "alice", **named)
        await here.publish("mallory", "mallory", **named)
        here.dispatcher.claim_run("run-alice-1", "mallory", is_vouched=False)
        seq = await here.publish("conductor", "system", **named)
        assert await here.became(seq) == "alice"

    check(folder, story)


def test_a_conductor_may_name_the_owner_of_a_run_and_session(folder: Path) -> None:
    async def story(here: World) -> None:
        await here.publish("mallory", "mallory", **OF_RUN, **OF_SESSION)
        waiting = await here.publish("conductor", "system", **OF_SESSION)
        assert await here.became(waiting) is None
        naming = await here.publish("conductor", "system", **OF_RUN, **OF_SESSION, on_behalf_of="alice")
        after = await here.publish("conductor", "system", **OF_RUN)
        assert [await here.found_its_owner(seq) for seq in (waiting, naming, after)] == ["alice"] * 3

    check(folder, story)


def test_a_session_claimed_for_two_users_has_no_owner_but_events_that_name_a_user_do(folder: Path) -> None:
    async def story(here: World) -> None:
        for user_id in ("alice", "bob"):
            await here.publish("conductor", user_id, **OF_SESSION)
        unnamed = await here.publish("conductor", "system", **OF_SESSION)
        named = await here.publish("conductor", "system", **OF_SESSION, on_behalf_of="bob")
        assert [await here.became(seq) for seq in (unnamed, named)] == [None, "bob"]

    check(folder, story)


def test_a_setting_lets_users_own_keys_establish_owners(folder: Path) -> None:
    async def story(here: World) -> None:
        await here.publish("alice", "alice", **OF_RUN)
        seq = await here.publish("conductor", "system", **OF_RUN)
        assert await here.became(seq) == "alice"

    check(folder, story, owner_claims="any")


@pytest.fixture
def served(embedder: Embedder) -> Iterator[Served]:
    with gateway_in_new_folder(embedder) as served:
        yield served


def test_users_who_guess_each_others_run_ids_see_nothing_of_them(served: Served) -> None:
    """Uses the gateway: clients begin runs and publish events, and a conductor works for both users."""
    keys = {name: create_key(served.data_dir, f"of-{name}", name, ALL_SCOPES) for name in ("alice", "mallory")}
    clients = {
        name: MemoryClient(name, endpoint=served.gateway, token=key.token, data_dir=served.data_dir)
        for name, key in keys.items()
    }
    other = {"alice": "mallory", "mallory": "alice"}
    for name, client in clients.items():
        client.runs.begin(f"something of {name}", run_id=f"run-{other[name]}")
        with Publisher(served.relay.ingest, identity=identity_of(keys[name])) as publisher:
            guess = {"run_id": f"run-{other[name]}", "text": f"{name} says something of its own"}
            publisher.publish({"event_type": "chat.user_msg", "session_id": f"s-{other[name]}", "payload": guess})
    with Publisher(served.relay.ingest, identity=local_identity(served.relay.ingest)) as conductor:
        for name in clients:
            of_run = {"run_id": f"run-{name}", "message": f"the secret plan of {name} is a walk in the park"}
            report = {"event_type": "worker.report.received", "session_id": f"s-{name}", "payload": of_run}
            conductor.publish({**report, "user_id": "system"})
            request = {"run_id": f"run-{name}", "text": f"{name} asks the conductor for a plan"}
            conductor.publish({"event_type": "chat.user_msg", "user_id": name, "payload": request})
            conductor.publish({**report, "user_id": "system", "event_id": f"named-{name}", "on_behalf_of": name})
        report = conductor.flush()
    through = max(report.acked_through.values())
    with MemoryClient(endpoint=served.gateway, data_dir=served.data_dir) as everybody:
        everybody.wait(dict.fromkeys((*clients, "system"), through), PATIENCE_S)
    for name, client in clients.items():
        answers = [client.recall("the secret plan of a walk in the park", 50), client.runs.list()]
        said = repr(answers)
        assert f"the secret plan of {name}" in said
        assert f"of {other[name]} is a walk" not in said
        client.close()
