"""The asyncio client of a daemon, for one user's memory."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any, Self

from memory_agent.client.address import Attempts, check_named, find_daemon
from memory_agent.client.async_methods import AsyncMemoryMethods
from memory_agent.client.following import AsyncBlocks, AsyncFollowing, Feed
from memory_agent.errors import UnavailableError
from memory_agent.records.shared import SharedChange
from memory_agent.tracing import call_span
from memory_agent.triggers.block import Wanted
from memory_agent.verbs.protocol import DEFAULT_USER, decode_reply
from memory_agent.verbs.table import BY_METHOD, Call
from relay import SHARED_USER, Endpoints
from relay.net import AsyncRequestSocket


class AsyncMemoryClient(AsyncMemoryMethods):
    """`MemoryClient` for asyncio, raising the same errors. Any number of requests may run concurrently."""

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
        """Same arguments as `MemoryClient`."""
        super().__init__(self._ask_daemon)
        self._address = find_daemon(data_dir, endpoint, token, key_file, cells, user_id)
        self._named = check_named(user_id)
        self.user_id = user_id or self._address.identity.user_id or DEFAULT_USER
        self._socket: AsyncRequestSocket | None = None

    async def send(self, call: Call) -> Any:
        attempts = Attempts(self._address, call)
        with call_span(call.verb.name) as span:
            request = call.encode(self._named, self._address.token, span.traceparent)
            while True:
                try:
                    frames = await self._connected().request(request, attempts.remaining_s)
                    break
                except UnavailableError as error:
                    await asyncio.sleep(attempts.pause_s(error))
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
    ) -> AsyncBlocks:
        """Like `MemoryClient.blocks`, but following starts with `async with`, `begin` or the first block."""
        wanted = Wanted(role, run, session)
        self._address.require()
        wanted.check(self.user_id)
        ask = partial(self.owner, run) if run is not None else partial(self.owner, None, session)
        return AsyncBlocks(Feed.of(self._address, relay), self.user_id, wanted.block_in, ask)

    def shared_changes(
        self, after: int | None = None, *, relay: Endpoints | None = None
    ) -> AsyncFollowing[SharedChange]:
        """Like `MemoryClient.shared_changes`, but following starts with `async with`, `begin` or the first change."""
        self._address.require()
        return AsyncFollowing(Feed.of(self._address, relay), SHARED_USER, SharedChange.in_entry, after=after)

    async def close(self) -> None:
        """Close the connection."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._address.release()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _connected(self) -> AsyncRequestSocket:
        if self._socket is not None and self._socket.is_lost:
            self._socket.close()
            self._socket = None
        if self._socket is None:
            self._socket = AsyncRequestSocket(self._address.endpoint, self._address.identity)
        return self._socket

    async def _ask_daemon(self, method: str, /, **arguments: Any) -> Any:
        return await self.send(BY_METHOD[method].call(arguments))
