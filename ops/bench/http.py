"""Compares recalls over HTTP with recalls over ZeroMQ, both through one daemon with a filled store.

Protocols alternate in blocks, and no query is repeated. Latency is measured with one caller, and requests per second
with several. The verb `owner`, which the daemon answers from memory, shows the cost of the protocol itself. Callers are
threads of this process, each with its own connection (`http.client` or `MemoryClient`).

To run only this benchmark: `python -m ops.bench --only http [--quick] [--json]`.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from memory_agent import MemoryClient
from memory_agent.evaluation import temporary_daemon
from memory_agent.layout import Layout
from memory_agent.settings import Settings
from memory_agent.storage.folders import user_folder
from ops.bench.spread import latencies, spread
from ops.bench.texts import queries
from ops.bench.timing import milliseconds

CALLERS = 4

_USER = "bench"
_TURNS = 5
_QUESTIONS = 120
_OWNERS = 400
_WARM_UP = 30

Ask = Callable[[str], object]


def measure(store: Path) -> dict[str, Any]:
    """Return the measurements of both protocols; the filled store is not changed."""
    with temporary_daemon(Settings()) as data_dir, ExitStack() as stack:
        shutil.copytree(store, user_folder(data_dir, _USER))
        doors = {
            "zmq": [stack.enter_context(_over_zmq(data_dir)) for _ in range(CALLERS)],
            "http": [stack.enter_context(_over_http(data_dir)) for _ in range(CALLERS)],
        }
        for place, (recalls, _) in enumerate(callers[0] for callers in doors.values()):
            _took_ms(recalls, queries(_WARM_UP, seed=1 + place))
        alone: dict[str, list[list[float]]] = {name: [] for name in doors}
        owner: dict[str, list[list[float]]] = {name: [] for name in doors}
        rates: dict[str, list[float]] = {name: [] for name in doors}
        for turn in range(_TURNS):
            for place, (name, callers) in enumerate(doors.items()):
                seed = 1_000 + 10 * turn + place
                recall, asks_owner = callers[0]
                alone[name].append(_took_ms(recall, queries(_QUESTIONS, seed)))
                owner[name].append(_took_ms(asks_owner, [f"run-{number}" for number in range(_OWNERS)]))
                rates[name].append(_per_second([one for one, _ in callers], queries(_QUESTIONS * 2, seed + 500)))
        return {
            "callers": CALLERS,
            "recall": {name: latencies(turns) for name, turns in alone.items()},
            "owner": {name: latencies(turns) for name, turns in owner.items()},
            "per_s": {name: spread(found) for name, found in rates.items()},
        }


@contextmanager
def _over_zmq(data_dir: Path) -> Iterator[tuple[Ask, Ask]]:
    with MemoryClient(_USER, data_dir=data_dir) as client:
        yield client.recall, client.owner


@contextmanager
def _over_http(data_dir: Path) -> Iterator[tuple[Ask, Ask]]:
    layout = Layout(data_dir)
    connection = HTTPConnection(urlsplit(layout.http.read_text().strip()).netloc)
    headers = {"Authorization": f"Bearer {layout.token()}", "Content-Type": "application/json"}

    def post(verb: str, field: str, value: str) -> object:
        connection.request("POST", f"/v1/{verb}", json.dumps({"user_id": _USER, field: value}), headers)
        answer = connection.getresponse()
        body = answer.read()
        assert answer.status == 200, body
        return json.loads(body)

    yield partial(post, "recall", "query"), partial(post, "owner", "run_id")
    connection.close()


def _took_ms(ask: Ask, texts: list[str]) -> list[float]:
    return [milliseconds(ask, text) for text in texts]


def _per_second(asks: list[Ask], texts: list[str]) -> float:
    """Return the total requests per second of all callers; `texts` are divided among them."""
    parts = [texts[place :: len(asks)] for place in range(len(asks))]
    started_s = time.perf_counter()
    with ThreadPoolExecutor(len(asks)) as pool:
        list(pool.map(_took_ms, asks, parts))
    return len(texts) / (time.perf_counter() - started_s)
