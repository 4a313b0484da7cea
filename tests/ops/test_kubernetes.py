"""Test that the manifests in ops/kubernetes match the Kubernetes schemas, each other, and the program."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from memory_agent import MemoryClient
from memory_agent.cli.group import cli
from memory_agent.daemon.cluster_secrets import ClusterSecrets, require_address
from memory_agent.daemon.node import _LEAVE_TIMEOUT_S
from memory_agent.doors.http.guard import place_of, refuse_names
from memory_agent.evaluation import child_environment
from memory_agent.settings import ENVIRONMENT_PREFIX, Settings, load_settings

FOLDER = Path(__file__).parents[2] / "ops" / "kubernetes"
MANIFESTS = sorted(
    path for path in FOLDER.rglob("*.yaml") if path.name not in ("kustomization.yaml", "keys-patch.yaml")
)
OLDEST = "1.30"
"""The manifests are checked against the schemas of this release and of the newest known release."""
POD_IP = "10.0.0.5"
WORKLOADS = ("StatefulSet", "Deployment")

Manifest = dict[str, Any]


def documents() -> list[Manifest]:
    return [one for path in MANIFESTS for one in yaml.safe_load_all(path.read_text(encoding="utf-8"))]


def of_kind(*kinds: str) -> list[Manifest]:
    return [one for one in documents() if one["kind"] in kinds]


def pod_of(workload: Manifest) -> Manifest:
    pod: Manifest = workload["spec"]["template"]["spec"]
    return pod


def container_of(workload: Manifest) -> Manifest:
    (container,) = pod_of(workload)["containers"]
    assert isinstance(container, dict)
    return container


def workload(kind: str) -> Manifest:
    (found,) = of_kind(kind)
    return found


def need(found: object, what: str) -> None:
    """Skip with the reason; fail in CI, where everything needed is installed."""
    if not found:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"needs {what}")


def validate(manifest: Manifest) -> None:
    try:
        import kubernetes_validate
    except ImportError:
        need(None, "the package kubernetes-validate, which contains the schemas of Kubernetes")
    for release in (OLDEST, kubernetes_validate.latest_version()):
        kubernetes_validate.validate(manifest, release, strict=True)


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_a_manifest_fits_the_schemas_of_kubernetes(path: Path) -> None:
    for manifest in yaml.safe_load_all(path.read_text(encoding="utf-8")):
        validate(manifest)
        assert manifest["metadata"].get("namespace", "memory") == "memory"


@pytest.mark.parametrize("is_encrypted", [False, True], ids=["plain", "encrypted"])
def test_kustomize_builds_valid_manifests(tmp_path: Path, is_encrypted: bool) -> None:
    need(shutil.which("kubectl"), "kubectl")
    folder = shutil.copytree(FOLDER, tmp_path / "kubernetes")
    if is_encrypted:
        file = folder / "kustomization.yaml"
        file.write_text(file.read_text(encoding="utf-8").replace("# components:", "components:"), encoding="utf-8")
    built = subprocess.run(["kubectl", "kustomize", folder], capture_output=True, text=True, check=True).stdout
    manifests = list(yaml.safe_load_all(built))
    for manifest in manifests:
        validate(manifest)
    kinds = [manifest["kind"] for manifest in manifests]
    assert {*WORKLOADS, "Service", "PodDisruptionBudget", "NetworkPolicy", "ConfigMap"} <= set(kinds)
    assert ("PersistentVolumeClaim" in kinds) is is_encrypted
    assert "Secret" not in kinds  # an example Secret must not replace a real one
    images = {container_of(one)["image"] for one in manifests if one["kind"] in WORKLOADS}
    assert len(images) == 1
    for one in manifests:
        if one["kind"] in WORKLOADS:
            settings = settings_of(one, tmp_path)
            folders = {mount["mountPath"] for mount in container_of(one)["volumeMounts"]}
            assert bool(settings.encryption.keys_folder) is is_encrypted
            assert ("/keys" in folders) is is_encrypted


def test_every_selector_selects_exactly_its_pods() -> None:
    labels = {one["metadata"]["name"]: one["spec"]["template"]["metadata"]["labels"] for one in of_kind(*WORKLOADS)}
    for one in of_kind(*WORKLOADS, "Service", "PodDisruptionBudget", "NetworkPolicy"):
        selector = one["spec"].get("podSelector", one["spec"].get("selector"))
        wanted = selector.get("matchLabels", selector)
        selected = {name for name, own in labels.items() if wanted.items() <= own.items()}
        expected = {
            "memory": {"memory-agent"},
            "memory-daemon": {"memory-agent"},
            "memory-agent-clients": {"memory-agent"},
            "memory-agent-worker": {"memory-agent-worker"},
        }.get(one["metadata"]["name"])
        if expected is None:  # the daemon's StatefulSet, and the policy for all Pods
            expected = {"memory-agent"} if one["kind"] == "StatefulSet" else set(labels)
        assert selected == expected, one["metadata"]["name"]


def test_every_port_secret_and_volume_that_is_named_exists() -> None:
    secrets = {one["metadata"]["name"]: one for one in of_kind("Secret")}
    known = {
        "configMap": {one["metadata"]["name"] for one in of_kind("ConfigMap")},
        "secret": set(secrets),
        "persistentVolumeClaim": {one["metadata"]["name"] for one in of_kind("PersistentVolumeClaim")},
    }
    ports = {one["name"]: one["containerPort"] for one in container_of(workload("StatefulSet"))["ports"]}
    for one in of_kind(*WORKLOADS):
        pod, container = pod_of(one), container_of(one)
        assert pod["serviceAccountName"] in {account["metadata"]["name"] for account in of_kind("ServiceAccount")}
        volumes = {volume["name"] for volume in pod["volumes"]}
        volumes |= {claim["metadata"]["name"] for claim in one["spec"].get("volumeClaimTemplates", ())}
        assert {mount["name"] for mount in container["volumeMounts"]} == volumes
        for volume in pod["volumes"]:
            for kind, names in known.items():
                if kind in volume:
                    assert volume[kind].get("name", volume[kind].get("secretName")) in names
        assert all(source["secretRef"]["name"] in secrets for source in container["envFrom"])
        probes = [probe for name, probe in container.items() if name.endswith("Probe")]
        assert all(probe["httpGet"]["port"] in ports for probe in probes if "httpGet" in probe)
    for service in of_kind("Service"):
        for port in service["spec"]["ports"]:
            assert port["targetPort"] in ports
            assert port["name"] == port["targetPort"]
    (clients,) = (one for one in of_kind("NetworkPolicy") if one["metadata"]["name"] == "memory-agent-clients")
    assert {port["port"] for rule in clients["spec"]["ingress"] for port in rule["ports"]} == set(ports)
    services = {one["metadata"]["name"] for one in of_kind("Service")}
    assert workload("StatefulSet")["spec"]["serviceName"] in services


def settings_of(workload: Manifest, tmp_path: Path) -> Settings:
    """Return the settings that a Pod's program reads, with its certificate under `tmp_path`."""
    (configuration,) = of_kind("ConfigMap")
    text = configuration["data"]["settings.toml"].replace("/etc/memory-agent-tls", str(tmp_path))
    for name in ("tls.crt", "tls.key"):
        (tmp_path / name).touch()
    file = tmp_path / "settings.toml"
    file.write_text(text, encoding="utf-8")
    return load_settings(file, environment_of(workload))


def environment_of(workload: Manifest) -> dict[str, str]:
    values: dict[str, str] = {}
    for one in container_of(workload)["env"]:
        field = one.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
        raw = (
            {"status.podIP": POD_IP, "metadata.name": "memory-agent-worker-abc12-x9z"}[field] if field else one["value"]
        )
        values[one["name"]] = re.sub(r"\$\((\w+)\)", lambda found: values[found[1]], raw)
    return values


def test_the_daemon_listens_where_the_services_and_probes_expect_it(tmp_path: Path) -> None:
    daemon = workload("StatefulSet")
    settings = settings_of(daemon, tmp_path)
    require_address("cluster.listen", settings.cluster.listen)
    assert settings.cluster.listen == POD_IP
    assert settings.archive.url
    place = place_of(settings.daemon.http)
    assert place is not None
    assert place.is_tls
    assert refuse_names(place, settings.daemon.http.hosts, f"{POD_IP}:{place.port}", None) is None  # as a probe asks
    assert refuse_names(place, settings.daemon.http.hosts, "memory.memory.svc", None) is None
    broker = settings.relay.broker
    (gateway,), (relay,), (feed,) = settings.daemon.listen, broker.listen, broker.feed_listen
    ports = {one["name"]: one["containerPort"] for one in container_of(daemon)["ports"]}
    assert ports == {
        "gateway": int(gateway.rpartition(":")[2]),
        "relay": int(relay.rpartition(":")[2]),
        "relay-feed": int(feed.rpartition(":")[2]),
        "https": place.port,
    }


def commands() -> Iterator[list[str]]:
    """Yield the command lines of the Pods and the pages."""
    for one in of_kind(*WORKLOADS):
        values = environment_of(one)
        yield [
            re.sub(r"\$\((\w+)\)", lambda found, values=values: values[found[1]], part)
            for part in container_of(one)["args"]
        ]
    for path in (*FOLDER.rglob("*.yaml"), FOLDER / "README.md"):
        text = path.read_text(encoding="utf-8")
        for found in re.findall(r"(?:-- |of: )(memory-agent [^`|>&\\\n]+)", text):
            yield shlex.split(found)


def test_every_command_line_is_one_that_the_program_accepts() -> None:
    used = set()
    for program, *arguments in commands():
        assert program == "memory-agent"
        command: click.Command = cli
        while isinstance(command, click.Group):
            name = arguments.pop(0)
            with click.Context(command) as context:
                found = command.get_command(context, name)
            assert found is not None, name
            command = found
        arguments = [argument for argument in arguments if argument != "--config" and "settings.toml" not in argument]
        arguments = ["/dev/null" if argument.endswith("join.key") else argument for argument in arguments]
        command.make_context(command.name, arguments)
        used.add(command.name)
    assert {"serve", "join", "create", "status"} <= used


def test_a_worker_joins_at_a_service_of_the_daemon_with_files_that_are_mounted() -> None:
    worker = workload("Deployment")
    args = container_of(worker)["args"]
    host, _, port = args[2].removeprefix("curve+tcp://").partition(":")
    (service,) = (one for one in of_kind("Service") if one["metadata"]["name"] == host)
    assert int(port) in {one["port"] for one in service["spec"]["ports"]}
    assert service["spec"]["clusterIP"] == "None"
    join = next(one for one in of_kind("Secret") if one["metadata"]["name"] == "memory-agent-join")
    folders = {mount["name"]: mount["mountPath"] for mount in container_of(worker)["volumeMounts"]}
    (key,) = join["stringData"]
    assert args[args.index("--key-file") + 1] == f"{folders['join']}/{key}"
    assert args[args.index("--data-dir") + 1].startswith(folders["data"])
    probe = container_of(worker)["readinessProbe"]["exec"]["command"]
    assert probe[-1] == args[args.index("--data-dir") + 1] + "/run/place.json"


def test_pods_are_restricted_and_have_time_to_leave() -> None:
    for one in of_kind(*WORKLOADS):
        pod, container = pod_of(one), container_of(one)
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        writable = {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
        assert writable == {"/data", "/tmp", "/dev/shm"}
    assert pod_of(workload("Deployment"))["terminationGracePeriodSeconds"] > _LEAVE_TIMEOUT_S


def test_no_variable_that_kubernetes_sets_is_read_as_a_setting() -> None:
    for service in of_kind("Service"):
        name = service["metadata"]["name"].upper().replace("-", "_")
        assert not f"{name}_SERVICE_HOST".startswith(ENVIRONMENT_PREFIX)
        assert not f"{name}_PORT".startswith(ENVIRONMENT_PREFIX)
    assert all(pod_of(one)["enableServiceLinks"] is False for one in of_kind(*WORKLOADS))


def test_the_daemons_data_is_mounted_by_one_pod_only() -> None:
    daemon = workload("StatefulSet")["spec"]
    assert daemon["replicas"] == 1
    (claim,) = daemon["volumeClaimTemplates"]
    assert claim["spec"]["accessModes"] == ["ReadWriteOncePod"]


@pytest.mark.slow
@pytest.mark.ray
def test_the_commands_of_the_pods_work_together(tmp_path: Path) -> None:
    """Run the manifests' commands (daemon, probe, join key, worker) with loopback addresses and the test's folders."""
    daemon, worker = workload("StatefulSet"), workload("Deployment")
    home, node = "127.0.0.2", "127.0.0.3"
    certificate = ClusterSecrets(tmp_path / "authority").certificate_for(home)
    for name, text in (("tls.crt", certificate.certificate), ("tls.key", certificate.private_key)):
        (tmp_path / name).write_text(text)
    (configuration,) = of_kind("ConfigMap")
    settings = configuration["data"]["settings.toml"].replace("/etc/memory-agent-tls", str(tmp_path))
    settings = re.sub(r's3://[^"]+', f"file://{tmp_path}/archive", settings).replace("0.0.0.0", home)
    (tmp_path / "settings.toml").write_text(settings)

    def run_as(workload: Manifest, address: str) -> subprocess.Popen[str]:
        values = environment_of(workload) | {"POD_IP": address}
        values = {name: value.replace(POD_IP, address) for name, value in values.items()}
        args = [re.sub(r"\$\((\w+)\)", lambda found: values[found[1]], one) for one in container_of(workload)["args"]]
        replaced = {"/etc/memory-agent": str(tmp_path), "/data": str(tmp_path), "memory-daemon:": f"{home}:"}
        replaced = {"/etc/memory-agent-join": str(tmp_path), **replaced}
        for name, own in replaced.items():
            args = [one.replace(name, own) for one in args]
        program = [sys.executable, "-m", "memory_agent", *args[1:]]
        log = open(tmp_path / f"{address}.log", "w")  # noqa: SIM115
        with log:
            return subprocess.Popen(
                program, stdout=subprocess.PIPE, stderr=log, text=True, env={**child_environment(), **values}
            )

    with ExitStack() as stack:

        def start(workload: Manifest, address: str) -> subprocess.Popen[str]:
            process = run_as(workload, address)
            stack.callback(process.wait, 60)
            stack.callback(process.terminate)
            assert process.stdout is not None
            stack.callback(process.stdout.close)
            assert process.stdout.readline(), (tmp_path / f"{address}.log").read_text()
            return process

        start(daemon, home)
        trusting = ssl.create_default_context()
        trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE  # as the kubelet does
        probe = container_of(daemon)["readinessProbe"]["httpGet"]
        url = f"https://{home}:7430{probe['path']}"
        with urllib.request.urlopen(url, timeout=10, context=trusting) as answer:
            assert answer.status == 200
        create = next(one for one in commands() if one[1:3] == ["keys", "create"])
        create = [sys.executable, "-m", *create, "--data-dir", str(tmp_path / "daemon")]
        create[2] = "memory_agent"
        key = subprocess.run(create, stdout=subprocess.PIPE, check=True, env=child_environment()).stdout
        (tmp_path / "join.key").write_bytes(key)
        (tmp_path / "join.key").chmod(0o440)
        left = start(worker, node)
        ready = [
            one.replace("/data", str(tmp_path)) for one in container_of(worker)["readinessProbe"]["exec"]["command"]
        ]
        assert subprocess.run(ready, check=False).returncode == 0
        with MemoryClient(data_dir=tmp_path / "daemon") as client:
            (machine,) = client.status().nodes
            assert machine.name == environment_of(worker)["POD_NAME"]
            left.terminate()  # as Kubernetes does
            assert left.wait(60) == 0
            assert client.status().nodes == ()
        assert subprocess.run(ready, check=False).returncode == 1
