"""Test that entries from each client's hooks have the same ids as entries from a transcript."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from memory_agent.hooks.inputs import LISTENED, NOTHING, Content, Input
from memory_agent.sessions.entries import Session
from memory_agent.sessions.events import event_of
from tests.memory_agent.hooks.hook_inputs import bash, of_claude, of_codex, of_gemini
from tests.memory_agent.sessions.samples import BLOCK, read
from tests.memory_agent.sessions.test_real_samples import TRANSCRIPTS, needs_data

FILES = {
    "claude-code": ("claude_code_hooks.jsonl", "claude_code_session.jsonl"),
    "codex": ("codex_hooks.jsonl", "codex_rollout.jsonl"),
    "gemini": ("gemini_hooks.jsonl", "gemini_session.jsonl"),
}


def hear(client: str, said: dict[str, Any]) -> Content:
    return Input(client, said).content()


def told(client: str, said: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the kind and the text or command of each entry."""
    return [(entry.what, entry.command or entry.text) for entry in hear(client, said).entries]


def real_inputs(client: str) -> list[dict[str, Any]]:
    assert TRANSCRIPTS is not None
    lines = (TRANSCRIPTS / FILES[client][0]).read_text().splitlines()
    return [json.loads(line)["in"] for line in lines]


@needs_data
@pytest.mark.parametrize(
    ("client", "expected"),
    [
        (
            "claude-code",
            [
                ("user", "Users get signed out at random; fix it"),
                ("begin", "Users get signed out at random; fix it"),
                ("command", "echo hello > out.txt; cat out.txt"),
                ("command", "ls /nonexistent"),
                ("completed", "Done: wrote hello."),
            ],
        ),
        (
            "codex",
            [
                ("user", "Users get signed out at random"),
                ("begin", "Users get signed out at random"),
                ("command", "echo hello"),
                ("completed", "Done."),
            ],
        ),
        ("gemini", [("user", "Users get signed out"), ("command", "echo hello"), ("assistant", "Done.")]),
    ],
)
def test_the_hooks_of_a_real_session_report_its_content(client: str, expected: list[tuple[str, str]]) -> None:
    inputs = real_inputs(client)
    assert [one for said in inputs for one in told(client, said)] == expected
    content = [hear(client, said) for said in inputs]
    assert [one.prompt for one in content if one.prompt] == [expected[0][1]]
    assert sum(one.starts for one in content) == 1
    assert sum(one.ended is not None for one in content) == (client != "codex")


@needs_data
@pytest.mark.parametrize("client", FILES)
def test_a_transcript_yields_the_same_ids_as_the_hooks(client: str) -> None:
    assert TRANSCRIPTS is not None
    imported, _ = read(TRANSCRIPTS / FILES[client][1])
    known = {event["event_id"]: event for event in imported}
    for said in real_inputs(client):
        session = Session(client, said["session_id"], said["cwd"])
        for entry in hear(client, said).entries:
            event = event_of(entry, session, "alice", 0, datetime.now(UTC), "session")
            assert event is not None
            past = known.pop(event["event_id"])
            assert past["event_type"].partition(".")[2] == event["event_type"].partition(".")[2]
            names = ("session_id", "channel_id", "actor_id")
            assert [past.get(name) for name in names] == [event.get(name) for name in names]
            assert past["payload"].get("run_id") == event["payload"].get("run_id")
            assert past["payload"].get("command") == event["payload"].get("command")
    assert {event["event_type"] for event in known.values()} <= {"history.assistant_msg"}  # along the way


def test_context_of_hooks_and_memories_is_left_out() -> None:
    prompt = f"{BLOCK}\nfix the login please<system-reminder>{BLOCK}</system-reminder>"
    assert hear("claude-code", of_claude("UserPromptSubmit", prompt=prompt)).prompt == "fix the login please"
    prompt = f"<hook_context>{BLOCK}</hook_context>\n\nfix it"
    assert hear("gemini", of_gemini("BeforeAgent", prompt=prompt)).prompt == "fix it"
    assert hear("codex", of_codex("UserPromptSubmit", prompt=BLOCK)) is NOTHING
    said = of_claude("PostToolUse", tool_name="mcp__memory__recall", tool_input={"query": "x"}, tool_response=BLOCK)
    assert hear("claude-code", said) is NOTHING
    assert hear("claude-code", bash("PostToolUse", "memory-agent recall x", tool_response="a mutex")) is NOTHING


@pytest.mark.parametrize("prompt", ["/compact", "/review the diff", "<command-name>/clear</command-name>", "  ", ""])
def test_commands_to_claude_code_are_not_prompts(prompt: str) -> None:
    assert hear("claude-code", of_claude("UserPromptSubmit", prompt=prompt)) is NOTHING


def test_a_prompt_may_begin_with_a_path() -> None:
    assert hear("claude-code", of_claude("UserPromptSubmit", prompt="/etc/hosts is wrong")).prompt


def test_a_word_of_consent_begins_no_run() -> None:
    said = hear("claude-code", of_claude("UserPromptSubmit", prompt="go on"))
    assert [entry.what for entry in said.entries] == ["user"]


def test_results_of_commands_have_output_and_exit_code() -> None:
    (good,) = hear("claude-code", bash("PostToolUse", "ls", tool_response={"stdout": "a", "stderr": "b"})).entries
    assert (good.text, good.exit_code) == ("a\nb", 0)
    (bad,) = hear("claude-code", bash("PostToolUseFailure", "ls x", error="Exit code 2\nno such file")).entries
    assert (bad.text, bad.exit_code) == ("Exit code 2\nno such file", 2)
    output = "Wall time: 0.0 seconds\nProcess exited with code 3\nOutput:\nfailed\n"
    said = of_codex("PostToolUse", tool_name="Bash", tool_input={"command": "make"}, tool_response=output)
    (codex,) = hear("codex", said).entries
    assert (codex.text, codex.exit_code) == ("failed", 3)
    answer = {"llmContent": "Output: 1 failed\nExit Code: 1\nProcess Group PGID: 7", "returnDisplay": "1 failed"}
    call = {"tool_name": "run_shell_command", "tool_input": {"command": "pytest"}}
    (gemini,) = hear("gemini", of_gemini("AfterTool", **call, tool_response=answer)).entries
    assert (gemini.text, gemini.exit_code) == ("1 failed", 1)


def test_an_interruption_cancels_the_run() -> None:
    (entry,) = hear("claude-code", bash("PostToolUseFailure", "sleep 9", error="", is_interrupt=True)).entries
    assert (entry.what, entry.run) == ("cancelled", "claude-code:p-1")


def test_a_turn_that_a_hook_continued_ends_once() -> None:
    assert hear("codex", of_codex("Stop", last_assistant_message="Done.", stop_hook_active=True)) is NOTHING


def test_the_same_command_with_another_result_is_another_entry_of_gemini() -> None:
    call = {"tool_name": "run_shell_command", "tool_input": {"command": "pytest"}}
    ids = [
        hear("gemini", of_gemini("AfterTool", **call, tool_response={"returnDisplay": shown})).entries[0].id
        for shown in ("1 failed", "2 passed", "1 failed")
    ]
    assert ids[0] == ids[2] != ids[1]


@pytest.mark.parametrize("client", LISTENED)
def test_inputs_with_missing_or_wrong_fields_are_ignored(client: str) -> None:
    for name in (*LISTENED[client], "PreToolUse", "Unheard", ""):
        for odd in ({}, {"prompt": 7, "tool_input": [1], "tool_response": 7, "session_id": None, "timestamp": "noon"}):
            content = hear(client, {"hook_event_name": name, **odd})
            assert all(entry.text or entry.command for entry in content.entries)
    assert hear(client, {"hook_event_name": 7}) is NOTHING
