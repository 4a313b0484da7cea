"""Measures the similarity of one request's wordings and of different requests, to set `learning.retry_similarity`.

    python -m ops.bench.retries FOLDER      FOLDER contains locomo_dev.json and airline_runs_dev.json

For airline runs, first messages of the same task are compared with first messages of different tasks. For LoCoMo,
questions with the same evidence are compared with other questions about the same conversation. Decision 0008 describes
the limits of this measurement.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from memory_agent.embedders import Embedder, open_embedder
from memory_agent.settings import EmbedderSettings

_COSINES = (0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9)
_ADVERSARIAL = 5  # LoCoMo's category of unanswerable questions

Asked = list[tuple[str, object]]
"""Requests, each with a key; wordings of the same request have equal keys."""


def main() -> None:
    """Print a table for each data set."""
    folder, embedder = Path(sys.argv[1]), open_embedder(EmbedderSettings(allow_download=False))
    try:
        for name, groups in (("airline", _airline(folder)), ("LoCoMo", _locomo(folder))):
            print("\n".join(_table(name, list(groups), embedder)))
    finally:
        embedder.close()


def _table(name: str, groups: Sequence[Asked], embedder: Embedder) -> Iterator[str]:
    same, other = _cosines(groups, embedder)
    yield f"\n{name}: {len(same)} pairs of the same request, {len(other)} of different requests\n"
    yield "| cosine | found | false |\n|---|---|---|"
    for cosine in _COSINES:
        yield f"| {cosine:.2f} | {np.mean(same >= cosine):.3f} | {np.mean(other >= cosine):.4f} |"


def _cosines(groups: Sequence[Asked], embedder: Embedder) -> tuple[Any, Any]:
    same: list[float] = []
    other: list[float] = []
    for asked in groups:
        vectors = np.asarray(embedder.embed_texts([text for text, _ in asked]), dtype=np.float32)
        for (one, (text, key)), (two, (text_too, key_too)) in combinations(enumerate(asked), 2):
            if text.split() != text_too.split():
                (same if key == key_too else other).append(float(vectors[one] @ vectors[two]))
    return np.array(same), np.array(other)


def _airline(folder: Path) -> Iterator[Asked]:
    runs = json.loads((folder / "airline_runs_dev.json").read_bytes())
    yield [
        (next(said["content"] for said in run["messages"] if said["role"] == "user"), run["task_id"]) for run in runs
    ]


def _locomo(folder: Path) -> Iterator[Asked]:
    for entry in json.loads((folder / "locomo_dev.json").read_bytes()):
        questions = [one for one in entry["qa"] if one.get("evidence") and one["category"] != _ADVERSARIAL]
        yield [(one["question"], frozenset(one["evidence"])) for one in questions]


if __name__ == "__main__":
    main()
