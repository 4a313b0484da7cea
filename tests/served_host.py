"""Serves a real host at a socket without a daemon, and provides a client whose embedder is missing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from memory_agent import MemoryClient
from memory_agent.daemon.host import MemoryHost
from memory_agent.embedders import Embedder
from memory_agent.embedders.remote import RemoteEmbedder
from memory_agent.errors import MemoryAgentError
from memory_agent.settings import Settings
from memory_agent.verbs.protocol import decode_request, encode_fault
from relay.net import ReplySocket


class _AbsentEmbedder(RemoteEmbedder):
    """The client of an embedder that never answers. It does not block, so recalls return before their deadline."""

    def _patience_s(self, timeout_s: float | None) -> float:
        return 0.01


@contextmanager
def absent_embedder(folder: Path) -> Iterator[RemoteEmbedder]:
    """Yield a client whose embedder is missing."""
    embedder = _AbsentEmbedder(f"ipc://{folder}/none.sock", timeout_s=0.01, bulk_timeout_s=0.01)
    yield embedder
    embedder.close()


@contextmanager
def client_of_host(folder: Path, embedder: Embedder, user_id: str = "alice") -> Iterator[MemoryClient]:
    """Serve the memories under `folder`, and yield a client for one user."""
    host = MemoryHost(folder, Settings(), embedder)
    socket = ReplySocket(f"ipc://{folder}/gateway.sock")
    stop = threading.Event()

    def answer(data: bytes) -> bytes:
        try:
            request = decode_request(data)
            return host.call(request.user_id, request.method, bytes(request.params), request.deadline_ms)
        except MemoryAgentError as error:
            return encode_fault(error)
        except Exception as error:  # becomes the reply, because later requests would block if it ended the thread
            return encode_fault(MemoryAgentError(repr(error)))

    def serve() -> None:
        while not stop.is_set():
            if message := socket.receive(0.05):
                socket.reply(message, [answer(message.frames[0])])

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with MemoryClient(user_id, endpoint=socket.endpoint, token="t") as client:
            yield client
    finally:
        stop.set()
        thread.join()
        socket.close()
        host.close()
