"""Test that a peer without a token cannot fill the relay's memory with a huge frame or many large frames."""

from __future__ import annotations

import asyncio
from pathlib import Path

import zmq

from relay.errors import ConnectionLostError
from relay.net import AsyncReplySocket, AsyncRequestSocket


def test_an_oversized_request_never_arrives(tmp_path: Path) -> None:
    async def go() -> tuple[int, bool]:
        server = AsyncReplySocket([f"ipc://{tmp_path}/s.sock"])
        client, glutton = (AsyncRequestSocket(server.endpoints[0]) for _ in range(2))

        async def serve() -> None:
            while True:
                request = await server.receive()
                server.reply(request, [len(request.frames[0]).to_bytes(8, "big")])

        serving = asyncio.create_task(serve())
        try:
            refused = False
            try:
                await glutton.request(bytes(100 << 20), 20.0)
            except ConnectionLostError:
                refused = True
            frames = await client.request(bytes(1 << 20), 20.0)
            return int.from_bytes(frames[0], "big"), refused
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            client.close()
            glutton.close()
            server.close()

    assert asyncio.run(go()) == (1 << 20, True)


def test_large_unread_requests_wait_at_their_senders(tmp_path: Path) -> None:
    async def go() -> int:
        server = AsyncReplySocket([f"ipc://{tmp_path}/s.sock"])
        with zmq.Context() as context, context.socket(zmq.DEALER) as sender:
            sender.linger = 0
            sender.sndhwm = 1
            sender.connect(server.endpoints[0])
            sent = 0
            while sent < 40 and sender.poll(1_000, zmq.POLLOUT):
                sender.send_multipart([b"1", bytes(8 << 20)])
                sent += 1
        server.close()
        return sent

    assert asyncio.run(go()) <= 8
