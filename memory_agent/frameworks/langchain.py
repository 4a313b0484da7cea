"""LangChain: a retriever over a memory."""

from __future__ import annotations

from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from pydantic import ConfigDict

from memory_agent.client import MemoryClient


class MemoryRetriever(BaseRetriever):
    """Retrieves memories as documents, best first."""

    model_config = ConfigDict(arbitrary_types_allowed=True)
    memory: MemoryClient
    k: int = 5

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, k: int | None = None
    ) -> list[Document]:
        found = self.memory.recall(query, k or self.k).memories
        return [Document(id=one.record.id, page_content=one.record.text) for one in found]
