"""Embedding: texts per second and milliseconds per query, ours beside what is commonly done, in one run.

The common default is measured as the most used peer does it: float32, every text padded to 256 tokens, batches of 32,
the engine's default session (all cores, spinning). It gets our fused graph, which is faster than the one it ships.
The kinds take turns, so that a busy machine hits all of them; medians over the turns, with the range beside them.

Run alone: `python -m ops.bench.embedding`.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnxruntime

from memory_agent.config import EmbedderSettings
from memory_agent.embedders.cache import obtain
from memory_agent.embedders.lanes import LanedEmbedder, usable_cores
from memory_agent.embedders.minilm import MiniLM
from memory_agent.embedders.weights import cache_folder

_TURNS = 4
_TEXTS = 64
_PADDED_TEXTS = 32
_QUERIES = 20
_PADDED_QUERIES = 4
_SETTINGS = EmbedderSettings(allow_download=False)
_TARGET_PADDED = 15.0
_TARGET_FLOAT32 = 2.0

_WORDS = (
    "the agent fixed session token retry worker failed deploy index query memory after before when lock thread report "
    "finding patch rollback review approved timeout cache schema migration user asked for a to of and in"
)

Run = Callable[[list[str]], object]


class _Padded:
    """float32 as the most used peer runs it."""

    def __init__(self, model: MiniLM, graph: Path | bytes) -> None:
        self._encode = model.encode
        self._session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])

    def __call__(self, texts: list[str]) -> None:
        for start in range(0, len(texts), 32):
            rows = [self._encode(text)[0] for text in texts[start : start + 32]]
            ids = np.zeros((len(rows), 256), dtype=np.int32)
            mask = np.zeros_like(ids)
            for number, row in enumerate(rows):
                ids[number, : len(row)] = row
                mask[number, : len(row)] = 1
            self._session.run(None, {"input_ids": ids, "attention_mask": mask})

    def each(self, texts: list[str]) -> None:
        """Embed one text at a time, as queries come."""
        for text in texts:
            self([text])


def measure() -> dict[str, Any]:
    """Return the figures of one run; about half a minute."""
    with tempfile.TemporaryDirectory() as folder:  # the float32 graph has 90 MB: not into the user's cache
        int8 = obtain(msgspec.structs.replace(_SETTINGS, scheme="int8"), cache_folder())
        float32 = obtain(msgspec.structs.replace(_SETTINGS, scheme="float32"), Path(folder))
        small, large = MiniLM(int8, 256), MiniLM(float32, 256)
        padded = _Padded(large, float32.graph)
        lanes = LanedEmbedder(small, bulk_niceness=0)  # all at one priority: engines are compared, not manners
        try:
            return _report(_take_turns(small, large, padded, lanes), small)
        finally:
            lanes.close()


def _take_turns(
    small: MiniLM, large: MiniLM, padded: _Padded, lanes: LanedEmbedder
) -> dict[str, tuple[list[float], list[float]]]:
    """Return for each kind the texts/s and the ms/query of each turn."""
    kinds: dict[str, tuple[Run, Run, int, int]] = {
        "int8, bulk lane": (lanes.embed_texts, lambda t: [lanes.embed_query(x) for x in t], _TEXTS * 4, _QUERIES),
        "int8, one thread": (_one_by_one(small), _one_by_one(small), _TEXTS, _QUERIES),
        "float32, one thread": (_one_by_one(large), _one_by_one(large), _TEXTS, _QUERIES),
        "float32, padded to 256": (padded, padded.each, _PADDED_TEXTS, _PADDED_QUERIES),
    }
    figures: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in kinds}
    for turn in range(_TURNS + 1):
        for name, (bulk, query, count, asked) in kinds.items():
            texts = _texts(count, seed=turn)
            queries = [f"fix the bug in the auth module {turn} {number}" for number in range(asked)]
            per_s, per_ms = count / _seconds(bulk, texts), _seconds(query, queries) * 1000 / asked
            if turn:  # the first one warms up
                figures[name][0].append(per_s)
                figures[name][1].append(per_ms)
    return figures


def _report(figures: dict[str, tuple[list[float], list[float]]], model: MiniLM) -> dict[str, Any]:
    per_s = {name: statistics.median(rates) for name, (rates, _) in figures.items()}
    tokens = [model.count_tokens(text) + 2 for text in _texts(_TEXTS * 4, seed=1)]
    return {
        "cores": usable_cores(),
        "stamp": model.info.stamp,
        "tokens_mean": round(statistics.mean(tokens), 1),
        "kinds": {
            name: {"texts_per_s": _spread(rates), "query_ms": _spread(milliseconds)}
            for name, (rates, milliseconds) in figures.items()
        },
        "ratios": {
            "bulk lane / padded": _ratio(per_s["int8, bulk lane"] / per_s["float32, padded to 256"], _TARGET_PADDED),
            "int8 / float32, one thread each": _ratio(
                per_s["int8, one thread"] / per_s["float32, one thread"], _TARGET_FLOAT32
            ),
        },
    }


def _one_by_one(model: MiniLM) -> Run:
    return lambda texts: [model.embed(text) for text in texts]


def _seconds(run: Run, texts: list[str]) -> float:
    start = time.perf_counter()
    run(texts)
    return time.perf_counter() - start


def _texts(count: int, seed: int) -> list[str]:
    """Return texts as long as turns of dialogue are: mean 34 tokens, one in twenty over 80. None comes twice."""
    rng = np.random.default_rng(seed)
    lengths = np.clip(rng.lognormal(3.25, 0.6, count), 3, 240).astype(int)
    return [f"{seed} {i} " + " ".join(rng.choice(_WORDS.split(), length)) for i, length in enumerate(lengths)]


def _spread(values: list[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(values), 2),
        "least": round(min(values), 2),
        "most": round(max(values), 2),
    }


def _ratio(value: float, target: float) -> dict[str, Any]:
    return {"value": round(value, 2), "target": target, "met": value >= target}


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))
