"""The entries that each format's reader yields for a small session, in order, and the parts that it skips."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from memory_agent.sessions.events import channel_of
from tests.memory_agent.sessions import samples
from tests.memory_agent.sessions.samples import PROMPT, read, said, write_document, write_lines


def test_a_session_of_claude_code(tmp_path: Path) -> None:
    events, counts = read(write_lines(tmp_path / "s.jsonl", samples.claude_session()))
    assert said(events) == [
        ("user_msg", PROMPT),
        ("run.started", PROMPT),
        ("assistant_msg", "Two tabs race for one token."),
        ("command.completed", "pytest -q"),
        ("step", "Changed session.py"),
        ("run.completed", "Fixed: a mutex guards the refresh."),
        ("user_msg", "ok"),
        ("user_msg", "Now write a test for the refresh"),
        ("run.started", "Now write a test for the refresh"),
        ("run.cancelled", "Interrupted by the user"),
        ("assignment", "Look for other races"),
        ("assistant_msg", "No others."),
    ]
    command = events[3]
    assert (command["payload"]["output"], command["payload"]["exit_code"]) == ("Exit code 1\n1 failed", 1)
    assert command["timestamp"] == "2026-03-01T10:00:05+00:00"
    assert (command["session_id"], command["channel_id"]) == ("s-claude", channel_of("/home/ann/shop"))
    runs = [event["payload"].get("run_id") for event in events]
    assert runs == ["claude-code:uuid-1"] * 7 + ["claude-code:uuid-14"] * 3 + [None] * 2
    assert [event.get("agent_id") for event in events[-2:]] == ["a1", "a1"]
    assert counts.left == {
        "bookkeeping": 1,
        "injected context": 1,
        "reasoning": 1,
        "output of a lookup or read tool": 1,
        "written by the client": 2,
    }


def test_a_session_of_codex(tmp_path: Path) -> None:
    events, counts = read(write_lines(tmp_path / "rollout-1.jsonl", samples.codex_session()))
    assert said(events) == [
        ("user_msg", PROMPT),
        ("run.started", PROMPT),
        ("assistant_msg", "I look at the tests."),
        ("command.completed", "pytest"),
        ("step", "Changed session.py"),
        ("run.completed", "A mutex guards the refresh."),
        ("user_msg", "Write a test for it, too"),
        ("run.started", "Write a test for it, too"),
        ("run.cancelled", "Interrupted by the user"),
    ]
    assert (events[3]["payload"]["output"], events[3]["payload"]["exit_code"]) == ("2 failed", 2)
    assert [event["payload"]["run_id"] for event in events] == ["codex:turn-1"] * 6 + ["codex:turn-2"] * 3
    assert (counts.left["injected context"], counts.left["written by the client"]) == (1, 1)


def test_a_session_of_an_old_codex_without_content_marks(tmp_path: Path) -> None:
    lines = [
        samples.codex_line(0, "session_meta", id="s-old", cwd="/home/ann/shop"),
        samples.codex_message(1, "user", ("", "<environment_context>\n</environment_context>")),
        samples.codex_message(2, "user", ("", PROMPT)),
        samples.codex_line(
            3,
            "response_item",
            type="function_call",
            name="shell",
            arguments='{"command": ["bash", "-lc", "ls"]}',
            call_id="c",
        ),
        samples.codex_line(
            4,
            "response_item",
            type="function_call_output",
            call_id="c",
            output='{"output": "a.py", "metadata": {"exit_code": 0}}',
        ),
    ]
    events, _ = read(write_lines(tmp_path / "rollout-1.jsonl", lines))
    assert said(events) == [("user_msg", PROMPT), ("run.started", PROMPT), ("command.completed", "ls")]
    assert events[2]["payload"]["exit_code"] == 0


def test_a_session_of_gemini_uses_the_last_version_of_each_message(tmp_path: Path) -> None:
    events, counts = read(write_lines(tmp_path / "session-1.jsonl", samples.gemini_session()))
    assert said(events) == [
        ("user_msg", PROMPT),
        ("assistant_msg", "I run the tests."),
        ("command.completed", "pytest"),
        ("assistant_msg", "All pass."),
    ]
    assert {event["channel_id"] for event in events} == {channel_of("/home/ann/shop")}
    assert events[2]["payload"]["exit_code"] == 0
    assert (counts.left["written by the client"], counts.taken["user"]) == (2, 1)


def test_a_gemini_document_and_its_later_lines_have_the_same_events(tmp_path: Path) -> None:
    lines = samples.gemini_session()
    messages = [lines[1]["$set"]["messages"][0], lines[2], lines[5], *lines[6:]]
    document = {**lines[0], "lastUpdated": "2026-03-03T10:00:05.000Z", "messages": messages}
    former, counts = read(write_document(tmp_path / "session-1.json", document))
    assert (len(former), counts.bad) == (4, 0)
    present, _ = read(write_lines(tmp_path / "session-1.jsonl", lines))
    assert former == present


def test_a_prompt_of_a_gemini_subagent_is_an_assignment(tmp_path: Path) -> None:
    head = {"sessionId": "sub-1", "projectHash": "0f", "kind": "subagent", "directories": ["/home/ann/shop"]}
    asked = {"id": "m1", "timestamp": "2026-03-03T10:00:01.000Z", "type": "user", "content": "Look for other races"}
    events, _ = read(write_lines(tmp_path / "sub-1.jsonl", [head, asked]))
    assert said(events) == [("assignment", "Look for other races")]
    assert (events[0]["agent_id"], events[0]["channel_id"]) == ("sub-1", channel_of("/home/ann/shop"))


def test_a_conversation_of_openhands(tmp_path: Path) -> None:
    events, counts = read(samples.write_openhands(tmp_path))
    assert said(events) == [
        ("user_msg", PROMPT),
        ("run.started", PROMPT),
        ("assistant_msg", "I run the tests."),
        ("command.completed", "pytest"),
        ("run.completed", "A mutex guards the refresh."),
    ]
    assert {event["session_id"] for event in events} == {"c-17"}
    assert events[3]["payload"]["exit_code"] == 1
    assert counts.left == {"written by the client": 1, "bookkeeping": 2}


def test_a_run_of_swe_agent_begins_with_its_issue_at_the_time_of_the_file(tmp_path: Path) -> None:
    events, _ = read(write_document(tmp_path / "runs" / "shop-1.traj", samples.swe_trajectory()))
    assert said(events) == [
        ("user_msg", "Users get signed out\nTwo tabs race."),
        ("run.started", "Users get signed out\nTwo tabs race."),
        ("assistant_msg", "Look around"),
        ("command.completed", "ls -F"),
        ("assistant_msg", "Submit"),
        ("command.completed", "submit"),
        ("run.completed", "Ended as: submitted"),
    ]
    stamps = [event["timestamp"] for event in events]
    assert stamps == sorted(stamps)
    assert len({event["event_id"] for event in events}) == len(events)
    assert {event["session_id"] for event in events} == {"runs/shop-1"}


def test_a_run_of_mini_swe_agent_that_failed(tmp_path: Path) -> None:
    events, _ = read(write_document(tmp_path / "runs" / "shop-2" / "shop-2.traj.json", samples.mini_trajectory()))
    assert said(events) == [
        ("user_msg", "Users get signed out"),
        ("run.started", "Users get signed out"),
        ("assistant_msg", "I run the tests."),
        ("command.completed", "pytest"),
        ("run.failed", "Ended as: LimitsExceeded"),
    ]
    assert (events[3]["payload"]["output"], events[3]["payload"]["exit_code"]) == ("1 failed", 1)
    assert events[3]["timestamp"] == "2026-03-04T10:00:01.500000+00:00"
    assert {event["session_id"] for event in events} == {"runs/shop-2"}


@pytest.mark.parametrize(("resolved", "kind", "quality"), [(True, "run.completed", 1.0), (False, "run.failed", None)])
def test_the_verdict_of_an_evaluation_is_the_outcome(
    tmp_path: Path, resolved: bool, kind: str, quality: float | None
) -> None:
    run = samples.mini_trajectory()
    run["info"] |= {"exit_status": "Submitted", "resolved": resolved}
    events, _ = read(write_document(tmp_path / "shop-2.traj.json", run))
    assert (events[-1]["event_type"], events[-1]["payload"].get("quality")) == (f"history.{kind}", quality)


def test_an_export_of_chatgpt_is_read_along_the_visible_branch(tmp_path: Path) -> None:
    events, counts = read(write_document(tmp_path / "conversations.json", samples.chatgpt_export()))
    assert said(events) == [
        ("user_msg", "How do I stop two tabs from racing?"),
        ("assistant_msg", "Use a mutex per session."),
        ("user_msg", "Thank you, that works"),
    ]
    assert {event["payload"]["session_title"] for event in events} == {"Racing tabs"}
    assert events[0]["timestamp"] == "2026-03-05T10:00:00.250000+00:00"
    assert counts.left == {
        "another branch of the conversation": 1,
        "output of a lookup or read tool": 2,
    }


def test_an_export_of_claude_ai(tmp_path: Path) -> None:
    events, counts = read(write_document(tmp_path / "conversations.json", samples.claude_ai_export()))
    assert said(events) == [
        ("user_msg", "How do I stop two tabs from racing?"),
        ("assistant_msg", "Use a mutex per session."),
    ]
    assert counts.left == {"reasoning": 1, "output of a lookup or read tool": 1}


def test_an_export_is_read_from_its_archive(tmp_path: Path) -> None:
    path = tmp_path / "export.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("user.json", "{}")
        archive.writestr("conversations.json", json.dumps(samples.chatgpt_export()))
    events, _ = read(path)
    assert len(events) == 3


def test_a_trajectory_of_atif_with_a_reward_and_a_subagent(tmp_path: Path) -> None:
    events, counts = read(write_document(tmp_path / "trajectory.json", samples.atif_trajectory()))
    assert said(events) == [
        ("user_msg", PROMPT),
        ("run.started", PROMPT),
        ("assistant_msg", "I run the tests."),
        ("command.completed", "pytest"),
        ("assignment", "Look for other races"),
        ("run.completed", "Ended with a reward of 1"),
    ]
    assert (events[-1]["payload"]["quality"], events[4]["agent_id"]) == (1.0, "sub")
    assert counts.left == {"written by the client": 1, "copied from another trajectory": 1}


def test_a_block_of_memories_in_a_prompt_or_an_output_is_left_out(tmp_path: Path) -> None:
    lines = [
        samples.claude_line(1, "user", f"{samples.BLOCK}\n{PROMPT}"),
        samples.claude_line(2, "user", samples.BLOCK),
        samples.claude_line(
            3,
            "assistant",
            [{"type": "tool_use", "id": "t", "name": "Bash", "input": {"command": "memory-agent recall x"}}],
        ),
        samples.claude_line(4, "user", [{"type": "tool_result", "tool_use_id": "t", "content": "A mutex fixed it"}]),
        samples.claude_line(5, "assistant", [{"type": "text", "text": f"I was told:\n{samples.BLOCK[:-30]}"}]),
    ]
    events, counts = read(write_lines(tmp_path / "s.jsonl", lines))
    assert said(events) == [("user_msg", PROMPT), ("run.started", PROMPT), ("assistant_msg", "I was told:")]
    assert counts.left == {"injected context": 2, "answer of this memory": 1}


def test_an_import_can_be_limited_to_a_project_or_a_client(tmp_path: Path) -> None:
    write_lines(tmp_path / "s.jsonl", samples.claude_session())
    write_lines(tmp_path / "t.jsonl", samples.gemini_session())
    assert len(read(tmp_path, project="/home/ann")[0]) == 16
    nothing, counts = read(tmp_path, project="/home/ann/other")
    assert (nothing, counts.left["from a different project"]) == ([], 16)
    only, counts = read(tmp_path, clients=("gemini",))
    assert (len(only), counts.skipped_files) == (4, {"from a different client": 1})
