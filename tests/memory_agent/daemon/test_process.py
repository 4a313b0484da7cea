"""What a daemon refuses before it starts anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from memory_agent.daemon.process import serve
from memory_agent.errors import SettingsError
from memory_agent.settings import IngestSettings, Settings


def test_a_table_of_signals_that_cannot_be_read_is_refused_at_the_start(tmp_path: Path) -> None:
    """Hosts read it when a user wakes; there the same mistake sends every event of every user to quarantine."""
    table = tmp_path / "signals.toml"
    table.write_text("no table [")
    with pytest.raises(SettingsError, match=r"ingest\.signals"):
        serve(Settings(ingest=IngestSettings(signals=str(table))), tmp_path / "data")
    assert not (tmp_path / "data").exists()
