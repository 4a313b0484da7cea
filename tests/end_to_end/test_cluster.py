"""Test a daemon and two machines that joined it, while machines are killed, frozen, filled, taken away and restarted.

Each "machine" is a process with its own loopback address and data folder.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from memory_agent import MemoryClient
from memory_agent.errors import MemoryAgentError
from memory_agent.settings import OllamaEmbedder
from relay import Publisher, Scope, relay_endpoints, revoke_key
from tests.crash.disk import CannotMountError, fill, small_disk
from tests.end_to_end.cluster import (
    HEAD,
    PROGRAM,
    NodeProcess,
    cluster_daemon,
    curve_key,
    nodes,
    place,
    until,
)
from tests.end_to_end.conftest import FEW_HOSTS, DaemonProcess, environment, short_folder
from tests.memory_agent.provider_server import embeds, serving
from tests.scraped import value

pytestmark = pytest.mark.slow

ADDRESSES = {"w1": "127.0.0.3", "w2": "127.0.0.4"}
BOTH_UP = dict.fromkeys(ADDRESSES, "up")
DISK_BYTES = 48 << 20
NOTE = "staging needs the VPN"
NUMBERS = itertools.count()
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
found = ActorMemoryProvider(sys.argv[2], data_dir=sys.argv[1]).recall("what does staging need")
print([memory.record.text for memory in found.memories])
"""


@pytest.fixture(scope="module")
def embedder() -> Iterator[tuple[str, ...]]:
    """The settings of a model on a server, which all machines use."""
    with serving() as provider:
        provider.then(embeds(OllamaEmbedder()))
        yield "embedder.type=ollama", "embedder.model=made", f"embedder.url={provider.url}"


@pytest.fixture(scope="module")
def daemon(embedder: tuple[str, ...]) -> Iterator[DaemonProcess]:
    settings = (*FEW_HOSTS, "daemon.upkeep_interval_s=3")
    with short_folder() as folder, cluster_daemon(Path(folder), *settings, embedder=embedder).running() as process:
        yield process


@pytest.fixture(scope="module")
def joined(daemon: DaemonProcess, embedder: tuple[str, ...]) -> Iterator[dict[str, NodeProcess]]:
    """Two machines, not started yet. The folder of `w2` is on a small disk if one can be mounted."""
    with ExitStack() as stack:
        one, two = (Path(stack.enter_context(short_folder())) for _ in range(2))
        with suppress(CannotMountError):
            two = stack.enter_context(small_disk(two / "disk", DISK_BYTES))
        found = {
            name: NodeProcess(daemon, folder, name, ADDRESSES[name], embedder=embedder)
            for name, folder in (("w1", one), ("w2", two))
        }
        for process in found.values():
            stack.callback(process.kill)
        yield found


@pytest.fixture
def machines(joined: dict[str, NodeProcess]) -> dict[str, NodeProcess]:
    """Two machines that have joined. Starts those that an earlier test ended."""
    for machine in joined.values():
        if not machine.is_running:
            machine.start()
    return joined


def client(daemon: DaemonProcess, user_id: str) -> MemoryClient:
    return MemoryClient(user_id, data_dir=daemon.data_dir)


def stored(daemon: DaemonProcess, user_id: str, text: str) -> None:
    with client(daemon, user_id) as own:
        own.remember(text)


def texts(daemon: DaemonProcess, user_id: str) -> list[str]:
    """Return what a user has stored. The client repeats the request until a machine answers."""
    with client(daemon, user_id) as own:
        return sorted(record.text for record in own.list(limit=500).records)


def publish(daemon: DaemonProcess, user_id: str, numbers: range) -> list[str]:
    """Publish events and wait for their acknowledgements; return the texts of the memories that they become."""
    published = [f"Note {number}: the lamp in room {number} of {user_id} flickers" for number in numbers]
    with Publisher(relay_endpoints(daemon.data_dir).ingest) as publisher:
        for text in published:
            publisher.publish({"event_type": "chat.user_msg", "user_id": user_id, "payload": {"text": text}})
    return published


def handled(daemon: DaemonProcess) -> None:
    """Wait until all published events have become memories."""
    with client(daemon, "anybody") as own:
        own.wait({"system": own.status().journal["last_seq"]}, 60.0)


def hosted(daemon: DaemonProcess, machine: NodeProcess) -> str:
    """Store `NOTE` for a new user on a machine; return the user.

    A machine that lost a host receives no users for 10 s, so other tests run before its next users are stored.
    """
    for _ in range(30):
        user_id = f"user-{next(NUMBERS)}"
        place(daemon, user_id, machine.name)
        with suppress(MemoryAgentError):
            stored(daemon, user_id, NOTE)
            if (machine.data_dir / "users" / user_id / "records").exists():
                return user_id
        time.sleep(1.0)
    raise AssertionError(daemon.log())


def hosts_of(machine: NodeProcess) -> list[psutil.Process]:
    return [process for process in machine.family() if "HostActor" in "".join(process.cmdline())]


def states(daemon: DaemonProcess) -> dict[str, str]:
    return {node.name: node.state for node in nodes(daemon)}


def test_a_machine_that_joined_hosts_users_in_its_own_folder(
    daemon: DaemonProcess, machines: dict[str, NodeProcess]
) -> None:
    assert {node.name: (node.address, node.state) for node in nodes(daemon)} == {
        name: (address, "up") for name, address in ADDRESSES.items()
    }
    user_id = hosted(daemon, machines["w1"])
    assert [file.name for file in (daemon.data_dir / "users" / user_id).iterdir()] == ["placement.json"]
    shown = subprocess.run(
        [PROGRAM, "status", "--data-dir", str(daemon.data_dir)], env=environment(), capture_output=True, text=True
    )
    assert ADDRESSES["w1"] in shown.stdout
    with client(daemon, user_id) as own:
        item = own.shared.confirm(own.shared.preview("Staging", NOTE))
        assert [one.id for one in own.shared.published()] == [item.id]
        own.shared.unpublish(item.id)
        page = own.metrics()
        assert value(page, "nodes", state="up") == 2
        assert value(page, "node_users", node="w1") >= 1
        until(lambda: value(own.metrics(), "memories") >= 1, daemon.log)  # the user's host reports during upkeep


def test_each_machine_embeds_with_a_model_on_a_server(
    daemon: DaemonProcess, machines: dict[str, NodeProcess], embedder: tuple[str, ...]
) -> None:
    place(daemon, "at-home", "")
    stored(daemon, "at-home", NOTE)
    for user_id in ("at-home", hosted(daemon, machines["w1"])):
        with client(daemon, user_id) as own:
            until(lambda own=own: not own.stats().waiting, daemon.log)  # type: ignore[misc]
            found = own.recall("staging VPN", mode="vector", min_relevance=0.0)
            assert [memory.record.text for memory in found.memories] == [NOTE]
            assert found.degraded == ()
            assert str(own.stats().model).startswith("ollama/made|")
    with short_folder() as folder:
        other = (embedder[0], "embedder.model=another", embedder[2])
        stranger = NodeProcess(daemon, Path(folder), "w3", embedder=other)
        assert "use one model on all machines" in refused(stranger)


def test_ports_are_open_at_the_machines_addresses_and_rays_refuse_strangers(
    daemon: DaemonProcess, machines: dict[str, NodeProcess]
) -> None:
    """Ray listens on all interfaces unless its address is 127.0.0.1, so its open ports must require a certificate."""
    own = psutil.Process(daemon.pid)
    families = itertools.chain.from_iterable(machine.family() for machine in machines.values())
    listening = {
        (connection.laddr.ip.removeprefix("::ffff:"), connection.laddr.port)
        for process in (own, *own.children(recursive=True), *families)
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }
    assert {address for address, _ in listening} <= {"127.0.0.1", HEAD, *ADDRESSES.values(), "::"}
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


def test_a_killed_gcs_is_started_again(daemon: DaemonProcess, machines: dict[str, NodeProcess]) -> None:
    (gcs,) = (child for child in psutil.Process(daemon.pid).children() if child.name() == "gcs_server")
    time_left_s = 10 - (time.time() - psutil.Process(machines["w1"].pid).create_time())
    time.sleep(max(0.0, time_left_s))  # a gcs that dies within 10 s is not restarted; the machine is younger
    gcs.kill()
    until(lambda: "ray.gcs_died" in daemon.log(), daemon.log)
    for host in hosts_of(machines["w1"]):
        host.kill()
    assert texts(daemon, hosted(daemon, machines["w2"])) == [NOTE]
    assert states(daemon) == BOTH_UP


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


def test_a_machine_that_may_not_join_is_told_why(
    daemon: DaemonProcess, machines: dict[str, NodeProcess], tmp_path: Path
) -> None:
    local, reader, revoked = (tmp_path / f"{name}.key" for name in ("local", "reader", "revoked"))
    token = (daemon.data_dir / "token").read_text(encoding="utf-8").strip()
    local.write_text(json.dumps({"id": "local", "token": token}))
    taken = {"address": daemon.ready["endpoints"]["gateway"], "key-file": str(local), "name": "w1"}
    assert f"w1 is the name of the machine at {ADDRESSES['w1']}" in refused(machines["w1"], **taken)
    reader.write_bytes(curve_key(daemon, "reader", Scope.RECALL))
    assert "scope join" in refused(machines["w1"], **{"key-file": str(reader)})
    revoked.write_bytes(curve_key(daemon, "revoked", Scope.JOIN))
    revoke_key(daemon.data_dir, "revoked")
    assert "no daemon at" in refused(machines["w1"], **{"key-file": str(revoked)})


def refused(node: NodeProcess, **differing: str) -> str:
    """Try to join as another machine, with some of the values replaced; return the error."""
    with short_folder() as data_dir:
        command = node.command(**({"data-dir": data_dir, "name": "w3", "listen": "127.0.0.5"} | differing))
        result = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 1
    return result.stderr


def test_a_gcs_that_was_started_again_starts_hosts(daemon: DaemonProcess, machines: dict[str, NodeProcess]) -> None:
    """The test of a killed gcs has also killed all hosts on the machine."""
    if "ray.gcs_died" not in daemon.log():
        pytest.skip("continues the test of a killed gcs")
    assert texts(daemon, hosted(daemon, machines["w1"])) == [NOTE]


def test_a_planner_on_the_daemons_machine_asks_a_host_on_another(
    daemon: DaemonProcess, machines: dict[str, NodeProcess]
) -> None:
    command = [sys.executable, "-c", PLANNER, str(daemon.data_dir), hosted(daemon, machines["w1"])]
    result = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=120, check=False)
    assert result.stdout.strip() == str([NOTE]), result.stderr


def test_users_leave_a_machine_with_a_full_disk_until_it_has_room(
    daemon: DaemonProcess, machines: dict[str, NodeProcess]
) -> None:
    disk = machines["w2"].data_dir
    if not disk.is_mount():
        pytest.skip("only root can mount a file system")
    user = hosted(daemon, machines["w2"])
    published = publish(daemon, user, range(10))
    handled(daemon)
    assert (disk / "users" / user / "records").exists()
    ballast = fill(disk)
    until(lambda: ("w2", True) in [(node.name, node.is_full) for node in nodes(daemon)], daemon.log)
    published += publish(daemon, user, range(10, 15))
    handled(daemon)
    assert texts(daemon, user) == sorted([NOTE, *published])
    assert not (disk / "users" / user / "records").exists()
    assert "node.full" in daemon.log()
    ballast.unlink()
    until(lambda: not any(node.is_full for node in nodes(daemon)), daemon.log)


def test_an_erased_user_leaves_nothing_on_any_machine_or_in_the_archive(
    daemon: DaemonProcess, machines: dict[str, NodeProcess]
) -> None:
    secret = "the spare key lies under the fern"
    for user_id in ("erased", "erased-in-part"):
        place(daemon, user_id, "w1")
        stored(daemon, user_id, secret)
    archive = daemon.data_dir.parent / "archive"
    folders = (machines["w1"].data_dir, machines["w2"].data_dir, archive, daemon.data_dir)
    assert any(found_in(folder, secret) for folder in folders)  # the users may already have been moved
    with client(daemon, "erased-in-part") as own:
        (record,) = own.list().records
        own.erasure.erase([record.id])
        assert own.list().records == ()
    with client(daemon, "erased") as own:
        own.erasure.erase_user()
    for folder in folders:
        assert found_in(folder, secret) == []
    stored(daemon, "erased", "a new beginning")
    assert texts(daemon, "erased") == ["a new beginning"]


def found_in(folder: Path, text: str) -> list[Path]:
    """Return the files under `folder` that contain the given string."""
    return [file for file in folder.rglob("*") if file.is_file() and text.encode() in file.read_bytes()]


def test_nothing_acknowledged_is_lost_or_doubled_when_a_machine_is_killed(
    daemon: DaemonProcess, machines: dict[str, NodeProcess]
) -> None:
    users = [f"killed-{number}" for number in range(3)]
    expected: dict[str, list[str]] = {}
    for user_id in users:
        place(daemon, user_id, "w1")
        expected[user_id] = publish(daemon, user_id, range(10))
        stored(daemon, user_id, NOTE)
        expected[user_id] += [NOTE, *publish(daemon, user_id, range(10, 20))]
    assert any((machines["w1"].data_dir / "users" / user_id / "records").exists() for user_id in users)
    family = machines["w1"].family()
    for process in family:
        process.kill()
    psutil.wait_procs(family, timeout=20)
    machines["w1"].ended()
    for user_id in users:
        expected[user_id] += publish(daemon, user_id, range(20, 25))
    handled(daemon)
    for user_id in users:
        assert texts(daemon, user_id) == sorted(expected[user_id])
    until(lambda: states(daemon) == {"w2": "up"}, daemon.log)


def test_users_survive_the_daemons_death_and_machines_join_the_next_daemon(
    daemon: DaemonProcess, machines: dict[str, NodeProcess]
) -> None:
    user_id = hosted(daemon, machines["w2"])
    published = publish(daemon, user_id, range(10))
    hosts = [host for machine in machines.values() for host in hosts_of(machine)]
    assert hosts
    daemon.kill()
    _, alive = psutil.wait_procs(hosts, timeout=20)
    assert alive == []
    daemon.start()
    handled(daemon)
    assert texts(daemon, user_id) == sorted([NOTE, *published])
    until(lambda: states(daemon) == BOTH_UP, daemon.log)
    assert all(machine.is_running for machine in machines.values())  # the same processes
    hosted(daemon, machines["w1"])


def test_machines_leave_by_name_and_by_folder_and_users_stay_without_machines(
    daemon: DaemonProcess, machines: dict[str, NodeProcess]
) -> None:
    users = [hosted(daemon, machine) for machine in machines.values()]
    ways = {"w1": ["w1", "--data-dir", str(daemon.data_dir)], "w2": ["--data-dir", str(machines["w2"].data_dir)]}
    for name, machine in machines.items():
        family = machine.family()
        result = subprocess.run(
            [PROGRAM, "leave", *ways[name]], env=environment(), capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, result.stderr
        assert machine.ended() == 0, machine.log()
        _, alive = psutil.wait_procs(family, timeout=20)
        assert alive == []
        assert name not in states(daemon)
        assert not (machine.data_dir / "users").exists()
    assert states(daemon) == {}
    assert [texts(daemon, user_id) for user_id in users] == [[NOTE]] * 2
    for machine in machines.values():
        machine.start()
    stored(daemon, users[0], "staging is reset on Mondays")
    assert texts(daemon, users[0]) == sorted([NOTE, "staging is reset on Mondays"])
    assert os.listdir(daemon.data_dir / "users" / users[0])


def test_a_killed_machine_leaves_nothing_running_and_is_forgotten(
    daemon: DaemonProcess, machines: dict[str, NodeProcess]
) -> None:
    machine = machines["w2"]
    user_id = hosted(daemon, machine)
    family = machine.family()
    assert len(family) >= 5
    machine.kill()
    _, alive = psutil.wait_procs(family, timeout=20)
    assert alive == []
    until(lambda: states(daemon) == {"w1": "up"}, daemon.log, within_s=20)
    assert texts(daemon, user_id) == [NOTE]
    machine.start()


def test_a_frozen_machine_loses_its_users_and_its_hosts_answer_nobody_afterwards(
    daemon: DaemonProcess, machines: dict[str, NodeProcess]
) -> None:
    user_id = hosted(daemon, machines["w1"])
    published = publish(daemon, user_id, range(5))
    handled(daemon)
    family = frozen(machines["w1"])
    hosts = hosts_of(machines["w1"])
    assert hosts
    try:
        assert texts(daemon, user_id) == sorted([NOTE, *published])
        stored(daemon, user_id, "staging is reset on Mondays")
    finally:
        for process in family:
            process.send_signal(signal.SIGCONT)
    assert "staging is reset on Mondays" in texts(daemon, user_id)
    until(lambda: not any(host.is_running() for host in hosts), machines["w1"].log)  # killed, or ended with Ray
    until(lambda: states(daemon).get("w1") == "up", machines["w1"].log)
    assert Counter(texts(daemon, user_id)).most_common(1)[0][1] == 1


def frozen(machine: NodeProcess) -> list[psutil.Process]:
    """Stop all processes of a machine, including any that it starts in the meantime, and return them."""
    family: list[psutil.Process] = []
    while started := [process for process in machine.family() if process not in family]:
        for process in started:
            process.send_signal(signal.SIGSTOP)
        family += started
    return family


def test_a_killed_machine_that_joined_again_receives_users(
    daemon: DaemonProcess, machines: dict[str, NodeProcess]
) -> None:
    if "node.lost" not in daemon.log():
        pytest.skip("continues the test of a killed machine")
    hosted(daemon, machines["w2"])
