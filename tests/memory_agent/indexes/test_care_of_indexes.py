"""Doctor, encrypt, verify and restore with users whose vectors are in PostgreSQL."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from index_world import SMALL, TEXTS
from made_vectors import MadeVectors

from memory_agent.care import verify_folder
from memory_agent.cli.doctor import check_index
from memory_agent.cli.group import cli
from memory_agent.indexes import IndexOf, open_index
from memory_agent.layout import Layout
from memory_agent.memory import Memory
from memory_agent.settings import IndexSettings, Settings
from memory_agent.storage.folders import user_folder


def command(data_dir: Path, database: str, *words: str) -> Result:
    options = ("--data-dir", str(data_dir), "--set", f"index.url={database}")
    return CliRunner().invoke(cli, [*words, *options])


def in_pgvector(data_dir: Path, database: str) -> Memory:
    """Open the memory of alice, whose vectors are in PostgreSQL."""
    chosen = Settings(index=IndexSettings(engine="pgvector", url=database), store=SMALL)
    return Memory.open(user_folder(data_dir, "alice"), embedder=MadeVectors(), settings=chosen, user_id="alice")


def test_doctor_names_users_of_a_database_that_the_settings_do_not(database: str, tmp_path: Path) -> None:
    in_pgvector(tmp_path, database).close()
    assert check_index(Settings(index=IndexSettings(url=database)), Layout(tmp_path)).state == "ok"
    found = check_index(Settings(), Layout(tmp_path))
    assert found.state == "failed"
    assert found.detail == "index.url is empty, but pgvector has the vectors of alice"
    assert "memory-agent migrate --to builtin" in found.advice


def test_encrypt_refuses_vectors_that_would_stay_unencrypted(database: str, tmp_path: Path) -> None:
    data_dir, keys = tmp_path / "data", f"encryption.keys_folder={tmp_path / 'keys'}"
    with in_pgvector(data_dir, database) as memory:
        memory.remember("Staging needs the VPN")
    shutil.copytree(data_dir, tmp_path / "copy")
    refused = command(data_dir, database, "encrypt", "--set", keys)
    assert refused.exit_code != 0
    assert "the vectors of alice would stay unencrypted in pgvector" in refused.output
    moved = command(data_dir, database, "migrate", "--to", "builtin", "--set", keys, "--set", "encryption.keys_folder=")
    assert moved.exit_code == 0, moved.output
    assert command(data_dir, database, "encrypt", "--set", keys).exit_code == 0
    allowed = command(tmp_path / "copy", database, "encrypt", "--set", keys, "--set", "index.allow_plain=true")
    assert (allowed.exit_code, "the vectors of alice stay unencrypted" in allowed.output) == (0, True), allowed.output


@pytest.mark.parametrize("engine", ["pgvector", "sqlite-vec"])
def test_verify_counts_the_memories_in_an_index(engine: Any, database: str, tmp_path: Path) -> None:
    chosen = IndexSettings(engine=engine, url=database)
    of = IndexOf(chosen, "alice", user_folder(tmp_path, "alice"))
    with Memory.open(of.folder, embedder=MadeVectors(), settings=Settings(index=chosen, store=SMALL)) as memory:
        for text in TEXTS[:3]:
            memory.remember(text)

    def findings() -> list[tuple[str, str]]:
        (part,) = verify_folder(tmp_path, Settings(index=chosen, store=SMALL), lambda *_: None)
        return [(finding.place, finding.fault) for finding in part.findings]

    assert findings() == []
    with closing(open_index(engine, of)) as index:
        index.delete([2])
    (found,) = findings()
    assert found == (f"index in {engine}", "contains 2 of 3 memories with a vector; run memory-agent rebuild")
    assert command(tmp_path, database, "rebuild").exit_code == 0
    assert findings() == []
    if engine == "pgvector":
        unreachable = IndexSettings(engine=engine, url="postgresql://localhost:1/x")
        (part,) = verify_folder(tmp_path, Settings(index=unreachable, store=SMALL), lambda *_: None)
        assert "was not compared" in part.findings[0].fault
