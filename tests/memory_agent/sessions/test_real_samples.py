"""Sessions written by real clients. The tests are skipped if the sessions are not available."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from memory_agent.embedders import Embedder
from memory_agent.memory import Memory
from memory_agent.settings import EmbedderSettings, Settings
from tests.memory_agent.sessions.samples import read, said, write_document

SHARED = next((folder for base in Path(__file__).parents if (folder := base.parent / "shared" / "data").is_dir()), None)
TRANSCRIPTS = SHARED and SHARED / "transcripts"
RUNS = SHARED and SHARED / "swe_runs_dev.json"

WITHOUT_MODEL = Settings(embedder=EmbedderSettings(folder="none"))

needs_data = pytest.mark.skipif(SHARED is None, reason="../shared/data is not available")


@needs_data
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "claude_code_session.jsonl",
            [
                ("user_msg", "Users get signed out at random; fix it"),
                ("run.started", "Users get signed out at random; fix it"),
                ("assistant_msg", "I will run a tool."),
                ("command.completed", "echo hello > out.txt; cat out.txt"),
                ("assistant_msg", "I will run a tool."),
                ("command.completed", "ls /nonexistent"),
                ("run.completed", "Done: wrote hello."),
            ],
        ),
        (
            "codex_rollout.jsonl",
            [
                ("user_msg", "Users get signed out at random"),
                ("run.started", "Users get signed out at random"),
                ("command.completed", "echo hello"),
                ("run.completed", "Done."),
            ],
        ),
        (
            "gemini_session.jsonl",
            [
                ("user_msg", "Users get signed out"),
                ("command.completed", "echo hello"),
                ("assistant_msg", "Done."),
            ],
        ),
    ],
)
def test_a_session_of_a_real_client_is_read_completely(name: str, expected: list[tuple[str, str]]) -> None:
    assert TRANSCRIPTS is not None
    events, counts = read(TRANSCRIPTS / name)
    assert said(events) == expected
    assert (counts.bad, counts.left.get("unknown type", 0)) == (0, 0)
    assert "MEMCTX" not in json.dumps(events)
    assert {event["channel_id"] for event in events} == {"project:/home/dev/project"}


@needs_data
def test_real_runs_of_a_software_engineering_agent_become_runs_with_their_outcome(tmp_path: Path) -> None:
    assert RUNS is not None
    runs = json.loads(RUNS.read_text())[:4]
    for number, run in enumerate(runs):
        write_document(tmp_path / f"{run['instance_id']}-{number}.traj.json", _as_written(run))
    events, counts = read(tmp_path)
    assert (counts.bad, counts.sessions) == (0, {"mini-swe-agent": 4})
    with Memory.open(tmp_path / "alice", settings=WITHOUT_MODEL) as memory:
        report = memory.ingest(events)
        assert report.rejected == ()
        found = memory.runs.list(limit=10)
        assert {run.quality for run in found} <= {0.0, 1.0}
        assert sorted(run.quality == 1.0 for run in found) == sorted(run["resolved"] for run in runs)
        assert memory.ingest(events).kept == 0


def _as_written(run: dict[str, Any]) -> dict[str, Any]:
    """Return a run in the agent's format. The data set contains each step's thought, command and output."""
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": f"<pr_description>\n{run['task']}\n</pr_description>\nRules."},
    ]
    for number, step in enumerate(run["steps"]):
        at = 1_772_000_000.0 + number
        call = {"id": f"c{number}", "function": {"name": "bash", "arguments": step["command"] or ""}}
        messages.append(
            {"role": "assistant", "content": step["thought"], "tool_calls": [call], "extra": {"timestamp": at}}
        )
        messages.append({"role": "tool", "tool_call_id": f"c{number}", "content": step["output"] or ""})
    return {"info": {"exit_status": run["exit_status"], "resolved": run["resolved"]}, "messages": messages}


@needs_data
@pytest.mark.parametrize(
    ("name", "query", "expected"),
    [
        ("claude_code_session.jsonl", "what did the run conclude?", "Done: wrote hello."),
        ("claude_code_session.jsonl", "which command failed?", "ls /nonexistent"),
        ("claude_code_session.jsonl", "what error did it give?", "No such file or directory"),
        ("claude_code_session.jsonl", "which command wrote hello?", "echo hello > out.txt"),
        ("claude_code_session.jsonl", "what did I ask last?", "Users get signed out at random; fix it"),
        ("codex_rollout.jsonl", "what did the run conclude?", "Done."),
        ("codex_rollout.jsonl", "which command did I use?", "echo hello"),
        ("gemini_session.jsonl", "what did the session conclude?", "Done."),
        ("gemini_session.jsonl", "which command did I use?", "echo hello"),
        ("gemini_session.jsonl", "what did I ask?", "Users get signed out"),
    ],
)
def test_questions_about_a_session_find_memories_of_the_kind(
    name: str, query: str, expected: str, tmp_path: Path, embedder: Embedder
) -> None:
    assert TRANSCRIPTS is not None
    events, _ = read(TRANSCRIPTS / name)
    with Memory.open(tmp_path / "u", embedder=embedder) as memory:
        memory.ingest(events)
        assert expected in memory.recall(query).memories[0].record.text
