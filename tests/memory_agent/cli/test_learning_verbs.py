"""Test `trajectory`, `feedback` and `sona` without a daemon, with the real model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from memory_agent.cli.group import cli
from memory_agent.records.trajectories import FeedbackReport, SimilarRun, SonaStatus, Trajectory

Run = Callable[..., Result]
RunJson = Callable[..., Any]


@pytest.fixture(autouse=True)
def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recall only by words, except in tests of learning."""
    monkeypatch.setenv("MEMORY_AGENT_EMBEDDER__FOLDER", "/nowhere")


def remember_and_recall(run_json: RunJson) -> tuple[str, str]:
    """Return the ids of a recall and of the memory that it found."""
    record = run_json("remember", "the auth race needed a mutex")
    found = run_json("recall", "auth race")
    assert [memory["record"]["id"] for memory in found["memories"]] == [record["id"]]
    return found["recall_id"], record["id"]


def test_a_run_from_its_recall_to_its_feedback(run: Run, run_json: RunJson) -> None:
    recall_id, record_id = remember_and_recall(run_json)
    begun = run(
        "trajectory", "begin", "-", "--run", "run-7", "--session", "s-17", "--recall", recall_id, input="Fix it"
    )
    assert begun.stdout == "began run-7\n", begun.output
    stepped = run_json("trajectory", "step", "run-7", "Put a mutex around the refresh", "--used", record_id)
    assert msgspec.convert(stepped, Trajectory).state == "open"
    ended = run("trajectory", "end", "run-7", "--summary", "Two tabs refresh and stay signed in")
    assert ended.stdout == "ended run-7: 0.8 (completed), 1 memory used\n", ended.output
    report = run_json("feedback", recall_id, "--used", record_id, "--quality", "1", "--comment", "Held for a week")
    assert msgspec.convert(report, FeedbackReport).credited == (record_id,)
    (listed,) = run_json("trajectory", "list")
    found = msgspec.convert(listed, Trajectory)
    assert (found.id, found.objective, found.session_id, found.recall_ids) == ("run-7", "Fix it", "s-17", (recall_id,))
    assert (found.state, found.quality, found.used[0].record_id) == ("ended", 1.0, record_id)
    assert run_json("trajectory", "show", "run-7") == listed
    assert "ended" in run("trajectory", "list").stdout
    shown = " ".join(run("trajectory", "show", "run-7").stdout.split())
    assert "0.8 completed" in shown
    assert f"{record_id} 1 " in shown
    assert "outcome completed" in shown
    assert "Two tabs refresh and stay signed in" in shown
    assert "feedback.recall" in shown
    assert "Feedback: Held for a week" in shown
    assert (
        f"worker.report.received {run_json('trajectory', 'show', 'run-7')['steps'][0]['record_id']} Put a mutex"
        in shown
    )


def test_a_recall_with_feedback_and_without_a_run_is_listed_as_one(run: Run, run_json: RunJson) -> None:
    recall_id, record_id = remember_and_recall(run_json)
    run_json("feedback", recall_id, "--used", record_id, "--quality", "1")
    (listed,) = run_json("trajectory", "list")
    assert (listed["id"], listed["objective"]) == (recall_id, None)
    assert "(a recall with feedback, without a run)" in " ".join(run("trajectory", "show", recall_id).stdout.split())


def test_runs_that_resemble_a_text_are_printed_and_are_in_the_block_of_a_recall(run: Run, run_json: RunJson) -> None:
    for run_id, outcome, summary in (
        ("run-7", "completed", "It holds"),
        ("run-8", "failed", "The suite hung"),
        ("run-9", "cancelled", "The order was withdrawn"),
    ):
        run_json("trajectory", "begin", "Fix the auth race", "--run", run_id)
        run_json("trajectory", "step", run_id, f"Tried what {run_id} tries")
        run_json("trajectory", "end", run_id, "--outcome", outcome, "--summary", summary)
    shown = run("trajectory", "similar", "the auth race").stdout
    assert "run-7: just now · run\nasked: Fix the auth race\nPreviously: Tried what run-7 tries" in shown
    assert "Failed before: Tried what run-8 tries, because The suite hung" in shown
    assert "Cancelled before: Tried what run-9 tries, because The order was withdrawn" in shown
    assert "cancelled" in run("trajectory", "list").stdout
    (like,) = run_json("trajectory", "similar", "-", "--top-k", "1", input="the auth race")
    assert msgspec.convert(like, SimilarRun).id == "run-9"
    assert run("trajectory", "similar", "the weather").stdout.startswith("no finished run resembles this")
    found = run_json("recall", "the auth race", "--runs", "2")
    assert [one["id"] for one in found["runs"]] == ["run-7", "run-9"]
    assert "Previously: Tried what run-7 tries" in run("recall", "the auth race", "--runs", "2").stdout
    block = run("recall", "the auth race", "--profile", "before_planning", "--context").stdout
    assert "| Previously: Tried what run-7 tries; completed (0.8): It holds" in block
    assert "| Cancelled before" not in run("recall", "the auth race", "--runs", "0", "--context").stdout


def test_a_quality_before_the_end_of_the_run_is_shown_as_waiting(run: Run, run_json: RunJson) -> None:
    recall_id, _ = remember_and_recall(run_json)
    run_json("trajectory", "begin", "Fix it", "--run", "run-8", "--recall", recall_id)
    told = run("feedback", recall_id, "--quality", "1").stdout
    assert told == "run run-8: credited 0 memories\nthe run has not ended; the quality takes effect when it does\n"
    assert run_json("trajectory", "end", "run-8")["quality"] == 1.0


def test_a_repeated_command_with_the_same_event_id_is_done_once(run_json: RunJson) -> None:
    begin = ("trajectory", "begin", "Fix it", "--event-id", "my-begin")
    runs = [run_json(*begin) for _ in range(2)]
    assert runs[0] == runs[1]
    steps = [run_json("trajectory", "step", runs[0]["id"], "Read the log", "--event-id", "my-step") for _ in range(2)]
    assert steps[0] == steps[1]
    assert len(run_json("trajectory", "list", "--state", "open")) == 1


def test_an_id_of_a_run_that_ended_is_not_begun_again(run: Run, run_json: RunJson) -> None:
    run_json("trajectory", "begin", "Fix it", "--run", "run-7")
    run_json("trajectory", "end", "run-7")
    refused = run("trajectory", "begin", "Bake bread", "--run", "run-7")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "run run-7 ended at 20" in refused.stderr
    assert [found["objective"] for found in run_json("trajectory", "list")] == ["Fix it"]


def test_an_empty_list_of_runs_is_a_sentence(run: Run, run_json: RunJson) -> None:
    assert run("trajectory", "list").stdout == "no runs are known\n"
    assert run("trajectory", "list", "--state", "expired").stdout == "there are no runs in the state expired\n"
    assert run_json("trajectory", "list") == []


def test_users_do_not_see_each_others_runs(run_json: RunJson) -> None:
    run_json("trajectory", "begin", "Fix it", "--user", "alice")
    assert run_json("trajectory", "list", "--user", "bob") == []


def test_the_status_of_the_learner_is_shown(run: Run, run_json: RunJson) -> None:
    status = msgspec.convert(run_json("sona", "status"), SonaStatus)
    assert (status.user_id, status.gate.state, status.gain) == ("default", "shadow", None)
    shown = run("sona", "status").stdout
    assert "a trial requires 2 lessons with credit (0 so far)" in shown
    assert "unknown: no interleaved recall has been decided yet" in shown


def test_an_export_restores_what_a_reset_discarded(
    run: Run, run_json: RunJson, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MEMORY_AGENT_EMBEDDER__FOLDER")
    recall_id, record_id = remember_and_recall(run_json)
    elsewhere = ("--data-dir", str(tmp_path / "elsewhere"))
    shutil.copytree(data_dir, elsewhere[1])
    run_json("feedback", recall_id, "--used", record_id, "--quality", "1")
    assert run_json("sona", "status")["credited"] == 1
    file = tmp_path / "learned.sona"
    assert run_json("sona", "export", str(file)) == {"file": str(file), "bytes": file.stat().st_size}
    assert file.stat().st_mode & 0o077 == 0
    assert {path.name for path in tmp_path.iterdir()} == {"data", "elsewhere", file.name}
    unanswered = run("sona", "reset")
    assert (unanswered.exit_code, "use --yes" in unanswered.stderr) == (2, True)
    assert run("sona", "reset", input="n\n").exit_code != 0
    assert run_json("sona", "status")["credited"] == 1
    assert run_json("sona", "reset", "--yes") == {"left_out": 1}
    assert run_json("sona", "status")["credited"] == 0
    done = CliRunner().invoke(cli, ["sona", "import", str(file), *elsewhere])
    assert done.stdout == "new runs: 1\n", done.output
    status = json.loads(CliRunner().invoke(cli, ["sona", "status", "--json", *elsewhere]).stdout)
    assert (status["trajectories"], status["credited"]) == (1, 1)


def test_a_damaged_file_is_refused_and_changes_nothing(run: Run, run_json: RunJson, tmp_path: Path) -> None:
    before = run_json("sona", "status")
    file = tmp_path / "learned.sona"
    file.write_bytes(b"nothing of ours")
    refused = run("sona", "import", str(file))
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert refused.stderr.startswith("error: ")
    assert run_json("sona", "status") == before


@pytest.mark.parametrize("words", [("end", "rum-7"), ("step", "rum-7", "Read the log")])
def test_ending_an_unknown_run_does_not_create_it(run: Run, run_json: RunJson, words: tuple[str, ...]) -> None:
    run_json("trajectory", "begin", "Fix it", "--run", "run-7")
    result = run("trajectory", *words)
    assert result.exit_code == 1
    assert "no such run: rum-7" in result.stderr
    assert [one["id"] for one in run_json("trajectory", "list")] == ["run-7"]
