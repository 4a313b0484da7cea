"""Test retention in a daemon, for awake and sleeping users and in the journal, without waking users needlessly."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from polling import wait_until
from served_gateway import Served, gateway_without_ray

from memory_agent import AsyncMemoryClient, MemoryClient
from memory_agent.daemon.erasure import RetentionRounds
from memory_agent.embedders import Embedder
from memory_agent.erasure.logs import INTENT_FILE
from memory_agent.erasure.request import ErasureReceipt
from memory_agent.erasure.retention import RETENTION_FILE
from memory_agent.knowledge import Knowledge
from memory_agent.layout import Layout
from memory_agent.memory import Memory
from memory_agent.settings import RetentionRule, RetentionSettings, Settings
from memory_agent.signals import SignalTable
from memory_agent.storage.folders import user_folder
from relay import (
    SHARED_USER,
    BrokerSettings,
    Event,
    EventLimits,
    Journal,
    RelaySettings,
    event_from_mapping,
    journal_folder,
)

SECRET = "zanzibarquokka"
DAY = timedelta(days=1)
RULE = RetentionRule(name="progress", signals=("task-progress",), age_s=30 * 86_400.0)
RULES = RetentionSettings(rules=(RULE,), interval_s=0.1)
PATIENCE_S = 180.0
RELAY = RelaySettings(broker=BrokerSettings(upkeep_interval_s=0.5))  # the relay compacts its file at this interval


def told(user_id: str, number: int, age: timedelta, text: str) -> Event:
    mapping = {
        "event_id": f"{user_id}-{number}",
        "event_type": "worker.task.progress",
        "user_id": user_id,
        "session_id": "s-1",
        "timestamp": datetime.now(UTC) - age,
        "payload": {"text": f"{text} step {number} of {user_id}", "run_id": f"run-{user_id}"},
    }
    return event_from_mapping(mapping, EventLimits(), datetime.now(UTC))


@pytest.fixture
def data_dir(embedder: Embedder) -> Iterator[Path]:
    """Create three sleeping users: alice has old and new progress, bob has new progress, carol was never scanned."""
    with tempfile.TemporaryDirectory(prefix="aged-") as name:
        data_dir = Path(name)
        events = [
            told("alice", number, age, text)
            for number, (age, text) in enumerate([(40 * DAY, SECRET), (31 * DAY, SECRET), (DAY, "harmless")])
        ]
        events += [told("bob", 0, DAY, "harmless"), told("carol", 0, DAY, "harmless")]
        with Journal.open(journal_folder(data_dir)) as journal:
            appended = journal.append(events, datetime.now(UTC))
            journal.commit("memory", len(events))
        for user_id, rules in (("alice", RULES), ("bob", RULES), ("carol", None)):
            own = [(one, entry.seq) for one, entry in zip(events, appended, strict=True) if one.user_id == user_id]
            with Memory.open(
                user_folder(data_dir, user_id), user_id=user_id, embedder=embedder, retention_settings=rules
            ) as memory:
                memory.ingest([one for one, _ in own], seqs=[seq for _, seq in own])
        yield data_dir


def files_with(text: str, folder: Path) -> list[str]:
    files = (file for part in ("journal", "users", "owners") for file in (folder / part).rglob("*"))
    return sorted(
        str(file.relative_to(folder)) for file in files if file.is_file() and text.encode() in file.read_bytes()
    )


def is_done(served: Served) -> bool:
    """Whether no erasure is running and the relay has compacted its file."""
    return not list(served.data_dir.glob(f"users/*/{INTENT_FILE}")) and not files_with(SECRET, served.data_dir)


def test_retention_erases_from_every_file_of_a_sleeping_user(data_dir: Path, embedder: Embedder) -> None:
    owners = {user: (data_dir / "users" / user / "owner.lock").read_bytes() for user in ("alice", "bob", "carol")}
    assert files_with(SECRET, data_dir)
    with gateway_without_ray(data_dir, embedder, RELAY, settings=Settings(retention=RULES)) as served:
        wait_until(lambda: is_done(served))
        wait_until(lambda: (data_dir / "users" / "carol" / RETENTION_FILE).exists())
    woken = {user for user, owner in owners.items() if (data_dir / "users" / user / "owner.lock").read_bytes() != owner}
    assert woken == {"alice", "carol"}  # according to bob's retention file, nothing is due
    with Journal.open(journal_folder(data_dir)) as journal:
        assert [entry.seq for entry in journal.read(0, 10)] == [3, 4, 5]
    with Memory.open(user_folder(data_dir, "alice")) as memory:
        figures = memory.stats()
        assert (figures.memories, figures.expired) == (1, {"progress": 2})


def test_memories_of_awake_users_expire_during_upkeep(data_dir: Path, embedder: Embedder) -> None:
    with (
        gateway_without_ray(data_dir, embedder, RELAY, settings=Settings(retention=RULES)) as served,
        MemoryClient("alice", endpoint=served.gateway, token=Layout(data_dir).token()) as alice,
    ):
        wait_until(lambda: alice.stats().expired == {"progress": 2})
        wait_until(lambda: is_done(served))
        assert alice.stats().memories == 1


def test_an_unreadable_user_does_not_end_the_round(data_dir: Path, embedder: Embedder) -> None:
    lock = data_dir / "users" / "bob" / "owner.lock"
    lock.unlink()
    lock.mkdir()  # unreadable even for root
    with gateway_without_ray(data_dir, embedder, RELAY, settings=Settings(retention=RULES)) as served:
        wait_until(lambda: is_done(served))
        wait_until(lambda: (data_dir / "users" / "carol" / RETENTION_FILE).exists())


def test_the_store_of_shared_items_is_never_visited(data_dir: Path, embedder: Embedder) -> None:
    """A visit would put the store to sleep, but users' hosts connect to the store without waking it."""
    for kind, user_id in ((Knowledge, SHARED_USER), (Memory, "zoe")):
        with kind.open(user_folder(data_dir, user_id), user_id=user_id, embedder=embedder) as memory:
            memory.remember("harmless")
    no_part: Any = None
    rounds = RetentionRounds(no_part, no_part, data_dir, RULES, SignalTable.load(Settings().ingest.signals))
    due = rounds._due(datetime.now(UTC), ())
    assert ("zoe" in due, SHARED_USER in due) == (True, False)


def test_without_rules_no_user_is_woken(data_dir: Path, embedder: Embedder) -> None:
    owners = {file: file.read_bytes() for file in data_dir.glob("users/*/owner.lock")}
    with (
        gateway_without_ray(data_dir, embedder, RELAY) as served,
        MemoryClient("dora", endpoint=served.gateway, token=Layout(data_dir).token()) as dora,
    ):
        dora.remember("to see that it serves")
    assert {file: file.read_bytes() for file in owners} == owners


def test_async_and_blocking_clients_erase_alike(data_dir: Path, embedder: Embedder) -> None:
    async def erase(served: Served) -> list[ErasureReceipt]:
        async with AsyncMemoryClient("alice", endpoint=served.gateway, token=Layout(data_dir).token()) as alice:
            planned = await alice.erasure.erase_expired(dry_run=True)
            return [planned, await alice.erasure.erase(session_id="s-1")]

    with gateway_without_ray(data_dir, embedder, RELAY) as served:
        planned, receipt = asyncio.run(erase(served))
    assert (planned.by_rule, planned.dry_run) == ({}, True)
    assert (receipt.complete, receipt.memories, receipt.events) == (True, 3, 3)
    assert files_with(SECRET, data_dir) == []
