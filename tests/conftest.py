"""Sets the environment of every test, and distributes test files to processes under `make test`."""

from __future__ import annotations

import functools
import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import LoadScopeScheduling

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read when NumPy is imported; the daemon's processes inherit it
os.environ.pop("CLAUDE_CODE_SESSION_ID", None)  # set if an agent runs the tests; they must not use its session
os.environ.pop("PYTHONUNBUFFERED", None)  # set in many containers; if unset, output errors occur at a flush or at exit

MEMORY_DISK = Path("/dev/shm")
LEAST_FREE_BYTES = 2_000_000_000
"""Several times the peak size of the temporary files and Ray object stores of a test run."""

if "TMPDIR" not in os.environ and MEMORY_DISK.is_dir() and shutil.disk_usage(MEMORY_DISK).free > LEAST_FREE_BYTES:
    # In memory, a flush costs nothing. On a disk, flushes take a fifth of the tests' processor time and half of their
    # waiting time (measured). Killing a process loses no written data, flushed or not; the power cuts in tests/crash
    # use their own disk.
    tempfile.tempdir = os.environ["TMPDIR"] = str(MEMORY_DISK)  # tempfile has cached the value that pytest read

settings.register_profile("untimed", deadline=None)  # an example may take a long time on a busy machine
settings.load_profile("untimed")

START_RAY = (
    "tests/end_to_end/",
    "tests/memory_agent/daemon/test_supervisors.py",
    "tests/ops/test_bench.py",
    "tests/ops/test_demo_books.py",
    "tests/ops/test_kubernetes.py",
    "tests/ops/test_readme_examples.py",
)
WITHOUT_RAY = tuple(
    f"tests/end_to_end/test_{name}.py"
    for name in (
        *("coding_agents", "cursor", "early_client", "encrypted", "keys_of_users"),
        *("metrics_of_a_daemon", "on_demand", "page_of_a_daemon", "reembedding", "services", "three_weeks"),
        *("traces", "vs_code"),
    )
)
"""The files in START_RAY that start only light daemons."""
SECOND = ("tests/ops/", "tests/end_to_end/test_cluster")
"""The files in START_RAY that run in a second process, in parallel with the other files."""
PAGE = "tests/page/"
"""The test files that share a browser and a daemon."""
STARTERS = {"daemon", "own_full_daemon", "rough_daemon", "supervised"}
"""Fixtures that start Ray."""
SHARED_BY_FILES = {"daemon", "rough_daemon"}
"""The fixtures in STARTERS whose daemon runs until the last test file has finished. Each host of such a daemon takes a
hundredth of a core while it waits.
"""


def starts_ray(nodeid: str) -> bool:
    """Whether a test's file starts Ray."""
    return nodeid.startswith(START_RAY) and not nodeid.startswith(WITHOUT_RAY)


@pytest.fixture(autouse=True)
def _no_log_after() -> Iterator[None]:
    """Reset structlog, which a test may have configured, so that later commands in this process log nothing."""
    yield
    if "structlog" in sys.modules:
        sys.modules["structlog"].reset_defaults()


@pytest.fixture(scope="session", autouse=True)
def model_loaded_once() -> Iterator[None]:
    """Load each model once per process. Otherwise, every command that a test runs in this process would load it again.

    The loaded model is stateless. The tests in `tests/memory_agent/embedders` undo this, because they test model
    loading.
    """
    from memory_agent.embedders import minilm

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(minilm, "open_minilm", functools.cache(minilm.open_minilm))
        yield


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Return the number of cores plus one, but at most four, because many tests wait for processes that they
    started.
    """
    return min((os.cpu_count() or 1) + 1, 4)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Run each file's tests in one process, with shared fixtures.

    The test files that start Ray are divided between two processes, so that at most two of them run at a time. The
    files of the page run in one process.

    Rejected: `--dist loadgroup`, which finds no groups with pytest 9.2, because renamed items keep their old names.
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            if starts_ray(nodeid):
                return f"Ray {1 + nodeid.startswith(SECOND)}"
            return PAGE if nodeid.startswith(PAGE) else nodeid.partition("::")[0]

    return ByFile(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the files that start Ray first, then the tests of the page: each group takes minutes in one process.
    Among the files that start Ray, tests with a shared daemon run last.

    Fails if a file that starts Ray is not listed above.
    """
    for item in items:
        starts = item.get_closest_marker("ray") or STARTERS & _fixtures(item)
        if starts and not starts_ray(item.nodeid):
            raise pytest.UsageError(f"{item.nodeid} starts Ray; add its file to START_RAY in {__file__}")
    items.sort(
        key=lambda item: (
            not starts_ray(item.nodeid),
            not item.nodeid.startswith(PAGE),
            bool(SHARED_BY_FILES & _fixtures(item)),
        )
    )


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exempt the collected tests (400,000 objects) from garbage collection, which would otherwise traverse them each
    time.
    """
    gc.disable()
    result = yield
    gc.freeze()
    gc.enable()
    return result


def _fixtures(item: pytest.Item) -> set[str]:
    return set(getattr(item, "fixturenames", ()))
