"""Test the start of a daemon: refused settings, and the output on a terminal."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from memory_agent.daemon.process import Starting, ready_words, serve
from memory_agent.errors import SettingsError
from memory_agent.settings import IngestSettings, Settings


def test_an_unreadable_table_of_signals_is_refused_at_startup(tmp_path: Path) -> None:
    """If the table were read only by hosts, every event of every user would be quarantined."""
    table = tmp_path / "signals.toml"
    table.write_text("no table [")
    with pytest.raises(SettingsError, match=r"ingest\.signals"):
        serve(Settings(ingest=IngestSettings(signals=str(table))), tmp_path / "data")
    assert not (tmp_path / "data").exists()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def progress_on(stream: io.StringIO) -> list[str]:
    starting = Starting(stream)
    starting.part("relay")
    starting.part("Ray")
    starting.ready()
    return stream.getvalue().splitlines()


def test_a_terminal_shows_the_progress_of_the_start() -> None:
    lines = progress_on(Terminal())
    assert [line.partition(" s  ")[2] for line in lines] == ["starting relay", "starting Ray", "ready; Ctrl-C ends it"]


def test_a_file_gets_no_progress() -> None:
    assert progress_on(io.StringIO()) == []


def test_the_ready_message_has_the_address_and_commands_to_try(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMORY_AGENT_DATA_DIR", str(tmp_path / "usual"))
    ready = {"pid": 7, "data_dir": str(tmp_path / "my data"), "endpoints": {"http": "http://127.0.0.1:7421"}}
    said = ready_words(ready)
    assert f"http://127.0.0.1:7421/docs, with the token in {tmp_path / 'my data'}/token\n" in said
    assert f"memory-agent open --data-dir '{tmp_path}/my data'\n" in said
    assert f"memory-agent status --data-dir '{tmp_path}/my data'\n" in said
    usual = ready_words({"pid": 7, "data_dir": str(tmp_path / "usual"), "endpoints": {}})
    assert [word for word in ("--data-dir", "/docs", "memory-agent open") if word in usual] == []
    with pytest.raises(json.JSONDecodeError):
        json.loads(usual)
