"""The gateway: receives requests over ZeroMQ, from local and CURVE sockets.

When the number or total size of requests reaches its limit, further requests are refused with a retryable error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from memory_agent.doors.reception import Credential, Reception
from memory_agent.errors import ProtocolError, UnavailableError
from memory_agent.verbs.protocol import decode_request, encode_fault
from relay.net import AsyncReplySocket, Message


class Gateway:
    def __init__(self, reception: Reception, sockets: Sequence[AsyncReplySocket], limit: int, limit_bytes: int) -> None:
        """Run at most `limit` requests at a time, of at most `limit_bytes` in total; a single request may have any
        size."""
        self._reception = reception
        self._sockets = sockets
        self._limit = limit
        self._limit_bytes = limit_bytes
        self._bytes = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Serve requests until cancelled, then drop running requests and close the sockets."""
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
                error = UnavailableError("too many requests in progress")
                socket.reply(message, [encode_fault(error)])
                continue
            self._bytes += size_bytes
            task = asyncio.create_task(self._answer(socket, message))
            self._tasks.add(task)
            task.add_done_callback(partial(self._settle, size_bytes))

    def _settle(self, size_bytes: int, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._bytes -= size_bytes

    async def _answer(self, socket: AsyncReplySocket, message: Message) -> None:
        socket.reply(message, [await self._reply(message)])

    async def _reply(self, message: Message) -> bytes:
        try:
            request = decode_request(message.frames[0])
        except ProtocolError as error:
            return encode_fault(error)
        return await self._reception.answer(Credential(request.token, message.curve_key), request)
