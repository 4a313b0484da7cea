"""Fixtures for the main test run, and for runs of single files in the frameworks' environments.

In a framework's environment, only this conftest is loaded, so it imports only pytest. MEMORY_AGENT_DATA_DIR, which
clients read, is set to the daemon's data folder.
"""

from __future__ import annotations

import asyncio
import doctest
import gc
import re
import sys
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from memory_agent import MemoryClient

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "ops" / "FRAMEWORKS.md"

if Path(sys.prefix).parent.name != "frameworks":
    collect_ignore = [
        f"test_{file.stem}.py" for file in (ROOT / "ops" / "frameworks").glob("*.txt")
    ]  # run by test_environments
    from tests.end_to_end.conftest import light_daemon  # noqa: F401
else:
    gc.disable()  # until the framework is imported; collections take a fifth of an import's processor time (measured)

    def pytest_collection_finish() -> None:
        gc.freeze()
        gc.enable()


@pytest.fixture
def user() -> str:
    """The id of a user that no other test uses."""
    return f"user-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def cancel() -> Callable[..., None]:
    """Do some work in an event loop, and cancel it once the memory has an open run."""

    def run(memory: MemoryClient, work: Callable[[], Awaitable[object]]) -> None:
        async def cancelled() -> None:
            task = asyncio.ensure_future(work())
            while not memory.runs.list("open"):
                await asyncio.sleep(0.01)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        asyncio.run(cancelled())

    return run


@pytest.fixture
def example(request: pytest.FixtureRequest, user: str, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run the example in this file's section of ops/FRAMEWORKS.md as a new user; return what it prints.

    The section is found by its install line. Keyword arguments are variables that the example may use, such as `model`.
    """
    extra = request.path.stem.removeprefix("test_").replace("_", "-")
    section = next(part for part in EXAMPLES.read_text(encoding="utf-8").split("\n## ") if f"[{extra}]" in part)
    code = "\n".join(re.findall(r"```python\n(.*?)```", section, re.DOTALL))

    def run(**variables: object) -> str:
        exec(compile(code.replace('"alice"', repr(user)), str(EXAMPLES), "exec"), {"__name__": "__main__"} | variables)
        return capsys.readouterr().out

    return run


@pytest.fixture
def run_docstrings(user: str) -> Callable[..., None]:
    """Run the examples in a module's docstrings, each with the `memory` of a new user who has one memory.

    Keyword arguments are additional names that the examples may use.
    """
    from memory_agent import MemoryClient

    def run(module: ModuleType, **names: object) -> None:
        tests = [test for test in doctest.DocTestFinder().find(module) if test.examples]
        assert tests
        for number, test in enumerate(tests):
            with MemoryClient(f"{user}-{number}") as memory:
                memory.remember("Staging needs the VPN")
                test.globs |= {"memory": memory} | names
                assert doctest.DocTestRunner().run(test).failed == 0, test.name

    return run
