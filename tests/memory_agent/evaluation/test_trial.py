"""A trial counts what comes back, of known conversations and with the real model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from conversations import TURNS, write_locomo

from memory_agent.cli.group import cli


def evaluate(*words: str) -> Any:
    result = CliRunner().invoke(cli, ["eval", "locomo", *words, "--embedded", "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_evidence_that_comes_back_is_counted_per_cutoff_and_category(tmp_path: Path) -> None:
    report = evaluate(str(write_locomo(tmp_path, 2)))
    assert (report["conversations"], report["events"], report["questions"]) == (2, 2 * len(TURNS), 6)
    assert (report["questions_without_evidence"], report["evidence_unmatched"]) == (2, 2)
    # Two of three questions have one turn of evidence, which ranks first; the third has two, of which one can.
    assert report["recall_at"] == {"1": pytest.approx(2.5 / 3, abs=1e-4), "5": 1.0, "10": 1.0, "50": 1.0}
    assert report["by_category"] == {
        "1": {"questions": 2, "recall_at": {"1": 0.5, "5": 1.0, "10": 1.0, "50": 1.0}},
        "4": {"questions": 4, "recall_at": {"1": 1.0, "5": 1.0, "10": 1.0, "50": 1.0}},
    }
    assert (report["mode"], report["embedded"], report["degraded_answers"]) == ("hybrid", True, 0)
    assert report["events_per_s"] > 0
    assert 0 < report["recall_ms"]["p50"] <= report["recall_ms"]["p99"]


def test_only_cutoffs_that_top_k_can_tell_about_are_told(tmp_path: Path) -> None:
    report = evaluate(str(write_locomo(tmp_path, 1)), "--top-k", "5", "--mode", "lexical")
    assert list(report["recall_at"]) == ["1", "5"]
    assert report["mode"] == "lexical"


def test_a_named_folder_keeps_the_memories_and_a_second_run_adds_none(tmp_path: Path) -> None:
    file, folder = str(write_locomo(tmp_path, 1)), tmp_path / "data"
    first = evaluate(file, "--data-dir", str(folder), "--user", "trial")
    second = evaluate(file, "--data-dir", str(folder), "--user", "trial")
    assert second["recall_at"] == first["recall_at"]
    words = ["stats", "--user", "trial-0", "--data-dir", str(folder), "--json"]
    stats = json.loads(CliRunner().invoke(cli, words).stdout)
    assert (stats["memories"], stats["events_duplicate"]) == (len(TURNS), len(TURNS))


def test_a_table_is_for_people(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["eval", "locomo", str(write_locomo(tmp_path, 1)), "--embedded"])
    assert result.exit_code == 0, result.output
    last = next(line for line in result.stdout.splitlines() if line.startswith("all "))
    assert last.split() == ["all", "3", "83.3", "100.0", "100.0", "100.0"]
    assert "questions left out" in result.stdout


def test_a_folder_without_a_daemon_is_refused_with_the_way_out(tmp_path: Path) -> None:
    words = ["eval", "locomo", str(write_locomo(tmp_path, 1)), "--data-dir", str(tmp_path / "data")]
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == 1
    assert "leave --data-dir away" in result.stderr
