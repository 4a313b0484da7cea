"""Microsoft Agent Framework: a context provider that recalls, and middleware that reports how the run ended."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from agent_framework import AgentContext, AgentMiddleware, ContextProvider, Message, tool

from memory_agent.client import MemoryClient
from memory_agent.frameworks.agent_run import USUAL_TOKENS, AgentRun, recall_block, searched_text
from memory_agent.frameworks.tools import MemoryTools

SOURCE = "memory_agent"


def episodic_memory(memory: MemoryClient, *, tools: bool = True, context_tokens: int = USUAL_TOKENS) -> dict[str, Any]:
    """Return the arguments that give an agent this memory: `Agent(client, **episodic_memory(memory))`."""
    return {
        "context_providers": [MemoryProvider(memory, tools=tools, context_tokens=context_tokens)],
        "middleware": [OutcomesMiddleware(memory)],
    }


class MemoryProvider(ContextProvider):
    """Adds tools, and a block of memories that resemble the request, to an agent's context but not to its history."""

    def __init__(self, memory: MemoryClient, *, tools: bool = True, context_tokens: int = USUAL_TOKENS) -> None:
        super().__init__(SOURCE)
        self.memory = memory
        made = MemoryTools(memory)
        named = {"recall_memories": made.arecall_memories, "remember": made.aremember}
        self._tools = [tool(function, name=name) for name, function in named.items()] if tools else []
        self._context_tokens = context_tokens

    async def before_run(self, *, agent: Any, session: Any, context: Any, state: dict[str, Any]) -> None:
        context.extend_tools(self.source_id, self._tools)
        if request := _request_of(context.input_messages):
            block = await asyncio.to_thread(
                recall_block,
                self.memory,
                request,
                session_id=context.session_id,
                context_tokens=self._context_tokens,
            )
            if block:
                context.extend_messages(self, [Message(role="user", contents=[block])])


class OutcomesMiddleware(AgentMiddleware):
    """Records each run of an agent as a run in the memory, and credits its recalls with the outcome.

    An exception ends the run and marks it as failed. Cancellation, or a stream that is not read to its end, ends the
    run and marks it as cancelled.
    """

    def __init__(self, memory: MemoryClient) -> None:
        self.memory = memory

    async def process(self, context: AgentContext, call_next: Callable[[], Awaitable[None]]) -> None:
        session_id = None if context.session is None else context.session.session_id
        request = _request_of(context.messages)
        run = AgentRun(self.memory, request, session_id=session_id, recalls=False)
        if context.stream:
            await self._stream(run, context, call_next)
            return
        async with run:
            await call_next()
            run.output = getattr(context.result, "text", None)

    async def _stream(self, run: AgentRun, context: AgentContext, call_next: Callable[[], Awaitable[None]]) -> None:
        await asyncio.to_thread(run.begin)
        run.enter()

        async def complete(response: Any) -> None:
            run.output = response.text
            await asyncio.to_thread(run.end_with, None)

        async def abandon() -> None:
            await asyncio.to_thread(run.end_with, asyncio.CancelledError())

        context.stream_result_hooks.append(complete)
        context.stream_cleanup_hooks.append(abandon)  # has no effect after `complete`
        try:
            await call_next()
        except BaseException as error:
            await asyncio.to_thread(run.end_with, error)
            raise


def _request_of(messages: list[Message]) -> str:
    return searched_text(next((message.text for message in reversed(messages) if message.role == "user"), ""))
