"""The two ways to hold a LoCoMo trial: through a daemon, as deployed, or in this process, without one.

One user per conversation. What this does not do: read the file (`locomo`), count (`trial`).
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path

from memory_agent.api import MemoryProvider
from memory_agent.client import MemoryClient
from memory_agent.embedders import Embedder, open_embedder
from memory_agent.errors import UnavailableError
from memory_agent.evaluation.daemon_process import temporary_daemon
from memory_agent.evaluation.locomo import Conversation, turn_events
from memory_agent.evaluation.publishing import publish_events
from memory_agent.evaluation.trial import Answer, LocomoReport, ask_questions, report, with_evidence
from memory_agent.layout import Layout
from memory_agent.memory import Memory
from memory_agent.records import Mode
from memory_agent.settings import Settings
from memory_agent.storage.folders import user_folder

Progress = Callable[[str, int, int], None]
"""Called with (what is done, how much is done, of how much)."""

OpenMemory = Callable[[str], AbstractContextManager[MemoryProvider]]

_BATCH = 64


@dataclass(frozen=True)
class Plan:
    """What to measure. Users are `PREFIX-0`, `PREFIX-1`, …; without a `data_dir` a temporary one is used."""

    conversations: list[Conversation]
    settings: Settings
    mode: Mode
    top_k: int
    data_dir: Path | None = None
    prefix: str = "locomo"
    timeout_s: float = 1800.0

    def users(self) -> Iterator[tuple[str, Conversation]]:
        """Go over the conversations and whose they are."""
        return ((f"{self.prefix}-{number}", conversation) for number, conversation in enumerate(self.conversations))


def run_through_daemon(plan: Plan, progress: Progress) -> LocomoReport:
    """Publish every turn from a process of its own, wait until all are recallable, ask over RPC.

    Asks the daemon of the plan's folder, or starts one of its own and stops it. Raises `UnavailableError` where a
    daemon or the publisher does not do its work.
    """
    with ExitStack() as stack:
        data_dir = plan.data_dir or stack.enter_context(temporary_daemon(plan.settings))
        took_s = _publish_all(plan, data_dir)
        answers = _ask_all(plan, lambda user_id: MemoryClient(user_id, data_dir=data_dir), progress)
    return report(plan.conversations, answers, plan.mode, plan.top_k, took_s, embedded=False)


def run_embedded(plan: Plan, progress: Progress) -> LocomoReport:
    """Do it all in this process, without relay and daemon.

    Raises `StoreOwnedElsewhereError` where a daemon owns the folder, `ModelError` without a model.
    """
    with ExitStack() as stack:
        data_dir = plan.data_dir or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="memory-eval-")))
        Layout(data_dir).create()
        embedder = open_embedder(plan.settings.embedder)
        stack.callback(embedder.close)
        open_memory = _opener(plan.settings, data_dir, embedder)
        took_s = _ingest_all(plan, open_memory, progress)
        answers = _ask_all(plan, open_memory, progress)
    return report(plan.conversations, answers, plan.mode, plan.top_k, took_s, embedded=True)


def _opener(settings: Settings, data_dir: Path, embedder: Embedder) -> Callable[[str], Memory]:
    def open_memory(user_id: str) -> Memory:
        return Memory.open(
            user_folder(data_dir, user_id),
            user_id=user_id,
            embedder=embedder,
            store_settings=settings.store,
            ingest_settings=settings.ingest,
            recall_settings=settings.recall,
            event_limits=settings.relay.events,
        )

    return open_memory


def _publish_all(plan: Plan, data_dir: Path) -> float:
    """Return the seconds from the first publish to the last event recallable."""
    events = (event for user_id, conversation in plan.users() for event in turn_events(conversation, user_id))
    with tempfile.NamedTemporaryFile(prefix="locomo-", suffix=".jsonl") as file:
        summary = publish_events(events, Path(file.name), data_dir, plan.timeout_s)
    if summary.recallable_s is None:
        raise UnavailableError("the relay is away: events were spooled and are not recallable yet")
    return summary.recallable_s


def _ingest_all(plan: Plan, open_memory: Callable[[str], Memory], progress: Progress) -> float:
    """Return the seconds that it took."""
    total, done = sum(len(conversation.turns) for conversation in plan.conversations), 0
    started_s = time.monotonic()
    for user_id, conversation in plan.users():
        events = turn_events(conversation, user_id)
        with open_memory(user_id) as memory:
            for start in range(0, len(events), _BATCH):
                batch = events[start : start + _BATCH]
                memory.ingest(batch)
                done += len(batch)
                progress("ingest", done, total)
    return time.monotonic() - started_s


def _ask_all(plan: Plan, open_memory: OpenMemory, progress: Progress) -> list[Answer]:
    total = sum(len(with_evidence(conversation)) for conversation in plan.conversations)
    numbers = itertools.count(1)
    answers: list[Answer] = []
    for user_id, conversation in plan.users():
        with open_memory(user_id) as memory:
            answers += ask_questions(
                conversation, user_id, memory, plan.mode, plan.top_k, lambda: progress("ask", next(numbers), total)
            )
    return answers
