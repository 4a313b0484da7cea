"""Measures the time from a message's ack until the triggered block arrives at a subscriber.

One conductor subscribes to its user's blocks, from a real daemon with a filled store. Messages are sent one at a time,
with pauses, both while the daemon is idle and while it ingests 250 of the user's findings per second. For every second
text, a recall is measured instead. The difference is the cost of the path through the relay and the reactor.

To run only this benchmark: `python -m ops.bench --only triggers [--quick] [--json]`.
"""

from __future__ import annotations

import random
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from memory_agent import MemoryClient
from memory_agent.client import Blocks
from memory_agent.evaluation import temporary_daemon
from memory_agent.settings import Settings
from memory_agent.storage.folders import user_folder
from ops.bench.spread import percentile, spread
from ops.bench.texts import events, passages, queries
from relay import Publisher, relay_endpoints

EVENTS_PER_S = 250

_USER = "bench"
_TURNS = 3
_MESSAGES = 120
_WARM_UP = 20
_BATCH = 25
_PAUSE_S = (0.02, 0.06)
_PATIENCE_S = 5.0


def measure(store: Path) -> dict[str, Any]:
    """Return measurements taken while idle and under load; the filled store is not changed."""
    with temporary_daemon(Settings()) as data_dir:
        shutil.copytree(store, user_folder(data_dir, _USER))
        with (
            MemoryClient(_USER, data_dir=data_dir) as client,
            Publisher(relay_endpoints(data_dir).ingest) as publisher,
            client.blocks(role="conductor") as blocks,
        ):
            _answered(client, publisher, blocks, queries(_WARM_UP, seed=1))
            turns: dict[str, list[dict[str, list[float]]]] = {"idle": [], "ingesting": []}
            for turn in range(_TURNS):
                turns["idle"].append(_answered(client, publisher, blocks, queries(_MESSAGES, seed=500 + turn)))
                with _ingesting(data_dir, turn):
                    loaded = queries(_MESSAGES, seed=600 + turn)
                    turns["ingesting"].append(_answered(client, publisher, blocks, loaded))
            return {"events_per_s": EVENTS_PER_S} | {name: _figures(of_kind) for name, of_kind in turns.items()}


def _answered(client: MemoryClient, publisher: Publisher, blocks: Blocks, texts: list[str]) -> dict[str, list[float]]:
    """Return times in ms: from the ack to the block, if it arrived, and of a recall for every second text."""
    pauses = random.Random(len(texts))
    took: dict[str, list[float]] = {"block_ms": [], "recall_ms": []}
    for place, text in enumerate(texts):
        time.sleep(pauses.uniform(*_PAUSE_S))
        started_s = time.perf_counter()
        if place % 2:
            client.recall(text, profile="before_planning", context_tokens=512)
            took["recall_ms"].append((time.perf_counter() - started_s) * 1000)
            continue
        cause = publisher.publish({"event_type": "chat.user_msg", "user_id": _USER, "payload": {"text": text}})
        publisher.flush()
        acked_s = time.perf_counter()
        while (block := blocks.wait(_PATIENCE_S)) is not None and block.cause_event_id != cause:
            pass  # a late block, for an earlier message
        if block is not None:
            took["block_ms"].append((time.perf_counter() - acked_s) * 1000)
    return took


@contextmanager
def _ingesting(data_dir: Path, turn: int) -> Iterator[None]:
    """Publish the same user's findings at a steady rate inside the block."""
    stop = threading.Event()

    def publish() -> None:
        begun_s = time.monotonic()
        with Publisher(relay_endpoints(data_dir).ingest) as publisher:
            for batch in count():
                for event in events(passages(_BATCH, seed=10_000 * turn + batch), _USER, f"load-{turn}-{batch}"):
                    publisher.publish(event)
                due_s = begun_s + (batch + 1) * _BATCH / EVENTS_PER_S
                if stop.wait(max(0.0, due_s - time.monotonic())):
                    return

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _figures(turns: list[dict[str, list[float]]]) -> dict[str, Any]:
    figures: dict[str, Any] = {"messages": _TURNS * _MESSAGES // 2}
    for name in ("block_ms", "recall_ms"):
        pooled = [taken for turn in turns for taken in turn[name]]
        figures[name] = {
            "p50": spread([percentile(turn[name], 50) for turn in turns]),
            "p99": round(percentile(pooled, 99), 1),
            "count": len(pooled),
        }
    return figures
