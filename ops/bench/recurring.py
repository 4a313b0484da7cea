"""Measures what recall shows and how many runs the learner can credit if requests recur in nearly the same words.

There are 60 runs: 6 requests, each in 10 wordings. The store has 1,000 other memories; three findings answer each
request. Each run recalls first, is then published as a conductor would publish it (the user's words, its start, its
end), and names the findings that it was shown. For each recall, the findings, the ends of earlier runs and the earlier
requests among the first five memories are counted. At the end, the runs that the learner could credit are counted.
Everything is measured with learning off, and with learning on from the first run. To run only this benchmark: `python
-m ops.bench.recurring`.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal, NamedTuple

from memory_agent import Memory
from memory_agent.embedders import Embedder, open_embedder
from memory_agent.records.memories import MemoryRecord, RecallResult
from memory_agent.settings import EmbedderSettings, LearningSettings
from ops.bench.texts import events, passages

RUNS = 60
_OTHERS = 1_000
_TOP_K = 5
_START = datetime(2026, 5, 4, 8, tzinfo=UTC)
_SESSION = 3  # runs per session
_BATCH = 250


class _Work(NamedTuple):
    """A recurring request: its text, the findings that answer it, and its runs' final message."""

    wish: str
    findings: tuple[str, ...]
    ending: str


_WORKS = (
    _Work(
        "check why the nightly backup of the orders database failed",
        (
            "pg_dump stops when /var/lib has less than 4 GB left; prune snapshots older than a week, then resume",
            "The backup job of the orders database needs the replica, not the primary: set BACKUP_HOST=db-2",
            "A failed nightly backup leaves its lock in /run/backup.lock, and the next one refuses to begin",
        ),
        "Pruned the snapshots, removed the lock and ran the backup by hand: {} GB written",
    ),
    _Work(
        "reconcile the bank statement with the ledger",
        (
            "Statement lines in foreign currency match the ledger only at the rate of the booking day",
            "Card fees arrive a day late: book them to account 6855 before the ledger is compared",
            "The bank exports the statement in latin-1, the ledger import expects utf-8",
        ),
        "All but {} lines matched; the rest were card fees and are booked",
    ),
    _Work(
        "renew the certificate of the staging gateway",
        (
            "The gateway reads a certificate only when it starts: reload is not enough, restart the pod",
            "On staging the zone internal.test answers the DNS challenge; its token is in the vault under dns/stage",
            "Certificates for staging come from the second issuer, the first one refuses wildcard names",
        ),
        "Certificate renewed through the second issuer, valid for {} days; pod restarted",
    ),
    _Work(
        "prepare the sales report for week {}",
        (
            "Returns are booked on Mondays, so a sales report that is made before noon shows too much",
            "The north region's figures come by mail and are missing in the warehouse table: ask Ingrid",
            "The sales report wants net amounts; the view sales_gross has VAT in it, use sales_net",
        ),
        "Report sent with net amounts and the mailed figures, {} returns taken off",
    ),
    _Work(
        "clean up the flaky tests of the checkout service",
        (
            "Checkout tests share one Redis database; give each worker its own number with REDIS_DB",
            "test_expired_cart depends on the clock of the host: freeze it, or it fails around midnight",
            "The flaky ones among the checkout tests are listed by the retry plugin in build/retries.xml",
        ),
        "{} tests repaired: a Redis number for each worker, the clock frozen; none was skipped",
    ),
    _Work(
        "update the price list of the web shop",
        (
            "Prices in the shop are cached for six hours; call /admin/cache/flush after an import",
            "The supplier's price list has decimal commas: convert them, or 12,50 becomes 1250",
            "Articles without a tax class are skipped by the price import without a word",
        ),
        "{} prices imported after the commas were converted, cache flushed",
    ),
)

_WORDINGS = (
    "Please {}",
    "Can you {}?",
    "{} again, please",
    "Time to {} once more",
    "We need you to {}",
    "Could you please {} today?",
    "{}",
    "Hi, please {} now",
    "I want you to {} as usual",
    "Go ahead and {}",
)


class Shown(NamedTuple):
    """Counts among an answer's memories. `first` is 1 / the rank of the first finding, or 0 if there is none."""

    findings: int
    endings: int
    requests: int
    others: int
    first: float


def measure(mode: Literal["off", "on"], embedder: Embedder, top_k: int = _TOP_K) -> dict[str, Any]:
    """Return the mean counts for all runs except each request's first, and the number of credited runs."""
    learning = LearningSettings(mode=mode)
    with (
        tempfile.TemporaryDirectory(prefix="bench-recurring-") as folder,
        Memory.open(Path(folder) / "user", embedder=embedder, learning_settings=learning) as memory,
    ):
        lived = list(_lived(memory, top_k))
        used = sum(bool(run.used) for run in memory.runs.list("ended", limit=RUNS))
    later = lived[len(_WORKS) :]
    figures = {field: sum(getattr(shown, field) for shown in later) / len(later) for field in Shown._fields}
    return {name: round(value, 3) for name, value in figures.items()} | {"credited": used, "runs": RUNS}


def _lived(memory: Memory, top_k: int) -> Iterator[Shown]:
    """Replay the runs, one per hour, and yield the counts of each run's recall."""
    others = events(passages(_OTHERS, seed=11), "user", "others")
    for start in range(0, _OTHERS, _BATCH):
        memory.ingest(others[start : start + _BATCH])
    answers = {work: [memory.remember(finding, now=_START).id for finding in work.findings] for work in _WORKS}
    for number in range(RUNS):
        work = _WORKS[number % len(_WORKS)]
        words = _WORDINGS[number // len(_WORKS) % len(_WORDINGS)].format(work.wish.format(number))
        now = _START + timedelta(hours=number + 1)
        result = memory.recall(words, top_k, now=now, deadline_ms=60_000, min_relevance=0.0)
        used = [found.record.id for found in result.memories if found.record.id in answers[work]]
        memory.ingest(list(_run(number, work, words, result.recall_id, used, now)))
        yield _shown(result, answers[work])


def _run(
    number: int, work: _Work, words: str, recall_id: str, used: Sequence[str], now: datetime
) -> Iterator[dict[str, Any]]:
    """Yield a run's events: the user's message, the start and the end."""
    payloads: list[tuple[str, dict[str, Any]]] = [
        ("chat.user_msg", {"text": words}),
        ("conductor.run.started", {"objective": words, "recall_ids": [recall_id]}),
        ("conductor.run.completed", {"summary": work.ending.format(number + 7), "memory_ids": list(used)}),
    ]
    for place, (event_type, payload) in enumerate(payloads):
        run = {} if event_type == "chat.user_msg" else {"run_id": f"recurring-{number}"}
        yield {
            "event_id": f"recurring-{number}-{place}",
            "event_type": event_type,
            "timestamp": (now + timedelta(minutes=place)).isoformat(),
            "user_id": "user",
            "session_id": f"recurring-{number // _SESSION}",
            "payload": payload | run,
        }


def _shown(result: RecallResult, answers: Sequence[str]) -> Shown:
    records = [found.record for found in result.memories]
    places = [place for place, record in enumerate(records, 1) if record.id in answers]
    endings, requests = sum(map(_is_ending, records)), sum(map(_is_request, records))
    others = len(records) - len(places) - endings - requests
    return Shown(len(places), endings, requests, others, 1 / places[0] if places else 0.0)


def _is_request(record: MemoryRecord) -> bool:
    return record.metadata.get("event_type") in ("chat.user_msg", "conductor.run.started")


def _is_ending(record: MemoryRecord) -> bool:
    return record.metadata.get("event_type") == "conductor.run.completed"


def main() -> None:
    """Print the measurements as JSON, with learning off and on, for answers of 5 and of 25 memories."""
    embedder = open_embedder(EmbedderSettings(allow_download=False))
    try:
        for top_k in (_TOP_K, 25):
            for mode in ("off", "on"):
                print(json.dumps({"top_k": top_k, "learning": mode} | measure(mode, embedder, top_k)), flush=True)
    finally:
        embedder.close()


if __name__ == "__main__":
    main()
