"""The daemon's verbs over ZeroMQ: finds out who asks, bounds the requests under way, writes replies.

Who asks follows from the token in the request, or from the CURVE key of the connection, never from what the request
says (`scopes`). A request over the bound is refused at once with a retryable error. A user has a share of the bound,
with however many keys, so that one who floods, or waits for what never comes, leaves places to the others; and neither
keys of users nor keys for all users, all together, can take the last share from the other kind. Anything that is no
request gets a fault, never silence.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

import structlog

from memory_agent.daemon.places import Places
from memory_agent.daemon.scopes import permitted
from memory_agent.daemon.service import Service
from memory_agent.errors import MemoryAgentError, UnauthorizedError, UnavailableError
from memory_agent.protocol import Request, decode_request, encode_fault
from relay import Credentials, Principal, RelayError
from relay.net import AsyncReplySocket, Message

log = structlog.get_logger()


class Gateway:
    """Serves one service at some sockets."""

    def __init__(
        self,
        service: Service,
        sockets: Sequence[AsyncReplySocket],
        credentials: Credentials,
        limit: int,
        limit_bytes: int,
    ) -> None:
        """Answer at most `limit` requests at a time, of those whom `credentials` know, and of one user a quarter of
        them (8 at least), and no more than `limit_bytes` of them but one. `run` closes the sockets."""
        self._credentials = credentials
        self._service = service
        self._sockets = sockets
        self._limit = limit
        self._limit_bytes = limit_bytes
        self._bytes = 0
        self._places = Places(limit)
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Answer until cancelled; requests under way are then given up."""
        try:
            async with asyncio.TaskGroup() as group:
                for socket in self._sockets:
                    group.create_task(self._serve(socket))
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            for socket in self._sockets:
                socket.close()

    async def _serve(self, socket: AsyncReplySocket) -> None:
        while True:
            message = await socket.receive()
            size_bytes = sum(map(len, message.frames))
            if len(self._tasks) >= self._limit or (self._tasks and self._bytes + size_bytes > self._limit_bytes):
                error = UnavailableError("too many requests under way")
                await socket.reply(message, [encode_fault(error)])
                continue
            self._bytes += size_bytes
            task = asyncio.create_task(self._answer(socket, message))
            self._tasks.add(task)
            task.add_done_callback(partial(self._settle, size_bytes))

    def _settle(self, size_bytes: int, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._bytes -= size_bytes

    async def _answer(self, socket: AsyncReplySocket, message: Message) -> None:
        try:
            request = decode_request(message.frames[0])
            principal = self._principal(message, request)
            with self._places.taken_by(principal):
                reply = await self._service.handle(permitted(request, principal), principal)
        except MemoryAgentError as error:
            reply = encode_fault(error)
        except Exception:
            log.exception("request.failed")
            reply = encode_fault(MemoryAgentError("internal error; the daemon's log has the traceback"))
        await socket.reply(message, [reply])

    def _principal(self, message: Message, request: Request) -> Principal:
        try:
            if message.curve_key is not None:
                return self._credentials.of_curve(message.curve_key)
            return self._credentials.of_token(request.token.encode())
        except RelayError as error:
            raise UnauthorizedError(str(error)) from error
