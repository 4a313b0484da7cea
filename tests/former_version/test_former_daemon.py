"""Test that the daemon serves a data folder of an earlier version: same answers and keys, no manual migration."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from questions import ANSWERS, LOGOUTS, PENDING, SETTINGS, unpack

from memory_agent import MemoryClient
from memory_agent.cli.group import cli
from memory_agent.errors import UserNotAllowedError
from relay import Publisher, relay_endpoints

pytestmark = pytest.mark.slow

FORMER: dict[str, Any] = json.loads(ANSWERS.read_text(encoding="utf-8"))


@pytest.fixture
def served() -> Iterator[Path]:
    """The fixture, with a daemon on its unencrypted data folder."""
    with tempfile.TemporaryDirectory(prefix="former-") as folder:
        root = Path(folder)
        unpack(root)
        around = {name: value for name, value in os.environ.items() if not name.startswith("MEMORY_AGENT_")}
        serve = [sys.executable, "-m", "memory_agent", "serve", "--light", "--data-dir", str(root / "plain")]
        command = [*serve, *SETTINGS, "--set", "daemon.upkeep_interval_s=600"]  # upkeep would fill in word vectors
        with (root / "daemon.log").open("w", encoding="utf-8") as log:
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, env=around | {"RAY_USAGE_STATS_ENABLED": "0"}
            )
        assert process.stdout is not None
        try:
            assert process.stdout.readline(), (root / "daemon.log").read_text(encoding="utf-8")
            yield root
        finally:
            process.send_signal(signal.SIGTERM)
            code = process.wait(60)
            process.stdout.close()
        assert code == 0, (root / "daemon.log").read_text(encoding="utf-8")


def test_a_daemon_continues_where_the_former_one_stopped_and_knows_its_keys(served: Path) -> None:
    data_dir = served / "plain"
    key = served / "alice-laptop.key"
    with MemoryClient("alice", data_dir=data_dir, key_file=key) as memory:
        assert memory.stats().memories == FORMER["stats of alice"]["answer"]["memories"]
    with MemoryClient("bob", data_dir=data_dir, key_file=key) as memory, pytest.raises(UserNotAllowedError):
        memory.stats()
    with MemoryClient("alice", data_dir=data_dir) as memory:
        asked = memory.recall(LOGOUTS, mode="vector", deadline_ms=60_000, min_relevance=0)
        assert asked.degraded == (PENDING,)
        assert [found.record.id for found in asked.memories] == [
            found["record"]["id"] for found in FORMER["vector"]["answer"]["memories"]
        ]
        assert memory.stats().memories == FORMER["stats of alice"]["answer"]["memories"]
        assert [event.event_id for event in memory.quarantined()] == [
            entry["event_id"] for entry in FORMER["quarantine"]["answer"]
        ]
    with Publisher(relay_endpoints(data_dir).ingest, spool=served / "spool") as publisher:
        publisher.publish(
            {
                "event_id": "pay-102.00",  # the earlier version has already stored this event, so it is a duplicate
                "event_type": "chat.user_msg",
                "user_id": "alice",
                "timestamp": datetime.now(UTC).isoformat(),
                "payload": {"text": "Fix the race in the session token rotation properly this time"},
            }
        )
        through = publisher.flush().acked_through
    with MemoryClient("alice", data_dir=data_dir) as memory:
        memory.wait(through, 60)
        assert memory.stats().memories == FORMER["stats of alice"]["answer"]["memories"] + 20
        assert memory.recall("Ticket 38 waits", mode="lexical", top_k=1).memories[0].record.event_id == "spooled-38"


def test_a_rebuild_of_vectors_embeds_the_titles_and_tags_that_the_former_version_left_out(served: Path) -> None:
    with MemoryClient("alice", data_dir=served / "plain") as memory:

        def closeness(text: str) -> tuple[float, tuple[str, ...]]:
            found = memory.recall(text, 1, mode="vector", deadline_ms=60_000, min_relevance=0)
            return round(found.memories[0].score or 0.0, 2), found.degraded

        texts = ("Deploys\nNever deploy on a Friday", "The staging needs a VPN.\ndeploy")
        before = [closeness(text) for text in texts]
        assert max(score for score, _ in before) < 1.0
        assert {degraded for _, degraded in before} == {(PENDING,)}
        count = memory.stats().memories
        assert _rebuilt(served) == {"alice": count}
        assert [closeness(text) for text in texts] == [(1.0, ())] * len(texts)
        assert (memory.stats().waiting, memory.stats().memories, _rebuilt(served)) == (0, count, {"alice": 0})


def _rebuilt(root: Path) -> dict[str, int]:
    """Embed alice's memories again from the command line; return the counts by user."""
    words = ["rebuild", "--vectors", "--user", "alice", "--data-dir", str(root / "plain"), "--json"]
    done = CliRunner().invoke(cli, words, catch_exceptions=False)
    users: dict[str, int] = json.loads(done.stdout)["users"]
    return users
