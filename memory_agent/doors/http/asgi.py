"""The interface between the HTTP server and the application (ASGI), and the handling that all routes share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from email.utils import formatdate
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Asgi = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

_HEADERS = ((b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store"))
_LINGER_S = 1.0


class Exchange:
    """One request and its response. Adds the common headers to the response.

    A response that leaves the request body unread closes the connection. The rest of the body is then read for a
    moment, because a client that is still sending would otherwise see a connection reset instead of the response.
    """

    def __init__(self, headers: dict[bytes, bytes], receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._is_read = b"transfer-encoding" not in headers and headers.get(b"content-length", b"0") == b"0"

    async def receive(self) -> Message:
        message = await self._receive()
        self._is_read = self._is_read or not message.get("more_body", False)
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            own = {name for name, _ in message["headers"]}
            added = [(b"date", formatdate(usegmt=True).encode()), *(one for one in _HEADERS if one[0] not in own)]
            if not self._is_read:
                added.append((b"connection", b"close"))
            await self._send({**message, "headers": [*message["headers"], *added]})
        elif self._is_read or message.get("more_body", False):
            await self._send(message)
        else:
            await self._send({**message, "more_body": True})
            with suppress(TimeoutError):
                async with asyncio.timeout(_LINGER_S):
                    while not self._is_read:
                        await self.receive()
            await self._send({"type": "http.response.body", "body": b""})
