"""Test hooks with a real server, relay and memory: published events, context for prompts, and failures."""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from served_gateway import found_by_clients

from memory_agent import MemoryClient
from memory_agent.embedders import Embedder
from memory_agent.hooks.report import MOST_CHARS
from memory_agent.hooks.waiting import MOST_FILES, Waiting
from memory_agent.layout import Layout
from memory_agent.records.prompt_block import CLOSE, OPEN
from relay import Event, Publisher, Scope, Subscriber, create_key, read_event
from tests.memory_agent.hooks.hook_inputs import FOLDER, answered, bash, of_claude, of_codex, of_gemini
from tests.memory_agent.hooks.test_hook_inputs import FILES, real_inputs
from tests.memory_agent.served_gateway import Served, gateway_without_ray
from tests.memory_agent.sessions.samples import read
from tests.memory_agent.sessions.test_real_samples import TRANSCRIPTS, needs_data

REQUEST = "users get signed out at random, please fix it"
FOUND = "Two tabs raced for one refresh token; a mutex around the refresh fixed it."
SECRET = "sk-ant-api03-" + "Zk9" * 31
PATIENCE_S = 60.0


@pytest.fixture
def served(embedder: Embedder) -> Iterator[Served]:
    with tempfile.TemporaryDirectory(prefix="hook-") as folder, daemon_in(Path(folder), embedder) as served:
        yield served


@contextmanager
def daemon_in(folder: Path, embedder: Embedder) -> Iterator[Served]:
    with gateway_without_ray(folder, embedder) as served, found_by_clients(served):
        yield served


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CLAUDE_PROJECT_DIR", "GEMINI_PROJECT_DIR", "MEMORY_AGENT_TOKEN", "MEMORY_AGENT_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)


def journaled(served: Served) -> list[Event]:
    with Subscriber(*served.relay) as subscriber:
        return [read_event(entry.data) for entry in subscriber.fetch(0, 1_000).entries]


def caller(served: Served) -> MemoryClient:
    return MemoryClient("default", endpoint=served.gateway, token=served.token)


def remembered(served: Served) -> None:
    """Wait until all journaled events can be recalled."""
    with Subscriber(*served.relay) as subscriber, caller(served) as client:
        client.wait({"default": subscriber.fetch(0, 1_000).last_seq}, PATIENCE_S)


def waiting_in(data_dir: Path) -> list[Path]:
    return sorted(Layout(data_dir).hooks.rglob("*.jsonl"))


def finished_session(served: Served) -> None:
    """Run the hooks of a Claude Code session that reports a finding."""
    for said in (
        of_claude("SessionStart", source="startup"),
        of_claude("UserPromptSubmit", prompt=REQUEST),
        bash("PostToolUse", "pytest -q tests/session", tool_response={"stdout": "2 passed"}, tool_use_id="c-1"),
        of_claude("Stop", last_assistant_message=FOUND, stop_hook_active=False),
        of_claude("SessionEnd", reason="other"),
    ):
        assert answered("claude-code", said, served.data_dir) == ""
    remembered(served)


@contextmanager
def process(client: str, data_dir: Path, *options: str, **pipes: Any) -> Iterator[subprocess.Popen[bytes]]:
    command = [
        sys.executable,
        "-m",
        "memory_agent",
        "hook",
        client,
        "--data-dir",
        str(data_dir),
        "--no-start",
        *options,
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **pipes) as hook:
        try:
            yield hook
        finally:
            hook.kill()  # otherwise a failed test would wait for the hook


def test_findings_of_one_session_reach_the_prompt_of_the_next(served: Served) -> None:
    finished_session(served)
    for client, said in (
        ("claude-code", of_claude("UserPromptSubmit", "s-9", "p-9", prompt="why are users signed out at random?")),
        ("codex", of_codex("UserPromptSubmit", "s-8", "t-8", prompt="users are signed out at random")),
        ("gemini", of_gemini("BeforeAgent", "s-7", prompt="users are signed out at random")),
    ):
        block = answered(client, said, served.data_dir)
        assert block.startswith(OPEN)
        assert block.endswith(CLOSE)
        assert "a mutex around the refresh fixed it" in block, client


def test_no_hook_puts_shared_items_into_a_prompt(served: Served) -> None:
    """A hook adds context unasked, and a shared item may contain instructions."""
    finished_session(served)
    with MemoryClient("sharer", endpoint=served.gateway, token=served.token) as sharer, caller(served) as client:
        sharer.shared.confirm(sharer.shared.preview("A quagga", f"{REQUEST}: the quagga signs users out at random"))
        assert "quagga" in str(client.recall(REQUEST, tiers=("global",), min_relevance=0.0, deadline_ms=30_000.0))
    for said in (
        of_codex("UserPromptSubmit", "s-8", "t-8", prompt="users are signed out at random"),
        of_codex("SessionStart", source="startup"),
    ):
        block = answered("codex", said, served.data_dir)
        assert "mutex" in block
        assert "quagga" not in block


def test_a_starting_session_receives_recent_memories(served: Served) -> None:
    finished_session(served)
    assert "mutex" in answered("codex", of_codex("SessionStart", source="startup"), served.data_dir)


def test_memories_do_not_reach_other_projects(served: Served) -> None:
    finished_session(served)
    said = of_claude("UserPromptSubmit", "s-9", "p-9", prompt=REQUEST) | {"cwd": "/home/ann/other"}
    assert answered("claude-code", said, served.data_dir) == ""
    assert answered("claude-code", said, served.data_dir, channel=f"project:{FOLDER}") != ""


def test_memories_without_a_project_are_shown_in_all_projects(served: Served) -> None:
    with MemoryClient(data_dir=served.data_dir) as client:
        client.remember("Staging needs the VPN")
        client.remember("Staging of the shop needs the certificate", channel_id="project:/home/ann/shop-of-bob")
    assert answered("codex", of_codex("SessionStart", source="startup"), served.data_dir) == ""
    said = of_claude("UserPromptSubmit", "s-9", "p-9", prompt="why does the deploy to staging hang?")
    block = answered("claude-code", said, served.data_dir)
    assert "Staging needs the VPN" in block
    assert "certificate" not in block


def test_a_prompt_without_relevant_memories_gets_nothing(served: Served) -> None:
    finished_session(served)
    said = of_claude("UserPromptSubmit", "s-9", "p-9", prompt="which fern grows well beside the kitchen window?")
    assert answered("claude-code", said, served.data_dir) == ""


def test_a_prompt_gets_no_memories_of_its_own_session_but_how_the_same_request_ended(served: Served) -> None:
    finished_session(served)
    again = of_claude("UserPromptSubmit", turn="p-2", prompt=REQUEST)
    said = answered("claude-code", again, served.data_dir)
    assert "1. just now · run" in said
    assert "2. " not in said


def test_the_folder_that_a_session_began_in_is_its_project(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLAUDE_PROJECT_DIR", FOLDER)
    said = of_claude("UserPromptSubmit", prompt=REQUEST) | {"cwd": f"{FOLDER}/tests"}
    answered("claude-code", said, served.data_dir)
    answered("codex", of_codex("UserPromptSubmit", prompt=REQUEST) | {"cwd": "/work"}, served.data_dir)
    channels = {(event.actor_id, event.channel_id) for event in journaled(served)}
    assert channels == {("claude-code", f"project:{FOLDER}"), ("codex", "project:/work")}


def test_events_are_masked_and_belong_to_the_session_and_its_run(served: Served) -> None:
    said = bash("PostToolUse", f"export KEY={SECRET}", tool_response={"stdout": f"set {SECRET}"}, tool_use_id="c-1")
    answered("claude-code", said, served.data_dir, user="alice")
    (event,) = journaled(served)
    assert (event.event_type, event.user_id, event.session_id) == ("session.command.completed", "alice", "s-1")
    assert event.payload["run_id"] == "claude-code:p-1"
    assert SECRET not in str(event)
    assert not waiting_in(served.data_dir)


@needs_data
@pytest.mark.parametrize("client", FILES)
def test_a_session_that_hooks_reported_is_not_stored_again_by_an_import(served: Served, client: str) -> None:
    assert TRANSCRIPTS is not None
    for said in real_inputs(client):
        answered(client, said, served.data_dir, user="alice")
    reported = [event for event in journaled(served) if event.event_type != "session.ended"]
    events, _ = read(TRANSCRIPTS / FILES[client][1])
    with Publisher(served.relay.ingest) as publisher:
        for event in events:
            publisher.publish(event)
        report = publisher.flush()
    assert report.duplicates == len(reported) >= 3
    assert report.rejected == 0


def test_without_a_daemon_events_wait_for_the_next_hook(tmp_path: Path, embedder: Any) -> None:
    with tempfile.TemporaryDirectory(prefix="hook-") as name:
        folder = Path(name)
        assert answered("codex", of_codex("UserPromptSubmit", prompt=REQUEST), folder) == ""
        (file,) = waiting_in(folder)
        assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
        with daemon_in(folder, embedder) as served:
            answered("codex", of_codex("Stop", last_assistant_message="Done."), folder)
            types = [event.event_type for event in journaled(served)]
        assert types == ["session.user_msg", "session.run.started", "session.run.completed"]
        assert not waiting_in(folder)


def test_a_port_that_another_program_has_taken_is_not_contacted(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        Layout(tmp_path).create()
        (tmp_path / "run" / "http").write_text(
            f"http://127.0.0.1:{other.getsockname()[1]}\n"
        )  # left by a killed daemon
        answered("codex", of_codex("UserPromptSubmit", prompt=REQUEST), tmp_path)
        other.setblocking(False)
        with pytest.raises(BlockingIOError):
            other.accept()


def test_a_key_that_is_refused_leaves_the_events_waiting(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMORY_AGENT_TOKEN", "wrong")
    assert answered("codex", of_codex("UserPromptSubmit", prompt=REQUEST), served.data_dir) == ""
    assert len(waiting_in(served.data_dir)) == 1
    assert journaled(served) == []


def test_waiting_events_are_sent_to_their_daemon_with_their_key(embedder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    said = of_codex("UserPromptSubmit", prompt=REQUEST)
    ended = of_codex("Stop", last_assistant_message="Done.")
    with tempfile.TemporaryDirectory(prefix="hook-") as name:
        folder = Path(name)
        key = {user: create_key(folder, user, user, frozenset({Scope.PUBLISH})).token for user in ("alice", "bob")}
        monkeypatch.setenv("MEMORY_AGENT_TOKEN", key["alice"])
        answered("codex", said, folder)
        answered("codex", said, folder, url="http://127.0.0.1:1")  # sent to another, unavailable daemon
        with daemon_in(folder, embedder) as served:
            monkeypatch.setenv("MEMORY_AGENT_TOKEN", key["bob"])
            answered("codex", ended, folder)
            assert [event.user_id for event in journaled(served)] == ["bob"]
            monkeypatch.setenv("MEMORY_AGENT_TOKEN", key["alice"])
            answered("codex", ended | {"turn_id": "t-2"}, folder)
            assert [event.user_id for event in journaled(served)] == ["bob", "alice", "alice", "alice"]
            (left,) = waiting_in(folder)  # events for the unavailable daemon
            assert (left.parent.stat().st_mode & 0o777, key["alice"] in str(left)) == (0o700, False)


def test_an_invalid_file_does_not_block_other_files(served: Served) -> None:
    Waiting(Layout(served.data_dir).hooks).keep([b'{"event_type": "half'])
    Waiting(Layout(served.data_dir).hooks).keep([b'{"event_type": "user_input", "payload": {"text": "good"}}'])
    answered("codex", of_codex("Stop", last_assistant_message="Done."), served.data_dir)
    assert [event.event_type for event in journaled(served)][:2] == ["user_input", "session.run.completed"]
    assert not waiting_in(served.data_dir)


def test_more_events_than_one_request_takes_are_sent_one_after_the_other(served: Served) -> None:
    waiting = Waiting(Layout(served.data_dir).hooks)
    for number in range(450):
        waiting.keep([json.dumps({"event_type": "user_input", "event_id": f"e-{number}"}).encode()])
    answered("codex", of_codex("Stop", last_assistant_message="Done."), served.data_dir)
    assert [event.event_id for event in journaled(served)] == [*(f"e-{n}" for n in range(450)), "codex:t-1:completed"]
    assert not waiting_in(served.data_dir)


def test_concurrent_hooks_lose_nothing(served: Served) -> None:
    waiting = Waiting(Layout(served.data_dir).hooks)
    for number in range(40):
        waiting.keep([json.dumps({"event_type": "user_input", "event_id": f"e-{number}"}).encode()])

    def hook(number: int) -> int:
        with process("claude-code", served.data_dir, "--deadline-ms", "60000", stdin=subprocess.PIPE) as one:
            said = bash("PostToolUse", "ls", tool_response="a", tool_use_id=f"c-{number}")
            one.communicate(json.dumps(said).encode())
            return one.returncode

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(hook, range(8))) == {0}
    ids = [event.event_id for event in journaled(served)]
    assert len(ids) == len(set(ids)) == 48
    assert not waiting_in(served.data_dir)


def test_the_number_of_waiting_files_is_limited(tmp_path: Path) -> None:
    folder = Layout(tmp_path).hooks
    folder.mkdir(parents=True)
    for number in range(MOST_FILES):
        (folder / f"{number}.jsonl").touch()
    assert answered("codex", of_codex("Stop", last_assistant_message="Done."), tmp_path) == ""
    assert len(os.listdir(folder)) == MOST_FILES


def test_an_unfinished_file_of_a_killed_hook_is_removed(served: Served) -> None:
    folder = Layout(served.data_dir).hooks
    folder.mkdir()
    old, new = folder / "1-1.tmp", folder / "2-2.tmp"
    for file in (old, new):
        file.write_text('{"event_type"')
    os.utime(old, (0, 0))
    answered("codex", of_codex("Stop", last_assistant_message="Done."), served.data_dir)
    assert list(folder.iterdir()) == [new]


def test_an_encrypted_folder_keeps_no_waiting_files(tmp_path: Path) -> None:
    (tmp_path / "encryption").write_text("key\n")
    answered("codex", of_codex("Stop", last_assistant_message="Done."), tmp_path)
    assert not Layout(tmp_path).hooks.exists()


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[1]", b"null", b'"x"', b"\xff\xfe\x00", b"[" * 200_000, b'{"hook_event_name": "Stop"}'],
    ids=["empty", "half", "list", "null", "text", "bytes", "deep", "bare"],
)
def test_invalid_input_gets_no_answer(tmp_path: Path, data: bytes) -> None:
    assert answered("claude-code", data, tmp_path) == ""
    assert not waiting_in(tmp_path)


def test_text_that_is_not_unicode_is_still_published(served: Served) -> None:
    data = json.dumps(of_codex("UserPromptSubmit", prompt="half a pair: \ud83d, a zero: \x00")).encode()
    answered("codex", data, served.data_dir)
    assert [event.payload.get("text") for event in journaled(served)] == ["half a pair: ?, a zero: \x00", None]


def test_ten_megabytes_of_output_become_a_short_event(served: Served) -> None:
    output = "first line\n" + "x" * (10 << 20) + "\nE   AssertionError: the last line"
    answered("claude-code", bash("PostToolUse", "make", tool_response={"stdout": output}), served.data_dir)
    (event,) = journaled(served)
    assert event.payload["output"].startswith("first line")
    assert event.payload["output"].endswith("the last line")
    assert len(event.payload["output"]) < 5_000


def test_a_block_is_never_longer_than_a_client_accepts(served: Served) -> None:
    with caller(served) as client:
        for number in range(6):
            client.remember(f"mutex {number} " + "\N{CUNEIFORM SIGN A}" * 4_000, channel_id="project:/home/ann/shop")
    block = answered("codex", of_codex("UserPromptSubmit", prompt="mutex 1 2 3"), served.data_dir)
    assert MOST_CHARS / 2 < len(block) <= MOST_CHARS
    assert block.endswith(CLOSE)


@contextmanager
def silent_server() -> Iterator[str]:
    """Accept connections, read, and never answer."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken: list[socket.socket] = []

        def take() -> None:
            while True:
                try:
                    taken.append(server.accept()[0])
                except OSError:
                    return

        thread = threading.Thread(target=take, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
        for one in taken:
            one.close()


def test_a_daemon_that_never_answers_does_not_stop_the_client(tmp_path: Path) -> None:
    said = json.dumps(of_codex("UserPromptSubmit", prompt=REQUEST)).encode()
    with silent_server() as url, process("codex", tmp_path, "--url", url, stdin=subprocess.PIPE) as hook:
        assert hook.communicate(said, timeout=PATIENCE_S) == (b"", b"")  # otherwise the hook would wait forever
        assert hook.returncode == 0


def test_an_input_that_never_ends_does_not_stop_the_client(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    with process("codex", tmp_path, stdin=reading) as hook:
        os.write(writing, b'{"hook_event_name": ')
        assert hook.wait(PATIENCE_S) == 0
        assert hook.stdout is not None
        assert hook.stdout.read() == b""
    os.close(reading)
    os.close(writing)


def _little_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))


def test_an_endless_input_is_not_read_forever(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    taken = 0
    with process("codex", tmp_path, stdin=reading, preexec_fn=_little_memory) as hook:
        os.close(reading)
        with suppress(BrokenPipeError):
            while True:
                taken += os.write(writing, bytes(1 << 16))
        assert hook.wait(PATIENCE_S) == 0
    os.close(writing)
    assert taken < 64 << 20


@pytest.mark.parametrize("closed", [0, 1])
def test_a_client_that_closed_a_standard_stream_is_not_disturbed(tmp_path: Path, closed: int) -> None:
    with process("codex", tmp_path, stdin=subprocess.DEVNULL, preexec_fn=lambda: os.close(closed)) as hook:
        assert hook.communicate(timeout=PATIENCE_S) == (b"", b"")
        assert hook.returncode == 0


def test_a_client_that_does_not_read_the_answer_is_not_waited_for(served: Served) -> None:
    finished_session(served)
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writing, bytes(4096))
    os.set_blocking(writing, True)
    said = of_claude("UserPromptSubmit", "s-9", "p-9", prompt=REQUEST)
    command = [sys.executable, "-m", "memory_agent", "hook", "claude-code", "--data-dir", str(served.data_dir)]
    with subprocess.Popen([*command, "--deadline-ms", "5000"], stdin=subprocess.PIPE, stdout=writing) as hook:
        try:
            hook.communicate(json.dumps(said).encode(), timeout=PATIENCE_S)
            assert hook.returncode == 0
        finally:
            hook.kill()
            os.close(writing)
            os.close(reading)


def test_a_folder_that_was_removed_does_not_disturb_the_client(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    said = {"hook_event_name": "UserPromptSubmit", "prompt": REQUEST, "session_id": "s-1"}
    command = f'rmdir "$PWD"; exec {sys.executable} -m memory_agent hook codex --no-start --data-dir {tmp_path}/data'
    done = subprocess.run(
        ["sh", "-c", command], cwd=folder, input=json.dumps(said).encode(), capture_output=True, check=True
    )
    assert done.stderr == b""


def test_an_invalid_address_does_not_disturb_the_client(tmp_path: Path) -> None:
    assert answered("codex", of_codex("UserPromptSubmit", prompt=REQUEST), tmp_path, url="http://a..b:80") == ""


def test_an_invalid_token_does_not_disturb_the_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMORY_AGENT_TOKEN", "t\u2019k")
    with silent_server() as url:
        assert answered("codex", of_codex("UserPromptSubmit", prompt=REQUEST), tmp_path, url=url) == ""


def test_events_in_transit_at_the_deadline_are_kept(tmp_path: Path) -> None:
    said = json.dumps(of_codex("UserPromptSubmit", prompt=REQUEST)).encode()
    with (
        silent_server() as url,
        process("codex", tmp_path, "--url", url, "--deadline-ms", "3000", stdin=subprocess.PIPE) as hook,
    ):
        hook.communicate(said, timeout=PATIENCE_S)
    assert len(waiting_in(tmp_path)) == 1


@pytest.mark.parametrize(
    "words",
    [["emacs"], ["codex", "--channel"], ["codex", "--colour", "red"], ["codex", "--user", "a", "--user", "b"], []],
)
def test_wrong_arguments_do_not_stop_the_client(words: list[str]) -> None:
    command = [sys.executable, "-m", "memory_agent", "hook", *words]
    found = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    assert (found.returncode, found.stdout) == (1, b"")  # with exit code 2 a client would block the prompt
    assert b"Error: " in found.stderr


def test_the_settings_may_name_the_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = tmp_path / "settings.toml"
    settings.write_text(f'data_dir = "{tmp_path / "data"}"\n')
    monkeypatch.setenv("MEMORY_AGENT_CONFIG", str(settings))
    command = [sys.executable, "-m", "memory_agent", "hook", "codex", "--deadline-ms", "60000"]
    said = json.dumps(of_codex("UserPromptSubmit", prompt=REQUEST)).encode()
    subprocess.run(command, input=said, check=True)
    assert len(waiting_in(tmp_path / "data")) == 1


def test_a_hook_imports_few_modules(tmp_path: Path) -> None:
    script = (
        "import sys; sys.argv[1:] = ['hook', 'codex', '--data-dir', sys.argv[1], '--no-start']; import os; "
        "os._exit = lambda code: (print(*sys.modules), sys.exit(code)); from memory_agent.__main__ import main; main()"
    )
    said = json.dumps(of_codex("UserPromptSubmit", prompt=REQUEST)).encode()
    shown = subprocess.run([sys.executable, "-c", script, str(tmp_path)], input=said, capture_output=True, check=True)
    heavy = {"click", "msgspec", "platformdirs", "dataclasses", "asyncio", "ssl", "http.client", "subprocess", "zmq"}
    loaded = set(shown.stdout.decode().splitlines()[-1].split())
    assert "memory_agent.hooks.answering" in loaded
    assert heavy & loaded == set()
