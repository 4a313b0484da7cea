"""Test that a recall that cannot finish in time returns and reports partial results, and that bulk load delays no
recalls.

The tests stop the embedder's process, kill it, and put it under load. The assertions are about order, not durations.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from polling import wait_until

from memory_agent import Memory, MemoryClient, RecallResult
from memory_agent.embedders import Embedder, open_embedder
from memory_agent.errors import DeadlineExceededError
from memory_agent.settings import EmbedderSettings
from memory_agent.storage.folders import user_folder
from relay import Publisher, relay_endpoints

from .conftest import DaemonProcess

LONG = " the worker reported that the index was rebuilt and every test passed" * 24  # 288 tokens, cut at 256
DOUGH = "Sourdough wants time and a warm place"


@pytest.fixture(scope="module")
def embedder() -> Iterator[Embedder]:
    embedder = open_embedder(EmbedderSettings(allow_download=False))
    yield embedder
    embedder.close()


def part_pid(client: MemoryClient, name: str) -> int | None:
    """Return the pid of the part, or None while it is being replaced."""
    return next((part.pid for part in client.status().parts if part.name == name and part.pid), None)


@contextmanager
def stopped(pid: int) -> Iterator[psutil.Process]:
    """Stop a process, and resume it afterwards."""
    os.kill(pid, signal.SIGSTOP)
    try:
        process = psutil.Process(pid)
        wait_until(lambda: process.status() == psutil.STATUS_STOPPED)
        yield process
    finally:
        os.kill(pid, signal.SIGCONT)


def shortest_s(run: Callable[[str], object]) -> float:
    """Return the shortest time that `run` takes for a long text."""
    taken_s = []
    for number in range(5):
        started_s = time.perf_counter()
        run(f"{number}{LONG}")
        taken_s.append(time.perf_counter() - started_s)
    return min(taken_s)


def test_a_deadline_shorter_than_the_embedding_leaves_the_words(tmp_path: Path, embedder: Embedder) -> None:
    embedding_s = shortest_s(embedder.embed_query)
    with Memory.open(tmp_path / "ada", embedder=embedder) as memory:
        memory.remember(DOUGH)
        for number in range(20):  # on a busy machine, the deadline can expire before the query is sent
            query = f"sourdough {number}{LONG}"
            result = memory.recall(query, deadline_ms=embedding_s * 1000 / 3, min_relevance=0)
            assert {found.retrieval for found in result.memories} <= {"lexical"}
            if "embedder_timeout" in result.degraded:
                break
        assert "embedder_timeout" in result.degraded
        assert memory.recall(f"sourdough{LONG}", deadline_ms=60_000).degraded == ()


def test_a_deadline_that_no_part_can_meet_gives_an_empty_answer(tmp_path: Path, embedder: Embedder) -> None:
    with Memory.open(tmp_path / "ada", embedder=embedder) as memory:
        memory.remember(DOUGH)
        result = memory.recall("sourdough", deadline_ms=0.001)
        assert (result.memories, result.degraded) == ((), ("deadline",))


def test_recalls_are_answered_by_words_while_the_embedder_is_stopped(daemon: DaemonProcess) -> None:
    with MemoryClient("stella", data_dir=daemon.data_dir) as client:
        client.remember(DOUGH)
        with stopped(part_pid(client, "embedder")) as process:
            result = client.recall("does sourdough want time", deadline_ms=1_000)
            assert process.status() == psutil.STATUS_STOPPED
        assert [found.record.text for found in result.memories] == [DOUGH]
        assert (result.memories[0].retrieval, result.degraded) == ("lexical", ("embedder_timeout",))
        wait_until(lambda: client.recall("does sourdough want time", deadline_ms=10_000).degraded == ())


@pytest.mark.skipif(not hasattr(os, "getpriority"), reason="this system has no process priorities")
def test_the_process_that_answers_recalls_has_the_daemons_priority(daemon: DaemonProcess) -> None:
    """Regression: Ray's default niceness of 15 for its workers tripled the duration of recalls under bulk load."""
    with MemoryClient("ursula", data_dir=daemon.data_dir) as client:
        client.remember(DOUGH)
        hosts = [part.pid for part in client.status().parts if part.name.startswith(("user-", "shared-")) and part.pid]
    assert hosts  # the user has a dedicated host, or a shared one if many users woke earlier
    assert {os.getpriority(os.PRIO_PROCESS, pid) for pid in hosts} == {os.getpriority(os.PRIO_PROCESS, daemon.pid)}


def load(daemon: DaemonProcess, users: int, events: int) -> dict[str, int]:
    """Publish long findings of several users, interleaved; return each user's last journal number."""
    with Publisher(relay_endpoints(daemon.data_dir).ingest) as publisher:
        for number in range(events):
            for user in range(users):
                text = f"finding {number} of {user}{LONG}"
                publisher.publish(
                    {"event_type": "worker.task.finding", "user_id": f"busy-{user}", "payload": {"claim": text}}
                )
        report = publisher.flush(60.0)
    assert not report.pending
    return report.acked_through


def is_handled(client: MemoryClient, through: dict[str, int]) -> bool:
    try:
        client.wait(through, 0.001)
    except DeadlineExceededError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.ray
def test_under_a_bulk_load_every_recall_still_has_its_vector_in_time(own_daemon: DaemonProcess) -> None:
    """A query queued behind 64 texts per busy user would not be embedded within a second."""
    own_daemon.start()
    with (
        MemoryClient("ada", data_dir=own_daemon.data_dir) as idle,
        MemoryClient("busy-0", data_dir=own_daemon.data_dir) as busy,
    ):
        for client in (idle, busy):
            client.remember(DOUGH)
        load(own_daemon, users=2, events=2)
        through = load(own_daemon, users=2, events=300)
        wait_until(lambda: busy.stats().memories > 1)  # the embedder has begun
        for number in range(30):
            for client in (idle, busy):
                result = client.recall(f"sourdough, question {number}", deadline_ms=2_000)
                assert result.degraded == ()
                assert DOUGH in [found.record.text for found in result.memories]
        assert not is_handled(idle, through), "the load ended too early to show anything"


@pytest.mark.slow
@pytest.mark.ray
def test_recalls_outlive_the_embedder_under_load(rough_daemon: DaemonProcess) -> None:
    with MemoryClient("busy-0", data_dir=rough_daemon.data_dir) as client:
        client.remember(DOUGH)
        through = load(rough_daemon, users=2, events=60)
        before = part_pid(client, "embedder")
        results: list[RecallResult] = []

        def ask() -> RecallResult:
            results.append(client.recall(f"sourdough, question {len(results)}", deadline_ms=10_000))
            return results[-1]

        wait_until(lambda: ask().degraded == ())
        os.kill(before, signal.SIGKILL)
        wait_until(lambda: part_pid(client, "embedder") != before and ask().degraded == ())
        client.wait(through, 240.0)
        assert all(DOUGH in [found.record.text for found in result.memories] for result in results)
        assert {reason for result in results for reason in result.degraded} <= {"embedder_timeout", "no_model"}
        assert client.stats().memories == 61
        wait_until(lambda: client.stats().without_vector == 0)


@pytest.mark.parametrize("deadline_ms", [0.0, 0.001, 0.1])
def test_through_the_daemon_an_impossible_deadline_gives_an_empty_answer_and_no_error(
    daemon: DaemonProcess, deadline_ms: float
) -> None:
    with MemoryClient("tilda", data_dir=daemon.data_dir) as client:
        client.remember(DOUGH)
        result = client.recall("sourdough", deadline_ms=deadline_ms)
        assert (result.memories, result.degraded[-1]) == ((), "deadline")


def test_a_user_who_does_not_wake_in_time_gives_an_empty_answer_with_the_reason_and_answers_later(
    daemon: DaemonProcess, embedder: Embedder
) -> None:
    with Memory.open(user_folder(daemon.data_dir, "aurora"), user_id="aurora", embedder=embedder) as asleep:
        asleep.remember(DOUGH)
    with MemoryClient("aurora", data_dir=daemon.data_dir) as client:
        early = client.recall("anything", deadline_ms=1.0)
        assert early.memories == ()
        assert early.degraded == ("deadline", "waking")
        wait_until(lambda: client.recall("anything", deadline_ms=20_000.0).degraded == ())


def test_a_host_whose_threads_all_wait_for_the_embedder_answers_every_request(daemon: DaemonProcess) -> None:
    """There are three times as many requests as threads. Waiting in the queue counts against the deadline."""
    with MemoryClient("theo", data_dir=daemon.data_dir) as client, ThreadPoolExecutor(24) as threads:
        client.remember(DOUGH)
        with stopped(part_pid(client, "embedder")) as process:
            asked = [threads.submit(client.recall, f"sourdough {n}", deadline_ms=700.0) for n in range(24)]
            results = [future.result(60.0) for future in asked]
            assert process.status() == psutil.STATUS_STOPPED
            assert all(result.degraded for result in results)
            assert [DOUGH] in [[found.record.text for found in result.memories] for result in results]
            late = client.recall("sourdough once more", deadline_ms=2_000.0)  # all earlier requests have left the queue
            assert [found.record.text for found in late.memories] == [DOUGH]


def test_a_recall_without_a_deadline_waits_as_long_as_the_settings_say(daemon: DaemonProcess) -> None:
    with MemoryClient("ulla", data_dir=daemon.data_dir) as client, ThreadPoolExecutor(1) as threads:
        client.remember(DOUGH)
        with stopped(part_pid(client, "embedder")):
            patient = threads.submit(client.recall, "sourdough for the patient", deadline_ms=20_000.0)
            assert client.recall("sourdough").degraded == ("embedder_timeout",)
            assert not patient.done()
        assert patient.result(60.0).degraded == ()


def test_a_block_for_a_prompt_is_made_without_the_embedder_when_it_is_stopped(daemon: DaemonProcess) -> None:
    with MemoryClient("viola", data_dir=daemon.data_dir) as client:
        client.remember(DOUGH)
        with stopped(part_pid(client, "embedder")) as process:
            result = client.recall("does sourdough want time", deadline_ms=2_000, context_tokens=200)
            assert process.status() == psutil.STATUS_STOPPED
        assert DOUGH in (result.context or "")
        assert result.degraded == ("embedder_timeout",)
