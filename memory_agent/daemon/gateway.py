"""The daemon's verbs over ZeroMQ: reads requests, bounds how many are under way, writes replies.

A request over the bound is refused at once with a retryable error, so a flood costs the others nothing but their place
in line. Anything that is no request gets a fault, never silence.
"""

from __future__ import annotations

import asyncio
import secrets

import structlog

from memory_agent.daemon.service import Service
from memory_agent.errors import MemoryAgentError, UnauthorizedError, UnavailableError
from memory_agent.protocol import decode_request, encode_fault
from memory_agent.transport import AsyncReplySocket
from memory_agent.transport import Request as Message

log = structlog.get_logger()


class Gateway:
    """Serves one service at some endpoints."""

    def __init__(self, service: Service, socket: AsyncReplySocket, token: str, limit: int) -> None:
        """Answer at most `limit` requests at a time, of those who show `token`. The socket is closed by `run`."""
        self._token = token
        self._service = service
        self._socket = socket
        self._limit = limit
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Answer until cancelled; requests under way are then given up."""
        try:
            while True:
                message = await self._socket.receive()
                if len(self._tasks) >= self._limit:
                    await self._refuse(message, UnavailableError("too many requests under way"))
                    continue
                task = asyncio.create_task(self._answer(message))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._socket.close()

    async def _answer(self, message: Message) -> None:
        try:
            request = decode_request(message.frames[0])
            if not secrets.compare_digest(request.token.encode(), self._token.encode()):
                raise UnauthorizedError("the token is not the daemon's")
            reply = await self._service.handle(request)
        except MemoryAgentError as error:
            await self._refuse(message, error)
        except Exception:
            log.exception("request.failed")
            await self._refuse(message, MemoryAgentError("internal error; the daemon's log has the traceback"))
        else:
            await self._socket.reply(message, [reply])

    async def _refuse(self, message: Message, error: MemoryAgentError) -> None:
        await self._socket.reply(message, [encode_fault(error)])
