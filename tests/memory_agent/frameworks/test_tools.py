from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

from memory_agent import MemoryClient
from memory_agent.frameworks import tools as module
from memory_agent.frameworks.agent_run import AgentRun
from memory_agent.frameworks.tools import NOTHING, MemoryTools
from tests.end_to_end.conftest import DaemonProcess


@pytest.fixture
def tools(light_daemon: DaemonProcess, user: str) -> Iterator[MemoryTools]:
    with MemoryClient(user, data_dir=light_daemon.data_dir) as memory:
        yield MemoryTools(memory)


def test_what_a_tool_stores_is_recalled_by_the_other_in_any_event_loop(tools: MemoryTools) -> None:
    assert asyncio.run(tools.arecall_memories("what does staging need?")) == NOTHING
    assert asyncio.run(tools.aremember("Staging needs the VPN")) == "Remembered."
    assert "VPN" in asyncio.run(tools.arecall_memories("what does staging need?"))


def test_recalls_and_memories_of_a_tool_belong_to_the_current_run(tools: MemoryTools) -> None:
    async def work() -> str:
        async with AgentRun(tools.memory, "deploy the shop", recalls=False) as run:
            await tools.aremember("Staging needs the VPN")
            await tools.arecall_memories("what does staging need?")
            return run.id

    run_id = asyncio.run(work())
    run = tools.memory.runs.get(run_id)
    assert run is not None
    assert len(run.recall_ids) == 1
    assert {record.run_id for record in tools.memory.list({"kinds": ["finding"]}).records} == {run_id}


def test_docstring_examples_run(
    light_daemon: DaemonProcess, run_docstrings: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEMORY_AGENT_DATA_DIR", str(light_daemon.data_dir))
    run_docstrings(module)
