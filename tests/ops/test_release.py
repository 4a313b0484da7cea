"""Test `make release` and its wheel.

An invalid release is refused. A release tries every step; a dry run changes nothing. The wheel works in a new
environment with only its dependencies: no Ray, extras or files from the clone.
"""

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
from click.testing import CliRunner, Result

from memory_agent.cli.group import VERBS
from memory_agent.embedders.weights import cache_folder
from ops import release
from ops.release import ROOT, main

CODE = ("memory_agent/", "relay/", "sona/")
UV = (sys.executable, "-m", "uv")
Command = Callable[..., "subprocess.CompletedProcess[str]"]


def git(folder: Path, *arguments: str, stdin: str = "") -> str:
    command = ("git", "-c", "user.name=a", "-c", "user.email=a@example.org", *arguments)
    return subprocess.run(command, cwd=folder, input=stdin, capture_output=True, text=True, check=True).stdout


def cloned(folder: Path) -> Path:
    """A clone of this repository, with its uncommitted changes, and with one entry under Unreleased."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a clone")
    git(ROOT, "clone", "--quiet", "--shared", str(ROOT), str(folder))
    if changes := git(ROOT, "diff", "--binary", "HEAD"):
        git(folder, "apply", "--index", stdin=changes)
    page = folder / "ops" / "CHANGELOG.md"
    page.write_text(page.read_text(encoding="utf-8").replace("## Unreleased\n", "## Unreleased\n\n- A change.\n", 1))
    git(folder, "commit", "--quiet", "--all", "--message", "Describe a change")
    return folder


def released(*arguments: str) -> Result:
    result = CliRunner().invoke(main, arguments)
    if "Failed to fetch" in result.output:
        pytest.skip("the dependencies cannot be downloaded")
    return result


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = cloned(tmp_path / "clone")
    monkeypatch.setattr(release, "ROOT", folder)
    return folder


@pytest.fixture(scope="module")
def released_clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone in which 9.0.0 was released, over an older distribution. The release also tries out the wheel."""
    clone = cloned(tmp_path_factory.mktemp("released") / "clone")
    (clone / "dist").mkdir()
    (clone / "dist" / "memory_agent-0.1.0.tar.gz").touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(release, "ROOT", clone)
        for name in ("GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL"):
            patch.setenv(name, "a@example.org")
        result = released("9.0.0")
    assert result.exit_code == 0, result.output
    return clone


@pytest.fixture(scope="module")
def wheel(released_clone: Path) -> Path:
    (wheel,) = (released_clone / "dist").glob("*.whl")
    return wheel


def run(*command: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | variables
    return subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment, check=False)


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Command:
    """Run a program from a new environment that contains the wheel, with a home folder that contains the model."""
    folder = tmp_path_factory.mktemp("installed")
    python = folder / "env" / "bin" / "python"
    run(*UV, "venv", "--python", sys.executable, folder / "env")
    what = ("--constraint", ROOT / "ops" / "constraints.txt", wheel)
    done = run(*UV, "pip", "install", "--python", python, *what)
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


@pytest.mark.parametrize(
    ("version", "reason"),
    [("0.0.9", "not later than 0.1.0"), ("0.1.0", "not later than 0.1.0"), ("next", "choose one such as 0.2.0")],
)
def test_a_version_that_is_not_later_is_refused(clone: Path, version: str, reason: str) -> None:
    result = released(version)
    assert (result.exit_code, reason in result.output) == (1, True), result.output


def test_a_changed_tree_a_taken_tag_and_an_empty_change_log_are_refused(clone: Path) -> None:
    git(clone, "tag", "v0.2.0")
    assert "the tag v0.2.0 exists" in released("0.2.0").output
    page = clone / "ops" / "CHANGELOG.md"
    page.write_text("# Changes\n\n## Unreleased\n\n## 0.1.0\n\n- All.\n", encoding="utf-8")
    assert "uncommitted changes" in released("0.3.0").output
    git(clone, "commit", "--quiet", "--all", "--message", "Empty it")
    assert "no entry below Unreleased" in released("0.3.0").output


@pytest.mark.slow
def test_a_dry_run_shows_the_release_and_changes_nothing(
    clone: Path, released_clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Uses this environment and the distributions of the release below, which tests what this test leaves out."""
    monkeypatch.setattr(release, "_install", lambda *_: Path(sys.executable))
    monkeypatch.setattr(release, "_build", lambda _, folder: shutil.copytree(released_clone / "dist", folder))
    monkeypatch.setattr(release, "_try_out", lambda *_: None)
    before = git(clone, "rev-parse", "HEAD")
    result = released("9.0.0", "--dry-run")
    assert result.exit_code == 0, result.output
    for name in ("pyproject.toml", "kustomization.yaml", "CHANGELOG.md"):
        assert name in result.output
    assert "memory_agent-9.0.0-py3-none-any.whl" in result.output
    assert git(clone, "status", "--porcelain") == git(clone, "tag") == ""
    assert git(clone, "rev-parse", "HEAD") == before


@pytest.mark.slow
def test_a_release_is_a_commit_a_tag_and_its_distributions_alone(released_clone: Path) -> None:
    assert git(released_clone, "status", "--porcelain") == ""
    changed = git(released_clone, "show", "--stat", "HEAD")
    for name in ("pyproject.toml", "kustomization.yaml", "CHANGELOG.md", "catalogue.json", "plugin.json"):
        assert name in changed
    assert git(released_clone, "show", "v9.0.0^{commit}:pyproject.toml").count('version = "9.0.0"') == 1
    assert git(released_clone, "rev-parse", "v9.0.0^{commit}") == git(released_clone, "rev-parse", "HEAD")
    assert sorted(path.name for path in (released_clone / "dist").iterdir()) == [
        "memory_agent-9.0.0-py3-none-any.whl",
        "memory_agent-9.0.0.tar.gz",
    ]


@pytest.mark.slow
def test_the_wheel_has_the_product_and_nothing_else(released_clone: Path, wheel: Path) -> None:
    tracked = git(released_clone, "ls-files", *CODE).split()
    (sdist,) = wheel.parent.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name and ".data/" not in name}
    with tarfile.open(sdist) as archive:
        sources = {name.partition("/")[2] for name in archive.getnames()}
    assert packed == set(tracked)
    assert packed <= sources
    assert {f"{package}py.typed" for package in CODE} <= packed


@pytest.mark.slow
def test_the_wheel_has_a_manual_page_for_each_command(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        pages = {Path(name).name for name in archive.namelist() if "/share/man/man1/" in name}
    assert pages == {"memory-agent.1", *(f"memory-agent-{name}.1" for name in VERBS)}


@pytest.mark.slow
def test_the_daemon_without_ray_is_one_process_and_says_so(installed: Command, tmp_path: Path) -> None:
    program = (
        "import json, signal, subprocess, sys\n"
        "daemon = subprocess.Popen([sys.executable, '-m', 'memory_agent', 'serve', '--data-dir', sys.argv[1]],\n"
        "    stdout=subprocess.PIPE, stderr=open(sys.argv[1] + '.log', 'w'), text=True)\n"
        "ready = json.loads(daemon.stdout.readline())\n"
        "from memory_agent import MemoryClient\n"
        "with MemoryClient('alice', data_dir=sys.argv[1]) as memory:\n"
        "    memory.remember('Staging needs the VPN')\n"
        "    found = memory.recall('what does staging need?', deadline_ms=60_000)\n"
        "    print(memory.status().form, found.degraded, found.memories[0].record.text)\n"
        "daemon.send_signal(signal.SIGTERM)\n"
        "print(daemon.wait())\n"
    )
    done = installed("python", "-c", program, str(tmp_path / "data"))
    assert done.stdout.splitlines() == ["light () Staging needs the VPN", "0"], done.stderr
    assert "requires Ray: pip install 'ray<2.61' cryptography fsspec" in (tmp_path / "data.log").read_text()


@pytest.mark.slow
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


@pytest.mark.slow
def test_everything_but_ray_passes_doctor(installed: Command, tmp_path: Path) -> None:
    checked = installed("memory-agent", "doctor", "--data-dir", str(tmp_path), "--json")
    checks = {check["name"]: check for check in json.loads(checked.stdout)["checks"]}
    assert checked.returncode == 0, checked.stdout
    assert "ray (not installed: serve runs as one process)" in checks["versions"]["detail"]
