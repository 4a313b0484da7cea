"""Connecting and disconnecting a client changes nothing else in its files, whatever they contain."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from settings_texts import LOOSE, STRICT, TOML_TEXTS, json_texts

from memory_agent.errors import ClientSettingsError
from memory_agent.integrations import CLIENTS, Change, ChangedMeanwhileError, Command, Connection, Scope

COMMAND = Command("/opt/memory agent/bin/memory-agent")
OTHER = Command("/opt/new/memory-agent", ("--user", "alice"), ("--user", "alice"))
SCOPES = [(client, is_project) for client in CLIENTS for is_project in (False, True)]


class Place:
    """The settings files of one client in a folder."""

    def __init__(self, folder: Path, client: str, is_project: bool = False) -> None:
        self.home = folder / "home"
        self.home.mkdir(exist_ok=True)
        project = folder / "home" if is_project else None
        self.scope = Scope(client, project, self.home, {})
        self.paths = [path for path, _ in self.scope.files()]
        self.connection = Connection(self.scope, folder / "state")

    def connect(self, command: Command = COMMAND) -> list[Change]:
        changes = self.connection.connecting(command)
        self.connection.apply(changes)
        return changes

    def disconnect(self) -> None:
        self.connection.apply(self.connection.disconnecting())

    def write(self, text: str, path: Path | None = None) -> None:
        for one in [path] if path else self.paths:
            one.parent.mkdir(parents=True, exist_ok=True)
            one.write_bytes(text.encode())

    def tree(self) -> dict[str, bytes | None]:
        return {
            str(path.relative_to(self.home)): path.read_bytes() if path.is_file() else None
            for path in self.home.rglob("*")
        }


def says(path: Path) -> Any:
    text = path.read_text(encoding="utf-8")
    return tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)


def runs(said: Any) -> list[str]:
    """Return the command lines in a file that run memory-agent."""
    if isinstance(said, list):
        return [line for one in said for line in runs(one)]
    if not isinstance(said, dict):
        return []
    own = said.get("command")
    words = [" ".join([own, *said.get("args", [])])] if isinstance(own, str) and "memory-agent" in own else []
    return words + [line for one in said.values() for line in runs(one)]


@pytest.mark.parametrize(("client", "is_project"), SCOPES)
def test_a_client_without_settings_is_connected_and_disconnected_without_traces(
    tmp_path: Path, client: str, is_project: bool
) -> None:
    place = Place(tmp_path, client, is_project)
    place.connect()
    lines = [line for path in place.paths for line in runs(says(path))]
    assert any(line.startswith(f"{COMMAND.program} mcp") for line in lines)
    has_hooks = client in ("claude-code", "codex", "gemini")
    assert (COMMAND.hook(client) in lines) == has_hooks
    if not is_project:
        assert {path.stat().st_mode & 0o777 for path in place.paths} == {0o600}
    place.disconnect()
    assert place.tree() == {}
    assert [path.name for path in (tmp_path / "state").iterdir()] == ["lock"]


@pytest.mark.parametrize("client", CLIENTS)
@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much], deadline=None, max_examples=15)
@given(data=st.data())
def test_connecting_is_idempotent_and_disconnecting_restores_every_byte(client: str, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder), client, data.draw(st.booleans()))
        for path, file in place.scope.files():
            texts = st.sampled_from(TOML_TEXTS) if file.syntax is None else json_texts(file.syntax)
            place.write(data.draw(st.just("") | texts | texts.map("\ufeff{}".format)), path)
        before = place.tree()
        try:
            place.connect()
        except ClientSettingsError:
            assert place.tree() == before
            assume(False)
        connected = place.tree()
        assert connected != before
        assert all(change.then == change.now for change in place.connect())
        assert place.tree() == connected
        place.disconnect()
        assert place.tree() == before


@pytest.mark.parametrize("client", [client for client in CLIENTS if client != "codex"])
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=15)
@given(data=st.data())
def test_disconnecting_an_edited_file_removes_only_our_entries(client: str, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder), client, data.draw(st.booleans()))
        before = {path: data.draw(json_texts(file.syntax or STRICT)) for path, file in place.scope.files()}
        for path, text in before.items():
            place.write(text, path)
        try:
            place.connect()
        except ClientSettingsError:
            assume(False)
        for path in before:
            path.write_bytes(b"\n" + path.read_bytes() + b" \n")
        place.disconnect()
        assert {path: path.read_bytes() for path in before} == {
            path: f"\n{text} \n".encode() for path, text in before.items()
        }


EDITED = """{
    // how it looks
    "theme": "Ayu", /* dark */
    "context_servers": {
        "github": {"command": "npx"},
    },
}
"""


def test_additions_of_the_user_stay(tmp_path: Path) -> None:
    place = Place(tmp_path, "zed")
    place.write(EDITED)
    place.connect()
    (path,) = place.paths
    text = path.read_text()
    assert text.startswith(EDITED[: EDITED.index("    },\n}")])
    mine = '        "mine": {"command": "x"}, // added by hand\n'
    text = text.replace("    },\n}", f"{mine}    }},\n}}").replace('"Ayu"', '"One"')
    path.write_text(text)
    place.connect()
    assert path.read_text() == text, "an existing connection is not changed"
    place.disconnect()
    assert path.read_text() == EDITED.replace("    },\n}", f"{mine}    }},\n}}").replace('"Ayu"', '"One"')


def test_settings_rewritten_by_the_client_are_disconnected_by_content(tmp_path: Path) -> None:
    place = Place(tmp_path, "claude-code")
    place.connect()
    for path in place.paths:
        path.write_text(json.dumps(says(path) | {"numStartups": 3}))
    place.disconnect()
    assert [says(path) for path in place.paths] == [{"numStartups": 3}] * 2


def test_a_hook_of_the_user_in_our_group_stays(tmp_path: Path) -> None:
    place = Place(tmp_path, "claude-code")
    place.connect()
    path = place.paths[1]
    said = says(path)
    theirs = {"type": "command", "command": "notify-send 'memory-agent hook claude-code"}
    said["hooks"]["Stop"][0]["hooks"].append(theirs)
    path.write_text(json.dumps(said))
    assert all(change.then == change.now for change in place.connect())
    place.disconnect()
    assert says(path) == {"hooks": {"Stop": [{"hooks": [theirs]}]}}


def test_another_program_or_folder_replaces_the_entries_and_disconnecting_restores_the_first_bytes(
    tmp_path: Path,
) -> None:
    for client in ("claude-code", "codex"):
        place = Place(tmp_path, client)
        for path in place.paths:
            place.write("# mine\n" if path.suffix == ".toml" else '{"a": 1}', path)
        before = place.tree()
        place.connect()
        place.connect(OTHER)
        lines = [line for path in place.paths for line in runs(says(path))]
        assert set(lines) == {"/opt/new/memory-agent mcp --project --user alice", OTHER.hook(client)}
        place.disconnect()
        assert place.tree() == before


def test_entries_of_events_that_are_no_longer_written_are_replaced(tmp_path: Path) -> None:
    place = Place(tmp_path, "gemini")
    old = {"hooks": {"PreCompress": [{"hooks": [{"type": "command", "command": "/old/memory-agent hook gemini"}]}]}}
    place.write(json.dumps(old))
    place.connect()
    assert set(runs(says(place.paths[0]))) == {f"{COMMAND.program} mcp --project", COMMAND.hook("gemini")}


@pytest.mark.parametrize(
    ("client", "text"),
    [
        ("cursor", '{"mcpServers": {"memory-agent": {"command": "docker", "args": ["run", "memory-agent"]}}}'),
        ("vscode", '{"servers": {"memory-agent": {"type": "http", "url": "http://localhost:1/mcp"}}}'),
        ("codex", '[mcp_servers.memory-agent]\nurl = "http://localhost:1/mcp"\n'),
    ],
)
def test_a_server_of_another_program_with_our_name_is_kept(tmp_path: Path, client: str, text: str) -> None:
    place = Place(tmp_path, client)
    place.write(text, place.paths[0])
    with pytest.raises(ClientSettingsError, match="belongs to another program"):
        place.connect()
    place.disconnect()
    assert place.tree()[str(place.paths[0].relative_to(place.home))] == text.encode()


@pytest.mark.parametrize(
    ("client", "content", "reason"),
    [
        ("claude-code", b'{"mcpServers": {', "unexpected end"),
        ("claude-code", b'{\n  // why\n}', "line 2, column 3: this client does not support comments"),
        ("gemini", b'{"a": 1,}', "after a comma"),
        ("cursor", b"\xff\xfe{\0", "not UTF-8"),
        ("zed", b"[]", "is not an object"),
        ("vscode", b'{"servers": 1}', "servers is not an object"),
        ("codex", b"model = ", "Invalid value"),
    ],
)  # fmt: skip
def test_a_file_that_is_not_valid_is_left_alone_with_all_others_of_its_client(
    tmp_path: Path, client: str, content: bytes, reason: str
) -> None:
    place = Place(tmp_path, client)
    place.paths[0].parent.mkdir(parents=True, exist_ok=True)
    place.paths[0].write_bytes(content)
    before = place.tree()
    with pytest.raises(ClientSettingsError, match="was not changed") as raised:
        place.connect()
    assert str(place.paths[0]) in str(raised.value)
    assert reason in str(raised.value)
    assert place.tree() == before


def test_a_pipe_or_a_folder_is_left_alone(tmp_path: Path) -> None:
    place = Place(tmp_path, "cursor")
    place.paths[0].parent.mkdir()
    os.mkfifo(place.paths[0])
    with pytest.raises(ClientSettingsError, match="not a file"):
        place.connect()
    place.paths[0].unlink()
    place.paths[0].mkdir()
    with pytest.raises(ClientSettingsError, match="not a file"):
        place.connect()


def test_a_symbolic_link_and_permissions_stay(tmp_path: Path) -> None:
    place = Place(tmp_path, "gemini")
    real = tmp_path / "dotfiles" / "gemini.json"
    real.parent.mkdir()
    real.write_text('{"theme": "x"}')
    real.chmod(0o640)
    (path,) = place.paths
    path.parent.mkdir()
    path.symlink_to(real)
    place.connect()
    assert path.is_symlink()
    assert runs(says(real))
    assert real.stat().st_mode & 0o777 == 0o640
    assert [one.name for one in real.parent.iterdir()] == [real.name]
    place.disconnect()
    assert path.is_symlink()
    assert real.read_text() == '{"theme": "x"}'


def test_a_link_to_nowhere_leads_to_a_new_file_and_back(tmp_path: Path) -> None:
    place = Place(tmp_path, "cursor")
    (path,) = place.paths
    path.parent.mkdir()
    path.symlink_to(tmp_path / "dotfiles" / "mcp.json")
    place.connect()
    assert (tmp_path / "dotfiles" / "mcp.json").exists()
    place.disconnect()
    assert path.is_symlink()
    assert not path.exists()


def test_the_backup_holds_the_file_as_it_was_for_its_owner_alone(tmp_path: Path) -> None:
    place = Place(tmp_path, "gemini")
    place.write('{"apiKey": "kept"}')
    place.connect()
    place.connect(OTHER)
    backup = place.connection.backup(place.paths[0])
    assert backup.read_text() == '{"apiKey": "kept"}'
    assert {path.stat().st_mode & 0o077 for path in backup.parent.iterdir() if path.name != "lock"} == {0}
    assert backup.parent.stat().st_mode & 0o077 == 0
    place.disconnect()
    assert not backup.exists()


@pytest.mark.parametrize("client", CLIENTS)
def test_a_path_that_no_file_of_text_can_name_is_refused(tmp_path: Path, client: str) -> None:
    place = Place(tmp_path, client)
    odd = os.fsdecode(b"/tmp/\xff")
    with pytest.raises(ClientSettingsError, match="a path in its entries is not UTF-8"):
        place.connect(Command("/opt/memory-agent", ("--data-dir", odd), ("--data-dir", odd)))
    assert place.tree() == {}


def test_a_file_that_changed_since_it_was_shown_is_not_written(tmp_path: Path) -> None:
    place = Place(tmp_path, "claude-code")
    changes = place.connection.connecting(COMMAND)
    place.write('{"hooks": {}}', place.paths[1])
    with pytest.raises(ChangedMeanwhileError):
        place.connection.apply(changes)
    assert place.tree() == {".claude": None, ".claude/settings.json": b'{"hooks": {}}'}


def test_what_the_client_writes_while_its_file_is_replaced_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(tmp_path, "claude-code")
    place.write('{"numStartups": 1}', place.paths[0])
    flushed = os.fsync

    def slowly(file: int) -> None:
        """Flush the file while the client writes its settings, as Claude Code does at each start."""
        flushed(file)
        if os.readlink(f"/proc/self/fd/{file}").startswith(str(place.paths[0].parent / "..claude.json.")):
            place.write('{"numStartups": 2}', place.paths[0])

    changes = place.connection.connecting(COMMAND)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", slowly)
        with pytest.raises(ChangedMeanwhileError):
            place.connection.apply(changes)
    assert says(place.paths[0]) == {"numStartups": 2}
    place.connect()
    assert says(place.paths[0])["numStartups"] == 2
    assert len(runs(says(place.paths[0]))) == 1
    place.disconnect()
    assert place.tree() == {".claude.json": b'{"numStartups": 2}'}


RACE = """
import sys
from pathlib import Path
from memory_agent.integrations import Command, Scope
from memory_agent.integrations import ChangedMeanwhileError, Connection
folder = Path(sys.argv[1])
connection = Connection(Scope("claude-code", None, folder / "home", {}), folder / "state")
print("ready", flush=True)
sys.stdin.readline()
for _ in range(6):
    for plan in (lambda: connection.connecting(Command(sys.argv[2])), connection.disconnecting):
        while True:
            try:
                connection.apply(plan())
                break
            except ChangedMeanwhileError:
                pass
"""


def test_many_connects_and_disconnects_at_once_lose_nothing(tmp_path: Path) -> None:
    place = Place(tmp_path, "claude-code")
    for path, text in zip(place.paths, ('{"projects": {}}', '{\n\t"hooks": {}\n}\n'), strict=True):
        place.write(text, path)
    before = place.tree()
    racing = [
        subprocess.Popen(
            [sys.executable, "-c", RACE, str(tmp_path), f"/opt/{number}/memory-agent"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for number in range(4)
    ]  # fmt: skip
    for process in racing:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in racing:
        process.communicate("\n", timeout=120)
    assert [process.returncode for process in racing] == [0] * len(racing)
    place.disconnect()
    assert place.tree() == before


WAITS = """
import sys
from pathlib import Path
from memory_agent.integrations import Command, Scope
from memory_agent.integrations import ChangedMeanwhileError, Connection
folder = Path(sys.argv[1])
connection = Connection(Scope("claude-code", None, folder / "home", {}), folder / "state")
changes = connection.connecting(Command("/opt/memory-agent"))
print("planned", flush=True)
try:
    connection.apply(changes)
except ChangedMeanwhileError:
    print("changed meanwhile")
"""


def test_a_connect_waits_for_another_one_and_then_checks_the_file_again(tmp_path: Path) -> None:
    place = Place(tmp_path, "claude-code")
    (tmp_path / "state").mkdir()
    with open(tmp_path / "state" / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        waiting = subprocess.Popen([sys.executable, "-c", WAITS, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert waiting.stdout is not None
        assert waiting.stdout.readline() == "planned\n"
        with pytest.raises(subprocess.TimeoutExpired):
            waiting.wait(1)
        place.write("{}")
    assert waiting.communicate(timeout=60) == ("changed meanwhile\n", None)
    assert {path.read_text() for path in place.paths} == {"{}"}


KILLED = """
import os, signal, sys
from pathlib import Path
from memory_agent.integrations import Command, Scope
from memory_agent.integrations import Connection
folder, left = Path(sys.argv[1]), int(sys.argv[2])
def audit(name, arguments):
    global left
    if name == "os.rename":
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1
sys.addaudithook(audit)
connection = Connection(Scope("claude-code", None, folder / "home", {}), folder / "state")
connection.apply(connection.connecting(Command("/opt/memory agent/bin/memory-agent")))
"""


def test_a_process_killed_at_any_step_leaves_whole_files_that_can_be_disconnected(tmp_path: Path) -> None:
    for steps in range(20):
        folder = tmp_path / str(steps)
        folder.mkdir()
        place = Place(folder, "claude-code")
        place.write('{"a": [1]}')
        before = place.tree()
        done = subprocess.run([sys.executable, "-c", KILLED, str(folder), str(steps)], check=False)
        for path in place.paths:
            assert says(path)["a"] == [1]
        if done.returncode == 0:
            assert steps >= 6
            return
        assert done.returncode == -signal.SIGKILL
        place.connect()
        place.disconnect()
        left = {name: content for name, content in place.tree().items() if not name.endswith(".new")}
        assert left == before
    pytest.fail("it never ended by itself")


def test_each_client_has_the_syntax_that_it_accepts() -> None:
    taken = {client: {file.syntax for file in (*CLIENTS[client].user, *CLIENTS[client].project)} for client in CLIENTS}
    assert taken["claude-code"] == {STRICT}
    assert taken["zed"] == taken["vscode"] == {LOOSE}
