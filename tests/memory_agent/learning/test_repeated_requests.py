"""Recurring requests: earlier requests in the store do not displace the memories that answer a new one."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from run_samples import LATER, SMALL

from memory_agent.embedders import Embedder
from memory_agent.memory import Memory
from memory_agent.settings import LearningSettings

FINDINGS = (
    "pg_dump stops when the disk of the replica is full: prune snapshots older than a week, then resume",
    "A failed backup leaves its lock in /run/backup.lock, and the next one refuses to begin",
)
WORDINGS = (
    "Please {}",
    "Can you {}?",
    "{} again, please",
    "Time to {} once more",
    "We need you to {}",
    "Could you please {} today?",
    "{}",
    "Hi, please {} now",
    "I want you to {} as usual",
    "Go ahead and {}",
)
REQUESTS = tuple(wording.format("check why the nightly backup of the orders database failed") for wording in WORDINGS)


@pytest.mark.parametrize("mode", ["off", "on"])
def test_each_run_of_a_recurring_request_is_shown_the_answer_and_credits_it(
    tmp_path: Path, embedder: Embedder, mode: str
) -> None:
    settings = LearningSettings(mode="on" if mode == "on" else "off")
    with Memory.open(tmp_path / "alice", embedder=embedder, store_settings=SMALL, learning_settings=settings) as memory:
        answers = {memory.remember(finding, now=LATER).id for finding in FINDINGS}
        for number, words in enumerate(REQUESTS):
            now = LATER + timedelta(hours=number + 1)
            result = memory.recall(words, 4, now=now, deadline_ms=60_000, min_relevance=0)
            used = answers & {found.record.id for found in result.memories}
            memory.runs.begin(words, f"run-{number}", recall_ids=[result.recall_id], now=now)
            memory.runs.end(f"run-{number}", quality=1.0, memory_ids=sorted(used), now=now + timedelta(minutes=5))
        runs = memory.runs.list("ended")
        assert {run.id for run in runs if {use.record_id for use in run.used} == answers} == {run.id for run in runs}
        assert len(runs) == len(REQUESTS)
        assert memory.sona.status().credited == (len(REQUESTS) if mode == "on" else 0)
