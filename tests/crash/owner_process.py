"""The owner of the stores in the laboratory: ingests events from the journal as a host does, but without Ray.

    python -m tests.crash.owner_process DATA_DIR NOTES_FOLDER [--once] [--keys FOLDER]

The process reads from its cursor, passes each user's events to a `MemoryHost`, forgets one memory in eleven, and
commits the cursor. Occasionally it puts users to sleep, which saves their indexes. Before it continues, it records the
ids of each answer in one of three files in NOTES_FOLDER: `taken`, `doubtful` (deletion requested) or `deleted`
(deletion answered). It exits at the end of the journal with `--once`, or once the file NOTES_FOLDER/stop-owner exists.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import structlog

from memory_agent.daemon.host import MemoryHost
from memory_agent.errors import MemoryAgentError
from memory_agent.records.memories import IngestReport
from memory_agent.settings import Settings, StoreSettings
from memory_agent.verbs.params import IdsParams
from memory_agent.verbs.protocol import IngestBatch, decode_reply, encode
from relay import EncryptionSettings, JournalEntry, RelayError, Subscriber, read_event, relay_endpoints

from .events import is_to_be_forgotten
from .word_vectors import WordVectors

T = TypeVar("T")
BATCH = 48
PAUSE_S = 0.05
SLEEP_EVERY = 5
STORE = StoreSettings(
    map_size_bytes=256 << 20,
    reserve_bytes=64 << 10,
    exact_search_limit=20,  # builds a graph and its file for 20 or more memories
    takeover_after_s=0.2,
)


class Owner:
    """One run of the process."""

    def __init__(self, data_dir: Path, notes: Path, keys: str) -> None:
        self._notes = notes
        settings = Settings(store=STORE, encryption=EncryptionSettings(keys_folder=keys))
        self._host = MemoryHost(data_dir, settings, WordVectors())
        self._journal = Subscriber(*relay_endpoints(data_dir), consumer="memory", timeout_s=2.0)

    def run(self, *, once: bool) -> None:
        after = self._ask_cursor()
        batches = 0
        while True:
            is_last = once or (self._notes / "stop-owner").exists()
            entries = self._fetch(after)
            if not entries:
                if is_last:
                    break
                self._journal.wait(0.1)
                continue
            self._take_in(entries)
            after = entries[-1].seq
            self._commit(after)
            batches += 1
            if batches % SLEEP_EVERY == 0:
                self._host.sleep(entries[-1].user_id)
        self._host.close()
        self._journal.close()

    def _take_in(self, entries: list[JournalEntry]) -> None:
        by_user: defaultdict[str, list[tuple[int, bytes]]] = defaultdict(list)
        for entry in entries:
            by_user[entry.user_id].append((entry.seq, entry.data))
        for user_id, events in by_user.items():
            middle = (len(events) + 1) // 2
            first, second = tuple(events[:middle]), tuple(events[middle:])
            self._ingest(user_id, IngestBatch(events=first, ahead=second))
            if second:
                self._ingest(user_id, IngestBatch(events=second))

    def _ingest(self, user_id: str, batch: IngestBatch) -> None:
        report = self._insist(lambda: self._host.ingest(user_id, encode(batch)), IngestReport)
        assert not report.rejected, report
        ids = [read_event(data).event_id for _, data in batch.events]
        self._note("taken", ids)
        if report.kept == len(ids):  # all are new, so the ids are in the same order
            self._forget(user_id, dict(zip(ids, report.record_ids, strict=True)))

    def _forget(self, user_id: str, memories: dict[str, str]) -> None:
        chosen = {event_id: memory for event_id, memory in memories.items() if is_to_be_forgotten(event_id)}
        if chosen:
            self._note("doubtful", list(chosen))
            params = encode(IdsParams(ids=tuple(chosen.values())))
            self._insist(lambda: self._host.call(user_id, "forget", params, 60_000.0), int)
            self._note("deleted", list(chosen))

    def _insist(self, ask: Callable[[], bytes], type_: type[T]) -> T:
        """Retry until there is an answer, as a lane does; the next message reopens a failed store."""
        while True:
            try:
                return decode_reply(ask(), type_)
            except MemoryAgentError as error:
                if not error.retryable:
                    raise
                print(f"{datetime.now(UTC)} host: {error}", file=sys.stderr, flush=True)
                time.sleep(PAUSE_S)

    def _note(self, name: str, ids: list[str]) -> None:
        with (self._notes / name).open("a", encoding="utf-8") as file:
            file.writelines(f"{event_id}\n" for event_id in ids)
            file.flush()
            os.fsync(file.fileno())

    def _fetch(self, after: int) -> list[JournalEntry]:
        while True:
            try:
                return self._journal.fetch(after, BATCH).entries
            except RelayError as error:
                self._go_on_after(error)

    def _ask_cursor(self) -> int:
        while True:
            try:
                return self._journal.cursor()
            except RelayError as error:
                self._go_on_after(error)

    def _commit(self, seq: int) -> None:
        while True:
            try:
                self._journal.commit(seq)
                return
            except RelayError as error:
                self._go_on_after(error)

    def _go_on_after(self, error: RelayError) -> None:
        if not error.retryable:
            raise error
        print(f"{datetime.now(UTC)} relay: {error.code}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data_dir", type=Path)
    parser.add_argument("notes", type=Path)
    parser.add_argument("--once", action="store_true")
    parser.add_argument("--keys", default="", help="folder of the keys that the data is encrypted with")
    options = parser.parse_args()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    print("ready", flush=True)
    Owner(options.data_dir, options.notes, options.keys).run(once=options.once)


if __name__ == "__main__":
    main()
