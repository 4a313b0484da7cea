"""Pydantic AI: a capability that recalls memories before a run, offers tools, and reports how the run ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic_ai import FunctionToolset, RunContext, Tool
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import ModelRequest, UserContent, UserPromptPart

from memory_agent.client import MemoryClient
from memory_agent.frameworks.agent_run import USUAL_TOKENS, AgentRun
from memory_agent.frameworks.tools import MemoryTools


@dataclass
class EpisodicMemory(AbstractCapability[Any]):
    """Records each run of an agent as a run in the memory, and credits its recalls with the outcome.

    The block of memories precedes the messages in each request to the model, and is not part of the history. With
    `tools`, the model can also recall and remember on its own. The conversation's id is stored as the session id of the
    memories.
    """

    memory: MemoryClient
    tools: bool = True
    context_tokens: int = USUAL_TOKENS
    _run: AgentRun | None = field(default=None, init=False, repr=False)

    async def for_run(self, ctx: RunContext[Any]) -> EpisodicMemory:
        copy = replace(self)
        copy._run = AgentRun(
            self.memory,
            _text_of(ctx.prompt),
            session_id=ctx.conversation_id,
            context_tokens=self.context_tokens,
        )
        return copy

    def get_toolset(self) -> FunctionToolset[Any] | None:
        if not self.tools:
            return None
        tools = MemoryTools(self.memory)
        return FunctionToolset(
            [Tool(tools.arecall_memories, name="recall_memories"), Tool(tools.aremember, name="remember")]
        )

    async def wrap_run(self, ctx: RunContext[Any], *, handler: Any) -> Any:
        assert self._run is not None
        async with self._run as run:
            result = await handler()
            run.output = str(result.output)
            return result

    async def before_model_request(self, ctx: RunContext[Any], request_context: Any) -> Any:
        if self._run is not None and self._run.block:
            block = ModelRequest(parts=[UserPromptPart(self._run.block)])
            request_context.messages = [block, *request_context.messages]
        return request_context


def _text_of(prompt: str | Sequence[UserContent] | None) -> str:
    if prompt is None or isinstance(prompt, str):
        return prompt or ""
    return "\n".join(part for part in prompt if isinstance(part, str))
