"""Test that `migrate` fills, verifies, switches and cleans up, resumes after a kill, and changes nothing on failure."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from memory_agent.care.migration import verified
from memory_agent.cli.group import cli
from memory_agent.errors import IndexUnusableError
from memory_agent.indexes import Entry, IndexOf, open_index
from memory_agent.records.memories import MemoryRecord
from memory_agent.settings import IndexSettings, StoreSettings
from memory_agent.storage.archive import Archive
from memory_agent.storage.folders import user_folder
from memory_agent.storage.index_follower import engine_of

COUNT, NDIM = 1_300, 12
SMALL = StoreSettings(map_size_bytes=64 << 20, reserve_bytes=64 << 10)
SQLITE = "index.sqlite"


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """A data folder that contains alice's memories."""
    rng = np.random.default_rng(1)
    with closing(opened(tmp_path)) as archive, archive.batch() as batch:
        batch.set_stamp("model")
        for number in range(COUNT):
            record = MemoryRecord(
                id=f"m{number}", text=f"text {number}", source="user_input", kind="finding",
                timestamp=datetime(2026, 2, 16, tzinfo=UTC), session_id=f"s{number % 5}",
            )  # fmt: skip
            batch.put(record, rng.normal(size=NDIM).astype(np.float32))
    return tmp_path


def opened(data_dir: Path) -> Archive:
    folder = user_folder(data_dir, "alice")
    folder.mkdir(parents=True, exist_ok=True)
    return Archive.open(folder, SMALL, "library", index=IndexOf(IndexSettings(), "alice", folder))


def migrate(data_dir: Path, engine: str) -> dict[str, Any]:
    done = CliRunner().invoke(cli, ["migrate", "--to", engine, "--data-dir", str(data_dir), "--json"])
    assert done.exit_code == 0, done.output
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def test_a_user_is_moved_there_and_back(data_dir: Path) -> None:
    query = np.ones(NDIM, dtype=np.float32)
    with closing(opened(data_dir)) as archive:
        former = nearest(archive, query)
    (moved,) = migrate(data_dir, "sqlite-vec")["users"]
    expected = {"user_id": "alice", "former": "builtin", "engine": "sqlite-vec", "memories": COUNT, "left": ""}
    assert moved.pop("found") >= 0.9
    assert moved == expected
    folder = user_folder(data_dir, "alice")
    with closing(opened(data_dir)) as archive:
        assert (engine_of(archive.store), archive.stats("alice").index) == ("sqlite-vec", "sqlite-vec, exact")
        assert nearest(archive, query) == former
    assert migrate(data_dir, "sqlite-vec")["users"][0]["former"] == "sqlite-vec"
    (folder / "index.lance").mkdir()  # left by a migration that was killed after its switch
    migrate(data_dir, "sqlite-vec")
    assert not (folder / "index.lance").exists()
    migrate(data_dir, "builtin")
    assert not (folder / SQLITE).exists()
    with closing(opened(data_dir)) as archive:
        assert (engine_of(archive.store), archive.follower) == ("builtin", None)
        assert nearest(archive, query) == former


def nearest(archive: Archive, query: Any) -> list[int]:
    view = archive.settled_view()
    values = view.vectors.scan(query, 5).values
    slots = np.argsort(np.where(np.isnan(values), 2, -values))[:5]
    return [int(row) for row in view.rows[slots]]


def test_a_killed_migration_continues_where_it_stopped(data_dir: Path) -> None:
    program = f"""
import os, signal
from pathlib import Path
from memory_agent.care import migrate_folder
from memory_agent.settings import Settings

def report(what, done, total):
    print(done, flush=True)
    if done >= 1_000 and {{kills}}:
        os.kill(os.getpid(), signal.SIGKILL)

print(list(migrate_folder(Path({str(data_dir)!r}), Settings(), "sqlite-vec", report))[0].found >= 0.9)
"""

    def run(*, kills: bool) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", program.format(kills=kills)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert run(kills=True).returncode == -signal.SIGKILL
    with closing(opened(data_dir)) as archive:  # in use, a partly filled index would retain what is erased meanwhile
        assert archive.follower is None
        assert not (user_folder(data_dir, "alice") / SQLITE).exists()
    killed, whole = run(kills=True), run(kills=False)
    assert (killed.returncode, killed.stdout.split()) == (-signal.SIGKILL, ["500", "1000"])
    with closing(opened(data_dir)) as archive:
        assert engine_of(archive.store) == "sqlite-vec"
    assert (whole.returncode, whole.stdout.split()) == (0, [str(COUNT), "True"]), whole.stderr


def test_an_index_with_other_contents_is_refused(data_dir: Path) -> None:
    folder = user_folder(data_dir, "alice")
    migrate(data_dir, "sqlite-vec")
    index = open_index("sqlite-vec", IndexOf(IndexSettings(), "alice", folder))
    with closing(index), closing(opened(data_dir)) as archive, archive.store.snapshot() as snapshot:
        assert verified(index, snapshot) >= 0.9
        index.delete([1, 2])
        with pytest.raises(IndexUnusableError, match=f"vectors of {COUNT - 2} memories instead of {COUNT}"):
            verified(index, snapshot)
        position = index.position
        assert position is not None
        index.begin(position)
        strangers = [change for change in snapshot.contents().rows if change.vector is not None]
        rng = np.random.default_rng(5)
        entries = [
            Entry(one.row, rng.normal(size=(1, NDIM)).astype(np.float32), ("finding",) + (None,) * 5, 0)
            for one in strangers
        ]
        index.index(entries, position)
        with pytest.raises(IndexUnusableError, match=r"finds only .* the former index stays in use"):
            verified(index, snapshot)


def test_an_unknown_engine_and_a_missing_url_are_refused(data_dir: Path) -> None:
    done = CliRunner().invoke(cli, ["migrate", "--to", "pgvector", "--data-dir", str(data_dir)])
    assert done.exit_code != 0
    assert "index.url: is empty" in done.output
    with closing(opened(data_dir)) as archive:
        assert engine_of(archive.store) == "builtin"
