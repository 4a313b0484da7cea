"""Measures ingest end to end, from the first publish until the last event is recallable, and the embedder alone.

Runs a real daemon, and a publisher in its own process (`memory-agent publish --wait`). The events are one user's
findings and average 34 tokens. Embedding dominates the time, so this process also embeds the same texts, through the
same lanes. The two measurements alternate, so that other load affects both alike. The processor times give an upper
bound on the ratio: with all cores busy, it is the embedder's share of the total processor time.

To run only this benchmark: `python -m ops.bench --only ingest [--json]`.
"""

from __future__ import annotations

import statistics
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from memory_agent import MemoryClient
from memory_agent.embedders import Embedder, open_embedder
from memory_agent.evaluation import publish_events, temporary_daemon
from memory_agent.settings import EmbedderSettings, Settings
from ops.bench.spread import ratios, spread
from ops.bench.texts import events, passages
from ops.bench.timing import timed_s
from ops.process_memory import process_tree

TARGET_SHARE = 0.85

_USER = "bench"
_EVENTS = 6_000
_TURNS = 6
_WARM_UP = 50
_TIMEOUT_S = 300.0


def measure(count: int = _EVENTS) -> dict[str, Any]:
    """Return the events/s and texts/s, their ratio, and each process's processor time per event."""
    embedder = open_embedder(EmbedderSettings(allow_download=False))
    try:
        with temporary_daemon(Settings()) as data_dir, tempfile.TemporaryDirectory() as scratch:
            file = Path(scratch) / "events.jsonl"
            _publish(passages(_WARM_UP, seed=99), "warm", data_dir, file)  # opens the memory and loads the model
            embedder.embed_texts(passages(_WARM_UP, seed=99))
            return _take_turns(embedder, data_dir, file, count // _TURNS)
    finally:
        embedder.close()


def _take_turns(embedder: Embedder, data_dir: Path, file: Path, count: int) -> dict[str, Any]:
    alone: list[float] = []
    through: list[float] = []
    tokens: list[int] = []
    before_s = _processor_s(data_dir)
    for turn in range(_TURNS):
        texts = passages(count, seed=turn)
        tokens += [embedder.count_tokens(text) for text in texts]
        alone.append(count / timed_s(embedder.embed_texts, texts)[0])
        through.append(count / _publish(texts, f"turn-{turn}", data_dir, file))
    shares = ratios(through, alone)
    return {
        "events": count * _TURNS,
        "tokens_mean": round(statistics.mean(tokens), 1),
        "events_per_s": spread(through, 0),
        "embedder_alone_per_s": spread(alone, 0),
        "share": spread(shares),
        "processor_ms": {
            part: round((used_s - before_s.get(part, 0.0)) * 1000 / (count * _TURNS), 3)
            for part, used_s in _processor_s(data_dir).items()
        },
        "target_share": TARGET_SHARE,
    }


def _processor_s(data_dir: Path) -> dict[str, float]:
    """Return the processor time used by each part of the daemon: embedder, relay, daemon, hosts, Ray."""
    with MemoryClient(_USER, data_dir=data_dir) as client:
        names = {part.pid: part.name for part in client.status().parts}
    daemon = next(pid for pid, name in names.items() if pid is not None and name == "daemon")
    used: Counter[str] = Counter()
    for process in process_tree(daemon):
        name = names.get(process.pid, "Ray")
        times = process.cpu_times()
        used[name if name in ("daemon", "relay", "embedder", "Ray") else "hosts"] += times.user + times.system
    return dict(used)


def _publish(texts: list[str], series: str, data_dir: Path, file: Path) -> float:
    """Publish one event per text; return the seconds until all events are recallable."""
    summary = publish_events(events(texts, _USER, series), file, data_dir, _TIMEOUT_S)
    assert summary.acknowledged == len(texts), summary
    assert summary.recallable_s is not None
    return summary.recallable_s
