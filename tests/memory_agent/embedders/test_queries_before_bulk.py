"""A query never waits behind bulk texts, whether it is embedded in this process or by the embedder process.

The tests check the order of events, never durations. `ops.bench.load` measures how bulk threads and queries share the
processors.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pytest
from stopped_process import stop
from witness import WAIT_S, Witness

from memory_agent.embedders import Embeddings, wire
from memory_agent.embedders.lanes import LanedEmbedder, usable_cores
from memory_agent.embedders.minilm import MiniLM
from memory_agent.embedders.remote import RemoteEmbedder
from memory_agent.errors import EmbedderUnavailableError
from memory_agent.records.embedded import Embedded, Embedding

NEVER_S = 1e6
CORES = usable_cores()
PADDING = " the worker reported that the index was rebuilt" * 40  # cut at 256 tokens


@pytest.fixture
def witness(int8_model: MiniLM) -> Witness:
    return Witness(int8_model)


@pytest.fixture
def embedder(witness: Witness) -> Iterator[LanedEmbedder]:
    embedder = LanedEmbedder(witness, query_threads=2, steady_threads=0, starved_s=NEVER_S)
    yield embedder
    witness.release_all()
    embedder.close()


def submit_held(embedder: LanedEmbedder, witness: Witness, callers: int) -> list[Future[list[Embedded]]]:
    """Submit a bulk call for each caller while every bulk thread is blocked on a text."""
    firsts = [f"first {thread}" for thread in range(CORES)]
    for text in firsts:
        witness.hold(text)
    calls = [embedder.submit_texts(firsts)]
    for text in firsts:
        witness.await_reached(text)
    return calls + [embedder.submit_texts([f"bulk {caller} {n}" for n in range(64)]) for caller in range(callers)]


@pytest.mark.parametrize("callers", [1, 40])
def test_a_query_waits_for_no_bulk_text_however_many_are_queued(
    embedder: LanedEmbedder, witness: Witness, callers: int
) -> None:
    calls = submit_held(embedder, witness, callers)
    for number in range(3):
        assert embedder.embed_query(f"query {number}", timeout_s=WAIT_S).shape == (384,)
    assert [text for what, text in witness.events if what == "ended"] == ["query 0", "query 1", "query 2"]
    assert not any(call.done() for call in calls)


def test_no_bulk_text_is_begun_while_a_query_is_at_work(embedder: LanedEmbedder, witness: Witness) -> None:
    witness.hold("long query")
    calls = submit_held(embedder, witness, callers=5)
    query = embedder.submit_query("long query")
    witness.await_reached("long query")
    for thread in range(CORES):
        witness.release(f"first {thread}")
    calls[0].result(WAIT_S)
    for number in range(20):  # the bulk threads are idle
        embedder.embed_query(f"query {number}", timeout_s=WAIT_S)
    assert not [text for what, text in witness.events if what == "begun" and text.startswith("bulk")]
    witness.release("long query")
    assert query.result(WAIT_S).vector.shape == (384,)
    assert [len(call.result(WAIT_S)) for call in calls[1:]] == [64] * 5


@pytest.mark.parametrize("callers", [1, 12])
def test_before_a_query_begins_each_bulk_thread_finishes_at_most_one_text(
    embedder: LanedEmbedder, witness: Witness, callers: int
) -> None:
    """No text is blocked. Texts of 256 tokens arrive continuously; a query arrives when all bulk threads are busy."""
    assert witness.count_tokens(PADDING) > 256
    calls = [embedder.submit_texts([f"bulk {caller} {n}{PADDING}" for n in range(200)]) for caller in range(callers)]
    for number in range(15):
        while at_work(witness) < CORES:
            threading.Event().wait(0.001)
        queued = len(witness.events)
        embedder.embed_query(f"query {number}", timeout_s=WAIT_S)
        begun = witness.events.index(("begun", f"query {number}"))
        waited_for = [text for what, text in witness.events[queued:begun] if what == "ended"]
        assert len(waited_for) <= CORES
        ended = witness.events.index(("ended", f"query {number}"))
        assert sum(what == "begun" and text.startswith("bulk") for what, text in witness.events[queued:ended]) <= CORES
    assert not any(call.done() for call in calls)
    for call in calls:
        call.cancel()


def at_work(witness: Witness) -> int:
    """Return the number of bulk texts in progress."""
    events = [what for what, text in list(witness.events) if text.startswith("bulk")]
    return events.count("begun") - events.count("ended")


class WitnessServer:
    """A process that runs `witness_server.py`."""

    def __init__(self, endpoint: str, cache: Path) -> None:
        command = [sys.executable, str(Path(__file__).with_name("witness_server.py")), endpoint, str(cache)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.endpoint = endpoint
        self._await_line("ready")

    def await_begun(self, count: int, first_word: str) -> None:
        """Wait until work on `count` more texts with this first word has begun."""
        for _ in range(count):
            self._await_line(f"begun {first_word}")

    def release(self) -> None:
        """Release the blocked texts."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def stop(self) -> list[str]:
        """Stop the process cleanly; return its output."""
        told, _ = self.process.communicate(timeout=WAIT_S)
        assert self.process.returncode == 0
        return told.splitlines()

    def _await_line(self, start: str) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(start):
                return
        raise AssertionError(f"it ended without {start!r}")


@pytest.fixture
def server(tmp_path: Path, model_cache: Path) -> Iterator[WitnessServer]:
    server = WitnessServer(f"ipc://{tmp_path}/e.sock", model_cache)
    yield server
    if server.process.poll() is None:
        server.process.kill()
        server.process.communicate()


def test_through_the_embedder_process_a_query_waits_for_no_bulk_text_either(
    server: WitnessServer, int8_model: MiniLM
) -> None:
    callers = 20
    embedder = RemoteEmbedder(server.endpoint, timeout_s=WAIT_S)
    vectors: dict[int, Embeddings] = {}

    def call(caller: int) -> None:
        vectors[caller] = embedder.embed_texts([f"held {caller} {n}" for n in range(16)])

    threads = [threading.Thread(target=call, args=(caller,)) for caller in range(callers)]
    for thread in threads:
        thread.start()
    server.await_begun(CORES, "held")
    for number in range(10):
        assert np.array_equal(embedder.embed_query(f"query {number}"), int8_model.embed(f"query {number}"))
    assert not vectors
    server.release()
    for thread in threads:
        thread.join(WAIT_S)
    assert sorted(vectors) == list(range(callers))
    assert np.array_equal(vectors[7][3], int8_model.embed("held 7 3"))
    embedder.close()


def test_a_query_that_expired_while_the_server_was_stopped_is_not_embedded(server: WitnessServer) -> None:
    """When the server resumes, the queue of its socket contains expired queries, which must not run."""
    embedder = RemoteEmbedder(server.endpoint, timeout_s=WAIT_S)
    embedder.embed_query("before")
    stop(server.process.pid)
    for number in range(30):
        with pytest.raises(EmbedderUnavailableError):
            embedder.embed_query(f"late {number}", timeout_s=0.01)
    server.process.send_signal(signal.SIGCONT)
    embedder.embed_query("after")  # on the same connection, so it arrives after the late queries
    embedder.close()
    assert [line for line in server.stop() if "late" in line] == []


@pytest.mark.parametrize(
    ("asked_at_s", "remaining_s"), [(None, 2.0), (100.0, 2.0), (99.5, 1.5), (90.0, -8.0), (105.0, 2.0)]
)
def test_time_in_transit_is_subtracted_from_a_query_and_never_added(
    asked_at_s: float | None, remaining_s: float
) -> None:
    assert wire.QueryQuestion(2.0, asked_at_s).remaining_s(now_s=100.0) == remaining_s


def test_while_the_server_is_silent_one_query_waits_and_the_others_fail_fast(
    server: WitnessServer, int8_model: MiniLM
) -> None:
    embedder = RemoteEmbedder(server.endpoint, timeout_s=WAIT_S)
    embedder.embed_query("before")
    stop(server.process.pid)
    with pytest.raises(EmbedderUnavailableError):
        embedder.embed_query("finds out", timeout_s=0.6)
    answers: list[Embedding] = []
    failed = threading.Semaphore(0)

    def ask() -> None:
        try:
            answers.append(embedder.embed_query("patient"))
        except EmbedderUnavailableError:
            failed.release()

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for _ in range(7):
        assert failed.acquire(timeout=WAIT_S / 2)
    assert sum(thread.is_alive() for thread in threads) >= 1
    server.process.send_signal(signal.SIGCONT)
    for thread in threads:
        thread.join(WAIT_S)
    assert len(answers) == 1
    assert np.array_equal(answers[0], int8_model.embed("patient"))
    for number in range(3):
        assert embedder.embed_query(f"after {number}").shape == (384,)
    embedder.close()


def test_a_dropped_probe_of_a_silent_server_leaves_the_next_one_to_another_query(server: WitnessServer) -> None:
    embedder = RemoteEmbedder(server.endpoint, timeout_s=WAIT_S)
    embedder.embed_query("before")
    stop(server.process.pid)
    with pytest.raises(EmbedderUnavailableError):
        embedder.embed_query("finds out", timeout_s=0.6)
    embedder.begin_query("probes, and is dropped", timeout_s=1.0)
    for ask in (embedder.embed_query, embedder.count_tokens):
        with pytest.raises(EmbedderUnavailableError, match=r"within 0\.05 s"):
            ask("fails fast")
    threading.Event().wait(1.0)  # the timeout of the probe
    pending = embedder.begin_query("probes")
    server.process.send_signal(signal.SIGCONT)
    assert pending.result().shape == (384,)
    embedder.close()
