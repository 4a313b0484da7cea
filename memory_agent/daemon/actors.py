"""Hosts of memories as Ray actors, and Ray itself: the only place of this package that imports Ray.

Ray starts, names and restarts host processes, and nothing else. It never retries a task (`max_task_retries=0`), because
the first attempt may have run (Ray documentation, actor fault tolerance): retries belong to the dispatcher, and the
store recognises repeats. The store's own lock and epoch keep a user's store to one writer, since an actor outlives its
raylet (measured).

Ray has no user boundary inside: any process that reaches it can run any code. So it listens on loopback alone, and its
token and folder are private to the user (ops/SECURITY.md).
"""

from __future__ import annotations

import asyncio
import os
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import psutil
import structlog

os.environ.update(RAY_AUTH_MODE="token", RAY_USAGE_STATS_ENABLED="0", RAY_DEDUP_LOGS="0")  # read when Ray is imported
os.environ.setdefault("RAY_task_events_report_interval_ms", "0")  # gcs keeps 5 KB of each call, of 100,000 of them
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # a learner's small matrices: two threads take .4 s and more, one .1
os.environ.setdefault("RAY_worker_niceness", "0")  # 15 by default: recalls would wait for the bulk lane, which has 10
import ray
import ray._private.services as ray_services
import ray.exceptions

from memory_agent.daemon.host import MemoryHost
from memory_agent.daemon.ray_folder import RayFolder
from memory_agent.embedders.remote import RemoteEmbedder
from memory_agent.errors import DeadlineExceededError, HostDiedError, MemoryAgentError, UnavailableError
from memory_agent.log import configure_logging
from memory_agent.protocol import HostAddress
from memory_agent.settings import Settings

log = structlog.get_logger()

NAMESPACE = "memory-agent"
_LOOPBACK = "127.0.0.1"
_SYSTEM_PROCESSES = ("gcs_server", "raylet")
_GRACE_S = 0.1
"""How much longer than its deadline a host is waited for, so that a late answer arrives."""
_PARENT_CHECK_S = 0.5
_OBJECT_STORE_BYTES = 80 << 20  # the least Ray takes; nothing of ours goes through it


@ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=0, concurrency_groups={"answer": 8, "ingest": 2})
class HostActor:
    """A `MemoryHost` in a Ray process. Recalls never queue behind ingestion."""

    def __init__(self, data_dir: str, settings: bytes, embedder_endpoint: str) -> None:
        configure_logging("warning")
        threading.Thread(target=_end_with, args=(os.getppid(),), name="parent-watch", daemon=True).start()
        self._host = MemoryHost(
            Path(data_dir), msgspec.msgpack.decode(settings, type=Settings), RemoteEmbedder(embedder_endpoint)
        )

    @ray.method(concurrency_group="answer")
    def call(self, user_id: str, method: str, params: bytes, deadline_ms: float, sent_at_s: float) -> bytes:
        """As `MemoryHost.call`; the time since sending, mostly in Ray's queue, is subtracted from the deadline."""
        return self._host.call(user_id, method, params, _remaining_ms(deadline_ms, sent_at_s))

    @ray.method(concurrency_group="answer")
    def call_awake(self, user_id: str, method: str, params: bytes, deadline_ms: float, sent_at_s: float) -> bytes:
        """As `MemoryHost.call_awake`, with the deadline of `call`."""
        return self._host.call_awake(user_id, method, params, _remaining_ms(deadline_ms, sent_at_s))

    @ray.method(concurrency_group="ingest")
    def ingest(self, user_id: str, batch: bytes) -> bytes:
        """As `MemoryHost.ingest`."""
        return self._host.ingest(user_id, batch)

    @ray.method(concurrency_group="ingest")
    def fill_vectors(self) -> int:
        """As `MemoryHost.fill_vectors`."""
        return self._host.fill_vectors()

    @ray.method(concurrency_group="ingest")
    def keep_up(self) -> None:
        """As `MemoryHost.keep_up`, now."""
        self._host.keep_up(datetime.now(UTC))

    @ray.method(concurrency_group="answer")
    def sleep(self, user_id: str) -> None:
        """As `MemoryHost.sleep`."""
        self._host.sleep(user_id)

    @ray.method(concurrency_group="answer")
    def pid(self) -> int:
        """Return the process id."""
        return os.getpid()


class Cluster:
    """A private Ray on this machine: loopback, no dashboard, token authentication, a temporary folder."""

    def __init__(self, settings: Settings, data_dir: Path, run_folder: Path, embedder_endpoint: str) -> None:
        """Start Ray (a few seconds), with its token in `run_folder`. Raises `UnavailableError`."""
        self._run_folder = run_folder
        self._arguments = (str(data_dir), msgspec.msgpack.encode(settings), embedder_endpoint)
        self._folder = RayFolder()
        self._started = 0
        self._make_token()
        try:
            with _on_loopback():
                ray.init(
                    address="local",
                    namespace=NAMESPACE,
                    include_dashboard=False,
                    num_cpus=1,
                    object_store_memory=_OBJECT_STORE_BYTES,
                    log_to_driver=False,
                    logging_level="error",
                    _temp_dir=str(self._folder.path),
                    _node_ip_address=_LOOPBACK,
                )
        except Exception as error:
            self._folder.remove()
            raise UnavailableError(f"Ray did not start: {error}") from error

        self._system = [child for child in psutil.Process().children() if child.name() in _SYSTEM_PROCESSES]

    def alive(self) -> bool:
        """Whether Ray's own processes run."""
        try:
            return all(process.status() != psutil.STATUS_ZOMBIE for process in self._system)
        except psutil.NoSuchProcess:
            return False

    @property
    def address(self) -> str:
        """The address for `join`."""
        return str(ray.get_runtime_context().gcs_address)

    def start_host(self) -> Host:
        """Return a new host whose process is starting. Names are never reused: the former actor may still be dying."""
        self._started += 1
        name = f"host-{self._started}"
        actor = HostActor.options(name=name).remote(*self._arguments)  # type: ignore[attr-defined]
        return Host(name, actor)

    def stop(self) -> None:
        """End Ray and all hosts; remove its folder."""
        ray.shutdown()
        self._folder.remove()

    def _make_token(self) -> None:
        token = ray_token(self._run_folder)
        token.unlink(missing_ok=True)
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(32))
        os.environ["RAY_AUTH_TOKEN_PATH"] = str(token)


@contextmanager
def _on_loopback() -> Iterator[None]:
    """Make Ray keep the loopback address it is given.

    Ray replaces 127.0.0.1 by the outer address, and then driver, gcs, raylet and actors listen on every interface
    (measured with 2.56). There is no public switch; the test of open ports notices when Ray changes.
    """
    resolve = ray_services.resolve_ip_for_localhost
    ray_services.resolve_ip_for_localhost = lambda host: host
    try:
        yield
    finally:
        ray_services.resolve_ip_for_localhost = resolve


class Host:
    """One host process, from inside the daemon's event loop."""

    def __init__(self, name: str, actor: Any) -> None:
        self.name = name
        self.is_gone = False
        """Whether its process ended and Ray will not restart it."""
        self._actor = actor

    async def call(self, user_id: str, method: str, params: bytes, deadline_ms: float) -> bytes:
        """Return the encoded reply. Raises `HostDiedError`, `DeadlineExceededError`, `MemoryAgentError` for a bug."""
        reference = self._actor.call.remote(user_id, method, params, deadline_ms, time.time())
        return bytes(await self._answer(reference, deadline_ms / 1000 + _GRACE_S))

    async def ingest(self, user_id: str, batch: bytes, timeout_s: float) -> bytes:
        """Return the encoded reply. Raises `HostDiedError`, `DeadlineExceededError`."""
        return bytes(await self._answer(self._actor.ingest.remote(user_id, batch), timeout_s))

    async def fill_vectors(self, timeout_s: float) -> int:
        """Embed what was stored without a model. Raises as `call`."""
        return int(await self._answer(self._actor.fill_vectors.remote(), timeout_s))

    async def keep_up(self, timeout_s: float) -> None:
        """Do the upkeep of the awake users. Raises as `call`."""
        await self._answer(self._actor.keep_up.remote(), timeout_s)

    async def sleep(self, user_id: str, timeout_s: float) -> None:
        """Close the memory of `user_id`. Raises as `call`."""
        await self._answer(self._actor.sleep.remote(user_id), timeout_s)

    async def pid(self, timeout_s: float) -> int:
        """Return the process id. Raises as `call`."""
        return int(await self._answer(self._actor.pid.remote(), timeout_s))

    def end(self) -> None:
        """End the process. Its memories should be asleep; if not, nothing committed is lost."""
        ray.kill(self._actor, no_restart=True)

    async def _answer(self, reference: Any, timeout_s: float) -> Any:
        try:
            async with asyncio.timeout(timeout_s):
                return await reference
        except TimeoutError as error:
            raise DeadlineExceededError(f"{self.name} did not answer within {timeout_s:.3g} s") from error
        except ray.exceptions.RayTaskError as error:
            log.error("host.failed", host=self.name, exc_info=error)
            raise _internal(error) from error
        except ray.exceptions.RayError as error:
            self.is_gone |= isinstance(error, ray.exceptions.ActorDiedError)
            raise HostDiedError(f"{self.name}: {type(error).__name__}") from error


def _end_with(raylet_pid: int) -> None:
    """End this process when its raylet has ended; it would live on unsupervised."""
    while os.getppid() == raylet_pid:
        time.sleep(_PARENT_CHECK_S)
    os._exit(1)


def ray_token(run_folder: Path) -> Path:
    """Return the token file for joining the daemon's Ray."""
    return run_folder / "ray-token"


def join(address: str, token: Path, **options: Any) -> None:
    """Join the Ray of a daemon on this machine; `options` are those of `ray.init`. Raises `UnavailableError`."""
    os.environ["RAY_AUTH_TOKEN_PATH"] = str(token)
    try:
        with _on_loopback():
            ray.init(address=address, **{"log_to_driver": False, "logging_level": "error", **options})
    except Exception as error:
        hint = "`from memory_agent import join_ray` goes before `import ray`, which reads RAY_AUTH_MODE=token on import"
        raise UnavailableError(f"the daemon's Ray at {address} could not be joined ({error}); {hint}") from error


def ask_host(address: HostAddress, user_id: str, method: str, params: bytes, deadline_ms: float) -> bytes:
    """Ask a user's host from a Ray task, actor or driver and return the encoded reply. Blocks.

    Raises `HostDiedError` when the host is gone, `DeadlineExceededError`, `UnavailableError` outside the daemon's Ray.
    """
    if not ray.is_initialized():
        raise UnavailableError("this process is not in the daemon's Ray: call memory_agent.join_ray() first")
    try:
        actor = ray.get_actor(address.actor, namespace=address.namespace)
        reply = actor.call_awake.remote(user_id, method, params, deadline_ms, time.time())
        return bytes(ray.get(reply, timeout=deadline_ms / 1000 + 1))
    except ray.exceptions.GetTimeoutError as error:
        raise DeadlineExceededError(f"{address.actor} did not answer") from error
    except ray.exceptions.RayTaskError as error:
        raise _internal(error) from error
    except (ValueError, ray.exceptions.RayError) as error:
        raise HostDiedError(f"{address.actor}: {type(error).__name__}") from error


def _internal(error: ray.exceptions.RayTaskError) -> MemoryAgentError:
    """Return our error for an unexpected exception: the host lives, and repeating the request would not help."""
    return MemoryAgentError(f"internal error ({type(error.cause).__name__}); the daemon's log has the traceback")


def _remaining_ms(deadline_ms: float, sent_at_s: float) -> float:
    """Return the rest of a deadline, by the wall clock, which processes share."""
    return deadline_ms - max(0.0, time.time() - sent_at_s) * 1000
