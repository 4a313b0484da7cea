"""Runs a trial, either through a daemon, as in a deployment, or embedded in this process."""

from __future__ import annotations

import itertools
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from memory_agent.client import MemoryClient
from memory_agent.embedders import Embedder, open_embedder
from memory_agent.errors import UnavailableError
from memory_agent.evaluation.daemon_process import publish_events, temporary_daemon
from memory_agent.evaluation.trial import Answer, Examiner, Plan, Run
from memory_agent.layout import Layout
from memory_agent.memory import Memory
from memory_agent.records.memories import MemoryStats
from memory_agent.settings import RetentionSettings, Settings
from memory_agent.storage.folders import user_folder

Progress = Callable[[str, int, int], None]  # called with (step, done, total)


Subject = Memory | MemoryClient
OpenSubject = Callable[[str], AbstractContextManager[Subject]]

_BATCH = 64


def run_through_daemon(plan: Plan, progress: Progress) -> Run:
    """Publish all events from a separate process, wait until they are recallable, and ask the questions over RPC.

    Uses the daemon for the plan's folder, or starts a temporary one. Raises `UnavailableError` if the daemon or the
    publisher fails.
    """
    with ExitStack() as stack:
        data_dir = plan.data_dir or stack.enter_context(temporary_daemon(_light(without_echoes(plan.settings))))
        took_s = _publish_all(plan, data_dir)
        return _ask_all(
            plan, lambda user_id: MemoryClient(user_id, data_dir=data_dir), took_s, progress, embedded=False
        )


def run_embedded(plan: Plan, progress: Progress) -> Run:
    """Ingest the events and ask the questions in this process, without a relay or daemon.

    Raises `StoreOwnedElsewhereError` if a daemon owns the folder, and `ModelError` if there is no model.
    """
    with ingested(plan, progress) as prepared:
        return prepared.ask_in(prepared.data_dir, plan, progress)


@contextmanager
def ingested(plan: Plan, progress: Progress) -> Iterator[Prepared]:
    """Ingest the plan's events in this process, and yield the memories, which can be queried any number of times.

    Uses the plan's folder, or a temporary one. Raises the same errors as `run_embedded`.
    """
    with ExitStack() as stack:
        data_dir = plan.data_dir or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="memory-eval-")))
        Layout(data_dir).create()
        embedder = open_embedder(plan.settings.embedder)
        stack.callback(embedder.close)
        took_s = _ingest_all(plan, opener(plan.settings, data_dir, embedder), progress)
        yield Prepared(plan, data_dir, embedder, took_s)


@dataclass(frozen=True)
class Prepared:
    """Memories from events ingested once, which can be queried with different recall settings."""

    plan: Plan
    data_dir: Path
    embedder: Embedder
    took_s: float

    def ask(self, plan: Plan, progress: Progress) -> Run:
        """Ask the plan's questions on a copy of the folder, so that every run starts from the state after ingest.

        The plan must equal the ingested one, except for histories, mode, `top_k` and `settings.recall`. For a query
        already asked in an earlier run, the measured latency is too low, because the embedder caches queries.
        """
        with tempfile.TemporaryDirectory(prefix="memory-eval-") as folder:
            for user_id, _ in plan.users():
                shutil.copytree(user_folder(self.data_dir, user_id), user_folder(Path(folder), user_id))
            return self.ask_in(Path(folder), plan, progress)

    def ask_in(self, data_dir: Path, plan: Plan, progress: Progress) -> Run:
        """Ask the plan's questions of the memories in this folder. The recalls are recorded there."""
        return _ask_all(plan, opener(plan.settings, data_dir, self.embedder), self.took_s, progress, embedded=True)


def without_echoes(settings: Settings) -> Settings:
    """Return the settings with `recall.echo_minutes` set to 0, because in a trial an item that repeats the question's
    words is an answer.
    """
    return msgspec.structs.replace(settings, recall=msgspec.structs.replace(settings.recall, echo_minutes=0.0))


def _light(settings: Settings) -> Settings:
    return msgspec.structs.replace(settings, daemon=msgspec.structs.replace(settings.daemon, light=True))


def opener(settings: Settings, data_dir: Path, embedder: Embedder) -> Callable[[str], Memory]:
    """Return a function that opens a user's memory below `data_dir` with these settings."""

    def open_memory(user_id: str) -> Memory:
        return Memory.open(
            user_folder(data_dir, user_id),
            user_id=user_id,
            settings=without_echoes(settings),
            embedder=embedder,
            retention_settings=RetentionSettings(),  # keep all memories: the conversations are years old
        )

    return open_memory


def _publish_all(plan: Plan, data_dir: Path) -> float:
    """Publish all events; return the seconds from the first publish until all are recallable."""
    events = (event for user_id, history in plan.users() for event in history.events(user_id))
    with tempfile.NamedTemporaryFile(prefix="memory-eval-", suffix=".jsonl") as file:
        summary = publish_events(events, Path(file.name), data_dir, plan.timeout_s)
    if summary.recallable_s is None:
        raise UnavailableError("the relay is unreachable: events were spooled and are not recallable yet")
    return summary.recallable_s


def _ingest_all(plan: Plan, open_memory: Callable[[str], Memory], progress: Progress) -> float:
    """Ingest all events; return the time it took, in seconds."""
    done, total = 0, plan.events
    started_s = time.monotonic()
    for user_id, history in plan.users():
        events = history.events(user_id)
        with open_memory(user_id) as memory:
            for start in range(0, len(events), _BATCH):
                batch = events[start : start + _BATCH]
                memory.ingest(batch)
                done += len(batch)
                progress("ingest", done, total)
    return time.monotonic() - started_s


def _ask_all(plan: Plan, open_subject: OpenSubject, took_s: float, progress: Progress, *, embedded: bool) -> Run:
    total = sum(len(history.answerable) for history in plan.dataset.histories)
    numbers = itertools.count(1)
    answers: list[Answer] = []
    stats: list[MemoryStats] = []
    for user_id, history in plan.users():
        with open_subject(user_id) as subject:
            stats.append(subject.stats())
            examiner = Examiner(
                history, user_id, subject.recall, subject.get, plan.mode, plan.top_k, plan.min_relevance
            )
            answers += examiner.ask_all(lambda: progress("ask", next(numbers), total))
    return Run(
        plan=plan,
        answers=tuple(answers),
        took_s=took_s,
        memories=sum(part.memories for part in stats),
        model=next((part.model for part in stats if part.model), None),
        embedded=embedded,
        settings_known=embedded or plan.data_dir is None,
    )
