"""Test that a user's table adds, changes and removes rows, and that errors name the row and field."""

from __future__ import annotations

from pathlib import Path

import pytest

from memory_agent.errors import SettingsError
from memory_agent.signals import SignalTable


def own_table(tmp_path: Path, toml: str) -> SignalTable:
    file = tmp_path / "signals.toml"
    file.write_text(toml, encoding="utf-8")
    return SignalTable.load(str(file))


def test_a_users_table_adds_changes_and_removes_rows(tmp_path: Path) -> None:
    table = own_table(
        tmp_path,
        """
        remove = ["task-progress"]
        [signal.deploy]
        events = ["deploy.*", "worker.task.finding"]
        source = "worker_result"
        kind = "pattern"
        text = ["environment"]
        [signal.run-completed]
        quality = 0.9
        [outcomes]
        shipped = 1.0
        """,
    )
    deploy = table.match("deploy.eu.done")
    assert deploy is not None
    assert deploy.kind == "pattern"
    assert table.match("worker.task.finding") == deploy
    assert table.match("worker.task.learning") != deploy
    assert table.match("worker.task.progress") is None
    completed = table.match("conductor.task.completed")
    assert completed is not None
    assert (completed.quality, completed.outcome) == (0.9, True)
    assert table.outcomes["shipped"] == 1.0


@pytest.mark.parametrize(
    ("toml", "named"),
    [
        ('[signal.x]\nevents = ["a"]\nsource = "user_input"\nkind = "episode"\ncolour = "red"', "colour"),
        ('[signal.x]\nevents = ["a"]\nsource = "user_input"\nkind = "novel"', "kind"),
        ('[signal.x]\nevents = ["a"]\nkind = "episode"', "source"),
        ('[signal.x]\nevents = []\nsource = "user_input"\nkind = "episode"', "events"),
        ('[signal.x]\nevents = ["a"]\nsource = "user_input"\nkind = "episode"\ntext = ["a | | b"]', "signal.x.text"),
        (
            '[signal.x]\nevents = ["a"]\nsource = "user_input"\nkind = "episode"\n[signal.y]\nevents = ["a"]\n'
            'source = "user_input"\nkind = "episode"',
            "signal.y.events",
        ),
        ("[signal.run-completed]\nquality = 1.5", "quality"),
        ('remove = ["no-such-row"]', "no-such-row"),
        ("remove = 3", "remove"),
        ("[noise.spam]\ntext = '('", "noise.spam.text"),
        ("signal = 3", "signal"),
        ("[colours]\nred = 1", "colours"),
        ("not toml", "ingest.signals"),
    ],
)
def test_an_invalid_table_is_refused_with_row_and_field(tmp_path: Path, toml: str, named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        own_table(tmp_path, toml)


def test_a_table_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(SettingsError, match="no-such-file"):
        SignalTable.load("no-such-file.toml")
