"""Test a machine that joins a daemon: each "machine" is a process with its own loopback address and data folder."""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest

from memory_agent import MemoryClient
from memory_agent.errors import MemoryAgentError
from memory_agent.settings import OllamaEmbedder
from relay import Scope, revoke_key
from tests.end_to_end.cluster import HEAD, PROGRAM, NodeProcess, cluster_daemon, curve_key, nodes, place, until
from tests.end_to_end.conftest import DaemonProcess, environment, short_folder
from tests.memory_agent.provider_server import embeds, serving
from tests.scraped import value

pytestmark = pytest.mark.slow

WORKER = "127.0.0.3"
USERS = ("alice", "bob", "carol", "dave")
CLIENT = """
import sys
from memory_agent.daemon.raylet import lean_and_on_loopback
import ray
with lean_and_on_loopback():
    ray.init(address=sys.argv[1], logging_level="error", log_to_driver=False)
print("joined")
"""

PLANNER = """
import sys
from memory_agent import ActorMemoryProvider, join_ray
join_ray(sys.argv[1], namespace="somebody-else")
found = ActorMemoryProvider("alice", data_dir=sys.argv[1]).recall("when does the ferry leave")
print([memory.record.text for memory in found.memories])
"""


def remembers(daemon: DaemonProcess, user_id: str, text: str) -> bool:
    """Whether a memory can be stored and recalled."""
    try:
        with MemoryClient(user_id, data_dir=daemon.data_dir) as client:
            client.remember(text, id="only-one")
            return [memory.record.text for memory in client.recall(text).memories] == [text]
    except MemoryAgentError:
        return False


@pytest.fixture(scope="module")
def daemon() -> Iterator[DaemonProcess]:
    """A daemon with a cluster in which all users are on the machine `w1`."""
    with short_folder() as folder:
        process = cluster_daemon(Path(folder))
        for user_id in USERS:
            place(process, user_id, "w1")
        with process.running():
            yield process


@pytest.fixture(scope="module")
def node(daemon: DaemonProcess) -> Iterator[NodeProcess]:
    with short_folder() as folder:
        process = NodeProcess(daemon, Path(folder))
        try:
            process.start()
            yield process
        finally:
            process.kill()


def test_a_machine_that_joined_hosts_users_in_its_own_folder(daemon: DaemonProcess, node: NodeProcess) -> None:
    (listed,) = nodes(daemon)
    assert (listed.name, listed.address, listed.state) == ("w1", WORKER, "up")
    until(lambda: remembers(daemon, "alice", "the ferry leaves at seven"), daemon.log)
    assert (node.data_dir / "users" / "alice").exists()
    assert [file.name for file in (daemon.data_dir / "users" / "alice").iterdir()] == ["placement.json"]
    shown = subprocess.run(
        [PROGRAM, "status", "--data-dir", str(daemon.data_dir)], env=environment(), capture_output=True, text=True
    )
    assert WORKER in shown.stdout
    with MemoryClient(data_dir=daemon.data_dir) as client:
        page = client.metrics()
        assert value(page, "nodes", state="up") == 1
        assert value(page, "node_users", node="w1") >= 1
        until(lambda: value(client.metrics(), "memories") >= 1, daemon.log)  # the user's host reports during upkeep


def test_a_user_on_another_machine_shares_items(daemon: DaemonProcess, node: NodeProcess) -> None:
    with MemoryClient("alice", data_dir=daemon.data_dir) as client:
        item = client.shared.confirm(client.shared.preview("Ferry times", "The ferry leaves at seven"))
        assert [one.id for one in client.shared.published()] == [item.id]
        client.shared.unpublish(item.id)


def test_ports_are_open_at_the_machines_addresses_and_rays_refuse_strangers(
    daemon: DaemonProcess, node: NodeProcess
) -> None:
    """Ray listens on all interfaces unless its address is 127.0.0.1, so its open ports must require a certificate."""
    own = psutil.Process(daemon.pid)
    listening = {
        (connection.laddr.ip.removeprefix("::ffff:"), connection.laddr.port)
        for process in (own, *own.children(recursive=True), *node.family())
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }
    assert {address for address, _ in listening} <= {"127.0.0.1", HEAD, WORKER, "::"}
    everywhere = [port for address, port in listening if address == "::"]
    assert everywhere
    assert [port for port in everywhere if not refuses_strangers(port)] == []


def refuses_strangers(port: int) -> bool:
    """Whether a port requires TLS with a certificate of the cluster."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with socket.create_connection(("127.0.0.1", port), 10) as plain:
        try:
            with context.wrap_socket(plain) as stranger:
                stranger.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0")
                return stranger.recv(1) == b""  # with TLS 1.3, the refusal follows the client's handshake
        except ssl.SSLError as error:
            return "CERTIFICATE_REQUIRED" in str(error) or "UNKNOWN_CA" in str(error) or "ALERT" in str(error)
        except ConnectionResetError:
            return True


def test_a_ray_client_needs_the_token_and_a_certificate(daemon: DaemonProcess, tmp_path: Path) -> None:
    """Ray retries a refused connection for over a minute; meanwhile, two clients that lack nothing join in turn."""
    with ExitStack() as stack:
        refused = [stack.enter_context(ray_client(daemon, tmp_path, lacking)) for lacking in ("certificate", "token")]
        for _ in range(2):
            with ray_client(daemon, tmp_path) as admitted:
                assert admitted.communicate(timeout=60)[0].strip() == "joined"
        for client in refused:
            client.kill()
            assert client.communicate()[0] == ""


@contextmanager
def ray_client(daemon: DaemonProcess, folder: Path, lacking: str = "nothing") -> Iterator[subprocess.Popen[str]]:
    """A process that joins the daemon's Ray and prints `joined`. It has every credential except `lacking`."""
    cluster, token = daemon.data_dir / "cluster", daemon.data_dir / "run" / "ray-token"
    if lacking == "token":
        token = folder / "token"
        token.write_text("0" * 64)
    shown = {"RAY_AUTH_TOKEN_PATH": str(token), "RAY_gcs_rpc_server_reconnect_timeout_s": "2"}
    if lacking != "certificate":
        shown |= {"RAY_USE_TLS": "1", "RAY_TLS_CA_CERT": str(cluster / "ca.pem")}
        shown |= {"RAY_TLS_SERVER_CERT": str(cluster / "ray.pem"), "RAY_TLS_SERVER_KEY": str(cluster / "ray-key.pem")}
    command = [sys.executable, "-c", CLIENT, daemon.ready["endpoints"]["ray"]]
    with subprocess.Popen(
        command, env=environment() | shown, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_planner_on_the_daemons_machine_asks_a_host_on_another(daemon: DaemonProcess, node: NodeProcess) -> None:
    text = "the ferry leaves at six"
    until(lambda: remembers(daemon, "alice", text), daemon.log)
    command = [sys.executable, "-c", PLANNER, str(daemon.data_dir)]
    result = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=120, check=False)
    assert result.stdout.strip() == str([text]), result.stderr


@pytest.mark.parametrize(
    ("differing", "says"),
    [
        ({"name": "w_2"}, "name: must be 1 to 63"),
        ({"name": "w1", "listen": "127.0.0.4"}, f"w1 is the name of the machine at {WORKER}"),
        ({"listen": "0.0.0.0"}, "is not the IP address of one machine"),
        ({"address": "curve+tcp://127.0.0.2:9"}, "no daemon at curve+tcp://127.0.0.2:9"),
    ],
)
def test_a_machine_that_may_not_join_is_told_why(node: NodeProcess, differing: dict[str, str], says: str) -> None:
    assert says in refused(node, **differing)


def test_a_key_without_the_scope_or_a_revoked_key_lets_no_machine_join(
    daemon: DaemonProcess, node: NodeProcess, tmp_path: Path
) -> None:
    for name, scope, says in (("reader", Scope.RECALL, "scope join"), ("revoked", Scope.JOIN, "no daemon at")):
        file = tmp_path / f"{name}.key"
        file.write_bytes(curve_key(daemon, name, scope))
        if name == "revoked":
            revoke_key(daemon.data_dir, name)
        assert says in refused(node, **{"name": "w2", "key-file": str(file)})


def refused(node: NodeProcess, **differing: str) -> str:
    """Try to join as another machine; return the error."""
    with short_folder() as data_dir:
        command = node.command(**({"data-dir": data_dir, "name": "w2", "listen": "127.0.0.4"} | differing))
        result = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 1
    return result.stderr


def test_a_daemon_without_a_cluster_lets_no_machine_join(light_daemon: DaemonProcess, node: NodeProcess) -> None:
    file = light_daemon.data_dir / "local.key"
    token = (light_daemon.data_dir / "token").read_text(encoding="utf-8").strip()
    file.write_text(json.dumps({"id": "local", "token": token}))
    differing = {"address": light_daemon.ready["endpoints"]["gateway"], "key-file": str(file)}
    assert "cluster.listen is empty" in refused(node, **differing)


def test_a_killed_gcs_is_started_again_and_hosts_answer(daemon: DaemonProcess, node: NodeProcess) -> None:
    until(lambda: remembers(daemon, "alice", "the ferry leaves at eight"))
    (gcs,) = (child for child in psutil.Process(daemon.pid).children() if child.name() == "gcs_server")
    time_left_s = 10 - (time.time() - gcs.create_time())
    time.sleep(max(0.0, time_left_s))  # a gcs that dies immediately is not restarted
    gcs.kill()
    until(lambda: "ray.gcs_died" in daemon.log(), daemon.log)
    until(lambda: remembers(daemon, "bob", "the ferry leaves at nine"), daemon.log)  # a new host
    assert [one.state for one in nodes(daemon)] == ["up"]


def test_a_killed_machine_leaves_nothing_running_and_is_forgotten(daemon: DaemonProcess, node: NodeProcess) -> None:
    family = node.family()
    assert len(family) >= 5
    node.kill()
    _, alive = psutil.wait_procs(family, timeout=20)
    assert alive == []
    until(lambda: nodes(daemon) == (), daemon.log, within_s=20)
    node.start()
    until(lambda: remembers(daemon, "carol", "the ferry leaves at ten"), daemon.log)


def test_a_machine_leaves_by_its_name_and_by_its_folder(daemon: DaemonProcess, node: NodeProcess) -> None:
    family = node.family()
    for own in (["w1", "--data-dir", str(daemon.data_dir)], ["--data-dir", str(node.data_dir)]):
        command = [PROGRAM, "leave", *own]
        result = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
        assert node.ended() == 0
        assert nodes(daemon) == ()
        _, alive = psutil.wait_procs(family, timeout=20)
        assert alive == []
        node.start()
        family = node.family()


def test_each_machine_embeds_with_a_model_on_a_server() -> None:
    with ExitStack() as stack:
        provider = stack.enter_context(serving())
        provider.then(embeds(OllamaEmbedder()))
        embedder = ("embedder.type=ollama", "embedder.model=made", f"embedder.url={provider.url}")
        home, folder = (Path(stack.enter_context(short_folder())) for _ in range(2))
        daemon = cluster_daemon(home, address="127.0.0.5", embedder=embedder)
        place(daemon, "alice", "w1")
        daemon.start()
        stack.callback(daemon.stop)
        node = NodeProcess(daemon, folder, address="127.0.0.6", embedder=embedder)
        node.start()
        stack.callback(node.kill)
        for user_id in ("alice", "bob"):  # on the joined machine and on the daemon's machine
            with MemoryClient(user_id, data_dir=daemon.data_dir) as client:
                client.remember("the ferry leaves at seven")
                until(lambda client=client: not client.stats().waiting, node.log)  # type: ignore[misc]
                found = client.recall("ferry seven", mode="vector", min_relevance=0.0)
                assert [memory.record.text for memory in found.memories] == ["the ferry leaves at seven"]
                assert found.degraded == ()
                assert str(client.stats().model).startswith("ollama/made|")
        assert (node.data_dir / "users" / "alice").exists()
        other = (*embedder[:1], "embedder.model=another", *embedder[2:])
        stranger = NodeProcess(daemon, Path(stack.enter_context(short_folder())), "w2", "127.0.0.7", embedder=other)
        assert "use one model on all machines" in refused(stranger)


def test_a_machine_whose_daemon_is_killed_ends_its_hosts_and_joins_the_next_daemon(
    daemon: DaemonProcess, node: NodeProcess
) -> None:
    place(daemon, "dave", "w1")  # otherwise the daemon chooses by the number of users on each machine
    until(lambda: remembers(daemon, "dave", "the ferry leaves at noon"), daemon.log)
    hosts: list[psutil.Process] = []

    def has_host() -> bool:
        hosts[:] = [process for process in node.family() if "HostActor" in "".join(process.cmdline())]
        return bool(hosts)

    until(has_host, node.log)
    daemon.kill()
    _, alive = psutil.wait_procs(hosts, timeout=20)
    assert alive == []
    daemon.start()
    until(lambda: [one.name for one in nodes(daemon)] == ["w1"], node.log)
    until(lambda: remembers(daemon, "dave", "the ferry leaves at one"), daemon.log)
    assert os.kill(node.pid, 0) is None  # the same process
