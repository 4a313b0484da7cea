"""Test `python -m ops.lab sona` on small inputs, with the real memory and model: tables, files and refusals."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from conversations import write_locomo
from test_lab_airline import entry, write

from ops.lab.__main__ import lab
from ops.lab.arms import ROCCHIO, SHUFFLED_ROCCHIO

ROOT = Path(__file__).parents[2]
COMMON = {"--user", "--data-dir", "--config", "--set", "--json"}


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(lab, ["sona", *map(str, words)])


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """The report of every experiment, for two signals, and the folder with its results and picture."""
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
        (("absent.json", "--plot", "curve.svg"), "must end with .png"),
        (("absent.json", "--signal", "hearsay"), "is not one of"),
    ],
)
def test_impossible_measurements_are_refused_at_once(words: tuple[str, ...], reason: str) -> None:
    result = run(*words)
    assert result.exit_code != 0
    assert reason in result.stderr
    assert result.stdout == ""


def test_the_help_of_the_protocol_has_an_example_and_every_option() -> None:
    shown = run("--help").stdout
    assert "python -m ops.lab sona" in shown.partition("Examples:")[2]
    options = [option for option in lab.commands["sona"].params if isinstance(option, click.Option)]
    assert {name for option in options for name in option.opts} >= {
        "--user",
        "--data-dir",
        "--config",
        "--set",
        "--json",
    }
    for option in options:
        assert all(name in shown for name in option.opts)
        assert option.help, option.name


def test_the_module_runs_as_a_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ops.lab", "sona"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 2
    assert "Missing argument 'FILE'" in done.stderr


def test_the_instant_layer_is_measured_cold_and_full_with_both_signals(tmp_path: Path) -> None:
    result = CliRunner().invoke(
        lab, ["instant", str(write_locomo(tmp_path, 2)), "--seeds", "1", "--jobs", "1", "--json"]
    )
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert (report["conversations"], report["seeds"]) == (2, 1)
    assert {(gain["state"], gain["signal"]) for gain in report["gains"]} <= set(
        product(("cold", "full"), ("oracle", "cite"))
    )
