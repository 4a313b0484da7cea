"""Run each adapter's tests in an environment with its framework, against a daemon without Ray.

The frameworks have conflicting requirements, so `make frameworks` creates an environment for each framework.
"""

from __future__ import annotations

import os
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.end_to_end.conftest import DaemonProcess, environment

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
FRAMEWORKS = sorted(file.stem for file in (ROOT / "ops" / "frameworks").glob("*.txt"))


def python_of(framework: str) -> Path:
    """Return the Python interpreter of a framework's environment; skip the test if PyPI refused to serve the framework
    or, outside CI, if the environment is missing.
    """
    folder = ROOT / ".venv" / "frameworks" / framework
    if (folder / "ready").exists():
        return folder / "bin" / "python"
    reason = f"{framework} is not installed: run `make frameworks`"
    if (folder / "refused").exists():
        pytest.skip(f"{framework}: {(folder / 'refused').read_text(encoding='utf-8')[-300:]}")
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_an_adapter_passes_its_tests_in_an_environment_with_its_framework(
    framework: str, light_daemon: DaemonProcess
) -> None:
    options = ["--quiet", "-c", os.devnull, "--rootdir", str(HERE), "--confcutdir", str(HERE), "-p", "no:cacheprovider"]
    command = [str(python_of(framework)), "-m", "pytest", *options, "-o", "asyncio_mode=auto"]
    variables = {"MEMORY_AGENT_DATA_DIR": str(light_daemon.data_dir), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*command, str(HERE / f"test_{framework}.py")],
        cwd=ROOT, env=environment() | variables,
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2_000:]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_framework_has_an_adapter_an_extra_tests_and_an_example(framework: str) -> None:
    extra = framework.replace("_", "-")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert extra in project["optional-dependencies"]
    assert (ROOT / "memory_agent" / "frameworks" / f"{framework}.py").exists()
    assert (HERE / f"test_{framework}.py").exists()
    assert f"pip install '.[{extra}]'" in (ROOT / "ops" / "FRAMEWORKS.md").read_text(encoding="utf-8")


def test_every_adapter_has_an_environment() -> None:
    adapters = {file.stem for file in (ROOT / "memory_agent" / "frameworks").glob("[!_]*.py")} - {
        "agent_run",
        "paging",
        "stored_messages",
        "tools",
    }
    assert adapters == set(FRAMEWORKS)
