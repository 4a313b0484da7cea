"""Test that a daemon erases all data of a user from every file, even if it is killed during any step."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from forks import forking, serve
from polling import wait_until
from served_gateway import Served, gateway_without_ray
from served_host import absent_embedder
from test_retention_rounds import SECRET, files_with, told

from memory_agent import MemoryClient
from memory_agent.embedders import Embedder
from memory_agent.erasure.logs import read_history
from memory_agent.layout import Layout
from memory_agent.memory import Memory
from memory_agent.storage.folders import user_folder
from memory_agent.storage.owners import Owners
from relay import BrokerSettings, Journal, RelaySettings, encode_event, journal_folder

AT_ONCE = RelaySettings(broker=BrokerSettings(upkeep_interval_s=0.1))
STEPS = ("erase", "forget_owner", "note_user_erased", "remove_user", "rmtree", "answer")


def unreadable(run_id: str) -> bytes:
    """Return a conductor's message that is not an event: it has a run, but no event type."""
    return json.dumps({"user_id": "system", "payload": {"run_id": run_id, "text": f"said of {run_id}"}}).encode()


@pytest.fixture
def data_dir() -> Iterator[Path]:
    """A data folder of bob and alice. Alice has a session, runs, a pending event and a quarantined event."""
    with tempfile.TemporaryDirectory(prefix="user-") as name:
        data_dir = Path(name)
        now = datetime.now(UTC)
        events = [told("alice", number, now - now, SECRET) for number in range(4)]
        events.append(told("bob", 0, now - now, "harmless"))
        with Journal.open(journal_folder(data_dir)) as journal:
            appended = journal.append([*events, told("system", 7, now - now, SECRET)], now)
            journal.commit("memory", 3)
            journal.quarantine(encode_event(events[3]), "x", "y", "memory:alice", now, 4)
            for run_id in ("run-system", "run-of-nobody"):
                journal.quarantine(unreadable(run_id), "malformed_event", "event_type: is missing", "publisher", now)
        for user_id in ("alice", "bob"):
            own = [(one, at.seq) for one, at in zip(events, appended, strict=False) if one.user_id == user_id][:3]
            with Memory.open(user_folder(data_dir, user_id), user_id=user_id) as memory:
                memory.ingest([one for one, _ in own], seqs=[seq for _, seq in own])
        owners = Owners(data_dir / "owners")
        owners.learn(("run:run-system", "session:s-1"), "alice")
        owners.close()
        yield data_dir


@contextlib.contextmanager
def served(data_dir: Path) -> Iterator[Served]:
    with absent_embedder(data_dir) as embedder, gateway_without_ray(data_dir, embedder, AT_ONCE) as gateway:
        yield gateway


def client(served: Served, user_id: str) -> MemoryClient:
    return MemoryClient(user_id, endpoint=served.gateway, token=Layout(served.data_dir).token())


def require_gone(data_dir: Path) -> None:
    assert files_with(SECRET, data_dir) == []
    assert files_with("run-alice", data_dir) == []
    assert files_with("run-system", data_dir) == []
    assert files_with("run-of-nobody", data_dir) == ["journal/data.mdb"]
    assert read_history(user_folder(data_dir, "alice"), "alice").is_everything
    with Memory.open(user_folder(data_dir, "bob"), user_id="bob") as bob:
        assert bob.stats().memories == 1


def test_a_user_is_erased_completely_and_starts_empty(data_dir: Path) -> None:
    with served(data_dir) as gateway, client(gateway, "alice") as alice:
        planned = alice.erasure.erase_user(dry_run=True)
        assert planned.dry_run
        assert files_with(SECRET, data_dir)
        receipt = alice.erasure.erase_user()
        assert (receipt.complete, receipt.events, receipt.quarantined) == (True, 5, 2)
        assert receipt.memories >= 3
        assert not user_folder(data_dir, "alice").exists()
        assert alice.stats().memories == 0
        alice.remember("alice begins anew")
        assert alice.erasure.erase_user().memories == 1
        assert alice.erasure.erase_user().memories == 0  # erasing an absent user also succeeds
    require_gone(data_dir)


def test_a_user_with_damaged_records_is_erased_without_reading(data_dir: Path) -> None:
    file = user_folder(data_dir, "alice") / "records" / "data.mdb"
    file.write_bytes(file.read_bytes()[: -4 * 4_096] + bytes(4 * 4_096))
    with Journal.open(journal_folder(data_dir)) as journal:
        journal.commit("memory", journal.last_seq)
    with served(data_dir) as gateway, client(gateway, "alice") as alice:
        receipt = alice.erasure.erase_user()
        assert (receipt.complete, receipt.memories, receipt.events) == (True, 0, 5)
    require_gone(data_dir)


@pytest.fixture(scope="module")
def erase_killed() -> Iterator[Callable[..., int]]:
    """Calls `erase_until_killed` in a process, and returns its exit status."""
    with forking(__file__) as run:
        yield run


@pytest.mark.parametrize("step", STEPS)
def test_an_erasure_killed_at_any_step_continues_at_the_next_start(
    step: str, data_dir: Path, erase_killed: Callable[..., int]
) -> None:
    assert erase_killed(data_dir, step) == -signal.SIGKILL
    with served(data_dir) as gateway:
        wait_until(lambda: not files_with(SECRET, data_dir))
        assert not user_folder(data_dir, "alice").exists()
        with client(gateway, "bob") as bob:
            assert bob.stats().memories == 1
    require_gone(data_dir)


def test_a_half_removed_user_is_removed_at_startup(embedder: Embedder) -> None:
    with tempfile.TemporaryDirectory(prefix="left-") as name:
        folder = Path(name)
        for users in (folder / "users", folder / "replaced-20261120T000000000000" / "users"):
            (users / ".erased-01KHJY9080NWG22H9Q8BBD7B80" / "records").mkdir(parents=True)
            (users / ".erased-01KHJY9080NWG22H9Q8BBD7B80" / "records" / "data.mdb").write_bytes(b"zanzibarquokka")
            (users / "bob").mkdir()
        with gateway_without_ray(folder, embedder):
            assert list(folder.rglob(".erased-*")) == []
            assert len(list(folder.rglob("bob"))) == 2


def erase_until_killed(folder: str, step: str) -> None:
    """Serve, erase alice, and kill this process with SIGKILL immediately before a step."""
    import shutil

    from memory_agent.daemon.dispatcher import Dispatcher
    from memory_agent.daemon.erasure import DaemonEraser
    from memory_agent.erasure import user_removal
    from relay import AsyncSubscriber

    def die(*_: object, **__: object) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)

    place: dict[str, tuple[object, str]] = {
        "erase": (AsyncSubscriber, "erase"),
        "forget_owner": (Dispatcher, "forget_owner"),
        "note_user_erased": (user_removal, "note_user_erased"),
        "remove_user": (user_removal, "remove_user"),
        "rmtree": (shutil, "rmtree"),
        "answer": (DaemonEraser, "_is_compacted"),
    }
    with served(Path(folder)) as gateway, client(gateway, "alice") as alice:
        setattr(*place[step], die)
        alice.erasure.erase_user()


if __name__ == "__main__":
    serve(erase_until_killed)
