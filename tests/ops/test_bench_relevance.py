"""Test the relevance figures and their page on data sets of a few texts, with the real model and stores."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import numpy as np
import pytest
from agent_runs import write_runs
from chats import BATCHES, write_chat
from conversations import write_locomo

from memory_agent.evaluation import read_locomo, read_swe
from ops.bench import relevance
from ops.bench.judged_answers import Answered, Judged, Measured, calibration, reliability
from ops.bench.relevance import separate
from ops.bench.store_sizes import MIXTURES, Size


def answered(shown: list[float], evidence: int = 0, places: tuple[int, ...] = ()) -> Answered:
    return Answered(np.array(shown), np.isin(np.arange(len(shown)), places), evidence)


def test_kept_refused_and_area_are_those_of_the_best_memories() -> None:
    answers = [
        answered([0.9, 0.7, 0.2], 2, (0, 2)),
        answered([0.5], 1),
        answered([0.8, 0.1]),
        answered([0.3, 0.3]),
        answered([]),
    ]
    found = Measured("some", 2, {"hybrid": answers})
    assert found.kept("hybrid", 0.6) == pytest.approx(0.5)  # keeps .5 of the 1.0 that is found without a threshold
    assert found.refused("hybrid", 0.6) == pytest.approx(2 / 3)
    assert found.shown("hybrid", 0.6) == pytest.approx(1.0)
    assert found.area("hybrid") == pytest.approx(5 / 6)
    assert math.isnan(found.strange("hybrid", 0.6))
    judged = found.judged("hybrid")
    assert judged.weights.sum() == pytest.approx(2.0)
    assert judged.weights[judged.is_evidence].sum() == pytest.approx(1.0)
    assert len(judged.logits) == 6  # two pieces of evidence, and four answers to other questions


def test_memories_of_something_else_are_counted_among_answers_that_have_any() -> None:
    own = [
        Answered(np.array(shown), np.array([True, False]), 1, np.array(strange))
        for shown, strange in (
            ([0.9, 0.7], [False, True]),
            ([0.9, 0.2], [False, True]),
            ([0.9, 0.7], [False, False]),
        )
    ]
    assert Measured("some", 2, {"apart 3": own}).strange("apart 3", 0.6) == 0.5


def test_calibration_finds_the_slope_and_offset_that_made_the_outcomes() -> None:
    random = np.random.default_rng(1)
    logits = random.normal(0, 3, 40_000)
    seen = random.random(40_000) < 1 / (1 + np.exp(-(0.5 * logits + 1.0)))
    judged = Judged(logits, seen, np.full(40_000, 1 / 40_000))
    slope, offset = calibration([judged])
    assert (slope, offset) == (pytest.approx(0.5, abs=0.03), pytest.approx(1.0, abs=0.05))
    assert reliability(judged, slope, offset).error < 0.02 < reliability(judged).error


def test_runs_of_one_user_are_cut_by_project_or_issue_and_conversations_are_not(tmp_path: Path) -> None:
    file = tmp_path / "runs.json"
    write_runs(file)
    runs = read_swe(file)
    cut = separate(runs)
    assert len(cut.histories) == 2
    assert sum(len(part.questions) for part in cut.histories) == len(runs.histories[0].answerable)
    for part in cut.histories:
        items = {item.id for item in part.items}
        assert all(items.issuperset(question.relevant) for question in part.questions)
    talks = read_locomo(write_locomo(tmp_path, 2))
    assert separate(talks) is talks


def test_the_page_has_every_line_of_every_data_set_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    for chat in ("1", "2", "3"):
        write_chat(data / "beam_dev" / chat, BATCHES)
    shutil.move(write_locomo(tmp_path, 3), data / "locomo_dev.json")
    monkeypatch.setattr(relevance, "PAGE", tmp_path / "relevance.md")
    monkeypatch.setattr(relevance, "SIZES", (Size(1, 3, 1), Size(3, 3, 2)))
    assert relevance.main(["--data", str(data)]) == 0
    page = (tmp_path / "relevance.md").read_text(encoding="utf-8")
    assert capsys.readouterr().out.strip() == page.strip()
    for line in relevance.LINES:
        table = page.partition(f"## {line.name}\n")[2].partition("\n## ")[0]
        rows = [row.split("|")[1:-1] for row in table.splitlines() if row.startswith("| ")]
        assert [row[0].strip() for row in rows] == ["", "LoCoMo", "BEAM", "all"]
        assert all(math.isfinite(float(row[place])) for row in rows[1:3] for place in (2, 3, 4, 5, 6, 8))
    for mixture in MIXTURES:
        table = page.partition(f"| {mixture.name} | memories |")[2].partition("\n\n")[0]
        rows = [row.split("|")[1:-1] for row in table.splitlines() if row.startswith("| ")]
        assert [(row[0].strip(), int(row[1])) for row in rows] == [
            (name, size) for name in ("LoCoMo", "BEAM") for size in (1, 3)
        ]
        assert all(math.isfinite(float(row[place])) for row in rows for place in (3, 4, 5, 8, 9))
    assert (tmp_path / "relevance.png").read_bytes().startswith(b"\x89PNG")


def test_a_folder_without_data_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        relevance.main(["--data", str(tmp_path)])
    assert "contains none of locomo_dev.json" in capsys.readouterr().err
