"""LlamaIndex: a memory block that recalls for the last request and stores the messages that leave the short-term
memory."""

from __future__ import annotations

import asyncio
from typing import Any

from llama_index.core.base.llms.types import ChatMessage, MessageRole
from llama_index.core.memory import BaseMemoryBlock
from pydantic import Field

from memory_agent.client import MemoryClient
from memory_agent.frameworks.agent_run import MOST_TEXT_CHARS, USUAL_TOKENS, recall_block, searched_text
from memory_agent.records.memories import Source
from memory_agent.records.prompt_block import without_blocks


class EpisodicMemoryBlock(BaseMemoryBlock[str]):
    """A block of memories that resemble the last user message. May be used in any event loop.

    Messages that leave the short-term memory become episodes. A recall within `async with AgentRun(memory, request,
    recalls=False)` is credited with the run's outcome.

    >>> block = EpisodicMemoryBlock(memory=memory, context_tokens=200)
    >>> "VPN" in asyncio.run(block.aget([ChatMessage("deploy to staging")]))
    True
    """

    name: str = Field(default="recalled_memories")
    memory: MemoryClient
    context_tokens: int = USUAL_TOKENS

    async def _aget(
        self, messages: list[ChatMessage] | None = None, session_id: str | None = None, **block_kwargs: Any
    ) -> str:
        request = _last_request(messages or [])
        if not request:
            return ""
        return await asyncio.to_thread(
            recall_block, self.memory, request, session_id=session_id, context_tokens=self.context_tokens
        )

    async def _aput(self, messages: list[ChatMessage]) -> None:
        await asyncio.to_thread(self._store, messages)

    def _store(self, messages: list[ChatMessage]) -> None:
        for message in messages:
            source: Source = "user_input" if message.role == MessageRole.USER else "worker_result"
            text, session_id = (
                without_blocks(message.content or "").strip(),
                message.additional_kwargs.get("session_id"),
            )
            for start in range(0, len(text), MOST_TEXT_CHARS):
                part = text[start : start + MOST_TEXT_CHARS]
                self.memory.remember(part, kind="episode", source=source, session_id=session_id)


def _last_request(messages: list[ChatMessage]) -> str:
    texts = (message.content or "" for message in reversed(messages) if message.role == MessageRole.USER)
    return searched_text(next(texts, ""))
