"""OpenAI Agents SDK: a runner that recalls and reports how the run ended, a session, and tools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from inspect import isawaitable
from typing import Any

from agents import Agent, RunConfig, Runner, RunResult, Tool, function_tool
from agents.memory import Session, SessionSettings
from agents.run import CallModelData, ModelInputData

from memory_agent.client import MemoryClient
from memory_agent.frameworks.agent_run import USUAL_TOKENS, AgentRun, in_thread
from memory_agent.frameworks.stored_messages import Message, StoredMessages
from memory_agent.frameworks.tools import MemoryTools

TYPE = "openai_agents_item"


async def run_with_memory(
    memory: MemoryClient,
    agent: Agent[Any],
    input: str | list[Any],
    *,
    session: Session | None = None,
    run_config: RunConfig | None = None,
    context_tokens: int = USUAL_TOKENS,
    **options: Any,
) -> RunResult:
    """Run an agent as `Runner.run` does, record the run in the memory, and credit its recalls with the outcome.

    The block of memories precedes the input in each request to the model, and is not part of the session. The request
    is the last user message; the memories have the session's id.
    """
    session_id = None if session is None else session.session_id
    async with AgentRun(memory, _request_of(input), session_id=session_id, context_tokens=context_tokens) as run:
        config = with_block(run, run_config)
        result = await Runner.run(agent, input, session=session, run_config=config, **options)
        run.output = str(result.final_output)
        return result


def with_block(run: AgentRun, run_config: RunConfig | None = None) -> RunConfig:
    """Return a configuration that adds the run's block to each request to the model.

    Use it for `Runner.run_streamed`, within `async with AgentRun(memory, request) as run`, and set `run.output`
    afterwards.
    """
    config = run_config or RunConfig()
    former = config.call_model_input_filter

    async def add_block(data: CallModelData[Any]) -> ModelInputData:
        found = data.model_data if former is None else former(data)
        model_data: ModelInputData = await found if isawaitable(found) else found
        if not run.block:
            return model_data
        items: list[Any] = [{"role": "user", "content": run.block}, *model_data.input]
        return ModelInputData(input=items, instructions=model_data.instructions)

    return replace(config, call_model_input_filter=add_block)


class MemorySession:
    """A session of the SDK whose items are episodes that later sessions recall. May be used in any event loop.

    Secrets in items are masked. Raises the client's errors. Raises `InvalidInputError` for a value that is not JSON,
    before any item of the call is stored.
    """

    def __init__(self, memory: MemoryClient, session_id: str, session_settings: SessionSettings | None = None) -> None:
        """`session_settings` limits how many items a run and `get_items` read by default."""
        self.session_id = session_id
        self.session_settings = session_settings
        self._items = StoredMessages(memory, session_id, TYPE)

    async def get_items(self, limit: int | None = None) -> list[Any]:
        """Return the items, or the latest `limit` of them, oldest first."""
        if limit is None and self.session_settings is not None:
            limit = self.session_settings.limit
        return await in_thread(self._items.read, limit)

    async def add_items(self, items: Sequence[Any]) -> None:
        """Store all items, even if the caller is cancelled meanwhile. Durable on return."""
        messages = [Message(_text_of(item), item.get("role") == "user", dict(item)) for item in items]
        await in_thread(self._items.append, messages)

    async def pop_item(self) -> Any:
        return await in_thread(self._items.pop)

    async def clear_session(self) -> None:
        await in_thread(self._items.clear)


def memory_tools(memory: MemoryClient) -> list[Tool]:
    """Return the tools `recall_memories` and `remember` for `Agent(tools=...)`."""
    tools = MemoryTools(memory)
    return [
        function_tool(tools.arecall_memories, name_override="recall_memories"),
        function_tool(tools.aremember, name_override="remember"),
    ]


def _request_of(input: str | list[Any]) -> str:
    if isinstance(input, str):
        return input
    return next((_text_of(item) for item in reversed(input) if item.get("role") == "user"), "")


def _text_of(item: Any) -> str:
    content = item.get("content") or item.get("output") or item.get("arguments") or ""
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str))
