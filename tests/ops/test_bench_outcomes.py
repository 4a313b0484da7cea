"""Test the page on outcomes: if outcomes are known, successful runs come first; shuffled outcomes are a control."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from memory_agent.embedders import open_embedder
from memory_agent.errors import InvalidInputError
from memory_agent.settings import EmbedderSettings
from ops.bench.outcomes import measure
from ops.lab.airline import RecordedRun
from ops.lab.planning import RunFigures
from ops.lab.stores import CachingEmbedder
from ops.lab.swe_runs import read_swe_runs

WISHES = ("cancel my flight to Oslo", "change the seat on my flight", "add a bag to my booking", "refund my ticket")
WORDINGS = ("Please {}", "I want to {}", "Can you {} today")


def runs() -> list[RecordedRun]:
    """Return three runs of each task; the last one succeeded."""
    return [
        RecordedRun(
            task=task,
            trial=trial,
            succeeded=trial == 2,
            request=wording.format(wish),
            steps=(("worker.report.received", f"Looked up what it takes to {wish}"),),
            ending=f"Done: {wish}, {task}-{trial}",
        )
        for task, wish in enumerate(WISHES)
        for trial, wording in enumerate(WORDINGS)
    ]


def test_weights_move_successful_runs_forward_and_the_control_has_each_request_in_each_shuffle() -> None:
    embedder = open_embedder(EmbedderSettings(allow_download=False))
    found = measure(runs(), CachingEmbedder(embedder), weights=(0.0, 0.4), shuffles=2)
    embedder.close()
    off, shipped, shuffled = found.values()
    assert list(found) == ["weight 0.0", "weight 0.4, shipped", "weight 0.4, shuffled"]
    assert (len(off), len(shipped), len(shuffled)) == (12, 12, 24)
    first, same = RunFigures._fields.index("succeeded_1"), RunFigures._fields.index("same_task_1")
    assert shipped[:, first].mean() > off[:, first].mean() + 0.2
    assert shipped[:, same].mean() >= off[:, same].mean()


def test_a_run_on_an_issue_is_its_begin_its_thoughts_and_whether_it_was_resolved(tmp_path: Path) -> None:
    steps = [
        {"thought": " Look at it. "},
        {"thought": None, "command": "ls"},
        {"thought": "x" * 200},
        {"thought": "Ok"},
    ]
    entry = {"instance_id": "a__b-1", "resolved": True, "task": "Title\n" + "y" * 2_000, "steps": steps}
    file = tmp_path / "runs.json"
    file.write_text(json.dumps([entry, entry | {"instance_id": "a__b-2", "steps": []}, entry | {"resolved": False}]))
    one, other, again = read_swe_runs(file)
    assert (one.task, other.task, again.task) == (0, 1, 0)
    assert (one.run_id, again.run_id) == ("task-0-trial-0", "task-0-trial-1")
    assert (one.succeeded, again.succeeded) == (True, False)
    assert [text for _, text in one.steps] == ["Look at it.", "x" * 200, "Ok"]
    assert (one.ending, other.ending) == ("x" * 200, "The run ended.")
    assert (one.request[:6], len(one.request)) == ("Title\n", 1_500)


def test_a_file_that_holds_no_runs_is_refused(tmp_path: Path) -> None:
    (tmp_path / "runs.json").write_text('[{"instance_id": "a"}]')
    with pytest.raises(InvalidInputError, match="is not a file of runs"):
        read_swe_runs(tmp_path / "runs.json")
    with pytest.raises(InvalidInputError, match="cannot be read"):
        read_swe_runs(tmp_path / "absent.json")
