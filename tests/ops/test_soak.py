"""Test a short soak of a real daemon in two parts: restarts, a planted loss, a planted duplicate, and the report."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from polling import wait_until

from memory_agent import MemoryClient
from memory_agent.errors import MemoryAgentError
from ops.soak.record import read
from ops.soak.report import report

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a soak adopts orphans, which requires Linux")

PATIENCE_S = 140.0
USER = "soak-00"  # never erased by the soak itself


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a path short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        yield Path(name)


@contextmanager
def running(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a part of a soak, and terminate it at the end of the block."""
    options = ("--users", "6", "--rate", "10", "--restart-minutes", "0.05", "--sample-s", "0.3", "--nice", "0")
    command = [sys.executable, "-m", "ops.soak", *options, "--resume", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as soak:
        try:
            yield soak
        finally:
            soak.terminate()


def events(folder: Path, event: str) -> list[dict[str, Any]]:
    file = folder / "record.jsonl"
    texts = file.read_text(encoding="utf-8").splitlines(keepends=True) if file.exists() else []
    lines = [json.loads(text) for text in texts if text.endswith("\n")]
    return [line for line in lines if line["event"] == event]


def plant(folder: Path) -> bool:
    """Forget a memory and duplicate another without recording this in the ledger; return whether both succeeded."""
    with suppress(MemoryAgentError), MemoryClient(USER, data_dir=folder / "data") as client:
        records = [record for record in client.list().records if record.type == "worker.task.finding"]
        if len(records) > 1:
            lost, doubled = records[:2]
            client.remember(doubled.text, kind=doubled.kind, source=doubled.source, type=doubled.type)
            return client.forget([lost.id]) == 1
    return False


def test_a_soak_restarts_the_daemon_finds_what_is_lost_or_doubled_and_continues_in_a_second_part(folder: Path) -> None:
    with running(folder) as soak:
        wait_until(lambda: len(events(folder, "restart")) >= 2, PATIENCE_S)
        soak.send_signal(signal.SIGTERM)
        assert soak.wait() == 0, events(folder, "finding")
    assert [line["how"] for line in events(folder, "restart")[:2]] == ["kill", "stop"]
    assert events(folder, "end")[0]["how"] == "stopped"

    with running(folder) as soak:
        wait_until(lambda: len(events(folder, "part")) == 2 and plant(folder), PATIENCE_S)
        soak.send_signal(signal.SIGTERM)
        assert soak.wait() == 1
    assert {line["kind"] for line in events(folder, "finding")} == {"doubled", "lost"}
    assert {line["user"] for line in events(folder, "finding")} == {USER}

    (joined,) = read([folder])
    assert [end["event"] for end in joined.ends] == ["end", "end"]
    page = report([joined])
    for what in ("an acknowledged memory, shared item or event is missing", "a memory or an event exists twice"):
        assert f"| {what} | 0 |" not in page
    assert "after a kill (ready in" in page
