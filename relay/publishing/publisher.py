"""Publishers send events to the relay in order. Each event is stored exactly once, even if either process crashes.

A background thread sends events and resends them until they are acknowledged. If all earlier events have been
acknowledged, an event is sent at once; otherwise, one part of the window is sent at a time (`Window.is_due`). Events
are never dropped silently: if there is no room, `publish` waits, then raises an error. While the relay is unreachable,
events are written to the spool, if a spool is configured.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

from relay import errors
from relay.access import Identity, check_endpoint, local_identity
from relay.config import EventLimits, PublisherSettings
from relay.event import Event, sendable
from relay.locks import Condition
from relay.net import ClientSocket
from relay.publishing.delivery import FlushReport, Outgoing, Progress, Tally, Window
from relay.publishing.spool import Spool
from relay.wire import Ack, Publish, Refusal, decode_receipt, encode

_IDLE_WAIT_S = 1.0
_CLOSE_TIMEOUT_S = 5.0


class Publisher:
    """An ordered stream of events to one relay. Thread-safe. Close it after use.

    Without a spool, events that `flush` has not confirmed are lost when this process dies.

    >>> with Publisher(relay_endpoints(data_dir).ingest, spool=Path("spool")) as publisher:
    ...     publisher.publish({"event_id": "e-1", "event_type": "user_input", "user_id": "alice"})
    'e-1'
    """

    def __init__(
        self,
        ingest: str,
        *,
        settings: PublisherSettings | None = None,
        limits: EventLimits | None = None,
        spool: Path | None = None,
        producer_id: str = "",
        on_progress: Callable[[Progress], None] | None = None,
        identity: Identity | None = None,
    ) -> None:
        """Connect to `ingest` (`relay_endpoints(data_dir).ingest`); the relay need not be running yet.

        `identity` defaults to the token beside the socket file. `on_progress` is called in the background thread.
        Raises `JournalInUseError` if another publisher uses the spool, and `RelaySettingsError` and
        `RelayUnavailableError`.
        """
        self._settings = settings or PublisherSettings()
        self._limits = limits or EventLimits()
        self._producer_id = producer_id or uuid4().hex
        self._epoch = time.time_ns()
        self._window = Window(self._settings.window)
        self._tally = Tally(on_progress)
        self._waiting = deque[_Waiting]()
        self._refilled = self._spooled = 0
        self._condition = Condition()
        self._away = self._closing = self._closed = False
        self._fatal: BaseException | None = None
        self._close_error: BaseException | None = None
        self._progress_s = self._pause_until_s = 0.0
        shown = identity or local_identity(ingest)
        self._user_id = shown.user_id
        self._socket = ClientSocket(check_endpoint("ingest", ingest), shown, max(1_000, self._settings.window))
        try:
            self._spool = Spool(spool, self._settings.spool_max_bytes) if spool else None
        except BaseException:
            self._socket.close()
            raise
        self._thread = threading.Thread(target=self._run, name="relay-publisher", daemon=True)
        self._thread.start()

    def publish(self, event: Event | Mapping[str, Any], timeout_s: float | None = None) -> str:
        """Queue an event and return its `event_id`. On return, the event is durable only if it was spooled (see
        `flush`).

        Waits while the window is full. Raises `MalformedEventError` if the event is invalid, `RelayUnavailableError` if
        there is no room within `timeout_s`, and `SpoolFullError` if the relay is unreachable and the spool is full.
        After an error, the event is not queued.

        >>> event = {"event_type": "user_input", "user_id": "alice", "payload": {"text": "Staging needs the VPN"}}
        >>> publisher.publish(event)
        'derived-...'
        >>> publisher.publish({"event_type": "user_input"})
        Traceback (most recent call last):
        relay.errors.MalformedEventError: user_id: is missing
        """
        checked, data = self._encoded(event)
        if self._try_take(checked, data):
            return checked.event_id
        wait_s = self._settings.publish_timeout_s if timeout_s is None else timeout_s
        waiting = _Waiting(checked, data)
        try:
            self._waiting.append(waiting)
            self._socket.wake()
            self._condition.wait_for(lambda: self._is_taken(waiting) is not None)
            is_taken = self._condition.wait_for(lambda: self._is_taken(waiting) is True, wait_s)
            if not is_taken and self._withdraw(waiting):
                count = len(self._window)
                described = "1 event is" if count == 1 else f"{count} events are"
                raise errors.RelayUnavailableError(f"{described} still unacknowledged after {wait_s:.3g} s")
        finally:
            with contextlib.suppress(ValueError):  # the background thread took it
                self._waiting.remove(waiting)
        return checked.event_id

    def try_publish(self, event: Event | Mapping[str, Any]) -> str | None:
        """Queue an event and return its `event_id`, or None if this would block or need the disk.

        >>> publisher.try_publish({"event_id": "e-1", "event_type": "user_input", "user_id": "alice"})
        'e-1'
        """
        checked, data = self._encoded(event)
        return checked.event_id if self._try_take(checked, data) else None

    def flush(self, timeout_s: float = 30.0) -> FlushReport:
        """Wait up to `timeout_s` until every event is acknowledged or rejected, and return the totals.

        Acknowledged events are durable; other events are counted as `spooled` (on the local disk) or `pending` (in
        memory only). Events that an earlier process left in the spool are included. Raises the error that stopped this
        publisher.

        >>> event = {"event_type": "user_input", "user_id": "alice", "payload": {"text": "Staging needs the VPN"}}
        >>> first, again = publisher.publish(event), publisher.publish(event)
        >>> report = publisher.flush()
        >>> report.acked, report.duplicates, report.pending, report.acked_through
        (1, 1, 0, {'alice': 1})
        """
        self._condition.wait_for(lambda: not self._unsettled or self._fatal is not None, timeout_s)
        with self._condition.lock:
            self._raise_fatal()
            return self._tally.report(*self._counts)

    @property
    def acked_through(self) -> dict[str, int]:
        """The highest journal number acknowledged for each user."""
        with self._condition.lock:
            return dict(self._tally.acked_through)

    def close(self, timeout_s: float = _CLOSE_TIMEOUT_S) -> None:
        """Flush for up to `timeout_s`, move unacknowledged events into the spool, and stop. Idempotent.

        Raises `RelayUnavailableError` if events are lost because there is no spool or the spool is full. After a
        `KeyboardInterrupt`, `close` does not wait for more acks; call it again to wait for the background thread.

        >>> publisher.close()
        >>> publisher.publish({"event_type": "user_input", "user_id": "alice"})
        Traceback (most recent call last):
        relay.errors.RelayUnavailableError: the publisher is closed
        """
        self._closed = True
        try:
            self._condition.wait_for(self._may_stop, timeout_s)
        finally:
            self._closing = True
            self._socket.wake()
            self._thread.join()
        error, self._close_error = self._close_error, None
        if error is not None:
            raise error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            self.close()
        except errors.RelayError:
            if kind is None:
                raise

    # The following methods run in the callers' threads, where a `KeyboardInterrupt` may interrupt them at any step.
    # Therefore, an event is added by a single `append`, and only the background thread uses the disk.

    def _encoded(self, event: Event | Mapping[str, Any]) -> tuple[Event, bytes]:
        mapping = _mapping(event) if isinstance(event, Event) else event
        if self._user_id is not None and isinstance(mapping, Mapping) and not mapping.get("user_id"):
            mapping = {**mapping, "user_id": self._user_id}
        return sendable(mapping, self._limits, datetime.now(UTC))

    def _try_take(self, event: Event, data: bytes) -> bool:
        """Add an event to the window; return False if this would block or need the disk."""
        with self._condition.lock:
            self._require_open()
            if self._is_spooling or not self._window.room:
                return False
            self._add(event, data)
            is_due = self._window.is_due
        if is_due:
            self._socket.wake()
        return True

    def _add(self, event: Event, data: bytes) -> None:
        if not len(self._window):
            self._progress_s = time.monotonic()
        self._window.add(Outgoing(event.event_id, event.user_id, data))

    def _withdraw(self, waiting: _Waiting) -> bool:
        """Withdraw a waiting event; return False if the background thread has already taken it."""
        with self._condition.lock:
            with contextlib.suppress(ValueError):
                self._waiting.remove(waiting)
            return not waiting.is_taken

    def _is_taken(self, waiting: _Waiting) -> bool | None:
        if waiting.error is not None:
            raise waiting.error
        if not waiting.is_taken:
            self._require_open()
        return waiting.is_taken

    def _may_stop(self) -> bool:
        return self._closing or self._fatal is not None or not self._unsettled or self._is_spooling_away

    @property
    def _is_spooling(self) -> bool:
        """Whether new events go to the spool, because the relay is unreachable or spooled events must be sent first."""
        return self._spool is not None and (self._away or self._spool.untaken > 0)

    @property
    def _is_spooling_away(self) -> bool:
        """Whether `close` can return without waiting, because the relay is unreachable and the spool keeps the
        events.
        """
        return self._spool is not None and self._away

    @property
    def _unsettled(self) -> bool:
        return len(self._window) > 0 or (self._spool is not None and self._spool.unreleased > 0)

    @property
    def _counts(self) -> tuple[int, int, int]:
        """The number of events that were published, the number on the local disk, and the number only in memory."""
        published = self._window.added - self._refilled + self._spooled
        spooled = self._spool.unreleased if self._spool is not None else 0
        return published, spooled, sum(not outgoing.spool_seq for outgoing in self._window)

    def _require_open(self) -> None:
        self._raise_fatal()
        if self._closed:
            raise errors.RelayUnavailableError("the publisher is closed")

    def _raise_fatal(self) -> None:
        if self._fatal is not None:
            raise self._fatal

    # The following methods run in the background thread.

    def _run(self) -> None:
        try:
            while not self._closing:
                with self._condition.lock:
                    self._refill()
                    self._take_waiting()
                    self._send()
                    self._resend_if_late()
                    wait_s = self._wait_s()
                frames = self._socket.receive(wait_s)
                if frames is not None:
                    self._receive(frames)
        except BaseException as error:  # noqa: BLE001 - raised in the caller's thread, by `publish` and `flush`
            with self._condition.lock:
                self._fatal = error
                self._condition.notify_all()
        finally:
            try:
                with self._condition.lock:
                    self._save_window()
            except BaseException as error:  # noqa: BLE001 - raised in the caller's thread, by `close`
                self._close_error = error
            self._socket.close()

    def _save_window(self) -> None:
        if self._spool is not None:
            with contextlib.closing(self._spool):
                self._spool.keep(self._window, datetime.now(UTC))
        elif count := len(self._window):
            were, are = ("event was", "is") if count == 1 else ("events were", "are")
            hint = "; is the relay running? (memory-agent serve)" if self._fatal is None else ""
            raise errors.RelayUnavailableError(
                f"{count} {were} not acknowledged and {are} lost when this process exits{hint}"
            )

    def _take_waiting(self) -> None:
        """While there is room, take waiting events in order."""
        for waiting in tuple(self._waiting):
            try:
                waiting.is_taken = self._take(waiting.event, waiting.data)
            except Exception as error:  # noqa: BLE001 - raised in the caller's thread, by `publish`
                waiting.error = error
            if waiting.is_taken or waiting.error is not None:
                with contextlib.suppress(ValueError):  # the caller has given up
                    self._waiting.remove(waiting)
            self._condition.notify_all()

    def _take(self, event: Event, data: bytes) -> bool:
        if self._is_spooling:
            return self._take_to_disk(event)
        if not self._window.room:
            return False
        self._add(event, data)
        return True

    def _take_to_disk(self, event: Event) -> bool:
        assert self._spool is not None
        now = datetime.now(UTC)
        try:
            self._spool.keep(self._window, now)
            new = self._spool.add(event, now)
        except errors.SpoolFullError:
            if self._away:
                raise
            return False  # the spool is being drained: wait for room
        self._spooled += 1
        self._tally.duplicates += not new
        return True

    def _refill(self) -> None:
        """Move events from disk into the window, oldest first."""
        while self._spool is not None and self._spool.untaken and self._window.room:
            try:
                taken = self._spool.take(self._window.room)
            except errors.EntryDamagedError as error:
                self._tally.reject("", error.code, "event", str(error))
                continue
            if not len(self._window):
                self._progress_s = time.monotonic()
            for outgoing in taken:
                self._window.add(outgoing)
            self._refilled += len(taken)
        if self._spool is not None and not len(self._window) and not self._spool.untaken and self._spool.unreleased:
            self._release(self._spool.taken_through)
            self._condition.notify_all()

    def _send(self) -> None:
        """Send the window if it is due. Sending a message per event would make the relay commit small groups."""
        while self._window.is_due and time.monotonic() >= self._pause_until_s:
            first_seq, events = self._window.unsent(self._settings.message_bytes)
            if not events:
                return
            publish = Publish(
                producer_id=self._producer_id,
                epoch=self._epoch,
                first_seq=first_seq,
                base_seq=self._window.base_seq,
                attempt=self._window.attempt,
                events=events,
            )
            if not self._socket.send([b"", encode(publish)]):
                return
            self._window.mark_sent(len(events))

    def _resend_if_late(self) -> None:
        """Reconnect and resend everything if no ack has arrived for too long."""
        now_s = time.monotonic()
        if not len(self._window):
            self._progress_s = now_s
        elif now_s - self._progress_s > self._settings.ack_timeout_s and now_s >= self._pause_until_s:
            self._socket.reconnect()
            self._window.rewind()
            self._progress_s = now_s
            self._mark_away()
            self._send()

    def _wait_s(self) -> float:
        if not len(self._window):
            return _IDLE_WAIT_S
        due_s = max(self._progress_s + self._settings.ack_timeout_s, self._pause_until_s)
        if self._pause_until_s > time.monotonic():
            due_s = self._pause_until_s
        return max(0.0, due_s - time.monotonic()) + 0.001

    def _mark_away(self) -> None:
        """Record that the relay is unreachable, and copy the window into the spool if it fits."""
        self._away = True
        if self._spool is not None:
            with contextlib.suppress(errors.SpoolFullError):  # the events stay in the window, and `publish` raises
                self._spool.keep(self._window, datetime.now(UTC))
        self._condition.notify_all()

    def _receive(self, frames: list[bytes]) -> None:
        try:
            message = decode_receipt(frames[-1])
        except errors.ProtocolError:
            return
        with self._condition.lock:
            if message.epoch != self._epoch:
                return
            if isinstance(message, Ack):
                self._settle(message)
            elif message.attempt == self._window.attempt:
                self._refused(message)
            self._condition.notify_all()
            counts = self._counts
        self._tally.call_back(*counts)

    def _settle(self, ack: Ack) -> None:
        self._away = False
        self._pause_until_s = 0.0
        self._progress_s = time.monotonic()
        released = 0
        for outgoing, receipt in self._window.receive(ack):
            self._tally.settle(outgoing, receipt)
            released = max(released, outgoing.spool_seq)
        if self._spool is not None and released:
            self._release(released)

    def _release(self, through_seq: int) -> None:
        assert self._spool is not None
        with contextlib.suppress(
            errors.JournalFullError
        ):  # a later ack releases the event, or the relay recognises it as a repeat
            self._spool.release(through_seq, datetime.now(UTC))

    def _refused(self, refusal: Refusal) -> None:
        error = errors.rebuild(refusal.code, refusal.arguments)
        if isinstance(error, errors.UnauthorizedError) and self._socket.reload_token():
            self._window.rewind()  # meanwhile, the relay has created its token
            return
        if not error.retryable:
            raise error
        self._window.rewind()
        self._progress_s = time.monotonic()
        if isinstance(error, (errors.JournalPausedError, errors.ConsumerBehindError)):
            self._pause_until_s = time.monotonic() + self._settings.full_pause_s
            self._mark_away()


@dataclass(eq=False)
class _Waiting:
    """An event that waits for the background thread. `is_taken` is None until the thread has processed it."""

    event: Event
    data: bytes
    is_taken: bool | None = None
    error: Exception | None = None


class AsyncPublisher:
    """`Publisher` for an event loop: the same thread and guarantees, without blocking the loop."""

    def __init__(
        self,
        ingest: str,
        *,
        settings: PublisherSettings | None = None,
        limits: EventLimits | None = None,
        spool: Path | None = None,
        producer_id: str = "",
        on_progress: Callable[[Progress], None] | None = None,
        identity: Identity | None = None,
    ) -> None:
        """Connect; the arguments are those of `Publisher`. `on_progress` is called in another thread."""
        self._publisher = Publisher(
            ingest,
            settings=settings,
            limits=limits,
            spool=spool,
            producer_id=producer_id,
            on_progress=on_progress,
            identity=identity,
        )
        self._order = asyncio.Lock()

    async def publish(self, event: Event | Mapping[str, Any], timeout_s: float | None = None) -> str:
        """Queue an event, preserving the order of the calls; return its `event_id`. Raises as `Publisher.publish`."""
        async with self._order:
            event_id = self._publisher.try_publish(event)
            if event_id is None:
                event_id = await asyncio.to_thread(self._publisher.publish, event, timeout_s)
            return event_id

    async def flush(self, timeout_s: float = 30.0) -> FlushReport:
        """Wait until every event is acknowledged or rejected, like `Publisher.flush`."""
        return await asyncio.to_thread(self._publisher.flush, timeout_s)

    @property
    def acked_through(self) -> dict[str, int]:
        return self._publisher.acked_through

    async def close(self) -> None:
        """Flush and stop, like `Publisher.close`."""
        await asyncio.to_thread(self._publisher.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        try:
            await self.close()
        except errors.RelayError:
            if kind is None:
                raise


def _mapping(event: Event) -> dict[str, Any]:
    return {field: getattr(event, field) for field in event.__struct_fields__}
