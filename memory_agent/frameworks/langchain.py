"""LangChain: a retriever, a chat history, and a callback handler that reports how runs ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler, CallbackManagerForRetrieverRun
from langchain_core.chat_history import BaseChatMessageHistory
from langchain_core.documents import Document
from langchain_core.messages import BaseMessage, convert_to_messages, message_to_dict, messages_from_dict
from langchain_core.retrievers import BaseRetriever
from pydantic import ConfigDict

from memory_agent.client import MemoryClient
from memory_agent.frameworks.agent_run import AgentRun, current_run_id, searched_text
from memory_agent.frameworks.stored_messages import Message, StoredMessages
from memory_agent.records.memories import MemoryFilter

TYPE = "langchain_message"


class MemoryRetriever(BaseRetriever):
    """Retrieves memories as documents, best first. A recall belongs to the current run (`RunOutcomes`).

    A document's metadata contains the `kind`, `timestamp`, `tags` and `score` of the memory, and the `recall_id`.

    >>> MemoryRetriever(memory=memory, k=1).invoke("what does staging need?")[0].page_content
    'Staging needs the VPN'
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)
    memory: MemoryClient
    k: int = 5
    filter: MemoryFilter | None = None

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, k: int | None = None
    ) -> list[Document]:
        answer = self.memory.recall(query, k or self.k, self.filter, by_run=current_run_id(self.memory))
        return [
            Document(
                id=one.record.id,
                page_content=one.record.text,
                metadata={
                    "kind": one.record.kind,
                    "timestamp": one.record.timestamp.isoformat(),
                    "tags": list(one.record.tags),
                    "score": one.sona_score,
                    "recall_id": answer.recall_id,
                },
            )
            for one in answer.memories
        ]


class MemoryChatHistory(BaseChatMessageHistory):
    """The messages of one session. Each message is an episode that later sessions recall (`StoredMessages`).

    >>> history = MemoryChatHistory(memory, "session-1")
    >>> history.add_user_message("Deploy to staging")
    >>> [message.content for message in history.messages]
    ['Deploy to staging']
    """

    def __init__(self, memory: MemoryClient, session_id: str) -> None:
        super().__init__()
        self._messages = StoredMessages(memory, session_id, TYPE)

    @property
    def messages(self) -> list[BaseMessage]:
        found: list[BaseMessage] = messages_from_dict(self._messages.read())
        return found

    def add_messages(self, messages: Sequence[BaseMessage]) -> None:
        """Durable on return. Raises `InvalidInputError` for a value that is not JSON, before any message is stored."""
        self._messages.append(Message(one.text, one.type == "human", message_to_dict(one)) for one in messages)

    def clear(self) -> None:
        self._messages.clear()


class RunOutcomes(BaseCallbackHandler):
    """Records each outermost run of a chain or graph as a run in the memory, and credits its recalls with the outcome.

    Pass it as a callback. The request is the last user message of the input, the output is the last message of the
    result, and the session is LangGraph's `thread_id`. A run that raises an exception ends as failed, and a cancelled
    run as cancelled. An interrupted graph leaves its run open; resuming the thread continues it, even in another
    process. Recalls by this package's retriever, store and node belong to the run.

    >>> chain = RunnableLambda(lambda request: "Connected to the VPN, then deployed.")
    >>> chain.invoke("Deploy to staging", {"callbacks": [RunOutcomes(memory)]})
    'Connected to the VPN, then deployed.'
    >>> memory.runs.list()[0].outcome
    'completed'
    """

    raise_error = True
    run_inline = True  # otherwise the context of the run would be set in another thread

    def __init__(self, memory: MemoryClient) -> None:
        self.memory = memory
        self._runs: dict[UUID, AgentRun] = {}
        self._interrupted: set[UUID] = set()

    def on_chain_start(
        self,
        serialized: Any,
        inputs: Any,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        metadata: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        if parent_run_id is not None:
            return
        run = self._begun(request_of(inputs), (metadata or {}).get("thread_id"))
        if run is not None:
            run.enter()
            self._runs[run_id] = run

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **_: Any) -> None:
        if (run := self._runs.pop(run_id, None)) and run_id not in self._interrupted:
            run.output = _last_text(outputs, None)
            run.end_with(None)
        self._interrupted.discard(run_id)

    def on_chain_error(
        self, error: BaseException, *, run_id: UUID, parent_run_id: UUID | None = None, **_: Any
    ) -> None:
        if parent_run_id in self._runs and type(error).__name__ == "GraphInterrupt":
            self._interrupted.add(parent_run_id)
        if run := self._runs.pop(run_id, None):
            run.end_with(error)

    def _begun(self, request: str | None, thread_id: str | None) -> AgentRun | None:
        if request is not None:
            return AgentRun(self.memory, request, session_id=thread_id, recalls=False).begin()
        open_runs = self.memory.runs.list("open") if thread_id else []
        interrupted = next((run for run in open_runs if run.session_id == thread_id), None)
        if interrupted is None:
            return None
        run = AgentRun(self.memory, interrupted.objective or "", session_id=thread_id)
        run.id = interrupted.id
        return run


def request_of(inputs: Any) -> str | None:
    """Return the request in a chain's input: the input text, the last user message, or the field `input`, `question` or
    `query`."""
    if isinstance(inputs, Mapping) and not inputs.get("messages"):
        inputs = next((inputs[name] for name in ("input", "question", "query") if inputs.get(name)), None)
    return _last_text(inputs, "human")


def _last_text(value: Any, type: str | None) -> str | None:
    """Return the value itself if it is a string, else the text of the last message. `type` limits the choice unless it
    is None."""
    if isinstance(value, Mapping):
        value = value.get("messages")
    if isinstance(value, BaseMessage):
        value = [value]
    if isinstance(value, list | tuple):
        messages = [one for one in _messages(value) if type is None or one.type == type]
        value = messages[-1].text if messages else None
    return searched_text(value) or None if isinstance(value, str) else None


def _messages(values: Sequence[Any]) -> list[BaseMessage]:
    """A list of other values has no messages."""
    try:
        return list(convert_to_messages(values))
    except (NotImplementedError, ValueError):
        return []
