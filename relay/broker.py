"""The relay: acknowledged intake with group commit, plain PUB intake, table tails, replay by cursor, a doorbell.

One thread owns the ROUTER and answers everything; each other way in has a thread of its own and the same journal.
After a storage error nothing is acknowledged any more: the relay ends, and whoever supervises it starts it anew. On a
full disk intake is refused, and reading goes on. What this does not do: keep events for consumers that are behind
anywhere but in the journal; the feed only says that there is more. Rejected: an event loop; blocking sockets in threads
carry four times as much (measured).
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

import structlog

from relay import wire
from relay.answers import Answers
from relay.collector import Collector
from relay.config import Endpoints, RelaySettings, journal_folder, relay_endpoints
from relay.errors import JournalError, JournalFullError, ProtocolError, RelayError, RelaySettingsError
from relay.intake import Intake, Parcel
from relay.journal import Journal
from relay.sockets import Frames, ServerSocket, check_endpoint
from relay.table_tail import TableFollower
from relay.worker import Worker

log = structlog.get_logger()

_IDLE_WAIT_S = 1.0


class Broker:
    """One relay on one data folder. `run` serves in this thread; `start` in a thread of its own."""

    def __init__(self, data_dir: Path, settings: RelaySettings | None = None) -> None:
        """Open the journal and listen.

        Raises `JournalInUseError` when another relay has the folder, other `JournalError`s, `RelaySettingsError`,
        `RelayUnavailableError`.
        """
        self._settings = settings or RelaySettings()
        self._counts: Counter[str] = Counter()
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None
        wanted = _endpoints(data_dir, self._settings)
        self._journal = Journal.open(journal_folder(data_dir), self._settings.journal)
        try:
            self._server = ServerSocket(wanted.ingest, wanted.feed, self._settings.broker.high_water)
            self._workers, self.pub_endpoints = self._make_workers()
        except BaseException:
            self._close()
            raise
        self.endpoints = Endpoints(self._server.ingest, self._server.feed)
        self._intake = Intake(self._journal, self._settings.events, self._counts)
        self._answers = Answers(self._journal, self._settings, self._counts)
        self._rung_seq = self._journal.last_seq

    def run(self, wanted: Callable[[], bool] = lambda: True) -> None:
        """Serve until `stop`, or until `wanted` says no; then answer what is queued, and close.

        Raises what made it end early.
        """
        for worker in self._workers:
            worker.start()
        try:
            while not self._stopping.is_set() and wanted():
                self._serve(_IDLE_WAIT_S)
            self._drain()
        except BaseException as error:  # noqa: BLE001 - raised below, when everything is closed
            self._fail(error)
        finally:
            for worker in self._workers:
                worker.stop()
            self._close()
        if self._failure is not None:
            raise self._failure

    def start(self) -> Self:
        """Serve in a thread until `stop`."""
        self._thread = threading.Thread(target=self._run_quietly, name="relay-broker", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """End `run`; safe in a signal handler. After `start`: wait for it, and raise what made it end early."""
        self._stopping.set()
        self._server.wake()
        if self._thread is not None:
            self._thread.join()
            if self._failure is not None:
                raise self._failure

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _make_workers(self) -> tuple[list[Worker], list[str]]:
        broker, limits = self._settings.broker, self._settings.events
        workers = [Worker(_Upkeep(self._journal, broker.upkeep_interval_s), self._fail)]
        endpoints: list[str] = []
        if broker.pub_bind or broker.pub_connect:
            collector = Collector(self._journal, broker, limits, self._counts, self._server.wake)
            endpoints = collector.endpoints
            workers.append(Worker(collector, self._fail))
        for table in broker.tables:
            tail = TableFollower(self._journal, table, limits, self._counts, self._server.wake)
            workers.append(Worker(tail, self._fail))
        return workers, endpoints

    def _serve(self, wait_s: float) -> int:
        """Take what is queued: publishes in one transaction, then the rest one by one. Returns how many messages."""
        messages = self._server.receive(self._settings.broker.max_batch, wait_s)
        parcels: list[Parcel] = []
        questions: list[tuple[bytes, bytes, wire.Request]] = []
        for peer, frames in messages:
            self._sort(peer, frames, parcels, questions)
        if parcels:
            for reply in self._intake.take(parcels, datetime.now(UTC)):
                self._reply(reply.peer, b"", wire.encode(reply.message))
        self._ring()
        for peer, correlation, request in questions:
            self._reply(peer, correlation, self._answer(request))
        if questions:
            self._ring()
        return len(messages)

    def _sort(
        self, peer: bytes, frames: Frames, parcels: list[Parcel], questions: list[tuple[bytes, bytes, wire.Request]]
    ) -> None:
        correlation = frames[0] if frames else b""
        try:
            if len(frames) != 2:
                raise ProtocolError(f"expected 2 frames, got {len(frames)}")
            request = wire.decode_request(frames[1])
        except ProtocolError as error:
            self._counts["unreadable_requests"] += 1
            self._reply(peer, correlation, wire.encode_failure(error))
            return
        if isinstance(request, wire.Publish):
            parcels.append(Parcel(peer, request))
        else:
            questions.append((peer, correlation, request))

    def _answer(self, request: wire.Request) -> bytes:
        try:
            return wire.encode_answer(self._answers.answer(request))
        except RelayError as error:
            if isinstance(error, JournalError) and not isinstance(error, JournalFullError):
                raise
            return wire.encode_failure(error)

    def _reply(self, peer: bytes, correlation: bytes, body: bytes) -> None:
        if not self._server.send(peer, [correlation, body]):
            self._counts["replies_undelivered"] += 1

    def _ring(self) -> None:
        """Tell the feed the last number: once per batch, and to whoever has just joined."""
        last_seq = self._journal.last_seq
        if self._server.joined() or last_seq != self._rung_seq:
            self._server.publish(wire.encode_doorbell(last_seq))
            self._rung_seq = last_seq

    def _drain(self) -> None:
        """Journal and acknowledge what was sent before the end."""
        deadline_s = time.monotonic() + self._settings.broker.drain_s
        while time.monotonic() < deadline_s and self._serve(0.0):
            pass

    def _fail(self, error: BaseException) -> None:
        """End the relay because of `error`; for any thread."""
        if self._failure is None:
            self._failure = error
            log.error("relay.failed", code=getattr(error, "code", type(error).__name__), reason=str(error))
        self._stopping.set()
        self._server.wake()

    def _run_quietly(self) -> None:
        try:
            self.run()
        except BaseException as error:  # noqa: BLE001 - `stop` raises it in the caller's thread
            self._failure = error

    def _close(self) -> None:
        server = getattr(self, "_server", None)
        if server is not None:
            server.close()
        self._journal.close()


class _Upkeep:
    """A worker's task: retention, and readers that died."""

    name = "upkeep"

    def __init__(self, journal: Journal, interval_s: float) -> None:
        self._journal = journal
        self._interval_s = interval_s
        self._held_by: str | None = None

    def step(self) -> float:
        self._journal.clear_dead_readers()
        report = self._journal.retain(datetime.now(UTC))
        if report.deleted or report.held_by != self._held_by:
            log.info(
                "retention.applied",
                deleted=report.deleted,
                deleted_bytes=report.deleted_bytes,
                first_seq=report.first_seq,
                held_by=report.held_by,
                passed=report.passed,
            )
        self._held_by = report.held_by
        return self._interval_s

    def finish(self) -> None:
        """Nothing is kept open between steps."""


def _endpoints(data_dir: Path, settings: RelaySettings) -> Endpoints:
    """Return where to listen, checked; the default folder for socket files is made private."""
    default, broker = relay_endpoints(data_dir), settings.broker
    ours = Endpoints(broker.ingest or default.ingest, broker.feed or default.feed)
    checks: Sequence[tuple[str, Sequence[str]]] = (
        ("broker.ingest", [ours.ingest]),
        ("broker.feed", [ours.feed]),
        ("broker.pub_bind", broker.pub_bind),
        ("broker.pub_connect", broker.pub_connect),
    )
    for setting, endpoints in checks:
        for endpoint in endpoints:
            check_endpoint(setting, endpoint)
    names = [table.name for table in broker.tables]
    if len(names) != len(set(names)):
        raise RelaySettingsError("broker.tables", "two tables have the same name")
    run = Path(data_dir).absolute() / "run"
    try:
        run.mkdir(mode=0o700, parents=True, exist_ok=True)
        run.chmod(0o700)
    except OSError as error:
        raise RelaySettingsError("data_dir", f"{run}: {error.strerror}") from error
    return ours
