"""Test `rebuild --vectors` through a real daemon: after a model change, after a kill, and for an old store."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from typing import Any

import pytest

from memory_agent import MemoryClient
from relay import Publisher, relay_endpoints

from .conftest import DaemonProcess, environment, invoke
from .test_command_line import document
from .test_killed import wait_until

AT = datetime(2026, 2, 16, 10, tzinfo=UTC)
OTHER_MODEL = ("embedder.query_prefix=question: ", "embedder.passage_prefix=note: ", "daemon.reembed=never")
MESSAGES = 400  # two chunks of background work: the kill comes after the first
ROOMS = ("kitchen", "archive", "harbour", "workshop", "library", "cellar", "garden", "station")
THINGS = ("lamp", "door", "heater", "scale", "ladder")
FACT = "The spare key of the boat house lies below the blue flowerpot."
LONG = " ".join(f"Entry {number}: the pump ran for an hour and was shut down." for number in range(60)) + " " + FACT
QUESTIONS = (
    "where is the spare key of the boat house?",
    "who may deploy on a weekday?",
    "how do I reach the staging machines?",
    "what about lamp number 17 in the archive?",
    "is the heater in the garden broken?",
)


def fill(daemon: DaemonProcess, user: str) -> None:
    """Store the same memories for every user: many are short, one is long, one has a title, and one has a tag."""
    with (
        MemoryClient(user, data_dir=daemon.data_dir) as client,
        Publisher(relay_endpoints(daemon.data_dir).ingest) as publisher,
    ):
        for number in range(MESSAGES):
            thing, room = THINGS[number % len(THINGS)], ROOMS[number % len(ROOMS)]
            publisher.publish(
                {
                    "event_id": f"{user}-{number}",
                    "event_type": "chat.user_msg",
                    "timestamp": AT.isoformat(),
                    "user_id": user,
                    "session_id": f"session-{number % 7}",
                    "payload": {"text": f"Check {thing} number {number} in the {room}"},
                }
            )
        client.wait(publisher.flush().acked_through, 120)
        client.remember(LONG, id="long", timestamp=AT)
        client.remember("Ask Ann before, on any weekday.", id="titled", title="Deployments", timestamp=AT)
        client.remember("The tunnel must be up first.", id="tagged", tags=["staging machines", "vpn"], timestamp=AT)
        client.care.rebuild(vectors=True)  # adds the vectors that a busy embedder did not compute
        wait_until(lambda: not client.stats().waiting)


def answers(client: MemoryClient) -> list[Any]:
    """Return the user's answers to all questions, in both modes, without event ids, which differ between users."""
    found = []
    for mode in ("hybrid", "vector"):
        for question in QUESTIONS:
            result = client.recall(question, 5, mode=mode, min_relevance=0, deadline_ms=60_000)
            assert result.degraded == ()
            found.append(
                [
                    (hit.record.text, hit.record.title, hit.score, hit.sona_score, hit.relevance, hit.highlights)
                    for hit in result.memories
                ]
            )
    return found


def begin_rebuild(daemon: DaemonProcess, user: str) -> subprocess.Popen[str]:
    words = ("rebuild", "--vectors", "--user", user, "--data-dir", str(daemon.data_dir))
    return subprocess.Popen(
        [sys.executable, "-m", "memory_agent", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_killed_rebuild_continues_and_ends_with_the_same_answers(
    own_daemon: DaemonProcess,
) -> None:
    own_daemon.start()
    fill(own_daemon, "alice")
    total = MESSAGES + 3
    with MemoryClient("alice", data_dir=own_daemon.data_dir) as client:
        former = answers(client)
        assert client.care.rebuild(vectors=True) == 0
    assert own_daemon.stop() == 0
    own_daemon.configure(*OTHER_MODEL)
    own_daemon.start()
    with MemoryClient("alice", data_dir=own_daemon.data_dir) as client:
        assert answers(client) == former  # by the former embedder
        assert client.stats().waiting == 0  # changing the model does not by itself drop vectors
        rebuild = begin_rebuild(own_daemon, "alice")
        wait_until(lambda: 0 < client.stats().waiting < total)
    own_daemon.kill()
    told, errors = rebuild.communicate(timeout=120)
    assert (rebuild.returncode, told) == (1, "")
    assert "a running daemon embeds the rest" in errors
    own_daemon.start()
    with MemoryClient("alice", data_dir=own_daemon.data_dir) as client:
        meanwhile = client.recall("lamp number 17", 1, min_relevance=0, deadline_ms=60_000)
        assert meanwhile.memories[0].record.text.startswith("Check")
        left = client.care.rebuild(vectors=True)  # the daemon has continued, and may have finished
        assert left < total
        assert meanwhile.degraded == ()
        while client.stats().waiting:
            found = client.recall("lamp number 17", 1, min_relevance=0, deadline_ms=60_000)
            assert found.memories[0].record.text.startswith("Check")
        assert client.stats().memories == total
        client.care.rebuild()  # the old columns may remain in use briefly after the last vector
        after = answers(client)
        assert after != former  # the model has changed
    fill(own_daemon, "bob")
    with MemoryClient("bob", data_dir=own_daemon.data_dir) as client:
        assert answers(client) == after
        assert after[0][0][0] == LONG
        assert after[1][0][1] == "Deployments"
        assert after[2][0][0] == "The tunnel must be up first."
    place = ("--data-dir", str(own_daemon.data_dir))
    assert document("rebuild", "--vectors", *place) == {"users": {"alice": 0, "bob": 0}}
    assert own_daemon.stop() == 0
    done = invoke("verify", *place)
    assert done.exit_code == 0, done.stdout
