"""Reactions to events in an embedded memory: omitted texts, budgets, deadlines, unusual payloads."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from memory_agent import Memory
from memory_agent.errors import InvalidInputError
from memory_agent.recall.context import estimate_tokens
from memory_agent.settings import EmbedderSettings, IngestSettings, Settings, TriggerSettings
from memory_agent.triggers.block import Block
from memory_agent.triggers.table import TriggerTable
from relay import EventLimits, encode_event, event_from_mapping

NOW = datetime.now(UTC)
SECOND = timedelta(seconds=1)
VPN = "The deploy to staging hangs while the VPN is off: connect it first"
QUESTION = "why does the deploy to staging hang?"
DOCUMENT = f"# Deploying to staging\n\n{VPN}. The deploy to staging hangs now and then."


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Memory]:
    with Memory.open(tmp_path / "alice") as memory:
        yield memory


def event(event_type: str, payload: Any, **fields: Any) -> bytes:
    mapping = {"event_id": "e-1", "event_type": event_type, "user_id": "alice", "payload": payload, **fields}
    return encode_event(event_from_mapping(mapping, EventLimits(), NOW))


def reaction(memory: Memory, event_type: str, payload: Any, **fields: Any) -> Block | None:
    trigger = TriggerTable.load().name_of(event_type)
    assert trigger is not None
    return memory.triggers.react(event(event_type, payload, **fields), trigger, 10_000.0)


def test_an_event_that_was_ingested_before_is_not_its_own_answer(memory: Memory) -> None:
    revision = {"title": "Runbook", "content": DOCUMENT}
    other = memory.remember(VPN)
    memory.ingest_encoded([event("writer.revision.created", revision)])
    block = reaction(memory, "writer.revision.created", revision)
    assert block is not None
    assert [one.id for one in block.memories] == [other.id]


def test_events_of_the_run_and_the_session_are_not_in_the_answer(memory: Memory) -> None:
    other = memory.remember(VPN, kind="finding")
    memory.remember(f"{VPN}, said the run", run_id="run-1")
    memory.remember(f"{VPN}, said the session", session_id="s-1")
    step = {"objective": QUESTION, "run_id": "run-1"}
    block = reaction(memory, "conductor.assignment.dispatched", step, session_id="s-1")
    assert block is not None
    assert [one.id for one in block.memories] == [other.id]
    assert (block.run_id, block.session_id, block.cause_event_id) == ("run-1", "s-1", "e-1")


def test_a_block_names_every_memory_that_its_runs_quote(memory: Memory) -> None:
    """When a memory is erased, the blocks that name it are erased as well."""
    steps = ["Created the folder of the service", "Added the dependencies to the manifest", "Wrote the first tests"]
    for number in range(4):
        run_id = f"run-{number}"
        memory.runs.begin(f"Set up the payment service with tests, attempt {number}", run_id)
        for step in steps:
            memory.remember(f"{step}, time {number}", run_id=run_id)
        memory.runs.end(run_id, quality=1.0 if number else 0.0, summary=f"It ended the {number}th way")
    block = reaction(memory, "user_input", {"text": "Set up the payment service with tests"})
    assert block is not None
    quoted = {record.id for record in memory.list(limit=100).records if record.text.splitlines()[0] in block.text}
    assert any(record.text in block.text for record in memory.list(limit=100).records if "time" in record.text)
    assert len(quoted) > len(block.memories)
    assert quoted <= set(block.quotes)


REQUESTS = (
    "Set up the payment service with integration tests",
    "Scaffold the payment service with integration tests",
    "Create a payment service including integration tests",
    "Please set up a service for payments with integration tests",
)


def asked_before(memory: Memory) -> None:
    """Record four runs that set up a service. Every second run succeeds."""
    for number, request in enumerate(REQUESTS):
        run_id, session_id, began = f"run-{number}", f"s-{number}", NOW - timedelta(days=20 - number)
        told = {"event_id": f"message-{number}", "session_id": session_id, "timestamp": (began - SECOND).isoformat()}
        memory.ingest_encoded([event("chat.user_msg", {"text": request}, **told)])
        memory.runs.begin(request, run_id, session_id, now=began)
        memory.runs.step(run_id, "Created the project structure from the template", now=began + SECOND)
        if number % 2:
            memory.runs.step(run_id, "Started postgres in a container before the tests", now=began + 2 * SECOND)
            memory.runs.end(run_id, summary="The tests pass with a real database", quality=1.0, now=began + 3 * SECOND)
        else:
            memory.runs.end(run_id, "failed", "The tests found no database", now=began + 3 * SECOND)


ENDS = {"The tests pass with a real database", "Run failed: The tests found no database"}
STEPS = {"Created the project structure from the template", "Started postgres in a container before the tests"}


@pytest.mark.parametrize(
    ("event_type", "told"),
    [
        ("conductor.run.started", ENDS),
        ("conductor.assignment.dispatched", STEPS),
        ("chat.user_msg", ENDS | STEPS),
    ],
)
def test_earlier_requests_rank_below_steps_and_outcomes(memory: Memory, event_type: str, told: set[str]) -> None:
    asked_before(memory)
    text = "Set up the billing service with integration tests"
    block = reaction(memory, event_type, {"objective": text, "text": text, "run_id": "run-9"}, session_id="s-9")
    assert block is not None
    said = {record.text for record in memory.get([one.id for one in block.memories])}
    assert told <= said
    assert "Previously: Created the project structure from the template" in block.text
    assert "postgres" in block.text


def test_earlier_requests_are_shown_if_there_is_nothing_else(memory: Memory) -> None:
    memory.runs.begin(REQUESTS[0], "run-0", now=NOW - timedelta(days=3))
    memory.runs.end("run-0", now=NOW - timedelta(days=3) + SECOND)
    block = reaction(memory, "conductor.run.started", {"objective": "Set up the billing service", "run_id": "run-9"})
    assert block is not None
    assert [record.text for record in memory.get([one.id for one in block.memories])] == [REQUESTS[0]]


def test_labels_are_not_part_of_the_query(memory: Memory) -> None:
    memory.remember("Assigned to: worker-7", kind="strategy")
    block = reaction(memory, "conductor.worker.call", {"objective": "Order lunch", "worker_id": "worker-7"})
    assert block is not None
    assert block.memories == ()


def test_a_block_with_its_heading_keeps_within_its_budget(memory: Memory) -> None:
    for number in range(10):
        memory.remember(f"{VPN}. {'The queue of staging is long. ' * 20} {number}", kind="strategy")
    block = reaction(memory, "conductor.run.started", {"objective": QUESTION, "run_id": "r"})
    assert block is not None
    assert block.text.startswith("Similar work so far\n<recalled_memories>\n")
    assert block.text.endswith("</recalled_memories>")
    assert estimate_tokens(block.text) <= 2 * 384  # 384 tokens of the model


@pytest.mark.parametrize(
    "payload", [{}, {"text": ""}, {"text": None}, {"text": "ping"}, {"type": "heartbeat", "text": QUESTION}]
)
def test_an_event_without_text_causes_no_block(memory: Memory, payload: dict[str, Any]) -> None:
    assert reaction(memory, "user_input", payload) is None


@pytest.mark.parametrize(
    "text", ["x" * 200_000, "🙂 why " * 100, "为什么部署到预发布环境会挂起？", "a\x00b hangs on deploy"]
)
def test_any_text_has_a_block(memory: Memory, text: str) -> None:
    memory.remember(VPN)
    assert reaction(memory, "user_input", {"text": text}) is not None


def test_without_a_model_the_answer_uses_words_alone(tmp_path: Path) -> None:
    settings = Settings(embedder=EmbedderSettings(folder="none", allow_download=False))
    with Memory.open(tmp_path / "bob", settings=settings) as memory:
        known = memory.remember(VPN)
        for event_type, payload in (("user_input", {"text": VPN + "?"}), ("writer.revision.created", {"content": VPN})):
            block = reaction(memory, event_type, payload)
            assert block is not None
            assert [one.id for one in block.memories] == [known.id]
            assert "no_model" in block.degraded


def test_a_users_table_may_name_types_that_no_signal_keeps(tmp_path: Path) -> None:
    table = tmp_path / "triggers.toml"
    table.write_text(
        '[trigger.deploy]\nevents = ["deploy.requested"]\nrole = "deployer"\nheading = "Past deploys"\n',
        encoding="utf-8",
    )
    with Memory.open(tmp_path / "bob", settings=Settings(triggers=TriggerSettings(table=str(table)))) as memory:
        known = memory.remember(VPN)
        block = memory.triggers.react(event("deploy.requested", {"note": {"text": QUESTION}}), "deploy", 10_000.0)
        assert block is not None
        assert (block.role, [one.id for one in block.memories]) == ("deployer", [known.id])


def test_an_unknown_trigger_is_refused(memory: Memory) -> None:
    with pytest.raises(InvalidInputError, match="trigger"):
        memory.triggers.react(event("user_input", {"text": QUESTION}), "no-such", 1_000.0)


def test_events_of_the_daemon_itself_are_never_read_as_signals(tmp_path: Path) -> None:
    table = tmp_path / "signals.toml"
    table.write_text('[signal.all]\nevents = ["*"]\nsource = "worker_result"\nkind = "finding"\n', encoding="utf-8")
    with Memory.open(tmp_path / "bob", settings=Settings(ingest=IngestSettings(signals=str(table)))) as memory:
        block = Block(
            trigger="message", role="worker", cause_event_id="e", recall_id="r", text=f"{VPN}.", run_id="run-1"
        )
        report = memory.ingest([block.to_event("bob")])
        assert (report.kept, sum(report.dropped.values())) == (0, 1)
        assert memory.runs.get("run-1") is None
