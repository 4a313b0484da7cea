"""A host process: its sockets, their threads, and the memories of several users behind them. Independent of Ray.

`HostServer` has one socket for requests and one for batches of events, with separate threads, so that recalls never
queue behind ingestion. `Workers` shares the threads of a socket fairly among users.
"""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from weakref import WeakValueDictionary

from memory_agent.archiving import UserFiles, copy_records, fetch_home
from memory_agent.daemon.disk_room import DiskRoom
from memory_agent.daemon.lease import Lease
from memory_agent.embedders import Embedder
from memory_agent.erasure.logs import INTENT_FILE
from memory_agent.errors import (
    EncryptionKeyMissingError,
    FencedError,
    HostDiedError,
    MemoryAgentError,
    ModelError,
    ProtocolError,
    StoreError,
    StoreFullError,
    UnavailableError,
    UnknownMethodError,
)
from memory_agent.knowledge import Knowledge
from memory_agent.memory import Memory, Sizes
from memory_agent.records.placement import Placement, Position
from memory_agent.records.shared_requests import NO_RIGHTS, Rights, SharedStore
from memory_agent.rerankers import ChatModel, open_reranker
from memory_agent.settings import EmbedderSettings, Settings
from memory_agent.storage.folders import user_folder
from memory_agent.tracing import current_span, server_span
from memory_agent.verbs.params import AGED_AT_ONCE, Params
from memory_agent.verbs.protocol import (
    NOT_DONE,
    OUTCOME_UNKNOWN,
    HostEndpoints,
    HostFigures,
    HostRequest,
    IngestBatch,
    decode,
    decode_host_request,
    encode_fault,
    encode_result,
)
from memory_agent.verbs.table import BY_NAME, Verb
from relay import SHARED_USER, CurveAuthenticator, is_curve
from relay.access import CurvePair
from relay.log import log
from relay.net import Message, ReplySocket

_POLL_S = 0.5
_FILL_CHUNK = 256
_COUNTS_WITHIN_S = 1.0
NOT_PLACED = Placement()
_MUST_NOT_WRITE = (FencedError, EncryptionKeyMissingError)

Answer = Callable[[HostRequest, bytes], bytes]


def shared_socket(run_folder: Path) -> Path:
    """Return the socket file of the host of shared items, to which other hosts and the daemon connect."""
    return run_folder / "shared.sock"


def internal_error(cause: BaseException) -> MemoryAgentError:
    """Return the error for a bug in a host. It is not retryable: a retry would fail again."""
    return MemoryAgentError(f"internal error ({type(cause).__name__}); the daemon's log has the traceback")


class HostServer:
    def __init__(
        self,
        host: MemoryHost,
        endpoints: HostEndpoints,
        answer_threads: int,
        ingest_threads: int,
        curve: CurvePair | None = None,
    ) -> None:
        """Bind the sockets, replacing socket files left behind by an earlier process. Raises `UnavailableError`.

        `curve`: the key pair of the cluster, for CURVE endpoints, which accept only peers with the same pair.
        """
        answers, batches = _bound(endpoints.answer, curve), _bound(endpoints.ingest, curve)
        remote = _bound(endpoints.remote, curve) if endpoints.remote else None
        self.endpoints = HostEndpoints(
            answer=answers.endpoint, ingest=batches.endpoint, remote="" if remote is None else remote.endpoint
        )

        self._workers = [
            Workers("answer", answers, answer_threads, partial(_answer, host)),
            Workers("ingest", batches, ingest_threads, partial(_ingest, host)),
        ]
        if remote is not None:
            self._workers.append(Workers("remote", remote, answer_threads, partial(_answer, host)))

    def close(self) -> None:
        """Finish the requests in progress."""
        for workers in self._workers:
            workers.close()


def _bound(endpoint: str, curve: CurvePair | None) -> ReplySocket:
    if curve is None or not is_curve(endpoint):
        return ReplySocket(endpoint)
    return ReplySocket(endpoint, CurveAuthenticator(curve, lambda key: key == curve.public))


def _decoded(method: str, params: bytes) -> tuple[Verb, Params]:
    verb = BY_NAME.get(method)
    if verb is None or verb.answered_by != "memory":
        raise UnknownMethodError(method)
    return verb, decode(params, verb.params)


def _answer(host: MemoryHost, request: HostRequest, params: bytes) -> bytes:
    left_ms = request.remaining_ms(time.time())
    placement = request.placement
    with server_span("host", request.method, request.traceparent):
        return host.leased(
            lambda: host.call(request.user_id, request.method, params, left_ms, request.rights, placement)
        )


def _ingest(host: MemoryHost, request: HostRequest, batch: bytes) -> bytes:
    return host.leased(lambda: host.ingest(request.user_id, batch, request.placement))


@dataclass(frozen=True)
class _Job:
    message: Message
    request: HostRequest
    body: bytes


class Workers:
    """The threads of one socket. No user occupies more than half of them.

    A user's further requests wait in a queue. A thread that finishes one of the user's requests takes the next. Each
    thread receives requests, answers them and sends the replies itself: passing requests between threads took 0.5 ms
    (measured).
    """

    def __init__(self, name: str, socket: ReplySocket, threads: int, answer: Answer) -> None:
        """`close` also closes the socket."""
        self._socket = socket
        self._answer = answer
        self._share = max(1, threads // 2)
        self._guard = threading.Lock()
        self._running: Counter[str] = Counter()
        self._waiting: defaultdict[str, deque[_Job]] = defaultdict(deque)
        self._is_closed = False
        self._threads = [threading.Thread(target=self._work, name=name, daemon=True) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Finish the requests in progress, drop the waiting requests, end the threads and close the socket."""
        self._is_closed = True
        self._socket.stop()
        for thread in self._threads:
            thread.join()
        self._socket.close()

    def _work(self) -> None:
        """An unexpected error ends the process, because without its threads it could not answer requests."""
        try:
            while not self._is_closed:
                message = self._socket.receive(_POLL_S)
                if message is None:
                    if not self._is_closed:
                        self._socket.listen_again()  # recreates a deleted socket file
                elif (job := self._read(message)) is not None:
                    self._run_or_queue(job)
        except BaseException:
            log.exception("worker.failed")
            os._exit(1)

    def _read(self, message: Message) -> _Job | None:
        """Decode a request; reply to a malformed request with a fault and return None."""
        try:
            return _Job(message, *decode_host_request(message.frames))
        except ProtocolError as error:
            self._socket.reply(message, [encode_fault(error)])
            return None

    def _run_or_queue(self, job: _Job) -> None:
        """Run the job and its user's waiting jobs; queue it if the user's share of the threads is in use."""
        user_id = job.request.user_id
        with self._guard:
            if self._running[user_id] >= self._share:
                self._waiting[user_id].append(job)
                return
            self._running[user_id] += 1
        following: _Job | None = job
        while following is not None:
            self._socket.reply(following.message, self._reply(following))
            following = self._next(user_id)

    def _next(self, user_id: str) -> _Job | None:
        """Return the user's next waiting job. If there is none, release the thread."""
        with self._guard:
            waiting = self._waiting.get(user_id)
            if waiting and not self._is_closed:
                return waiting.popleft()
            self._waiting.pop(user_id, None)
            self._running[user_id] -= 1
            if not self._running[user_id]:
                del self._running[user_id]
            return None

    def _reply(self, job: _Job) -> list[bytes]:
        """Return the reply. If a bug raises an exception, return a fault and, for the daemon's log, a traceback without
        the exception's text.
        """
        try:
            return [self._answer(job.request, job.body)]
        except Exception as error:  # noqa: BLE001 - a bug in one request must not end the process
            trace = "".join(traceback.format_tb(error.__traceback__)) + type(error).__name__
            return [encode_fault(internal_error(error)), trace.encode()]


class MemoryHost:
    """The memories of this process. Thread-safe.

    A memory is opened on its user's first request. A memory that failed or was fenced is closed at once; the next
    request opens and verifies it again.
    """

    def __init__(
        self,
        data_dir: Path,
        settings: Settings,
        embedder: Embedder,
        shared: SharedStore | None = None,
        files: UserFiles | None = None,
        lease: Lease | None = None,
    ) -> None:
        """The caller closes `embedder` and `shared`. A host that needs a `lease` answers only while it is valid."""
        self._files = files
        self._lease = lease
        self._epochs: dict[str, int] = {}
        self._room = DiskRoom(data_dir, settings.store.reserve_bytes)
        self._data_dir = data_dir
        self._settings = settings
        self._embedder = embedder
        self._shared = shared
        self._reranker = open_reranker(settings.judge)
        self._memories: dict[str, Memory] = {}
        self._locks: WeakValueDictionary[str, threading.Lock] = WeakValueDictionary()
        self._guard = threading.Lock()

    def leased(self, answer: Callable[[], bytes]) -> bytes:
        """Return the answer. Without a lease, return `NOT_DONE` or `OUTCOME_UNKNOWN`, since another host may serve the
        user.

        Changes written without a lease stay in this node's files, which the user's next host does not use.
        """
        if not self._has_lease:
            return NOT_DONE
        reply = answer()
        return reply if self._has_lease else OUTCOME_UNKNOWN

    def call(
        self,
        user_id: str,
        method: str,
        params: bytes,
        deadline_ms: float,
        rights: Rights = NO_RIGHTS,
        placement: Placement = NOT_PLACED,
    ) -> bytes:
        """Answer one request of `user_id`; return the encoded reply, which contains an error as a fault.

        On another node of a cluster, the changes made by a verb are archived before the reply is sent.
        """
        started_s = time.monotonic()
        try:
            verb, decoded = _decoded(method, params)
            memory = self._awake(user_id, placement)
        except (MemoryAgentError, OSError) as error:
            return self._fault(user_id, None, error)
        remaining_ms = deadline_ms - (time.monotonic() - started_s) * 1000
        return self._answered(user_id, memory, verb, decoded, remaining_ms, rights)

    def _answered(
        self, user_id: str, memory: Memory, verb: Verb, params: Params, remaining_ms: float, rights: Rights
    ) -> bytes:
        try:
            found = verb.answer(memory, params, remaining_ms, rights)
            current_span().note(found, user_id)
            result = encode_result(found)
            if self._files is not None and verb.repeat != "read":
                self._files.archive(user_id)
            return result
        except (MemoryAgentError, OSError) as error:
            return self._fault(user_id, memory, error)

    def call_awake(self, user_id: str, method: str, params: bytes, deadline_ms: float) -> bytes:
        """Like `call`, for callers that looked up the actor earlier; returns a fault if the user is not awake here.

        Waking the user could open the store of a user who has moved to another host.
        """
        reply = self.leased(lambda: self._call_awake(user_id, method, params, deadline_ms))
        if reply in (NOT_DONE, OUTCOME_UNKNOWN):
            return encode_fault(HostDiedError(f"{user_id} may have moved"))
        return reply

    def _call_awake(self, user_id: str, method: str, params: bytes, deadline_ms: float) -> bytes:
        memory = self._memories.get(user_id)
        if memory is None:
            return encode_fault(HostDiedError(f"{user_id} is not awake here"))
        try:
            return self._answered(user_id, memory, *_decoded(method, params), deadline_ms, NO_RIGHTS)
        except MemoryAgentError as error:
            return encode_fault(error)

    def ingest(self, user_id: str, batch: bytes, placement: Placement = NOT_PLACED) -> bytes:
        """Ingest journal entries; the reply contains an `IngestReport`. Durable on return."""
        memory = None
        try:
            entries = decode(batch, IngestBatch)
            memory = self._awake(user_id, placement)
            events = [data for _, data in entries.events]
            seqs = None if entries.replay else [seq for seq, _ in entries.events]
            return encode_result(memory.ingest_encoded(events, seqs=seqs, ahead=entries.ahead))
        except (MemoryAgentError, OSError) as error:
            return self._fault(user_id, memory, error)

    def keep_up(self, now: datetime, *, fill_vectors: bool = False) -> HostFigures:
        """Run the upkeep of every awake user: expire runs and memories, consolidate learning, compute missing vectors.

        A failure for one user does not affect the others. Returns this host's figures.
        """
        for memory in self._awake_memories():
            try:
                memory.expire(now)
                if not self._is_away:
                    memory.erasure.resume()
                    memory.erasure.age(now, AGED_AT_ONCE)
                memory.sona.consolidate(now)
                self._report(memory, now)
            except MemoryAgentError as error:
                log.warning("memory.not_kept_up", user_id=memory.user_id, code=error.code)
                if isinstance(error, EncryptionKeyMissingError):
                    self._forget_if_broken(memory.user_id, memory, error)
            except Exception:
                log.exception("memory.upkeep_failed", user_id=memory.user_id)
        for memory in self._awake_memories() if fill_vectors else ():
            self._fill_vectors(memory)
        return self._figures()

    def _figures(self) -> HostFigures:
        """Memories that are being closed are not counted."""
        gates, sizes = Counter[str](), [Sizes(0, 0, 0)]
        for memory in self._awake_memories():
            with suppress(MemoryAgentError, OSError):
                sizes.append(memory.care.sizes())
                if memory.user_id != SHARED_USER:
                    gates[memory.sona.gate] += 1
        memories, waiting, store_bytes = map(sum, zip(*sizes, strict=True))
        calls = None
        if not isinstance(self._settings.embedder, EmbedderSettings):
            with suppress(ModelError):
                calls = self._embedder.provider_calls(_COUNTS_WITHIN_S)
        return HostFigures(
            memories=memories,
            waiting=waiting,
            store_bytes=store_bytes,
            gates=dict(gates),
            embedder=calls,
            judge=self._reranker.calls() if isinstance(self._reranker, ChatModel) else None,
        )

    def renew(self, written_s: float, lease_s: float, was_full: bool) -> tuple[float, bool]:
        """Renew the lease (`Lease.renew`); return the current time, and the result of `DiskRoom.check`."""
        assert self._lease is not None
        return self._lease.renew(written_s, lease_s), self._room.check(was_full=was_full)

    def archive(self, user_id: str) -> Position:
        """Archive everything that was written to the open memory of a user; return the state of the archive.

        Raises `ArchiveUnavailableError`, and `UnavailableError` if the user is not awake here.
        """
        position = None if self._files is None else self._files.archive(user_id)
        if position is None:
            raise UnavailableError(f"{user_id} is not awake here")
        return position

    def release(self, user_id: str, placement: Placement) -> Position | None:
        """Close the memory of a user at home and release its files (`UserFiles.release`).

        Raises `UnavailableError` for a user with an unfinished erasure, which must be completed here.
        """
        assert self._files is not None
        if (user_folder(self._data_dir, user_id) / INTENT_FILE).exists():
            raise UnavailableError(f"an erasure of {user_id} is not finished yet")
        self.sleep(user_id)
        with self._lock(user_id):
            return self._files.release(user_id, placement)

    def discard(self, user_id: str, epoch: int) -> None:
        """Delete the user's files that remain here from before this epoch of the placement (`UserFiles.discard`)."""
        assert self._files is not None
        with self._lock(user_id):
            if self._epochs.get(user_id, 0) < epoch:
                memory = self._memories.pop(user_id, None)
                if memory is not None:
                    memory.abandon()
                self._forget(user_id)
                self._files.discard(user_id, epoch)

    def discard_archive(self, user_id: str, epoch: int) -> None:
        assert self._files is not None
        self._files.discard_archive(user_id, epoch)

    def sleep(self, user_id: str) -> Position | None:
        """Commit, save the caches and close the memory of `user_id`.

        On another node of a cluster, also archive it, and return the state of the archive. Raises
        `ArchiveUnavailableError` if archiving fails; nothing is lost, and the next request opens the memory again.
        """
        with self._lock(user_id):
            memory = self._memories.pop(user_id, None)
            if memory is not None:
                memory.close()
                log.info("memory.slept", user_id=user_id)
            self._epochs.pop(user_id, None)
            return None if self._files is None else self._files.close(user_id)

    def close(self) -> None:
        if self._reranker is not None:
            self._reranker.close()  # first, because running recalls may wait for the reranker
        for user_id in list(self._memories):
            try:
                self.sleep(user_id)
            except MemoryAgentError as error:  # the memory is closed, and its changes remain in its files
                log.warning("memory.not_archived", user_id=user_id, code=error.code)

    def _report(self, memory: Memory, now: datetime) -> None:
        """If the shared store is unavailable, the next upkeep repeats the report."""
        with suppress(UnavailableError):
            memory.shared.report(now - timedelta(seconds=self._settings.shared.report_after_s))

    def _fill_vectors(self, memory: Memory) -> None:
        try:
            if memory.fill_vectors(_FILL_CHUNK) == _FILL_CHUNK:  # more vectors are missing
                memory.fill_in_background()
        except MemoryAgentError as error:
            log.warning("vectors.not_filled", user_id=memory.user_id, code=error.code)

    @property
    def _has_lease(self) -> bool:
        return self._lease is None or self._lease.is_valid

    @property
    def _is_away(self) -> bool:
        """Whether this host is on a different machine from the daemon."""
        return self._lease is not None

    def _awake(self, user_id: str, placement: Placement) -> Memory:
        memory = self._memories.get(user_id)
        if memory is not None and self._epochs.get(user_id, 0) == placement.epoch:
            return memory
        with self._lock(user_id):
            opened = self._epochs.get(user_id, 0)
            memory = self._memories.get(user_id)
            if memory is not None and placement.epoch < opened:  # a late request
                raise FencedError(str(user_folder(self._data_dir, user_id)), placement.epoch, opened)
            if memory is not None and placement.epoch > opened:  # the user has been on another node since
                del self._memories[user_id]
                memory.abandon()
                self._forget(user_id)
            if user_id not in self._memories:
                self._memories[user_id] = self._wake(user_id, placement)
            return self._memories[user_id]

    def _copy_records(self, user_id: str, folder: Path) -> None:
        """Copy from the open memory, because a process must not open the same LMDB environment twice."""
        memory = self._memories.get(user_id)
        if memory is not None:
            memory.copy_records(folder)
        else:
            copy_records(user_folder(self._data_dir, user_id), user_id, self._settings, folder)

    def _forget(self, user_id: str) -> None:
        self._epochs.pop(user_id, None)
        if self._files is not None:
            self._files.forget(user_id)

    def _wake(self, user_id: str, placement: Placement) -> Memory:
        started_s = time.monotonic()
        kind = Knowledge if user_id == SHARED_USER else Memory
        on_commit = None
        if self._files is None:
            fetch_home(self._data_dir, self._settings, user_id)  # a cluster may have run on this folder
        elif user_id != SHARED_USER:
            on_commit = self._files.prepare(user_id, placement, partial(self._copy_records, user_id))
        memory = kind.open(
            user_folder(self._data_dir, user_id),
            user_id=user_id,
            settings=self._settings,
            embedder=self._embedder,
            role="host",
            age_now=not self._is_away,
            shared=self._shared,
            on_commit=on_commit,
        )
        memory.judge.share(self._reranker)
        if self._files is not None and user_id != SHARED_USER:
            try:
                self._files.require_current(user_id, placement)  # now that the folder is owned
            except FencedError:
                memory.abandon()
                self._forget(user_id)
                raise
        if placement.epoch:
            self._epochs[user_id] = placement.epoch
        current_span().mark("waking")
        log.info("memory.woken", user_id=user_id, took_ms=round((time.monotonic() - started_s) * 1000, 1))
        return memory

    def _awake_memories(self) -> list[Memory]:
        with self._guard:
            return list(self._memories.values())

    def _lock(self, user_id: str) -> threading.Lock:
        """The lock exists while a thread holds it or waits for it."""
        with self._guard:
            return self._locks.setdefault(user_id, threading.Lock())

    def _fault(self, user_id: str, memory: Memory | None, cause: MemoryAgentError | OSError) -> bytes:
        error = StoreError(f"{type(cause).__name__}: {cause.strerror}") if isinstance(cause, OSError) else cause
        self._forget_if_broken(user_id, memory, error)
        current_span().fail(error.code)
        return encode_fault(error)

    def _forget_if_broken(self, user_id: str, memory: Memory | None, error: MemoryAgentError) -> None:
        """Close a memory that failed, unless another thread has already replaced it.

        A full disk does not count: the memory still answers, and reopening it would need space.
        """
        if not isinstance(error, StoreError):
            return
        self._room.suspect()
        if isinstance(error, StoreFullError):
            return
        log.error("memory.failed", user_id=user_id, code=error.code)
        with self._lock(user_id):
            if memory is not None and self._memories.get(user_id) is memory:
                del self._memories[user_id]
                memory.abandon() if isinstance(error, _MUST_NOT_WRITE) else memory.close()
                self._forget(user_id)
