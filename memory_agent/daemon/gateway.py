"""The daemon's verbs over ZeroMQ: finds out who asks, bounds how many requests are under way, writes replies.

Who asks follows from the token in the request, or from the CURVE key of the connection, never from what the request
says (`scopes`). A request over the bound is refused at once with a retryable error. A key for one user has a share of
the bound, so that one which floods, or waits for what never comes, leaves places to the others; who holds several such
keys, or one for all users, can fill them all. Anything that is no request gets a fault, never silence.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence

import structlog

from memory_agent.daemon.scopes import permitted
from memory_agent.daemon.service import Service
from memory_agent.errors import MemoryAgentError, UnauthorizedError, UnavailableError
from memory_agent.protocol import Request, decode_request, encode_fault
from memory_agent.transport import AsyncReplySocket
from memory_agent.transport import Request as Message
from relay import Credentials, Principal, RelayError

log = structlog.get_logger()

_SHARES = 4
_SMALLEST_SHARE = 8


class Gateway:
    """Serves one service at some sockets."""

    def __init__(
        self, service: Service, sockets: Sequence[AsyncReplySocket], credentials: Credentials, limit: int
    ) -> None:
        """Answer at most `limit` requests at a time, of those whom `credentials` know, and of a key for one user a
        quarter of them (8 at least). `run` closes the sockets."""
        self._credentials = credentials
        self._service = service
        self._sockets = sockets
        self._limit = limit
        self._limit_of_a_key = max(limit // _SHARES, _SMALLEST_SHARE)
        self._under_way: Counter[str] = Counter()  # by the id of the key
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
            if len(self._tasks) >= self._limit:
                error = UnavailableError("too many requests under way")
                await socket.reply(message, [encode_fault(error)])
                continue
            task = asyncio.create_task(self._answer(socket, message))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _answer(self, socket: AsyncReplySocket, message: Message) -> None:
        try:
            request = decode_request(message.frames[0])
            principal = self._principal(message, request)
            with self._place(principal):
                reply = await self._service.handle(permitted(request, principal), principal)
        except MemoryAgentError as error:
            reply = encode_fault(error)
        except Exception:
            log.exception("request.failed")
            reply = encode_fault(MemoryAgentError("internal error; the daemon's log has the traceback"))
        await socket.reply(message, [reply])

    @contextlib.contextmanager
    def _place(self, principal: Principal) -> Iterator[None]:
        """Count a request as under way. Raises `UnavailableError` where its key has as many as it may."""
        key_id = principal.key_id
        if principal.user_id is not None and self._under_way[key_id] >= self._limit_of_a_key:
            raise UnavailableError("too many requests of this key under way")
        self._under_way[key_id] += 1
        try:
            yield
        finally:
            self._under_way[key_id] -= 1
            if not self._under_way[key_id]:
                del self._under_way[key_id]

    def _principal(self, message: Message, request: Request) -> Principal:
        try:
            if message.curve_key is not None:
                return self._credentials.of_curve(message.curve_key)
            return self._credentials.of_token(request.token.encode())
        except RelayError as error:
            raise UnauthorizedError(str(error)) from error
