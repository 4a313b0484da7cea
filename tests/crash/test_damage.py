"""Test that each file with flipped bits or a missing or zeroed tail yields correct answers or a specific error."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from .damage import Opening, damages, inspect
from .data_folder import make_data_folder
from .figures import Figures

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "encrypted"])
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with every file that a daemon writes, closed cleanly."""
    folder = tmp_path_factory.mktemp("damage") / "base"
    make_data_folder(folder, is_encrypted=request.param)
    return folder


@pytest.fixture(scope="module")
def opening() -> Iterator[Opening]:
    with closing(Opening()) as opening:
        yield opening


def test_whatever_is_damaged_answers_are_right_or_the_damage_is_named_and_no_process_dies(
    opening: Opening, base: Path, tmp_path: Path, seed: int
) -> None:
    figures = Figures()
    todo = damages(base, random.Random(seed), per_file=1)
    assert {damage.file for damage in todo} >= {
        "data/journal/data.mdb",
        "spool/data.mdb",
        "data/users/alice/records/data.mdb",
        "data/users/alice/columns.arrays",
        "data/users/alice/graph.arrays",
        "data/users/alice/sona.state",
        "data/users/bob/erasing.json",
        "data/owners/data.mdb",
        "data/keys.json",
        "data/curve.json",
        "data/token",
    }
    assert list(inspect(opening, base, tmp_path / "work", todo, figures)) == [], f"seed {seed}"
    assert figures.damages.total() == len(todo)
    assert figures.bytes.total() == sum(damage.harmed_bytes for damage in todo) > len(todo)


def test_the_reader_of_damaged_folders_sees_changes(opening: Opening, base: Path, tmp_path: Path) -> None:
    """Tests the reader itself: two reads of an undamaged folder give equal answers."""
    before, again = (opening.read(shutil.copytree(base, tmp_path / name)) for name in ("one", "two"))
    assert before is not None
    assert set(before) == {
        "journal",
        "spool",
        "owners",
        "keys",
        "erased before",
        "user alice",
        "user bob",
        "user carol",
    }
    assert all(part["verified"] for part in before.values())
    assert len(before["user alice"]["answers"][1]) > 30
    assert again == before
