"""Test that the wheel works in a new environment with only its dependencies: no Ray, extras or files from the clone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from memory_agent.cli.group import VERBS
from memory_agent.embedders.weights import cache_folder

ROOT = Path(__file__).parents[2]
CODE = ("memory_agent/", "relay/", "sona/")
Command = Callable[..., "subprocess.CompletedProcess[str]"]

pytestmark = pytest.mark.slow


def run(*command: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | variables
    return subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment, check=False)


def module(name: str) -> tuple[str, str, str]:
    return (sys.executable, "-m", name)


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the sdist and the wheel, which is built from the sdist as in `make dist`."""
    folder = tmp_path_factory.mktemp("dist")
    shutil.rmtree(ROOT / "man", ignore_errors=True)
    subprocess.run([*module("memory_agent"), "man", "--out", "man"], cwd=ROOT, check=True, timeout=60)
    built = run(*module("build"), "--installer", "uv", "--outdir", folder, ROOT)
    if built.returncode and "resolution failed" in built.stderr + built.stdout:
        pytest.skip("setuptools cannot be downloaded")
    assert built.returncode == 0, built.stdout[-2000:] + built.stderr[-2000:]
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (wheel,) = dist.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Command:
    """Run a program from a new environment that contains the wheel, with a home folder that contains the model."""
    folder = tmp_path_factory.mktemp("installed")
    python = folder / "env" / "bin" / "python"
    run(*module("uv"), "venv", "--python", sys.executable, folder / "env")
    what = ("--constraint", ROOT / "ops" / "constraints.txt", wheel)
    done = run(*module("uv"), "pip", "install", "--python", python, *what)
    if "Failed to fetch" in done.stderr:
        pytest.skip("the dependencies cannot be downloaded")
    assert done.returncode == 0, done.stderr
    home = folder / "home"
    home.mkdir()
    variables = {
        "HOME": str(home),
        "MEMORY_AGENT_MODEL_CACHE": str(cache_folder()),
        "XDG_DATA_HOME": "",
        "TMPDIR": "/tmp",
    }
    return lambda program, *arguments: run(python.with_name(program), *arguments, **variables)


def test_the_distributions_pass_the_check_of_the_index(dist: Path) -> None:
    checked = run(*module("twine"), "check", "--strict", *dist.iterdir())
    assert checked.stdout.count("PASSED") == 2, checked.stdout


def test_the_wheel_has_the_product_and_nothing_else(dist: Path, wheel: Path) -> None:
    tracked = run("git", "-C", ROOT, "ls-files", *CODE).stdout.split()
    if not tracked:
        pytest.skip("not a clone")
    (sdist,) = dist.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name and ".data/" not in name}
    with tarfile.open(sdist) as archive:
        sources = {name.partition("/")[2] for name in archive.getnames()}
    assert packed == set(tracked)
    assert packed <= sources
    assert {f"{package}py.typed" for package in CODE} <= packed


def test_the_wheel_has_a_manual_page_for_each_command(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        pages = {Path(name).name for name in archive.namelist() if "/share/man/man1/" in name}
    assert pages == {"memory-agent.1", *(f"memory-agent-{name}.1" for name in VERBS)}


def test_memories_are_kept_and_found_without_a_daemon(installed: Command) -> None:
    kept = installed("memory-agent", "remember", "Staging needs the VPN", "--json")
    assert kept.returncode == 0, kept.stderr
    found = installed("memory-agent", "recall", "what does staging need?", "--json")
    answer = json.loads(found.stdout)
    assert answer["memories"][0]["record"]["text"] == "Staging needs the VPN"
    assert answer["degraded"] == []


def test_the_daemon_without_ray_is_one_process_and_says_so(installed: Command, tmp_path: Path) -> None:
    program = (
        "import json, signal, subprocess, sys\n"
        "daemon = subprocess.Popen([sys.executable, '-m', 'memory_agent', 'serve', '--data-dir', sys.argv[1]],\n"
        "    stdout=subprocess.PIPE, stderr=open(sys.argv[1] + '.log', 'w'), text=True)\n"
        "ready = json.loads(daemon.stdout.readline())\n"
        "from memory_agent import MemoryClient\n"
        "with MemoryClient('alice', data_dir=sys.argv[1]) as memory:\n"
        "    memory.remember('Staging needs the VPN')\n"
        "    print(memory.status().form, memory.recall('what does staging need?').memories[0].record.text)\n"
        "daemon.send_signal(signal.SIGTERM)\n"
        "print(daemon.wait())\n"
    )
    done = installed("python", "-c", program, str(tmp_path / "data"))
    assert done.stdout.splitlines() == ["light Staging needs the VPN", "0"], done.stderr
    assert "requires Ray: pip install 'ray<2.61' cryptography fsspec" in (tmp_path / "data.log").read_text()


def test_what_needs_ray_names_the_packages(installed: Command, tmp_path: Path) -> None:
    imported = installed("python", "-c", "from memory_agent import ActorMemoryProvider")
    assert (
        imported.stderr.splitlines()[-1]
        == "ModuleNotFoundError: this requires Ray: pip install 'ray<2.61' cryptography fsspec"
    )
    folder, archive = ("--data-dir", str(tmp_path)), f"archive.url=file://{tmp_path}/archive"
    joined = installed("memory-agent", "join", "tcp://127.0.0.1:1", "--name", "one", *folder)
    assert "cluster: requires Ray: pip install 'ray<2.61' cryptography fsspec" in joined.stderr
    served = installed("memory-agent", "serve", "--set", "cluster.listen=127.0.0.1", "--set", archive, *folder)
    assert (served.returncode, "cluster.listen: requires Ray" in served.stderr) == (joined.returncode, True), (
        served.stderr
    )


def test_everything_but_ray_passes_doctor(installed: Command, tmp_path: Path) -> None:
    checked = installed("memory-agent", "doctor", "--data-dir", str(tmp_path), "--json")
    checks = {check["name"]: check for check in json.loads(checked.stdout)["checks"]}
    assert checked.returncode == 0, checked.stdout
    assert "ray (not installed: serve runs as one process)" in checks["versions"]["detail"]
