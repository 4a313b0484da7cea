"""Starts Ray's own processes, and runs a machine's part of the daemon's Ray.

`python -m memory_agent.daemon.raylet NAME ADDRESS GCS` is a separate process, because Ray reads its variables once,
when it is imported, and a restarted daemon sends new ones. For the same reason, only this file imports Ray:
`ray_supervisor` takes it from here.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

os.environ.update(RAY_AUTH_MODE="token", RAY_USAGE_STATS_ENABLED="0", RAY_DEDUP_LOGS="0")  # Ray reads these at import
os.environ.setdefault("RAY_task_events_report_interval_ms", "0")  # else the GCS keeps 5 KB for each of 100,000 calls
os.environ.setdefault(
    "RAY_worker_niceness", "0"
)  # with the default, 15, recalls would wait for bulk embedding, whose niceness is 10
try:
    import ray
except ModuleNotFoundError as missing:
    from memory_agent.daemon.supervisor import NEEDS_RAY

    raise ModuleNotFoundError(f"this {NEEDS_RAY}", name="ray") from missing
import ray._private.node as ray_node
import ray._private.parameter as ray_parameter
import ray._private.ray_constants as ray_constants
import ray._private.services as ray_services
import ray._private.utils
import ray.exceptions
import ray.job_config
import ray.util.scheduling_strategies

from memory_agent.daemon import runtime_env_agent
from memory_agent.daemon.ray_folder import RayFolder
from memory_agent.errors import UnavailableError

__all__ = ["HOSTS_OF_A_NODE", "OBJECT_STORE_BYTES", "Raylet", "lean_and_on_loopback", "node_resource", "ray"]

HOSTS_OF_A_NODE = 100_000  # the resource only chooses the machine
OBJECT_STORE_BYTES = 80 << 20  # Ray's minimum; not used
_CHECK_S = 0.5
_AGENT = "--dashboard_agent_command="
_RUNTIME_ENV_AGENT = "--runtime_env_agent_command="
_PORTS_OF_AGENT = (
    ray._raylet.DASHBOARD_AGENT_LISTEN_PORT_NAME,
    ray._raylet.METRICS_AGENT_PORT_NAME,
    ray._raylet.METRICS_EXPORT_PORT_NAME,
)
_NO_PORT = -1  # Ray's value for an agent without a server


def node_resource(node: str) -> str:
    return f"memory-agent:{node}"


class Raylet:
    """The Ray processes on a machine that joined a daemon's cluster: a raylet with its agent, without a driver.

    They end with this process. `ray start --block` would add a dashboard's log monitor.
    """

    def __init__(self, node: str, address: str, gcs: str) -> None:
        """Start them at the IP `address`. The variables of `ray_environment` must be set. Raises `UnavailableError`."""
        self._folder = RayFolder()
        try:
            with lean_and_on_loopback():
                parameters = ray_parameter.RayParams(
                    gcs_address=gcs,
                    node_ip_address=address,
                    num_cpus=0,
                    num_gpus=0,
                    object_store_memory=OBJECT_STORE_BYTES,
                    resources={node_resource(node): HOSTS_OF_A_NODE},
                    temp_dir=str(self._folder.path),
                )
                self._node = ray_node.Node(parameters, head=False, shutdown_at_exit=True, spawn_reaper=True)
        except Exception as error:
            self._folder.remove()
            raise UnavailableError(f"Ray did not start: {error}") from error

    def alive(self) -> bool:
        """The raylet exits when it loses its connection to the GCS."""
        return not self._node.dead_processes()

    def stop(self) -> None:
        self._node.kill_all_processes(check_alive=False, allow_graceful=True)
        self._folder.remove()


@contextmanager
def lean_and_on_loopback() -> Iterator[None]:
    """Make Ray listen on loopback, and start it without its dashboard, log monitor and autoscaler monitor.

    Ray replaces 127.0.0.1 with the machine's external address, and would listen on every interface. The dashboard's
    server and the monitors take 180 MB and 2.4 % of an idle core; the dashboard's agent takes 55 MB and 0.9 s of
    processor time to start (measured with Ray 2.60). There is no public switch; the tests that check open ports and
    processes fail if Ray changes this.
    """
    services = ("resolve_ip_for_localhost", "start_api_server", "start_ray_process")
    former = {name: getattr(ray_services, name) for name in services}
    parameters = ray_parameter.RayParams
    ray_services.resolve_ip_for_localhost = lambda host: host
    ray_services.start_api_server = lambda *_, **__: ("", None)
    ray_services.start_ray_process = partial(_start_without_agents, former["start_ray_process"])
    ray_parameter.RayParams = partial(parameters, include_log_monitor=False, no_monitor=True)
    try:
        yield
    finally:
        for name, function in former.items():
            setattr(ray_services, name, function)
        ray_parameter.RayParams = parameters


def _start_without_agents(start: Callable[..., Any], command: list[str], process_type: str, **options: Any) -> Any:
    """Start a Ray process; give a raylet `cat` as its dashboard's agent, and start its agent for runtime environments
    at the first request (`runtime_env_agent`).

    A raylet needs its agent processes, and waits for the files with the agents' ports. `cat` reads the pipe that the
    raylet gives its agent, so it ends with the raylet, even if that is killed.
    """
    if process_type == ray_constants.PROCESS_TYPE_RAYLET:
        values = dict(option.partition("=")[::2] for option in command)
        for name in _PORTS_OF_AGENT:
            ray._raylet.persist_port(values["--session_dir"], values["--node_id"], name, _NO_PORT)
        port_file = f"{values['--session_dir']}/{ray._raylet.RUNTIME_ENV_AGENT_PORT_NAME}_{values['--node_id']}"
        waiting = subprocess.list2cmdline(
            [sys.executable, "-I", "-S", runtime_env_agent.__file__, values["--node_ip_address"], port_file]
        )
        command = [f"{_AGENT}cat -" if option.startswith(_AGENT) else option for option in command]
        command = [option.replace(_RUNTIME_ENV_AGENT, f"{_RUNTIME_ENV_AGENT}{waiting} ") for option in command]
    return start(command, process_type, **options)


def main(name: str, address: str, gcs: str) -> int:
    """Run until SIGTERM, or until the parent or the raylet exits; return the exit code."""
    parent = os.getppid()
    stopped = False

    def stop(*_: object) -> None:
        nonlocal stopped
        stopped = True

    raylet = Raylet(name, address, gcs)
    try:
        for number in (signal.SIGTERM, signal.SIGINT):  # Ray has set its own handlers
            signal.signal(number, stop)
        sys.stdout.write(json.dumps({"ready": True}) + "\n")
        sys.stdout.flush()
        while not stopped and os.getppid() == parent and raylet.alive():
            time.sleep(_CHECK_S)
    finally:
        raylet.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
