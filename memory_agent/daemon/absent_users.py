"""Answers reads for users without a store from empty memories in this process, without starting a host.

A request with a mistyped name starts no process, creates no folder, and is answered as for a user without memories.
"""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Self

import msgspec

from memory_agent.embedders import Embedder, EmbedderInfo, PendingVector, PendingVectors, Progress, SettledVector
from memory_agent.errors import ModelMissingError, StoreError
from memory_agent.memory import Memory, feedback_payload
from memory_agent.records.memories import MemoryStats, RecallResult
from memory_agent.records.shared_requests import NO_RIGHTS, Caller, Rights, SharedStore
from memory_agent.records.trajectories import FeedbackReport
from memory_agent.settings import LearningSettings, RecallSettings
from memory_agent.storage.folders import user_folder
from memory_agent.verbs.params import FeedbackParams, Params, RecallParams
from memory_agent.verbs.protocol import Request, decode, encode_result
from memory_agent.verbs.table import Verb

_KEPT_RECALLS = 1_000
_OF_KNOWN_RUNS = ("run_step", "run_end")


class AbsentUsers:
    """Answers recalls from one empty memory and other reads from another, so that these reads never return a recorded
    recall. Must be used from a single event loop."""

    def __init__(
        self,
        data_dir: Path,
        folder: Path,
        recall: RecallSettings,
        learning: LearningSettings,
        shared: SharedStore,
    ) -> None:
        """The empty memories are kept in `folder`, whose previous contents are deleted."""
        self._data_dir = data_dir
        self._folder = folder
        self._recall_settings = recall
        self._learning_settings = learning
        self._shared = shared
        self._recalls: OrderedDict[str, str] = OrderedDict()
        self._opening = threading.Lock()
        self._memories: dict[str, _EmptyMemory] = {}

    def is_absent(self, user_id: str) -> bool:
        return not user_folder(self._data_dir, user_id).exists()

    async def answer(self, user_id: str, verb: Verb, request: Request, rights: Rights = NO_RIGHTS) -> bytes | None:
        """Return the encoded reply, or None if the user's own memory must answer. Raises `InvalidInputError`.

        Answers reads. Accepts feedback on a recall answered here, if the feedback names no memories. Recording a step
        or the end of a run raises `RunUnknownError`. A recall within a run is left to the user's memory, which must
        record it.
        """
        if verb.name == "feedback":
            return self._feedback(user_id, decode(request.params, FeedbackParams))
        if (verb.repeat != "read" and verb.name not in _OF_KNOWN_RUNS) or not self.is_absent(user_id):
            return None
        params = decode(request.params, verb.params)
        if isinstance(params, RecallParams) and params.by_run is not None:
            return None
        caller = Caller(user_id=user_id, rights=rights)
        result = await asyncio.to_thread(self._read, verb, params, request.deadline_ms, caller)
        if isinstance(result, RecallResult) and result.memories:
            return None  # shared items: the user's own memory must record this recall
        return encode_result(self._for_user(user_id, result))

    def close(self) -> None:
        with self._opening:
            while self._memories:
                self._memories.popitem()[1].abandon()
            shutil.rmtree(self._folder, ignore_errors=True)

    def _read(self, verb: Verb, params: Params, remaining_ms: float, caller: Caller) -> object:
        name: Literal["recalls", "reads"] = "recalls" if verb.name == "recall" else "reads"
        memory = self._memory(name)
        try:
            return verb.answer(memory.of(caller), params, remaining_ms, caller.rights)
        except StoreError:
            self._drop(name, memory)
            return verb.answer(self._memory(name).of(caller), params, remaining_ms, caller.rights)

    def _for_user(self, user_id: str, result: object) -> object:
        if isinstance(result, RecallResult):
            self._recalls[result.recall_id] = user_id
            if len(self._recalls) > _KEPT_RECALLS:
                self._recalls.popitem(last=False)
            degraded = tuple(one for one in result.degraded if one == "global_unavailable")
            return msgspec.structs.replace(result, degraded=degraded)  # the other parts had no memories to search
        if isinstance(result, MemoryStats):
            return msgspec.structs.replace(result, user_id=user_id, disk_bytes=0)  # the files belong to the daemon
        if isinstance(result, msgspec.Struct) and "user_id" in result.__struct_fields__:
            named: Any = result
            return msgspec.structs.replace(named, user_id=user_id)
        return result

    def _feedback(self, user_id: str, params: FeedbackParams) -> bytes | None:
        """Accept feedback on a recall that found nothing and therefore has no memory to credit."""
        if params.used or self._recalls.get(params.recall_id) != user_id:
            return None
        feedback_payload(params.recall_id, params.used, params.quality, params.comment)
        return encode_result(FeedbackReport(trajectory_id=params.recall_id))

    def _memory(self, name: Literal["recalls", "reads"]) -> _EmptyMemory:
        with self._opening:
            if name not in self._memories:
                folder = self._folder / name
                shutil.rmtree(folder, ignore_errors=True)  # left by a killed daemon, or damaged
                self._memories[name] = _EmptyMemory.open(
                    folder,
                    embedder=_NoModel(),
                    recall_settings=self._recall_settings,
                    learning_settings=self._learning_settings,
                    shared=self._shared,
                )
            return self._memories[name]

    def _drop(self, name: str, memory: _EmptyMemory) -> None:
        """Close a memory that failed, unless another thread has already replaced it."""
        with self._opening:
            if self._memories.get(name) is memory:
                self._memories.pop(name).abandon()


class _EmptyMemory(Memory):
    """Logs nothing, because the service logs the recall with the user's name."""

    def of(self, caller: Caller) -> Self:
        return self._for_caller(caller)

    def _log(self, event: str, **fields: Any) -> None:
        pass


class _NoModel(Embedder):
    @property
    def info(self) -> EmbedderInfo:
        raise _missing()

    def begin_query(self, text: str, timeout_s: float | None = None) -> PendingVector:
        return SettledVector(_missing())

    def begin_texts(self, texts: Sequence[str], progress: Progress | None = None) -> PendingVectors:
        return SettledVector(_missing())

    def count_tokens(self, text: str, timeout_s: float | None = None) -> int:
        raise _missing()

    def close(self) -> None:
        pass


def _missing() -> ModelMissingError:
    return ModelMissingError("a user without memories needs no model")
