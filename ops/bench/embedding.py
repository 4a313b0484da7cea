"""Compares our engine's embedding throughput and query latency with those of a common baseline.

The baseline is configured like the most widely used library: float32, every text padded to 256 tokens, batches of 32,
and the engine's default session (all cores, spinning). It runs our fused graph, which is faster than the library's
graph. Variants alternate, so other load affects them equally. Results are medians over the turns, with ranges.

To run only this benchmark: `python -m ops.bench --only embedding [--json]`.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnxruntime

from memory_agent.embedders.cache import obtain
from memory_agent.embedders.lanes import LanedEmbedder, usable_cores
from memory_agent.embedders.minilm import MiniLM
from memory_agent.embedders.weights import cache_folder
from memory_agent.settings import EmbedderSettings
from ops.bench.spread import spread
from ops.bench.timing import timed_s

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
    """The float32 model, configured as the most widely used library configures it."""

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
        """Embed the texts one at a time, like queries."""
        for text in texts:
            self([text])


def measure() -> dict[str, Any]:
    """Measure all variants once, in about half a minute."""
    with tempfile.TemporaryDirectory() as folder:  # keep the float32 graph (90 MB) out of the user's cache
        int8 = obtain(msgspec.structs.replace(_SETTINGS, scheme="int8"), cache_folder())
        float32 = obtain(msgspec.structs.replace(_SETTINGS, scheme="float32"), Path(folder))
        small, large = MiniLM(int8, 256), MiniLM(float32, 256)
        padded = _Padded(large, float32.graph)
        lanes = LanedEmbedder(small, bulk_niceness=0)  # the same priority for all variants
        try:
            return _report(_take_turns(small, large, padded, lanes), small)
        finally:
            lanes.close()


@dataclass
class _Kind:
    """One variant and its measurements, one per turn."""

    bulk: Run
    query: Run
    texts: int
    queries: int = _QUERIES
    texts_per_s: list[float] = field(default_factory=list)
    cpu_ms_per_text: list[float] = field(default_factory=list)
    query_ms: list[float] = field(default_factory=list)

    def take_turn(self, turn: int, *, noted: bool) -> None:
        texts = _texts(self.texts, seed=turn)
        wall_s, cpu_s = timed_s(self.bulk, texts)
        query_s, _ = timed_s(self.query, [f"fix the bug in the auth module {turn} {i}" for i in range(self.queries)])
        if noted:
            self.texts_per_s.append(self.texts / wall_s)
            self.cpu_ms_per_text.append(cpu_s * 1000 / self.texts)
            self.query_ms.append(query_s * 1000 / self.queries)

    def figures(self) -> dict[str, Any]:
        return {
            "texts_per_s": spread(self.texts_per_s),
            "cpu_ms_per_text": spread(self.cpu_ms_per_text),
            "query_ms": spread(self.query_ms),
        }


def _take_turns(small: MiniLM, large: MiniLM, padded: _Padded, lanes: LanedEmbedder) -> dict[str, _Kind]:
    kinds = {
        "int8, bulk lane": _Kind(lanes.embed_texts, lambda t: [lanes.embed_query(x) for x in t], _TEXTS * 4),
        "int8, one thread": _Kind(_one_by_one(small), _one_by_one(small), _TEXTS),
        "float32, one thread": _Kind(_one_by_one(large), _one_by_one(large), _TEXTS),
        "float32, padded to 256": _Kind(padded, padded.each, _PADDED_TEXTS, _PADDED_QUERIES),
    }
    for turn in range(_TURNS + 1):
        for kind in kinds.values():
            kind.take_turn(turn, noted=turn > 0)  # the first turn is a warm-up
    return kinds


def _report(kinds: dict[str, _Kind], model: MiniLM) -> dict[str, Any]:
    tokens = [model.count_tokens(text) + 2 for text in _texts(_TEXTS * 4, seed=1)]
    lane, alone, float32, padded = kinds.values()
    return {
        "cores": usable_cores(),
        "stamp": model.info.stamp,
        "tokens_mean": round(statistics.mean(tokens), 1),
        "kinds": {name: kind.figures() for name, kind in kinds.items()},
        "ratios": {
            "bulk lane / padded": _compare(lane, padded, _TARGET_PADDED),
            "int8 / float32, one thread each": _compare(alone, float32, _TARGET_FLOAT32),
        },
    }


def _compare(ours: _Kind, other: _Kind, target: float) -> dict[str, Any]:
    """Compare by throughput and by processor time, which is less affected by other programs."""
    return {
        "by_throughput": round(statistics.median(ours.texts_per_s) / statistics.median(other.texts_per_s), 2),
        "by_processor_time": round(
            statistics.median(other.cpu_ms_per_text) / statistics.median(ours.cpu_ms_per_text), 2
        ),
        "target": target,
    }


def _one_by_one(model: MiniLM) -> Run:
    return lambda texts: [model.embed(text) for text in texts]


def _texts(count: int, seed: int) -> list[str]:
    """Return distinct texts with the lengths of dialogue turns: 34 tokens on average, 5 % with over 80."""
    rng = np.random.default_rng(seed)
    lengths = np.clip(rng.lognormal(3.25, 0.6, count), 3, 240).astype(int)
    return [f"{seed} {i} " + " ".join(rng.choice(_WORDS.split(), length)) for i, length in enumerate(lengths)]
