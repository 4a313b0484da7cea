"""The class of the Ray actors that host users. This module does not import Ray; `ray_supervisor` starts the actors."""

from __future__ import annotations

import os
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from memory_agent.archiving import UserFiles
from memory_agent.daemon.children import resident_bytes
from memory_agent.daemon.compatibility import decode_settings
from memory_agent.daemon.host import HostServer, MemoryHost
from memory_agent.daemon.lease import Lease
from memory_agent.daemon.place import Place, place_here
from memory_agent.embedders.malloc import return_freed_memory
from memory_agent.embedders.remote import RemoteEmbedder
from memory_agent.knowledge import RemoteKnowledge
from memory_agent.records.placement import Placement, Position
from memory_agent.storage.folders import user_folder
from memory_agent.tracing import start_tracing_if_possible
from memory_agent.verbs.protocol import HostEndpoints, HostFigures, HostRequest
from relay import SHARED_USER
from relay.log import configure_logging

_PARENT_CHECK_S = 0.5


class HostActor:
    """A process with a `MemoryHost` and its `HostServer`. Its methods are called through Ray."""

    def __init__(
        self,
        settings: bytes,
        place: Place | None,
        endpoints: HostEndpoints | None,
        answer_threads: int,
        ingest_threads: int,
    ) -> None:
        """`place` and `endpoints` are None on a machine that joined; that machine's own file contains them."""
        configure_logging("warning")
        return_freed_memory()
        threading.Thread(target=_end_with, args=(os.getppid(),), name="parent-watch", daemon=True).start()
        place = place or place_here()
        folder = Path(place.data_dir)
        is_home = not place.address
        decoded = decode_settings(settings)
        start_tracing_if_possible(decoded.tracing)
        self._host = MemoryHost(
            folder,
            decoded,
            RemoteEmbedder(place.embedder),
            RemoteKnowledge(place.shared, user_folder(folder, SHARED_USER) if is_home else None, place.identity),
            UserFiles(folder, decoded, is_home=is_home) if decoded.cluster.listen else None,
            None if is_home else Lease(),
        )
        threads = answer_threads, ingest_threads
        self._server = HostServer(self._host, endpoints or place.endpoints, *threads, place.curve)

    def endpoints(self) -> HostEndpoints:
        return self._server.endpoints

    def call_awake(self, user_id: str, method: str, params: bytes, deadline_ms: float, sent_at_s: float) -> bytes:
        """Like `MemoryHost.call_awake`, for callers within Ray. Time in Ray's queue counts towards the deadline."""
        request = HostRequest(user_id=user_id, method=method, deadline_ms=deadline_ms, sent_at_s=sent_at_s)
        return self._host.call_awake(user_id, method, params, request.remaining_ms(time.time()))

    def keep_up(self, fill_vectors: bool) -> HostFigures:
        """Like `MemoryHost.keep_up`, at the current time. Adds the memory use of the process to the figures."""
        figures = self._host.keep_up(datetime.now(UTC), fill_vectors=fill_vectors)
        return msgspec.structs.replace(figures, resident_bytes=resident_bytes(os.getpid()))

    def sleep(self, user_id: str) -> Position | None:
        return self._host.sleep(user_id)

    def renew(self, written_s: float, lease_s: float, was_full: bool) -> tuple[float, bool]:
        return self._host.renew(written_s, lease_s, was_full)

    def archive(self, user_id: str) -> Position:
        return self._host.archive(user_id)

    def release(self, user_id: str, placement: Placement) -> Position | None:
        return self._host.release(user_id, placement)

    def discard(self, user_id: str, epoch: int) -> None:
        self._host.discard(user_id, epoch)

    def discard_archive(self, user_id: str, epoch: int) -> None:
        self._host.discard_archive(user_id, epoch)

    def pid(self) -> int:
        return os.getpid()


def _end_with(raylet_pid: int) -> None:
    """End this process when its raylet has ended; otherwise it would continue unsupervised."""
    while os.getppid() == raylet_pid:
        time.sleep(_PARENT_CHECK_S)
    os._exit(1)
