"""The stores that everything starts from: each user's events brought in once, in this process.

A recall leaves traces that later ones rank by, and feedback is there to leave some; so no arm works on these folders,
only on copies (`copied`). What this does not do: ask, or learn.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memory_agent.embedders import Embedder
from memory_agent.evaluation.runs import Progress, opener
from memory_agent.layout import Layout
from memory_agent.settings import Settings
from memory_agent.storage.folders import user_folder

Events = Sequence[Mapping[str, Any]]

_BATCH = 64


@dataclass(frozen=True)
class Stores:
    """What was brought in: where it lies, and by user the id of the record that each event became."""

    folder: Path
    settings: Settings
    records: dict[str, dict[str, str]]


def bring_in(
    events: Mapping[str, Events], settings: Settings, folder: Path, embedder: Embedder, progress: Progress
) -> Stores:
    """Make memories of the events of each user, below `folder`. Events that make none have no record."""
    Layout(folder).create()
    total, done = sum(map(len, events.values())), 0
    records: dict[str, dict[str, str]] = {}
    for user_id, of_user in events.items():
        records[user_id] = {}
        with opener(settings, folder, embedder)(user_id) as memory:
            for start in range(0, len(of_user), _BATCH):
                report = memory.ingest(of_user[start : start + _BATCH])
                for record in memory.get(report.record_ids):
                    records[user_id][record.event_id or record.id] = record.id
                done += len(of_user[start : start + _BATCH])
                progress("bring in", done, total)
    return Stores(folder, settings, records)


@contextmanager
def copied(folder: Path, user_id: str) -> Iterator[Path]:
    """Give a folder with a copy of one user's store, which is closed; gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="memory-eval-") as name:
        shutil.copytree(user_folder(folder, user_id), user_folder(Path(name), user_id))
        yield Path(name)
