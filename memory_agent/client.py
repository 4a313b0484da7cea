"""A user's memory through the daemon: `MemoryClient` blocks, `AsyncMemoryClient` awaits; both ask the same things.

Both satisfy the `MemoryProvider` protocol (the second with coroutines). A client needs the data folder of a daemon on
this machine, or the endpoint and token of one elsewhere.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar, Unpack

import msgspec

from memory_agent.api import RecallOptions
from memory_agent.calls import Call, listed, recall_call
from memory_agent.client_care import ClientCare
from memory_agent.client_erasure import AsyncClientErasure, ClientErasure
from memory_agent.client_runs import AsyncClientRuns, ClientRuns, feedback_call
from memory_agent.client_sona import AsyncClientSona, ClientSona
from memory_agent.errors import DeadlineExceededError, InvalidInputError, SettingsError, UnavailableError
from memory_agent.layout import KEY_FILE_VARIABLE, TOKEN_VARIABLE, Layout, default_data_dir
from memory_agent.protocol import (
    DEFAULT_USER,
    DaemonStatus,
    HostAddress,
    IdsParams,
    NoParams,
    QuarantinedEvent,
    QuarantineIdsParams,
    QuarantineParams,
    RememberParams,
    Request,
    RetryReport,
    WaitParams,
    decode_reply,
    encode_fields,
)
from memory_agent.records import (
    Kind,
    MemoryFilter,
    MemoryRecord,
    MemoryStats,
    Mode,
    Provenance,
    RecallResult,
    Source,
)
from memory_agent.run_params import SessionParams
from memory_agent.trajectory import FeedbackReport
from relay import Identity, RelaySettingsError, identity_of, read_key_file
from relay.net import AsyncRequestSocket, RequestSocket

_GRACE_S = 0.5
"""How much longer a client waits than it tells the daemon, so that the daemon's own answer arrives."""

T = TypeVar("T")


@dataclass(frozen=True)
class Address:
    """Where a daemon listens. `is_local`: at the socket file of `layout`; `named_token` goes before the layout's."""

    endpoint: str
    layout: Layout
    is_local: bool
    named_token: str | None
    identity: Identity

    @property
    def token(self) -> str:
        """What shows that we may ask; read anew each time, since a daemon's first start makes it."""
        return self.layout.token() if self.named_token is None else self.named_token

    def require(self) -> None:
        """Raise `UnavailableError` when it is known that no daemon runs there."""
        if self.is_local and not self.layout.daemon_runs():
            raise UnavailableError(
                f"no daemon serves {self.layout.data_dir}; start it with: "
                f"memory-agent serve --data-dir {self.layout.data_dir}"
            )


def find_daemon(
    data_dir: Path | str | None, endpoint: str | None, token: str | None, key_file: Path | str | None = None
) -> Address:
    """Return the address of the daemon at `endpoint`, or of the one that serves `data_dir`, and what to show there.

    Where neither token nor key file is named, $MEMORY_AGENT_KEY_FILE is obeyed, then $MEMORY_AGENT_TOKEN, as by the
    command line. Raises `SettingsError` for a key file that cannot be read.
    """
    layout = Layout(Path(data_dir) if data_dir is not None else default_data_dir())
    if token is None and key_file is None:
        key_file = os.environ.get(KEY_FILE_VARIABLE) or None
        token = None if key_file else os.environ.get(TOKEN_VARIABLE) or None
    identity = Identity() if key_file is None else _identity(Path(key_file).expanduser())
    named = identity.token if token is None and key_file is not None else token
    return Address(endpoint or layout.gateway, layout, endpoint is None, named, identity)


def _identity(path: Path) -> Identity:
    try:
        return identity_of(read_key_file(path))
    except RelaySettingsError as error:
        raise SettingsError(error.setting, error.reason) from error


def _checked(user_id: str | None) -> str:
    """Return what a request says of who was named; a name that came out empty is not nobody's."""
    if user_id == "":
        raise InvalidInputError("user_id", "is empty: leave it out, or name a user")
    return user_id or ""


class MemoryClient:
    """One user's memory through the daemon. May be shared by threads."""

    def __init__(
        self,
        user_id: str | None = None,
        *,
        data_dir: Path | str | None = None,
        endpoint: str | None = None,
        token: str | None = None,
        key_file: Path | str | None = None,
    ) -> None:
        """Ask the daemon that serves `data_dir` (default: $MEMORY_AGENT_DATA_DIR, else the platform's
        folder), or the one at `endpoint`.

        Who asks is shown by a `token` or by the file that `keys create` wrote; without either by what
        $MEMORY_AGENT_KEY_FILE or $MEMORY_AGENT_TOKEN names, else by the data folder's own token. A key for one user
        need not be told which, and is refused another; without a name any other key asks for the user `default`.
        `curve+tcp://` endpoints need the file of a CURVE key. Raises `SettingsError` for a key file that is none.
        """
        self._address = find_daemon(data_dir, endpoint, token, key_file)
        self._named = _checked(user_id)
        self.user_id = user_id or self._address.identity.user_id or DEFAULT_USER
        self._guard = threading.Lock()
        self._idle: list[RequestSocket] = []
        self.runs = ClientRuns(self._send)
        self.sona = ClientSona(self._send)
        self.care = ClientCare(self._send)
        self.erasure = ClientErasure(self._send)

    def recall(
        self,
        query: str,
        top_k: int | None = None,
        filter: MemoryFilter | None = None,
        mode: Mode | None = None,
        deadline_ms: float | None = None,
        **options: Unpack[RecallOptions],
    ) -> RecallResult:
        """As `MemoryProvider.recall`; raises `UnavailableError` without a daemon, `DeadlineExceededError`."""
        return self._send(recall_call(query, top_k, filter, mode, deadline_ms, options))

    def remember(
        self,
        text: str,
        kind: Kind = "finding",
        source: Source = "user_input",
        *,
        tags: Sequence[str] = (),
        title: str | None = None,
        provenance: Provenance | None = None,
        metadata: Mapping[str, Any] | None = None,
        session_id: str | None = None,
    ) -> MemoryRecord:
        """Store a memory; durable on return."""
        params = RememberParams(
            text=text,
            kind=kind,
            source=source,
            tags=listed("tags", tags),
            title=title,
            provenance=provenance,
            metadata=dict(metadata or {}),
            session_id=session_id,
        )
        return self._send(Call("remember", params, MemoryRecord))

    def get(self, ids: Sequence[str]) -> list[MemoryRecord]:
        """Return the records with these ids; unknown ones are left out."""
        return self._send(Call("get", IdsParams(ids=listed("ids", ids)), list[MemoryRecord]))

    def forget(self, ids: Sequence[str]) -> int:
        """Delete records, their vectors and words; return how many there were. Durable on return."""
        return self._send(Call("forget", IdsParams(ids=listed("ids", ids)), int))

    def forget_session(self, session_id: str) -> int:
        """Delete all that is known of a session, runs too; return how many records there were. Durable on return."""
        return self._send(Call("forget_session", SessionParams(session_id=session_id), int))

    def feedback(
        self,
        recall_id: str,
        used: Sequence[str] = (),
        quality: float | None = None,
        comment: str | None = None,
        *,
        event_id: str | None = None,
    ) -> FeedbackReport:
        """Tell which memories of a recall were used and how well it ended (0..1). Durable on return."""
        return self._send(feedback_call(recall_id, used, quality, comment, event_id))

    def stats(self) -> MemoryStats:
        """Return the figures of this user's memory."""
        return self._send(Call("stats", NoParams(), MemoryStats))

    def status(self) -> DaemonStatus:
        """Return what the daemon is doing."""
        return self._send(Call("status", NoParams(), DaemonStatus))

    def address(self) -> HostAddress:
        """Wake the user and tell which Ray actor hosts it."""
        return self._send(Call("address", NoParams(), HostAddress))

    def wait(self, through: Mapping[str, int], timeout_s: float) -> None:
        """Return when all events of each user up to a journal number are recallable or in quarantine."""
        self._send(Call("wait", WaitParams(through=dict(through)), type(None), timeout_s * 1000))

    def quarantined(self, after: int = 0, limit: int = 100) -> list[QuarantinedEvent]:
        """Return events that could not be handled, oldest first."""
        return self._send(Call("quarantine_list", QuarantineParams(after=after, limit=limit), list[QuarantinedEvent]))

    def retry_quarantined(self, ids: Sequence[int] = ()) -> RetryReport:
        """Try quarantined events again; all of them without `ids`."""
        return self._send(Call("quarantine_retry", QuarantineIdsParams(ids=tuple(ids)), RetryReport, 60_000.0))

    def drop_quarantined(self, ids: Sequence[int] = ()) -> int:
        """Delete quarantined events for good; all of them without `ids`. Return how many."""
        return self._send(Call("quarantine_drop", QuarantineIdsParams(ids=tuple(ids)), int, 60_000.0))

    def close(self) -> None:
        """Close the connections; requests of other threads must not be under way."""
        with self._guard:
            while self._idle:
                self._idle.pop().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send(self, call: Call[T]) -> T:
        self._address.require()
        request = _encode(call, self._named, self._address.token)
        try:
            with self._socket() as socket:
                frames = socket.request(request, call.deadline_ms / 1000 + _GRACE_S)
        except DeadlineExceededError:
            self._address.require()
            raise
        return decode_reply(frames[0], call.result)

    @contextmanager
    def _socket(self) -> Iterator[RequestSocket]:
        """Lend a socket to one request: as many as there are requests at a time, however many threads come and go."""
        with self._guard:
            socket = self._idle.pop() if self._idle else None
        socket = socket or RequestSocket(self._address.endpoint, self._address.identity)
        try:
            yield socket
        finally:
            with self._guard:
                self._idle.append(socket)


class AsyncMemoryClient:
    """One user's memory through the daemon, inside an event loop. Any number of requests at a time."""

    def __init__(
        self,
        user_id: str | None = None,
        *,
        data_dir: Path | str | None = None,
        endpoint: str | None = None,
        token: str | None = None,
        key_file: Path | str | None = None,
    ) -> None:
        """As `MemoryClient`."""
        self._address = find_daemon(data_dir, endpoint, token, key_file)
        self._named = _checked(user_id)
        self.user_id = user_id or self._address.identity.user_id or DEFAULT_USER
        self._socket: AsyncRequestSocket | None = None
        self.runs = AsyncClientRuns(self._send)
        self.sona = AsyncClientSona(self._send)
        self.erasure = AsyncClientErasure(self._send)

    async def recall(
        self,
        query: str,
        top_k: int | None = None,
        filter: MemoryFilter | None = None,
        mode: Mode | None = None,
        deadline_ms: float | None = None,
        **options: Unpack[RecallOptions],
    ) -> RecallResult:
        """As `MemoryClient.recall`."""
        return await self._send(recall_call(query, top_k, filter, mode, deadline_ms, options))

    async def remember(self, text: str, **fields: Any) -> MemoryRecord:
        """Store a memory, with the fields of `MemoryClient.remember`; durable on return."""
        return await self._send(Call("remember", RememberParams(text=text, **fields), MemoryRecord))

    async def get(self, ids: Sequence[str]) -> list[MemoryRecord]:
        """As `MemoryClient.get`."""
        return await self._send(Call("get", IdsParams(ids=listed("ids", ids)), list[MemoryRecord]))

    async def forget(self, ids: Sequence[str]) -> int:
        """As `MemoryClient.forget`."""
        return await self._send(Call("forget", IdsParams(ids=listed("ids", ids)), int))

    async def forget_session(self, session_id: str) -> int:
        """As `MemoryClient.forget_session`."""
        return await self._send(Call("forget_session", SessionParams(session_id=session_id), int))

    async def feedback(
        self,
        recall_id: str,
        used: Sequence[str] = (),
        quality: float | None = None,
        comment: str | None = None,
        *,
        event_id: str | None = None,
    ) -> FeedbackReport:
        """As `MemoryClient.feedback`."""
        return await self._send(feedback_call(recall_id, used, quality, comment, event_id))

    async def stats(self) -> MemoryStats:
        """As `MemoryClient.stats`."""
        return await self._send(Call("stats", NoParams(), MemoryStats))

    async def wait(self, through: Mapping[str, int], timeout_s: float) -> None:
        """As `MemoryClient.wait`."""
        await self._send(Call("wait", WaitParams(through=dict(through)), type(None), timeout_s * 1000))

    async def close(self) -> None:
        """Close the connection."""
        if self._socket is not None:
            await self._socket.close()
            self._socket = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _send(self, call: Call[T]) -> T:
        self._address.require()
        if self._socket is None:
            self._socket = AsyncRequestSocket(self._address.endpoint, self._address.identity)
        request = _encode(call, self._named, self._address.token)
        frames = await self._socket.request(request, call.deadline_ms / 1000 + _GRACE_S)
        return decode_reply(frames[0], call.result)


def _encode(call: Call[Any], user_id: str, token: str) -> bytes:
    params = msgspec.Raw(encode_fields(call.params))
    return encode_fields(
        Request(
            method=call.method,
            user_id=user_id,
            deadline_ms=call.deadline_ms,
            params=params,
            token=token,
            version=call.version,
        )
    )
