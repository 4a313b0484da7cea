"""Test that an erasure by a daemon reaches every byte of every file, and that nothing reappears.

A daemon in light form receives text by every possible route. Each route has its own word, so a remaining word shows by
which route it entered.
"""

from __future__ import annotations

import json
import resource
import signal
import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
from click.testing import CliRunner

from memory_agent import MemoryClient
from memory_agent.cli.group import cli
from memory_agent.erasure.request import ErasureReceipt
from memory_agent.layout import Layout
from memory_agent.storage.folders import user_folder
from relay import (
    EncryptionSettings,
    Journal,
    Publisher,
    Scope,
    create_key,
    journal_folder,
    open_key_ring,
    relay_endpoints,
)

from .conftest import HASTY, DaemonProcess, short_folder
from .test_command_line import run

SECRET = "zanzibarquokka"
OTHER_SECRET = "timbuktuwombat"
OF_BOB = "zqbobstays"
OF_ONE = "zqonesession"
"""A word in every text of the session `s-one`."""
WAYS = (
    *("remembered", "title", "tag", "metadata", "published", "overhttp", "idempotency", "note", "run", "objective"),
    *("step", "end", "comment", "query", "absentquery", "shared", "attachment", "author", "quarantined", "malformed"),
    *("hook", "keyhook", "otherhook", "tornhook", "archivecopy", "compaction", "setaside"),
)
MARKS = {way: f"zq{way}word" for way in WAYS}
ID_REMAINS_IN = {"daemon.log", "keys.json", "copies.jsonl", "journal/data.mdb"}


def files_with(*words: str, folders: tuple[Path, ...]) -> dict[str, list[str]]:
    """Return the files whose path or bytes contain one of the words, in upper or lower case, as UTF-8 or UTF-16."""
    found = {}
    start = "".join(first for first, *_ in takewhile(lambda letters: len({*letters}) == 1, zip(*words, strict=False)))
    for folder in folders:
        for file in sorted(one for one in folder.rglob("*") if one.is_file()):
            content = (str(file.relative_to(folder)).encode() + file.read_bytes()).lower()
            if start.encode() not in content and start.encode("utf-16-le") not in content:
                continue  # a file without the words' common start has none of them
            has = [word for word in words if word.encode() in content or word.encode("utf-16-le") in content]
            if has:
                found[str(file.relative_to(folder))] = has
    return found


def said(number: int, user_id: str, text: str) -> dict[str, object]:
    payload = {"text": text, "run_id": f"erased-{user_id}"}
    return {
        "event_id": f"erased-{number}",
        "event_type": "chat.user_msg",
        "user_id": user_id,
        "session_id": f"s-{user_id}",
        "payload": payload,
    }


class Walked(NamedTuple):
    """A daemon that writes core files if allowed, and every folder that the daemon writes into."""

    daemon: DaemonProcess
    folders: tuple[Path, ...]
    keys: Path | None
    outside: Path
    """A folder for backups and exports."""

    def left(self, *words: str) -> dict[str, list[str]]:
        return files_with(*words, folders=self.folders)

    def command(self, *words: str, input: str = "") -> None:
        settings = () if self.keys is None else ("--set", f"encryption.keys_folder={self.keys}")
        done = CliRunner().invoke(cli, [*words, *settings, "--data-dir", str(self.daemon.data_dir)], input=input)
        assert done.exit_code == 0, done.output

    def hook(self, prompt: str, session: str, *options: str, **variables: str) -> None:
        fields = {"session_id": session, "prompt_id": prompt, "cwd": "/home/ann/shop", "prompt": prompt}
        fields |= {"transcript_path": "/t.jsonl", "hook_event_name": "UserPromptSubmit"}
        words = ("hook", "claude-code", "--data-dir", str(self.daemon.data_dir), "--deadline-ms", "60000", *options)
        assert run(*words, input=json.dumps(fields), **variables).returncode == 0

    def request(self, path: str, body: dict[str, Any], **headers: str) -> None:
        layout = Layout(self.daemon.data_dir)
        headers |= {"Authorization": f"Bearer {layout.token()}", "Content-Type": "application/json"}
        asked = urllib.request.Request(layout.http.read_text().strip() + path, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(asked, timeout=60) as answer:
            assert answer.status == 200


@pytest.fixture(params=["plain", "encrypted"])
def walked(request: pytest.FixtureRequest) -> Iterator[Walked]:
    with short_folder() as folder, short_folder() as temporary, short_folder() as keys, short_folder() as outside:
        upkeep = ("relay.broker.upkeep_interval_s=0.2", "store.exact_search_limit=5")
        daemon = DaemonProcess(Path(folder), *HASTY, *upkeep, light=True)
        is_encrypted = request.param == "encrypted"
        if is_encrypted:
            daemon.configure(f"encryption.keys_folder={keys}")
        daemon.program = ("env", f"TMPDIR={temporary}", *daemon.program)
        folders = (Path(folder), Path(temporary))
        yield Walked(daemon, folders, Path(keys) if is_encrypted else None, Path(outside))
        daemon.kill()


@contextmanager
def core_files() -> Iterator[None]:
    """Allow processes that start here to write core files, as some containers do."""
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))


def fill(walked: Walked) -> str:
    """Enter alice's text into the running daemon by every route; return the id of the memory with the mark `title`."""
    data_dir, mark = walked.daemon.data_dir, MARKS.__getitem__
    with (
        MemoryClient("alice", data_dir=data_dir) as alice,
        Publisher(relay_endpoints(data_dir).ingest) as publisher,
    ):
        alice.recall(f"where is the {mark('absentquery')}")
        about = {mark("metadata"): mark("metadata")}
        titled = alice.remember("in the cellar", title=mark("title"), tags=[mark("tag")], metadata=about)
        for number in range(12):
            alice.remember(f"the {mark('remembered')} number {number}")
        publisher.publish(said(1, "alice", f"saw the {mark('published')}"))
        publisher.publish(said(2, "alice", f"heard of {OF_ONE}") | {"session_id": "s-one"})
        publisher.publish(said(3, "bob", f"the harmless thing of {OF_BOB}"))
        alice.runs.begin(f"find the {mark('objective')}", mark("run"))
        found = alice.recall(f"what of the {mark('query')}", tiers=("local", "global"))
        used = [one.record.id for one in found.memories[:1]]
        alice.runs.step(mark("run"), f"looked at the {mark('step')}", used)
        alice.runs.end(mark("run"), "completed", f"found the {mark('end')}")
        alice.feedback(found.recall_id, used, 0.9, f"a good {mark('comment')}")
        alice.shared.set_name(f"A {mark('author')}")
        file = mark("attachment").encode()
        preview = alice.shared.preview("A title", f"the {mark('shared')}", attachment=file, attachment_name="a.txt")
        alice.shared.confirm(preview, file)
        alice.wait({"alice": publisher.flush().acked_through["alice"]}, 60)
    walked.request("/v1/events", {"events": [said(4, "alice", mark("overhttp"))]})
    key = {"Idempotency-Key": mark("idempotency")}
    walked.request("/v1/remember", {"text": "with a key", "user_id": "alice"}, **key)
    walked.command("import", "-", "--user", "alice", input=json.dumps({"text": f"the {mark('note')} is here"}))
    with MemoryClient("alice", data_dir=data_dir) as alice:
        alice.care.rebuild()  # saves columns and graph
    return titled.id


def leave(walked: Walked) -> None:
    """While no daemon is running, create the files that hooks and killed processes leave behind."""
    data_dir, mark = walked.daemon.data_dir, MARKS.__getitem__
    token = create_key(data_dir, "of-alice", "alice", frozenset({Scope.PUBLISH, Scope.RECALL})).token
    walked.hook(f"fix the {mark('hook')}", "s-1", "--user", "alice")
    walked.hook(f"fix the {OF_ONE}", "s-one", "--user", "alice")
    walked.hook(f"fix the {OF_BOB}", "s-2", "--user", "bob")
    walked.hook(f"fix the {mark('keyhook')}", "s-3", MEMORY_AGENT_TOKEN=token)
    walked.hook(f"fix the {mark('otherhook')}", "s-4", "--url", "http://127.0.0.1:9")
    ring = None if walked.keys is None else open_key_ring(EncryptionSettings(keys_folder=str(walked.keys)), data_dir)
    with Journal.open(journal_folder(data_dir), keys=ring) as journal:
        now = datetime.now(UTC)
        refused = json.dumps(said(5, "alice", mark("quarantined"))).encode()
        journal.quarantine(refused, "host_died", "it crashes", "memory:alice", now)
        torn = json.dumps({"user_id": "alice", "text": mark("malformed")}).encode()
        journal.quarantine(torn, "malformed_event", "event_type: is missing", "publisher", now)
    if walked.keys is not None:
        return  # the following files are never in plain text in an encrypted folder
    files = {
        data_dir / "hooks" / "1-1.tmp": "tornhook",
        user_folder(data_dir, "alice") / ".archive-copy-1" / "records" / "data.mdb": "archivecopy",
        user_folder(data_dir, "alice") / "archiving" / "tmp1" / "object": "archivecopy",
        user_folder(data_dir, "alice") / "records" / "compact" / "data.mdb": "compaction",
        data_dir / "journal" / "compact" / "data.mdb": "compaction",
        user_folder(data_dir, "alice") / "columns.arrays.damaged": "setaside",
    }
    for file, way in files.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(mark(way))


def test_an_erasure_leaves_no_byte_of_text_whichever_way_it_came(walked: Walked) -> None:
    daemon, data_dir = walked.daemon, walked.daemon.data_dir
    with core_files():
        daemon.start(cwd=data_dir)
    titled = fill(walked)
    psutil.Process(daemon.pid).send_signal(signal.SIGSEGV)
    assert daemon.wait() == -signal.SIGSEGV
    assert {one.name for one in user_folder(data_dir, "alice").glob("*.arrays")} >= {"columns.arrays", "graph.arrays"}
    leave(walked)
    entered = {word for words in walked.left(*MARKS.values()).values() for word in words}
    on_no_disk = {MARKS["query"], MARKS["absentquery"]}
    assert entered == (set() if walked.keys else {*MARKS.values()} - on_no_disk)
    walked.command("backup", str(walked.outside / "monday"))
    walked.command("export", str(walked.outside / "alice.jsonl"), "--user", "alice")
    walked.command("export", str(walked.outside / "bob.jsonl"), "--user", "bob")
    daemon.start(cwd=data_dir)
    with MemoryClient("alice", data_dir=data_dir) as alice:
        receipt = alice.erasure.erase([titled])
        assert (receipt.complete, receipt.memories) == (True, 1)
        assert walked.left(*map(MARKS.__getitem__, ("title", "tag", "metadata"))) == {}
        receipt = alice.erasure.erase(session_id="s-one")
        assert (receipt.complete, receipt.memories) == (True, 1)
        gone = ("archivecopy", "compaction", "setaside", "tornhook")
        assert walked.left(OF_ONE, *map(MARKS.__getitem__, gone)) == {}
        receipt = alice.erasure.erase_user()
        require_erased(walked, receipt)
        assert alice.recall(f"where is the {MARKS['absentquery']}").memories == ()
    with MemoryClient("bob", data_dir=data_dir) as bob:
        assert bob.stats().memories == 1
    hooks = Layout(data_dir).hooks
    assert len([*hooks.glob("*.jsonl")]) == (0 if walked.keys else 1)  # bob's
    walked.hook("what else?", "s-2", "--user", "bob")  # also sends the earlier event
    assert [*hooks.glob("*.jsonl")] == []
    daemon.kill()
    require_erased(walked, receipt)
    daemon.start()
    assert daemon.stop() == 0
    require_erased(walked, receipt)


def require_erased(walked: Walked, receipt: ErasureReceipt) -> None:
    """Require that nothing of alice's remains except what the receipt names."""
    assert (receipt.complete, receipt.unpublished) == (True, 1)
    named, other = receipt.not_covered[:3], sorted(Layout(walked.daemon.data_dir).hooks.glob("*/"))
    assert [part.split(": ")[0].rpartition(" of ")[0] for part in named[:2]] == [
        f"export {walked.outside / 'alice.jsonl'}",
        f"backup {walked.outside / 'monday'}",
    ]
    left = walked.left(*MARKS.values(), OF_ONE)
    if walked.keys is None:
        (folder,) = (one for one in other if list(one.iterdir()))
        assert f"events in hooks/{folder.name}, " in named[2]
        assert [*left.values()] == [[MARKS["otherhook"]]]
        assert all(Path(file).parent.name == folder.name for file in left)
    else:
        assert left == {}
    assert {*walked.left("alice")} <= ID_REMAINS_IN


def everywhere(daemon: DaemonProcess, word: str) -> dict[str, list[str]]:
    """Return the daemon's and Ray's files that contain a word. None of the processes may write core files."""
    processes = [psutil.Process(daemon.pid), *psutil.Process(daemon.pid).children(recursive=True)]
    options = [option.partition("=") for one in processes for option in _command(one)]
    ray = {Path(value) for name, _, value in options if name in ("--temp-dir", "--temp_dir")}
    assert len(ray) == 1
    return files_with(word, folders=(daemon.data_dir, *ray))


def _command(process: psutil.Process) -> list[str]:
    with suppress(psutil.NoSuchProcess):
        assert process.rlimit(psutil.RLIMIT_CORE)[0] == 0
        return process.cmdline()
    return []


def test_a_session_is_erased_from_every_file_of_a_running_daemon_for_good(daemon: DaemonProcess) -> None:
    events = [said(number, "erin", f"{SECRET} was seen {number} times") for number in range(12)]
    others = [said(number, "frank", f"frank's harmless thing {number}") for number in range(3)]
    with Publisher(relay_endpoints(daemon.data_dir).ingest) as publisher:
        for event in [*events[:6], *others, *events[6:]]:
            publisher.publish(event)
        report = publisher.flush()
        with MemoryClient("erin", data_dir=daemon.data_dir) as erin:
            erin.wait(report.acked_through, 60)
            erin.recall(SECRET)
            assert "journal/data.mdb" in everywhere(daemon, SECRET)
            planned = erin.erasure.erase(session_id="s-erin", dry_run=True)
            receipt = erin.erasure.erase(session_id="s-erin")
            assert (receipt.complete, receipt.memories) == (True, 12)
            assert receipt.events >= 12  # plus the blocks that the daemon has published
            assert planned.ids_sha256 == receipt.ids_sha256
            assert everywhere(daemon, SECRET) == {}
            publisher.publish(events[3])
            erin.wait(publisher.flush().acked_through, 60)
            assert erin.stats().memories == 0
    with MemoryClient("frank", data_dir=daemon.data_dir) as frank:
        assert frank.stats().memories == 3
    assert everywhere(daemon, SECRET) == {}


def test_a_user_is_erased_from_a_running_daemon_that_serves_other_users(daemon: DaemonProcess) -> None:
    events = [said(number, "gina", f"{OTHER_SECRET} was seen {number} times") for number in range(100, 140)]
    stop = threading.Event()

    def ask() -> list[int]:
        found = []
        with MemoryClient("gina", data_dir=daemon.data_dir) as gina:
            while not stop.is_set():
                found.append(len(gina.recall(OTHER_SECRET, 3, mode="lexical").memories))
        return found

    with Publisher(relay_endpoints(daemon.data_dir).ingest) as publisher, ThreadPoolExecutor(1) as pool:
        for event in [*events, said(150, "hans", "harmless of hans")]:
            publisher.publish(event)
        with MemoryClient("gina", data_dir=daemon.data_dir) as gina:
            gina.wait(publisher.flush().acked_through, 60)
            asking = pool.submit(ask)
            planned = gina.erasure.erase_user(dry_run=True)
            receipt = gina.erasure.erase_user()
            stop.set()
            assert set(asking.result()) == {3, 0}  # no request was refused: late requests found an empty memory
            assert (receipt.complete, receipt.memories) == (True, 40)
            assert receipt.events >= 40  # plus the blocks that the daemon has published
            assert planned.ids_sha256 == receipt.ids_sha256
            assert everywhere(daemon, OTHER_SECRET) == {}
            assert gina.stats().memories == 0
            publisher.publish(events[7])  # a repeat
            publisher.publish(said(160, "gina", "gina begins anew"))
            gina.wait(publisher.flush().acked_through, 60)
            assert gina.stats().memories == 1
    with MemoryClient("hans", data_dir=daemon.data_dir) as hans:
        assert hans.stats().memories == 1
    assert user_folder(daemon.data_dir, "gina").exists()
    assert everywhere(daemon, OTHER_SECRET) == {}
