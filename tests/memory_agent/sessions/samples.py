"""Small synthetic sessions in each format, and functions that read them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from memory_agent.records.prompt_block import CLOSE, OPEN
from memory_agent.sessions.finding import NAMES, Places
from memory_agent.sessions.importing import ImportCounts, Scope, SessionImport

BLOCK = f"{OPEN}\n1. 2 weeks ago · finding (user_input)\n| A mutex fixed it\n{CLOSE}"
"""A block of recalled memories, as it appears in a prompt."""

PROMPT = "Users get signed out at random, please fix it"
Events = list[dict[str, Any]]


def read(
    *paths: Path, since: datetime | None = None, project: str | None = None, clients: tuple[str, ...] = NAMES
) -> tuple[Events, ImportCounts]:
    """Import these files or folders; return the events and the counts."""
    imported = SessionImport(Places(paths, clients=clients), Scope("alice", since, project), lambda *_: None)
    return list(imported.events()), imported.counts


def stream(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the events imported from a file."""
    yield from SessionImport(Places((path,)), Scope("alice"), lambda *_: None).events()


def said(events: Events) -> list[tuple[str, str]]:
    """Return each event's kind and text."""
    return [(event["event_type"].removeprefix("history."), text_of(event)) for event in events]


def text_of(event: dict[str, Any]) -> str:
    payload = event["payload"]
    names = ("text", "objective", "summary", "error", "reason", "command")
    return str(next(payload[name] for name in names if name in payload))


def write_lines(path: Path, lines: Iterable[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def write_document(path: Path, document: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1))
    return path


def claude_line(number: int, type: str, content: Any, **fields: Any) -> dict[str, Any]:
    """Return a line of a Claude Code session; `stop` is the message's `stop_reason`."""
    message = {"role": type, "content": content, "stop_reason": fields.pop("stop", None)}
    return {
        "type": type,
        "uuid": f"uuid-{number}",
        "parentUuid": f"uuid-{number - 1}",
        "sessionId": "s-claude",
        "timestamp": f"2026-03-01T10:{number // 60 % 60:02}:{number % 60:02}.000Z",
        "cwd": "/home/ann/shop",
        "isSidechain": False,
        "version": "2.1.330",
        "message": message,
        **fields,
    }


def claude_session() -> list[dict[str, Any]]:
    return [
        {"type": "queue-operation", "operation": "enqueue", "sessionId": "s-claude", "content": PROMPT},
        {
            "type": "attachment",
            "uuid": "uuid-0",
            "sessionId": "s-claude",
            "timestamp": "2026-03-01T10:00:00.000Z",
            "attachment": {"type": "hook_additional_context", "content": [BLOCK]},
        },
        claude_line(1, "user", f"{PROMPT}\n<system-reminder>Be brief.</system-reminder>"),
        claude_line(2, "assistant", [{"type": "thinking", "thinking": "hm"}]),
        claude_line(3, "assistant", [{"type": "text", "text": "Two tabs race for one token."}], stop="tool_use"),
        claude_line(
            4, "assistant", [{"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "pytest -q"}}]
        ),
        claude_line(
            5,
            "user",
            [{"type": "tool_result", "tool_use_id": "t1", "content": "Exit code 1\n1 failed", "is_error": True}],
        ),
        claude_line(
            6, "assistant", [{"type": "tool_use", "id": "t2", "name": "Edit", "input": {"file_path": "session.py"}}]
        ),
        claude_line(7, "user", [{"type": "tool_result", "tool_use_id": "t2", "content": "updated"}]),
        claude_line(
            8, "assistant", [{"type": "tool_use", "id": "t3", "name": "Read", "input": {"file_path": "session.py"}}]
        ),
        claude_line(9, "user", [{"type": "tool_result", "tool_use_id": "t3", "content": "class Session: ..."}]),
        claude_line(10, "assistant", [{"type": "text", "text": "Fixed: a mutex guards the refresh."}], stop="end_turn"),
        claude_line(11, "user", "ok"),
        claude_line(12, "user", "<command-name>/clear</command-name>"),
        claude_line(13, "user", "Caveat: the messages below ...", isMeta=True),
        claude_line(14, "user", "Now write a test for the refresh"),
        claude_line(15, "user", "[Request interrupted by user]"),
        claude_line(16, "user", "Look for other races", isSidechain=True, agentId="a1"),
        claude_line(17, "assistant", [{"type": "text", "text": "No others."}], isSidechain=True, agentId="a1"),
    ]


def codex_line(number: int, kind: str, /, **payload: Any) -> dict[str, Any]:
    stamp = f"2026-03-02T10:00:{number:02}.000Z"
    return {"timestamp": stamp, "ordinal": number, "type": kind, "payload": payload}


def codex_message(number: int, role: str, *parts: tuple[str, str]) -> dict[str, Any]:
    """Return a message with parts. Each part has a kind ("" for old versions of the client) and a text."""
    kinds = [kind for kind, _ in parts]
    noted = {"content_item_kinds": kinds} if any(kinds) else {}
    content = [{"type": "input_text", "text": text} for _, text in parts]
    return codex_line(
        number,
        "response_item",
        type="message",
        role=role,
        content=content,
        internal_chat_message_metadata_passthrough=noted,
    )


def codex_session() -> list[dict[str, Any]]:
    return [
        codex_line(0, "session_meta", id="s-codex", cwd="/home/ann/shop", cli_version="0.169.0"),
        codex_line(1, "event_msg", type="task_started", turn_id="turn-1"),
        codex_message(2, "user", ("environments.environment_context", "<environment_context/>")),
        codex_message(3, "developer", ("hooks.additional_context", BLOCK)),
        codex_message(4, "user", ("user.text", PROMPT)),
        codex_line(5, "event_msg", type="user_message", message=PROMPT),
        codex_line(6, "response_item", type="reasoning", summary=[]),
        codex_message(7, "assistant", ("unknown", "I look at the tests.")),
        codex_line(
            8, "response_item", type="function_call", name="exec_command", arguments='{"cmd": "pytest"}', call_id="c"
        ),
        codex_line(
            9,
            "response_item",
            type="function_call_output",
            call_id="c",
            output="Chunk ID: 1\nWall time: 0.1 seconds\nProcess exited with code 2\nOutput:\n2 failed\n",
        ),
        codex_line(
            10,
            "response_item",
            type="custom_tool_call",
            name="apply_patch",
            input="*** Begin Patch\n*** Update File: session.py\n@@\n*** End Patch",
            call_id="d",
        ),
        codex_line(11, "response_item", type="custom_tool_call_output", call_id="d", output='{"output":"Success"}'),
        codex_message(12, "assistant", ("", "A mutex guards the refresh.")),
        codex_line(
            13, "event_msg", type="task_complete", turn_id="turn-1", last_agent_message="A mutex guards the refresh."
        ),
        codex_line(14, "event_msg", type="task_started", turn_id="turn-2"),
        codex_message(15, "user", ("", "Write a test for it, too")),
        codex_line(16, "event_msg", type="turn_aborted", turn_id="turn-2", reason="interrupted"),
    ]


def gemini_session() -> list[dict[str, Any]]:
    call = {"id": "g1", "name": "run_shell_command", "args": {"command": "pytest"}, "resultDisplay": "1 passed"}
    answer = {"id": "m2", "timestamp": "2026-03-03T10:00:02.000Z", "type": "gemini", "content": "I run the tests."}
    setup = "<session_context>\n- **Workspace Directories:**\n  - /home/ann/shop\n</session_context>"
    hook = f"<hook_context>{BLOCK}</hook_context>"
    return [
        {"sessionId": "s-gemini", "projectHash": "0f", "startTime": "2026-03-03T10:00:00.000Z", "kind": "main"},
        {"$set": {"messages": [{"id": "m0", "type": "user", "content": [{"text": setup}]}]}},
        {
            "id": "m1",
            "timestamp": "2026-03-03T10:00:01.000Z",
            "type": "user",
            "content": [{"text": f"{hook}\n\n{PROMPT}"}, {"text": hook}],
        },
        {**answer, "content": "I run"},
        {"$set": {"lastUpdated": "2026-03-03T10:00:02.000Z"}},
        {**answer, "toolCalls": [{**call, "status": "success", "timestamp": "2026-03-03T10:00:03.000Z"}]},
        {"id": "m3", "timestamp": "2026-03-03T10:00:04.000Z", "type": "info", "content": "Update available"},
        {"id": "m4", "timestamp": "2026-03-03T10:00:05.000Z", "type": "gemini", "content": "All pass."},
    ]


def openhands_events() -> list[dict[str, Any]]:
    def event(number: int, kind: str, source: str, **fields: Any) -> dict[str, Any]:
        stamp = f"2026-03-04T10:00:{number:02}.000000"
        return {"id": f"e{number}", "kind": kind, "source": source, "timestamp": stamp, **fields}

    def text(words: str) -> list[dict[str, str]]:
        return [{"type": "text", "text": words}]

    run = {"kind": "TerminalAction", "command": "pytest"}
    done = {"kind": "FinishAction", "message": "A mutex guards the refresh."}
    return [
        event(0, "SystemPromptEvent", "agent", system_prompt={"text": "You are an agent"}),
        event(1, "MessageEvent", "user", llm_message={"role": "user", "content": text(PROMPT)}),
        event(
            2,
            "ActionEvent",
            "agent",
            thought=text("I run the tests."),
            action=run,
            tool_name="terminal",
            tool_call_id="c1",
        ),
        event(
            3,
            "ObservationEvent",
            "environment",
            observation={"kind": "TerminalObservation", "content": text("1 failed"), "exit_code": 1},
            tool_name="terminal",
            tool_call_id="c1",
        ),
        event(4, "ConversationStateUpdateEvent", "environment", key="stats", value={}),
        event(5, "ActionEvent", "agent", thought=[], action=done, tool_name="finish", tool_call_id="c2"),
        event(6, "ObservationEvent", "environment", observation={"content": []}, tool_name="finish", tool_call_id="c2"),
    ]


def write_openhands(folder: Path) -> Path:
    for number, event in enumerate(openhands_events()):
        write_document(folder / "c-17" / "events" / f"event-{number:05}-{event['id']}.json", event)
    return folder


def swe_trajectory() -> dict[str, Any]:
    task = "We're solving this.\nISSUE:\nUsers get signed out\nTwo tabs race.\nINSTRUCTIONS:\nBe careful."
    return {
        "environment": "swe_main",
        "trajectory": [
            {"thought": "Look around", "action": "ls -F\n", "observation": "session.py", "state": "{}"},
            {"thought": "Submit", "action": "submit", "observation": "", "query": [{"role": "system", "content": "x"}]},
        ],
        "history": [
            {"role": "system", "content": "You are", "agent": "main"},
            {"role": "user", "content": "a demonstration", "is_demo": True},
            {"role": "user", "content": task, "agent": "main"},
        ],
        "info": {"exit_status": "submitted", "submission": "diff --git"},
    }


def mini_trajectory() -> dict[str, Any]:
    prompt = (
        "<pr_description>\nConsider the following PR description:\nUsers get signed out\n</pr_description>\nRules: ..."
    )
    call = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": '{"command": "pytest"}'}}
    return {
        "info": {"exit_status": "LimitsExceeded", "submission": "", "mini_version": "2.2.7", "config": {"agent": {}}},
        "messages": [
            {"role": "system", "content": "You are"},
            {"role": "user", "content": prompt},
            {
                "role": "assistant",
                "content": "I run the tests.",
                "tool_calls": [call],
                "extra": {"timestamp": 1772618400.5, "actions": [{"command": "pytest", "tool_call_id": "c1"}]},
            },
            {
                "role": "tool",
                "tool_call_id": "c1",
                "content": "<returncode>1</returncode>\n<output>\n1 failed\n</output>",
                "extra": {"raw_output": "1 failed\n", "returncode": 1, "timestamp": 1772618401.5},
            },
        ],
        "trajectory_format": "mini-swe-agent-1.1",
    }


def chatgpt_export() -> list[dict[str, Any]]:
    def node(name: str, parent: str | None, role: str, text: str, **fields: Any) -> dict[str, Any]:
        content = {"content_type": "text", "parts": [text]}
        message = {"id": name, "author": {"role": role}, "content": content, "create_time": 1772704800.25, **fields}
        return {"id": name, "parent": parent, "children": [], "message": message}

    mapping = {
        "root": {"id": "root", "parent": None, "message": None},
        "a": node("a", "root", "user", "How do I stop two tabs from racing?"),
        "b": node("b", "a", "assistant", "An answer that was regenerated"),
        "c": node("c", "a", "assistant", "Use a mutex per session."),
        "d": node("d", "c", "tool", "a page"),
        "e": node("e", "d", "assistant", "search()", recipient="browser"),
        "f": node("f", "e", "user", "Thank you, that works"),
    }
    return [
        {
            "title": "Racing tabs",
            "conversation_id": "s-chat",
            "current_node": "f",
            "create_time": 1772704799,
            "mapping": mapping,
        }
    ]


def claude_ai_export() -> list[dict[str, Any]]:
    def message(name: str, sender: str, **fields: Any) -> dict[str, Any]:
        return {"uuid": name, "sender": sender, "created_at": "2026-03-05T10:00:00.000000Z", **fields}

    return [
        {
            "uuid": "s-ai",
            "name": "Racing tabs",
            "created_at": "2026-03-05T09:59:00.000000Z",
            "chat_messages": [
                message("x1", "human", text="How do I stop two tabs from racing?", content=[]),
                message(
                    "x2",
                    "assistant",
                    text="",
                    content=[
                        {"type": "thinking", "thinking": "hm"},
                        {"type": "tool_use", "name": "search", "input": {}},
                        {"type": "text", "text": "Use a mutex per session."},
                    ],
                ),
            ],
        }
    ]


def atif_trajectory() -> dict[str, Any]:
    return {
        "schema_version": "ATIF-v1.8",
        "session_id": "s-atif",
        "agent": {"name": "some-agent", "version": "1"},
        "steps": [
            {"step_id": 1, "source": "system", "message": "You are"},
            {"step_id": 2, "source": "user", "message": PROMPT, "timestamp": "2026-03-06T10:00:00Z"},
            {
                "step_id": 3,
                "source": "agent",
                "timestamp": "2026-03-06T10:00:05Z",
                "message": [{"type": "text", "text": "I run the tests."}],
                "tool_calls": [{"tool_call_id": "c", "function_name": "bash", "arguments": {"command": "pytest"}}],
                "observation": {"results": [{"source_call_id": "c", "content": "1 passed"}]},
            },
            {"step_id": 4, "source": "user", "message": "an old one", "is_copied_context": True},
        ],
        "extra": {"reward": 1.0},
        "subagent_trajectories": [
            {
                "schema_version": "ATIF-v1.8",
                "trajectory_id": "sub",
                "agent": {"name": "sub", "version": "1"},
                "steps": [{"step_id": 1, "source": "user", "message": "Look for other races"}],
            }
        ],
    }
