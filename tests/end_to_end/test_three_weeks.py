"""Test a three-week story: emitters without any memory code, and the blocks that a conductor receives.

The events are in `three_weeks/`, one file per week, as emitters write them. They keep their original timestamps, so
ages are not compared.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from memory_agent import MemoryClient
from memory_agent.client import Blocks
from memory_agent.triggers.block import Block
from relay import Publisher, relay_endpoints

from .conftest import DaemonProcess
from .test_blocks_of_a_daemon import PATIENT

PATIENCE_S = 90.0
STORY = Path(__file__).parent / "three_weeks"
USER = "mira"
UNRELATED = ("invoice", "ledger", "Norden", "hotel", "Cascais", "Brazil", "gateway", "certificate")

PROJECT = [
    "| asked: Set up a new project with tests",
    "| Previously: Scaffold the project structure, Scaffolded the project structure: src, tests and a manifest, "
    "Add the dependencies, Resolving versions of tokio and serde, "
    "Added the dependencies: tokio, serde and proptest, Write the tests, then Wrote the tests: 12 pass; "
    "completed (0.8): The project builds and its 12 tests pass",
]
COPIED = [
    "| asked: Scaffold a new service module with integration tests",
    "| Failed before: Copy the billing module and rename it, Copied the billing module and renamed it, then "
    "Integration tests do not start: the copied module still opens the database of billing, because "
    "The copied module still opens the database of billing",
]
FROM_NOTHING = [
    "| asked: Scaffold a new service module with integration tests, without copying another module",
    "| Previously: Scaffold the module structure, Scaffolded the module structure: handlers, config and a manifest, "
    "Add the dependencies, Added the dependencies: axum, sqlx and testcontainers, Write integration tests, then "
    "Wrote the integration tests: 9 pass against a real database; "
    "approved (1.0): Clean module, and the tests need no shared database",
]


def parts(week: int) -> Iterator[list[dict[str, Any]]]:
    """Yield the events of a week: each user message separately, and the events between two messages together."""
    lines = (STORY / f"week{week}.jsonl").read_text(encoding="utf-8").splitlines()
    events = [json.loads(line) for line in lines]
    for _, part in groupby(enumerate(events), lambda one: one[0] if is_message(one[1]) else -1):
        yield [event for _, event in part]


def is_message(event: dict[str, Any]) -> bool:
    return bool(event["event_type"] == "chat.user_msg")


def blocks_of_a_week(publisher: Publisher, memory: MemoryClient, blocks: Blocks, week: int) -> dict[str, Block]:
    """Publish a week's events, each part once the former is stored as memories; return the conductor's blocks, keyed
    by the message that caused them.
    """
    read = {}
    for events in parts(week):
        for event in events:
            publisher.publish(event)
        report = publisher.flush()
        assert not report.pending + report.rejected
        memory.wait(report.acked_through, PATIENCE_S)
        if is_message(events[0]):
            block = blocks.wait(PATIENCE_S)
            assert block is not None
            assert block.degraded == ()
            read[events[0]["payload"]["text"]] = block
    return read


def entries(block: Block) -> list[list[str]]:
    """Return the entries of a block: their description without number and age, and their lines."""
    read: list[list[str]] = []
    for line in block.text.splitlines()[3:-1]:
        if line.startswith("| "):
            read[-1].append(line)
        else:
            facts = line.partition(". ")[2].split(" · ")
            read.append([" · ".join(fact for fact in facts if not fact.endswith("ago"))])
    return read


def test_by_the_third_week_the_conductor_reads_what_worked_and_why_the_other_attempt_failed(
    own_daemon: DaemonProcess,
) -> None:
    table = own_daemon.data_dir / "patient.toml"
    table.write_text(PATIENT, encoding="utf-8")  # otherwise a busy machine publishes no block
    own_daemon.configure(f"triggers.table={table}")
    own_daemon.start()
    with (
        MemoryClient(USER, data_dir=own_daemon.data_dir) as memory,
        memory.blocks(role="conductor") as blocks,
        Publisher(relay_endpoints(own_daemon.data_dir).ingest) as publisher,
    ):
        first, second, third = (blocks_of_a_week(publisher, memory, blocks, week) for week in (1, 2, 3))
        runs = {run.id: run.quality for run in memory.runs.list()}

    assert [block.text for block in first.values()] == ["", ""]  # nothing is known yet, so the blocks are empty

    hotel, service, again = second.values()
    assert hotel.text == ""
    assert service.text.splitlines()[0] == "Relevant history"
    run, *rest = entries(service)
    assert run == ["run · took 21 minutes", *PROJECT]
    assert [facts for facts, *_ in rest] == [
        "strategy (conductor_plan) · ended: completed (0.8)",
    ]

    run, plan = entries(again)
    assert run == ["run · took 21 minutes", *COPIED]
    assert plan[0] == "strategy (conductor_plan) · ended: failed (0.0)"

    login, actor = third.values()
    assert login.text == ""
    steps, worked, failed, *rest = entries(actor)
    assert steps == [
        "steps of such runs",
        "| what 2 runs that worked share: Scaffold the project structure, Add the dependencies, then Write the tests",
    ]
    assert worked == ["run · took 35 minutes", *FROM_NOTHING]
    assert failed == ["run · took 21 minutes", *COPIED]
    assert "| Strategy: Structure first, then dependencies, tests last" in [lines[-1] for lines in rest]
    assert not [word for word in UNRELATED if word in actor.text]

    assert runs == {
        "run-invoices": 0.8, "run-project": 0.8, "run-offsite": 0.0, "run-service-1": 0.0, "run-service-2": 1.0,
        "run-login": 0.8, "run-actor": 0.8,
    }  # fmt: skip
