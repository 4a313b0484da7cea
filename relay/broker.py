"""The relay: acknowledged intake, plain PUB intake, table tails, replay by cursor, and a doorbell.

One thread owns the ROUTER socket and answers all requests; each of the other intakes has its own thread. After a
storage error the relay exits, and its supervisor restarts it. When the disk is full, events are rejected but reads
continue.
"""

from __future__ import annotations

import math
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple, Self

from relay import errors, wire
from relay.access import Credentials, Principal, check_endpoint, ensure_local_key, is_curve, server_pair
from relay.answers import Answers
from relay.config import Endpoints, RelaySettings, journal_folder, relay_endpoints
from relay.crypto import open_key_ring
from relay.histogram import Histogram
from relay.intake.admission import Admission
from relay.intake.collector import Collector
from relay.intake.copier import Copier
from relay.intake.group_commit import Intake, Reply, Submission
from relay.intake.masking import Masker
from relay.journal import Journal, JournalCopy
from relay.log import log
from relay.net import CurveAuthenticator, Message, ServerSocket, curve_pair
from relay.worker import Worker

_IDLE_WAIT_S = 1.0
_FORMER_RELAY_S = 10.0
_POLL_S = 0.05
_REST = 20.0  # pause after a compaction, in multiples of its duration; writers are blocked for at most 5 % of the time
_LEAST_REST_S = 1.0


class ReceivedRequest(NamedTuple):
    """A request other than `Publish`, its principal, and the peer and correlation id for the reply."""

    peer: bytes
    correlation: bytes
    principal: Principal
    request: wire.Request


class Broker:
    """A relay on one data folder. `run` serves in the calling thread, `start` in a background thread."""

    def __init__(self, data_dir: Path, settings: RelaySettings | None = None, copy: JournalCopy | None = None) -> None:
        """Open the journal and bind the endpoints. With `copy`, events are acknowledged once the copy contains them.

        Raises `JournalInUseError` if another relay uses the folder, other `JournalError`s, `RelaySettingsError`,
        `RelayUnavailableError`, `EncryptionMismatchError`, `EncryptionKeyMissingError` and `KeyFileError`.
        """
        self._settings = settings or RelaySettings()
        self._counts: Counter[str] = Counter()
        self._acks = Histogram()
        self._is_stopping = False
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None
        wanted = _endpoints(data_dir, self._settings)
        self._admission = Admission(self._settings.events, Masker(self._settings.masking, self._counts))
        keys = open_key_ring(self._settings.encryption, data_dir)
        self._journal = Journal.open(journal_folder(data_dir), self._settings.journal, keys=keys, copy=copy)
        try:
            ensure_local_key(data_dir)
            self._credentials = Credentials(data_dir)
            self._server = self._listen(data_dir, wanted)
            self._upkeep = Worker(_Upkeep(self._journal, self._settings.broker.upkeep_interval_s), self._fail)
            self._copier = None if copy is None else Copier(self._journal, self._server.wake)
            self._workers, self.pub_endpoints = self._make_workers()
        except BaseException:
            self._close()
            raise
        self.endpoints = Endpoints(self._server.ingest[0], self._server.feed[0])
        self.listen, self.feed_listen = self._server.ingest[1:], self._server.feed[1:]
        self._intake = Intake(self._journal, self._admission, self._counts, self._settings.broker.max_lag)
        counts, admission = self._counts, self._admission
        self._answers = Answers(self._journal, self._settings, admission, counts, self._upkeep.wake, self._acks)
        self._rung_seq = self._journal.last_seq

    @property
    def listening(self) -> dict[str, str | list[str]]:
        return {
            **self.endpoints._asdict(),
            "listen": self.listen,
            "feed_listen": self.feed_listen,
            "pub": self.pub_endpoints,
        }

    def run(self, wanted: Callable[[], bool] = lambda: True) -> None:
        """Serve until `stop` or until `wanted()` returns False; then answer queued requests. Raises any fatal error."""
        for worker in self._workers:
            worker.start()
        try:
            while not self._is_stopping and wanted():
                self._serve(_IDLE_WAIT_S)
            self._drain()
        except BaseException as error:  # noqa: BLE001 - raised below, after everything is closed
            self._fail(error)
        finally:
            for worker in self._workers:
                worker.stop()
            self._send_released()
            self._close()
        if self._failure is not None:
            raise self._failure

    def start(self) -> Self:
        self._thread = threading.Thread(target=self._run_quietly, name="relay-broker", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stop `run`; safe in a signal handler. After `start`, join the thread and raise its error."""
        self._is_stopping = True
        self._server.wake()
        if self._thread is not None:
            self._thread.join()
            if self._failure is not None:
                raise self._failure

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _listen(self, data_dir: Path, wanted: Endpoints) -> ServerSocket:
        broker = self._settings.broker
        ingest, feed = (wanted.ingest, *broker.listen), (wanted.feed, *broker.feed_listen)
        authenticator = None
        if any(map(is_curve, ingest + feed)):
            authenticator = CurveAuthenticator(server_pair(data_dir, curve_pair), self._credentials.knows_curve)
        return ServerSocket(ingest, feed, broker.queue_bytes, authenticator)

    def _make_workers(self) -> tuple[list[Worker], list[str]]:
        broker, admission = self._settings.broker, self._admission
        workers = [self._upkeep]
        if self._copier is not None:
            self._copying = Worker(self._copier, self._fail)
            workers.append(self._copying)
        endpoints: list[str] = []
        if broker.pub_bind or broker.pub_connect:
            collector = Collector(self._journal, broker, admission, self._counts, self._server.wake)
            endpoints = collector.endpoints
            workers.append(Worker(collector, self._fail))
        for table in broker.tables:
            from relay.intake.table_tail import TableFollower  # imported here: some Python builds lack sqlite3

            tail = TableFollower(self._journal, table, admission, self._counts, self._server.wake, broker.max_lag)
            workers.append(Worker(tail, self._fail))
        return workers, endpoints

    def _serve(self, wait_s: float) -> int:
        """Handle the queued messages: first all publishes, in one transaction. Return the number of messages."""
        broker = self._settings.broker
        messages = self._server.receive(broker.max_batch, broker.max_batch_bytes, wait_s)
        submissions: list[Submission] = []
        requests: list[ReceivedRequest] = []
        for message in messages:
            self._sort(message, submissions, requests)
        if submissions:
            replies = self._intake.take(submissions, datetime.now(UTC))
            if self._copier is None:
                self._send(replies)
            else:
                self._copier.hold(replies)
                self._copying.wake()
        self._send_released()
        self._ring()
        for received in requests:
            self._reply(received.peer, received.correlation, self._answer(received))
        if requests:
            self._ring()
        return len(messages)

    def _sort(self, message: Message, submissions: list[Submission], requests: list[ReceivedRequest]) -> None:
        peer, frames = message.peer, message.frames
        correlation = frames[0] if frames else b""
        try:
            if len(frames) not in (2, 3):
                raise errors.ProtocolError(f"expected 3 frames, got {len(frames)}")
            request = wire.decode_request(frames[1])
        except errors.ProtocolError as error:
            self._counts["unreadable_requests"] += 1
            self._reply(peer, correlation, wire.encode_failure(error))
            return
        try:
            principal = self._principal(message)
        except errors.UnauthorizedError as error:
            self._counts["unauthorized"] += 1
            if isinstance(request, wire.Publish):
                self._reply(peer, correlation, wire.encode(wire.refusal(request, error)))
            else:
                self._reply(peer, correlation, wire.encode_failure(error))
            return
        if isinstance(request, wire.Publish):
            submissions.append(Submission(peer, request, principal, time.monotonic()))
        else:
            requests.append(ReceivedRequest(peer, correlation, principal, request))

    def _principal(self, message: Message) -> Principal:
        if message.curve_key is not None:
            return self._credentials.of_curve(message.curve_key)
        return self._credentials.of_token(message.frames[2] if len(message.frames) == 3 else b"")

    def _answer(self, received: ReceivedRequest) -> bytes:
        try:
            return wire.encode_answer(self._answers.answer(received.request, received.principal))
        except errors.RelayError as error:
            if isinstance(error, errors.JournalError) and not isinstance(error, errors.JournalPausedError):
                raise
            return wire.encode_failure(error)
        except (OSError, MemoryError):
            raise
        except Exception as error:  # noqa: BLE001 - replied and logged
            # An unexpected error must not stop the intake. The message is not logged, because it may quote an event.
            self._counts["failed_requests"] += 1
            place = traceback.extract_tb(error.__traceback__)[-1]
            kind, where = type(error).__name__, f"{Path(place.filename).name}:{place.lineno}"
            log.error("request.failed", request=type(received.request).__name__, error=kind, where=where)
            return wire.encode_failure(errors.ProtocolError(f"the relay could not answer this request ({kind})"))

    def _send_released(self) -> None:
        if self._copier is not None:
            self._send(self._copier.released())

    def _send(self, replies: Iterable[Reply]) -> None:
        for reply in replies:
            self._reply(reply.peer, b"", wire.encode(reply.message))
            self._acks.add(time.monotonic() - reply.received_s)

    def _reply(self, peer: bytes, correlation: bytes, body: bytes) -> None:
        if not self._server.send(peer, [correlation, body]):
            self._counts["replies_undelivered"] += 1

    def _ring(self) -> None:
        """Publish the journal's last number if the number has changed or a subscriber has joined."""
        last_seq = self._journal.last_seq
        if self._server.joined() or last_seq != self._rung_seq:
            self._server.publish(wire.encode_doorbell(last_seq))
            self._rung_seq = last_seq

    def _drain(self) -> None:
        """Journal and acknowledge the messages that arrived before the relay was stopped."""
        deadline_s = time.monotonic() + self._settings.broker.drain_s
        while time.monotonic() < deadline_s and self._serve(0.0):
            pass

    def _fail(self, error: BaseException) -> None:
        """Stop the relay with `error`. Thread-safe."""
        if self._failure is None:
            self._failure = error
            log.error("relay.failed", code=getattr(error, "code", type(error).__name__), reason=str(error))
        self._is_stopping = True
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


def open_after_former(data_dir: Path, settings: RelaySettings, copy: JournalCopy | None = None) -> Broker:
    """Open the broker, waiting up to 10 s for the relay of a killed daemon to exit. Raises as `Broker`."""
    deadline_s = time.monotonic() + _FORMER_RELAY_S
    is_logged = False
    while True:
        try:
            return Broker(data_dir, settings, copy)
        except errors.JournalInUseError as error:
            if time.monotonic() >= deadline_s:
                raise
            if not is_logged:
                log.info("relay.waiting", owner=error.owner)
                is_logged = True
            time.sleep(_POLL_S)


class _Upkeep:
    """A worker's task: applies retention, frees slots of dead readers, and compacts after erasures."""

    name = "upkeep"

    def __init__(self, journal: Journal, interval_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._journal = journal
        self._interval_s = interval_s
        self._clock = clock
        self._compact_after_s = -math.inf
        self._held_by: str | None = None

    def step(self) -> float:
        self._journal.clear_dead_readers()
        is_compact = self._compact()
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
        rest_s = math.inf if is_compact else max(_LEAST_REST_S, self._compact_after_s - self._clock())
        return min(self._interval_s, rest_s)

    def finish(self) -> None: ...

    def _compact(self) -> bool:
        """Remove erased bytes from the file; return whether none are left.

        Retries later if the disk is full, a read transaction does not end, or the copy of the journal cannot be
        renewed. Writers wait during a compaction, so the interval until the next one is a multiple of its duration.
        """
        began_s = self._clock()
        if not self._journal.uncompacted:
            return True
        if began_s < self._compact_after_s:
            return False
        is_compact = False
        try:
            self._journal.compact()
            is_compact = True
            log.info("journal.compacted")
        except (errors.JournalPausedError, TimeoutError) as error:
            log.warning("journal.not_compacted", error=type(error).__name__)
        ended_s = self._clock()
        rest_s = _REST * (ended_s - began_s)
        self._compact_after_s = ended_s + (rest_s if is_compact else max(rest_s, self._interval_s))
        return is_compact


def _endpoints(data_dir: Path, settings: RelaySettings) -> Endpoints:
    """Validate and return the endpoints. Creates the private folder for socket files."""
    default, broker = relay_endpoints(data_dir), settings.broker
    chosen = Endpoints(broker.ingest or default.ingest, broker.feed or default.feed)
    checks: Sequence[tuple[str, Sequence[str]]] = (
        ("broker.ingest", [chosen.ingest]),
        ("broker.feed", [chosen.feed]),
        ("broker.listen", broker.listen),
        ("broker.feed_listen", broker.feed_listen),
        ("broker.pub_bind", broker.pub_bind),
        ("broker.pub_connect", broker.pub_connect),
    )
    for setting, endpoints in checks:
        for endpoint in endpoints:
            check_endpoint(setting, endpoint)
            if is_curve(endpoint) and "listen" not in setting:
                raise errors.RelaySettingsError(
                    setting, f"{endpoint}: CURVE requires broker.listen or broker.feed_listen"
                )
    names = [table.name for table in broker.tables]
    if len(names) != len(set(names)):
        raise errors.RelaySettingsError("broker.tables", "two tables have the same name")
    run = Path(data_dir).absolute() / "run"
    try:
        run.mkdir(mode=0o700, parents=True, exist_ok=True)
        run.chmod(0o700)
    except OSError as error:
        raise errors.RelaySettingsError("data_dir", f"{run}: {error.strerror}") from error
    return chosen
