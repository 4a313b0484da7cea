"""Measures the cost of encryption for a memory (filling, recalls, opening, bytes on disk) and for the journal.

`python -m ops.bench.encryption` alternates between plain and encrypted runs, so that other load on the machine affects
both equally, and writes `ops/bench/encryption.md`. Memories are synthetic: they have the lengths of real events (mean
34 words, 5 % over 75) and the word frequencies of natural language, and their vectors form 300 clusters. Queries are
also synthetic, and are embedded before timing starts. Event ids are assigned by the emitter; they are ordered in a
plain store but not in an encrypted one.
"""

from __future__ import annotations

import functools
import statistics
import tempfile
import time
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

from memory_agent.care import encrypt_user
from memory_agent.embedders import Embedder, open_embedder
from memory_agent.memory import Memory
from memory_agent.records.embedded import Embedding
from memory_agent.records.memories import MemoryRecord
from memory_agent.settings import EmbedderSettings, Settings, StoreSettings
from memory_agent.storage.archive import Archive
from memory_agent.storage.derived import COLUMNS_FILE, GRAPH_FILE
from memory_agent.storage.environment import UserKey
from ops.bench import encrypted_journal
from ops.bench.machine import describe_machine, load_per_core
from ops.bench.spread import Spread, spread
from ops.bench.timing import timed_s
from relay import EncryptionSettings
from relay.crypto import KeyRing

ROUNDS = 3
MEMORIES = 10_000
ALONE = 50
BATCH = 100
QUERIES = 100
PAGE = Path(__file__).with_name("encryption.md")

_NDIM = 384
_START = datetime(2026, 1, 1, tzinfo=UTC)
_STOP_WORDS = [
    "the",
    "a",
    "of",
    "to",
    "and",
    "in",
    "is",
    "it",
    "for",
    "with",
    "on",
    "that",
    "this",
    "was",
    "we",
    "you",
    "not",
]

Figures = dict[str, dict[str, Spread]]
"""Measurements with their ranges, under `plain` and `encrypted`."""

_MEANINGS = {
    "ingest_per_s": "memories/s ingested in batches of 100, columns included",
    "ingest_cpu_us": "processor time per memory, us",
    "commit_ms": "one memory, durable, ms",
    "recall_p50_ms": "hybrid recall with an embedded query, p50, ms",
    "recall_cpu_ms": "processor time per recall, ms",
    "open_ms": "reopening a closed memory, ms",
    "rebuild_s": "rebuilding the columns, s",
    "records_bytes": "records with vectors, bytes per memory",
    "columns_bytes": "columns, bytes per memory",
    "graph_bytes": "graph, bytes per memory",
    "encrypt_s": "`memory-agent encrypt`, s",
    "append_per_s": "events/s appended to the journal, in transactions of 100",
    "append_cpu_us": "processor time per event appended, us",
    "read_per_s": "events/s read from the journal",
    "read_cpu_us": "processor time per event read, us",
    "bytes_per_event": "bytes in the journal per event of 1 KB",
    "convert_per_s": "events/s converted by `memory-agent encrypt`",
}


def measure(rounds: int = ROUNDS, memories: int = MEMORIES) -> Figures:
    """Measure a plain and an encrypted memory; the keys are those of `_MEANINGS`, except those for the journal."""
    samples: dict[str, dict[str, list[float]]] = {kind: defaultdict(list) for kind in ("plain", "encrypted")}
    texts = _SyntheticTexts(seed=2)
    records = [_record(number, texts.draw()) for number in range(memories + ALONE)]
    embedder = open_embedder(EmbedderSettings(allow_download=False))
    try:
        for _ in range(rounds):
            for kind, found in samples.items():
                with tempfile.TemporaryDirectory(prefix="bench-encryption-") as scratch:
                    _Round(Path(scratch), embedder, found, is_encrypted=kind == "encrypted").run(records)
    finally:
        embedder.close()
    return {kind: {name: spread(values) for name, values in found.items()} for kind, found in samples.items()}


class _SyntheticVectors:
    """Draws unit vectors from 300 clusters of rank 32, with noise in all directions."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._centres = self._rng.normal(size=(300, _NDIM))
        self._spreads = 0.35 * self._rng.normal(size=(300, 32, _NDIM)).astype(np.float32)

    def draw(self, count: int, seed: int | None = None) -> Embedding:
        rng = self._rng if seed is None else np.random.default_rng(seed)
        topics = rng.integers(300, size=count)
        within = np.stack([rng.normal(size=32) @ self._spreads[topic] for topic in topics])
        vectors = self._centres[topics] + within + 0.3 * rng.normal(size=(count, _NDIM))
        units: Embedding = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
        return units


@functools.cache
def _made_up_words() -> list[str]:
    letters = np.random.default_rng(0)
    return ["".join(letters.choice(list("aeioulnrstdmkp"), letters.integers(3, 10))) for _ in range(20_000)]


class _SyntheticTexts:
    """Draws texts in which 30 % of the words are stop words and the others follow Zipf's law."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._words = _made_up_words()
        weights = 1 / np.arange(10, 20_010)
        self._weights = weights / weights.sum()

    def draw(self, words: int | None = None) -> str:
        length = words or int(np.clip(self._rng.lognormal(3.3, 0.65), 5, 400))
        rare = self._rng.choice(len(self._words), length, p=self._weights)
        stop = self._rng.integers(len(_STOP_WORDS), size=length)
        is_stop = self._rng.random(length) < 0.3
        return " ".join(
            _STOP_WORDS[s] if common else self._words[r] for r, s, common in zip(rare, stop, is_stop, strict=True)
        )


def _record(number: int, text: str) -> MemoryRecord:
    return MemoryRecord(
        id=f"01JM{number:022d}",
        event_id=f"event-{number:08d}",
        text=text,
        source="worker_result",
        kind="finding" if number % 3 else "episode",
        timestamp=_START + timedelta(minutes=number),
        session_id=f"session-{number // 30:06d}",
        run_id=f"run_{number // 10}",
        agent_id=f"worker:{number % 7}",
        quality_score=None if number % 4 else 0.8,
        tags=("auth",) if number % 10 == 0 else (),
        metadata={"event_type": "worker.report.received"},
    )


class _Round:
    """One round: fills a memory, recalls from it, reopens it, and measures its files."""

    def __init__(self, scratch: Path, embedder: Embedder, found: dict[str, list[float]], *, is_encrypted: bool) -> None:
        self._folder = scratch / "user"
        self._embedder = embedder
        self._found = found
        self._key = UserKey(KeyRing(scratch / "keys"), "user")
        self._is_encrypted = is_encrypted
        self._settings = StoreSettings()
        self._keys_folder = str(scratch / "keys") if is_encrypted else ""

    def run(self, records: list[MemoryRecord]) -> None:
        count = len(records) - ALONE
        self._settings = StoreSettings(exact_search_limit=max(count // 2, 1))  # low enough that a graph is built
        self._fill(records, count)
        self._ask()
        for name, path in (("records", "records/data.mdb"), ("columns", COLUMNS_FILE), ("graph", GRAPH_FILE)):
            self._found[f"{name}_bytes"].append((self._folder / path).stat().st_blocks * 512 / len(records))
        if not self._is_encrypted:
            took_s, _ = timed_s(
                lambda: encrypt_user(self._folder, Settings(store=self._settings), self._key, lambda *_: None)
            )
            self._found["encrypt_s"].append(took_s)

    def _fill(self, records: list[MemoryRecord], count: int) -> None:
        vectors = _SyntheticVectors(seed=1).draw(len(records))
        archive = Archive.open(self._folder, self._settings, "library", self._key if self._is_encrypted else None)

        def put(first: int, last: int) -> None:
            with archive.batch() as batch:
                batch.set_stamp(self._embedder.info.stamp)
                for number in range(first, last):
                    batch.put(records[number], vectors[number])

        took_s, cpu_s = timed_s(lambda: [put(at, at + BATCH) for at in range(0, count, BATCH)])
        self._found["ingest_per_s"].append(count / took_s)
        self._found["ingest_cpu_us"].append(cpu_s / count * 1e6)
        took_s, _ = timed_s(lambda: [put(at, at + 1) for at in range(count, len(records))])
        self._found["commit_ms"].append(took_s / ALONE * 1000)
        archive.close()

    def _ask(self) -> None:
        started_s = time.perf_counter()
        with Memory.open(
            self._folder,
            user_id="user",
            embedder=self._embedder,
            store_settings=self._settings,
            encryption_settings=EncryptionSettings(keys_folder=self._keys_folder),
        ) as memory:
            self._found["open_ms"].append((time.perf_counter() - started_s) * 1000)
            texts = _SyntheticTexts(seed=3)
            queries = [texts.draw(words=8) for _ in range(QUERIES)]
            for query in queries:
                memory.recall(query, now=_START)
            timed = [timed_s(memory.recall, query, now=_START) for query in queries]
            self._found["recall_p50_ms"].append(statistics.median(took_s for took_s, _ in timed) * 1000)
            self._found["recall_cpu_ms"].append(statistics.mean(cpu_s for _, cpu_s in timed) * 1000)
            took_s, _ = timed_s(memory.care.rebuild)
            self._found["rebuild_s"].append(took_s)


def page(figures: Figures, now: datetime) -> str:
    """Return the contents of encryption.md."""
    machine = describe_machine()
    lines = [
        "# Cost of encryption",
        "",
        f"Measured on {now.date().isoformat()} with `python -m ops.bench.encryption` on {machine['processor']} with",
        f"{machine['cores']} cores; the load at the end was {load_per_core()} per core.",
        f"Values are medians of {ROUNDS} rounds (minimum to maximum),",
        f"alternating plain and encrypted, with one user's {MEMORIES:,} memories and events of 1 KB.",
        "",
        "| measurement | plain | encrypted | encrypted / plain |",
        "|---|---|---|---|",
    ]
    for name, meaning in _MEANINGS.items():
        plain, encrypted = (figures[kind].get(name) for kind in ("plain", "encrypted"))
        times = f"{encrypted['median'] / plain['median']:.2f}" if plain and encrypted else ""
        lines.append(f"| {meaning} | {_cell(plain)} | {_cell(encrypted)} | {times} |")
    return "\n".join(lines) + "\n"


def _cell(figure: Spread | None) -> str:
    if figure is None:
        return ""
    digits = 0 if figure["median"] >= 100 else 2
    median, least, most = (f"{figure[name]:,.{digits}f}" for name in ("median", "least", "most"))
    return f"{median} ({least} to {most})"


def main() -> None:
    """Measure the memory and the journal, and write encryption.md."""
    memory, journal = measure(), encrypted_journal.measure(rounds=ROUNDS)
    PAGE.write_text(page({kind: memory[kind] | journal[kind] for kind in memory}, datetime.now(UTC)), encoding="utf-8")
    print(PAGE.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
