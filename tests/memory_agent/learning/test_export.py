"""A maliciously crafted export is rejected and changes nothing."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from run_samples import begin, end, without_model

from memory_agent.errors import InvalidInputError
from memory_agent.learning.export import export_runs, framed, read_export
from memory_agent.storage.stored_runs import RecallNote, Shown, StoredRevision, StoredTrajectory

RECALL = "01KHJY9080NWG22H9Q8BBD7B80"
NOTES = {
    "vector": RecallNote(RECALL, 0, vector=b"odd"),
    "rank": RecallNote(RECALL, 0, ranks=(2, 0)),
    "place": RecallNote(RECALL, 0, shown=(Shown(1, place=2),), ranks=(2, 1)),
    "boost": RecallNote(RECALL, 0, ranks=(2, 1), boosts=(0, 100_000)),
    "boosts": RecallNote(RECALL, 0, ranks=(2, 1), boosts=(1,)),
}


def export(tmp_path: Path) -> bytes:
    with without_model(tmp_path / "source") as memory:
        memory.ingest([begin("run-1", 0), end("run-1", 5)])
        with memory._archive.store.snapshot() as snapshot:
            return export_runs(snapshot)


def spoilt(run: StoredTrajectory, kind: str) -> StoredTrajectory:
    if kind == "quality":
        return msgspec.structs.replace(run, revisions=(StoredRevision(7.0, "rated", 0),))
    return msgspec.structs.replace(run, ended_us=1 << 63)


@pytest.mark.parametrize("kind", ["quality", "time", *NOTES])
def test_an_export_with_figures_that_cannot_be_is_refused_and_the_memory_opens_again(tmp_path: Path, kind: str) -> None:
    ours = read_export(export(tmp_path))
    if kind in NOTES:
        bad = msgspec.structs.replace(ours, notes=[NOTES[kind]])
    else:
        bad = msgspec.structs.replace(ours, runs=[spoilt(run, kind) for run in ours.runs])
    for _ in range(2):
        with without_model(tmp_path / "target") as memory:
            with pytest.raises(InvalidInputError, match="data"):
                memory.sona.load(framed(bad))
            assert memory.runs.list() == []
