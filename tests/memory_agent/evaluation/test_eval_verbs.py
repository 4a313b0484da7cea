"""The `eval` commands on small inputs with the real model: metrics, output, saved results and rejected inputs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from agent_runs import write_runs
from chats import BATCHES, write_beam, write_chat
from click.testing import CliRunner, Result
from conversations import TURNS, write_locomo

from memory_agent.cli.group import cli
from memory_agent.settings import RecallSettings


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(cli, ["eval", *map(str, words)])


def evaluate(*words: str | Path) -> Any:
    result = run(*words, "--embedded", "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def lines_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_evidence_is_counted_per_cutoff_and_category(tmp_path: Path) -> None:
    report = evaluate("locomo", write_locomo(tmp_path, 2))
    assert (report["conversations"], report["events"], report["memories"]) == (2, 2 * len(TURNS), 2 * len(TURNS))
    assert (report["questions"], report["questions_without_evidence"], report["evidence_unmatched"]) == (6, 2, 2)
    # Two of the three questions have one evidence turn, at rank 1. The third has two, and one of them is at rank 1.
    assert report["recall_at"] == {"1": pytest.approx(2.5 / 3, abs=1e-4), "5": 1.0, "10": 1.0, "50": 1.0}
    by_category = {name: (part["questions"], part["recall_at"]["1"]) for name, part in report["by_category"].items()}
    assert by_category == {"1": (2, 0.5), "3": (0, None), "4": (2, 1.0), "5": (2, 1.0)}
    assert (report["mode"], report["embedded"], report["degraded_answers"]) == ("hybrid", True, 0)
    assert report["events_per_s"] > 0
    assert 0 < report["recall_ms"]["p50"] <= report["recall_ms"]["p99"]


def test_sessions_are_counted_with_and_without_the_questions_that_have_no_evidence(tmp_path: Path) -> None:
    report = evaluate("locomo", write_locomo(tmp_path, 1))
    # Two questions have the right session at rank 1, one has evidence in both sessions, and one has no evidence.
    assert report["session_recall_at"]["1"] == pytest.approx(2.5 / 3, abs=1e-4)
    assert report["session_recall_at_all"]["1"] == pytest.approx(3.5 / 4, abs=1e-4)
    main = report["main_categories"]["1-4"]
    assert (main["questions"], main["questions_without_evidence"]) == (2, 1)
    assert main["session_recall_at"]["1"] == pytest.approx(1.5 / 2)
    assert main["session_recall_at_all"]["1"] == pytest.approx(2.5 / 3, abs=1e-4)
    assert report["mrr"] == report["session_mrr"] == report["ndcg_at"]["1"] == 1.0


def test_only_cutoffs_within_top_k_are_reported(tmp_path: Path) -> None:
    report = evaluate("locomo", write_locomo(tmp_path, 1), "--top-k", "5", "--mode", "lexical")
    assert list(report["recall_at"]) == list(report["session_recall_at"]) == ["1", "5"]
    assert report["mode"] == "lexical"


def test_a_named_folder_keeps_the_memories_and_a_second_run_adds_none(tmp_path: Path) -> None:
    file, folder = write_locomo(tmp_path, 1), tmp_path / "data"
    first = evaluate("locomo", file, "--data-dir", folder, "--user", "trial")
    second = evaluate("locomo", file, "--data-dir", folder, "--user", "trial")
    assert second["recall_at"] == first["recall_at"]
    assert second["memories"] == len(TURNS)
    words = ["stats", "--user", "trial-0", "--data-dir", str(folder), "--json"]
    stats = json.loads(CliRunner().invoke(cli, words).stdout)
    assert (stats["memories"], stats["events_duplicate"]) == (len(TURNS), len(TURNS))


def test_chosen_conversations_keep_their_users(tmp_path: Path) -> None:
    file, folder = write_locomo(tmp_path, 4), tmp_path / "data"
    report = evaluate("locomo", file, "--conversations", "0-1,3", "--data-dir", folder)
    assert report["conversations"] == 3
    assert sorted(path.name for path in (folder / "users").iterdir()) == ["locomo-0", "locomo-1", "locomo-3"]


def test_the_output_without_json_is_a_table(tmp_path: Path) -> None:
    result = run("locomo", write_locomo(tmp_path, 1), "--embedded")
    assert result.exit_code == 0, result.output
    rows = [line.split() for line in result.stdout.splitlines() if line.startswith("all")]
    turns, shown, sessions, shown_sessions, with_all = rows
    assert shown == ["all,", "shown", "records", "only", *turns[1:]]  # nothing was folded
    assert shown_sessions[4:] == sessions[1:]
    assert turns[:6] == ["all", "3", "83.3", "100.0", "100.0", "100.0"]
    assert turns[-1] == sessions[-1] == "1.000"
    assert (sessions[2], with_all[-6:-2]) == ("83.3", ["87.5", "100.0", "100.0", "100.0"])
    assert "questions left out" in result.stdout
    assert "--results OUT" in result.stdout


def test_results_are_kept_question_by_question_without_any_text(tmp_path: Path) -> None:
    file, kept = write_locomo(tmp_path, 1), tmp_path / "kept.jsonl"
    report = evaluate("locomo", file, "--results", kept, "--top-k", "10")
    header, *lines = lines_of(kept)
    assert (header["dataset"], header["mode"], header["top_k"], header["users"]) == ("locomo", "hybrid", 10, ["0"])
    assert header["settings"]["recall"]["vector_weight"] == RecallSettings().vector_weight
    assert header["left_out"] == ["0:3"]
    assert header["model"].startswith("all-MiniLM-L6-v2|")
    assert [line["id"] for line in lines] == ["0:0", "0:1", "0:2"]
    assert lines[0]["ranked"][0] == ["D1:3", "session_1"]
    assert lines[2]["relevant"] == {"D1:1": 1, "D2:2": 1}
    recalls = [line["metrics"]["recall@1"] for line in lines]
    assert sum(recalls) / 3 == pytest.approx(report["recall_at"]["1"], abs=1e-4)
    assert not any(word in kept.read_text() for word in ("kiln", "cello", "Norway", "daughter", str(tmp_path)))


def test_nothing_is_measured_if_the_results_cannot_be_written(tmp_path: Path) -> None:
    result = run("locomo", write_locomo(tmp_path, 1), "--embedded", "--results", tmp_path / "absent" / "kept.jsonl")
    assert result.exit_code == 1
    assert "kept.jsonl: cannot be written: No such file or directory" in result.stderr
    assert result.stdout == ""


def test_a_run_that_fails_leaves_older_results_as_they_were(tmp_path: Path) -> None:
    kept = tmp_path / "kept.jsonl"
    kept.write_text("older")
    words = ("locomo", write_locomo(tmp_path, 1), "--embedded", "--results", kept)
    result = run(*words, "--set", f"embedder.folder={tmp_path}")
    assert result.exit_code == 1, result.output
    assert kept.read_text() == "older"
    assert [path.name for path in tmp_path.glob("*kept*")] + [path.name for path in tmp_path.glob(".*")] == [kept.name]


def test_two_runs_are_compared_by_the_trial_and_by_the_compare_command(tmp_path: Path) -> None:
    file, a, b = write_locomo(tmp_path, 2), tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    evaluate("locomo", file, "--results", a)
    evaluate("locomo", file, "--results", b, "--mode", "lexical", "--conversations", "1")
    asked = json.loads(run("locomo", "--compare", a, b, "--json").stdout)
    assert json.loads(run("compare", a, b, "--json").stdout) == asked
    assert (asked["questions"], asked["only_a"], asked["only_b"], asked["unit"]) == (3, 3, 0, "question")
    assert asked["changed"] == {"mode": ["hybrid", "lexical"]}
    table = run("locomo", "--compare", a, b)
    assert table.exit_code == 0, table.output
    assert "hybrid -> lexical" in table.stdout
    by_conversation = run("compare", a, b, "--by", "conversation", "--json", "--resamples", "100")
    compared = json.loads(by_conversation.stdout)
    assert compared["units"] == 1
    assert {metric["low"] for metric in compared["metrics"]} == {None}
    whole = run("compare", a, b, "--by", "conversation")
    row = next(line.split() for line in whole.stdout.splitlines() if line.startswith("recall@1 "))
    assert row[-5:-2] == ["-", "-", "-"]
    assert "too few for an interval" in whole.stdout
    assert "shown_" not in whole.stdout  # omitted because the values are equal: nothing was folded


@pytest.mark.parametrize(
    ("words", "exit_code", "said"),
    [
        (("locomo",), 2, "Missing argument 'FILE' (or compare two result files with --compare A B)"),
        (("beam",), 2, "Missing argument 'FOLDER'"),
        (("locomo", "x.json", "--compare", "a", "b"), 2, "--compare cannot be combined with"),
        (("locomo", "--compare", "a"), 2, "--compare"),
        (("locomo", "--compare", "absent", "b"), 1, "absent: cannot be read"),
        (("locomo", "x.json", "--conversations", "2-1"), 2, "is not a list of numbers and ranges"),
        (("locomo", "x.json", "--conversations", "one"), 2, "is not a list of numbers and ranges"),
        (("jsonl", "absent.jsonl"), 1, "absent.jsonl: cannot be read"),
        (("beam", "absent"), 1, "absent: contains no BEAM chat"),
        (("compare", "a"), 2, "Missing argument 'B'"),
    ],
)
def test_impossible_requests_are_errors(words: tuple[str, ...], exit_code: int, said: str) -> None:
    result = run(*words)
    assert result.exit_code == exit_code
    assert said in " ".join(result.stderr.split())


def test_a_folder_without_a_daemon_is_refused_with_advice(tmp_path: Path) -> None:
    result = run("locomo", write_locomo(tmp_path, 1), "--data-dir", tmp_path / "data")
    assert result.exit_code == 1
    assert "omit --data-dir" in result.stderr


def test_beam_counts_messages_and_leaves_abstention_out(tmp_path: Path) -> None:
    report = evaluate("beam", write_beam(tmp_path))
    assert (report["dataset"], report["conversations"], report["questions"]) == ("beam", 2, 4)
    assert (report["questions_without_evidence"], report["evidence_unmatched"]) == (2, 2)
    assert report["recall_at"]["5"] == report["session_recall_at"]["5"] == 1.0
    assert report["by_category"]["abstention"]["questions_without_evidence"] == 2
    assert (report["session_recall_at_all"], report["main_categories"]) == (None, {})


def test_own_data_is_evaluated_by_user_with_grades(tmp_path: Path) -> None:
    file = tmp_path / "own.jsonl"
    file.write_text(
        '{"type": "record", "id": "r1", "text": "The deploy hangs without the VPN", "kind": "finding"}\n'
        '{"type": "record", "id": "r2", "text": "Lunch is at noon", "kind": "pattern"}\n'
        '{"type": "record", "id": "r1", "text": "The printer is out of toner", "user": "bob", "kind": "strategy"}\n'
        '{"type": "query", "id": "q1", "text": "why does the deploy hang?", "relevant": {"r1": 3, "r2": 1}}\n'
        '{"type": "query", "id": "q2", "text": "what is wrong with the printer?", "relevant": ["r1"], "user": "bob"}\n'
        '{"type": "query", "id": "q3", "text": "who is there?", "relevant": [], "category": "open"}\n'
    )
    folder, kept = tmp_path / "data", tmp_path / "kept.jsonl"
    report = evaluate("jsonl", file, "--data-dir", folder, "--results", kept)
    assert (report["memories"], report["questions"], report["questions_without_evidence"]) == (3, 2, 1)
    assert (report["recall_at"]["1"], report["recall_at"]["5"], report["mrr"]) == (0.75, 1.0, 1.0)
    assert report["ndcg_at"]["5"] == 1.0
    assert report["session_mrr"] is None
    assert [line["ranked"][0] for line in lines_of(kept)[1:]] == [["r1", None], ["r1", None]]
    words = ["stats", "--user", "jsonl-default", "--data-dir", str(folder), "--json"]
    assert json.loads(CliRunner().invoke(cli, words).stdout)["by_kind"] == {"finding": 1, "pattern": 1}
    table = run("jsonl", file, "--embedded").stdout
    assert "sessions found" not in table
    rows = [line.split("  ")[0] for line in table.splitlines() if line.startswith(("all", "category"))]
    assert rows == ["category none", "all", "all, shown records only"]


def test_duplicate_turns_are_credited_and_distinguished_from_the_shown_one(tmp_path: Path) -> None:
    text = "The nightly deploy of the billing service failed: no VPN"
    records = [{"type": "record", "id": f"r{n}", "text": text, "session_id": f"s{n}"} for n in range(4)]
    query = {"type": "query", "id": "q", "text": "why did the deploy fail?", "relevant": [f"r{n}" for n in range(4)]}
    file, kept = tmp_path / "own.jsonl", tmp_path / "kept.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in (*records, query)))
    report = evaluate("jsonl", file, "--results", kept)
    assert (report["recall_at"]["1"], report["recall_at_shown"]["50"]) == (1.0, 0.25)
    assert (report["session_recall_at"]["10"], report["session_recall_at_shown"]["10"]) == (1.0, 0.25)
    assert (report["mrr"], report["mrr_shown"]) == (1.0, 1.0)
    metrics = lines_of(kept)[1]["metrics"]
    assert (metrics["recall@1"], metrics["shown_recall@1"]) == (1.0, 0.25)
    compared = run("compare", kept, kept).stdout
    assert "shown_recall@1 " in compared
    assert "shown_mrr" not in compared


def test_a_dataset_without_evidence_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "own.jsonl"
    file.write_text('{"type": "record", "id": "r1", "text": "Lunch is at noon"}\n')
    only_abstention = write_chat(tmp_path / "chat", BATCHES, {"abstention": [{"question": "Which school?"}]})
    for verb, source in (("jsonl", file), ("beam", only_abstention)):
        result = run(verb, source, "--embedded")
        assert result.exit_code == 1
        assert "has no question with evidence" in " ".join(result.stderr.split())
        assert result.stdout == ""


def test_a_moved_command_names_its_new_name() -> None:
    result = run("sona", "locomo10.json", "--quick")
    assert result.exit_code == 2
    assert "python -m ops.lab sona" in result.stderr
    assert "sona" not in run("--help").stdout


def test_runs_of_an_agent_are_one_user_and_resampled_by_issue(tmp_path: Path) -> None:
    file, kept = write_runs(tmp_path / "runs.json"), tmp_path / "kept.jsonl"
    report = evaluate("swe", file, "--results", kept)
    assert (report["dataset"], report["conversations"], report["questions"]) == ("swe", 1, 8)
    assert set(report["by_category"]) == {"lookup", "issue", "cause"}
    assert report["by_category"]["lookup"]["recall_at"]["5"] == 1.0
    header, *lines = lines_of(kept)
    assert header["users"] == ["runs"]
    assert {line["group"] for line in lines} == {"headers-1", "menus-2"}
    by_issue = run("compare", kept, kept, "--by", "conversation", "--json")
    assert json.loads(by_issue.stdout)["units"] == 2
    assert run("swe", "--compare", kept, kept).exit_code == 0


def test_memories_of_the_asking_run_are_left_out(tmp_path: Path) -> None:
    kept = tmp_path / "kept.jsonl"
    evaluate("swe", write_runs(tmp_path / "runs.json"), "--results", kept, "--top-k", "5")
    sessions = {line["id"]: {session for _, session in line["ranked"]} for line in lines_of(kept)[1:]}
    assert "run-0" not in sessions["cause:0"]
    assert "run-1" not in sessions["cause:1"]
    assert sessions["lookup:0:1"] >= {"run-0"}
