"""Test a hook's short path with a real server: the script, its answers, and when the command takes over."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from served_gateway import found_by_clients

from memory_agent import MemoryClient
from memory_agent.embedders import Embedder
from memory_agent.exchange import Answer, Door, Exchange
from memory_agent.hooks.report import SHORT_PATH
from memory_agent.integrations import hook_launcher
from memory_agent.layout import Layout
from relay import Scope, Subscriber, create_key, read_event
from tests.memory_agent.hooks.hook_inputs import FOLDER, bash, of_claude, of_codex
from tests.memory_agent.served_gateway import Served, gateway_without_ray

PATIENCE_S = 60.0
FOUND = "Two tabs raced for one refresh token; a mutex around the refresh fixed it."
PROMPT = of_claude("UserPromptSubmit", "s-9", "p-9", prompt="why are users signed out at random: a refresh token race?")

pytestmark = pytest.mark.skipif(not hook_launcher(), reason="the short path needs Linux and Perl")


@pytest.fixture(scope="module")
def served(embedder: Embedder) -> Iterator[Served]:
    with (
        tempfile.TemporaryDirectory(prefix="hook-") as folder,
        gateway_without_ray(Path(folder), embedder) as served,
        found_by_clients(served),
    ):
        with MemoryClient("default", endpoint=served.gateway, token=served.token) as client:
            client.remember(FOUND, channel_id=f"project:{FOLDER}")
        yield served


@pytest.fixture
def command(tmp_path: Path) -> Path:
    """A replacement for the command `memory-agent` that records its arguments, and then its input."""
    file = tmp_path / "memory-agent"
    record = f'#!/bin/sh\necho "$@" > {tmp_path}/words\ncat > {tmp_path}/part && mv {tmp_path}/part {tmp_path}/input\n'
    file.write_text(record)
    file.chmod(0o755)
    return file


def hook(command: Path, data_dir: Path, said: dict[str, Any], *options: str) -> str:
    """Run the hook's short path; return the context that it adds to the prompt, or ""."""
    words = [*hook_launcher(), str(command), "hook", "claude-code", "--data-dir", str(data_dir), *options]
    known = {name: value for name, value in os.environ.items() if not name.startswith(("MEMORY_AGENT_", "CLAUDE_"))}
    done = subprocess.run(words, input=json.dumps(said).encode(), capture_output=True, env=known, timeout=PATIENCE_S)
    assert (done.returncode, done.stderr) == (0, b"")
    return str(json.loads(done.stdout)["hookSpecificOutput"]["additionalContext"]) if done.stdout else ""


def patient(command: Path, data_dir: Path, said: dict[str, Any], *options: str) -> str:
    return hook(command, data_dir, said, "--deadline-ms", "60000", *options)


def input_of(command: Path) -> dict[str, Any]:
    """Wait for the command to run; return its input."""
    until_s = time.monotonic() + PATIENCE_S
    while not (file := command.with_name("input")).exists():
        assert time.monotonic() < until_s
        time.sleep(0.01)
    given: dict[str, Any] = json.loads(file.read_bytes())
    return given


def call(served: Served, said: dict[str, Any], token: str | None = None, **query: object) -> Answer:
    """Send an input as the script does."""
    door = Door(served.http, served.token if token is None else token)
    asked = urlencode({"client": "claude-code", "left_ms": 60_000, **query})
    return Exchange(door, time.monotonic() + PATIENCE_S).send(f"/hook?{asked}", json.dumps(said).encode()).receive()


def events_of(served: Served, session: str, count: int) -> list[str]:
    """Wait until `count` events of a session are in the journal; return their types."""
    until_s = time.monotonic() + PATIENCE_S
    while True:
        with Subscriber(*served.relay) as subscriber:
            events = [read_event(entry.data) for entry in subscriber.fetch(0, 1_000).entries]
        types = [event.event_type for event in events if event.session_id == session]
        if len(types) >= count:
            return types
        assert time.monotonic() < until_s, types
        time.sleep(0.02)


def test_a_prompt_is_answered_without_the_command(served: Served, command: Path) -> None:
    assert FOUND in patient(command, served.data_dir, PROMPT)
    assert events_of(served, "s-9", 2) == ["session.user_msg", "session.run.started"]
    assert not command.with_name("words").exists()


def test_published_events_no_longer_wait_and_earlier_ones_are_sent(served: Served, command: Path) -> None:
    folder = Layout(served.data_dir).hooks
    folder.mkdir(mode=0o700, exist_ok=True)
    waiting = {"event_type": "session.step", "event_id": "e-1", "session_id": "s-8", "payload": {"text": "step"}}
    (folder / "1-1.jsonl").write_text(json.dumps(waiting) + '\n{"event_type": "half\n')
    assert patient(command, served.data_dir, bash("PostToolUse", "ls", session="s-8", tool_response="a")) == ""
    assert events_of(served, "s-8", 2) == ["session.step", "session.command.completed"]
    until_s = time.monotonic() + PATIENCE_S
    while list(folder.glob("*.jsonl")):
        assert time.monotonic() < until_s
        time.sleep(0.01)


def test_a_file_that_cannot_be_read_does_not_keep_the_lock_of_the_folder(served: Served) -> None:
    unreadable = Layout(served.data_dir).hooks / "0-0.jsonl"
    unreadable.mkdir(mode=0o700, parents=True)
    try:
        assert call(served, bash("PostToolUse", "ls", session="s-lock", tool_response="a")).status == 200
        with MemoryClient("default", endpoint=served.gateway, token=served.token) as client:
            client.erasure.erase(["none"])  # raises if a hook holds the lock for 10 s
    finally:
        unreadable.rmdir()


def test_the_folder_and_the_options_determine_project_and_user(served: Served, command: Path) -> None:
    assert patient(command, served.data_dir, PROMPT | {"cwd": "/home/ann/other"}) == ""
    assert FOUND in patient(command, served.data_dir, PROMPT | {"cwd": "/x"}, "--channel", f"project:{FOLDER}")
    assert patient(command, served.data_dir, PROMPT, "--user", "alice") == ""


def test_a_block_that_is_late_is_given_to_the_next_hook_of_its_session(served: Served) -> None:
    late = PROMPT | {"session_id": "s-late"}
    answer = call(served, late, left_ms=0)
    assert (answer.status, answer.body) == (200, b"")
    result = bash("PostToolUse", "ls", session="s-late", tool_response="a")
    until_s = time.monotonic() + PATIENCE_S
    while not (answer := call(served, result)).body:
        assert time.monotonic() < until_s
        assert call(served, result | {"session_id": "s-other"}).body == b""
    shown = json.loads(answer.body)["hookSpecificOutput"]
    assert shown["hookEventName"] == "PostToolUse"
    assert FOUND in shown["additionalContext"]
    assert call(served, result).body == b""


def shown_late(served: Served, said: dict[str, Any]) -> str:
    """Wait for a session's late block by sending a tool result repeatedly."""
    until_s = time.monotonic() + PATIENCE_S
    while not (answer := call(served, said)).body:
        assert time.monotonic() < until_s
    return str(json.loads(answer.body)["hookSpecificOutput"]["additionalContext"])


def test_a_late_block_is_not_given_after_an_erasure(served: Served) -> None:
    with MemoryClient("default", endpoint=served.gateway, token=served.token) as client:
        mark = "zebra-4711"
        memory = client.remember(f"The refresh token race {mark} signs users out.", channel_id=f"project:{FOLDER}")
        for session in ("s-erased", "s-shown"):
            call(served, PROMPT | {"session_id": session, "prompt_id": session}, left_ms=0)
        assert mark in shown_late(served, bash("PostToolUse", "ls", session="s-shown", tool_response="a"))
        assert client.erasure.erase([memory.id]).memories == 1
    assert call(served, bash("PostToolUse", "ls", session="s-erased", tool_response="a")).body == b""


def test_a_late_block_is_given_to_no_hook_after_the_next_prompt_or_without_a_session(served: Served) -> None:
    for session in ("", "s-two", "s-ready"):
        call(served, PROMPT | {"session_id": session, "prompt_id": f"p{session}"}, left_ms=0)
    assert FOUND in shown_late(served, bash("PostToolUse", "ls", session="s-ready", tool_response="a"))
    call(served, PROMPT | {"session_id": "s-two", "prompt_id": "p-three", "prompt": "how do I bake bread in Oslo?"})
    for session in ("", "s-two"):
        assert call(served, bash("PostToolUse", "ls", session=session, tool_response="a")).body == b""


def test_a_key_of_one_user_publishes_and_recalls_only_for_that_user(served: Served) -> None:
    alice = create_key(served.data_dir, "alice", "alice", frozenset({Scope.PUBLISH})).token
    for_bob = PROMPT | {"session_id": "s-b", "prompt_id": "p-b"}
    assert call(served, for_bob, alice, user="bob").body == b""
    assert call(served, PROMPT | {"session_id": "s-a", "prompt_id": "p-a"}, alice).body == b""
    assert events_of(served, "s-a", 2) == ["session.user_msg", "session.run.started"]
    assert events_of(served, "s-b", 0) == []
    assert call(served, PROMPT, "wrong").status == 401


@pytest.mark.parametrize("query", [{"client": "emacs"}, {"left_ms": "soon"}, {"left_ms": -1}, {"colour": "red"}])
def test_unknown_parameters_are_refused(served: Served, query: dict[str, Any]) -> None:
    assert call(served, PROMPT, **query).status == 422


@pytest.mark.parametrize("data", [b"", b"{", b"[1]", b"null", b"\xff\xfe\x00", b'{"hook_event_name": 7}'])
def test_invalid_input_gets_no_answer(served: Served, data: bytes) -> None:
    path = "/hook?client=codex&left_ms=60000"
    door = Door(served.http, served.token)
    answer = Exchange(door, time.monotonic() + PATIENCE_S).send(path, data).receive()
    assert (answer.status, answer.body) == (200, b"")


def test_without_a_daemon_the_command_answers(tmp_path: Path, command: Path) -> None:
    hook(command, tmp_path, PROMPT)
    assert input_of(command) == PROMPT
    assert command.with_name("words").read_text() == f"hook claude-code --data-dir {tmp_path}\n"


@pytest.mark.parametrize(
    "options",
    [
        ("--url", "http://127.0.0.1:1"),
        ("--deadline-ms", "soon"),
        ("--config", "x.toml"),
        ("--user",),
        ("--user", "a", "--user", "b"),
    ],
)
def test_the_command_answers_with_options_that_the_short_path_does_not_have(
    served: Served, command: Path, options: tuple[str, ...]
) -> None:
    hook(command, served.data_dir, PROMPT, *options)
    assert input_of(command) == PROMPT


def test_the_command_gets_a_long_input_whole(served: Served, command: Path) -> None:
    said = bash("PostToolUse", "make", tool_response="x" * (3 << 20))
    patient(command, served.data_dir, said)
    assert input_of(command) == said


def test_the_input_for_the_command_is_on_no_disk(served: Served, tmp_path: Path) -> None:
    command = tmp_path / "memory-agent"
    command.write_text(f"#!/bin/sh\nreadlink /proc/$$/fd/0 > {tmp_path}/source; wc -c > {tmp_path}/size\n")
    command.chmod(0o755)
    said = bash("PostToolUse", "make", tool_response="x" * (2 << 20))
    patient(command, served.data_dir, said)
    assert (tmp_path / "source").read_text().startswith("/memfd:")
    assert int((tmp_path / "size").read_text()) == len(json.dumps(said))


def test_without_the_script_the_command_answers(tmp_path: Path, command: Path) -> None:
    words = [*hook_launcher()[:-1], str(tmp_path / "gone.pl"), str(command), "hook", "claude-code"]
    subprocess.run(words, input=json.dumps(PROMPT).encode(), check=True)
    assert input_of(command) == PROMPT


@contextmanager
def served_by(answer: bytes, folder: Path) -> Iterator[None]:
    """Act as a folder's daemon that gives each request the same `answer` or, if it is b"", never answers."""
    layout = Layout(folder)
    layout.create()
    (folder / "token").write_text("token\n")
    with socket.create_server(("127.0.0.1", 0)) as server, layout.hold():
        layout.http.write_text(f"http://127.0.0.1:{server.getsockname()[1]}\n")

        def take() -> None:
            one, _ = server.accept()
            with one:
                one.recv(1 << 16)
                one.sendall(answer)
                if not answer:
                    one.recv(1)

        thread = threading.Thread(target=take)
        thread.start()
        yield
        thread.join()


def test_events_that_may_not_have_arrived_are_sent_by_the_command_later(tmp_path: Path, command: Path) -> None:
    with served_by(b"", tmp_path / "data"):
        assert hook(command, tmp_path / "data", PROMPT, "--deadline-ms", "3000") == ""
    assert input_of(command) == PROMPT
    words = f"hook claude-code --data-dir {tmp_path}/data --deadline-ms 60000\n"  # repeated options are refused
    assert command.with_name("words").read_text() == words


def test_a_daemon_of_an_earlier_version_is_left_to_the_command(tmp_path: Path, command: Path) -> None:
    with served_by(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n", tmp_path / "data"):
        patient(command, tmp_path / "data", PROMPT)
    assert input_of(command) == PROMPT


def test_half_an_answer_is_not_shown(tmp_path: Path, command: Path) -> None:
    with served_by(b'HTTP/1.1 200 OK\r\n\r\n{"hookSpecificOutput": {"additi', tmp_path / "data"):
        assert patient(command, tmp_path / "data", PROMPT) == ""


def test_a_client_that_does_not_read_or_write_is_not_waited_for(served: Served, command: Path) -> None:
    reading, writing = os.pipe()
    words = [*hook_launcher(), str(command), "hook", "claude-code", "--data-dir", str(served.data_dir)]
    with subprocess.Popen(words, stdin=reading, stdout=writing) as process:
        os.write(writing, b'{"hook_event_name": ')
        assert process.wait(PATIENCE_S) == 0
    full, filled = os.pipe()
    os.set_blocking(filled, False)
    while True:
        try:
            os.write(filled, bytes(4096))
        except BlockingIOError:
            break
    with subprocess.Popen([*words, "--deadline-ms", "2000"], stdin=subprocess.PIPE, stdout=filled) as process:
        process.communicate(json.dumps(PROMPT).encode(), timeout=PATIENCE_S)
    assert process.returncode == 0
    for descriptor in (reading, writing, full, filled):
        os.close(descriptor)


def test_events_are_sent_later_if_the_client_has_closed_the_output(tmp_path: Path, command: Path) -> None:
    unsure = b'HTTP/1.1 202 Accepted\r\n\r\n{"hookSpecificOutput": {}}\n'
    reading, writing = os.pipe()
    os.close(reading)
    words = [*hook_launcher(), str(command), "hook", "claude-code", "--data-dir", str(tmp_path / "data")]
    with served_by(unsure, tmp_path / "data"):
        done = subprocess.run([*words, "--deadline-ms", "60000"], input=json.dumps(PROMPT).encode(), stdout=writing)
    os.close(writing)
    assert done.returncode == 0
    assert input_of(command) == PROMPT


def test_the_script_is_strict() -> None:
    """The script itself does not load `strict`, which would take a third of its time."""
    code = "open my $file, '<', shift; local $/; eval 'use strict; use warnings; return 1; ' . <$file> or die $@"
    done = subprocess.run([hook_launcher()[0], "-e", code, str(SHORT_PATH)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "use " not in SHORT_PATH.read_text().replace("Uses no modules", "")


def test_codex_has_the_same_short_path(served: Served) -> None:
    said = of_codex("UserPromptSubmit", "s-7", "t-7", prompt=PROMPT["prompt"])
    assert FOUND in call(served, said, client="codex").body.decode()
