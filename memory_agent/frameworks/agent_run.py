"""One run of an agent: recalls before the agent works, and reports the outcome of the work, from which recall learns.

Uses the blocking client even with asyncio: the socket of `AsyncMemoryClient` belongs to one event loop, but frameworks
open a loop for each call.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable
from contextvars import ContextVar
from types import TracebackType
from typing import ParamSpec, Self, TypeVar

from memory_agent.client import MemoryClient
from memory_agent.errors import MemoryAgentError
from memory_agent.records.memories import RecallResult
from memory_agent.records.prompt_block import without_blocks
from memory_agent.records.trajectories import RunEnd

USUAL_TOKENS = 512
MOST_TEXT_CHARS = 16_000
"""The default of `ingest.max_text_chars`, the maximum length of a memory's text."""
MOST_LEVELS = 60
"""The maximum nesting depth of a framework's value, a few levels below the limit for the metadata that contains the
value."""

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
_current: ContextVar[AgentRun | None] = ContextVar("memory_agent_run", default=None)


def current_run_id(memory: MemoryClient) -> str | None:
    """Return the id of the current context's run, if it belongs to this memory's user, for `recall(by_run=...)`."""
    run = _open_run()
    return run.id if run is not None and run.memory.user_id == memory.user_id else None


def _open_run() -> AgentRun | None:
    """Return the context's innermost run that has not ended."""
    run = _current.get()
    while run is not None and not run.id:
        run = run.outer
    return run


def recall_block(
    memory: MemoryClient, request: str, *, session_id: str | None = None, context_tokens: int = USUAL_TOKENS
) -> str:
    """Recall for a request, as part of the current run; return the prompt block, or "" if nothing was recalled."""
    answer = memory.recall(
        request,
        profile="before_planning",
        context_tokens=context_tokens,
        by_run=current_run_id(memory),
        by_session=session_id,
    )
    return answer.context or ""


def searched_text(text: str) -> str:
    """Return a message's text for storage or for a query, without blocks of memories and truncated to the maximum
    length."""
    return without_blocks(text).strip()[:MOST_TEXT_CHARS]


async def in_thread(function: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
    """Call a blocking function in a thread.

    A cancelled call still completes before `CancelledError` is raised, so that writes stay in order.
    """
    call = asyncio.ensure_future(asyncio.to_thread(function, *args, **kwargs))
    try:
        return await asyncio.shield(call)
    except asyncio.CancelledError:
        await asyncio.wait({call})
        call.exception()  # retrieve the error, so that asyncio does not log it
        raise


class AgentRun:
    """An agent's run for one request. Use it with `with` or `async with`, or call `begin` and `end_with`.

    `recalled` is the answer to the recall. `block` is the text for the prompt, or "" if nothing was recalled. Set
    `output` to the agent's answer: a memory whose words it repeats counts as used. An exception ends the run as failed;
    cancellation ends it as cancelled. A run that never ends expires, and nothing is learned from it. A request without
    text has no run. Every method may raise the client's errors.

    >>> with AgentRun(memory, "Deploy to staging") as run:
    ...     run.output = "Connected to the VPN, then deployed."
    >>> [(run.objective, run.outcome) for run in memory.runs.list()]
    [('Deploy to staging', 'completed')]
    """

    def __init__(
        self,
        memory: MemoryClient,
        request: str,
        *,
        session_id: str | None = None,
        context_tokens: int = USUAL_TOKENS,
        top_k: int | None = None,
        recalls: bool = True,
    ) -> None:
        """`session_id` names the conversation; recall omits the latest messages of that conversation.

        Pass `recalls=False` if the agent itself recalls during its work and names the run (`current_run_id`).
        """
        self.memory = memory
        self.request = searched_text(request)
        self.output: str | None = None
        self.id = ""
        self.recalled: RecallResult | None = None
        self.outer: AgentRun | None = None
        self._session_id = session_id
        self._context_tokens = context_tokens
        self._top_k = top_k
        self._recalls = recalls

    @property
    def block(self) -> str:
        return (self.recalled.context if self.recalled is not None else None) or ""

    def begin(self) -> Self:
        """Begin the run and, unless `recalls` is false, recall memories for its request."""
        if not self.request:
            return self
        self.id = self.memory.runs.begin(self.request, session_id=self._session_id).id
        if self._recalls:
            try:
                self._recall()
            except BaseException as error:
                self.end_with(error)
                raise
        return self

    def _recall(self) -> None:
        self.recalled = self.memory.recall(
            self.request,
            self._top_k,
            profile="before_planning",
            context_tokens=self._context_tokens,
            by_run=self.id,
            by_session=self._session_id,
        )

    def enter(self) -> None:
        """Make this the run of the current context (`current_run_id`), until it ends."""
        self.outer = _open_run()
        _current.set(self)

    def end(self, outcome: RunEnd = "completed", used: tuple[str, ...] = ()) -> None:
        """End the run with `output` as its summary. `used`: the ids of the memories that the agent reported as used.

        Does nothing if the run has not begun or has already ended.
        """
        run_id, self.id = self.id, ""
        if run_id:
            self.memory.runs.end(run_id, outcome, self.output or None, memory_ids=used)

    def end_with(self, error: BaseException | None) -> None:
        """End the run with the outcome that corresponds to an exception; None means success.

        Only warns if the outcome cannot be stored: the agent's work is done, and its answer must not be lost.
        """
        try:
            if error is None:
                self.end("completed")
            elif not isinstance(error, Exception) or isinstance(error, asyncio.CancelledError):
                self.end("cancelled")
            else:
                self.output = self.output or f"{type(error).__name__}: {error}"
                self.end("failed")
        except MemoryAgentError as refused:
            warnings.warn(f"the outcome of a run was not stored: {refused}", RuntimeWarning, stacklevel=2)

    def __enter__(self) -> Self:
        self.begin()
        self.enter()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.end_with(error)

    async def __aenter__(self) -> Self:
        try:
            await in_thread(self.begin)
        except asyncio.CancelledError as error:  # `__aexit__` is not called
            await asyncio.to_thread(self.end_with, error)
            raise
        self.enter()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: TracebackType | None) -> None:
        await in_thread(self.end_with, error)
