"""The blocking client of a daemon, for one user's memory."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Self

from memory_agent.client.address import Attempts, check_named, find_daemon
from memory_agent.client.following import Blocks, Feed, Following
from memory_agent.client.methods import MemoryMethods
from memory_agent.errors import UnavailableError
from memory_agent.records.shared import SharedChange
from memory_agent.tracing import call_span
from memory_agent.triggers.block import Wanted
from memory_agent.verbs.protocol import DEFAULT_USER, decode_reply
from memory_agent.verbs.table import BY_METHOD, Call
from relay import SHARED_USER, Endpoints
from relay.net import RequestSocket


class MemoryClient(MemoryMethods):
    """One user's memory, accessed through the daemon. Thread-safe; a forked child opens its own connections.

    Every method raises the same errors as `Memory`, `DeadlineExceededError`, and, if no daemon is running,
    `UnavailableError`. If the daemon exits during a call and restarts within five seconds, a repeatable call is sent
    again. Otherwise, the method raises `ConnectionLostError`, which indicates whether the call may have taken effect.
    """

    def __init__(
        self,
        user_id: str | None = None,
        *,
        data_dir: Path | str | None = None,
        endpoint: str | None = None,
        token: str | None = None,
        key_file: Path | str | None = None,
        cells: Path | str | None = None,
    ) -> None:
        """Connect to the daemon at `endpoint`, to the daemon of `data_dir`, or to the user's cell.

        `cells` is a file for `read_cells`; `user_id` determines the cell. `data_dir` defaults to $MEMORY_AGENT_DATA_DIR
        or, if that is not set, to the platform's folder. The key is a `token` or a `key_file` that `keys create` wrote.
        It defaults to $MEMORY_AGENT_KEY_FILE, then to $MEMORY_AGENT_TOKEN, then to the data folder's own token.
        `user_id` defaults to the user of the key, or to `default` if the key is for all users. `curve+tcp://` endpoints
        require a CURVE key file. Raises `SettingsError` if a file is unreadable, and `InvalidInputError` if an argument
        is invalid.
        """
        super().__init__(self._ask_daemon)
        self._address = find_daemon(data_dir, endpoint, token, key_file, cells, user_id)
        self._named = check_named(user_id)
        self.user_id = user_id or self._address.identity.user_id or DEFAULT_USER
        self._renew()

    def _renew(self) -> None:
        """Start without connections: a forked child cannot use those of its parent."""
        self._process_id = os.getpid()
        self._guard = threading.Lock()  # a thread of the parent may have held the former lock during the fork
        self._idle: list[RequestSocket] = []

    def send(self, call: Call) -> Any:
        attempts = Attempts(self._address, call)
        with call_span(call.verb.name) as span:
            request = call.encode(self._named, self._address.token, span.traceparent)
            while True:
                try:
                    with self._socket() as socket:
                        frames = socket.request(request, attempts.remaining_s)
                    break
                except UnavailableError as error:
                    time.sleep(attempts.pause_s(error))
            result = decode_reply(frames[0], call.verb.result)
            span.note(result)
            return result

    def blocks(
        self,
        role: str | None = None,
        run: str | None = None,
        session: str | None = None,
        *,
        relay: Endpoints | None = None,
    ) -> Blocks:
        """Follow the blocks that the daemon publishes in response to events (`triggers.toml`), from this call on.

        `role`, `run` and `session` select blocks. For the user `system`, these are the blocks of the run's or session's
        owner. `relay`: the endpoints of the daemon's relay, required if the client was created with `endpoint`. Use the
        result in one thread, and close it. Raises `UnavailableError` and `InvalidInputError`.

        >>> with memory.blocks(role="conductor") as blocks:
        ...     text = {"text": "Staging needs the VPN"}
        ...     event_id = publisher.publish({"event_type": "user_input", "user_id": "alice", "payload": text})
        ...     next(blocks).cause_event_id == event_id
        True
        """
        wanted = Wanted(role, run, session)
        self._address.require()
        wanted.check(self.user_id)
        ask = partial(self.owner, run) if run is not None else partial(self.owner, None, session)
        return Blocks(Feed.of(self._address, relay), self.user_id, wanted.block_in, ask)

    def shared_changes(self, after: int | None = None, *, relay: Endpoints | None = None) -> Following[SharedChange]:
        """Follow changes to the shared items that the key may see: new changes or, with `after`, those after that
        journal number.

        The result's `seq` is the journal number of the last change. Everything else is the same as for `blocks`.

        >>> with memory.shared_changes() as changes:
        ...     item = memory.shared.confirm(memory.shared.preview("Staging needs the VPN", "Connect before a deploy"))
        ...     change = next(changes)
        ...     change.kind, change.item_id == item.id
        ('published', True)
        """
        self._address.require()
        return Following(Feed.of(self._address, relay), SHARED_USER, SharedChange.in_entry, after=after)

    def close(self) -> None:
        """Close the connections. No request may be running."""
        with self._guard:
            while self._idle:
                self._idle.pop().close()
        self._address.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask_daemon(self, method: str, /, **arguments: Any) -> Any:
        return self.send(BY_METHOD[method].call(arguments))

    @contextmanager
    def _socket(self) -> Iterator[RequestSocket]:
        """Yield an idle or new socket. The number of sockets depends on the number of concurrent requests, not of
        threads.
        """
        if self._process_id != os.getpid():
            self._renew()
        with self._guard:
            socket = self._idle.pop() if self._idle else None
        if socket is not None and socket.is_lost:  # the daemon was restarted
            socket.close()
            socket = None
        socket = socket or RequestSocket(self._address.endpoint, self._address.identity, once=True)
        try:
            yield socket
        finally:
            if socket.is_lost:
                socket.close()
            else:
                with self._guard:
                    self._idle.append(socket)
