"""smolagents: tools, and a run that recalls and reports how it ended."""

from __future__ import annotations

from typing import Any, ClassVar

from smolagents import MultiStepAgent, Tool
from smolagents.utils import AgentMaxStepsError

from memory_agent.client import MemoryClient
from memory_agent.errors import InvalidInputError
from memory_agent.frameworks.agent_run import USUAL_TOKENS, AgentRun
from memory_agent.frameworks.tools import MemoryTools


def run_with_memory(
    memory: MemoryClient, agent: MultiStepAgent, task: str, *, context_tokens: int = USUAL_TOKENS, **options: Any
) -> Any:
    """Run an agent as `agent.run` does, record the run in the memory, and credit its recalls with the outcome.

    The block of memories precedes the task. The run fails if an exception is raised, or if there is no answer after the
    last step. Raises `InvalidInputError` for `stream`: use `with AgentRun(memory, task) as run` instead.
    """
    if options.get("stream"):
        raise InvalidInputError("stream", "is not supported here; use AgentRun around the steps instead")
    with AgentRun(memory, task, context_tokens=context_tokens) as run:
        result = agent.run(f"{run.block}\n\n{task}" if run.block else task, **options)
        run.output = str(getattr(result, "output", result))
        error = getattr(agent.memory.steps[-1], "error", None)
        if isinstance(error, AgentMaxStepsError):
            run.end_with(error)
        return result


class RecallMemories(Tool):
    name = "recall_memories"
    description = MemoryTools.recall_memories.__doc__
    inputs: ClassVar[dict[str, Any]] = {"query": {"type": "string", "description": "What you are about to do."}}
    output_type = "string"

    def __init__(self, memory: MemoryClient) -> None:
        super().__init__()
        self._tools = MemoryTools(memory)

    def forward(self, query: str) -> str:
        return self._tools.recall_memories(query)


class Remember(Tool):
    name = "remember"
    description = MemoryTools.remember.__doc__
    inputs: ClassVar[dict[str, Any]] = {"text": {"type": "string", "description": "One finding in plain words."}}
    output_type = "string"

    def __init__(self, memory: MemoryClient) -> None:
        super().__init__()
        self._tools = MemoryTools(memory)

    def forward(self, text: str) -> str:
        return self._tools.remember(text)
