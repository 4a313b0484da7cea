from __future__ import annotations

from collections.abc import Callable

from langchain_core.documents import Document

from memory_agent import MemoryClient
from memory_agent.frameworks.langchain import MemoryRetriever


def test_a_retriever_returns_memories_as_documents(user: str) -> None:
    with MemoryClient(user) as memory:
        record = memory.remember("Staging needs the VPN")
        assert MemoryRetriever(memory=memory).invoke("what does staging need?") == [
            Document(id=record.id, page_content="Staging needs the VPN")
        ]


def test_the_example_runs(example: Callable[..., str]) -> None:
    assert example() == "Staging needs the VPN\n"
