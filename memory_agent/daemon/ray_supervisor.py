"""The supervisor of the full form: relay and embedder as child processes, hosts as Ray actors.

Ray starts, names and restarts host processes, and carries the calls that manage them. Requests and batches of events
use the sockets of the host (`host`), which are five times as fast as calls through Ray. Ray never retries a task
(`max_task_retries=0`), because the first attempt may have run: the dispatcher retries, and the store recognises
repeated events. An actor can outlive its raylet, so the store's own lock and epoch guarantee one writer.

Any process that reaches a Ray cluster can run any code in it. So Ray's token and folder are private to the user. Ray
listens only on loopback or, if other machines may join, requires certificates (ops/SECURITY.md).
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import socket
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import psutil

from memory_agent.daemon.capacity import Capacity, capacity_here
from memory_agent.daemon.children import Child, embedder_arguments
from memory_agent.daemon.cluster_secrets import ClusterSecrets, tls_environment
from memory_agent.daemon.compatibility import encode_settings
from memory_agent.daemon.host import internal_error, shared_socket
from memory_agent.daemon.host_actor import HostActor
from memory_agent.daemon.place import Place
from memory_agent.daemon.ray_folder import END_WITHIN_S, RayFolder
from memory_agent.daemon.raylet import (
    HOSTS_OF_A_NODE,
    OBJECT_STORE_BYTES,
    lean_and_on_loopback,
    node_resource,
    ray,
)
from memory_agent.daemon.relay_process import relay_command
from memory_agent.daemon.supervisor import Endpoints, Host, host_endpoints, relay_listens
from memory_agent.errors import (
    DeadlineExceededError,
    HostDiedError,
    MemoryAgentError,
    NoClusterError,
    UnavailableError,
)
from memory_agent.layout import Layout
from memory_agent.records.placement import Placement, Position
from memory_agent.settings import Settings
from memory_agent.verbs.protocol import HostAddress, HostEndpoints, HostFigures, JoinGrant, PartStatus
from relay import Identity, RelaySettings
from relay.access import CURVE, ipc_endpoint
from relay.crypto import ring_file
from relay.log import log

T = TypeVar("T")
NAMESPACE = "memory-agent"
_LOOPBACK = "127.0.0.1"
_GCS = "gcs_server"
_SYSTEM_PROCESSES = (_GCS, "raylet")
_GCS_LASTS_S = 10.0
_RAY_CHECK_S = 1.0
_HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
"""Reduces the embedder's CPU time by 16 % per query and 11 % per text (measured). glibc reads it at startup."""
_THREADS_FOR_RAY = 8


_RemoteHost = ray.remote(
    num_cpus=0,
    max_restarts=-1,
    max_task_retries=0,
    concurrency_groups={"answer": _THREADS_FOR_RAY, "upkeep": 1, "control": 4, "lease": 1, "archive": 4},
)(HostActor)


@ray.remote(num_cpus=0, max_retries=0)
def _end_raylet() -> None:
    os.kill(os.getppid(), signal.SIGTERM)


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _free_port(address: str) -> int:
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


class Cluster:
    """A private Ray instance: token authentication, no dashboard, a temporary folder.

    It listens on loopback or, if other machines may join, at `cluster.listen`, with TLS.
    """

    def __init__(
        self,
        settings: Settings,
        layout: Layout,
        capacity: Capacity,
        secrets: ClusterSecrets | None = None,
    ) -> None:
        """`secrets`: the secrets of a cluster that other machines may join."""
        self._run_folder = layout.run
        self._keys_folder, self._ring = settings.encryption.keys_folder, ring_file(layout.data_dir)
        self._threads = (capacity.answer_threads, capacity.ingest_threads)
        self._encoded_settings = encode_settings(settings)
        self._secrets = secrets
        self._place = Place(
            data_dir=str(layout.data_dir),
            embedder=layout.embedder,
            shared=ipc_endpoint(shared_socket(layout.run)),
            curve=None if secrets is None else secrets.curve,
        )
        self._listen = settings.cluster.listen or _LOOPBACK
        self._shared_remotely = ""
        self._folder: RayFolder | None = None
        self._gcs_again: subprocess.Popen[bytes] | None = None
        self._started = 0

    def open(self) -> None:
        """Start Ray (a few seconds). Raises `UnavailableError`."""
        self._make_token()
        self._folder = RayFolder()
        if self._secrets is not None:
            self._shared_remotely = f"{CURVE}tcp://{self._listen}:{_free_port(self._listen)}"
            os.environ.update(RAY_gcs_storage="rocksdb", RAY_gcs_storage_path=str(self._folder.path / "gcs"))
        try:
            with lean_and_on_loopback():
                ray.init(
                    address="local",
                    namespace=NAMESPACE,
                    include_dashboard=False,
                    num_cpus=1,
                    resources={node_resource(""): HOSTS_OF_A_NODE},
                    object_store_memory=OBJECT_STORE_BYTES,
                    log_to_driver=False,
                    logging_level="error",
                    job_config=_OwnModules(),
                    _temp_dir=str(self._folder.path),
                    _node_ip_address=self._listen,
                )
        except Exception as error:
            raise UnavailableError(f"Ray did not start: {error}") from error

        self._system = [child for child in psutil.Process().children() if child.name() in _SYSTEM_PROCESSES]
        self._gcs = next(process for process in self._system if process.name() == _GCS)
        self._gcs_command, self._gcs_environment = self._gcs.cmdline(), self._gcs.environ()
        self._started_gcs_s = time.monotonic()

    def alive(self) -> bool:
        return all(map(_is_alive, self._system))

    def revive(self) -> bool:
        """Restart the gcs if no other Ray process has died; return False if it keeps no state on disk or dies
        repeatedly."""
        others = [process for process in self._system if process != self._gcs]
        is_repeated = time.monotonic() - self._started_gcs_s < _GCS_LASTS_S
        if self._secrets is None or is_repeated or not all(map(_is_alive, others)):
            return False
        log.warning("ray.gcs_died")
        port = f"--gcs_server_port={self.address.rpartition(':')[2]}"
        command = [port if option.startswith("--gcs_server_port=") else option for option in self._gcs_command]
        self._gcs_again = subprocess.Popen(
            command, env=self._gcs_environment, preexec_fn=ray._private.utils.set_kill_on_parent_death_linux
        )
        self._gcs = psutil.Process(self._gcs_again.pid)
        self._system = [*others, self._gcs]
        self._started_gcs_s = time.monotonic()
        return True

    @property
    def address(self) -> str:
        """The address for `join`."""
        return str(ray.get_runtime_context().gcs_address)

    def start_host(self, *, shared: bool = False, node: str = "") -> ActorHost:
        """Start a host; return it before its process is ready. Names are never reused: an old actor may still be
        running.

        `shared` and `node` are as in `Supervisor`; the host waits until that node has joined.
        """
        self._started += 1
        name = f"shared-{self._started}" if shared else f"host-{self._started}"
        restarts = 0 if node else -1  # on another machine, a restarted host may lack the placement files
        options = {"name": name, "resources": {node_resource(node): 1}, "max_restarts": restarts}
        if node:
            endpoints, place = None, None
        else:
            endpoints, place = host_endpoints(self._run_folder, self._started, shared=shared), self._place
            if shared:
                endpoints = msgspec.structs.replace(endpoints, remote=self._shared_remotely)
        actor = _RemoteHost.options(**options).remote(self._encoded_settings, place, endpoints, *self._threads)
        return ActorHost(name, endpoints, actor, node, self._place.identity if node else None)

    def grant(self, address: str) -> JoinGrant:
        if self._secrets is None:
            raise NoClusterError("this daemon accepts no other machines: its setting cluster.listen is empty")
        return JoinGrant(
            gcs=self.address,
            token=ray_token(self._run_folder).read_text(),
            certificate=self._secrets.certificate_for(address),
            curve=self._secrets.curve,
            shared=self._shared_remotely,
            keys_folder=self._keys_folder,
            ring=self._ring.read_bytes() if self._ring.exists() else b"",
            settings=self._encoded_settings,
        )

    async def ray_nodes(self) -> dict[str, frozenset[str]]:
        found: defaultdict[str, set[str]] = defaultdict(set)
        try:
            known = await asyncio.to_thread(ray.nodes)
        except ray.exceptions.RayError as error:
            raise UnavailableError(f"Ray does not answer: {type(error).__name__}") from error
        for one in known:
            for resource in one["Resources"] if one["Alive"] else ():
                prefix, _, node = resource.partition(node_resource(""))
                if node and not prefix:
                    found[node].add(one["NodeID"])
        return {node: frozenset(ids) for node, ids in found.items()}

    async def end_node(self, node: str) -> None:
        for node_id in (await self.ray_nodes()).get(node, ()):
            place = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node_id, soft=False)
            order = _end_raylet.options(scheduling_strategy=place).remote()
            with suppress(TimeoutError, ray.exceptions.RayError):  # the task ends with its raylet
                async with asyncio.timeout(END_WITHIN_S):
                    await order

    def close(self) -> None:
        """Stop Ray and all hosts; remove Ray's folder. Idempotent."""
        ray.shutdown()
        if self._gcs_again is not None:
            self._gcs_again.kill()
            self._gcs_again.wait()
        if self._folder is not None:
            self._folder.remove()

    def _make_token(self) -> None:
        token = ray_token(self._run_folder)
        token.unlink(missing_ok=True)
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(32))
        os.environ["RAY_AUTH_TOKEN_PATH"] = str(token)


class RaySupervisor(Cluster):
    """Runs each part as a process, which is restarted when it dies."""

    form: Final = "full"

    def __init__(self, settings: Settings, layout: Layout, secrets: ClusterSecrets | None = None) -> None:
        self.capacity = capacity_here(settings.daemon)
        super().__init__(settings, layout, self.capacity, secrets)
        self._settings = settings
        self._layout = layout
        self._relay, self._embedder = self._children()

    async def start(self, progress: Callable[[str], None]) -> Endpoints:
        """Ray starts last, because it takes longest."""
        progress("relay and embedder (the first start prepares the model)")
        for outcome in await asyncio.gather(self._relay.start(), self._embedder.start(), return_exceptions=True):
            if isinstance(outcome, BaseException):  # raised when both have ended
                raise outcome
        progress("Ray (this takes the longest)")
        self.open()
        return relay_listens(self._relay.ready) | {"embedder": self._layout.embedder, "ray": self.address}

    @property
    def model(self) -> str | None:
        model: str | None = self._embedder.ready.get("model")
        return model

    def parts(self) -> tuple[PartStatus, ...]:
        return self._relay.status(), self._embedder.status()

    async def watch(self) -> None:
        """Ray's own processes are not restarted, except the gcs of a cluster: actors would continue unsupervised."""
        while self.alive() or self.revive():
            await asyncio.sleep(_RAY_CHECK_S)
        log.error("ray.died")
        raise UnavailableError("Ray died")

    async def stop(self) -> None:
        self.close()
        await self._embedder.stop()
        await self._relay.stop()

    def _children(self) -> tuple[Child, Child]:
        """Each child receives its part of the settings, which only this process reads."""
        configuration = self._layout.run / "relay.toml"
        configuration.write_bytes(
            msgspec.toml.encode(RelaySettings.of(self._settings.relay, self._settings.encryption))
        )
        parent = ("--parent-pid", str(os.getpid()))
        data_dir = str(self._layout.data_dir)
        relay = ("--data-dir", data_dir, "--config", str(configuration), "--log-level", self._settings.log_level)
        embedder = embedder_arguments(self._settings, self._layout.embedder)
        module, archive = relay_command(self._settings.archive, self._layout.run)
        return (
            Child("relay", module, relay + archive + parent),
            Child("embedder", "memory_agent.embedders", embedder + parent, _HUGE_PAGES),
        )


class _OwnModules(ray.job_config.JobConfig):  # type: ignore[misc]
    """Keeps the daemon's working folder off the hosts' import path: `serve` may be started in any project.

    Ray adds the folder unless the job has its own working folder. There is no public switch.
    """

    def _runtime_env_has_working_dir(self) -> bool:
        return True


class ActorHost(Host):
    """A host in the process of a Ray actor."""

    def __init__(
        self,
        name: str,
        endpoints: HostEndpoints | None,
        actor: Any,
        node: str = "",
        identity: Identity | None = None,
    ) -> None:
        super().__init__(name, endpoints, node, identity)
        self._actor = actor

    @property
    def address(self) -> HostAddress:
        return HostAddress(actor=self.name, namespace=NAMESPACE)

    async def keep_up(self, timeout_s: float, *, fill_vectors: bool) -> HostFigures:
        return await self._call("upkeep", HostActor.keep_up, timeout_s, fill_vectors)

    async def sleep(self, user_id: str, timeout_s: float) -> Position | None:
        return await self._call("control", HostActor.sleep, timeout_s, user_id)

    async def renew(self, written_s: float, lease_s: float, was_full: bool, timeout_s: float) -> tuple[float, bool]:
        return await self._call("lease", HostActor.renew, timeout_s, written_s, lease_s, was_full)

    async def archive(self, user_id: str, timeout_s: float) -> Position:
        return await self._call("archive", HostActor.archive, timeout_s, user_id)

    async def release(self, user_id: str, placement: Placement, timeout_s: float) -> Position | None:
        return await self._call("archive", HostActor.release, timeout_s, user_id, placement)

    async def discard(self, user_id: str, epoch: int, timeout_s: float) -> None:
        await self._call("archive", HostActor.discard, timeout_s, user_id, epoch)

    async def discard_archive(self, user_id: str, epoch: int, timeout_s: float) -> None:
        await self._call("archive", HostActor.discard_archive, timeout_s, user_id, epoch)

    async def pid(self, timeout_s: float) -> int:
        return await self._call("control", HostActor.pid, timeout_s)

    def end(self) -> None:
        ray.kill(self._actor, no_restart=True)
        super().end()

    async def endpoints(self) -> HostEndpoints:
        """Return the endpoints; while Ray restarts the process, this can take several seconds."""
        return await self._call("control", HostActor.endpoints, None)

    async def _call(self, group: str, method: Callable[..., T], timeout_s: float | None, *arguments: Any) -> T:
        call = getattr(self._actor, method.__name__).options(concurrency_group=group)
        try:
            async with asyncio.timeout(timeout_s):
                result: T = await call.remote(*arguments)
                return result
        except TimeoutError as error:
            raise DeadlineExceededError(f"{self.name} did not answer within {timeout_s:.3g} s") from error
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, MemoryAgentError):
                raise error.cause from None
            log.error("host.failed", host=self.name, exc_info=error)
            raise internal_error(error.cause) from error
        except ray.exceptions.RayError as error:
            self.is_gone |= isinstance(error, ray.exceptions.ActorDiedError)
            raise HostDiedError(f"{self.name}: {type(error).__name__}") from error


def ray_token(run_folder: Path) -> Path:
    return run_folder / "ray-token"


def join(address: str, token: Path, cluster: Path, **options: Any) -> None:
    """Connect to the Ray cluster of a daemon on this machine; `options` are those of `ray.init`. Raises
    `UnavailableError`.

    `cluster`: the folder with the certificate, if other machines may join that Ray cluster.
    """
    os.environ["RAY_AUTH_TOKEN_PATH"] = str(token)
    if not address.startswith(f"{_LOOPBACK}:"):
        _use_certificate(cluster)
    try:
        with lean_and_on_loopback():
            ray.init(address=address, **{"log_to_driver": False, "logging_level": "error", **options})
    except Exception as error:
        hint = "`from memory_agent import join_ray` must precede `import ray`, which reads RAY_AUTH_MODE=token"
        raise UnavailableError(f"the daemon's Ray at {address} could not be joined ({error}); {hint}") from error


def _use_certificate(folder: Path) -> None:
    """Make Ray use TLS even though it has already been imported. It has no public call for this."""
    variables = tls_environment(folder)
    os.environ.update(variables)
    own = {name.removeprefix("RAY_"): value for name, value in variables.items()}
    ray._raylet.Config.initialize(json.dumps(own | {"USE_TLS": True}))


def ask_host(address: HostAddress, user_id: str, method: str, params: bytes, deadline_ms: float) -> bytes:
    """Send a request to a user's host from a Ray task, actor or driver; return the encoded reply. Blocks.

    Raises `HostDiedError`, `DeadlineExceededError`, and `UnavailableError` outside the daemon's Ray.
    """
    if not ray.is_initialized():
        raise UnavailableError("this process is not in the daemon's Ray: call memory_agent.join_ray() first")
    try:
        actor = ray.get_actor(address.actor, namespace=address.namespace)
        call = actor.call_awake.options(concurrency_group="answer")
        reply = call.remote(user_id, method, params, deadline_ms, time.time())
        return bytes(ray.get(reply, timeout=deadline_ms / 1000 + 1))
    except ray.exceptions.GetTimeoutError as error:
        raise DeadlineExceededError(f"{address.actor} did not answer") from error
    except ray.exceptions.RayTaskError as error:
        raise internal_error(error.cause) from error
    except (ValueError, ray.exceptions.RayError) as error:
        raise HostDiedError(f"{address.actor}: {type(error).__name__}") from error
