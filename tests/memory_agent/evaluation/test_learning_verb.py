"""`eval sona` on small inputs, with the real memory and model: what it prints, keeps, draws and refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from conversations import write_locomo
from test_learning_airline import entry, write

from memory_agent.cli.group import cli
from memory_agent.evaluation.learning.arms import ROCCHIO, SHUFFLED_ROCCHIO


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(cli, ["eval", "sona", *map(str, words)])


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """The report of every experiment, for two signals, and the folder with its results and its picture."""
    folder = tmp_path_factory.mktemp("measured")
    runs = write(folder, *(entry(task, trial, float(trial == task % 2)) for task in range(4) for trial in range(4)))
    words = (
        "--runs",
        runs,
        "--quick",
        "--jobs",
        "1",
        "--results",
        folder / "kept.json",
        "--plot",
        folder / "curve.png",
    )
    result = run(write_locomo(folder, 2), "--signal", "cite", "--signal", "list", *words, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout), folder


def test_every_experiment_is_in_the_one_document(measured: tuple[Any, Path]) -> None:
    report, _ = measured
    assert (report["users"], report["questions"], report["runs"], report["seeds"]) == (2, 4, 16, 1)
    arms = {(part["arm"], part["split"]) for part in report["standings"]}
    assert {("learning off", "random"), ("shuffled cite", "disjoint"), ("cite, gate decides", "disjoint")} <= arms
    assert ("list", "random") in arms
    assert {(name, split) for name in (ROCCHIO, SHUFFLED_ROCCHIO) for split in ("random", "disjoint")} <= arms
    assert not any("oracle" in arm for arm, _ in arms)
    assert {part["arm"] for part in report["forgetting"]} == {"cite"}
    assert {part["signal"]: part["streams"] for part in report["vigils"]} == {"cite": 1, "list": 1, "shuffled cite": 1}
    assert {(part["arm"], part["held"]) for part in report["planning"]} >= {
        ("learning on", "trial"),
        ("learning on, cited", "task"),
    }
    assert report["inputs"].keys() == {"locomo", "airline"}


def test_lists_credit_nothing_and_nothing_is_gained_before_training(measured: tuple[Any, Path]) -> None:
    report, _ = measured
    by_name = {target["name"]: target["reached"] for target in report["targets"]}
    assert by_name["list: share of streams in which the gate opened"] is True
    if report["curve"]:
        assert by_name["any gain before training"] is True


def test_results_hold_ids_and_figures_and_no_text(measured: tuple[Any, Path]) -> None:
    _, folder = measured
    kept = (folder / "kept.json").read_text()
    assert json.loads(kept)["requested"]
    assert not any(word in kept for word in ("kiln", "Norway", "cancel my flight", str(folder)))


def test_tables_are_for_people(tmp_path: Path) -> None:
    result = run("--runs", write(tmp_path, *(entry(task, trial, 1.0) for task in range(2) for trial in range(2))),
                 "--quick", "--jobs", "1")  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "airline: past runs for a request, %" in result.stdout
    assert "targets" in result.stdout
    assert "learning curve" not in result.stdout  # no conversations were given


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ((), "Missing argument 'FILE'"),
        (("absent.json",), "absent.json: cannot be read"),
        (("absent.json", "--plot", "curve.svg"), "is not named .png"),
        (("absent.json", "--signal", "hearsay"), "is not one of"),
    ],
)
def test_what_cannot_be_measured_is_refused_at_once(words: tuple[str, ...], reason: str) -> None:
    result = run(*words)
    assert result.exit_code != 0
    assert reason in result.stderr
    assert result.stdout == ""
