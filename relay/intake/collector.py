"""Best-effort intake from plain PUB emitters, which receive no acknowledgements. All messages are counted.

Every message that arrives is journaled or quarantined; while a consumer is too far behind, messages are dropped and
counted. Emitters present no key; if `broker.pub_user` is set, events of other users are dropped and counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime

from relay.access import Principal, Scope
from relay.config import BrokerSettings
from relay.errors import ConsumerBehindError, MalformedEventError
from relay.event import Event
from relay.intake.admission import Admission, Admitted
from relay.journal import Journal, source_name
from relay.net import CollectorSocket, Frames
from relay.wire import event_in_frames

_WAIT_S = 0.2
_TOO_LARGE = 4  # a multiple of the maximum event size; larger messages are not received and cannot be quarantined


class Collector:
    """A worker's task: journals the messages of emitters, one batch per transaction."""

    name = "collector"

    def __init__(
        self,
        journal: Journal,
        settings: BrokerSettings,
        admission: Admission,
        counts: Counter[str],
        on_append: Callable[[], None],
    ) -> None:
        """Bind and connect to the endpoints in `settings`. Raises `RelayUnavailableError`."""
        self._socket = CollectorSocket(
            settings.pub_bind, settings.pub_connect, settings.pub_queue_bytes, _TOO_LARGE * admission.limits.max_bytes
        )
        self.endpoints = self._socket.endpoints
        self._journal = journal
        self._settings = settings
        self._admission = admission
        self._principal = Principal("pub", settings.pub_user or None, frozenset({Scope.PUBLISH}))
        self._source = source_name("pub", "", self._principal)
        self._counts = counts
        self._on_append = on_append
        self._pending: list[tuple[bytes, Admitted]] = []

    def step(self) -> float:
        self._journal_batch(_WAIT_S)
        return 0.0

    def finish(self) -> None:
        try:
            while self._journal_batch(0.0):
                pass
        finally:
            self._socket.close()

    def _journal_batch(self, wait_s: float) -> bool:
        if not self._pending:
            now = datetime.now(UTC)
            messages = self._socket.receive(self._settings.max_batch, self._settings.max_batch_bytes, wait_s)
            self._pending = [self._admit(frames, now) for frames in messages]
            self._counts["pub_received"] += len(messages)
        if not self._pending:
            return False
        try:
            self._journal.require_read(self._settings.max_lag)
        except ConsumerBehindError:
            self._counts["pub_dropped"] += len(self._pending)
            self._pending = []
        else:
            self._append()
        return True

    def _admit(self, frames: Frames, now: datetime) -> tuple[bytes, Admitted]:
        try:
            data = event_in_frames(frames)
        except MalformedEventError as error:
            return b" ".join(frames), error
        return data, self._admission.try_admit(data, self._principal, now)

    def _append(self) -> None:
        events = [result for _, result in self._pending if isinstance(result, Event)]
        malformed = self._admission.suspects(self._pending, self._source)
        origins = [self._principal.origin] * len(events)
        appended = self._journal.append(events, datetime.now(UTC), origins=origins, suspects=malformed)
        foreign = len(self._pending) - len(events) - len(malformed)
        self._pending = []
        duplicates = sum(one.duplicate for one in appended)
        self._counts.update(
            pub_accepted=len(events) - duplicates,
            pub_duplicates=duplicates,
            pub_malformed=len(malformed),
            pub_foreign=foreign,
        )
        self._on_append()
