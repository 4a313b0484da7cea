from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from memory_agent import MemoryClient
from memory_agent.frameworks import paging
from memory_agent.frameworks.paging import listed
from memory_agent.records.memories import MemoryFilter
from tests.end_to_end.conftest import DaemonProcess


@pytest.fixture
def memory(light_daemon: DaemonProcess, user: str) -> Iterator[MemoryClient]:
    with MemoryClient(user, data_dir=light_daemon.data_dir) as memory:
        yield memory


@pytest.mark.parametrize("page", [1, 3, 7, 8])
def test_every_memory_is_listed_once_whatever_the_size_of_a_page(memory: MemoryClient, page: int) -> None:
    stored = [memory.remember(f"Shop {number} has {number} tills", tags=["shop"]).id for number in range(7)]
    memory.remember("Staging needs the VPN")
    matching = MemoryFilter(tags=("shop",))
    assert [record.id for record in listed(memory, matching, "oldest", page)] == stored
    assert [record.id for record in listed(memory, matching, "newest", page)] == stored[::-1]
    assert list(listed(memory, MemoryFilter(tags=("zoo",)), "newest", page)) == []


def test_docstring_examples_run(
    light_daemon: DaemonProcess, run_docstrings: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEMORY_AGENT_DATA_DIR", str(light_daemon.data_dir))
    run_docstrings(paging)
