"""Test how runs, feedback and the learner are printed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from memory_agent.cli.sona import gain_sentence, gate_sentence, print_status
from memory_agent.cli.trajectory import print_report, print_run, print_runs, quality_of
from memory_agent.records.trajectories import (
    FeedbackReport,
    GateEvidence,
    Revision,
    SonaStatus,
    Step,
    Trajectory,
    UsedMemory,
)

NOW = datetime(2026, 11, 21, 10, 0, tzinfo=UTC)
RUN = Trajectory(
    id="run-7",
    state="ended",
    objective="Fix the auth race",
    session_id="s-17",
    began_at=NOW,
    ended_at=NOW + timedelta(hours=1),
    outcome="completed",
    quality=0.4,
    revisions=(
        Revision(quality=0.8, reason="completed", at=NOW + timedelta(hours=1), cause="e-3"),
        Revision(quality=0.4, reason="retried", at=NOW + timedelta(hours=2), cause="run-8"),
    ),
    recall_ids=("recall-1",),
    steps=(
        Step(event_id="e-1", event_type="worker.report.received", timestamp=NOW, record_id="record-1"),
        Step(event_id="e-2", event_type="worker.task.progress", timestamp=NOW),
    ),
    used=(UsedMemory(record_id="record-0", how="overlap", credit=0.5, recall_id="recall-1"),),
)
GATE = GateEvidence(state="trial", won=12, lost=5, tied=3, evidence=3.4123, harm=0.02, threshold=28.0)
STATUS = SonaStatus(
    user_id="alice",
    mode="auto",
    gate=GATE,
    trajectories=62,
    credited=51,
    exemplars=51,
    memories_with_credit=34,
    served={"baseline": 400, "learned": 17},
    gain=0.206,
    gain_low=0.01,
    gain_high=0.38,
    consolidated_at=NOW,
    state_bytes=1_230_000,
)


def changed(struct: Any, **fields: Any) -> Any:
    return msgspec.structs.replace(struct, **fields)


def words(text: str) -> str:
    return " ".join(text.split())


def test_a_run_is_a_row_with_the_reason_of_its_quality(capsys: pytest.CaptureFixture[str]) -> None:
    unknown = Trajectory(id="run-8", state="open")
    print_runs([RUN, unknown])
    title, columns, *rows = [words(line) for line in capsys.readouterr().out.splitlines()]
    assert (title, columns) == ("runs", "run began state quality used objective")
    assert rows == ["run-7 2026-11-21 10:00 UTC ended 0.4 (retried) 1 Fix the auth race", "run-8 - open - 0 -"]


def test_an_objective_is_shortened_to_one_line_without_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    print_runs([changed(RUN, objective="wipe \x1b[2J\nthe " + "very " * 40 + "end")])
    (row,) = capsys.readouterr().out.splitlines()[2:]
    assert "wipe �[2J the very" in row
    assert row.endswith("…")
    assert "end" not in row.removeprefix("run-7").replace("ended", "")


@pytest.mark.parametrize(
    ("run", "said"),
    [
        (Trajectory(id="r", state="open"), "-"),
        (
            changed(RUN, quality=0.9, revisions=(Revision(quality=0.9, reason="later_success", at=NOW),)),
            "later success",
        ),
        (changed(RUN, quality=0.0, revisions=(Revision(quality=0.0, reason="failed", at=NOW),)), "0 (failed)"),
    ],
)
def test_a_quality_comes_with_its_reason(run: Trajectory, said: str) -> None:
    assert said in quality_of(run)


def test_a_run_is_shown_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    print_run(RUN)
    shown = words(capsys.readouterr().out)
    assert "session s-17" in shown
    assert "recalls recall-1" in shown
    assert "2026-11-21 10:00 UTC worker.report.received record-1" in shown
    assert "2026-11-21 10:00 UTC worker.task.progress e-2" in shown
    assert "record-0 0.5 overlap recall-1" in shown
    assert "2026-11-21 11:00 UTC 0.8 completed e-3 2026-11-21 12:00 UTC 0.4 retried run-8" in shown


@pytest.mark.parametrize(
    ("gate", "said"),
    [
        (changed(GATE, state="shadow"), ["shadow: learning, but not changing answers yet; a trial requires 2 lessons"]),
        (GATE, ["trial: the learned ranking won 12 of 17 decided recalls; wealth 3.41 of 28 needed"]),
        (changed(GATE, threshold=56.0), ["wealth 3.41 of 56 needed", "opposite bet 0.02 of 20"]),
        (changed(GATE, state="on", harm=1.5), ["on: the learned ranking won 12 of 17", "opposite bet 1.5 of 20"]),
        (changed(GATE, state="off", won=3, lost=9, harm=21.5), ["off: ", "won 3 of 12", "opposite bet 21.5 of 20"]),
    ],
    ids=lambda value: getattr(value, "state", ""),
)
def test_the_gates_evidence_is_shown_in_words(gate: GateEvidence, said: list[str]) -> None:
    assert [part for part in said if part not in gate_sentence(gate, 1)] == []


def test_the_gain_is_shown_with_its_interval_once_there_is_one() -> None:
    assert gain_sentence(STATUS).startswith("+0.206 (95 %: +0.010 to +0.380)")
    assert gain_sentence(changed(STATUS, gain=-0.1, gain_low=None, gain_high=None)).startswith(
        "-0.100 relative to one half"
    )
    assert gain_sentence(changed(STATUS, gain=None)) == "unknown: no interleaved recall has been decided yet"


def test_the_status_shows_every_figure(capsys: pytest.CaptureFixture[str]) -> None:
    print_status(STATUS)
    shown = words(capsys.readouterr().out)
    for part in (
        "learning of alice",
        "mode auto: the gate decides",
        "trajectories 62; lessons with credit: 51",
        "recalls served baseline 400, learned 17",
        "measured gain +0.206",
        "learned from exemplars: 51; memories with credit: 34",
        "last consolidation 2026-11-21 10:00 UTC",
        "size 1.23 MB",
    ):
        assert part in shown
    print_status(changed(STATUS, consolidated_at=None))
    assert "last consolidation not yet" in words(capsys.readouterr().out)


def test_feedback_that_cannot_be_credited_is_listed_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    report = FeedbackReport(
        trajectory_id="run-7", credited=("m-1",), not_credited={"m-2": "was not shown"}, quality=1.0
    )
    print_report(report)
    assert capsys.readouterr().out == ("run run-7, quality 1: credited 1 memory\nnot credited: m-2: was not shown\n")
