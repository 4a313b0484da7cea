"""Acknowledged intake with group commit: one transaction stores all queued publishes, and each publisher gets one ack.

A publisher's events are journaled in order; events after a gap are rejected, and the publisher resends them. The
journal recognises repeated events by `event_id`, so the state here may be lost.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple

from relay import errors
from relay.access import Origin, Principal, Scope
from relay.event import Event
from relay.intake.admission import Admission, Admitted
from relay.journal import Appended, Journal, Suspect, source_name
from relay.log import log
from relay.wire import Ack, Publish, Receipt, Refusal, refusal

_MAX_PRODUCERS = 10_000

_COUNTED = {
    errors.JournalFullError.code: "refused_full",
    errors.KeysUnavailableError.code: "refused_without_keys",
    errors.CopyUnavailableError.code: "refused_without_copy",
    errors.ConsumerBehindError.code: "refused_behind",
}

Producer = tuple[str, str]


class Submission(NamedTuple):
    """A `Publish`, the peer to answer, the sender's principal, and when it was received (monotonic seconds)."""

    peer: bytes
    publish: Publish
    principal: Principal
    received_s: float = 0.0

    @property
    def producer(self) -> Producer:
        """The producer. The key is included, so that a different key cannot use the same producer id."""
        return self.principal.key_id, self.publish.producer_id


class Reply(NamedTuple):
    """An ack or a refusal, the peer to send it to, and when the publish was received."""

    peer: bytes
    message: Ack | Refusal
    received_s: float = 0.0


class _Position(NamedTuple):
    """A producer's epoch, and the number of its next event."""

    epoch: int
    expected_seq: int


class Intake:
    """Journals the events that all producers publish, one batch at a time. Use it from one thread only."""

    def __init__(self, journal: Journal, admission: Admission, counts: Counter[str], max_lag: int = 0) -> None:
        """Reject everything while a consumer is more than `max_lag` events behind (0: no limit)."""
        self._journal = journal
        self._max_lag = max_lag
        self._admission = admission
        self._counts = counts
        self._positions: OrderedDict[Producer, _Position] = OrderedDict()
        self._paused_by = ""

    def take(self, submissions: Sequence[Submission], now: datetime) -> list[Reply]:
        """Journal the events of `submissions` in one transaction; return the acks and refusals to send.

        Acknowledged events are durable. Rejects all events while the disk is full, the keys folder is missing, or a
        consumer is too far behind. Raises `JournalError`.
        """
        positions: dict[Producer, _Position] = {}
        refusals: list[Reply] = []
        accepted: list[tuple[Submission, list[Admitted]]] = []
        for submission in submissions:
            error = self._advance(submission, positions)
            if error is None:
                events, principal = submission.publish.events, submission.principal
                accepted.append((submission, [self._admission.try_admit(data, principal, now) for data in events]))
            else:
                position = positions.get(submission.producer)
                expected_seq = None if position is None else position.expected_seq
                refusals.append(_refusal(submission, error, expected_seq))
        try:
            self._journal.require_read(self._max_lag)
            appended = self._append(accepted, now)
        except (errors.JournalPausedError, errors.ConsumerBehindError) as error:
            counted = _COUNTED[error.code]
            self._counts[counted] += sum(len(admitted) for _, admitted in accepted)
            self._note_pause(error.code)
            return refusals + [_refusal(submission, error) for submission, _ in accepted]
        self._note_pause("")
        self._remember(positions)
        return refusals + _acks(accepted, appended)

    def _advance(self, submission: Submission, positions: dict[Producer, _Position]) -> errors.RelayError | None:
        """Advance the producer's position past the submitted events, or return the reason for their rejection."""
        if Scope.PUBLISH not in submission.principal.scopes:
            return errors.ScopeMissingError(Scope.PUBLISH.value, submission.principal.key_id)
        publish, producer = submission.publish, submission.producer
        position = positions.get(producer) or self._positions.get(producer)
        if position is not None and publish.epoch < position.epoch:
            positions[producer] = position
            return errors.ProducerSupersededError(f"a newer publisher uses the producer id {publish.producer_id[:64]}")
        if position is None or publish.epoch > position.epoch:
            position = _Position(publish.epoch, publish.base_seq)
        expected_seq = max(position.expected_seq, publish.base_seq)
        if publish.first_seq > expected_seq:
            positions[producer] = _Position(publish.epoch, expected_seq)
            self._counts["refused_gap"] += len(publish.events)
            return errors.SequenceGapError(f"expected event {expected_seq}, got {publish.first_seq}")
        through = max(expected_seq, publish.first_seq + len(publish.events))
        positions[producer] = _Position(publish.epoch, through)
        return None

    def _append(self, accepted: Sequence[tuple[Submission, list[Admitted]]], now: datetime) -> Iterable[Appended]:
        events: list[Event] = []
        origins: list[Origin] = []
        malformed: list[Suspect] = []
        foreign = 0
        for submission, admitted in accepted:
            source = source_name("publisher", submission.publish.producer_id[:128], submission.principal)
            events += [result for result in admitted if isinstance(result, Event)]
            origins += [submission.principal.origin] * (len(events) - len(origins))
            malformed += self._admission.suspects(zip(submission.publish.events, admitted, strict=True), source)
            foreign += sum(isinstance(result, errors.UserNotAllowedError) for result in admitted)
        appended = self._journal.append(events, now, origins=origins, suspects=malformed) if events or malformed else []
        duplicates = sum(one.duplicate for one in appended)
        self._counts.update(
            accepted=len(events) - duplicates,
            duplicates=duplicates,
            malformed=len(malformed),
            foreign=foreign,
            batches=1,
        )
        return appended

    def _note_pause(self, code: str) -> None:
        if code != self._paused_by:
            level = (
                logging.WARNING if code == errors.ConsumerBehindError.code else logging.ERROR if code else logging.INFO
            )
            log.log(level, "intake.refused" if code else "intake.resumed", code=code or self._paused_by)
            self._paused_by = code

    def _remember(self, positions: dict[Producer, _Position]) -> None:
        for producer, position in positions.items():
            self._positions[producer] = position
            self._positions.move_to_end(producer)
        while len(self._positions) > _MAX_PRODUCERS:
            self._positions.popitem(last=False)


def _acks(accepted: Sequence[tuple[Submission, list[Admitted]]], appended: Iterable[Appended]) -> list[Reply]:
    """Return one ack for each contiguous run of a producer's events."""
    numbers = iter(appended)
    acks: dict[tuple[bytes, str, int], list[Reply]] = {}
    for (peer, publish, _, received_s), admitted in accepted:
        receipts = [
            Receipt(*next(numbers))
            if isinstance(result, Event)
            else Receipt(0, False, result.code, result.field, result.reason)
            for result in admitted
        ]
        runs = acks.setdefault((peer, publish.producer_id, publish.epoch), [])
        last = runs[-1].message if runs else None
        if isinstance(last, Ack) and last.first_seq + len(last.receipts) == publish.first_seq:
            last.receipts.extend(receipts)
        else:
            ack = Ack(epoch=publish.epoch, first_seq=publish.first_seq, receipts=receipts)
            runs.append(Reply(peer, ack, received_s))
    return [reply for runs in acks.values() for reply in runs]


def _refusal(submission: Submission, error: errors.RelayError, expected_seq: int | None = None) -> Reply:
    return Reply(submission.peer, refusal(submission.publish, error, expected_seq), submission.received_s)
