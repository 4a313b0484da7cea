"""The daemon's connection to one socket of a host process. Knows no Ray.

When the connection ends, the process has ended: requests under way fail at once, not at their deadlines, and the next
request asks where the successor listens.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from memory_agent.errors import DeadlineExceededError, HostDiedError, UnavailableError
from relay.log import log
from relay.net import AsyncRequestSocket


class HostConnection:
    """Carries any number of requests at a time. Lives in one event loop."""

    def __init__(self, name: str, locate: Callable[[], Awaitable[str]]) -> None:
        """`locate` returns the endpoint when the process listens; it raises `HostDiedError` if there is none."""
        self._name = name
        self._locate = locate
        self._connecting: asyncio.Task[AsyncRequestSocket] | None = None

    async def request(self, frames: list[bytes], timeout_s: float) -> bytes:
        """Return the encoded reply.

        Raises `HostDiedError` if the process ended during the request, `UnavailableError` if the request was not sent,
        `DeadlineExceededError`.
        """
        deadline_s = time.monotonic() + timeout_s
        try:
            socket = self._connected()
            if socket is None:
                async with asyncio.timeout(timeout_s):
                    socket = await self._connection()
            reply = await self._asked(socket, frames, deadline_s - time.monotonic())
        except (TimeoutError, DeadlineExceededError) as error:
            raise DeadlineExceededError(f"{self._name} did not answer within {timeout_s:.3g} s") from error
        if len(reply) > 1:
            log.error("host.failed", host=self._name, traceback=reply[1].decode())
        return reply[0]

    def close(self) -> None:
        """Close; requests under way fail. Idempotent."""
        task, self._connecting = self._connecting, None
        if task is not None and not task.cancel() and not task.cancelled() and task.exception() is None:
            task.result().close()

    def _connected(self) -> AsyncRequestSocket | None:
        """Return the connection, which all requests share; None while there is none."""
        task = self._connecting
        return None if task is None or not task.done() or self._is_over() else task.result()

    async def _connection(self) -> AsyncRequestSocket:
        """Return the connection once there is one."""
        if self._is_over():
            self.close()
        if self._connecting is None:
            self._connecting = asyncio.create_task(self._connect())
        connecting = self._connecting
        if not connecting.done():
            await asyncio.wait((connecting,))
        if connecting.cancelled():
            raise UnavailableError(f"{self._name}: the connection was closed")
        try:
            return connecting.result()
        except HostDiedError as error:
            raise UnavailableError(f"{self._name} is not up: {error}") from error

    def _is_over(self) -> bool:
        """Whether the connection ended or could not be made."""
        task = self._connecting
        if task is None or not task.done():
            return False
        return task.cancelled() or task.exception() is not None or task.result().is_lost

    async def _connect(self) -> AsyncRequestSocket:
        return AsyncRequestSocket(await self._locate(), once=True)

    async def _asked(self, socket: AsyncRequestSocket, frames: list[bytes], timeout_s: float) -> list[bytes]:
        try:
            return await socket.request(frames, timeout_s)
        except UnavailableError as error:
            raise HostDiedError(f"{self._name}: {error}") from error
