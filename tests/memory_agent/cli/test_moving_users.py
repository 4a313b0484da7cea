"""Test moving users to a newly added cell, with real daemons: `cells list`, `take` and `drop`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from memory_agent import MemoryClient
from memory_agent.cli.cells import _is_same
from memory_agent.cli.group import cli
from memory_agent.client.cells import CellPublisher, read_cells
from memory_agent.storage.folders import known_users
from memory_agent.verbs.protocol import DaemonStatus
from relay import Journal, journal_folder
from tests.end_to_end.conftest import DaemonProcess, short_folder

USERS = [f"user-{number}" for number in range(30)]


class Deployment:
    """Two running cells and a third cell; the file `former` lists the first two, and `present` lists all three."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.daemons = {
            name: DaemonProcess(folder / name, f"embedder.folder={folder}/no-model", light=True)
            for name in ("cell-0", "cell-1", "cell-2")
        }
        tables = [f'[{name}]\ndata_dir = "{name}"\n' for name in self.daemons]
        self.former, self.present = folder / "former.toml", folder / "present.toml"
        self.former.write_text("".join(tables[:2]))
        self.present.write_text("".join(tables))
        for name in self.daemons:
            (folder / name).mkdir(mode=0o700)

    def publish(self, file: Path, *events: dict[str, Any]) -> None:
        with CellPublisher(read_cells(file), self.folder / "spool") as publisher:
            for event in events:
                publisher.publish(event)
            reports = publisher.flush(120.0)
        assert all(not report.spooled + report.pending + report.rejected for report in reports.values())
        for name, report in reports.items():
            with MemoryClient(data_dir=self.folder / name) as client:
                client.wait(report.acked_through, 120.0)

    def run(self, *words: str, code: int = 0) -> Any:
        result = CliRunner().invoke(cli, [*words, "--json"])
        assert result.exit_code == code, result.output
        return json.loads(result.stdout)

    def cells(self, verb: str, name: str, *words: str, code: int = 0) -> dict[str, str]:
        """Run a `cells` command in the data folder of a cell."""
        data_dir = str(self.folder / name)
        users: dict[str, str] = self.run("cells", verb, *words, "--data-dir", data_dir, code=code)["users"]
        return users

    def take(self, source: str, backup: str) -> dict[str, str]:
        """Stop the third cell, take users from a new backup of another cell, and start the third cell again."""
        self.run("backup", str(self.folder / backup), "--data-dir", str(self.folder / source))
        self.daemons["cell-2"].stop()
        taken = self.cells("take", "cell-2", str(self.present), "cell-2", str(self.folder / backup))
        self.daemons["cell-2"].start()
        return taken

    def texts(self, user_id: str, file: Path) -> list[str]:
        with MemoryClient(user_id, cells=file) as client:
            return [record.text for record in client.list(order="oldest").records]

    def journaled(self, name: str, event_type: str = "") -> list[str]:
        """Return the sorted users of the events in a cell's journal whose types have this prefix."""
        with Journal.open(journal_folder(self.folder / name), readonly=True) as journal:
            entries = journal.read(0, 10_000)
            return sorted(entry.user_id for entry in entries if entry.event_type.startswith(event_type))


@pytest.fixture
def deployment() -> Iterator[Deployment]:
    with short_folder() as folder, ExitStack() as stack:
        found = Deployment(Path(folder))
        for name, daemon in found.daemons.items():
            stack.callback(daemon.kill)
            if name != "cell-2":
                daemon.start()
        yield found


def text(user_id: str, number: int) -> str:
    return f"Note {number}: the lamp of {user_id} flickers"


def event(user_id: str, number: int, event_type: str = "chat.user_msg") -> dict[str, Any]:
    payload = {"text": text(user_id, number)}
    return {"event_id": f"{user_id}-{number}", "event_type": event_type, "user_id": user_id, "payload": payload}


def test_users_of_a_new_cell_move_with_all_their_memories_and_leave_no_copy(deployment: Deployment) -> None:
    former, present = read_cells(deployment.former), read_cells(deployment.present)
    deployment.publish(deployment.former, *(event(user, 1) for user in USERS))
    placed = {name: [user for user in USERS if former.name_of(user) == name] for name in former.by_name}
    for name, users in placed.items():
        assert deployment.journaled(name, "chat") == sorted(users)
        assert deployment.cells("list", name, str(deployment.present)) == {one: present.name_of(one) for one in users}
        assert deployment.cells("drop", name, str(deployment.former)) == {}  # a daemon does not drop its own users

    moving = [user for user in USERS if present.name_of(user) == "cell-2"]
    late, others = moving[0], moving[1:]
    taken = deployment.take("cell-0", "backup-0") | deployment.take("cell-1", "backup-1")
    assert taken == dict.fromkeys(moving, "taken")
    deployment.publish(deployment.former, event(late, 2))
    with MemoryClient(late, cells=deployment.present) as client:  # as many memories as in the former cell, but others
        client.remember("The lamp was repaired")
    source = former.name_of(late)
    done: dict[str, str] = {}
    for name in placed:
        done |= deployment.cells("drop", name, str(deployment.present), code=name == source)
    assert done == dict.fromkeys(others, "dropped") | {late: "left"}

    deployment.run("forget", "--user", late, "--user-all", "--yes", "--data-dir", str(deployment.folder / "cell-2"))
    assert deployment.take(source, "backup-2") == {late: "taken"}
    assert deployment.cells("drop", source, str(deployment.present)) == {late: "dropped"}

    deployment.publish(deployment.present, event(others[-1], 0, "gui.mouse_moved"))
    with MemoryClient(others[-1], cells=deployment.present) as client:  # not skipped as an event of the former cell
        assert sum(client.stats().events_dropped.values()) == 1
    deployment.publish(deployment.present, *(event(user, number) for number in (1, 3) for user in USERS))
    for user in USERS:
        numbers = (1, 2, 3) if user == late else (1, 3)
        assert deployment.texts(user, deployment.present) == [text(user, number) for number in numbers]
    for name, users in placed.items():
        stayed = [user for user in users if user not in moving]
        assert set(known_users(deployment.folder / name)) == set(deployment.journaled(name)) == set(stayed)


class RestartingFirst(MemoryClient):
    """A client of a daemon that is restarted before the client's first request."""

    daemon: DaemonProcess
    restarts = 0

    def status(self) -> DaemonStatus:
        if not self.restarts:
            self.restarts = 1
            self.daemon.stop()
            self.daemon.start()
        return super().status()


def test_users_are_taken_only_into_the_folder_of_their_cell(tmp_path: Path) -> None:
    file, backup = tmp_path / "cells.toml", tmp_path / "backup"
    file.write_text('[cell-0]\ndata_dir = "cell-0"\n')
    backup.mkdir()
    for name, data_dir, problem in (
        ("cell-9", "cell-0", "the file has no cell 'cell-9', only cell-0"),
        ("cell-0", "cell-1", f"the data folder of cell-0 is {tmp_path}/cell-0: pass it as --data-dir"),
    ):
        words = ["cells", "take", str(file), name, str(backup), "--data-dir", str(tmp_path / data_dir)]
        refused = CliRunner().invoke(cli, words)
        assert (refused.exit_code, problem in refused.stderr) == (2, True), refused.stderr
        assert not (tmp_path / data_dir).exists()


def test_a_daemon_that_restarts_is_not_mistaken_for_another_cell() -> None:
    """Otherwise `cells drop` would erase all users of this daemon, whose memories the other cell seems to have."""
    with short_folder() as folder, ExitStack() as stack:
        daemon = DaemonProcess(Path(folder), "embedder.folder=none", light=True)
        stack.callback(daemon.kill)
        daemon.start()
        here = stack.enter_context(MemoryClient(data_dir=folder))
        while here.status().uptime_s < 1.0:
            time.sleep(0.1)
        there = stack.enter_context(RestartingFirst(data_dir=folder))
        there.daemon = daemon
        assert _is_same(there, here)
        assert there.restarts == 1
